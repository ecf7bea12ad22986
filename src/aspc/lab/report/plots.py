"""Draw the figures of a report as PNG and SVG files, for use in papers and slides."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aspc.io import write_atomically
from aspc.lab.report.ablations import Ablation, DatasetComparison
from aspc.lab.report.content import ReportContent, ScaleCurve
from aspc.lab.report.curves import select_curves
from aspc.lab.report.drawing import (
    RC_PARAMS,
    draw_curve,
    draw_horizontal_bars,
    draw_legend,
    draw_legend_below,
    draw_vertical_bars,
    group_positions,
    limit_series,
    line_style,
    make_figure,
    make_panels,
    set_log_axis,
)
from aspc.lab.report.formatting import pluralize
from aspc.lab.report.runtime import SeriesRuntime
from aspc.lab.report.styles import MAX_DRAWN, SeriesStyle
from aspc.lab.report.view import MEASURES

MAX_PANELS = 6  # in the figure of the last and best evaluations


def write_figures(content: ReportContent, folder: Path) -> list[str]:
    """Write all figures for which there are results, and return their names."""
    mpl.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    with mpl.rc_context(RC_PARAMS):
        for name, figure in draw_figures(content):
            if figure.get_layout_engine() is not None:
                figure.draw_without_rendering()
                figure.set_layout_engine("none")  # the layout has been computed and is the same for both files
            for suffix in ("png", "svg"):
                buffer = io.BytesIO()
                metadata = {"Date": None} if suffix == "svg" else None
                figure.savefig(buffer, format=suffix, dpi=130, metadata=metadata)
                write_atomically(folder / f"{name}.{suffix}", buffer.getvalue())
            names.append(name)
    return names


def draw_figures(content: ReportContent) -> Iterator[tuple[str, Figure]]:
    """Yield names and figures in the order of the page."""
    functions = {
        "profiles": plot_profiles,
        "improvement": plot_improvement,
        "radar": plot_radar,
        "learning_curves": plot_learning_curves,
        "q_curves": plot_q_curves,
        "bc_loss_curves": plot_bc_loss_curves,
        "alpha_by_quality": plot_alpha_by_quality,
        "alpha_by_task": plot_alpha_by_task,
        "ablations": plot_ablations,
        "by_dataset": plot_by_dataset,
        "runtime": plot_runtime,
        "runtime_by_interval": plot_runtime_by_interval,
        "last_and_best": plot_last_and_best,
    }
    for name, plot in functions.items():
        figure = plot(content)
        if figure is not None:
            yield name, figure


def plot_profiles(content: ReportContent) -> Figure | None:
    """Plot performance profiles with 95 % intervals."""
    aggregates = content.aggregates
    if aggregates is None:
        return None
    figure = make_figure(6, 4)
    axes = figure.subplots()
    for label in limit_series(figure, aggregates.overall.labels):
        style = content.style_of_label(label)
        value, low, high = aggregates.profiles[label]
        axes.plot(aggregates.thresholds, value, label=content.main_table.titles[label], **line_style(style))
        if np.isfinite(low).all():
            axes.fill_between(aggregates.thresholds, low, high, color=style.color, alpha=0.15, lw=0)
    axes.set(xlabel="score τ", ylabel="fraction of runs with score > τ", ylim=(0, 1))
    axes.set_title(f"Performance profiles on {len(aggregates.overall.datasets)} datasets")
    axes.legend()
    return figure


def plot_improvement(content: ReportContent) -> Figure | None:
    """Plot the probability that a run of the reference scores higher than a run of each other label."""
    if content.aggregates is None:
        return None
    overall = content.aggregates.overall
    figure = make_figure(6, 0.5 * min(len(overall.improvement), MAX_DRAWN) + 1.3)
    axes = figure.subplots()
    labels = limit_series(figure, overall.improvement)
    styles = [content.style_of_label(label) for label in labels]
    titles = content.main_table.titles
    estimates = [overall.improvement[label] for label in labels]
    draw_horizontal_bars(axes, [titles[label] for label in labels], estimates, styles)
    axes.axvline(0.5, color="0.4", lw=1)
    axes.set(xlim=(0, 1), xlabel=f"P({titles[overall.reference]} scores higher)")
    return figure


def plot_radar(content: ReportContent) -> Figure | None:
    """Plot the radar chart over tasks."""
    radar = content.radar
    if radar is None:
        return None
    figure = make_figure(5.5, 5)
    axes = figure.add_subplot(projection="polar")
    angles = np.linspace(0, 2 * np.pi, len(radar.tasks), endpoint=False)
    for label in limit_series(figure, radar.values):
        values = radar.values[label]
        style = content.style_of_label(label)
        title = content.main_table.titles[label]
        axes.plot([*angles, angles[0]], [*values, values[0]], label=title, **line_style(style))
        axes.fill([*angles, angles[0]], [*values, values[0]], color=style.color, alpha=0.06)
    axes.set_xticks(angles, list(radar.tasks))
    axes.set_yticks([0.25, 0.5, 0.75, 1], [])
    axes.set_title(radar.caption)
    figure.legend(loc="outside lower center", ncols=4)
    return figure


def plot_learning_curves(content: ReportContent) -> Figure | None:
    """Plot the score over steps, with one panel per dataset."""
    return _plot_per_dataset(content, "score")


def plot_q_curves(content: ReportContent) -> Figure | None:
    """Plot Q over steps, with one panel per dataset."""
    return _plot_per_dataset(content, "q", "Q")


def plot_bc_loss_curves(content: ReportContent) -> Figure | None:
    """Plot the BC loss over steps, with one panel per dataset."""
    return _plot_per_dataset(content, "bc_loss", "BC loss")


def _plot_per_dataset(content: ReportContent, metric: str, unit: str | None = None) -> Figure | None:
    """Plot a metric of the first series in the main table, with one panel per dataset.

    Args:
        content: The parts of the report.
        metric: The metric to plot.
        unit: Label of the y axis. Default: the measure of each dataset.
    """
    drawn = {c.series for c in select_curves(content.curves, metric)}
    series = [name for name in content.main_series if name in drawn]
    curves = [c for c in select_curves(content.curves, metric) if c.series in series[:MAX_DRAWN]]
    datasets = [name for name in content.datasets if any(c.dataset == name for c in curves)]
    if not datasets:
        return None
    figure, panels = make_panels(len(datasets), 6)
    limit_series(figure, series)
    for axes, name in zip(panels, datasets, strict=True):
        for curve in select_curves(curves, metric, dataset=name):
            draw_curve(axes, curve, content.styles[curve.series], curve.series)
        axes.set_title(name, fontsize=10 if len(name) < 34 else 7)
        axes.set_ylabel(unit or MEASURES[content.measures[name]])
    draw_legend(figure, panels)
    return figure


def plot_alpha_by_quality(content: ReportContent) -> Figure | None:
    """Plot alpha over steps, with one panel per locomotion task and one line per data quality."""
    tasks = content.scale_by_quality()
    if not tasks:
        return None
    figure, panels = make_panels(len(tasks), 3, 4, 3)
    _draw_scales(panels, tasks)
    draw_legend(figure, panels)
    return figure


def plot_alpha_by_task(content: ReportContent) -> Figure | None:
    """Plot alpha over steps for other datasets, with one panel per task and one line per dataset."""
    tasks = content.scale_by_task()
    if not tasks:
        return None
    most = max(len(curves) for curves in tasks.values())
    figure, panels = make_panels(len(tasks), 3, 4, 3, below=0.15 * -(-most // 3))
    _draw_scales(panels, tasks)
    for axes in panels:
        draw_legend_below(axes)
    return figure


def _draw_scales(panels: Sequence[Axes], tasks: Mapping[str, Sequence[ScaleCurve]]) -> None:
    for axes, (task, curves) in zip(panels, tasks.items(), strict=True):
        for curve, name, style in curves:
            draw_curve(axes, curve, style, name)
        axes.set(title=task, ylabel="alpha", xlabel="steps")
        set_log_axis(axes)


def plot_ablations(content: ReportContent) -> Figure | None:
    """Plot percent differences, with one row per ablation and one panel per domain, each with its own axis."""
    if not content.ablations:
        return None
    columns = max(2, *(len(ablation.domains) for ablation in content.ablations))
    figure, panels = make_panels(columns * len(content.ablations), columns, 2.7, 2.9, below=0.9)
    for i, ablation in enumerate(content.ablations):
        row = panels[i * columns : (i + 1) * columns]
        for axes, domain in zip(row, ablation.domains, strict=False):
            _draw_ablation(axes, ablation, domain, content.styles)
        for unused in row[len(ablation.domains) :]:
            unused.set_axis_off()
        group = ablation.group
        title = f"{group.title} ({group.source})\n% difference from {ablation.titles[group.baseline]}"
        row[0].set_title(title, loc="left")
        draw_legend_below(row[0], loc="upper left", ncols=min(columns, 3))
    return figure


def _draw_ablation(axes: Axes, ablation: Ablation, domain: str, styles: Mapping[str, SeriesStyle]) -> None:
    """Draw the bars of one domain with intervals, and the paper's numbers as diamonds on these bars."""
    for x, (label, series) in enumerate(ablation.series.items()):
        key, style = (domain, label), styles[series]
        bars = {float(x): ablation.percent[key]} if key in ablation.percent else {}
        draw_vertical_bars(axes, bars, style, ablation.titles[label], 0.8)
        if key in ablation.paper:
            axes.plot([x], [ablation.paper[key]], "D", mfc="white", mec=style.color, mew=1.5, ms=4.5, zorder=3)
    if ablation.paper:
        axes.plot([], [], "D", mfc="white", mec="0.3", mew=1.5, ms=4.5, label="paper")
    axes.axhline(0, color="0.3", lw=0.8)
    axes.grid(axis="x", visible=False)
    axes.set_xticks([])
    axes.set_xlim(-0.6, len(ablation.series) - 0.4)
    axes.set_xlabel(f"{domain}, {ablation.datasets[domain]} {pluralize('dataset', ablation.datasets[domain])}")


