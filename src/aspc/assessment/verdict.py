"""Rules for the verdict on a policy, given its support and its combined difference from the logged controller."""

from __future__ import annotations

from typing import Literal, NamedTuple

from aspc.assessment.combination import CombinedDifference
from aspc.assessment.support import Support
from aspc.text import format_interval, format_number

VerdictKind = Literal["better", "not worse", "cannot tell", "worse", "outside the data"]


class Verdict(NamedTuple):
    """A verdict and its reason in one sentence."""

    kind: VerdictKind
    reason: str


def decide(reward: CombinedDifference, support: Support, margin: float, silent: dict[str, str]) -> Verdict:
    """Return the verdict of the first rule that applies.

    Args:
        reward: The combined difference in return.
        support: The distance of the policy from the data.
        margin: The largest loss of return that is considered negligible.
        silent: Reasons why estimators give no estimate, by estimator.
    """
    if support.is_outside:
        return Verdict(
            "outside the data",
            f"The policy's actions are too far from the logged ones to estimate its return: {support.describe()}.",
        )
    if not reward.is_known:
        first = next(iter(silent.values()), "there is no estimate")
        return Verdict("cannot tell", f"No estimator applies: {first}.")
    low, high = reward.low, reward.high
    span, limit = format_interval(low, high), f"the margin {format_number(margin)}"
    if low > 0:
        return Verdict("better", f"The interval for the difference in return, {span}, lies entirely above 0.")
    if high < 0:
        return Verdict("worse", f"The interval for the difference in return, {span}, lies entirely below 0.")
    if low >= -margin:
        return Verdict("not worse", f"The interval {span} includes 0, but no loss larger than {limit}.")
    return Verdict("cannot tell", f"The interval {span} includes 0 and losses larger than {limit}.")
