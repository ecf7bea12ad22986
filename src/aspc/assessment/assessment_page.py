"""Render an assessment as a self-contained HTML page that starts with verdicts, their reasons and their numbers."""

from __future__ import annotations

from typing import Any

from aspc.assessment.assess import Assessment, PolicyAssessment
from aspc.assessment.assessment_text import (
    describe_agreement,
    describe_calibration,
    describe_estimate,
    describe_selection,
    format_probability,
    format_return,
    per_step,
)
from aspc.assessment.combination import CombinedDifference
from aspc.assessment.evidence import REWARD
from aspc.errors import printable
from aspc.page_parts import ACCENT_COLOR, Picture, draw_png, render_template
from aspc.text import format_interval, format_number

GRAY = "#718096"
MAX_DRAWN = 20


def render_page(assessment: Assessment) -> str:
    """Return the page as HTML."""
    tested = "the policy" if len(assessment.policies) == 1 else "any policy"
    page = render_template(
        "assessment_page.html",
        title=f"Is {tested} better than the controller logged in {assessment.dataset}?",
        recommendation=describe_selection(assessment),
        policies=[_card(assessment, policy) for policy in assessment.policies],
        episodes=assessment.episodes,
        calibration=describe_calibration(assessment),
        warnings=assessment.warnings,
        pictures=draw_pictures(assessment),
        estimates={
            f"{p.name}: {signal}": [(e.estimator, describe_estimate(e)) for e in p.of_signal(signal)]
            for p in assessment.policies
            for signal in assessment.controller
        },
        actions={
            p.name: [(a.name, format_number(a.policy, 3), format_number(a.data, 3), _percent(a.far)) for a in actions]
            for p in assessment.policies
            if (actions := p.support.actions())
        },
        choices={
            p.name: [
                (c.name, option, _percent(c.policy[option]), _percent(c.data[option]))
                for c in p.support.choices
                for option in c.policy
            ]
            for p in assessment.policies
            if p.support.choices
        },
        level=_percent(assessment.level),
        discount=f"{assessment.discount:g}",
        margin=format_number(assessment.margin, 3),
    )
    return page.replace(" %", "\N{NO-BREAK SPACE}%")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _card(assessment: Assessment, policy: PolicyAssessment) -> dict[str, Any]:
    return {
        "name": policy.name,
        "kind": policy.verdict.kind,
        "reason": policy.verdict.reason,
        "signals": [_signal(assessment, policy, combined) for combined in policy.differences.values()],
        "return_": format_return(assessment, policy),
        "support": policy.support.describe(),
        "agreement": describe_agreement(policy),
    }


def _signal(assessment: Assessment, policy: PolicyAssessment, combined: CombinedDifference) -> dict[str, str]:
    controller = format_number(per_step(assessment, assessment.controller[combined.signal].mean), 3)
    if not policy.has_estimate(combined.signal):
        return {
            "name": combined.signal,
            "difference": "unknown",
            "controller": controller,
            "probability": "no estimate",
        }
    value, low, high = (per_step(assessment, x) for x in (combined.difference, combined.low, combined.high))
    word = "better" if combined.signal == REWARD else "higher"
    return {
        "name": combined.signal,
        "difference": f"{format_number(value, 3, '+')} {format_interval(low, high, 3)}",
        "controller": controller,
        "probability": f"{word} with probability {format_probability(combined.probability_higher)}",
    }


def draw_pictures(assessment: Assessment) -> list[Picture]:
    """Draw the differences, one figure per signal with at least one estimate."""
    found = []
    for signal in assessment.controller:
        shown = [p for p in assessment.policies if p.has_estimate(signal)][:MAX_DRAWN]
        if shown:
            caption = (
                f"Difference in {signal} per step from the logged controller, with interval; each tick is one estimator"
            )
            found.append(Picture(caption, draw_png(_draw_differences, (assessment, signal, shown))))
    return found


def _draw_differences(figure: Any, subject: tuple[Assessment, str, list[PolicyAssessment]]) -> None:
    assessment, signal, shown = subject
    figure.set_size_inches(5, 1.2 + 0.4 * len(shown))  # legible on a phone
    axes, positions = figure.subplots(), range(len(shown), 0, -1)
    for y, policy in zip(positions, shown, strict=True):
        combined = policy.differences[signal]
        ends = [per_step(assessment, x) for x in (combined.low, combined.high)]
        axes.plot(ends, [y, y], color=ACCENT_COLOR, lw=4, alpha=0.5, solid_capstyle="butt")
        axes.plot([per_step(assessment, combined.difference)], [y], "o", color=ACCENT_COLOR)
        answers = [e.difference for e in policy.of_signal(signal) if e.silent_because is None]
        axes.plot([per_step(assessment, x) for x in answers], [y] * len(answers), "|", color=GRAY, ms=12)
    axes.axvline(0, color=GRAY, ls="--", lw=1)
    axes.set_yticks(list(positions), [printable(p.name) for p in shown], parse_math=False, fontsize=8)
    axes.set_ylim(0.4, len(shown) + 0.6)
    axes.set_xlabel(f"{printable(signal)} per step", parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
