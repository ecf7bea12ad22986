"""Text and JSON forms of an assessment, shared by the terminal, the JSON output and the page."""

from __future__ import annotations

import textwrap
from typing import Any

from aspc.assessment.assess import Assessment, PolicyAssessment
from aspc.assessment.combination import CombinedDifference
from aspc.assessment.evidence import REWARD, DifferenceEstimate
from aspc.errors import printable
from aspc.io import replace_nonfinite
from aspc.text import format_interval, format_number

WIDTH = 110


def format_probability(value: float) -> str:
    """Return a probability in percent, limited to "< 1 %" and "> 99 %"."""
    return "> 99 %" if value > 0.99 else "< 1 %" if value < 0.01 else f"{100 * value:.0f} %"


def describe_selection(assessment: Assessment) -> str:
    """Return the recommendation in one or two sentences."""
    chosen, count = assessment.select(), len(assessment.comparable)
    if chosen is None:
        return f"Recommended: none. Keep the current controller: {explain_none(assessment)}."
    among = "" if count == 1 else f" of {count} policies"
    bound = f"{format_number(per_step(assessment, assessment.selection_bound(chosen)), sign='+')} per step"
    allowing = "" if count == 1 else ", which accounts for the choice among them"
    return f"Recommended: {chosen.name}. It has the highest lower bound on the difference{among}: {bound}{allowing}."


def explain_none(assessment: Assessment) -> str:
    """Return the reason why no policy is recommended."""
    better, count = [p for p in assessment.policies if p.verdict.kind == "better"], len(assessment.comparable)
    if not better:
        return "no policy is both better and close to the logged actions"
    verb = "policy is" if len(better) == 1 else "policies are"
    chance = f"the best of {count} can look better by chance"
    return f"{len(better)} {verb} better, but {chance}; compare fewer policies, or use more data"


def describe_calibration(assessment: Assessment) -> str:
    """Return a sentence about the width of the intervals."""
    error, source = assessment.calibration
    if source is None:
        return "The intervals are not calibrated: how often they contain the true value has not been measured."
    share = f"{100 * error:.0f} % of the standard deviation of the logged returns"
    return (
        "The intervals account for a systematic error of fitted-Q evaluation and dynamics models "
        f"({share}, as measured in {source})."
    )


def describe_estimate(estimate: DifferenceEstimate) -> str:
    """Return the result of one estimator."""
    if estimate.silent_because is not None:
        return f"no estimate: {estimate.silent_because}"
    effective = estimate.effective_episodes
    worth = "" if effective is None else f", {effective:.0f} effective episodes"
    return f"{format_number(estimate.difference, sign='+')} ± {format_number(estimate.standard_error, digits=2)}{worth}"


def describe_agreement(policy: PolicyAssessment) -> str:
    """Describe how well the critics and the estimators agree on the reward."""
    parts, combined = [], policy.reward
    if (critics := policy.critics_agreement) is not None:
        parts.append(f"{critics[0]} of {critics[1]} critics agree on the sign")
    if len(combined.used) > 1:
        excess = combined.disagreement
        apart = f"differ by {format_number(excess, digits=2)} beyond" if excess else "agree within"
        parts.append(f"{len(combined.used)} estimators {apart} their errors")
    elif combined.is_known:
        parts.append(f"{combined.used[0]} is the only estimator that applies")
    return "; ".join(parts) or "no estimator applies"


def per_step(assessment: Assessment, value: float) -> float:
    """Convert a discounted sum to a discount-weighted average per step."""
    return (1 - assessment.discount) * value


def format_difference(assessment: Assessment, policy: PolicyAssessment, combined: CombinedDifference) -> str:
    """Return a difference per step with its interval and probability."""
    if not policy.has_estimate(combined.signal):
        return "unknown"
    value, low, high = (per_step(assessment, x) for x in (combined.difference, combined.low, combined.high))
    word = "better" if combined.signal == REWARD else "higher"
    probability = format_probability(combined.probability_higher)
    return (
        f"{format_number(value, sign='+')} {format_interval(low, high)} per step, {word} with probability {probability}"
    )


def format_assessment(assessment: Assessment) -> str:
    """Format an assessment for a terminal."""
    lines = [
        f"Assessed on {assessment.episodes} ({assessment.dataset}). Intervals: {100 * assessment.level:.0f} %.",
        "Logged controller: "
        + ", ".join(
            f"{name} {format_number(per_step(assessment, found.mean))} per step"
            for name, found in assessment.controller.items()
        ),
    ]
    for policy in assessment.policies:
        lines += ["", f"{policy.name}: {policy.verdict.kind.upper()}. {policy.verdict.reason}"]
        rows = {name: format_difference(assessment, policy, found) for name, found in policy.differences.items()}
        rows |= {"return": format_return(assessment, policy), "support": policy.support.describe()}
        rows |= {"agreement": describe_agreement(policy)}
        width = max(map(len, rows))
        lines += [f"  {name:{width}s} {text}" for name, text in rows.items()]
        lines += [f"  {e.estimator}: {describe_estimate(e)}" for e in policy.of_signal(REWARD)]
    lines += ["", describe_calibration(assessment), *assessment.warnings, describe_selection(assessment)]
    return "\n".join(part for line in lines for part in _wrap(printable(line)))


def format_return(assessment: Assessment, policy: PolicyAssessment) -> str:
    """Return the estimated discounted return of a policy, and its difference from the logged return."""
    if not policy.has_estimate(REWARD):
        return "unknown"
    found, logged = policy.reward, assessment.controller[REWARD]
    return (
        f"{format_number(logged.mean + found.difference)}, {format_number(found.difference, sign='+')} "
        f"{format_interval(found.low, found.high)} from {format_number(logged.mean)} "
        f"(sum of rewards with discount {assessment.discount:g})"
    )


def _wrap(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent) or [""]


def to_json(assessment: Assessment) -> dict[str, Any]:
    """Return an assessment as JSON values; NaN becomes null."""
    chosen = assessment.select()
    content = {
        "dataset": assessment.dataset,
        "episodes": assessment.episodes,
        "discount": assessment.discount,
        "level": assessment.level,
        "margin": assessment.margin,
        "calibration": assessment.calibration._asdict(),
        "controller": {name: found._asdict() for name, found in assessment.controller.items()},
        "policies": [_policy_json(policy) for policy in assessment.policies],
        "recommended": None if chosen is None else chosen.name,
        "warnings": assessment.warnings,
    }
    return {key: replace_nonfinite(value) for key, value in content.items()}


def _policy_json(policy: PolicyAssessment) -> dict[str, Any]:
    return {
        "name": policy.name,
        "source": policy.source,
        "verdict": policy.verdict.kind,
        "reason": policy.verdict.reason,
        "differences": {name: vars(found) | {"used": list(found.used)} for name, found in policy.differences.items()},
        "estimates": [vars(estimate) | {"members": list(estimate.members)} for estimate in policy.estimates],
        "support": {
            "far": policy.support.far,
            "ratio": policy.support.ratio,
            "actions": [vars(action) for action in policy.support.actions()],
            **({"choices": [vars(choice) for choice in policy.support.choices]} if policy.support.choices else {}),
        },
        "critics_agreement": policy.critics_agreement,
    }
