"""Save the evaluations of runs that were interrupted, so that they are not lost with the machine.

    python benchmarks/unfinished_runs.py RUNS results/unfinished/NAME.csv

RUNS is an output folder of `aspc bench`. Results contain only finished runs; this command writes the evaluations of all
groups that have no results yet. docs/study.md reports them separately, at the last step that all of them reached.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from aspc.lab.groups import RunGroup, results_path
from aspc.training import run_folder

COLUMNS = ["suite", "variant", "dataset", "seed", "planned_steps", "step", "score", "scale"]


def read_unfinished(runs: Path) -> pd.DataFrame:
    """Return one row per evaluation of every run without results."""
    found = []
    for file in sorted(runs.glob("groups/*/group.json")):
        group = RunGroup.from_json(file.read_text("utf-8"), file)
        if results_path(runs, group.group_id).exists():
            continue
        for folder in file.parent.glob("fleet-*"):
            members = pd.DataFrame(
                [(m.suite, m.variant, m.run.dataset, m.run.seed, m.run.steps) for m in group.members],
                columns=COLUMNS[:5],
            )
            evaluations = pd.read_csv(folder / run_folder.EVALUATIONS)[["step", "run", "score_mean"]]
            metrics = pd.read_csv(folder / run_folder.METRICS)
            if "scale" not in metrics:  # the algorithm does not learn a scale
                metrics["scale"] = float("nan")
            points = evaluations.merge(metrics[["step", "run", "scale"]], on=["step", "run"], how="left")
            points = points.rename(columns={"score_mean": "score"})
            found.append(points.merge(members, left_on="run", right_index=True)[COLUMNS])
    return pd.concat(found) if found else pd.DataFrame(columns=COLUMNS)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="output folder of `aspc bench`")
    parser.add_argument("out", type=Path, help="CSV file to write")
    args = parser.parse_args(argv)
    rows = read_unfinished(args.runs)
    if rows.empty:
        print(f"{args.runs} has no unfinished runs with evaluations.", file=sys.stderr)
        return 2
    args.out.parent.mkdir(parents=True, exist_ok=True)
    rows.sort_values(["dataset", "variant", "seed", "step"]).to_csv(args.out, index=False, float_format="%.3f")
    return 0


if __name__ == "__main__":
    sys.exit(main())
