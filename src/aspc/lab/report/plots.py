"""Figures of a report as files (PNG and SVG), for papers and slides."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aspc.io import write_atomically
from aspc.lab.report.content import Content
from aspc.lab.report.curves import Curve, pick
from aspc.lab.report.statistics import Estimate
from aspc.lab.report.styles import MOST_DRAWN, QUALITY_COLOURS, Style
from aspc.lab.report.tables import Ablation, ByDataset, Speed
from aspc.lab.report.view import MEASURES, QUALITIES, quality_of, task_of

LINES: Mapping[str, Any] = {
    "solid": "-",
    "dash": "--",
    "dot": ":",
    "dashdot": "-.",
    "longdash": (0, (9, 3)),
    "longdashdot": (0, (9, 3, 2, 3)),
}
# Bars of one colour are told apart as lines of one colour are.
HATCHES = {
    "solid": "",
    "dash": "///",
    "dot": "...",
    "dashdot": "xxx",
    "longdash": "\\\\\\",
    "longdashdot": "+++",
}
QUIET: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "text.parse_math": False,  # a name with $ in it is only a name
    "svg.hashsalt": "aspc",  # the same results give the same file
}


def write_figures(content: Content, folder: Path, done: Callable[[int], None] = lambda n: None) -> list[str]:
    """Write every figure that the results are enough for; returns their names."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    with matplotlib.rc_context(QUIET):
        for name, figure in figures(content):
            if figure.get_layout_engine() is not None:
                figure.draw_without_rendering()
                figure.set_layout_engine("none")  # laid out once, for both files
            for suffix in ("png", "svg"):
                buffer = io.BytesIO()
                metadata = {"Date": None} if suffix == "svg" else None
                figure.savefig(buffer, format=suffix, dpi=130, metadata=metadata)
                write_atomically(folder / f"{name}.{suffix}", buffer.getvalue())
            names.append(name)
            done(len(names))
    return names


def figures(content: Content) -> Iterator[tuple[str, Any]]:
    """Names and figures, in the page's order."""
    makers = {
        "profiles": profiles,
        "improvement": improvement,
        "radar": radar,
        "learning_curves": learning_curves,
        "q_curves": q_curves,
        "bc_loss_curves": bc_loss_curves,
        "alpha_by_quality": alpha_by_quality,
        "alpha_by_task": alpha_by_task,
        "ablations": ablations,
        "by_dataset": by_dataset,
        "runtime": runtime,
        "runtime_by_interval": runtime_by_interval,
        "last_and_best": last_and_best,
    }
    for name, make in makers.items():
        figure = make(content)
        if figure is not None:
            yield name, figure


def _figure(width: float, height: float, **more: Any) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", **more)


def _drawn(figure: Any, names: Iterable[str]) -> list[str]:
    """The first of these, as many as can be told apart; where there are more, the figure says so."""
    names = list(names)
    if len(names) > MOST_DRAWN:
        laid_out = figure.get_layout_engine() is not None
        place = {} if laid_out else {"y": 1 - 0.08 / figure.get_figheight(), "va": "top"}
        figure.suptitle(f"The first {MOST_DRAWN} of {len(names)}; the page can show all of them.", fontsize=8, **place)
    return names[:MOST_DRAWN]


def _line(style: Style) -> dict[str, Any]:
    return {"color": style.colour, "ls": LINES[style.dash], "lw": 1.6}


def _fill(style: Style) -> dict[str, Any]:
    return {"color": style.colour, "hatch": HATCHES[style.dash], "edgecolor": "white", "lw": 0}


def profiles(content: Content) -> Any:
    found = content.aggregates
    if found is None:
        return None
    figure = _figure(6, 4)
    axes = figure.subplots()
    for label in _drawn(figure, found.overall.labels):
        style = content.style_of_label(label)
        value, low, high = found.profiles[label]
        axes.plot(found.thresholds, value, label=label, **_line(style))
        if np.isfinite(low).all():
            axes.fill_between(found.thresholds, low, high, color=style.colour, alpha=0.15, lw=0)
    axes.set(xlabel="score τ", ylabel="share of runs with score > τ", ylim=(0, 1))
    axes.set_title(f"Performance profiles on {len(found.overall.datasets)} datasets")
    axes.legend()
    return figure


