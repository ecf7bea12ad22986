"""Ablations: percent differences from a baseline per domain, and scores per dataset."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from aspc.lab import suites
from aspc.lab.paper_tables import DOMAINS as DOMAIN_SIZES
from aspc.lab.paper_tables import TOTAL, PaperTable, domain_of
from aspc.lab.report import statistics
from aspc.lab.report.datasets import find_paper_row, sort_datasets
from aspc.lab.report.paper_results import paper_table_of
from aspc.lab.report.score_tables import find_suite
from aspc.lab.report.statistics import IntervalEstimate, Scores
from aspc.lab.report.view import View, drop_returns, scores_by_dataset

DATASET_FIGURES = ("Figure 1b", "Figure 9")  # figures in the paper that have bars per dataset


class AblationGroup(NamedTuple):
    """Labels that are compared with a baseline, as in a figure or table of the paper."""

    title: str
    source: str
    baseline: str
    labels: tuple[str, ...]


GROUPS = (  # in the paper's order
    AblationGroup("ReBRAC with one setting", "Figure 1b", "ReBRAC, tuned", ("ReBRAC, one setting", "ReBRAC")),
    AblationGroup("A2PR with one setting", "Figure 1b", "A2PR, tuned", ("A2PR, one setting", "A2PR")),
    AblationGroup("Is a dynamic scale necessary?", "Table 2", "naive", ("converged", "linear", "dynamic")),
    AblationGroup(
        "Update interval of alpha", "Figure 5b", "k_alpha = 10", tuple(f"k_alpha = {k}" for k in (1, 5, 20, 30))
    ),
    AblationGroup(
        "Robust critic (RC)",
        "Figure 6a",
        "TD3+BC without RC",
        ("TD3+BC with RC", "wPC without RC", "wPC with RC", "ASPC without RC", "ASPC with RC"),
    ),
    AblationGroup("Terms of the outer loss", "Figure 6b", "L1+L2+L3", ("L1", "L1+L2", "L1+L3")),
    *(
        AblationGroup(f"{base} with ASPC", "Table 3", base, (f"{base}+ASPC",))
        for base in ("IQL", "CQL", "Diffusion-QL")
    ),
    *(
        AblationGroup(f"{base} with ASPC, following appendix D", "Table 3", alone, (f"{base}+ASPC, as printed",))
        for base, alone in (
            ("IQL", "IQL"),
            ("CQL", "CQL, as printed"),
            ("Diffusion-QL", "Diffusion-QL, as printed"),
        )
    ),
    AblationGroup("FQL with ASPC", "Table 4", "FQL", ("FQL+ASPC",)),
    AblationGroup("Advantage-weighted BC", "Figure 9", "ASPC", ("ASPC+AW",)),
    AblationGroup("Forms of L3", "Table 13", "(4)", ("(1)", "(2)", "(3)", "(5)")),
    AblationGroup("Initial alpha", "Figure 11", "alpha0 = 2.5", ("alpha0 = 0.1", "alpha0 = 10.0")),
    AblationGroup("Learning rate of alpha", "Figure 12", "lr = 0.002", ("lr = 0.02", "lr = 0.0002")),
)


@dataclass(frozen=True)
class Ablation:
    """Percent differences from a baseline.

    Attributes:
        titles: label → descriptive name, including the baseline's.
        series: label → series, for the labels that have runs.
        percent: (domain, label) → percent difference from the baseline.
        datasets: domain → number of datasets.
        paper: (domain, label) → the paper's percent difference on the same datasets.
        without_paper: domains for which the paper reports only an average over a larger set of datasets.
    """

    group: AblationGroup
    suite: str
    domains: tuple[str, ...]
    titles: Mapping[str, str]
    series: Mapping[str, str]
    percent: Mapping[tuple[str, str], IntervalEstimate]
    datasets: Mapping[str, int]
    paper: Mapping[tuple[str, str], float]
    without_paper: tuple[str, ...]


def build_ablations(view: View) -> list[Ablation]:
    """Build the ablation of each group from the suite that has the most runs of the group.

    A group is skipped if no suite has runs of both the baseline and another label.
    """
    out = []
    for group in GROUPS:
        best: tuple[int, str] | None = None
        for suite in view.suite_names():
            entries = view.entries[view.entries["suite"] == suite]
            if {group.baseline} < set(entries["label"]) & {group.baseline, *group.labels}:
                count = int(entries["label"].isin([group.baseline, *group.labels]).sum())
                best = max(best or (0, ""), (count, suite))
        if best is not None and (ablation := _build_ablation(view, group, best[1])) is not None:
            out.append(ablation)
    return out


def _build_ablation(view: View, group: AblationGroup, suite: str) -> Ablation | None:
    runs = drop_returns(view.comparable_suite_runs(suite))
    base = scores_by_dataset(runs[runs["label"] == group.baseline])
    percent: dict[tuple[str, str], IntervalEstimate] = {}
    paper: dict[tuple[str, str], float] = {}
    counts: dict[str, int] = {}
    for label in group.labels:
        values = scores_by_dataset(runs[runs["label"] == label])
        shared = [name for name in sort_datasets(values) if name in base]
        domains = list(dict.fromkeys(domain_of(name) for name in shared))
        for domain in [*domains, *([TOTAL] if len(domains) > 1 else [])]:
            names = [name for name in shared if domain in (TOTAL, domain_of(name))]
            estimate = percent_difference({n: values[n] for n in names}, {n: base[n] for n in names})
            if math.isfinite(estimate.value):
                percent[domain, label] = estimate
                counts[domain] = max(counts.get(domain, 0), len(names))
                printed = _paper_percent(group, label, domain, names)
                if printed is not None:
                    paper[domain, label] = printed
    if not percent:
        return None
    shown = [label for label in group.labels if any(key[1] == label for key in percent)]
    series, declared = dict(zip(runs["label"], runs["series"], strict=True)), find_suite(suite)
    without_paper = {
        domain for domain, label in percent if (domain, label) not in paper and _is_printed(group, domain, label)
    }
    return Ablation(
        group,
        suite,
        tuple(counts),
        {label: declared.title_of(label) if declared else label for label in (group.baseline, *shown)},
        {label: series[label] for label in shown},
        percent,
        counts,
        paper,
        tuple(domain for domain in counts if domain in without_paper),
    )


def percent_difference(a: Scores, b: Scores) -> IntervalEstimate:
    """Return (a − b)/|b| in percent. The interval treats the denominator, the average of b, as exact."""
    base = statistics.grand_mean(b)
    return statistics.difference(a, b).scaled(100 / abs(base)) if base else statistics.NO_ESTIMATE


def _source_tables(group: AblationGroup, label: str) -> list[PaperTable]:
    """Return the paper's tables that contain both the label and the group's baseline."""
    found = filter(None, map(paper_table_of, suites.get("paper").parts))
    same_source = [table for table in found if table.source.split(",")[0] == group.source.split(",")[0]]
    return [table for table in same_source if {label, group.baseline} <= set(table.variants)]


def _paper_percent(group: AblationGroup, label: str, domain: str, datasets: Sequence[str]) -> float | None:
    """Return the paper's percent difference on the same datasets, or None if the paper does not report it."""
    for table in _source_tables(group, label):
        ours, base = (_paper_mean(table, domain, datasets, name) for name in (label, group.baseline))
        if ours is not None and base:
            return 100 * (ours - base) / abs(base)
    return None


