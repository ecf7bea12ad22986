"""Data types for claims, their checks, data gaps and verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pandas as pd

from aspc.lab.paper_tables import domain_of
from aspc.lab.report import statistics
from aspc.lab.report.datasets import sort_datasets
from aspc.lab.report.methods import Method
from aspc.lab.report.statistics import IntervalEstimate
from aspc.lab.report.view import View
from aspc.tasks import without_version

Verdict = Literal["holds", "does not hold", "not enough data"]
HOLDS: Verdict = "holds"
FAILS: Verdict = "does not hold"
OPEN: Verdict = "not enough data"


class ClaimRange(NamedTuple):
    """The range in which a number must lie for a claim to hold."""

    low: float = -math.inf
    high: float = math.inf

    def verdict(self, estimate: IntervalEstimate) -> Verdict:
        """Return HOLDS if the whole interval is inside the range, FAILS if it is outside, and OPEN otherwise.

        A zero-width interval at a bound is OPEN. It occurs, for example, if all runs have a score of zero.
        """
        if not estimate.has_interval or (estimate.low == estimate.high and estimate.low in (self.low, self.high)):
            return OPEN
        if self.low <= estimate.low and estimate.high <= self.high:
            return HOLDS
        return FAILS if estimate.high < self.low or estimate.low > self.high else OPEN


def at_least(bound: float = 0.0) -> ClaimRange:
    return ClaimRange(low=bound)


def at_most(bound: float = 0.0) -> ClaimRange:
    return ClaimRange(high=bound)


class ClaimCheck(NamedTuple):
    """One of the comparisons of which a claim consists.

    Attributes:
        description: the compared quantity.
        estimate: its value with a 95 % interval.
        unit: its unit.
        claimed: the range that the claim states.
        methods: methods of the runs from which the value is computed.
        datasets: datasets of these runs.
        is_partial: whether a domain of the claim is missing, which leaves the check undecided.
    """

    description: str
    estimate: IntervalEstimate
    unit: str
    claimed: ClaimRange
    methods: tuple[Method, ...] = ()
    datasets: tuple[str, ...] = ()
    is_partial: bool = False

    @property
    def verdict(self) -> Verdict:
        return OPEN if self.is_partial else self.claimed.verdict(self.estimate)

    @property
    def has_few_datasets(self) -> bool:
        """True if there are too few datasets to generalize. The interval then accounts only for seeds."""
        return len(self.datasets) < statistics.MIN_DATASETS

    @property
    def scope(self) -> str:
        """The datasets to which the check is limited, or "" if there are enough to generalize."""
        return f"{join_words(self.datasets)} only" if self.has_few_datasets else ""


COMPARABLE = "that are comparable (same dataset, same number of steps, with a score)"


class DataGap(NamedTuple):
    """A check that is not possible because runs are missing.

    Attributes:
        methods: the methods that need runs.
        data: domains, tasks or datasets on which runs are needed. One of them is enough; empty for any dataset.
        requirement: the condition that existing runs do not meet.
    """

    methods: tuple[Method, ...]
    data: tuple[str, ...] = ()
    requirement: str = COMPARABLE


ClaimPart = ClaimCheck | DataGap


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, with its checks.

    Attributes:
        name: the claim's identifier.
        text: the claim as a sentence.
        source: the section, table or figure of the paper that makes the claim.
        checks: the checks for which there are runs.
        missing: a sentence about the runs that other checks need.
        limited_to: the domains that the verdict covers, if the paper also shows the effect in other domains.
        paper_contradiction: a sentence about checks that fail on the paper's own numbers.
    """

    name: str
    text: str
    source: str
    checks: tuple[ClaimCheck, ...]
    missing: str = ""
    limited_to: tuple[str, ...] = ()
    paper_contradiction: str = ""

    @property
    def verdict(self) -> Verdict:
        verdicts = [check.verdict for check in self.checks]
        if FAILS in verdicts:
            return FAILS
        return HOLDS if set(verdicts) == {HOLDS} and not self.missing else OPEN

    @property
    def is_open(self) -> bool:
        return self.verdict == OPEN

    @property
    def scope(self) -> str:
        """The datasets or domains to which the verdict is limited, as a suffix such as " on MuJoCo only"."""
        deciding = [check for check in self.checks if check.verdict == self.verdict]
        if self.is_open:
            return ""
        if any(check.has_few_datasets for check in deciding):
            names = sort_datasets(name for check in deciding for name in check.datasets)
            if len(names) < statistics.MIN_DATASETS:
                return f" on {join_words(names)} only"
            return f" on these {len(names)} datasets only"
        return f" on {join_words(self.limited_to)}" if self.limited_to else ""

    @property
    def datasets(self) -> list[str]:
        return sort_datasets(name for check in self.checks for name in check.datasets)


