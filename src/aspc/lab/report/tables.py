"""Tables as plain data: a suite's scores beside the paper's, aggregates, ablations, runtime."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from aspc.lab import suites
from aspc.lab.paper_tables import DOMAINS as SIZES
from aspc.lab.paper_tables import TOTAL, PaperTable, domain_of, tables
from aspc.lab.report import statistics
from aspc.lab.report.statistics import Estimate
from aspc.lab.report.view import TASKS, View, averaged, in_order, method, paper_row, plain_if_any, scores, task_of
from aspc.tasks import without_version


class Printed(NamedTuple):
    """The paper's number beside ours. `note` says why to take it with care; rank 1 is its best, 2 its second best."""

    mean: float
    std: float | None
    note: str
    rank: int = 0


class Cell(NamedTuple):
    """Ours: last and best over n seeds. An average counts datasets instead, and has no standard deviation of seeds."""

    last: Estimate
    best: Estimate
    n: int
    steps: int
    last_std: float = math.nan
    best_std: float = math.nan
    paper: Printed | None = None
    rank: int = 0


@dataclass(frozen=True)
class Row:
    name: str
    domain: str
    measure: str
    average: bool
    cells: Mapping[str, Cell]
    datasets: tuple[str, ...]

    def comparable(self) -> dict[str, Cell]:
        """Of an average only what is over all its datasets."""
        return {label: cell for label, cell in self.cells.items() if not self.average or cell.n == len(self.datasets)}


@dataclass(frozen=True)
class Table:
    """A suite's table: labels are columns, `series` is each label's name (and colour) on the whole page. `source` is
    the part of the paper that it reproduces."""

    suite: str
    source: str
    title: str
    labels: tuple[str, ...]
    series: Mapping[str, str]
    rows: tuple[Row, ...]
    seeds: tuple[int, int]
    notes: tuple[str, ...] = field(default=())


OTHER_DATA = "these data were generated anew."

# ── scores of a suite ───────────────────────────────────────────────────────────────────────────────────────────────


def suite_table(view: View, suite: str) -> Table:
    """Mean over seeds with 95 % intervals for each dataset and label, averages of domains, the paper's numbers."""
    runs, paper, declared = view.suite(suite), tables().get(suite), declared_suite(suite)
    # The study's suites have the main table's algorithms on its datasets: its numbers stand beside theirs too.
    beside = paper or tables()["main_table"]
    labels = ordered_labels(runs["label"].unique(), labels_of(declared) if declared else beside.variants)
    by_label = {label: runs[runs["label"] == label] for label in labels}
    rows: list[Row] = []
    datasets = in_order(runs["dataset"].unique())
    measures = dict(zip(runs["dataset"], runs["measure"], strict=True))
    for domain in dict.fromkeys(domain_of(name) for name in datasets):
        inside = [name for name in datasets if domain_of(name) == domain]
        cells = {label: _cells(by_label[label]) for label in labels}
        for name in inside:
            row = {label: found[name] for label, found in cells.items() if name in found}
            rows.append(_row(name, measures[name], row, beside))
        rows += _average(domain, inside, measures, by_label, beside)
    if len({row.domain for row in rows}) > 1:
        rows += _average(TOTAL, datasets, measures, by_label, beside)
    counts = runs.groupby(["dataset", "label"])["seed"].nunique()
    series = dict(zip(runs["label"], runs["series"], strict=True))
    return Table(
        suite,
        declared.source if declared and suite in suites.get("paper").parts else "",
        declared.title if declared else "",
        tuple(labels),
        {label: series[label] for label in labels},
        tuple(rows),
        (int(counts.min()), int(counts.max())),
        (*_notes_on_suite(declared, paper), *_notes(rows)),
    )


def declared_suite(name: str) -> suites.Suite | None:
    """The suite of that name, if it is the paper's or one that is registered."""
    return suites.get(name) if name in suites.names() else None


def in_suites_order(names: Iterable[str]) -> list[str]:
    """Declared suites in the paper's order, then others as they come."""
    known = suites.names()
    return sorted(names, key=lambda name: known.index(name) if name in known else len(known))


def labels_of(suite: suites.Suite) -> tuple[str, ...]:
    return tuple(dict.fromkeys(variant.label for block in suite.blocks for variant in block.variants))


