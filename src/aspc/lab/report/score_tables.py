"""Score tables of suites, with means and intervals per dataset and label, averages, and the paper's numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from aspc.lab import suites
from aspc.lab.paper_tables import DOMAINS as DOMAIN_SIZES
from aspc.lab.paper_tables import TOTAL, PaperTable, domain_of, tables
from aspc.lab.report import statistics
from aspc.lab.report.datasets import find_paper_row, sort_datasets
from aspc.lab.report.paper_results import paper_table_of
from aspc.lab.report.statistics import IntervalEstimate
from aspc.lab.report.view import View, scores_by_dataset
from aspc.text import natural_sort_key

REGENERATED = "These datasets were regenerated, while the paper's numbers are for D4RL's own datasets"


class PaperScore(NamedTuple):
    """The paper's number for a cell.

    Attributes:
        note: a caveat about the number.
        is_other_data: whether our dataset was regenerated, so that the paper's number is for different data.
        rank: 1 for the best number in the paper's row, 2 for the second best, otherwise 0.
    """

    mean: float
    std: float | None
    note: str
    is_other_data: bool = False
    rank: int = 0


class ScoreCell(NamedTuple):
    """The last and the best evaluation, averaged over n seeds.

    If the cell is an average over datasets, n is the number of datasets and the standard deviations are NaN.
    """

    last: IntervalEstimate
    best: IntervalEstimate
    n: int
    steps: int
    last_std: float = math.nan
    best_std: float = math.nan
    paper: PaperScore | None = None
    rank: int = 0


@dataclass(frozen=True)
class ScoreRow:
    """A row for a dataset or for an average over datasets, with one cell per label."""

    name: str
    domain: str
    measure: str
    is_average: bool
    cells: Mapping[str, ScoreCell]
    datasets: tuple[str, ...]

    def comparable_cells(self) -> dict[str, ScoreCell]:
        """Return the cells that cover all datasets of the row."""
        return {
            label: cell for label, cell in self.cells.items() if not self.is_average or cell.n == len(self.datasets)
        }


@dataclass(frozen=True)
class ScoreTable:
    """The score table of a suite.

    Attributes:
        source: the part of the paper that the suite reproduces.
        labels: the labels of the columns.
        titles: label → descriptive name.
        series: label → name of the series, which is shown on the page and determines the color.
        seeds: the smallest and the largest number of seeds per cell.
    """

    suite: str
    source: str
    title: str
    labels: tuple[str, ...]
    titles: Mapping[str, str]
    series: Mapping[str, str]
    rows: tuple[ScoreRow, ...]
    seeds: tuple[int, int]
    notes: tuple[str, ...]

    def has_paper_scores(self, label: str) -> bool:
        """Return whether the paper has a number for any row in the column with this label."""
        return any(label in row.cells and row.cells[label].paper for row in self.rows)


def build_score_table(view: View, suite: str, first: Sequence[str] = ()) -> ScoreTable:
    """Build the table of a suite, with averages per domain and the paper's numbers.

    Args:
        view: the results.
        suite: the suite's name.
        first: the series to show in the first columns.
    """
    runs, paper, declared = view.suite_runs(suite), paper_table_of(suite), find_suite(suite)
    # Suites that are not in the paper share algorithms and datasets with the main table, so they show its numbers.
    reference = paper or tables()["main_table"]
    known = [variant.label for variant in declared.variants] if declared else reference.variants
    series = dict(zip(runs["label"], runs["series"], strict=True))
    labels = sorted(sort_labels(runs["label"].unique(), known), key=lambda label: _position(series[label], first))
    by_label = {label: runs[runs["label"] == label] for label in labels}
    cells = {label: _dataset_cells(by_label[label]) for label in labels}
    rows: list[ScoreRow] = []
    datasets = sort_datasets(runs["dataset"].unique())
    measures = dict(zip(runs["dataset"], runs["measure"], strict=True))
    for domain in dict.fromkeys(domain_of(name) for name in datasets):
        in_domain = [name for name in datasets if domain_of(name) == domain]
        for name in in_domain:
            row = {label: found[name] for label, found in cells.items() if name in found}
            rows.append(_dataset_row(name, measures[name], row, reference))
        rows += _average_rows(domain, in_domain, measures, by_label, reference)
    if len({row.domain for row in rows}) > 1:
        rows += _average_rows(TOTAL, datasets, measures, by_label, reference)
    counts = runs.groupby(["dataset", "label"])["seed"].nunique()
    return ScoreTable(
        suite,
        declared.source if declared and suite in suites.get("paper").parts else "",
        declared.title if declared else "",
        tuple(labels),
        {label: declared.title_of(label) if declared else label for label in labels},
        {label: series[label] for label in labels},
        tuple(rows),
        (int(counts.min()), int(counts.max())),
        (*(about.note for about in (declared, paper) if about is not None and about.note), *_row_notes(rows)),
    )


def find_suite(name: str) -> suites.Suite | None:
    """Return the declared suite with this name, or None if there is none."""
    return suites.get(name) if name in suites.names() else None


def sort_suites(names: Iterable[str]) -> list[str]:
    """Return the names of declared suites in the paper's order, followed by all others in the given order."""
    known = suites.names()
    return sorted(names, key=lambda name: _position(name, known))


