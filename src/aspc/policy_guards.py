"""Guards of a policy: limits on its actions that do not depend on the network.

Like `policy_kinds`, this module needs only NumPy.

An observation is out of distribution if its score exceeds a threshold. The score is the Mahalanobis distance to the
logged observations divided by √(number of dimensions): about 1 for a typical logged observation. Guards apply in this
order: the reaction to an out-of-distribution observation, the rate limit, the bounds. If the reaction is NaN, it
replaces the action last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from aspc.policy_choices import array_namespace

GUARD_VECTORS = ("action_low", "action_high", "max_change", "start_action", "fallback")  # [act] each
ON_OOD = ("hold", "fallback", "nan")
WHITENING = "guards.whitening"  # the name of the whitening matrix in a policy's file
FARTHEST = 1e6  # values this many standard deviations from the mean are clipped, so that squares do not overflow


class OODScore(NamedTuple):
    """An out-of-distribution score of observations, fitted to logged ones by `aspc.guards.fit_ood_score`."""

    mean: Any
    """[obs]: the mean of the logged observations."""
    std: Any
    """[obs]: the standard deviation of the logged observations, above 0."""
    whitening: Any
    """[obs, obs]: the inverse square root of the shrunk correlation matrix of the logged observations."""
    threshold: Any
    """The largest score that counts as in-distribution."""
    info: Any = None
    """The origin of the threshold as JSON values: dataset, fingerprint, rows, quantile, margin."""


@dataclass(frozen=True, eq=False)
class Guards:
    """Limits on a policy's actions, in the units of the logs. `Policy.with_guards` checks and applies them."""

    action_low: Any = None
    """Lowest action, [act]. Default: the policy's bound."""
    action_high: Any = None
    """Highest action, [act]. Default: the policy's bound."""
    max_change: Any = None
    """Largest change of the action per step, [act]. It also applies to the fallback. Default: unlimited."""
    start_action: Any = None
    """The action before the first step, [act]. Default: unknown, so the first action can take any value."""
    ood: OODScore | None = None
    """The score that identifies out-of-distribution observations. Default: none."""
    on_ood: str | None = None
    """The action for out-of-distribution observations: "hold" (the previous action, or NaN if there is none),
    "fallback" or "nan". Default: "hold".
    """
    fallback: Any = None
    """The action [act] for `on_ood="fallback"`."""


def needs_previous_action(guards: Guards) -> bool:
    """Return whether guards depend on the previous action."""
    return guards.max_change is not None or guards.on_ood == "hold"


def ood_scores(ood: OODScore, observations: Any) -> Any:
    """Return the scores [batch, 1] of observations [batch, obs]."""
    xp = array_namespace(observations)
    farthest = FARTHEST * ood.std
    rows = xp.minimum(xp.maximum(observations, ood.mean - farthest), ood.mean + farthest)
    white = ((rows - ood.mean) / ood.std) @ ood.whitening
    return xp.sqrt((white * white).mean(-1, keepdims=True))


def find_ood(guards: Guards, observations: Any) -> tuple[Any, Any]:
    """Return whether observations are out of distribution, [batch, 1], and the inputs for the network.

    In the inputs, the mean replaces out-of-distribution observations. Without a score, return None and the
    observations.
    """
    if guards.ood is None:
        return None, observations
    xp = array_namespace(observations)
    is_ood = xp.less(guards.ood.threshold, ood_scores(guards.ood, observations))
    return is_ood, xp.where(is_ood, guards.ood.mean, observations)


def guard_actions(guards: Guards, actions: Any, is_ood: Any, memory: Mapping[str, Any]) -> Any:
    """Return actions [batch, act] within the limits.

    Args:
        guards: The limits.
        actions: The actions of the network.
        is_ood: True for observations out of distribution, [batch, 1]; None without a score.
        memory: The parts of the policy's memory.
    """
    xp, has_previous = array_namespace(actions), None
    if needs_previous_action(guards):
        previous, has_previous = memory["previous_action"], xp.less(0.5, memory["has_previous_action"])
    if is_ood is not None and guards.on_ood != "nan":
        actions = xp.where(is_ood, previous if guards.on_ood == "hold" else guards.fallback, actions)
    if guards.max_change is not None:
        limited = xp.minimum(xp.maximum(actions, previous - guards.max_change), previous + guards.max_change)
        actions = xp.where(has_previous, limited, actions)
    # The bounds apply after the rate limit, because a previous action supplied by the user can be outside the bounds.
    actions = xp.minimum(xp.maximum(actions, guards.action_low), guards.action_high)
    if is_ood is None or guards.on_ood == "fallback":
        return actions
    is_nan = xp.logical_and(is_ood, xp.logical_not(has_previous)) if guards.on_ood == "hold" else is_ood
    return xp.where(is_nan, np.float32(np.nan), actions)


# ---------------------------------------------------------------------------------------------------------------
# Checks and storage
# ---------------------------------------------------------------------------------------------------------------


