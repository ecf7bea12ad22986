"""Evaluate policies in large batches on the default device, and check that a policy fits a dataset."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from aspc.data import Dataset
from aspc.errors import AspcError, printable
from aspc.history import NEWEST_ONLY, History
from aspc.policy import Policy
from aspc.policy_guards import GUARD_VECTORS, Guards
from aspc.policy_kinds import sample_noise
from aspc.policy_memory import initial_memory, memory_parts, step, update_memory

MAX_ROWS, MAX_NUMBERS = 65_536, 2**22  # observations and random numbers per policy call


def step_on_device(
    policy: Policy, observations: np.ndarray, memory: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Compute `policy.step` in large batches on the default device; noise is drawn batch by batch from `rng`."""
    batches = _split_rows(policy, len(observations))
    steps = [_step_batch(policy, observations[rows], memory[rows], rng) for rows in batches]
    actions, following = zip(*steps, strict=True)
    return np.concatenate(actions), np.concatenate(following)


def act_on_rows(policy: Policy, dataset: Dataset, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a policy's actions at logged rows, given the memory that it would have after the earlier logged steps."""
    return np.concatenate(
        [
            _step_batch(policy, dataset.observations[rows[part]], logged_memory(policy, dataset, rows[part]), rng)[0]
            for part in _split_rows(policy, len(rows))
        ]
    )


def act_after_rows(
    policy: Policy, dataset: Dataset, rows: np.ndarray, observations: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return a policy's actions for the observations that follow logged rows, after it has taken the logged actions."""
    return np.concatenate(
        [
            _step_batch(policy, observations[part], _memory_after(policy, dataset, rows[part]), rng)[0]
            for part in _split_rows(policy, len(rows))
        ]
    )


def logged_memory(policy: Policy, dataset: Dataset, rows: np.ndarray) -> np.ndarray:
    """Return the memory [rows, memory_size] of a policy that has taken the logged actions up to each row.

    This is exact: each part of the memory depends on a limited number of earlier steps, which are replayed from the
    log.
    """
    parts, memory = memory_parts(policy), initial_memory(policy, len(rows))
    if not parts:
        return memory
    starts = dataset.episode_bounds[0]
    starts = starts[np.searchsorted(starts, rows, side="right") - 1]
    for back in range(max(part.window for part in parts), 0, -1):
        earlier = np.maximum(rows - back, 0)
        following = update_memory(parts, memory, dataset.observations[earlier], dataset.actions[earlier])
        memory = np.where((rows - back >= starts)[:, None], following, memory)
    return memory


def _memory_after(policy: Policy, dataset: Dataset, rows: np.ndarray) -> np.ndarray:
    parts, memory = memory_parts(policy), logged_memory(policy, dataset, rows)
    if not parts:
        return memory
    return np.asarray(update_memory(parts, memory, dataset.observations[rows], dataset.actions[rows]))


def _split_rows(policy: Policy, count: int) -> list[slice]:
    """Return slices of rows that fit into one call of the policy."""
    numbers_per_row = sum(math.prod(size or 1 for size in draw.shape) for draw in policy.noise().values())
    batch_size = min(MAX_ROWS, max(1, MAX_NUMBERS // max(numbers_per_row, 1)))
    parts = np.array_split(np.arange(count), -(-count // batch_size))
    return [slice(int(part[0]), int(part[-1]) + 1) for part in parts]


def _step_batch(
    policy: Policy, observations: np.ndarray, memory: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    bounds = policy.observation_mean, policy.observation_std, policy.action_low, policy.action_high
    guards = None if policy.guards is None else _guards_as_tree(policy.guards)
    on_ood = None if policy.guards is None else policy.guards.on_ood
    noise = sample_noise(policy.noise(), len(observations), rng)
    program = _compiled_step(policy.kind, json.dumps(policy.settings), on_ood, policy.history)
    actions, following = program(policy.arrays, bounds, guards, observations, memory, noise)
    policy.check_actions(np.asarray(actions))
    return np.asarray(actions), np.asarray(following)


def longest_history(policies: Iterable[Policy]) -> History:
    """Return the shortest history that covers the histories of all policies."""
    histories = [NEWEST_ONLY, *(policy.history for policy in policies)]
    return History(max(h.observations for h in histories), any(h.actions for h in histories))


def _guards_as_tree(guards: Guards) -> dict[str, Any]:
    """Return the arrays of guards, for compiled code."""
    ood = None if guards.ood is None else guards.ood._replace(info=None)
    return {"ood": ood, **{name: getattr(guards, name) for name in GUARD_VECTORS}}


@cache
def _compiled_step(kind: str, settings: str, on_ood: str | None, history: History) -> Callable[..., Any]:
    """Return the jitted step function for a policy kind with these settings and history."""

    def run(arrays: Any, bounds: Any, guards: Any, observations: Array, memory: Array, noise: Any) -> Any:
        mean, std, low, high = bounds
        limits = None if guards is None else Guards(**guards, on_ood=on_ood)
        policy = Policy(kind, arrays, json.loads(settings), mean, std, low, high, guards=limits, history=history)
        return step(policy, observations, memory, noise)

    return jax.jit(run)


def check_fits(name: str, policy: Policy, dataset: Dataset) -> None:
    """Check that a policy's sizes and column names match a dataset.

    Raises:
        AspcError: The sizes or column names differ.
    """
    sizes = policy.observation_size, policy.action_size
    if sizes != (dataset.observation_size, dataset.action_size):
        raise AspcError(
            f"{name} has {sizes[0]} observation and {sizes[1]} action dimensions, but {dataset.name} has "
            f"{dataset.observation_size} and {dataset.action_size}. Choose the dataset with --dataset."
        )
    columns = {"observations": dataset.observation_names, "actions": dataset.action_names}
    for key, found in columns.items():
        known = tuple(policy.info.get(f"{key[:-1]}_names", ()))
        if known and found and known != found:
            raise AspcError(
                f"{name} was trained on {key} {printable(', '.join(known))}, but {dataset.name} has "
                f"{printable(', '.join(found))}. Select the columns in the policy's order, for example with "
                f"--map {key}={printable(','.join(known))}."
            )
