"""Everything a report says, as plain data: computed once, drawn by `plots` and `page`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from aspc.errors import AspcError
from aspc.lab.report import claims, curves, tables
from aspc.lab.report.statistics import Estimate
from aspc.lab.report.styles import TASK_COLOURS, Style, in_turn, styles
from aspc.lab.report.view import MEASURES, OWN_SCALE, View, averaged, in_order, prepare, quality_of, scores
from aspc.lab.results import Results

MAIN_SUITES = (
    "main_table",
    "study_main",
    "locomotion",
    "embedded",
)  # the first that is there leads the page, else the largest


class Compared(NamedTuple):
    """Scores that stand side by side: of the columns of the main table, averages over the same datasets (or one)."""

    datasets: tuple[str, ...]
    last: Mapping[str, Estimate]
    best: Mapping[str, Estimate]


class Line(NamedTuple):
    """One of the curves in a picture."""

    curve: curves.Curve
    name: str
    style: Style


@dataclass(frozen=True)
class Content:
    """The parts of a report."""

    view: View
    datasets: tuple[str, ...]
    measures: Mapping[str, str]
    styles: Mapping[str, Style]
    main: tables.Table
    others: tuple[tables.Table, ...]
    aggregates: tables.Aggregates | None
    radar: tables.Radar | None
    curves: tuple[curves.Curve, ...]
    ablations: tuple[tables.Ablation, ...]
    by_dataset: tuple[tables.ByDataset, ...]
    speeds: tuple[tables.Speed, ...]
    interval_speeds: tuple[tables.Speed, ...]
    claims: tuple[claims.Claim, ...]

    def style_of_label(self, label: str) -> Style:
        """The style of a column of the main table."""
        return self.styles[self.main.series[label]]

    def units(self, datasets: Iterable[str]) -> str:
        """What the numbers on these datasets are."""
        return " or ".join(dict.fromkeys(MEASURES[self.measures[name]] for name in datasets))

    def compared(self) -> Compared | None:
        """On the datasets that all have. With nothing to compare: one column's average, or the first dataset."""
        if self.aggregates is not None:
            return Compared(self.aggregates.overall.datasets, self.aggregates.overall.mean, self.aggregates.best)
        rows = [*(row for row in reversed(self.main.rows) if row.average), *self.main.rows]
        row = next((row for row in rows if row.comparable()), None)
        if row is None:
            return None
        cells = row.comparable().items()
        return Compared(row.datasets, {k: cell.last for k, cell in cells}, {k: cell.best for k, cell in cells})

    @property
    def main_series(self) -> list[str]:
        return list(dict.fromkeys(self.main.series.values()))

    @property
    def scale_series(self) -> str | None:
        """Whose scale is drawn by quality and task: ASPC's, or the first learned one there is."""
        algo = dict(zip(self.view.places["series"], self.view.places["algo"], strict=True))
        drawn = dict.fromkeys(c.series for c in self.curves if c.metric == "scale")
        learned = [series for series in drawn if algo[series].split("+")[-1] in OWN_SCALE]
        return "ASPC" if "ASPC" in learned else next(iter(learned), None)

    def scale_by_task(self) -> dict[str, list[Line]]:
        """The scale on datasets that have no quality in their name, a picture for each task."""
        found = {c.dataset: c for c in curves.pick(self.curves, "scale") if c.series == self.scale_series}
        datasets = [name for name in self.datasets if name in found and not quality_of(name)]
        return {
            task: [
                Line(found[name], short, style)
                for (name, short), style in zip(inside.items(), in_turn(TASK_COLOURS), strict=False)
            ]
            for task, inside in curves.by_task(datasets).items()
        }


def build(results: Results, done: Callable[[str], None] = lambda part: None) -> Content:
    """Compute a report's parts; `done` is called with the name of each before it is made."""
    view = prepare(results)
    if view.runs.empty:
        raise AspcError("These results have no run that is done; there is nothing to report yet.")
    names = tables.in_suites_order(view.suites())
    largest = view.places["suite"].value_counts().idxmax()
    leading = next((name for name in MAIN_SUITES if name in names), largest)
    done("tables")
    every = {name: tables.suite_table(view, name) for name in names}
    main = every[leading]
    done("profiles")
    aggregates = tables.aggregates(view, main)
    runs = averaged(view.compared(leading))
    wide = {label: scores(runs[runs["label"] == label]) for label in (aggregates.overall.labels if aggregates else ())}
    done("curves")
    all_curves = curves.all_curves(view)
    series = list(dict.fromkeys([*main.series.values(), *sorted(view.places["series"].unique())]))
    done("claims")
    checked = claims.check_all(view)
    done("ablations")
    ablations, speeds = tables.ablations(view), tables.runtime(view)
    return Content(
        view,
        tuple(in_order(view.runs["dataset"].unique())),
        dict(zip(view.runs["dataset"], view.runs["measure"], strict=True)),
        styles(series),
        main,
        tuple(table for name, table in every.items() if name != leading),
        aggregates,
        tables.radar(wide) if wide else None,
        tuple(all_curves),
        tuple(ablations),
        tuple(tables.by_dataset(view, a) for a in ablations if a.group.source in tables.PER_DATASET),
        tuple(tables.comparable_speeds(speeds)),
        tuple(tables.interval_speeds(speeds)),
        tuple(checked),
    )
