"""The command `aspc results`: summarize, merge and export result folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from aspc.cli.parsing import Unset, parse_options
from aspc.errors import AspcError
from aspc.text import count_noun

if TYPE_CHECKING:
    import pandas as pd

    from aspc.lab.results import Results


@dataclass(frozen=True)
class ResultsArgs:
    """Summarize result folders. Optionally merge them into one folder or export them as CSV files."""

    folders: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RESULTS [RESULTS ...]", help_behavior_hint="")
    ]
    """Result folders written by `aspc bench` or merged by `aspc results --out`."""
    out: Unset[Path] = None
    """Merge all results into this folder, with one file per table: runs.parquet, curves.parquet, entries.parquet."""
    csv: Unset[Path] = None
    """Write the tables as CSV files to this folder."""


def main(argv: list[str]) -> int:
    """Run the command and return its exit code."""
    args = parse_options(ResultsArgs, argv, "aspc results")
    if not args.folders:
        raise AspcError("Pass at least one result folder, for example: aspc results results/table1.")

    from aspc.lab import results

    found = results.merge(args.folders, args.out) if args.out else results.read(*args.folders)
    print(format_summary(found))
    if args.out:
        print(f"merged into {args.out}")
    if args.csv:
        for path in results.export_csv(found, args.csv):
            print(f"wrote {path}")
    return 0


def format_summary(found: Results) -> str:
    """Return the number of runs as text, followed by one line per suite, variant and number of training steps.

    A run that belongs to several suites is counted in each.
    """
    runs = found.runs
    done = runs[runs["status"] == "done"]
    failed = len(runs) - len(done)
    lines = [
        f"{count_noun(len(runs), 'run')} ({len(done):,} done, {failed:,} failed), "
        f"{count_noun(runs['dataset'].nunique(), 'dataset')}, {count_noun(len(found.curves), 'curve point')}"
    ]
    rows = found.entries[["suite", "variant", "run_id"]].merge(runs.drop(columns=["suite", "variant"]), on="run_id")
    width = max([len(str(v)) for v in rows["variant"]] + [7])
    suite_width = max([len(str(v)) for v in rows["suite"]] + [5])
    lines.append(
        f"  {'suite':{suite_width}s}  {'variant':{width}s}      steps  runs  failed  datasets  seeds"
        "  score (last)  score (best)"
    )
    for (suite, variant, steps), group in rows.groupby(["suite", "variant", "steps"], sort=True):
        finished = group[group["status"] == "done"]
        lines.append(
            f"  {suite:{suite_width}s}  {variant:{width}s}  {steps:9,d}  {len(group):4d}  "
            f"{len(group) - len(finished):6d}  "
            f"{group['dataset'].nunique():8d}  {group['seed'].nunique():5d}  "
            f"{format_mean(finished, 'score_last'):>12s}  {format_mean(finished, 'score_best'):>12s}"
        )
    for row in runs[runs["status"] == "failed"].head(5).itertuples():
        lines.append(f"  failed: {row.run_id}: {str(row.error or 'no reason given').splitlines()[0][:100]}")
    return "\n".join(lines)


def format_mean(runs: pd.DataFrame, column: str) -> str:
    """Return the mean over datasets of the mean over seeds, so that every dataset has the same weight."""
    value = runs.groupby("dataset")[column].mean().mean()
    return f"{value:.1f}" if value == value else "–"
