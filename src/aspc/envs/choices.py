"""Wrap environments with discrete or mixed actions, so that their actions are columns (see `aspc.action_space`)."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from aspc.action_space import MAX_CHOICES, ActionSpace, Factor
from aspc.errors import AspcError

SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and a Tuple or Dict of these"


def with_choice_columns(env: gym.Env[Any, Any], name: str) -> gym.Env[Any, Any]:
    """Return an environment with a Box action space: unchanged if it has one, otherwise wrapped in `ChoiceColumns`.

    Raises:
        AspcError: The actions are of another type.
    """
    return env if isinstance(env.action_space, gym.spaces.Box) else ChoiceColumns(env, name)


def choices_of(env: Any) -> ActionSpace | None:
    """Return the action space of an environment from `with_choice_columns`; None if its actions are continuous."""
    while isinstance(env, gym.Wrapper) and not isinstance(env, ChoiceColumns):
        env = env.env
    return env.choices if isinstance(env, ChoiceColumns) else None


class ChoiceColumns(gym.Wrapper[Any, Any, Any, Any]):
    """Accept actions as columns (see `aspc.action_space`); the largest column of a discrete factor is chosen."""

    def __init__(self, env: gym.Env[Any, Any], name: str) -> None:
        super().__init__(env)
        self._space = env.action_space
        self.choices, low, high = describe_space(env.action_space, name)
        self.action_space = gym.spaces.Box(low, high, dtype=np.float32)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        values = self.choices.decode(np.asarray(action, np.float64))
        if (values[np.array(self.choices.sizes) > 0] < 0).any():
            raise AspcError("No option was chosen, because the masks in the observation forbid all of them.")
        return self.env.step(_assemble(self._space, values.tolist()))


def describe_space(space: gym.Space[Any], name: str) -> tuple[ActionSpace, np.ndarray, np.ndarray]:
    """Return the factors of a Gymnasium action space, and the lowest and the highest value of each column.

    Raises:
        AspcError: The space is of another type.
    """
    parts = _parts(space, "action", name)
    low = np.concatenate([np.full(factor.size, 0.0) if box is None else [box[0]] for factor, box in parts])
    high = np.concatenate([np.full(factor.size, 1.0) if box is None else [box[1]] for factor, box in parts])
    return ActionSpace(tuple(factor for factor, _ in parts)), low.astype(np.float32), high.astype(np.float32)


def values_of(space: gym.Space[Any], actions: Any) -> np.ndarray:
    """Return one value per factor [N, factors] for N stored actions of a space: a number, or the index of an option."""
    if isinstance(space, gym.spaces.Tuple):
        return np.concatenate([values_of(part, actions[i]) for i, part in enumerate(space.spaces)], axis=1)
    if isinstance(space, gym.spaces.Dict):
        return np.concatenate([values_of(part, actions[key]) for key, part in space.spaces.items()], axis=1)
    values = np.asarray(actions)
    start = space.start if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete) else 0
    return np.asarray(values - start, np.float64).reshape(len(values), -1)


def _parts(space: Any, label: str, name: str) -> list[tuple[Factor, tuple[float, float] | None]]:
    """Return the factors of a space in order, with the bounds of continuous factors."""
    if isinstance(space, gym.spaces.Discrete):
        return [(_factor(label, int(space.n), int(space.start), name), None)]
    if isinstance(space, gym.spaces.MultiDiscrete | gym.spaces.MultiBinary):
        sizes = np.ravel(space.nvec if isinstance(space, gym.spaces.MultiDiscrete) else np.full(space.shape, 2))
        starts = np.ravel(space.start) if isinstance(space, gym.spaces.MultiDiscrete) else np.zeros(len(sizes))
        return [
            (_factor(f"{label}_{i}", int(size), int(start), name), None)
            for i, (size, start) in enumerate(zip(sizes, starts, strict=True))
        ]
    if isinstance(space, gym.spaces.Box):
        bounds = zip(space.low.ravel().tolist(), space.high.ravel().tolist(), strict=True)
        return [(Factor(f"{label}_{i}"), pair) for i, pair in enumerate(bounds)]
    if isinstance(space, gym.spaces.Tuple):
        return [part for i, inner in enumerate(space.spaces) for part in _parts(inner, f"{label}_{i}", name)]
    if isinstance(space, gym.spaces.Dict):
        return [part for key, inner in space.spaces.items() for part in _parts(inner, key, name)]
    raise AspcError(f"{name} has actions of type {type(space).__name__}; only {SUPPORTED} are supported.")


def _factor(label: str, size: int, start: int, name: str) -> Factor:
    if not 2 <= size <= MAX_CHOICES:
        raise AspcError(f"{name} has an action with {size:,} options; 2 to {MAX_CHOICES:,} are supported.")
    return Factor(label, tuple(str(start + i) for i in range(size)))


def _assemble(space: Any, values: list[float]) -> Any:
    """Build an action of a space from one value per factor, and remove the used values from `values`."""
    if isinstance(space, gym.spaces.Discrete):
        return int(space.start) + int(values.pop(0))
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_assemble(inner, values) for inner in space.spaces)
    if isinstance(space, gym.spaces.Dict):
        return {key: _assemble(inner, values) for key, inner in space.spaces.items()}
    count = int(np.prod(space.shape))
    taken = np.array([values.pop(0) for _ in range(count)]).reshape(space.shape)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return (taken + space.start).astype(space.dtype)
    return taken.astype(space.dtype)
