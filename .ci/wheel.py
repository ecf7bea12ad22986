"""Test the wheel alone: train, evaluate and export a policy in an empty environment, home and folder.

python .ci/wheel.py dist/aspc-0.2.0-py3-none-any.whl
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EMBEDDED = "maze2d-umaze?steps=2000"
FEW_STEPS = ["--steps", "40", "--log-every", "20", "--eval-every", "40", "--eval-episodes", "1", "--quiet"]

# Command, exit code, expected output. They run in this order in one folder; a missing extra must be named.
COMMANDS = [
    (["--version"], 0, "aspc "),
    (["train", EMBEDDED, *FEW_STEPS, "--out", "run"], 0, "policy score"),
    (["eval", "run", "--episodes", "1"], 0, "1 episodes"),
    (["export", "run", "--format", "numpy", "--out", "numpy"], 0, "numpy"),
    (["train", "--preset", "paper", "--algo", "wpc", "--help-all"], 0, "--value-lr"),
    (["bench", "--list"], 0, "main_table"),
    (["bench", "embedded", "--quiet"], 2, "aspc[tables]"),
    (["report", "run"], 2, "aspc[report]"),
    (["export", "run", "--format", "onnx"], 2, "aspc[onnx]"),
]


def check_files(wheel: Path) -> None:
    """Check that the wheel contains every tracked file of the package, including data files."""
    listed = subprocess.run(["git", "ls-files", "src/aspc"], cwd=ROOT, check=True, capture_output=True, text=True)
    tracked = {name.removeprefix("src/") for name in listed.stdout.split()}
    missing = tracked - set(zipfile.ZipFile(wheel).namelist())
    if not tracked or missing:
        sys.exit(f"{wheel.name} lacks {', '.join(sorted(missing)) or 'all files'}.")


def check_commands(wheel: Path, folder: Path) -> None:
    """Install the wheel in an empty environment and check the output of each command."""
    # With the uv of this environment, if it has one, instead of a uv in the new one.
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        [str(ROOT / ".ci/install"), str(folder / "venv"), "--only-binary", ":all:", str(wheel)],
        cwd=ROOT,
        env={**os.environ, "PYTHON": sys.executable, "PATH": tools},
        check=True,
    )
    for name in ("home", "work"):
        (folder / name).mkdir()
    environment = {"HOME": str(folder / "home"), "PATH": "/usr/bin:/bin"}
    for argv, code, expected in COMMANDS:
        done = subprocess.run(
            [str(folder / "venv/bin/aspc"), *argv],
            cwd=folder / "work",
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != code or expected not in done.stdout or "Traceback" in done.stdout:
            sys.exit(
                f"aspc {' '.join(argv)}: exit code {done.returncode}, expected {code} with {expected!r}:\n{done.stdout}"
            )
        print(f"aspc {' '.join(argv)}: passed", flush=True)


def main() -> None:
    wheel = Path(sys.argv[1]).resolve()
    check_files(wheel)
    with tempfile.TemporaryDirectory() as folder:
        check_commands(wheel, Path(folder))


if __name__ == "__main__":
    main()
