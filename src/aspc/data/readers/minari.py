"""Datasets in Minari's local storage, read with Minari's own readers in the limited child process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from aspc.action_space import ActionSpace
from aspc.data.readers.array_files import ArrayFile
from aspc.data.readers.limits import ReadLimits
from aspc.envs.allowed import problem_with_spec
from aspc.envs.choices import describe_space, values_of
from aspc.errors import AspcError
from aspc.minari_store import CHOICES_KEY, check_metadata, evaluation_spec


def read_episodes(path: Path, limits: ReadLimits, *, name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read all episodes of a Minari dataset.

    Args:
        path: The dataset's data folder.
        limits: The limits for reading.
        name: The dataset's id, for messages.

    Returns:
        The metadata (layout, action space, scores, whether it has an environment), and the arrays `observations` (one
        more row per episode than `rewards`), `actions` (one column per option if discrete), `rewards`, `terminals`,
        `steps` (per episode) and, if the action space is bounded, `action_low` and `action_high`.

    Raises:
        AspcError: The dataset is damaged, too large, or has unsupported spaces.
    """
    from minari import MinariDataset

    try:
        check_metadata(path)
        source = MinariDataset(path)
        space = source.observation_space
        choices, low, high = _describe_actions(source, name)
        described = {
            "layout": _flat_order(space, name),
            "action_space": "" if choices is None else choices.to_text(),
            "scores": {key: source.storage.metadata.get(f"{key}_score") for key in ("ref_min", "ref_max")},
            **_describe_environment(source),
        }
        arrays = _EpisodeWriter(name, limits)
        for episode in source.iterate_episodes():
            arrays.append(_episode(episode, space, source.action_space, choices))
        bounded = np.isfinite(low).all() and np.isfinite(high).all()
        return described, {**arrays.arrays(), **({"action_low": low, "action_high": high} if bounded else {})}
    except (AspcError, MemoryError):
        raise
    except Exception as error:  # a damaged folder raises many kinds of errors
        detail = " ".join(str(error).split())[:200] or type(error).__name__
        raise AspcError(f"The Minari dataset {name} cannot be read: {detail}.") from error


def _describe_actions(source: Any, name: str) -> tuple[ActionSpace | None, np.ndarray, np.ndarray]:
    """Return the action space (None if all actions are continuous), and the lowest and highest value per column."""
    actions = source.action_space
    if isinstance(actions, gym.spaces.Box):
        return None, actions.low.ravel(), actions.high.ravel()
    choices, low, high = describe_space(actions, name)
    if text := source.storage.metadata.get(CHOICES_KEY):  # the names and masks that `aspc data convert` stored
        named = ActionSpace.from_text(text)
        if named.sizes != choices.sizes:
            raise ValueError(f"its metadata {CHOICES_KEY} does not match its action space")
        choices = named
    return (choices if choices.has_choices else None), low, high


def _describe_environment(source: Any) -> dict[str, Any]:
    spec = evaluation_spec(source)
    return {
        "has_environment": spec is not None,
        "environment_problem": None if spec is None else problem_with_spec(spec),
    }


class _EpisodeWriter:
    """A writer that appends episodes to one file per array."""

    def __init__(self, name: str, limits: ReadLimits) -> None:
        self._name, self._limits, self._bytes = name, limits, 0
        self._files: dict[str, ArrayFile] = {}
        self._parts: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self._rows: dict[str, int] = {}
        self._steps: list[int] = []

    def append(self, episode: dict[str, np.ndarray]) -> None:
        self._bytes += 2 * sum(array.nbytes for array in episode.values())
        self._limits.require(self._bytes, self._name, at_least=True)
        self._limits.progress()
        for key, array in episode.items():
            part = (array.dtype, array.shape[1:])
            if self._parts.setdefault(key, part) != part:
                raise ValueError(f"its episodes differ in the size or type of {key}")
            self._files.setdefault(key, ArrayFile()).write(array)
            self._rows[key] = self._rows.get(key, 0) + len(array)
        self._steps.append(len(episode["rewards"]))

    def arrays(self) -> dict[str, np.ndarray]:
        whole = {
            key: self._files[key].array(dtype, (self._rows[key], *rest)) for key, (dtype, rest) in self._parts.items()
        }
        return {**whole, "steps": np.array(self._steps, dtype=np.int64)}


def _flat_order(space: Any, name: str) -> str:
    """Return the order in which a structured observation is flattened, or "" for a flat one."""
    if isinstance(space, gym.spaces.Box) and space.shape is not None and len(space.shape) == 1:
        return ""
    if isinstance(space, gym.spaces.Box):
        return f"an array of shape {space.shape}, with the last axis varying fastest"
    if isinstance(space, gym.spaces.Dict) and all(isinstance(s, gym.spaces.Box) for s in space.spaces.values()):
        return ", ".join(f"{key} ({int(np.prod(part.shape or ()))})" for key, part in space.spaces.items())
    raise AspcError(f"{name}: its observations are {space}; only Box and Dict of Box spaces are supported.")


def _flatten(space: Any, values: Any) -> np.ndarray:
    """Return the observations of one episode as [T + 1, size]."""
    if isinstance(space, gym.spaces.Dict):
        return np.concatenate([_flatten(part, values[key]) for key, part in space.spaces.items()], axis=1)
    return np.asarray(values).reshape(len(values), -1)


def _episode(episode: Any, space: Any, action_space: Any, choices: ActionSpace | None) -> dict[str, np.ndarray]:
    steps = len(episode.rewards)
    actions = values_of(action_space, episode.actions)
    arrays = {
        "observations": _flatten(space, episode.observations),
        "actions": (actions if choices is None else choices.encode(actions)).astype(np.float32),
        "rewards": np.asarray(episode.rewards, dtype=np.float64),
        "terminals": np.asarray(episode.terminations, dtype=bool),
    }
    if any(array.dtype.kind not in "fiub" for array in arrays.values()):
        raise ValueError("it holds values that are not numbers")
    if len(arrays["observations"]) != steps + 1 or arrays["terminals"].shape != (steps,):
        raise ValueError("the arrays of an episode differ in length")
    return arrays
