"""Policies with memory: an action can depend on earlier steps of the same episode.

Like `policy_kinds`, this module needs only NumPy.

The memory of a policy is one float32 array [batch, size] that concatenates named parts of fixed sizes. Each feature of
a policy adds the parts that it needs; a rate limit, for example, adds the previous action. Flags such as
`has_previous_action` mark parts that have no value before the first step. `step` is a pure function that maps a memory
to the next, so the same code runs on NumPy arrays, JAX arrays and the symbols of an ONNX graph. A policy without parts
is stateless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from aspc.policy_choices import array_namespace
from aspc.policy_guards import find_ood, guard_actions, needs_previous_action
from aspc.policy_kinds import clip_to_unit, compute_actions

MAX_FLOAT = float(np.finfo(np.float32).max)
NOTHING = np.zeros(0, np.float32)
Parts = Mapping[str, Any]  # the parts of a memory by name, each [batch, size]


class MemoryPart(NamedTuple):
    """A named part of a policy's memory."""

    name: str
    initial: np.ndarray
    """[size]: the value before the first step of an episode."""
    update: Callable[[Parts, Any, Any], Any]
    """(memory, observations, actions) → the value after this step. A row of actions can be NaN."""
    window: int
    """The number of earlier steps that determine the value."""


def memory_parts(policy: Any) -> list[MemoryPart]:
    """Return the parts of a policy's memory in order; empty for a stateless policy."""
    parts = history_parts(policy) if policy.history.observations > 1 else []
    if policy.guards is not None and needs_previous_action(policy.guards):
        parts += previous_action_parts(policy)
    return parts


def memory_start(policy: Any) -> np.ndarray:
    """Return the memory before the first step, [size]."""
    parts = memory_parts(policy)
    return np.concatenate([part.initial for part in parts]) if parts else NOTHING


def initial_memory(policy: Any, batch: int) -> np.ndarray:
    """Return the memory before the first step, [batch, size]."""
    return np.tile(memory_start(policy), (batch, 1))


def step(policy: Any, observations: Any, memory: Any, noise: Sequence[Any]) -> tuple[Any, Any]:
    """Return actions [batch, act] in the units of the logs, and the next memory [batch, size].

    A policy without memory returns `memory` unchanged.
    """
    parts = memory_parts(policy)
    before = split_memory(parts, memory) if parts else {}
    if policy.guards is None:
        actions = compute_actions(policy, stack_observations(policy, observations, before), noise)
    else:
        is_ood, known = find_ood(policy.guards, observations)
        actions = compute_actions(policy, stack_observations(policy, known, before), noise)
        actions = guard_actions(policy.guards, actions, is_ood, before)
    return actions, update_memory(parts, memory, observations, actions) if parts else memory


def step_or_nan(policy: Any, observations: Any, memory: Any, noise: Sequence[Any]) -> tuple[Any, Any]:
    """Return the result of `step`, in programs that cannot raise an error.

    An observation with NaN or infinity results in a NaN action and leaves its row of the memory unchanged. This needs
    explicit code, because tanh(inf) is 1 and some runtimes drop NaN in a maximum.
    """
    actions, following = step(policy, observations, memory, noise)
    actions = propagate_invalid(actions, observations)
    if not memory_parts(policy):
        return actions, memory
    xp = array_namespace(observations)
    return actions, xp.where(are_finite(observations), following, memory)


def propagate_invalid(results: Any, observations: Any) -> Any:
    """Return the results with NaN in every row whose observation contains NaN or infinity."""
    return results + (observations * 0.0).mean(-1, keepdims=True)


def split_memory(parts: Sequence[MemoryPart], memory: Any) -> dict[str, Any]:
    """Return the parts of a memory by name."""
    found, first = {}, 0
    for part in parts:
        found[part.name] = memory[:, first : first + len(part.initial)]
        first += len(part.initial)
    return found


def update_memory(parts: Sequence[MemoryPart], memory: Any, observations: Any, actions: Any) -> Any:
    """Return the memory after a step with these observations and actions."""
    before = split_memory(parts, memory)
    after = tuple(part.update(before, observations, actions) for part in parts)
    return array_namespace(observations).concatenate(after, axis=-1)


def are_finite(rows: Any) -> Any:
    """Return whether all numbers of each row are finite, [batch, 1]."""
    xp = array_namespace(rows)
    is_finite = xp.where(xp.less_equal(xp.abs(rows), MAX_FLOAT), np.float32(1), np.float32(0))
    return xp.less(0.5, is_finite.min(-1, keepdims=True))