def plot_by_dataset(content: ReportContent) -> Figure | None:
    """Plot scores per dataset, with percent differences above the bars, as in Figures 1b and 9 of the paper."""
    comparisons = content.dataset_comparisons
    if not comparisons:
        return None
    figure = make_figure(11, 3.8 * len(comparisons))
    for axes, comparison in zip(figure.subplots(len(comparisons), squeeze=False).flat, comparisons, strict=True):
        _draw_dataset_comparison(axes, comparison, content)
    return figure


def _draw_dataset_comparison(axes: Axes, comparison: DatasetComparison, content: ReportContent) -> None:
    names, scores = comparison.datasets, comparison.scores
    for label, positions in group_positions(list(comparison.series), len(names)).items():
        bars = {x: scores[n, label] for x, n in zip(positions, names, strict=True) if (n, label) in scores}
        style = content.styles[comparison.series[label]]
        draw_vertical_bars(axes, bars, style, comparison.titles[label], 0.8 / len(comparison.series))
    for x, name in enumerate(names):
        estimates = [scores[name, label] for label in comparison.series if (name, label) in scores]
        top = max(0.0, *(e.high if e.has_interval else e.value for e in estimates))
        axes.text(x, top, comparison.describe_changes(name), ha="center", va="bottom", fontsize=7)
    axes.axhline(0, color="0.3", lw=0.8)
    axes.grid(axis="x", visible=False)
    axes.set_xticks(range(len(names)), list(names), rotation=30, ha="right")
    axes.set_ylabel(content.describe_unit(names))
    group = comparison.group
    axes.set_title(f"{group.title} ({group.source}); above bars: difference from {comparison.titles[group.baseline]}")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def plot_runtime(content: ReportContent) -> Figure | None:
    """Plot seconds per million steps by algorithm."""
    return _plot_seconds(content, content.runtimes)


