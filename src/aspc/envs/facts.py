"""Sizes, action bounds, step limits and reference scores of environments.

For D4RL's environments they come from `aspc.tasks`; any other environment is created once and queried.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import gymnasium as gym
import numpy as np

from aspc import minari_store, tasks
from aspc.action_space import ActionSpace
from aspc.envs.choices import choices_of
from aspc.envs.make import DEFAULT_HORIZON, make_env
from aspc.errors import AspcError


class _ProbedFacts(NamedTuple):
    action_low: np.ndarray
    action_high: np.ndarray
    observation_size: int
    step_limit: int | None
    choices: ActionSpace | None


@cache
def _probe(name: str) -> _ProbedFacts:
    """Create an environment to read its spaces and its step limit."""
    env = make_env(name)
    actions, observations, spec = env.action_space, env.observation_space, env.spec
    choices = choices_of(env)
    env.close()
    assert isinstance(actions, gym.spaces.Box)
    assert isinstance(observations, gym.spaces.Box)
    low, high = (bound.astype(np.float32).ravel() for bound in (actions.low, actions.high))
    return _ProbedFacts(
        low, high, math.prod(observations.shape), None if spec is None else spec.max_episode_steps, choices
    )


def env_sizes(name: str) -> tuple[int, int]:
    """Return the observation size and the action size of an environment."""
    family = tasks.family_facts(name)
    if family is not None:
        return family.observation_size, family.action_size
    facts = _probe(name)
    return facts.observation_size, len(facts.action_low)


def check_sizes(name: str, env_sizes: tuple[int, int], data_sizes: tuple[int, int]) -> None:
    """Raise an `AspcError` if a policy learned from the data cannot act in the environment.

    Args:
        name: The environment.
        env_sizes: Its observation and action size.
        data_sizes: The observation and action size of the data.
    """
    if env_sizes != data_sizes:
        raise AspcError(
            f"{name} has observation size {env_sizes[0]} and action size {env_sizes[1]}, but the data has "
            f"{data_sizes[0]} and {data_sizes[1]}. Choose another environment (--env) or none (--env none)."
        )


def action_bounds(name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the lowest and highest action of an environment, or None if its actions are unbounded."""
    family = tasks.family_facts(name)
    if family is not None:
        ones = np.ones(family.action_size, dtype=np.float32)
        return -ones, ones
    low, high, *_ = _probe(name)
    return (low, high) if np.isfinite(low).all() and np.isfinite(high).all() else None


def choices(name: str) -> ActionSpace | None:
    """Return the action space of an environment with discrete actions; None if all actions are continuous."""
    return None if tasks.family_facts(name) is not None else _probe(name).choices


def horizon(name: str) -> int:
    """Return the step limit of an environment, or 1,000 if it has none."""
    family = tasks.family_facts(name)
    if family is not None:
        return family.horizon
    return _probe(name).step_limit or DEFAULT_HORIZON


def is_continuing(name: str) -> bool:
    """Return whether the segments in an environment's datasets differ from its episodes, as in Maze2d."""
    family = tasks.family_facts(name)
    return family is not None and family.continuing


def reference_scores(name: str) -> tuple[float, float] | None:
    """Return the episode returns that correspond to normalized scores 0 and 100, or None if there are none."""
    if name.startswith(minari_store.PREFIX):
        return minari_store.reference_scores(name)
    return tasks.reference_scores(name)


def normalized_score(name: str, value: float) -> float | None:
    """Convert a return to D4RL's normalized score; None if the environment has no reference scores."""
    scores = reference_scores(name)
    return None if scores is None else tasks.normalize_score(value, *scores)
