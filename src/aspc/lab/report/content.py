"""The parts of a report as plain data. They are computed once and rendered by `plots` and `html_page`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from aspc.errors import AspcError
from aspc.lab.report.ablations import DATASET_FIGURES, Ablation, DatasetComparison, build_ablations, compare_datasets
from aspc.lab.report.aggregates import Aggregates, DomainSummary, build_aggregates
from aspc.lab.report.claims.registry import check_all
from aspc.lab.report.claims.vocabulary import Claim
from aspc.lab.report.curves import Curve, build_curves, group_by_task, select_curves
from aspc.lab.report.datasets import QUALITIES, quality_of, sort_datasets, task_of
from aspc.lab.report.methods import LEARNED_SCALE
from aspc.lab.report.radar import RadarChart, build_radar
from aspc.lab.report.recommendation import Recommendation, recommend
from aspc.lab.report.runtime import SeriesRuntime, compare_algorithms, compare_intervals, measure_runtimes
from aspc.lab.report.score_tables import ScoreTable, build_score_table, sort_suites
from aspc.lab.report.statistics import IntervalEstimate
from aspc.lab.report.styles import QUALITY_COLORS, TASK_COLORS, SeriesStyle, assign_styles, cycle_styles
from aspc.lab.report.view import MEASURES, View, build_view, drop_returns, scores_by_dataset
from aspc.lab.results import Results

LEADING_SERIES = ("ASPC", "TD3+BC")  # shown in the first columns, after the recommended series
MAIN_SUITES = ("main_table", "study_main", "locomotion", "embedded")  # candidates for the first table, preferred first


class HeadlineScores(NamedTuple):
    """The scores of the last and the best evaluation per label of the main table, averaged over the same datasets."""

    datasets: tuple[str, ...]
    last: Mapping[str, IntervalEstimate]
    best: Mapping[str, IntervalEstimate]


class ScaleCurve(NamedTuple):
    """A curve of the scale, with its name and style in a panel."""

    curve: Curve
    name: str
    style: SeriesStyle


@dataclass(frozen=True)
class ReportContent:
    """The parts of a report."""

    view: View
    datasets: tuple[str, ...]
    measures: Mapping[str, str]
    styles: Mapping[str, SeriesStyle]
    recommendation: Recommendation | None
    main_table: ScoreTable
    other_tables: tuple[ScoreTable, ...]
    aggregates: Aggregates | None
    radar: RadarChart | None
    curves: tuple[Curve, ...]
    ablations: tuple[Ablation, ...]
    dataset_comparisons: tuple[DatasetComparison, ...]
    runtimes: tuple[SeriesRuntime, ...]
    interval_runtimes: tuple[SeriesRuntime, ...]
    claims: tuple[Claim, ...]

    def style_of_label(self, label: str) -> SeriesStyle:
        """Return the style of a label of the main table."""
        return self.styles[self.main_table.series[label]]

    def describe_unit(self, datasets: Iterable[str]) -> str:
        """Return the unit of the numbers for these datasets."""
        return " or ".join(dict.fromkeys(MEASURES[self.measures[name]] for name in datasets))

    def headline_scores(self) -> HeadlineScores | None:
        """Return averages over the datasets that all labels share.

        If there are no aggregates, return the row that covers the most datasets and has comparable scores. If no row
        has comparable scores, return None.
        """
        if self.aggregates is not None:
            return HeadlineScores(self.aggregates.overall.datasets, self.aggregates.overall.mean, self.aggregates.best)
        rows = [*(row for row in reversed(self.main_table.rows) if row.is_average), *self.main_table.rows]
        row = next((row for row in rows if row.comparable_cells()), None)
        if row is None:
            return None
        cells = row.comparable_cells().items()
        return HeadlineScores(row.datasets, {k: cell.last for k, cell in cells}, {k: cell.best for k, cell in cells})

    def summary_labels(self, summary: DomainSummary) -> list[str]:
        """Return a summary's labels: the recommended one, ASPC and TD3+BC first, then the others by decreasing IQM."""
        recommended = self.recommendation.label if self.recommendation else None
        series = self.main_table.series
        leading = [label for label in summary.labels if label == recommended or series[label] in LEADING_SERIES]
        others = [label for label in summary.labels if label not in leading]
        return [*leading, *sorted(others, key=lambda label: -summary.iqm[label].value)]

    @property
    def main_series(self) -> list[str]:
        return list(dict.fromkeys(self.main_table.series.values()))

    @property
    def scale_series(self) -> str | None:
        """The series whose scale is plotted: ASPC if present, otherwise the first series with a learned scale."""
        algo = dict(zip(self.view.entries["series"], self.view.entries["algo"], strict=True))
        drawn = dict.fromkeys(c.series for c in self.curves if c.metric == "scale")
        learned = [series for series in drawn if algo[series].split("+")[-1] in LEARNED_SCALE]
        return "ASPC" if "ASPC" in learned else next(iter(learned), None)

    def _scale_curves(self) -> list[Curve]:
        return [c for c in select_curves(self.curves, "scale") if c.series == self.scale_series]

    def scale_by_quality(self) -> dict[str, list[ScaleCurve]]:
        """Return scale curves grouped by task, best data quality first.

        Only datasets whose name includes a quality (such as medium or expert) are included.
        """
        found = [c for c in self._scale_curves() if quality_of(c.dataset)]
        return {
            task: [
                ScaleCurve(c, quality, SeriesStyle(QUALITY_COLORS[quality], "solid"))
                for quality in QUALITIES
                for c in found
                if task_of(c.dataset) == task and quality_of(c.dataset) == quality
            ]
            for task in sorted({task_of(c.dataset) for c in found})
        }

    def scale_by_task(self) -> dict[str, list[ScaleCurve]]:
        """Return scale curves grouped by task, for datasets whose name includes no data quality."""
        found = {c.dataset: c for c in self._scale_curves()}
        datasets = [name for name in self.datasets if name in found and not quality_of(name)]
        return {
            task: [
                ScaleCurve(found[name], short_name, style)
                for (name, short_name), style in zip(names.items(), cycle_styles(TASK_COLORS), strict=False)
            ]
            for task, names in group_by_task(datasets).items()
        }