def improvement(content: Content) -> Any:
    if content.aggregates is None:
        return None
    found = content.aggregates.overall
    figure = _figure(6, 0.5 * min(len(found.improvement), MOST_DRAWN) + 1.3)
    axes = figure.subplots()
    labels = _drawn(figure, found.improvement)
    _bars(axes, labels, [found.improvement[label] for label in labels], [content.style_of_label(x) for x in labels])
    axes.axvline(0.5, color="0.4", lw=1)
    axes.set(xlim=(0, 1), xlabel=f"P({found.reference} scores more than …)")
    return figure


def _bars(axes: Any, labels: Sequence[str], estimates: Sequence[Estimate], styles: Sequence[Style]) -> None:
    """Horizontal bars with intervals, the first on top."""
    places = np.arange(len(labels))[::-1]
    for place, estimate, style in zip(places, estimates, styles, strict=True):
        error_kw = {"ecolor": "0.25", "elinewidth": 1}
        axes.barh(place, estimate.value, xerr=_errors([estimate]), height=0.65, error_kw=error_kw, **_fill(style))
    axes.set_yticks(places, list(labels))
    axes.grid(axis="y", visible=False)


def _errors(estimates: Sequence[Estimate]) -> list[list[float]]:
    return [[_end(e.value - e.low) for e in estimates], [_end(e.high - e.value) for e in estimates]]


def _end(length: float) -> float:
    return max(length, 0.0) if math.isfinite(length) else 0.0


def radar(content: Content) -> Any:
    found = content.radar
    if found is None:
        return None
    figure = _figure(5.5, 5)
    axes = figure.add_subplot(projection="polar")
    angles = np.linspace(0, 2 * np.pi, len(found.tasks), endpoint=False)
    for label in _drawn(figure, found.values):
        values = found.values[label]
        style = content.style_of_label(label)
        axes.plot([*angles, angles[0]], [*values, values[0]], label=label, **_line(style))
        axes.fill([*angles, angles[0]], [*values, values[0]], color=style.colour, alpha=0.06)
    axes.set_xticks(angles, list(found.tasks))
    axes.set_yticks([0.25, 0.5, 0.75, 1], [])
    axes.set_title(found.which)
    figure.legend(loc="outside lower center", ncols=4)
    return figure


def _grid(
    panels: int, columns: int, width: float = 3.2, height: float = 2.4, below: float = 0.0
) -> tuple[Any, list[Any]]:
    """Panels at fixed places: the automatic layout takes a minute where there are forty. `below` each of them is room
    for a legend of its own."""
    from matplotlib.figure import Figure

    columns = min(columns, panels)
    rows = -(-panels // columns)
    size = (width * columns, (height + below) * rows + 0.6)
    figure = Figure(figsize=size)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    margins = {"left": 0.75 / size[0], "right": 1 - 0.15 / size[0], "top": 1 - 0.5 / size[1]}
    gaps = {"wspace": 0.85 / (width - 0.85), "hspace": (0.75 + below) / (height - 0.75)}
    figure.subplots_adjust(**margins, **gaps, bottom=(0.9 + below) / size[1])
    for spare in axes[panels:]:
        spare.set_axis_off()
    return figure, axes[:panels]


def _draw(axes: Any, curve: Curve, style: Style, label: str) -> None:
    axes.plot(curve.steps, curve.mean, label=label, **_line(style))
    if curve.n > 1:
        low, high = curve.mean - curve.std, curve.mean + curve.std
        if curve.metric == "scale":  # a band on a logarithmic axis stays above zero
            low = np.maximum(low, curve.mean * 0.01)
        axes.fill_between(curve.steps, low, high, color=style.colour, alpha=0.15, lw=0)


def _legend_below(axes: Any) -> None:
    """A panel's own legend, where it covers nothing."""
    from matplotlib.transforms import ScaledTranslation

    beneath = axes.transAxes + ScaledTranslation(0, -0.4, axes.figure.dpi_scale_trans)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "bbox_transform": beneath, "borderaxespad": 0}
    axes.legend(**place, ncols=3, fontsize=7, columnspacing=1.2, handlelength=2.4)