def ordered_labels(labels: Iterable[str], known: Sequence[str]) -> list[str]:
    """As they are in `known`; then by name, with the numbers in it as numbers."""
    return sorted(labels, key=lambda label: (known.index(label) if label in known else len(known), _natural(label)))


def _natural(text: str) -> list[str | float]:
    """Words and numbers in turn, so that 5 comes before 10."""
    parts = re.split(r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)", text)
    return [float(part) if i % 2 else part for i, part in enumerate(parts)]


def _cells(runs: pd.DataFrame) -> dict[str, Cell]:
    last, best = scores(runs, "last"), scores(runs, "best")
    steps = runs.groupby("dataset")["steps"].max()
    return {
        name: Cell(
            statistics.mean(values),
            statistics.mean(best[name]) if name in best else statistics.NONE,
            len(values),
            steps[name],
            _std(values),
            _std(best.get(name, np.empty(0))),
        )
        for name, values in last.items()
    }


def _std(values: np.ndarray) -> float:
    """Standard deviation over seeds, which the paper prints behind ±: how far runs lie apart, not how well their mean
    is known."""
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan


def _row(name: str, measure: str, cells: dict[str, Cell], paper: PaperTable) -> Row:
    row = paper_row(paper, name)
    printed: dict[str, Printed] = {}
    if row is not None:
        for label in paper.variants:
            if (row, label) in paper.numbers:
                number = paper.numbers[row, label]
                note = "" if row == name else f"The paper's number is for {row}; {OTHER_DATA}"
                printed[label] = Printed(number.mean, number.std, " ".join(filter(None, (number.doubt, note))))
    return Row(name, domain_of(name), measure, False, _with_paper(ranked(cells), _ranked_paper(printed)), (name,))


def _average(
    domain: str,
    datasets: list[str],
    measures: Mapping[str, str],
    by_label: Mapping[str, pd.DataFrame],
    paper: PaperTable,
) -> list[Row]:
    """The average over a domain's datasets; returns are in units of their own, so they are not averaged."""
    inside = [name for name in datasets if measures[name] != "return"]
    if len(inside) < 2:
        return []
    cells: dict[str, Cell] = {}
    printed: dict[str, Printed] = {}
    for label, runs in by_label.items():
        here = runs[runs["dataset"].isin(inside)]
        last, best = scores(here, "last"), scores(here, "best")
        if last:
            cells[label] = Cell(statistics.average(last), statistics.average(best), len(last), int(here["steps"].max()))
    # Averages over other datasets cannot be compared: only those over all rows are ranked.
    whole = ranked({label: cell for label, cell in cells.items() if cell.n == len(inside)})
    for label in paper.variants:
        printed |= _paper_average(domain, inside, label, paper)
    name = "Average" if domain in (TOTAL, "OGBench", "Other") else f"{domain} average"
    return [Row(name, domain, "score", True, _with_paper(cells | whole, _ranked_paper(printed)), tuple(inside))]


def _paper_average(domain: str, inside: list[str], label: str, paper: PaperTable) -> dict[str, Printed]:
    """The paper's average of the same datasets, from its rows; where all are there, what it prints is noted too."""
    rows = [row for name in inside if (row := paper_row(paper, name)) is not None and (row, label) in paper.numbers]
    if len(rows) == len(inside):
        mean = float(np.mean([paper.numbers[row, label].mean for row in rows]))
        key = next((k for k in ((domain, label), ("Average", label)) if k in paper.averages), None)
        note = ""
        if key is not None and len(rows) in (SIZES.get(domain), len(paper.rows)):
            number = paper.averages[key]
            if abs(number.mean - mean) > 0.06:
                note = f"From the paper's rows; it prints {number.mean:g}."
        if rows != inside:
            note = f"{note} The paper's number is for its own datasets; {OTHER_DATA}".strip()
        return {label: Printed(mean, None, note)}
    number_of_domain = paper.numbers.get((domain, label)) or paper.averages.get((domain, label))
    if paper.rows and paper.rows[0] in SIZES and number_of_domain is not None:  # a table of domains
        whole = len(inside) == SIZES.get(domain, sum(SIZES.values()))
        note = "" if whole else f"The paper's number is over all datasets, ours over {len(inside)}."
        return {label: Printed(number_of_domain.mean, None, " ".join(filter(None, (number_of_domain.doubt, note))))}
    return {}


