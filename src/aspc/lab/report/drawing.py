"""Matplotlib building blocks for the report's figures: styles, panels, axes, bars and legends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation

from aspc.lab.report.curves import Curve
from aspc.lab.report.statistics import IntervalEstimate
from aspc.lab.report.styles import MAX_DRAWN, SeriesStyle

LINES: Mapping[str, Any] = {
    "solid": "-",
    "dash": "--",
    "dot": ":",
    "dashdot": "-.",
    "longdash": (0, (9, 3)),
    "longdashdot": (0, (9, 3, 2, 3)),
}
# Hatches distinguish bars of the same color, as dashes distinguish lines.
HATCHES = {
    "solid": "",
    "dash": "///",
    "dot": "...",
    "dashdot": "xxx",
    "longdash": "\\\\\\",
    "longdashdot": "+++",
}
RC_PARAMS: Any = {
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
    "text.parse_math": False,  # names can contain $
    "svg.hashsalt": "aspc",  # makes the files reproducible
}


def make_figure(width: float, height: float) -> Figure:
    """Return a figure with an automatic layout."""
    return Figure(figsize=(width, height), layout="constrained")


def make_panels(
    panels: int, columns: int, width: float = 3.2, height: float = 2.4, below: float = 0.0
) -> tuple[Figure, list[Any]]:
    """Return a figure and its panels, which form a grid with fixed positions.

    An automatic layout would take a minute for forty panels.

    Args:
        panels: Number of panels.
        columns: Maximum number of columns.
        width: Width of a panel in inches.
        height: Height of a panel in inches.
        below: Space below each panel for its legend, in inches.
    """
    columns = min(columns, panels)
    rows = -(-panels // columns)
    size = (width * columns, (height + below) * rows + 0.6)
    figure = Figure(figsize=size)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    margins = {"left": 0.75 / size[0], "right": 1 - 0.15 / size[0], "top": 1 - 0.5 / size[1]}
    gaps = {"wspace": 0.85 / (width - 0.85), "hspace": (0.75 + below) / (height - 0.75)}
    figure.subplots_adjust(**margins, **gaps, bottom=(0.9 + below) / size[1])
    for unused in axes[panels:]:
        unused.set_axis_off()
    return figure, axes[:panels]


def limit_series(figure: Figure, names: Iterable[str]) -> list[str]:
    """Return the first MAX_DRAWN names. If there are more, note this in the figure's title."""
    names = list(names)
    if len(names) > MAX_DRAWN:
        has_layout = figure.get_layout_engine() is not None
        position: dict[str, Any] = {} if has_layout else {"y": 1 - 0.08 / figure.get_figheight(), "va": "top"}
        title = f"The first {MAX_DRAWN} of {len(names)} series; the HTML report can show all of them."
        figure.suptitle(title, fontsize=8, **position)
    return names[:MAX_DRAWN]


def line_style(style: SeriesStyle) -> dict[str, Any]:
    return {"color": style.color, "ls": LINES[style.dash], "lw": 1.6}


def fill_style(style: SeriesStyle) -> dict[str, Any]:
    return {"color": style.color, "hatch": HATCHES[style.dash], "edgecolor": "white", "lw": 0}


def draw_curve(axes: Any, curve: Curve, style: SeriesStyle, label: str) -> None:
    """Draw a curve with a band of one standard deviation."""
    axes.plot(curve.steps, curve.mean, label=label, **line_style(style))
    if curve.n > 1:
        low, high = curve.mean - curve.std, curve.mean + curve.std
        if curve.metric == "scale":  # the axis is logarithmic
            low = np.maximum(low, curve.mean * 0.01)
        axes.fill_between(curve.steps, low, high, color=style.color, alpha=0.15, lw=0)


def draw_horizontal_bars(
    axes: Any, labels: Sequence[str], estimates: Sequence[IntervalEstimate], styles: Sequence[SeriesStyle]
) -> None:
    """Draw a bar with an interval for each label, from top to bottom."""
    positions = np.arange(len(labels))[::-1]
    for y, estimate, style in zip(positions, estimates, styles, strict=True):
        error_kw = {"ecolor": "0.25", "elinewidth": 1}
        axes.barh(y, estimate.value, xerr=_error_bars([estimate]), height=0.65, error_kw=error_kw, **fill_style(style))
    axes.set_yticks(positions, list(labels))
    axes.grid(axis="y", visible=False)


def draw_vertical_bars(
    axes: Any, bars: Mapping[float, IntervalEstimate], style: SeriesStyle, label: str, width: float
) -> None:
    """Draw bars with intervals at given positions."""
    estimates = list(bars.values())
    error_kw = {"ecolor": "0.1", "elinewidth": 0.8}
    heights = [e.value for e in estimates]
    errors = _error_bars(estimates)
    axes.bar(list(bars), heights, width, yerr=errors, label=label, error_kw=error_kw, **fill_style(style))


def _error_bars(estimates: Sequence[IntervalEstimate]) -> list[list[float]]:
    return [[_error_length(e.value - e.low) for e in estimates], [_error_length(e.high - e.value) for e in estimates]]


def _error_length(length: float) -> float:
    return max(length, 0.0) if math.isfinite(length) else 0.0


def group_positions(labels: Sequence[str], groups: int) -> dict[str, list[float]]:
    """Return the positions of each label's bars in groups centered at 0, 1, 2, …"""
    width = 0.8 / len(labels)
    return {label: [x + (i - (len(labels) - 1) / 2) * width for x in range(groups)] for i, label in enumerate(labels)}


def draw_legend(figure: Figure, axes: Iterable[Any]) -> None:
    """Draw one legend for all panels at the bottom of a figure."""
    handles: Mapping[str, Any] = {}
    for panel in axes:
        handles = {**dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True)), **handles}
    if handles:
        figure.legend(list(handles.values()), list(handles), loc="lower center", ncols=min(6, len(handles)))


def draw_legend_below(axes: Any, loc: str = "upper center", ncols: int = 3) -> None:
    """Draw the legend of one panel below it."""
    below = axes.transAxes + ScaledTranslation(0, -0.4, axes.figure.dpi_scale_trans)
    position = {"loc": loc, "bbox_to_anchor": (0.5 if "center" in loc else 0, 0), "bbox_transform": below}
    axes.legend(**position, borderaxespad=0, ncols=ncols, fontsize=7, columnspacing=1.2, handlelength=2.4)


def set_log_axis(axes: Any) -> None:
    """Make the y axis logarithmic, with plain numbers as labels, unless the values span less than a factor of three.

    Matplotlib's default labels are math text, which is disabled here. A logarithmic axis with a narrow range would have
    no labels.
    """
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
    """Return three to about nine round numbers between `low` and `high`, if possible powers of ten."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    step = 1 + (last - first) // 9
    for factors in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)):
        ticks = [float(f"{f}e{power}") for power in range(first, last + 1, step) for f in factors]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) >= 3:
            break
    return inside
