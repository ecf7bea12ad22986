"""Measure the time and peak memory needed to read a large CSV file, with and without a column of dates.

    python benchmarks/read_csv.py --size 200MB
    python benchmarks/read_csv.py --size 2GB --against ../older/src --rounds 3

The script writes a log of the given size and reads it in new processes. Memory is the sum of the peaks of the reading
process and of its child process, which parses the file. CPU time is also the sum for both. With `--against`, which
takes the `src` folder of another version, the two versions alternate. The script then prints their ratios, and the exit
code is 1 if this version needs more than 1.3 times the CPU time or memory. CPU time is compared because other processes
hardly affect it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from aspc.data.readers.limits import UNITS

LIMIT = 1.3
BLOCK_ROWS = 50_000
EPISODE_ROWS = 1_440  # one row per minute of a day
HERE = Path(__file__).resolve().parents[1] / "src"

READ = """
import json, resource, sys, time
from aspc import data
began = time.perf_counter()
dataset = data.load(sys.argv[1])
seconds = time.perf_counter() - began
parent, reader = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
cpu_seconds = sum(usage.ru_utime + usage.ru_stime for usage in (parent, reader))
memory = {"parent_mib": parent.ru_maxrss / 1024, "reader_mib": reader.ru_maxrss / 1024}
print(json.dumps({"rows": len(dataset), "seconds": seconds, "cpu_seconds": cpu_seconds, **memory}))
"""


def write_log(path: Path, size: int, observations: int, has_dates: bool) -> None:
    """Write a CSV file of about `size` bytes with columns for the episode, observations, two actions and the reward.

    If `has_dates` is true, each row also has a date.
    """
    rng = np.random.default_rng(0)
    names = ["episode", *(f"obs_{i}" for i in range(observations)), "action_0", "action_1", "reward"]
    block = rng.uniform(-1, 1, (BLOCK_ROWS, observations + 3))
    block[:, :observations] *= 100
    cells = [",".join(f"{value:.5f}" for value in row) for row in block]
    with path.open("w", encoding="ascii") as file:
        file.write(",".join(["timestamp", *names] if has_dates else names) + "\n")
        first = 0
        while file.tell() < size:
            rows = np.arange(first, first + BLOCK_ROWS)
            episodes = (rows // EPISODE_ROWS).tolist()
            dates = (np.datetime64("2000-01-01T00:00:00") + rows.astype("timedelta64[m]")).astype(str).tolist()
            if has_dates:
                lines = zip(dates, episodes, cells, strict=True)
                file.writelines(f"{date.replace('T', ' ')},{episode},{row}\n" for date, episode, row in lines)
            else:
                file.writelines(f"{episode},{row}\n" for episode, row in zip(episodes, cells, strict=True))
            first += BLOCK_ROWS


def measure(path: Path, source: Path) -> dict[str, float]:
    """Read a file in a new process with the package in `source`, and return the time and the memory that it needed."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-c", READ, str(path)]
    result = subprocess.run(command, env=environment, cwd=path.parent, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"Reading with {source} failed: {result.stderr.strip().splitlines()[-1]}")
    found: dict[str, float] = json.loads(result.stdout)
    return {**found, "mib": found["parent_mib"] + found["reader_mib"]}


def parse_size(text: str) -> int:
    """Parse a size such as 200MB or 2GB."""
    number, unit = text.upper().removesuffix("B"), ""
    if number[-1:] in UNITS:
        number, unit = number[:-1], number[-1:]
    return int(float(number) * UNITS[unit])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="200MB", help="size of each file (default: 200MB)")
    parser.add_argument("--observations", type=int, default=8, help="number of observation columns (default: 8)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="number of times that each version reads each file (default: 3)"
    )
    parser.add_argument("--against", type=Path, help="`src` folder of another version, to compare with this one")
    parser.add_argument(
        "--folder", type=Path, help="folder for the files, which are deleted afterwards (default: a temporary folder)"
    )
    args = parser.parse_args()
    versions = {"this": HERE} | ({"other": args.against.resolve()} if args.against else {})
    is_slow = False
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for kind in ("no dates", "dates"):
            path = Path(folder) / "log.csv"
            write_log(path, parse_size(args.size), args.observations, kind == "dates")
            found: dict[str, list[dict[str, float]]] = {name: [] for name in versions}
            for _ in range(args.rounds):
                for name, source in versions.items():
                    found[name].append(measure(path, source))
                    print(json.dumps({"file": kind, "version": name, **found[name][-1]}), flush=True)
            medians = {
                name: {key: statistics.median(row[key] for row in rows) for key in ("seconds", "cpu_seconds", "mib")}
                for name, rows in found.items()
            }
            size_mb = path.stat().st_size / 1e6
            for name, row in medians.items():
                print(
                    f"{kind}, {name} version: {size_mb:.0f} MB in {row['seconds']:.1f} s ({row['cpu_seconds']:.1f} CPU "
                    f"seconds), {row['mib']:.0f} MiB"
                )
            if args.against:
                ratios = {key: medians["this"][key] / medians["other"][key] for key in medians["this"]}
                print(
                    f"{kind}: {ratios['seconds']:.2f} times the wall-clock time, {ratios['cpu_seconds']:.2f} times the "
                    f"CPU time, {ratios['mib']:.2f} times the memory"
                )
                is_slow |= max(ratios["cpu_seconds"], ratios["mib"]) > LIMIT
    sys.exit(is_slow)


if __name__ == "__main__":
    main()
