"""Statistics over the datasets of a suite: interquartile means, probabilities of improvement, performance profiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from aspc.lab.paper_tables import TOTAL, domain_of
from aspc.lab.report import statistics
from aspc.lab.report.datasets import sort_datasets
from aspc.lab.report.score_tables import ScoreTable
from aspc.lab.report.statistics import IntervalEstimate, Scores
from aspc.lab.report.view import View, drop_returns, scores_by_dataset

Bootstrapped = tuple[np.ndarray, np.ndarray, np.ndarray]  # a value, and the lower and upper bounds of its interval


@dataclass(frozen=True)
class DomainSummary:
    """A comparison of labels on their common datasets, in one domain or in all domains.

    Attributes:
        iqm: interquartile mean per label.
        reference: the label that the others are compared with.
        improvement: probability that a run of the reference beats a run of the label.
        mean: mean score per label.
        difference: mean score of the reference minus that of the label.
        median_difference: median of the differences per dataset.
    """

    domain: str
    labels: tuple[str, ...]
    datasets: tuple[str, ...]
    iqm: Mapping[str, IntervalEstimate]
    reference: str
    improvement: Mapping[str, IntervalEstimate]
    mean: Mapping[str, IntervalEstimate]
    difference: Mapping[str, IntervalEstimate]
    median_difference: Mapping[str, IntervalEstimate]


@dataclass(frozen=True)
class Aggregates:
    """Summaries per domain and over all datasets, and performance profiles.

    Attributes:
        domains: one summary per domain; empty if there is only one domain.
        overall: the summary over all datasets.
        left_out: labels with too few datasets for the overall comparison.
        best: mean of the best evaluations per label.
        thresholds: scores at which the profiles are evaluated.
        profiles: fraction of runs above each threshold, per label.
    """

    domains: tuple[DomainSummary, ...]
    overall: DomainSummary
    left_out: tuple[str, ...]
    best: Mapping[str, IntervalEstimate]
    thresholds: tuple[float, ...]
    profiles: Mapping[str, Bootstrapped]


def build_aggregates(view: View, table: ScoreTable, reference: str | None = None) -> Aggregates | None:
    """Return the aggregates of a suite, or None if there are fewer than two labels to compare.

    Args:
        view: the results.
        table: the suite's score table.
        reference: the label that the others are compared with. Default: ASPC.
    """
    runs = drop_returns(view.comparable_suite_runs(table.suite))
    found = {label: scores_by_dataset(runs[runs["label"] == label]) for label in table.labels}
    names = sort_datasets(name for values in found.values() for name in values)
    domains = list(dict.fromkeys(map(domain_of, names)))
    reference = reference or next((x for x in table.labels if table.series[x].partition(", ")[0] == "ASPC"), None)
    overall = summarize(domains[0] if len(domains) == 1 else TOTAL, found, reference)
    if overall is None:
        return None
    by_domain = {
        domain: {label: {n: v for n, v in s.items() if domain_of(n) == domain} for label, s in found.items()}
        for domain in (domains if len(domains) > 1 else ())
    }
    summaries = [summarize(domain, values, reference) for domain, values in by_domain.items()]
    chosen = {label: {name: found[label][name] for name in overall.datasets} for label in overall.labels}
    best = {label: scores_by_dataset(runs[runs["label"] == label], "best") for label in overall.labels}
    values = [float(x) for by_dataset in chosen.values() for seeds in by_dataset.values() for x in seeds]
    thresholds = np.linspace(min(0.0, max(min(values), -50.0)), max(100.0, min(max(values), 300.0)), 81)
    return Aggregates(
        tuple(summary for summary in summaries if summary is not None),
        overall,
        tuple(label for label in table.labels if label not in overall.labels),
        {label: statistics.average({n: s[n] for n in overall.datasets if n in s}) for label, s in best.items()},
        tuple(float(t) for t in thresholds),
        _bootstrap_labels(lambda stacked: statistics.profile(stacked, thresholds), chosen),
    )


def summarize(domain: str, scores: Mapping[str, Scores], reference: str | None) -> DomainSummary | None:
    """Compare labels on their common datasets.

    Labels with fewer than half as many datasets as the most complete label are left out. If the reference is missing,
    the other labels are compared with the last one.

    Returns:
        The summary, or None if fewer than two labels remain.
    """
    most = max((len(values) for values in scores.values()), default=0)
    labels = [label for label, values in scores.items() if values and len(values) >= 0.5 * most]
    datasets = [n for n in sort_datasets(scores[labels[0]]) if all(n in scores[x] for x in labels)] if labels else []
    if len(labels) < 2 or not datasets:
        return None
    chosen = {label: {name: scores[label][name] for name in datasets} for label in labels}
    reference = reference if reference in chosen else labels[-1]
    ours, others = chosen[reference], {label: values for label, values in chosen.items() if label != reference}
    return DomainSummary(
        domain,
        tuple(labels),
        tuple(datasets),
        _to_estimates(_bootstrap_labels(statistics.interquartile_mean, chosen)),
        reference,
        _to_estimates(_bootstrap_labels(statistics.improvement, others, ours)),
        {label: statistics.average(values) for label, values in chosen.items()},
        {label: statistics.difference(ours, values) for label, values in others.items()},
        {label: statistics.median_difference(ours, values) for label, values in others.items()},
    )


def _bootstrap_labels(
    statistic: Callable[[np.ndarray], np.ndarray],
    labels: Mapping[str, Scores],
    reference: Scores | None = None,
) -> dict[str, Bootstrapped]:
    """Return a statistic of each label with its bootstrap interval.

    Only labels with the same number of seeds are stacked, so that a label with few seeds does not truncate the others.

    Args:
        statistic: Function of stacked scores [seeds, datasets, methods] that returns one entry per label.
        labels: Scores per label.
        reference: Scores to stack before those of the labels, if the statistic needs them.
    """
    first = [] if reference is None else [reference]
    by_seeds: dict[int, list[str]] = {}
    for label, values in labels.items():
        by_seeds.setdefault(min(len(x) for s in (*first, values) for x in s.values()), []).append(label)
    found: dict[str, Bootstrapped] = {}
    for group in by_seeds.values():
        stacked = statistics.stack([*first, *(labels[label] for label in group)], list(labels[group[0]]))
        found |= dict(zip(group, zip(*statistics.bootstrap(statistic, stacked), strict=True), strict=True))
    return {label: found[label] for label in labels}


def _to_estimates(found: Mapping[str, Bootstrapped]) -> dict[str, IntervalEstimate]:
    return {label: IntervalEstimate(*map(float, values)) for label, values in found.items()}
