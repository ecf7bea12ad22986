"""The trust report as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aspc.assessment.trust_report import TrustReport
from aspc.page_parts import ACCENT_COLOR, Picture, action_panels, draw_png, principal_components, render_template

GRAY = "#a0aec0"
MARKS = {"good": "✓", "look": "●", "worry": "▲", "unknown": "–"}
COLORS = {"good": "#2f855a", "look": "#b7791f", "worry": "#c53030", "unknown": "#718096"}

Figure = tuple[str, Callable[[Any, TrustReport], None], tuple[str, ...]]


def render_page(report: TrustReport, observations: np.ndarray) -> str:
    """Render the page as HTML; `observations` are the inspected states."""
    return render_template(
        "trust_page.html",
        title=f"Trust report: {dict(report.description)['policy']}",
        verdict=report.verdict,
        checks=report.checks,
        facts=report.description,
        marks=MARKS,
        colors=COLORS,
        pictures=draw_pictures(report, observations),
        worst_states=worst_states(report),
        numbers=all_numbers(report),
    )


def draw_pictures(report: TrustReport, observations: np.ndarray) -> list[Picture]:
    """Draw the figures for which the report has data."""
    kinds: list[Figure] = [
        (
            "Left: distance from the policy's actions and from the logged actions to the nearest action logged in "
            "similar states; right: mean per dimension",
            _draw_distances,
            ("policy_distance",),
        ),
        ("Actions of the policy (blue) and of the data (gray) within their bounds", _draw_actions, ("policy_actions",)),
        ("Fraction of actions at a bound, by dimension", _draw_saturation, ("policy_saturation",)),
        ("Q of logged actions against their logged returns; on the line, both are equal", _draw_values, ("q",)),
        (
            "Critic disagreement by state, on the first two principal components of the observations",
            lambda figure, report: _draw_disagreement(figure, report, observations),
            ("spread",),
        ),
    ]
    return [
        Picture(caption, draw_png(draw, report))
        for caption, draw, needs in kinds
        if all(name in report.arrays for name in needs)
    ]


def _draw_distances(figure: Any, report: TrustReport) -> None:
    left, right = figure.subplots(1, 2)
    policy, data = report.arrays["policy_distance"], report.arrays["data_distance"]
    bins = np.linspace(0, max(policy.max(), data.max(), 1e-6), 40)
    left.hist(data, bins=bins, color=GRAY, label="data")
    left.hist(policy, bins=bins, color=ACCENT_COLOR, alpha=0.6, label="policy")
    left.set(xlabel="distance (bounds are ±1)", ylabel="states")
    left.legend(frameon=False)
    _draw_bars(right, report.arrays["policy_by_dimension"].mean(0), report.arrays["data_by_dimension"].mean(0))
    right.set(xlabel="action dimension")


def _draw_bars(axes: Any, policy: np.ndarray, data: np.ndarray) -> None:
    positions = np.arange(len(policy))
    axes.bar(positions - 0.2, data, 0.4, color=GRAY, label="data")
    axes.bar(positions + 0.2, policy, 0.4, color=ACCENT_COLOR, label="policy")
    axes.set_xticks(positions)
    axes.legend(frameon=False)


def _draw_actions(figure: Any, report: TrustReport) -> None:
    policy, data, names = report.arrays["policy_actions"], report.arrays["data_actions"], report.action_names
    for i, axes in enumerate(action_panels(figure, names, policy.shape[1])):
        axes.hist(data[:, i], bins=40, range=(-1, 1), color=GRAY)
        axes.hist(policy[:, i], bins=40, range=(-1, 1), color=ACCENT_COLOR, alpha=0.6)


def _draw_saturation(figure: Any, report: TrustReport) -> None:
    axes = figure.subplots()
    _draw_bars(axes, report.arrays["policy_saturation"], report.arrays["data_saturation"])
    axes.set(xlabel="action dimension", ylabel="fraction at a bound", ylim=(0, 1))


def _draw_values(figure: Any, report: TrustReport) -> None:
    axes = figure.subplots()
    returns, q = report.arrays["returns"], report.arrays["q"]
    ends = [min(returns.min(), q.min()), max(returns.max(), q.max())]
    axes.plot(ends, ends, color=GRAY, lw=1)
    axes.scatter(returns, q, s=4, color=ACCENT_COLOR, alpha=0.4, rasterized=True)
    axes.set(xlabel="logged return", ylabel="Q")


def _draw_disagreement(figure: Any, report: TrustReport, observations: np.ndarray) -> None:
    axes = figure.subplots()
    points, spread = principal_components(observations), report.arrays["spread"]
    order = np.argsort(spread)  # draw the largest spread on top
    dots = axes.scatter(points[order, 0], points[order, 1], c=spread[order], s=5, cmap="viridis", rasterized=True)
    axes.set(xlabel="first component", ylabel="second component")
    figure.colorbar(dots, ax=axes, label="spread of Q(s, π(s))")


def worst_states(report: TrustReport) -> list[dict[str, float]]:
    """Return the states where the critics disagree most; rows, episodes and steps are counted from 1."""
    worst = report.numbers.get("disagreeing", {}).get("worst", [])
    counts = ("row", "episode", "step")
    return [{name: w[name] + (name in counts) for name in (*counts, "spread", "q")} for w in worst]


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
    return f"{value:.4g}" if isinstance(value, float) else str(value)