def plot_runtime_by_interval(content: ReportContent) -> Figure | None:
    """Plot seconds per million steps by update interval of alpha."""
    return _plot_seconds(content, content.interval_runtimes)


def _plot_seconds(content: ReportContent, runtimes: Sequence[SeriesRuntime]) -> Figure | None:
    if not runtimes:
        return None
    figure = make_figure(6, 0.4 * len(runtimes) + 1.3)
    axes = figure.subplots()
    series = [r.series for r in runtimes]
    draw_horizontal_bars(axes, series, [r.seconds for r in runtimes], [content.styles[name] for name in series])
    axes.set(xlabel="seconds per million steps")
    conditions = f"{runtimes[0].dataset}, {runtimes[0].device}, {runtimes[0].concurrency}"
    figure.suptitle("\n".join(textwrap.wrap(conditions, 75)), fontsize=9)
    return figure


def plot_last_and_best(content: ReportContent) -> Figure | None:
    """Plot the last and the best evaluation per label, with one panel per average (or per dataset without averages)."""
    all_rows = [row for row in content.main_table.rows if row.is_average] or list(content.main_table.rows)
    rows = all_rows[:MAX_PANELS]
    labels = [label for label in content.main_table.labels if any(label in row.cells for row in rows)]
    if not labels:
        return None
    columns = min(3, len(rows))
    lines = -(-len(rows) // columns)
    figure = make_figure(4 * columns, (0.3 * min(len(labels), MAX_DRAWN) + 1.2) * lines + 0.6)
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for unused in panels[len(rows) :]:
        unused.set_axis_off()
    labels = limit_series(figure, labels)
    for axes, row in zip(panels, rows, strict=False):
        cells = row.comparable_cells()
        for y, label in enumerate(reversed(labels)):
            if label in cells:
                cell, color = cells[label], content.style_of_label(label).color
                axes.plot([cell.last.value, cell.best.value], [y, y], color=color, lw=2, alpha=0.5)
                axes.plot(cell.last.value, y, "o", color=color)
                axes.plot(cell.best.value, y, "o", color=color, mfc="white")
        axes.set_yticks(range(len(labels)), [content.main_table.titles[label] for label in reversed(labels)])
        axes.set_title(row.name)
    shown = f"; the first {len(rows)} of {len(all_rows)}" if len(all_rows) > len(rows) else ""
    figure.supxlabel(f"last (filled) and best (hollow) evaluation{shown}", fontsize=9)
    return figure
