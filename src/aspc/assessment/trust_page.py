"""The trust report as one self-contained page. Every word from a file is escaped."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

import numpy as np

from aspc.assessment.trust_report import Report
from aspc.data.dataset_page import INK, SHOWN_ACTIONS, STYLE, png, principal_components, write_action_title

GREY = "#a0aec0"
MARKS = {"good": "✓", "look": "●", "worry": "▲", "unknown": "–"}
COLOURS = {"good": "#2f855a", "look": "#b7791f", "worry": "#c53030", "unknown": "#718096"}
OWN_STYLE = (
    ".verdict{font-size:1.15rem;border-left:.3rem solid #2b6cb0;padding:.3rem .8rem}th{text-align:left}"
    + "".join(f".{level}{{color:{colour}}}" for level, colour in COLOURS.items())
)

Picture = tuple[str, Callable[[Any, Report], None], tuple[str, ...]]


def page(report: Report, observations: np.ndarray) -> str:
    """The page as text; `observations` are the states that the report looked at."""
    title = html.escape(f"Trust report: {dict(report.facts)['policy']}")
    rows = "".join(f"<tr><td>{html.escape(k)}</td><td>{html.escape(v)}</td></tr>" for k, v in report.facts)
    findings = "".join(
        f'<li><b class="{f.level}">{MARKS[f.level]} {html.escape(f.about)}</b>: {html.escape(f.text)}</li>'
        for f in report.findings
    )
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head += f"<title>{title}</title><style>{STYLE}{OWN_STYLE}</style>"
    return (
        f'<!doctype html><html lang="en"><head>{head}</head><body><h1>{title}</h1>'
        f'<p class="verdict">{html.escape(report.verdict)}</p><ul>{findings}</ul>'
        f"<p>✓ as in the data, ● look at it, ▲ alarm, – not known.</p><table>{rows}</table>"
        f"<h2>Pictures</h2>{pictures(report, observations)}{worst_states(report)}{all_numbers(report)}</body></html>\n"
    )


def pictures(report: Report, observations: np.ndarray) -> str:
    kinds: list[Picture] = [
        (
            "Distance of the policy's actions, and of the logged ones, to the nearest action logged in similar states; "
            "right: the same by dimension, mean",
            _distances,
            ("policy_distance",),
        ),
        ("Actions of the policy (blue) and of the data (grey) within their bounds", _actions, ("policy_actions",)),
        ("Share of actions at a bound, by dimension", _saturation, ("policy_saturation",)),
        ("Q of logged actions against the return logged from there; on the line both agree", _values, ("q",)),
        (
            "States where the critics disagree, on the first two principal components of the observations",
            lambda figure, report: _disagreement(figure, report, observations),
            ("spread",),
        ),
    ]
    figures = ""
    for caption, draw, needs in kinds:
        if all(name in report.arrays for name in needs):
            figures += (
                f'<figure><img alt="{html.escape(caption)}" src="data:image/png;base64,{png(draw, report)}">'
                f"<figcaption>{html.escape(caption)}</figcaption></figure>"
            )
    return figures


def _distances(figure: Any, report: Report) -> None:
    left, right = figure.subplots(1, 2)
    policy, data = report.arrays["policy_distance"], report.arrays["data_distance"]
    bins = np.linspace(0, max(policy.max(), data.max(), 1e-6), 40)
    left.hist(data, bins=bins, color=GREY, label="data")
    left.hist(policy, bins=bins, color=INK, alpha=0.6, label="policy")
    left.set(xlabel="distance (bounds are ±1)", ylabel="states")
    left.legend(frameon=False)
    _bars(right, report.arrays["policy_by_dimension"].mean(0), report.arrays["data_by_dimension"].mean(0))
    right.set(xlabel="action dimension")


def _bars(axes: Any, policy: np.ndarray, data: np.ndarray) -> None:
    places = np.arange(len(policy))
    axes.bar(places - 0.2, data, 0.4, color=GREY, label="data")
    axes.bar(places + 0.2, policy, 0.4, color=INK, label="policy")
    axes.set_xticks(places)
    axes.legend(frameon=False)


def _actions(figure: Any, report: Report) -> None:
    policy, data, names = report.arrays["policy_actions"], report.arrays["data_actions"], report.action_names
    shown = min(policy.shape[1], SHOWN_ACTIONS)
    columns = min(shown, 6)
    for i, axes in enumerate(figure.subplots(-(-shown // columns), columns, squeeze=False).flat):
        if i >= shown:
            axes.set_axis_off()
            continue
        axes.hist(data[:, i], bins=40, range=(-1, 1), color=GREY)
        axes.hist(policy[:, i], bins=40, range=(-1, 1), color=INK, alpha=0.6)
        write_action_title(axes, names, i)
        axes.tick_params(labelsize=6)


def _saturation(figure: Any, report: Report) -> None:
    axes = figure.subplots()
    _bars(axes, report.arrays["policy_saturation"], report.arrays["data_saturation"])
    axes.set(xlabel="action dimension", ylabel="share at a bound", ylim=(0, 1))


def _values(figure: Any, report: Report) -> None:
    axes = figure.subplots()
    returns, q = report.arrays["returns"], report.arrays["q"]
    ends = [min(returns.min(), q.min()), max(returns.max(), q.max())]
    axes.plot(ends, ends, color=GREY, lw=1)
    axes.scatter(returns, q, s=4, color=INK, alpha=0.4, rasterized=True)
    axes.set(xlabel="logged return", ylabel="Q")


def _disagreement(figure: Any, report: Report, observations: np.ndarray) -> None:
    axes = figure.subplots()
    points, spread = principal_components(observations), report.arrays["spread"]
    if points.shape[1] == 1:
        points = np.concatenate([points, np.zeros_like(points)], axis=1)
    order = np.argsort(spread)  # the worst on top
    dots = axes.scatter(points[order, 0], points[order, 1], c=spread[order], s=5, cmap="viridis", rasterized=True)
    axes.set(xlabel="first component", ylabel="second component")
    figure.colorbar(dots, ax=axes, label="spread of Q(s, π(s))")


def worst_states(report: Report) -> str:
    worst = report.numbers.get("disagreeing", {}).get("worst", [])
    if not worst:
        return ""
    names, counts = ("row", "episode", "step", "spread", "q"), ("row", "episode", "step")
    head = "".join(f"<th>{name}</th>" for name in names)
    shown = [{**w, **{name: w[name] + 1 for name in counts}} for w in worst]
    body = "".join("<tr>" + "".join(f"<td>{w[name]:.6g}</td>" for name in names) + "</tr>" for w in shown)
    note = "<p>Rows, episodes and steps are counted from 1, as in <code>aspc data info</code>.</p>"
    return f"<h2>Where the critics disagree most</h2>{note}<table><tr>{head}</tr>{body}</table>"


def all_numbers(report: Report) -> str:
    """Every number of the report, as `--json` has it."""
    rows = ""
    for look, numbers in report.numbers.items():
        for name, value in numbers.items():
            if name != "worst":
                rows += f"<tr><td>{html.escape(f'{look}.{name}')}</td><td>{html.escape(_shown(value))}</td></tr>"
    return f"<details><summary>All numbers</summary><table>{rows}</table></details>"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_shown(v)}" for k, v in value.items())
    if isinstance(value, list):
        return " ".join(_shown(v) for v in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
