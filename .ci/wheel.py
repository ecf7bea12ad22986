"""The wheel alone: with a virtual environment, a home and a folder that hold nothing else it must train a policy.

python .ci/wheel.py dist/aspc-0.1.0-py3-none-any.whl
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EMBEDDED = "maze2d-umaze?steps=2000"
FEW_STEPS = ["--steps", "40", "--log-every", "20", "--eval-every", "40", "--eval-episodes", "1", "--quiet"]

# Commands, and what they must say; what needs an extra says which. They run in this order in one folder.
COMMANDS = [
    (["--version"], 0, "aspc "),
    (["train", EMBEDDED, *FEW_STEPS, "--out", "run"], 0, "policy score"),
    (["eval", "run", "--episodes", "1"], 0, "1 episodes"),
    (["export", "run", "--format", "numpy", "--out", "numpy"], 0, "numpy"),
    (["train", "--preset", "paper", "--algo", "wpc", "--help"], 0, "--value-lr"),
    (["bench", "--list"], 0, "main_table"),
    (["bench", "embedded", "--quiet"], 2, "aspc[tables]"),
    (["report", "run"], 2, "aspc[report]"),
    (["export", "run", "--format", "onnx"], 2, "aspc[onnx]"),
]


def check_files(wheel: Path) -> None:
    """Every tracked file of the package is in the wheel, its data files among them."""
    listed = subprocess.run(["git", "ls-files", "src/aspc"], cwd=ROOT, check=True, capture_output=True, text=True)
    tracked = {name.removeprefix("src/") for name in listed.stdout.split()}
    missing = tracked - set(zipfile.ZipFile(wheel).namelist())
    if not tracked or missing:
        sys.exit(f"{wheel.name} lacks {', '.join(sorted(missing)) or 'everything'}.")


def check_commands(wheel: Path, place: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
    install = [place / "venv/bin/pip", "install", "-qq", "--disable-pip-version-check", "--only-binary", ":all:"]
    subprocess.run([*install, "-c", ROOT / "constraints.txt", wheel], check=True)
    for name in ("home", "folder"):
        (place / name).mkdir()
    nothing_else = {"HOME": str(place / "home"), "PATH": "/usr/bin:/bin"}
    for argv, code, words in COMMANDS:
        done = subprocess.run(
            [place / "venv/bin/aspc", *argv],
            cwd=place / "folder",
            env=nothing_else,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != code or words not in done.stdout or "Traceback" in done.stdout:
            sys.exit(f"aspc {' '.join(argv)}: exit code {done.returncode}, not {code} with {words!r}:\n{done.stdout}")
        print(f"aspc {' '.join(argv)}: as it should be", flush=True)


def main() -> None:
    wheel = Path(sys.argv[1]).resolve()
    check_files(wheel)
    with tempfile.TemporaryDirectory() as place:
        check_commands(wheel, Path(place))


if __name__ == "__main__":
    main()