# ---------------------------------------------------------------------------------------------------------------
# History
# ---------------------------------------------------------------------------------------------------------------


def history_parts(policy: Any) -> list[MemoryPart]:
    """Return the parts that hold the earlier observations, newest first, and the actions between them.

    Steps with invalid or out-of-distribution observations are skipped. With an out-of-distribution score, the window is
    twice as long, so that up to half of its steps can be skipped.
    """
    lags, guards = policy.history.lags, policy.guards
    has_score = guards is not None and guards.ood is not None

    def part(name: str, initial: Any, push: Callable[[Parts, Any, Any], Any]) -> MemoryPart:
        update = partial(_unless_ood, guards, name, push) if has_score else push
        return MemoryPart(name, initial, update, 2 * lags if has_score else lags)

    parts = [
        part("has_observation", np.zeros(1, np.float32), _has_observation),
        part("earlier_observations", np.zeros(lags * len(policy.observation_mean), np.float32), _push_observation),
    ]
    if policy.history.actions:
        center = (policy.action_high + policy.action_low) / 2
        parts.append(part("earlier_actions", _repeat(center, lags), partial(_push_action, center)))
    return parts


def _unless_ood(
    guards: Any, name: str, push: Callable[[Parts, Any, Any], Any], memory: Parts, observations: Any, actions: Any
) -> Any:
    is_ood, _ = find_ood(guards, observations)
    return array_namespace(observations).where(is_ood, memory[name], push(memory, observations, actions))


def stack_observations(policy: Any, observations: Any, memory: Parts) -> Any:
    """Return the inputs of a policy's network (see `aspc.history`).

    Observations are in the units of the logs, and actions are rescaled to [-1, 1].

    Args:
        policy: The policy.
        observations: The newest observations [batch, obs].
        memory: The parts of the memory.
    """
    history = policy.history
    if history.observations == 1:
        return observations
    xp, frames = array_namespace(observations), (observations, _earlier_observations(memory, observations))
    if not history.actions:
        return xp.concatenate(frames, axis=-1)
    center, half = (policy.action_high + policy.action_low) / 2, (policy.action_high - policy.action_low) / 2
    actions = (memory["earlier_actions"] - _repeat(center, history.lags)) / _repeat(half, history.lags)
    return xp.concatenate((*frames, clip_to_unit(actions)), axis=-1)


def _repeat(values: Any, times: int) -> Any:
    return array_namespace(values).concatenate((values,) * times, axis=-1)


def _earlier_observations(memory: Parts, observations: Any) -> Any:
    """Return the earlier observations; in the first step of an episode, copies of its observation."""
    xp, earlier = array_namespace(observations), memory["earlier_observations"]
    first = _repeat(observations, earlier.shape[-1] // observations.shape[-1])
    return xp.where(xp.less(0.5, memory["has_observation"]), earlier, first)


def _has_observation(memory: Parts, observations: Any, actions: Any) -> Any:
    return array_namespace(observations).maximum(memory["has_observation"], np.float32(1))


def _push_observation(memory: Parts, observations: Any, actions: Any) -> Any:
    return _push(observations, _earlier_observations(memory, observations))


def _push_action(center: Any, memory: Parts, observations: Any, actions: Any) -> Any:
    known = array_namespace(actions).where(are_finite(actions), actions, center)
    return _push(known, memory["earlier_actions"])


def _push(newest: Any, earlier: Any) -> Any:
    """Return the newest values followed by the earlier ones without the oldest."""
    kept = earlier.shape[-1] - newest.shape[-1]
    return array_namespace(newest).concatenate((newest, earlier[:, :kept]), axis=-1) if kept else newest


# ---------------------------------------------------------------------------------------------------------------
# Previous action
# ---------------------------------------------------------------------------------------------------------------


def previous_action_parts(policy: Any) -> list[MemoryPart]:
    """Return two parts: the last action without NaN, and a flag that is 1 if there is one."""
    start = policy.guards.start_action
    action = np.zeros(len(policy.action_low), np.float32) if start is None else start
    return [
        MemoryPart("has_previous_action", np.full(1, start is not None, np.float32), _has_action, 1),
        MemoryPart("previous_action", action, _last_action, 1),
    ]


def _has_action(memory: Parts, observations: Any, actions: Any) -> Any:
    return array_namespace(actions).where(are_finite(actions), np.float32(1), memory["has_previous_action"])


def _last_action(memory: Parts, observations: Any, actions: Any) -> Any:
    return array_namespace(actions).where(are_finite(actions), actions, memory["previous_action"])