def _log_axis(axes: Any) -> None:
    """A logarithmic y axis with plain numbers: matplotlib's own are formulas, which are not parsed here. Not where all
    values are close together: there such an axis has one number or none."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < 3 * low:
        axes.set_yscale("linear")
        return
    axes.yaxis.set_major_locator(FixedLocator(log_ticks(low, high)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(low, high)


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high`, three to about nine: powers of ten, or with 2 and 5 times them between."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    step = 1 + (last - first) // 9
    for factors in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)):
        ticks = [float(f"{f}e{power}") for power in range(first, last + 1, step) for f in factors]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) >= 3:
            break
    return inside


def _legend(figure: Any, axes: Iterable[Any]) -> None:
    handles: Mapping[str, Any] = {}
    for one in axes:
        handles = {**dict(zip(*reversed(one.get_legend_handles_labels()), strict=True)), **handles}
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=min(6, len(handles)))


def learning_curves(content: Content) -> Any:
    return _on_each_dataset(content, "score")


def q_curves(content: Content) -> Any:
    return _on_each_dataset(content, "q", "Q")


def bc_loss_curves(content: Content) -> Any:
    return _on_each_dataset(content, "bc_loss", "BC loss")


def _on_each_dataset(content: Content, metric: str, unit: str | None = None) -> Any:
    """A panel for each dataset with the curves of the main table's first series; by default in the dataset's
    measure."""
    found = {c.series for c in pick(content.curves, metric)}
    series = [name for name in content.main_series if name in found]
    curves = [c for c in pick(content.curves, metric) if c.series in series[:MOST_DRAWN]]
    datasets = [name for name in content.datasets if any(c.dataset == name for c in curves)]
    if not datasets:
        return None
    figure, panels = _grid(len(datasets), 6)
    _drawn(figure, series)
    for axes, name in zip(panels, datasets, strict=True):
        for curve in pick(curves, metric, dataset=name):
            _draw(axes, curve, content.styles[curve.series], curve.series)
        axes.set_title(name, fontsize=10 if len(name) < 34 else 7)
        axes.set_ylabel(unit or MEASURES[content.measures[name]])
    _legend(figure, panels)
    return figure


def alpha_by_quality(content: Content) -> Any:
    """A panel for each task whose datasets differ in quality."""
    curves = [c for c in pick(content.curves, "scale", content.scale_series) if quality_of(c.dataset)]
    tasks = list(dict.fromkeys(task_of(name) for name in content.datasets if any(c.dataset == name for c in curves)))
    if not tasks:
        return None
    figure, panels = _grid(len(tasks), 3, 4, 3)
    for axes, task in zip(panels, tasks, strict=True):
        for quality in QUALITIES:
            for curve in curves:
                if task_of(curve.dataset) == task and quality_of(curve.dataset) == quality:
                    _draw(axes, curve, Style(QUALITY_COLOURS[quality], "solid"), quality)
        axes.set(title=task, ylabel="alpha", xlabel="steps")
        _log_axis(axes)
    _legend(figure, panels)
    return figure


def alpha_by_task(content: Content) -> Any:
    """A panel for each task with a line for each of its datasets, of those that have no quality in their name."""
    tasks = content.scale_by_task()
    if not tasks:
        return None
    many = max(len(lines) for lines in tasks.values())
    figure, panels = _grid(len(tasks), 3, 4, 3, below=0.15 * -(-many // 3))
    for axes, (task, lines) in zip(panels, tasks.items(), strict=True):
        for line in lines:
            _draw(axes, line.curve, line.style, line.name)
        axes.set(title=task, ylabel="alpha", xlabel="steps")
        _log_axis(axes)
        _legend_below(axes)
    return figure


def ablations(content: Content) -> Any:
    found = content.ablations
    if not found:
        return None
    figure, panels = _grid(len(found), 3, 4.2, 3, below=0.5)
    for axes, ablation in zip(panels, found, strict=True):
        _ablation(axes, ablation, content.styles)
    return figure


def _ablation(axes: Any, ablation: Ablation, styles: Mapping[str, Style]) -> None:
    """Bars with intervals by domain; diamonds are the paper's numbers, on the bars that they belong to."""
    for label, places in _side_by_side(list(ablation.series), len(ablation.domains)).items():
        style, at = styles[ablation.series[label]], dict(zip(ablation.domains, places, strict=True))
        bars = {x: ablation.percent[d, label] for d, x in at.items() if (d, label) in ablation.percent}
        _upright(axes, bars, style, label, 0.8 / len(ablation.series))
        printed = {x: ablation.paper[d, label] for d, x in at.items() if (d, label) in ablation.paper}
        axes.plot(list(printed), list(printed.values()), "D", mfc="white", mec=style.colour, mew=1.5, ms=4.5, zorder=3)
    if ablation.paper:
        axes.plot([], [], "D", mfc="white", mec="0.3", mew=1.5, ms=4.5, label="the paper's")
    axes.axhline(0, color="0.3", lw=0.8)
    axes.set_xticks(range(len(ablation.domains)), list(ablation.domains))
    axes.set_title(f"{ablation.group.title} ({ablation.group.source})\n% difference from {ablation.group.baseline}")
    _legend_below(axes)


