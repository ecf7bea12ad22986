"""Figures of a report as files (PNG and SVG), for papers and slides."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aspc.policy import write_atomically
from aspc.report.content import Content
from aspc.report.curves import Curve, pick
from aspc.report.style import QUALITY_COLOURS, TASK_COLOURS, Style
from aspc.report.view import MEASURES, QUALITIES, in_order, quality_of, task_of

LINES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
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
        "alpha_by_quality": alpha_by_quality,
        "alpha_by_task": alpha_by_task,
        "ablations": ablations,
        "runtime": runtime,
        "last_and_best": last_and_best,
    }
    for name, make in makers.items():
        figure = make(content)
        if figure is not None:
            yield name, figure


def _figure(width: float, height: float, **more: Any) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", **more)


def _line(style: Style) -> dict[str, Any]:
    return {"color": style.colour, "ls": LINES[style.dash], "lw": 1.6}


def profiles(content: Content) -> Any:
    found = content.aggregates
    if found is None:
        return None
    figure = _figure(6, 4)
    axes = figure.subplots()
    for label in found.labels:
        style = content.style_of_label(label)
        value, low, high = found.profiles[label]
        axes.plot(found.thresholds, value, label=label, **_line(style))
        if np.isfinite(low).all():
            axes.fill_between(found.thresholds, low, high, color=style.colour, alpha=0.15, lw=0)
    axes.set(xlabel="score τ", ylabel="share of runs with score > τ", ylim=(0, 1))
    axes.set_title(f"Performance profiles on {len(found.datasets)} datasets")
    axes.legend()
    return figure


def improvement(content: Content) -> Any:
    found = content.aggregates
    if found is None:
        return None
    figure = _figure(6, 0.5 * len(found.improvement) + 1.3)
    axes = figure.subplots()
    labels = list(found.improvement)
    _bars(axes, labels, [found.improvement[label] for label in labels], [content.style_of_label(x) for x in labels])
    axes.axvline(0.5, color="0.4", lw=1)
    axes.set(xlim=(0, 1), xlabel=f"P({found.reference} scores more than …)")
    return figure


def _bars(axes: Any, labels: Sequence[str], estimates: Sequence[Any], styles: Sequence[Style]) -> None:
    """Horizontal bars with intervals, the first on top."""
    places = np.arange(len(labels))[::-1]
    errors = [[_end(e.value - e.low) for e in estimates], [_end(e.high - e.value) for e in estimates]]
    axes.barh(
        places,
        [e.value for e in estimates],
        xerr=errors,
        color=[s.colour for s in styles],
        height=0.65,
        error_kw={"ecolor": "0.25", "lw": 1},
    )
    axes.set_yticks(places, list(labels))
    axes.grid(axis="y", visible=False)


def _end(length: float) -> float:
    return max(length, 0.0) if math.isfinite(length) else 0.0


def radar(content: Content) -> Any:
    found = content.radar
    if found is None:
        return None
    figure = _figure(5.5, 5)
    axes = figure.add_subplot(projection="polar")
    angles = np.linspace(0, 2 * np.pi, len(found.tasks), endpoint=False)
    for label, values in found.values.items():
        style = content.style_of_label(label)
        axes.plot([*angles, angles[0]], [*values, values[0]], label=label, **_line(style))
        axes.fill([*angles, angles[0]], [*values, values[0]], color=style.colour, alpha=0.06)
    axes.set_xticks(angles, list(found.tasks))
    axes.set_yticks([0.25, 0.5, 0.75, 1], [])
    figure.legend(loc="outside lower center", ncols=4)
    return figure


def _grid(panels: int, columns: int, width: float = 3.2, height: float = 2.4) -> tuple[Any, list[Any]]:
    """Panels at fixed places: the automatic layout takes a minute where there are forty."""
    from matplotlib.figure import Figure

    columns = min(columns, panels)
    rows = -(-panels // columns)
    size = (width * columns, height * rows + 0.6)
    figure = Figure(figsize=size)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    margins = {"left": 0.6 / size[0], "right": 1 - 0.15 / size[0], "top": 1 - 0.5 / size[1], "bottom": 0.9 / size[1]}
    figure.subplots_adjust(**margins, wspace=0.75 / (width - 0.75), hspace=0.75 / (height - 0.75))
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


def _legend(figure: Any, axes: Iterable[Any]) -> None:
    handles: Mapping[str, Any] = {}
    for one in axes:
        handles = {**dict(zip(*reversed(one.get_legend_handles_labels()), strict=True)), **handles}
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=min(6, len(handles)))


def learning_curves(content: Content) -> Any:
    curves = [c for c in pick(content.curves, "score") if c.series in content.main_series]
    datasets = [name for name in content.datasets if any(c.dataset == name for c in curves)]
    if not datasets:
        return None
    figure, panels = _grid(len(datasets), 6)
    for axes, name in zip(panels, datasets, strict=True):
        for curve in pick(curves, "score", dataset=name):
            _draw(axes, curve, content.styles[curve.series], curve.series)
        axes.set_title(name)
        axes.set_ylabel(MEASURES[content.measures[name]])
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
        axes.set(title=task, yscale="log", ylabel="alpha", xlabel="steps")
    _legend(figure, panels)
    return figure


def alpha_by_task(content: Content) -> Any:
    """A line for each dataset that has no quality in its name, in the colour of its task."""
    curves = [c for c in pick(content.curves, "scale", content.scale_series) if not quality_of(c.dataset)]
    if not curves:
        return None
    figure = _figure(7, 4.5)
    axes = figure.subplots()
    tasks = list(dict.fromkeys(task_of(name) for name in in_order(c.dataset for c in curves)))
    named: set[str] = set()
    for curve in curves:
        task = task_of(curve.dataset)
        colour = TASK_COLOURS[tasks.index(task) % len(TASK_COLOURS)]
        axes.plot(curve.steps, curve.mean, color=colour, lw=1.3, label=None if task in named else task)
        named.add(task)
    axes.set(yscale="log", ylabel="alpha", xlabel="steps")
    figure.legend(loc="outside right upper")
    return figure


def ablations(content: Content) -> Any:
    found = content.ablations
    if not found:
        return None
    figure, panels = _grid(len(found), 3, 4.2, 3)
    for axes, ablation in zip(panels, found, strict=True):
        labels = list(ablation.series)
        width = 0.8 / len(labels)
        for i, label in enumerate(labels):
            estimates = [ablation.percent.get((domain, label)) for domain in ablation.domains]
            places = [x + (i - (len(labels) - 1) / 2) * width for x, e in enumerate(estimates) if e is not None]
            shown = [e for e in estimates if e is not None]
            errors = [[_end(e.value - e.low) for e in shown], [_end(e.high - e.value) for e in shown]]
            axes.bar(
                places,
                [e.value for e in shown],
                width,
                yerr=errors,
                label=label,
                color=content.styles[ablation.series[label]].colour,
                error_kw={"lw": 0.8},
            )
        axes.axhline(0, color="0.3", lw=0.8)
        axes.set_xticks(range(len(ablation.domains)), list(ablation.domains))
        axes.set_title(f"{ablation.group.title}\n% difference from {ablation.group.baseline}")
        axes.legend(fontsize=7)
    return figure


def runtime(content: Content) -> Any:
    speeds = content.speeds
    if not speeds:
        return None
    figure = _figure(6, 0.4 * len(speeds) + 1.3)
    axes = figure.subplots()
    _bars(axes, [s.series for s in speeds], [s.seconds for s in speeds], [content.styles[s.series] for s in speeds])
    first = speeds[0]
    axes.set(xlabel="seconds for a million steps")
    axes.set_title(f"{first.dataset}, {first.device}, {first.together} run(s) side by side")
    return figure


def last_and_best(content: Content) -> Any:
    rows = [row for row in content.main.rows if row.average] or list(content.main.rows)
    rows = rows[:6]
    labels = [label for label in content.main.labels if any(label in row.cells for row in rows)][:12]
    if not labels:
        return None
    figure, panels = _grid(len(rows), 3, 4, 0.3 * len(labels) + 1.2)
    for axes, row in zip(panels, rows, strict=True):
        cells = row.comparable()
        for y, label in enumerate(reversed(labels)):
            if label in cells:
                cell, colour = cells[label], content.style_of_label(label).colour
                axes.plot([cell.last.value, cell.best.value], [y, y], color=colour, lw=2, alpha=0.5)
                axes.plot(cell.last.value, y, "o", color=colour)
                axes.plot(cell.best.value, y, "o", color=colour, mfc="white")
        axes.set_yticks(range(len(labels)), list(reversed(labels)))
        axes.set_title(row.name)
    figure.supxlabel("last (filled) and best (hollow) evaluation", fontsize=9, y=0.02)
    return figure
