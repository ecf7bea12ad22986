"""Evaluate policies in large batches on the default device, and check that a policy fits a dataset."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from aspc.data import Dataset
from aspc.data.history import FrameStacker
from aspc.errors import AspcError, printable
from aspc.history import NEWEST_ONLY, History
from aspc.policy import Policy
from aspc.policy_kinds import compute_actions, sample_noise

MAX_ROWS, MAX_NUMBERS = 65_536, 2**22  # observations and random numbers per policy call


def act_on_device(policy: Policy, observations: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Compute `policy.act` in large batches on the default device; noise is drawn batch by batch from `rng`."""
    program = _compiled_policy(policy.kind, json.dumps(policy.settings))
    bounds = policy.observation_mean, policy.observation_std, policy.action_low, policy.action_high
    numbers_per_row = sum(math.prod(size or 1 for size in draw.shape) for draw in policy.noise().values())
    batch_size = min(MAX_ROWS, max(1, MAX_NUMBERS // max(numbers_per_row, 1)))
    batches = np.array_split(observations, -(-len(observations) // batch_size))
    return np.concatenate(
        [program(policy.arrays, bounds, batch, sample_noise(policy.noise(), len(batch), rng)) for batch in batches]
    )


def act_on_rows(policy: Policy, data: Dataset, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a policy's actions at rows of a log; its history is the logged one."""
    return act_on_device(policy, _stacker(policy, data).at(rows), rng)


def act_after_rows(
    policy: Policy, data: Dataset, rows: np.ndarray, following: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return a policy's actions after rows of a log, where `following` [M, obs] was observed next."""
    return act_on_device(policy, _stacker(policy, data).after(rows, following), rng)


def _stacker(policy: Policy, data: Dataset) -> FrameStacker:
    own_bounds = replace(data, action_low=policy.action_low, action_high=policy.action_high)
    return FrameStacker.of(own_bounds, policy.history)


def longest_history(policies: Iterable[Policy]) -> History:
    """Return a history that contains those of all policies."""
    histories = [NEWEST_ONLY, *(policy.history for policy in policies)]
    return History(max(h.observations for h in histories), any(h.actions for h in histories))


@cache
def _compiled_policy(kind: str, settings: str) -> Callable[..., Any]:
    """Return the jitted action function for a policy kind with these settings."""

    def act(arrays: Any, bounds: Any, observations: Array, noise: Any) -> Any:
        mean, std, low, high = bounds
        return compute_actions(Policy(kind, arrays, json.loads(settings), mean, std, low, high), observations, noise)

    return jax.jit(act)


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