def build(results: Results, progress: Callable[[str], None] = lambda part: None) -> ReportContent:
    """Compute the parts of a report.

    Args:
        results: the results to report.
        progress: function that is called with the name of each part before it is computed.

    Raises:
        AspcError: No run has finished.
    """
    view = build_view(results)
    if view.runs.empty:
        raise AspcError("There is nothing to report, because no run in these results has finished successfully.")
    names = sort_suites(view.suite_names())
    largest = view.entries["suite"].value_counts().idxmax()
    main_suite = next((name for name in MAIN_SUITES if name in names), largest)
    progress("tables")
    recommendation = recommend(view, main_suite)
    recommended = recommendation.label if recommendation else None
    first = [*([recommended] if recommended else []), *LEADING_SERIES]
    main_table = build_score_table(view, main_suite, first)
    tables = [build_score_table(view, name) for name in names if name != main_suite]
    progress("profiles")
    aggregates = build_aggregates(view, main_table, recommended)
    runs, labels = drop_returns(view.comparable_suite_runs(main_suite)), aggregates.overall.labels if aggregates else ()
    main_scores = {label: scores_by_dataset(runs[runs["label"] == label]) for label in labels}
    progress("curves")
    all_curves = build_curves(view)
    algorithms = dict(zip(view.entries["series"], view.entries["algo"], strict=True))
    series = dict.fromkeys([*main_table.series.values(), *sorted(algorithms)])
    progress("claims")
    claims = check_all(view)
    progress("ablations")
    all_ablations, runtimes = build_ablations(view), measure_runtimes(view)
    compared = [a for a in all_ablations if a.group.source in DATASET_FIGURES]
    return ReportContent(
        view,
        tuple(sort_datasets(view.runs["dataset"].unique())),
        dict(zip(view.runs["dataset"], view.runs["measure"], strict=True)),
        assign_styles({name: algorithms[name] for name in series}),
        recommendation,
        main_table,
        tuple(tables),
        aggregates,
        build_radar(main_scores) if main_scores else None,
        tuple(all_curves),
        tuple(all_ablations),
        tuple(compare_datasets(view, a) for a in compared),
        tuple(compare_algorithms(runtimes)),
        tuple(compare_intervals(runtimes)),
        tuple(claims),
    )