def _side_by_side(labels: Sequence[str], groups: int) -> dict[str, list[float]]:
    """Where the bars of each label are, in groups at 0, 1, 2 and so on."""
    width = 0.8 / len(labels)
    return {label: [x + (i - (len(labels) - 1) / 2) * width for x in range(groups)] for i, label in enumerate(labels)}


def _upright(axes: Any, bars: Mapping[float, Estimate], style: Style, label: str, width: float) -> None:
    estimates = list(bars.values())
    error_kw = {"ecolor": "0.1", "elinewidth": 0.8}
    heights = [e.value for e in estimates]
    axes.bar(list(bars), heights, width, yerr=_errors(estimates), label=label, error_kw=error_kw, **_fill(style))


def by_dataset(content: Content) -> Any:
    """As the paper's figures 1b and 9: scores on each dataset, and above them the change in percent."""
    found = content.by_dataset
    if not found:
        return None
    figure = _figure(11, 3.8 * len(found))
    for axes, one in zip(figure.subplots(len(found), squeeze=False).flat, found, strict=True):
        _scores_by_dataset(axes, one, content)
    return figure


def _scores_by_dataset(axes: Any, found: ByDataset, content: Content) -> None:
    for label, places in _side_by_side(list(found.series), len(found.datasets)).items():
        at = {name: x for x, name in zip(places, found.datasets, strict=True) if (name, label) in found.scores}
        bars = {x: found.scores[name, label] for name, x in at.items()}
        _upright(axes, bars, content.styles[found.series[label]], label, 0.8 / len(found.series))
    for x, name in enumerate(found.datasets):
        beside = [found.scores[name, label] for label in found.series if (name, label) in found.scores]
        top = max(0.0, *(e.high if e.has_interval else e.value for e in beside))
        axes.text(x, top, found.changes(name), ha="center", va="bottom", fontsize=7)
    axes.axhline(0, color="0.3", lw=0.8)
    axes.grid(axis="x", visible=False)
    axes.set_xticks(range(len(found.datasets)), list(found.datasets), rotation=30, ha="right")
    axes.set_ylabel(content.units(found.datasets))
    axes.set_title(f"{found.group.title} ({found.group.source}); above: difference from {found.group.baseline}")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def runtime(content: Content) -> Any:
    return _seconds(content, content.speeds)


def runtime_by_interval(content: Content) -> Any:
    return _seconds(content, content.interval_speeds)


def _seconds(content: Content, speeds: Sequence[Speed]) -> Any:
    if not speeds:
        return None
    figure = _figure(6, 0.4 * len(speeds) + 1.3)
    axes = figure.subplots()
    _bars(axes, [s.series for s in speeds], [s.seconds for s in speeds], [content.styles[s.series] for s in speeds])
    axes.set(xlabel="seconds for a million steps")
    setting = f"{speeds[0].dataset}, {speeds[0].device}, {speeds[0].company}"
    figure.suptitle("\n".join(textwrap.wrap(setting, 75)), fontsize=9)
    return figure


MOST_PANELS = 6


def last_and_best(content: Content) -> Any:
    all_rows = [row for row in content.main.rows if row.average] or list(content.main.rows)
    rows = all_rows[:MOST_PANELS]
    labels = [label for label in content.main.labels if any(label in row.cells for row in rows)]
    if not labels:
        return None
    columns = min(3, len(rows))
    lines = -(-len(rows) // columns)
    figure = _figure(4 * columns, (0.3 * min(len(labels), MOST_DRAWN) + 1.2) * lines + 0.6)
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for spare in panels[len(rows) :]:
        spare.set_axis_off()
    labels = _drawn(figure, labels)
    for axes, row in zip(panels, rows, strict=False):
        cells = row.comparable()
        for y, label in enumerate(reversed(labels)):
            if label in cells:
                cell, colour = cells[label], content.style_of_label(label).colour
                axes.plot([cell.last.value, cell.best.value], [y, y], color=colour, lw=2, alpha=0.5)
                axes.plot(cell.last.value, y, "o", color=colour)
                axes.plot(cell.best.value, y, "o", color=colour, mfc="white")
        axes.set_yticks(range(len(labels)), list(reversed(labels)))
        axes.set_title(row.name)
    which = f"; the first {len(rows)} of {len(all_rows)}" if len(all_rows) > len(rows) else ""
    figure.supxlabel(f"last (filled) and best (hollow) evaluation{which}", fontsize=9)
    return figure
