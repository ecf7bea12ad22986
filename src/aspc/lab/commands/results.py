"""The command `aspc results`: look at folders of results, merge them, export them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from aspc.cli.parsing import read_options
from aspc.errors import AspcError

if TYPE_CHECKING:
    import pandas as pd

    from aspc.lab.results import Results


@dataclass(frozen=True)
class Asked:
    """Read folders of results, print what is in them; merge them, export them as CSV."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RESULTS [RESULTS ...]")]
    """Folders that `aspc bench` has written, or merged ones."""
    out: Path | None = None
    """Write all of them as one file for each table, runs.parquet, curves.parquet, entries.parquet, in this folder."""
    csv: Path | None = None
    """Write the same tables as CSV in this folder."""


def main(argv: list[str]) -> int:
    asked: Asked = read_options(Asked, argv, "aspc results")
    if not asked.folders:
        raise AspcError("Give at least one folder of results, for example: aspc results results/table1.")

    from aspc.lab import results

    found = results.merge(asked.folders, asked.out) if asked.out else results.read(*asked.folders)
    print(summary(found))
    if asked.out:
        print(f"merged in {asked.out}")
    if asked.csv:
        for path in results.export_csv(found, asked.csv):
            print(f"wrote {path}")
    return 0


def summary(found: Results) -> str:
    """What is there, in a few lines: how many runs, and a line for each suite, variant and length of training. A run
    that several of them share counts in each."""
    runs = found.runs
    done = runs[runs["status"] == "done"]
    failed = len(runs) - len(done)
    lines = [
        f"{len(runs):,} runs ({len(done):,} done, {failed:,} failed), {runs['dataset'].nunique()} datasets, "
        f"{len(found.curves):,} points of curves"
    ]
    placed = found.entries[["suite", "variant", "run_id"]].merge(runs.drop(columns=["suite", "variant"]), on="run_id")
    width = max([len(str(v)) for v in placed["variant"]] + [7])
    suite_width = max([len(str(v)) for v in placed["suite"]] + [5])
    lines.append(
        f"  {'suite':{suite_width}s}  {'variant':{width}s}      steps  runs  failed  datasets  seeds"
        "  score (last)  score (best)"
    )
    for (suite, variant, steps), group in placed.groupby(["suite", "variant", "steps"], sort=True):
        good = group[group["status"] == "done"]
        lines.append(
            f"  {suite:{suite_width}s}  {variant:{width}s}  {steps:9,d}  {len(group):4d}  {len(group) - len(good):6d}  "
            f"{group['dataset'].nunique():8d}  {group['seed'].nunique():5d}  "
            f"{average(good, 'score_last'):>12s}  {average(good, 'score_best'):>12s}"
        )
    for row in runs[runs["status"] == "failed"].head(5).itertuples():
        lines.append(f"  failed: {row.run_id}: {str(row.error or 'no reason given').splitlines()[0][:100]}")
    return "\n".join(lines)


def average(runs: pd.DataFrame, column: str) -> str:
    """Mean over datasets of the mean over seeds: a dataset with more seeds weighs no more."""
    value = runs.groupby("dataset")[column].mean().mean()
    return f"{value:.1f}" if value == value else "–"