def build_claim(
    view: View, name: str, text: str, source: str, parts: Iterable[ClaimPart], shown_in: Sequence[str] = ()
) -> Claim:
    """Return a claim, given its checks and data gaps.

    Args:
        view: the results.
        name: the claim's identifier.
        text: the claim as a sentence.
        source: the section, table or figure of the paper that makes the claim.
        parts: the claim's checks and data gaps.
        shown_in: the domains in which the paper shows the effect. The verdict covers those that have runs.
    """
    parts = list(parts)
    checks = tuple(part for part in parts if isinstance(part, ClaimCheck))
    seen = {domain_of(dataset) for check in checks for dataset in check.datasets}
    limited_to = () if seen.issuperset(shown_in) else tuple(domain for domain in shown_in if domain in seen)
    missing = describe_gaps(view, [part for part in parts if isinstance(part, DataGap)])
    return Claim(name, text, source, checks, missing, limited_to)


def describe_gaps(view: View, gaps: Iterable[DataGap]) -> str:
    """Return a sentence that lists the missing runs, or "" if none are missing."""
    absent: dict[str, dict[str, None]] = {}  # method → data, in order; "" stands for every method or all data
    unfit: dict[tuple[str, str], dict[str, None]] = {}  # (data, requirement) → methods with runs that do not meet it
    for gap in gaps:
        runs, data = view.runs[_is_in(view.runs, gap.data)], join_words(gap.data, "or")
        without_runs = [m for m in gap.methods if not (runs["method"] == m.name).any()]
        for method in without_runs:
            if not (view.runs["method"] == method.name).any():
                absent.setdefault(_name_in_list(method), {})[""] = None
            elif not runs.empty:
                absent.setdefault(_name_in_list(method), {})[data] = None
        if runs.empty:
            absent.setdefault("", {})[data] = None
        elif not without_runs:
            unfit.setdefault((data, gap.requirement), {}).update(dict.fromkeys(map(_name_in_list, gap.methods)))
    by_data: dict[str, list[str]] = {}
    for name, places in absent.items():
        by_data.setdefault(join_words(filter(None, places)), []).append(name)
    phrases = [_describe_runs(names, data) for data, names in by_data.items()]
    phrases += [f"{_describe_runs(names, data)} {requirement}" for (data, requirement), names in unfit.items()]
    return f"Missing: {'; '.join(phrases)}." if phrases else ""


def _is_in(runs: pd.DataFrame, data: Sequence[str]) -> pd.Series:
    """Return a mask of the runs on any of these domains, tasks or datasets (in any version).

    If `data` is empty, the mask selects all runs.
    """
    names = (runs["domain"], runs["task"], runs["dataset"].map(without_version))
    return pd.concat([column.isin(data) for column in names], axis=1).any(axis=1) | (not data)


def _describe_runs(names: Iterable[str], data: str) -> str:
    methods = join_words(filter(None, names))
    return "runs" + (f" of {methods}" if methods else "") + (f" on {data}" if data else "")


def _name_in_list(method: Method) -> str:
    """Return a method's name without a comma, for use in a list: "IQL (tuned)"."""
    name, _, settings = method.name.partition(", ")
    return f"{name} ({settings})" if settings else name


def join_words(words: Iterable[str], conjunction: str = "and") -> str:
    """Return "a, b and c"."""
    *others, last = [*words] or [""]
    return f"{', '.join(others)} {conjunction} {last}" if others else last
