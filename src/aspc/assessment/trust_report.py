"""The trust report: all checks of a policy, and a verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aspc.assessment.inspected_policy import InspectedPolicy
from aspc.assessment.trust_checks import CHECKS, TrustCheck


@dataclass(frozen=True, eq=False)
class TrustReport:
    """The results of all checks, with numbers for programs and arrays for figures."""

    description: list[tuple[str, str]]
    checks: list[TrustCheck]
    numbers: dict[str, Any]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    action_names: tuple[str, ...] = ()
    """The names of the log's action columns, if known."""

    @property
    def verdict(self) -> str:
        """The verdict in a few plain sentences."""
        worry, look, unknown = (
            [check.topic for check in self.checks if check.level == level] for level in ("worry", "look", "unknown")
        )
        if worry:
            return f"Before you rely on this policy, examine: {', '.join(worry + look)}."
        if look:
            return f"No alarms, but examine: {', '.join(look)}."
        unchecked = f" Not checked: {', '.join(unknown)}." if unknown else ""
        return f"No problems found.{unchecked} This is not a guarantee."


def assess_policy(inspected: InspectedPolicy, notify: Callable[[str], None] = lambda text: None) -> TrustReport:
    """Run all checks; `notify` is called with a message before each."""
    checks: list[TrustCheck] = []
    numbers: dict[str, Any] = {}
    policy, dataset = inspected.policy, inspected.dataset
    arrays = {
        "policy_actions": policy.action_low + (inspected.actions + 1) / 2 * (policy.action_high - policy.action_low),
        "data_actions": dataset.actions[inspected.rows],
        "action_low": policy.action_low,
        "action_high": policy.action_high,
    }
    for name, check in CHECKS.items():
        notify(f"checking: {name}")
        result = check(inspected)
        checks.append(result.check)
        numbers[name] = result.numbers
        arrays |= result.arrays
    return TrustReport(inspected.describe(), checks, numbers, arrays, inspected.action_names)
