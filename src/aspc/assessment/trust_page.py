"""The trust report as one self-contained HTML page."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aspc import page_parts
from aspc.assessment.trust_report import TrustReport
from aspc.data.roles import strip_unit, unit_of
from aspc.errors import printable
from aspc.page_parts import ACCENT_COLOR, Picture, draw_png
from aspc.text import format_number

GRAY = "#a0aec0"
MAX_BARS = 30
MARKS = {"good": "✓", "look": "●", "worry": "▲", "unknown": "–"}
COLORS = {"good": "#2f855a", "look": "#b7791f", "worry": "#c53030", "unknown": "#718096"}

Figure = tuple[str, Callable[[Any, TrustReport], None], str]  # caption, function, and the array that it needs


def render_page(report: TrustReport, observations: np.ndarray) -> str:
    """Render the page as HTML; `observations` are the inspected states."""
    return page_parts.render_template(
        "trust_page.html",
        title=f"Trust report: {dict(report.description)['policy']}",
        verdict=report.verdict,
        checks=report.checks,
        facts=report.description,
        marks=MARKS,
        colors=COLORS,
        pictures=draw_pictures(report, observations),
        choices=choice_shares(report),
        worst_states=worst_states(report),
        numbers=all_numbers(report),
    )


def draw_pictures(report: TrustReport, observations: np.ndarray) -> list[Picture]:
    """Draw the figures for which the report has data."""
    size = len(report.arrays["action_low"])
    shown = f" (the {MAX_BARS} largest of {size})" if size > MAX_BARS else ""
    kinds: list[Figure] = [
        (
            "Distance from the policy's actions (blue), and from the logged ones (gray), to the nearest action logged "
            "in similar states",
            _draw_distances,
            "policy_distance",
        ),
        (
            f"Mean of this distance by action{shown}; bar labels are in the action's unit",
            _draw_distance_bars,
            "policy_by_dimension",
        ),
        ("Actions of the policy (blue) and of the data (gray) within their bounds", _draw_actions, "policy_actions"),
        (f"Actions of the policy (blue) and of the data (gray) at a bound{shown}", _draw_saturation, "saturation"),
        ("Q of logged actions and the return that followed; on the line, the two are equal", _draw_values, "q"),
        (
            "Critic disagreement by state, on the first two principal components of the observations",
            lambda figure, report: _draw_disagreement(figure, report, observations),
            "spread",
        ),
    ]
    drawn = [kind for kind in kinds if kind[2] in report.arrays and np.any(report.arrays[kind[2]])]  # no empty charts
    return [Picture(caption, draw_png(draw, report)) for caption, draw, _ in drawn]


def _draw_distances(figure: Any, report: TrustReport) -> None:
    axes = figure.subplots()
    policy, data = report.arrays["policy_distance"], report.arrays["data_distance"]
    bins = np.linspace(0, max(policy.max(), data.max(), 1e-6), 40)
    axes.hist(data, bins=bins, color=GRAY, label="data")
    axes.hist(policy, bins=bins, color=ACCENT_COLOR, alpha=0.6, label="policy")
    axes.set(xlabel="distance (action bounds scaled to ±1)", ylabel="states")
    axes.legend(frameon=False)


def _draw_bars(
    figure: Any, report: TrustReport, bars: np.ndarray, labels: Sequence[Sequence[str]], xlabel: str
) -> None:
    """Draw two bars per action, one for the policy and one for the data, labeled with the action's name.

    Args:
        figure: The figure.
        report: The report, for the names.
        bars: Lengths [2, act] of the policy's and of the data's bars.
        labels: Text to draw at the end of each bar, in the same order as `bars`.
        xlabel: Label of the x axis.
    """
    shown = np.sort(np.argsort(-bars.max(axis=0), kind="stable")[:MAX_BARS])
    figure.set_size_inches(10, 0.9 + 0.5 * len(shown))
    axes, positions = figure.subplots(), np.arange(len(shown))
    for lengths, texts, color, offset in zip(bars, labels, (ACCENT_COLOR, GRAY), (-0.2, 0.2), strict=True):
        drawn = axes.barh(positions + offset, lengths[shown], 0.4, color=color)
        axes.bar_label(drawn, [texts[i] for i in shown], padding=4, fontsize=8, parse_math=False)
    names = [strip_unit(printable(report.action_names[i])) if report.action_names else f"action {i + 1}" for i in shown]
    axes.set_yticks(positions, [textwrap.shorten(name, 40, placeholder="…") for name in names], parse_math=False)
    axes.invert_yaxis()
    axes.set(xlabel=xlabel, xmargin=0.15)  # space for the labels


def _draw_distance_bars(figure: Any, report: TrustReport) -> None:
    bars = np.stack([report.arrays[f"{kind}_by_dimension"].mean(0) / 2 for kind in ("policy", "data")])
    units = [unit_of(printable(name)) for name in report.action_names] or [""] * bars.shape[1]
    widths = (bars * (report.arrays["action_high"] - report.arrays["action_low"])).tolist()
    labels = [[f"{format_number(width)} {unit}" for width, unit in zip(row, units, strict=True)] for row in widths]
    _draw_bars(figure, report, bars, labels, "mean distance, as a fraction of the range")


def _draw_actions(figure: Any, report: TrustReport) -> None:
    arrays = report.arrays
    layers = [(arrays["data_actions"], GRAY, 1.0), (arrays["policy_actions"], ACCENT_COLOR, 0.6)]
    page_parts.action_histograms(
        figure, report.action_names, (arrays["action_low"], arrays["action_high"]), layers, "states"
    )


def _draw_saturation(figure: Any, report: TrustReport) -> None:
    bars = report.arrays["saturation"]
    labels = [[f"{100 * fraction:.0f} %" for fraction in row] for row in bars]
    _draw_bars(figure, report, bars, labels, "fraction at a bound")


def _draw_values(figure: Any, report: TrustReport) -> None:
    axes = figure.subplots()
    returns, q = report.arrays["returns"], report.arrays["q"]
    ends = [min(returns.min(), q.min()), max(returns.max(), q.max())]
    axes.plot(ends, ends, color=GRAY, lw=1)
    axes.scatter(returns, q, s=4, color=ACCENT_COLOR, alpha=0.4, rasterized=True)
    axes.set(xlabel="logged return", ylabel="Q")


def _draw_disagreement(figure: Any, report: TrustReport, observations: np.ndarray) -> None:
    axes = figure.subplots()
    points, spread = page_parts.principal_components(observations), report.arrays["spread"]
    order = np.argsort(spread)  # draw the largest spread on top
    dots = axes.scatter(points[order, 0], points[order, 1], c=spread[order], s=5, cmap="viridis", rasterized=True)
    axes.set(xlabel="first component", ylabel="second component")
    figure.colorbar(dots, ax=axes, label="spread of Q(s, π(s))")


def choice_shares(report: TrustReport) -> list[tuple[str, str, str, str]]:
    """Return how often the policy and the log choose each option of each discrete action."""
    choices: dict[str, Any] = report.numbers.get("distance", {}).get("choices", {})
    return [
        (name, option, f"{100 * share:.1f} %", f"{100 * found['data'][option]:.1f} %")
        for name, found in choices.items()
        for option, share in found["policy"].items()
    ]


def worst_states(report: TrustReport) -> list[dict[str, str]]:
    """Return the states where the critics disagree most, with formatted numbers."""
    worst = report.numbers.get("disagreeing", {}).get("worst", [])
    return [{name: _format(value) for name, value in state.items()} for state in worst]


def all_numbers(report: TrustReport) -> list[tuple[str, str]]:
    """Return the names and formatted values of all numbers in the report, except the worst states."""
    return [
        (f"{check}.{name}", _format(value))
        for check, numbers in report.numbers.items()
        for name, value in numbers.items()
        if name != "worst"
    ]


def _format(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_format(v)}" for k, v in value.items())
    if isinstance(value, list):
        return " ".join(_format(v) for v in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return format_number(value) if isinstance(value, float) else str(value)
