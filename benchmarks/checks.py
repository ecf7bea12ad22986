"""Measure how long a contributor waits for set-up, `make test`, `.ci/run` and `make demo`.

    python benchmarks/checks.py --json checks.json
    python benchmarks/checks.py --only setup demo

Each command runs in a new clone of the repository's last commit, without an environment, as on a new machine. The first
row is a set-up that only fills the package cache, so that no other row contains downloads. `make test` runs after a
set-up that its time does not include, while the times of `.ci/run` and `make demo` include the set-up.

Prints a Markdown table of wall-clock minutes, their goals, and CPU minutes. Other programs can slow the commands down:
the last column is the fraction of the cores' time that they used. Exits with code 1 if a command fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
# Per row: the command, its preparation (not included in its time), and the goal in minutes on two cores.
CHECKS: dict[str, tuple[str, str | None, float]] = {
    "setup": ("make setup", None, 1.25),
    "test": ("make test", "make setup", 8.0),
    "ci": (".ci/run", None, 11.0),
    "demo": ("make demo", None, 3.5),
}
HEADER = ("command", "minutes", "goal", "minutes / goal", "CPU minutes", "time of other programs")


def busy_seconds() -> float:
    """Return the seconds that all cores have worked since the machine started."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq = (int(word) for word in file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def child_seconds() -> float:
    """Return the CPU seconds of all children of this process that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(command: str, folder: Path, cores: int) -> dict[str, Any]:
    """Run a command in a folder; return its wall-clock seconds, its CPU seconds and the load of other programs.

    The output is in `command.log` in the folder. Children that are not waited for, such as daemons, count as others.
    """
    load, busy, cpu, began = os.getloadavg()[0], busy_seconds(), child_seconds(), time.perf_counter()
    with open(folder / "command.log", "ab") as log:
        done = subprocess.run(command, shell=True, cwd=folder, stdout=log, stderr=subprocess.STDOUT, check=False)
    seconds = time.perf_counter() - began
    cpu_seconds = child_seconds() - cpu
    others = max(0.0, busy_seconds() - busy - cpu_seconds)
    return {
        "command": command,
        "exit_code": done.returncode,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "others": others / (seconds * cores),
        "load_before": load,
    }


def run_check(name: str, repository: Path, folder: Path, cores: int) -> dict[str, Any]:
    """Clone the repository into a new folder, prepare one check and measure it."""
    command, preparation, goal = CHECKS[name]
    clone = folder / name
    subprocess.run(["git", "clone", "--quiet", str(repository), str(clone)], check=True)
    if preparation is not None:
        prepared = measure(preparation, clone, cores)
        if prepared["exit_code"]:
            return {"name": name, "goal_seconds": 60 * goal, **prepared}
    return {"name": name, "goal_seconds": 60 * goal, **measure(command, clone, cores)}


def format_table(checks: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table with one row per check."""
    rows = [HEADER, ("---",) * len(HEADER)]
    for check in checks:
        failed = f" (exit code {check['exit_code']})" if check["exit_code"] else ""
        rows.append(
            (
                f"`{check['command']}`{failed}",
                f"{check['seconds'] / 60:.2f}",
                f"{check['goal_seconds'] / 60:.2f}",
                f"{check['seconds'] / check['goal_seconds']:.2f}",
                f"{check['cpu_seconds'] / 60:.2f}",
                f"{100 * check['others']:.0f} %",
            )
        )
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure set-up, tests, all checks and the demo in new clones.")
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=list(CHECKS), help="Measure only these")
    parser.add_argument("--json", type=Path, help="Write the measurements to this file")
    parser.add_argument("--repository", type=Path, default=REPOSITORY, help="Clone this repository")
    args = parser.parse_args(argv)
    cores = len(os.sched_getaffinity(0))
    checks = []
    with tempfile.TemporaryDirectory() as folder:
        filled = run_check("setup", args.repository, Path(folder, "cache"), cores)
        print(f"Filled the package cache in {filled['seconds']:.0f} s.", file=sys.stderr)
        for name in args.only:
            checks.append(run_check(name, args.repository, Path(folder), cores))
            check = checks[-1]
            print(f"{check['command']}: {check['seconds']:.0f} s", file=sys.stderr)
            if check["exit_code"]:
                print(Path(folder, name, "command.log").read_text(errors="replace")[-3000:], file=sys.stderr)
    machine = f"{platform.machine()}, {cores} cores, Python {platform.python_version()}"
    print(f"{machine}\n\n{format_table(checks)}", end="")
    if args.json is not None:
        args.json.write_text(json.dumps({"machine": machine, "cores": cores, "checks": checks}, indent=1) + "\n")
    return int(any(check["exit_code"] for check in checks))


if __name__ == "__main__":
    sys.exit(main())