def _paper_mean(table: PaperTable, domain: str, datasets: Sequence[str], label: str) -> float | None:
    """Return the paper's average over these datasets, or None if the paper does not report one for exactly this set."""
    rows = [row for name in datasets if (row := find_paper_row(table, name)) is not None]
    if len(rows) == len(datasets):
        return float(np.mean([table.numbers[row, label].mean for row in rows]))
    if len(datasets) != DOMAIN_SIZES.get(domain, sum(DOMAIN_SIZES.values())):
        return None
    number = table.numbers.get((domain, label)) or table.averages.get((domain, label))
    return number.mean if number else None


def _is_printed(group: AblationGroup, domain: str, label: str) -> bool:
    return any(
        (domain, label) in numbers
        for table in _source_tables(group, label)
        for numbers in (table.numbers, table.averages)
    )


@dataclass(frozen=True)
class DatasetComparison:
    """The scores of an ablation group per dataset, and their percent differences from the baseline.

    Attributes:
        titles: label → descriptive name.
        series: label → series, starting with the baseline.
        scores: (dataset, label) → score.
        percent: (dataset, label) → percent difference from the baseline.
    """

    group: AblationGroup
    datasets: tuple[str, ...]
    titles: Mapping[str, str]
    series: Mapping[str, str]
    scores: Mapping[tuple[str, str], IntervalEstimate]
    percent: Mapping[tuple[str, str], float]

    def describe_changes(self, dataset: str) -> str:
        """Return the text above a dataset's bars. Values are capped at ±999 %, since the baseline can be near zero."""
        found = [self.percent[dataset, label] for label in self.series if (dataset, label) in self.percent]
        texts = (f"{value:+.0f} %" if abs(value) < 1000 else f"{'>' if value > 0 else '<-'}999 %" for value in found)
        return " / ".join(texts).replace("-", "−")


def compare_datasets(view: View, ablation: Ablation) -> DatasetComparison:
    """Return the scores per dataset from which an ablation's averages are computed."""
    group, runs = ablation.group, drop_returns(view.comparable_suite_runs(ablation.suite))
    labels = [group.baseline, *ablation.series]
    found = {label: scores_by_dataset(runs[runs["label"] == label]) for label in labels}
    base = found[group.baseline]
    datasets = sort_datasets(n for label in ablation.series for n in found[label] if n in base)
    percent = {
        (name, label): percent_difference({name: found[label][name]}, {name: base[name]}).value
        for name in datasets
        for label in ablation.series
        if name in found[label]
    }
    series = dict(zip(runs["label"], runs["series"], strict=True))
    return DatasetComparison(
        group,
        tuple(datasets),
        ablation.titles,
        {label: series[label] for label in labels},
        {(n, label): statistics.mean(found[label][n]) for n in datasets for label in labels if n in found[label]},
        {key: value for key, value in percent.items() if math.isfinite(value)},
    )