def sort_labels(labels: Iterable[str], known: Sequence[str]) -> list[str]:
    """Sort labels in the order of `known`, and all others after them in natural order (5 before 10)."""
    return sorted(labels, key=lambda label: (_position(label, known), natural_sort_key(label, decimals=True)))


def _position(name: str, known: Sequence[str]) -> int:
    return known.index(name) if name in known else len(known)


def _dataset_cells(runs: pd.DataFrame) -> dict[str, ScoreCell]:
    last, best = scores_by_dataset(runs, "last"), scores_by_dataset(runs, "best")
    steps = runs.groupby("dataset")["steps"].max()
    return {
        name: ScoreCell(
            statistics.mean(values),
            statistics.mean(best[name]) if name in best else statistics.NO_ESTIMATE,
            len(values),
            steps[name],
            _sample_std(values),
            _sample_std(best.get(name, np.empty(0))),
        )
        for name, values in last.items()
    }


def _sample_std(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan


def _dataset_row(name: str, measure: str, cells: dict[str, ScoreCell], paper: PaperTable) -> ScoreRow:
    row = find_paper_row(paper, name)
    printed: dict[str, PaperScore] = {}
    if row is not None:
        for label in paper.variants:
            if (row, label) in paper.numbers:
                number = paper.numbers[row, label]
                printed[label] = PaperScore(number.mean, number.std, number.doubt, row != name)
    ranked = _add_paper_scores(_rank_cells(cells), _rank_paper_scores(printed))
    return ScoreRow(name, domain_of(name), measure, False, ranked, (name,))


def _average_rows(
    domain: str,
    datasets: list[str],
    measures: Mapping[str, str],
    by_label: Mapping[str, pd.DataFrame],
    paper: PaperTable,
) -> list[ScoreRow]:
    """Return a list with the row of averages over a domain's datasets, or an empty list if fewer than two qualify."""
    averaged = [name for name in datasets if measures[name] != "return"]
    if len(averaged) < 2:
        return []
    cells: dict[str, ScoreCell] = {}
    printed: dict[str, PaperScore] = {}
    for label, runs in by_label.items():
        selected = runs[runs["dataset"].isin(averaged)]
        last, best = scores_by_dataset(selected, "last"), scores_by_dataset(selected, "best")
        if last:
            steps = int(selected["steps"].max())
            cells[label] = ScoreCell(statistics.average(last), statistics.average(best), len(last), steps)
    # Averages over different datasets are not comparable, so only averages over all datasets are ranked.
    complete = _rank_cells({label: cell for label, cell in cells.items() if cell.n == len(averaged)})
    for label in paper.variants:
        average = _paper_average(domain, averaged, label, paper)
        if average is not None:
            printed[label] = average
    name = "Average" if domain in (TOTAL, "OGBench", "Other") else f"{domain} average"
    ranked = _add_paper_scores(cells | complete, _rank_paper_scores(printed))
    return [ScoreRow(name, domain, "score", True, ranked, tuple(averaged))]


def _paper_average(domain: str, datasets: list[str], label: str, paper: PaperTable) -> PaperScore | None:
    """Return the paper's average over the same datasets, computed from the table's rows.

    If the paper prints a different average, the note mentions it. If the table has one row per domain, its number for
    the domain is returned instead.
    """
    rows = [r for name in datasets if (r := find_paper_row(paper, name)) is not None and (r, label) in paper.numbers]
    if len(rows) == len(datasets):
        mean = float(np.mean([paper.numbers[row, label].mean for row in rows]))
        key = next((k for k in ((domain, label), ("Average", label)) if k in paper.averages), None)
        note = ""
        if key is not None and len(rows) in (DOMAIN_SIZES.get(domain), len(paper.rows)):
            number = paper.averages[key]
            if abs(number.mean - mean) > 0.06:
                note = f"Computed from the paper's rows; the paper prints {number.mean:g}."
        return PaperScore(mean, None, note, rows != datasets)
    domain_number = paper.numbers.get((domain, label)) or paper.averages.get((domain, label))
    if paper.rows and paper.rows[0] in DOMAIN_SIZES and domain_number is not None:
        is_complete = len(datasets) == DOMAIN_SIZES.get(domain, sum(DOMAIN_SIZES.values()))
        caveat = f"The paper's number is an average over all datasets; ours covers only {len(datasets)}."
        note = "" if is_complete else caveat
        return PaperScore(domain_number.mean, None, " ".join(filter(None, (domain_number.doubt, note))))
    return None


def _rank_cells(cells: Mapping[str, ScoreCell]) -> dict[str, ScoreCell]:
    """Rank cells by their rounded last score. Ties get the same rank; cells are not ranked if run lengths differ."""
    if len({cell.steps for cell in cells.values()}) > 1:
        return dict(cells)
    ranks = _rank_values({label: round(cell.last.value, 1) for label, cell in cells.items()})
    return {label: cell._replace(rank=ranks[label]) for label, cell in cells.items()}


def _rank_paper_scores(printed: Mapping[str, PaperScore]) -> dict[str, PaperScore]:
    ranks = _rank_values({label: p.mean for label, p in printed.items()})
    return {label: p._replace(rank=ranks[label]) for label, p in printed.items()}


def _rank_values(values: Mapping[str, float]) -> dict[str, int]:
    """Return rank 1 for the best label, 2 for the second best, and 0 for all others. A single label gets rank 0."""
    order = sorted({v for v in values.values() if math.isfinite(v)}, reverse=True)
    if len(values) < 2:
        return dict.fromkeys(values, 0)
    return {label: order.index(v) + 1 if v in order[:2] else 0 for label, v in values.items()}


def _add_paper_scores(cells: Mapping[str, ScoreCell], printed: Mapping[str, PaperScore]) -> dict[str, ScoreCell]:
    return {label: cell._replace(paper=printed.get(label)) for label, cell in cells.items()}


def _row_notes(rows: Sequence[ScoreRow]) -> list[str]:
    notes: dict[str, None] = {}
    for row in rows:
        lengths = sorted({cell.steps for cell in row.cells.values()})
        if len(lengths) > 1:
            notes[f"{row.name}: not ranked, because runs have between {lengths[0]:,} and {lengths[-1]:,} steps."] = None
        for label, cell in row.cells.items():
            if cell.paper and cell.paper.note:
                notes[f"{row.name}, {label}: {cell.paper.note}"] = None
    cells = ((row, cell) for row in rows if not row.is_average for cell in row.cells.values())
    other = dict.fromkeys(row.name for row, cell in cells if cell.paper and cell.paper.is_other_data)
    return [*([f"{REGENERATED}: {', '.join(other)}."] if other else []), *notes]
