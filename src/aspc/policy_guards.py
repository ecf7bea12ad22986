"""Guards of a policy: limits that its actions obey whatever its network computes. NumPy only, like `policy_kinds`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aspc.policy_kinds import array_namespace

GUARD_VECTORS = ("action_low", "action_high", "max_change", "start_action")  # [act] each


@dataclass(frozen=True, eq=False)
class Guards:
    """Limits on a policy's actions, in the units of the logs. `Policy.with_guards` checks and applies them.

    Actions are limited to a rate first, then to the bounds.
    """

    action_low: Any = None
    """Lowest action, [act]. Default: the policy's bound."""
    action_high: Any = None
    """Highest action, [act]. Default: the policy's bound."""
    max_change: Any = None
    """Largest change of the action per step, [act]. Default: unlimited."""
    start_action: Any = None
    """The action before the first step, [act]. Default: unknown, so the first action may take any value."""


def needs_previous_action(guards: Guards) -> bool:
    """Return whether guards depend on the previous action."""
    return guards.max_change is not None


def guard_actions(guards: Guards, actions: Any, memory: Mapping[str, Any]) -> Any:
    """Return actions [batch, act] within the limits, given the parts of the policy's memory."""
    xp = array_namespace(actions)
    if guards.max_change is not None:
        previous = memory["previous_action"]
        limited = xp.minimum(xp.maximum(actions, previous - guards.max_change), previous + guards.max_change)
        actions = xp.where(xp.less(0.5, memory["has_previous_action"]), limited, actions)
    # Last, because a previous action that the user supplies can be outside the bounds.
    return xp.minimum(xp.maximum(actions, guards.action_low), guards.action_high)


def complete_guards(guards: Guards, policy: Any) -> Guards:
    """Return guards whose values are float32 arrays [act], with the policy's bounds as defaults.

    Raises:
        ValueError: A value is invalid for this policy; the message is a sentence.
    """
    low, high = policy.action_low, policy.action_high
    values = {name: _vector(name, getattr(guards, name), len(low)) for name in GUARD_VECTORS}
    own_low = low if values["action_low"] is None else values["action_low"]
    own_high = high if values["action_high"] is None else values["action_high"]
    _check("action_low", own_low, own_low >= low, "must not be below the policy's bound", low)
    _check("action_high", own_high, own_high <= high, "must not be above the policy's bound", high)
    _check("action_low", own_low, own_low <= own_high, "must not be above action_high", own_high)
    start, change = values["start_action"], values["max_change"]
    if change is not None:
        _check("max_change", change, change > 0, "must be above", np.zeros_like(low))
    if start is not None:
        _check(
            "start_action", start, (start >= own_low) & (start <= own_high), "must be within the bounds from", own_low
        )
    return Guards(own_low, own_high, change, start)


def guards_to_json(guards: Guards) -> dict[str, Any]:
    """Return guards as JSON values."""
    values = {name: getattr(guards, name) for name in GUARD_VECTORS}
    return {name: None if value is None else value.tolist() for name, value in values.items()}


def guards_from_json(values: Mapping[str, Any]) -> Guards:
    """Return the guards of a header, unchecked; see `complete_guards`."""
    return Guards(**{name: values[name] for name in GUARD_VECTORS})


def _vector(name: str, values: Any, size: int) -> np.ndarray | None:
    """Return a value of the guards as float32, or None if it is not set."""
    if values is None:
        return None
    with np.errstate(over="ignore"):  # too-large numbers become infinite and are rejected below
        vector = np.asarray(values, np.float32)
    if vector.shape != (size,) or not np.isfinite(vector).all():
        raise ValueError(f"{name} must be {size} finite numbers, one per action.")
    return vector


def _check(name: str, values: np.ndarray, is_valid: np.ndarray, rule: str, bounds: np.ndarray) -> None:
    if not is_valid.all():
        i = int(np.argmin(is_valid))
        raise ValueError(f"{name}[{i}] is {values[i]:g} and {rule} {bounds[i]:g}.")
