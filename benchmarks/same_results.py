"""Check that repeated runs are bitwise equal to recorded runs.

    python benchmarks/same_results.py RECORDED AGAIN

RECORDED and AGAIN are result folders. Runs are equal if all numbers in their rows and curves are equal, except for
times and speeds. The exit code is 1 if any run differs, or if the folders have no runs in common.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from aspc.lab import results

RUN_COLUMNS = (
    "score_last",
    "score_best",
    "return_last",
    "return_best",
    "success_last",
    "scale_last",
    "behaviour_score",
)


def differing(recorded: pd.DataFrame, again: pd.DataFrame, keys: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Return the rows that have different numbers or are in only one table. Two missing numbers count as equal."""
    both = again.merge(recorded, on=list(keys), how="outer", suffixes=("", "_recorded"), indicator=True)
    same = both["_merge"] == "both"
    for column in columns:
        new, old = both[column], both[f"{column}_recorded"]
        same &= (new == old) | (new.isna() & old.isna())
    return both[~same]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recorded", type=Path)
    parser.add_argument("again", type=Path)
    args = parser.parse_args(argv)
    recorded, again = results.read(args.recorded), results.read(args.again)
    shared = set(recorded.runs["run_id"]) & set(again.runs["run_id"])
    if not shared:
        print("The folders have no runs in common.")
        return 1
    old_runs, old_curves, runs, curves = (
        table[table["run_id"].isin(shared)] for found in (recorded, again) for table in (found.runs, found.curves)
    )
    numbers = [column for column in curves.columns if column not in ("schema_version", "run_id", "step")]
    other_runs = differing(old_runs, runs, ["run_id"], RUN_COLUMNS)
    other_points = differing(old_curves, curves, ["run_id", "step"], numbers)
    print(f"Both folders contain {len(runs):,} runs with {len(curves):,} curve points.")
    print(f"{len(other_runs):,} runs and {len(other_points):,} points differ.")
    return int(bool(len(other_runs) or len(other_points)))


if __name__ == "__main__":
    raise SystemExit(main())