def complete_guards(guards: Guards, policy: Any) -> Guards:
    """Return guards whose values are float32 arrays, with the policy's bounds as defaults.

    Raises:
        ValueError: A value is invalid for this policy; the message is a sentence.
    """
    low, high = policy.action_low, policy.action_high
    values = {name: _vector(name, getattr(guards, name), len(low)) for name in GUARD_VECTORS}
    own_low = low if values["action_low"] is None else values["action_low"]
    own_high = high if values["action_high"] is None else values["action_high"]
    _check("action_low", own_low, own_low >= low, "below the policy's bound", low)
    _check("action_high", own_high, own_high <= high, "above the policy's bound", high)
    _check("action_low", own_low, own_low < own_high, "not below action_high,", own_high)
    change = values["max_change"]
    if change is not None:
        _check("max_change", change, change > 0, "not above", np.zeros_like(change))
    for name in ("start_action", "fallback"):
        action = values[name]
        if action is not None:
            _check(name, action, action >= own_low, "below the bound", own_low)
            _check(name, action, action <= own_high, "above the bound", own_high)
    is_limited = (own_low > low).any() or (own_high < high).any() or change is not None
    if policy.kind == "categorical" and (
        is_limited or values["start_action"] is not None or guards.on_ood == "fallback"
    ):
        raise ValueError("the actions of this policy are discrete, so only on_ood='hold' and on_ood='nan' apply.")
    on_ood = guards.on_ood
    if guards.ood is None:
        if on_ood is not None or values["fallback"] is not None:
            raise ValueError("on_ood and fallback need an out-of-distribution score. Pass ood.")
        return Guards(own_low, own_high, change, values["start_action"])
    on_ood = "hold" if on_ood is None else on_ood
    if on_ood not in ON_OOD:
        raise ValueError(f"on_ood must be 'hold', 'fallback' or 'nan', not {on_ood!r}.")
    if (on_ood == "fallback") != (values["fallback"] is not None):
        raise ValueError("on_ood='fallback' requires a fallback action, and vice versa. Pass both or neither.")
    ood = _check_ood(guards.ood, len(policy.observation_mean))
    return Guards(own_low, own_high, change, values["start_action"], ood, on_ood, values["fallback"])


def guards_to_json(guards: Guards) -> dict[str, Any]:
    """Return complete guards as JSON values, without the whitening matrix."""
    values = {name: getattr(guards, name) for name in GUARD_VECTORS}
    found: dict[str, Any] = {name: None if value is None else value.tolist() for name, value in values.items()}
    ood = guards.ood
    if ood is not None:
        found["on_ood"] = guards.on_ood
        found["ood"] = {"mean": ood.mean.tolist(), "std": ood.std.tolist(), "threshold": float(ood.threshold)}
        found["ood"]["info"] = dict(ood.info or {})
    return found


def guards_from_json(values: Mapping[str, Any], whitening: np.ndarray | None) -> Guards:
    """Return the guards of a header, unchecked; see `complete_guards`."""
    found, ood = values.get("ood"), None
    if found is not None:
        ood = OODScore(found["mean"], found["std"], whitening, found["threshold"], dict(found["info"]))
    vectors = {name: values[name] for name in GUARD_VECTORS}
    return Guards(**vectors, ood=ood, on_ood=values.get("on_ood"))


def describe_guards(guards: Guards, names: Sequence[str] = ()) -> list[str]:
    """Return one line of text per kind of guard."""
    numbered = [f"action {i + 1}" for i in range(len(guards.action_low))]
    labels = names if len(names) == len(numbered) else numbered

    def listed(values: Any) -> str:
        return ", ".join(f"{label} {value:.6g}" for label, value in zip(labels, values, strict=True))

    ranges = zip(labels, guards.action_low, guards.action_high, strict=True)
    lines = ["bounds: " + ", ".join(f"{label} {low:.6g} to {high:.6g}" for label, low, high in ranges)]
    if guards.max_change is not None:
        lines.append(f"largest change per step: {listed(guards.max_change)}")
    if guards.start_action is not None:
        lines.append(f"action before the first step: {listed(guards.start_action)}")
    if guards.ood is not None:
        reaction = {"hold": "the previous action", "nan": "NaN"}.get(str(guards.on_ood)) or listed(guards.fallback)
        lines.append(f"out of distribution (score above {float(guards.ood.threshold):.4g}): {reaction}")
    return lines


def _vector(name: str, values: Any, size: int) -> np.ndarray | None:
    """Return a guard's value as a float32 vector, or None if it is not set."""
    if values is None:
        return None
    with np.errstate(over="ignore"):  # too-large numbers become infinite and are rejected below
        vector = np.asarray(values, np.float32)
    if vector.shape != (size,) or not np.isfinite(vector).all():
        raise ValueError(f"{name} must be {size} finite numbers.")
    return vector


def _check(name: str, values: np.ndarray, is_valid: np.ndarray, problem: str, bounds: np.ndarray) -> None:
    if not is_valid.all():
        i = int(np.argmin(is_valid))
        raise ValueError(f"{name}[{i}] is {values[i]:g}, which is {problem} {bounds[i]:g}.")


def _check_ood(ood: OODScore, size: int) -> OODScore:
    mean, std = _vector("mean", ood.mean, size), _vector("std", ood.std, size)
    whitening = np.asarray(ood.whitening, np.float32)
    threshold = np.float32(ood.threshold)
    if whitening.shape != (size, size) or not (np.abs(whitening) <= FARTHEST).all():
        raise ValueError(f"whitening must be {size} × {size} numbers of at most {FARTHEST:g}.")
    assert mean is not None
    assert std is not None
    with np.errstate(over="ignore"):
        reach = np.abs(mean) + np.float32(2 * FARTHEST) * std
    if not (std > 0).all() or not np.isfinite(reach).all():
        raise ValueError("std must be above 0, and the observations must not be too large for float32.")
    if not 0 < threshold < FARTHEST / math.sqrt(size):
        raise ValueError(f"threshold must be above 0 and below {FARTHEST / math.sqrt(size):g}.")
    return OODScore(mean, std, whitening, threshold, ood.info)
