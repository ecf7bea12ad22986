"""Recommend one of a suite's methods, based on the current results.

A suite declares candidates, each of which uses one configuration for all datasets, and rivals. A candidate qualifies if
all of these conditions hold:

- It has runs on every domain on which a rival has runs.
- It is not behind any rival on any domain. It is behind if the 95 % interval of its lead on their common datasets lies
  entirely below zero.
- Its interquartile mean is higher than that of each rival, over all datasets that it shares with that rival.

Of the candidates that qualify, the one with the highest interquartile mean is recommended. This mean is computed over
the datasets that all candidates have in common.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from aspc.lab import suites
from aspc.lab.paper_tables import domain_of
from aspc.lab.report import statistics
from aspc.lab.report.datasets import sort_datasets
from aspc.lab.report.statistics import IntervalEstimate, Scores
from aspc.lab.report.view import View, drop_returns, scores_by_dataset


@dataclass(frozen=True)
class Lead:
    """The lead of a candidate over a rival on one domain, and the number of their common datasets there."""

    rival: str
    domain: str
    estimate: IntervalEstimate
    datasets: int

    @property
    def is_behind(self) -> bool:
        """True if the interval of the lead lies entirely below zero."""
        return self.estimate.has_interval and self.estimate.high < 0


@dataclass(frozen=True)
class Recommendation:
    """The method that a suite's results recommend, and the evidence for it.

    Attributes:
        label: the recommended candidate, or None if no candidate qualifies.
        candidates: the candidates that have runs.
        rivals: the rivals that have runs.
        leads: candidate → its leads over each rival on each domain.
        datasets: domain → the number of datasets on which all candidates have runs, and the number that the suite
            declares.
    """

    label: str | None
    candidates: tuple[str, ...]
    rivals: tuple[str, ...]
    leads: Mapping[str, tuple[Lead, ...]]
    datasets: Mapping[str, tuple[int, int]]


def recommend(view: View, name: str) -> Recommendation | None:
    """Return the recommendation that follows from a suite's results.

    Returns:
        The recommendation, or None if the suite declares no candidates or there is nothing to compare.
    """
    suite = suites.get(name) if name in suites.names() else None
    if suite is None or not suite.candidates:
        return None
    runs = drop_returns(view.comparable_suite_runs(name))
    scores = {label: scores_by_dataset(runs[runs["label"] == label]) for label in (*suite.candidates, *suite.rivals)}
    candidates, rivals = ([x for x in group if scores[x]] for group in (suite.candidates, suite.rivals))
    shared = _shared_datasets([scores[label] for label in candidates])
    if not shared or not rivals:
        return None
    leads = {label: tuple(_leads(scores[label], {rival: scores[rival] for rival in rivals})) for label in candidates}
    domains = {domain_of(dataset) for rival in rivals for dataset in scores[rival]}
    qualified = [
        label
        for label in candidates
        if domains <= {domain_of(dataset) for dataset in scores[label]}
        and not any(lead.is_behind for lead in leads[label])
        and all(_is_ahead(scores[label], scores[rival]) for rival in rivals)
    ]
    best = max(qualified, key=lambda label: _interquartile_mean(scores[label], shared), default=None)
    declared = sort_datasets(dataset for block in suite.blocks for dataset in block.datasets)
    done, planned = (Counter(map(domain_of, names)) for names in (shared, declared))
    counts = {domain: (done[domain], planned[domain]) for domain in planned}
    return Recommendation(best, tuple(candidates), tuple(rivals), leads, counts)


def _shared_datasets(scores: Sequence[Scores]) -> list[str]:
    return sort_datasets(set.intersection(*map(set, scores))) if scores else []


def _leads(candidate: Scores, rivals: Mapping[str, Scores]) -> list[Lead]:
    found = []
    for rival, theirs in rivals.items():
        shared = _shared_datasets([candidate, theirs])
        for domain in dict.fromkeys(map(domain_of, shared)):
            names = [name for name in shared if domain_of(name) == domain]
            ours, others = ({name: scores[name] for name in names} for scores in (candidate, theirs))
            found.append(Lead(rival, domain, statistics.difference(ours, others), len(names)))
    return found


def _is_ahead(candidate: Scores, rival: Scores) -> bool:
    names = _shared_datasets([candidate, rival])
    return bool(names) and _interquartile_mean(candidate, names) > _interquartile_mean(rival, names)


def _interquartile_mean(scores: Scores, datasets: Sequence[str]) -> float:
    return float(np.squeeze(statistics.interquartile_mean(statistics.stack([scores], datasets))))