def ranked(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Best and second best by the last score, as they are shown; equal ones share the rank. Runs of different lengths
    are not ranked."""
    if len({cell.steps for cell in cells.values()}) > 1:
        return dict(cells)
    places = _places({label: round(cell.last.value, 1) for label, cell in cells.items()})
    return {label: cell._replace(rank=places[label]) for label, cell in cells.items()}


def _ranked_paper(printed: Mapping[str, Printed]) -> dict[str, Printed]:
    places = _places({label: p.mean for label, p in printed.items()})
    return {label: p._replace(rank=places[label]) for label, p in printed.items()}


def _places(values: Mapping[str, float]) -> dict[str, int]:
    order = sorted({v for v in values.values() if math.isfinite(v)}, reverse=True)
    if len(values) < 2:
        return dict.fromkeys(values, 0)
    return {label: order.index(v) + 1 if v in order[:2] else 0 for label, v in values.items()}


def _with_paper(cells: Mapping[str, Cell], printed: Mapping[str, Printed]) -> dict[str, Cell]:
    return {label: cell._replace(paper=printed.get(label)) for label, cell in cells.items()}


def _notes_on_suite(declared: suites.Suite | None, paper: PaperTable | None) -> list[str]:
    return [about.note for about in (declared, paper) if about is not None and about.note]


def _notes(rows: Sequence[Row]) -> list[str]:
    notes = []
    for row in rows:
        lengths = sorted({cell.steps for cell in row.cells.values()})
        if len(lengths) > 1:
            notes.append(f"{row.name}: runs of {lengths[0]:,} to {lengths[-1]:,} steps, which are not ranked.")
        for label, cell in row.cells.items():
            if cell.paper and cell.paper.note:
                notes.append(f"{row.name}, {label}: {cell.paper.note}")
    return notes


# ── over all datasets ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Summary:
    """Labels side by side on the datasets of one domain, or of all domains, that each of them has."""

    domain: str
    labels: tuple[str, ...]
    datasets: tuple[str, ...]
    iqm: Mapping[str, Estimate]
    reference: str
    improvement: Mapping[str, Estimate]  # probability that a run of the reference beats one of the label
    mean: Mapping[str, Estimate]
    difference: Mapping[str, Estimate]  # the reference's mean minus the label's
    median_difference: Mapping[str, Estimate]  # median over datasets of that difference


@dataclass(frozen=True)
class Aggregates:
    """Statistics of a suite over datasets: of each domain, then over all, with the profiles."""

    domains: tuple[Summary, ...]  # none where there is one domain only
    overall: Summary
    left_out: tuple[str, ...]  # labels that have too few of the datasets to be in `overall`
    best: Mapping[str, Estimate]  # the mean of best evaluations
    thresholds: tuple[float, ...]
    profiles: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]]


def aggregates(view: View, table: Table) -> Aggregates | None:
    """Compute summaries by domain and over all, and profiles. The reference is ASPC where it is there."""
    runs = averaged(view.compared(table.suite))
    found = {label: scores(runs[runs["label"] == label]) for label in table.labels}
    domains = list(dict.fromkeys(domain_of(name) for name in in_order(n for values in found.values() for n in values)))
    overall = summarize(domains[0] if len(domains) == 1 else TOTAL, found, table.series)
    if overall is None:
        return None
    inside = {
        domain: {label: {n: v for n, v in s.items() if domain_of(n) == domain} for label, s in found.items()}
        for domain in (domains if len(domains) > 1 else ())
    }
    summaries = [summarize(domain, values, table.series) for domain, values in inside.items()]
    chosen = {label: {name: found[label][name] for name in overall.datasets} for label in overall.labels}
    best = {label: scores(runs[runs["label"] == label], "best") for label in overall.labels}
    every = [float(x) for values in chosen.values() for seeds in values.values() for x in seeds]
    thresholds = np.linspace(min(0.0, max(min(every), -50.0)), max(100.0, min(max(every), 300.0)), 81)
    return Aggregates(
        tuple(summary for summary in summaries if summary is not None),
        overall,
        tuple(label for label in table.labels if label not in overall.labels),
        {label: statistics.average({n: s[n] for n in overall.datasets if n in s}) for label, s in best.items()},
        tuple(float(t) for t in thresholds),
        _bootstrap_each(lambda stacked: statistics.profile(stacked, thresholds), chosen),
    )


def summarize(domain: str, found: Mapping[str, statistics.Scores], series: Mapping[str, str]) -> Summary | None:
    """Compare the labels that have at least half as many datasets as the one with the most; None if there are not
    two."""
    most = max((len(values) for values in found.values()), default=0)
    labels = [label for label, values in found.items() if values and len(values) >= 0.5 * most]
    datasets = [n for n in in_order(found[labels[0]]) if all(n in found[label] for label in labels)] if labels else []
    if len(labels) < 2 or not datasets:
        return None
    chosen = {label: {name: found[label][name] for name in datasets} for label in labels}
    reference = next((label for label in labels if series[label].partition(", ")[0] == "ASPC"), labels[-1])
    ours, others = chosen[reference], {label: values for label, values in chosen.items() if label != reference}
    return Summary(
        domain,
        tuple(labels),
        tuple(datasets),
        _estimates(_bootstrap_each(statistics.interquartile_mean, chosen)),
        reference,
        _estimates(_bootstrap_each(statistics.improvement, others, ours)),
        {label: statistics.average(values) for label, values in chosen.items()},
        {label: statistics.difference(ours, values) for label, values in others.items()},
        {label: statistics.median_difference(ours, values) for label, values in others.items()},
    )


Bootstrapped = tuple[np.ndarray, np.ndarray, np.ndarray]  # a value and the ends of its interval


def _bootstrap_each(
    statistic: Callable[[np.ndarray], np.ndarray],
    labels: Mapping[str, statistics.Scores],
    reference: statistics.Scores | None = None,
) -> dict[str, Bootstrapped]:
    """Bootstrap a statistic that has one entry per label, with the reference's scores before theirs if it is given.

    Labels with as many seeds are stacked, so that one with few seeds does not cost the others theirs.
    """
    before = [] if reference is None else [reference]
    by_seeds: dict[int, list[str]] = {}
    for label, values in labels.items():
        by_seeds.setdefault(min(len(x) for s in (*before, values) for x in s.values()), []).append(label)
    found: dict[str, Bootstrapped] = {}
    for group in by_seeds.values():
        stacked = statistics.stack([*before, *(labels[label] for label in group)], list(labels[group[0]]))
        found |= dict(zip(group, zip(*statistics.bootstrap(statistic, stacked), strict=True), strict=True))
    return {label: found[label] for label in labels}


def _estimates(found: Mapping[str, Bootstrapped]) -> dict[str, Estimate]:
    return {label: Estimate(*map(float, values)) for label, values in found.items()}


MOST_CORNERS = 12


@dataclass(frozen=True)
class Radar:
    """Mean score of each task, scaled so that the worst label is 0 and the best 1."""

    tasks: tuple[str, ...]
    values: Mapping[str, tuple[float, ...]]
    raw: Mapping[str, tuple[float, ...]]
    left_out: int = 0
    """Further tasks: more than twelve corners cannot be read."""

    @property
    def which(self) -> str:
        """That tasks were left out, in words."""
        return f"the first {len(self.tasks)} of {len(self.tasks) + self.left_out} tasks" if self.left_out else ""


def radar(found: Mapping[str, Mapping[str, np.ndarray]]) -> Radar | None:
    """From label → dataset → scores, over the tasks that every label has; at least three make a polygon."""
    means = {label: task_means(values) for label, values in found.items()}
    others = sorted({t for m in means.values() for t in m if t not in TASKS})
    common = [task for task in (*TASKS, *others) if all(task in m for m in means.values())]
    tasks = common[:MOST_CORNERS]
    if len(tasks) < 3 or len(means) < 2:
        return None
    raw = {label: tuple(m[task] for task in tasks) for label, m in means.items()}
    scaled = scaled_to_range(np.array(list(raw.values())))
    values = {label: tuple(map(float, row)) for label, row in zip(raw, scaled, strict=True)}
    return Radar(tuple(tasks), values, raw, len(common) - len(tasks))


def task_means(values: Mapping[str, np.ndarray]) -> dict[str, float]:
    by_task: dict[str, list[float]] = {}
    for dataset, seeds in values.items():
        by_task.setdefault(task_of(dataset), []).append(float(seeds.mean()))
    return {task: float(np.mean(m)) for task, m in by_task.items()}


def scaled_to_range(means: np.ndarray) -> np.ndarray:
    """Scale means [methods, ...] so that at each place the worst method is 0 and the best 1."""
    low, high = means.min(axis=0), means.max(axis=0)
    return (means - low) / np.where(high > low, high - low, 1)


def polygon_area(corners: np.ndarray) -> np.ndarray:
    """Area of a radar's polygon with these corners [..., tasks], as a share of the largest possible one."""
    return np.asarray((corners * np.roll(corners, -1, axis=-1)).mean(axis=-1))


# ── ablations ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Group(NamedTuple):
    """Labels that are compared with a baseline, as a figure or table of the paper does."""

    title: str
    source: str
    baseline: str
    labels: tuple[str, ...]


GROUPS = (  # in the paper's order
    Group("ReBRAC with one setting", "Figure 1b", "ReBRAC, tuned", ("ReBRAC, one setting", "ReBRAC")),
    Group("A2PR with one setting", "Figure 1b", "A2PR, tuned", ("A2PR, one setting", "A2PR")),
    Group("Is a dynamic scale necessary?", "Table 2", "naive", ("converged", "linear", "dynamic")),
    Group("Update interval of alpha", "Figure 5b", "k_alpha = 10", tuple(f"k_alpha = {k}" for k in (1, 5, 20, 30))),
    Group(
        "Robust critic (RC)",
        "Figure 6a",
        "TD3+BC without RC",
        ("TD3+BC with RC", "wPC without RC", "wPC with RC", "ASPC without RC", "ASPC with RC"),
    ),
    Group("Terms of the outer loss", "Figure 6b", "L1+L2+L3", ("L1", "L1+L2", "L1+L3")),
    *(Group(f"{base} with ASPC", "Table 3", base, (f"{base}+ASPC",)) for base in ("IQL", "CQL", "Diffusion-QL")),
    Group("FQL with ASPC", "Table 4", "FQL", ("FQL+ASPC",)),
    Group("Advantage-weighted BC", "Figure 9", "ASPC", ("ASPC+AW",)),
    Group("Forms of L3", "Table 13", "(4)", ("(1)", "(2)", "(3)", "(5)")),
    Group("Initial alpha", "Figure 11", "alpha0 = 2.5", ("alpha0 = 0.1", "alpha0 = 10.0")),
    Group("Learning rate of alpha", "Figure 12", "lr = 0.002", ("lr = 0.02", "lr = 0.0002")),
)


@dataclass(frozen=True)
class Ablation:
    """Percent difference from a baseline, by domain; the paper's where it prints it."""

    group: Group
    suite: str
    domains: tuple[str, ...]
    series: Mapping[str, str]
    percent: Mapping[tuple[str, str], Estimate]  # (domain, label)
    datasets: Mapping[str, int]
    paper: Mapping[tuple[str, str], float]  # over the same datasets
    without_paper: tuple[str, ...]  # domains of which the paper prints one number alone, over more datasets than ours


def ablations(view: View) -> list[Ablation]:
    """Every group of which some suite has the baseline and another label; the suite with the most runs is taken."""
    out = []
    for group in GROUPS:
        best: tuple[int, str] | None = None
        for suite in view.suites():
            here = view.places[view.places["suite"] == suite]
            if {group.baseline} < set(here["label"]) & {group.baseline, *group.labels}:
                count = int(here["label"].isin([group.baseline, *group.labels]).sum())
                best = max(best or (0, ""), (count, suite))
        if best is not None and (found := ablation(view, group, best[1])) is not None:
            out.append(found)
    return out


def ablation(view: View, group: Group, suite: str) -> Ablation | None:
    runs = averaged(view.compared(suite))
    base = scores(runs[runs["label"] == group.baseline])
    percent: dict[tuple[str, str], Estimate] = {}
    paper: dict[tuple[str, str], float] = {}
    counts: dict[str, int] = {}
    for label in group.labels:
        values = scores(runs[runs["label"] == label])
        common = [name for name in in_order(values) if name in base]
        domains = list(dict.fromkeys(domain_of(name) for name in common))
        for domain in [*domains, *([TOTAL] if len(domains) > 1 else [])]:
            inside = [name for name in common if domain in (TOTAL, domain_of(name))]
            estimate = percent_difference({n: values[n] for n in inside}, {n: base[n] for n in inside})
            if math.isfinite(estimate.value):
                percent[domain, label] = estimate
                counts[domain] = max(counts.get(domain, 0), len(inside))
                printed = _paper_percent(group, label, domain, inside)
                if printed is not None:
                    paper[domain, label] = printed
    if not percent:
        return None
    shown = [label for label in group.labels if any(key[1] == label for key in percent)]
    series = dict(zip(runs["label"], runs["series"], strict=True))
    over_more = {domain for domain, label in percent if (domain, label) not in paper and _prints(group, domain, label)}
    return Ablation(
        group,
        suite,
        tuple(counts),
        {label: series[label] for label in shown},
        percent,
        counts,
        paper,
        tuple(domain for domain in counts if domain in over_more),
    )


def percent_difference(a: statistics.Scores, b: statistics.Scores) -> Estimate:
    """(a − b)/|b| in percent; the interval is that of the difference, with b's average taken as it is."""
    base = statistics.grand_mean(b)
    return statistics.difference(a, b).times(100 / abs(base)) if base else statistics.NONE


def _tables_of(group: Group, label: str) -> list[PaperTable]:
    """The paper's tables that print a label of a group and its baseline."""
    found = [table for table in tables().values() if table.source.split(",")[0] == group.source.split(",")[0]]
    return [table for table in found if {label, group.baseline} <= set(table.variants)]


def _paper_percent(group: Group, label: str, domain: str, datasets: Sequence[str]) -> float | None:
    """The same from the paper's numbers on the same datasets, where it has them."""
    for table in _tables_of(group, label):
        ours, base = (_paper_mean(table, domain, datasets, name) for name in (label, group.baseline))
        if ours is not None and base:
            return 100 * (ours - base) / abs(base)
    return None


def _paper_mean(table: PaperTable, domain: str, datasets: Sequence[str], label: str) -> float | None:
    """The paper's average over these datasets, from its rows. A table of domains has no others than its own."""
    rows = [row for name in datasets if (row := paper_row(table, name)) is not None]
    if len(rows) == len(datasets):
        return float(np.mean([table.numbers[row, label].mean for row in rows]))
    if len(datasets) != SIZES.get(domain, sum(SIZES.values())):
        return None
    number = table.numbers.get((domain, label)) or table.averages.get((domain, label))
    return number.mean if number else None


def _prints(group: Group, domain: str, label: str) -> bool:
    return any(
        (domain, label) in numbers for table in _tables_of(group, label) for numbers in (table.numbers, table.averages)
    )


PER_DATASET = ("Figure 1b", "Figure 9")  # figures of the paper with bars for each dataset


@dataclass(frozen=True)
class ByDataset:
    """The scores of a group on each dataset, baseline first, and how far each is from the baseline's."""

    group: Group
    datasets: tuple[str, ...]
    series: Mapping[str, str]
    scores: Mapping[tuple[str, str], Estimate]  # (dataset, label)
    percent: Mapping[tuple[str, str], float]

    def changes(self, dataset: str) -> str:
        """What is written above a dataset's bars. Of a baseline near zero anything is thousands of percent."""
        found = [self.percent[dataset, label] for label in self.series if (dataset, label) in self.percent]
        texts = (f"{value:+.0f} %" if abs(value) < 1000 else f"{'>' if value > 0 else '<-'}999 %" for value in found)
        return " / ".join(texts).replace("-", "−")


def by_dataset(view: View, ablation: Ablation) -> ByDataset:
    """The datasets behind an ablation's averages, one by one."""
    group, runs = ablation.group, averaged(view.compared(ablation.suite))
    labels = [group.baseline, *ablation.series]
    found = {label: scores(runs[runs["label"] == label]) for label in labels}
    base = found[group.baseline]
    datasets = in_order(n for label in ablation.series for n in found[label] if n in base)
    percent = {
        (name, label): percent_difference({name: found[label][name]}, {name: base[name]}).value
        for name in datasets
        for label in ablation.series
        if name in found[label]
    }
    series = dict(zip(runs["label"], runs["series"], strict=True))
    return ByDataset(
        group,
        tuple(datasets),
        {label: series[label] for label in labels},
        {(n, label): statistics.mean(found[label][n]) for n in datasets for label in labels if n in found[label]},
        {key: value for key, value in percent.items() if math.isfinite(value)},
    )


# ── runtime ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Speed(NamedTuple):
    """Seconds of a million steps of one series, on one device, with as many runs side by side."""

    series: str
    device: str
    together: int
    dataset: str
    seconds: Estimate
    runs: int
    algo: str

    @property
    def company(self) -> str:
        return "alone" if self.together == 1 else f"{self.together} runs side by side"


def runtime(view: View) -> list[Speed]:
    """Seconds of a million steps, from steps per second; only runs on one device and dataset can be compared. Every
    processor's device has the same name, so that of its machine goes with it."""
    places = view.places[view.places["steps_per_second"] > 0].drop_duplicates(["series", "run_id"])
    places = plain_if_any(places, ["dataset", "series"])
    out = []
    keys = ["dataset", "device", "runs_together", "series"]
    device = places["device"].fillna("unknown")
    device = device.where(~device.str.startswith("cpu"), places["machine"].fillna("") + " " + device).str.strip()
    filled = places.assign(device=device, runs_together=places["runs_together"].fillna(1))
    for (dataset, device, together, series), group in filled.groupby(keys):
        seconds = statistics.mean(1e6 / group["steps_per_second"].to_numpy(float))
        out.append(Speed(series, device, int(together), dataset, seconds, len(group), group["algo"].iloc[0]))
    return out


def comparable_speeds(speeds: Sequence[Speed]) -> list[Speed]:
    """Algorithms in one setting, the fastest first; variants of one that is there itself are left out."""
    chosen = _in_one_setting(speeds)
    plain = {speed.algo for speed in chosen if speed.series == method(speed.algo).name}
    kept = [speed for speed in chosen if speed.series == method(speed.algo).name or speed.algo not in plain]
    return sorted(kept, key=lambda speed: speed.seconds.value)


def interval_speeds(speeds: Sequence[Speed]) -> list[Speed]:
    """ASPC by its update interval in one setting, the shortest first, and TD3+BC, which has nothing to update; empty
    where there are not two intervals."""
    intervals = {speed.series: k for speed in speeds if (k := _interval_of(speed.series)) is not None}
    chosen = _in_one_setting([speed for speed in speeds if speed.series in {*intervals, "TD3+BC"}])
    learned = sorted((s for s in chosen if s.series in intervals), key=lambda speed: intervals[speed.series])
    return [*learned, *(s for s in chosen if s.series == "TD3+BC")] if len(learned) > 1 else []


def _interval_of(series: str) -> int | None:
    """Steps between updates of alpha, if that is all in which a series may differ from plain ASPC."""
    if series == "ASPC":
        return 10
    found = re.fullmatch(r"ASPC, k_alpha = ([0-9]+)", series)
    return int(found[1]) if found else None


def _in_one_setting(speeds: Sequence[Speed]) -> list[Speed]:
    """The setting (dataset, device, runs together) in which most series were run, of those with runs that trained
    alone if two series did; halfcheetah-medium goes first. Only such runs say what an algorithm costs."""
    settings: dict[tuple[str, str, int], list[Speed]] = {}
    for speed in speeds:
        settings.setdefault((speed.dataset, speed.device, speed.together), []).append(speed)
    if not settings:
        return []

    def worth(setting: tuple[str, str, int]) -> tuple[bool, int, bool, int, tuple[str, str, int]]:
        dataset, _, together = setting
        many = len(settings[setting])
        alone = together == 1 and many > 1
        return alone, many, without_version(dataset) == "halfcheetah-medium", -together, setting

    return settings[max(settings, key=worth)]
