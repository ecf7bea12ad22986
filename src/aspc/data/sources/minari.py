"""Load and write datasets in Minari's local storage: Box or Dict observations, continuous or discrete actions."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from aspc import minari_store
from aspc.action_space import ActionSpace, Factor
from aspc.data.dataset import Dataset
from aspc.data.readers.limited_reader import LimitedReader
from aspc.envs import make_env
from aspc.errors import AspcError
from aspc.minari_store import PREFIX
from aspc.ui import notify_if_slow


def download(name: str) -> str:
    """Download a dataset into Minari's local storage if missing, and return its id."""
    minari_store.open_dataset(name)
    return minari_store.parse_id(name)


def load(name: str, **options: Any) -> Dataset:
    """Load a Minari dataset by its id; Dict observations are flattened in the order of their space's keys."""
    dataset_id = minari_store.parse_id(name)
    folder = minari_store.download_if_missing(name)
    with notify_if_slow(f"Reading {dataset_id} …"), LimitedReader() as reader:
        stated, arrays = reader.call("read_minari", folder, name=dataset_id)
    if "action_low" in arrays:
        options = {"action_low": arrays["action_low"], "action_high": arrays["action_high"], **options}
    env, notes = (f"{PREFIX}{dataset_id}" if stated["has_environment"] else None), []
    if problem := stated["environment_problem"]:
        env = None
        notes.append(f"the environment of {dataset_id} is not used: {problem}; name one that you trust with --env.")
    if layout := stated["layout"]:
        notes.append(f"observations are flattened in this order: {layout}.")
    settings = {"name": dataset_id, "env": env, **stated["scores"], **options}
    if stated["action_space"]:
        settings["action_space"] = ActionSpace.from_text(stated["action_space"])
    return Dataset.from_episodes(_cut_episodes(arrays), **settings).with_notes(notes)


def _cut_episodes(arrays: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Split concatenated episodes, for `Dataset.from_episodes`."""
    ends = np.cumsum(arrays["steps"])
    cuts = dict.fromkeys(("actions", "rewards", "terminals"), ends)
    cuts["observations"] = ends + np.arange(1, len(ends) + 1)
    parts = {key: np.split(arrays[key], cut[:-1]) for key, cut in cuts.items() if key in arrays}
    return [{key: part[i] for key, part in parts.items()} for i in range(len(ends))]


def write(dataset: Dataset, dataset_id: str) -> list[str]:
    """Write a dataset into Minari's local storage, completely or not at all.

    Minari keeps T + 1 observations per episode. Without logged next observations, an episode that timed out loses its
    last row (whose observation becomes the final observation), and a terminal row's observation is repeated.

    Returns:
        Notes on the information that Minari cannot keep.
    """
    minari = minari_store.import_minari()
    from minari.data_collector.episode_buffer import EpisodeBuffer

    if dataset_id in minari.list_local_datasets():
        raise AspcError(f"The Minari dataset {dataset_id} already exists; choose another id or delete it.")
    buffers = [
        EpisodeBuffer(
            id=i,
            observations=np.concatenate([episode["observations"], episode["last"][None]]),
            actions=_stored_actions(dataset.action_space, episode["actions"]),
            rewards=list(episode["rewards"].astype(float)),
            terminations=[bool(flag) for flag in episode["terminals"]],
            truncations=[*([False] * (len(episode["rewards"]) - 1)), not episode["terminals"][-1]],
        )
        for i, episode in enumerate(split_episodes(dataset))
    ]
    if not buffers:
        raise AspcError(f"{dataset.name}: all episodes are too short for Minari.")
    environment = _environment_spec(dataset.env)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="minari.*")  # missing author, license, ...
        written = minari.create_dataset_from_buffers(
            dataset_id,
            buffers,
            env=environment,
            observation_space=gym.spaces.Box(-np.inf, np.inf, (dataset.observation_size,), np.float32),
            action_space=_stored_space(dataset),
            description=f"Converted from {dataset.name} by aspc.",
        )
    if dataset.ref_min is not None and dataset.ref_max is not None:  # Minari drops scores if there is no environment
        written.storage.update_metadata({"ref_min_score": dataset.ref_min, "ref_max_score": dataset.ref_max})
    if dataset.action_space is not None:
        written.storage.update_metadata({minari_store.CHOICES_KEY: dataset.action_space.to_text()})
    notes = []
    if dataset.env is not None and environment is None:
        notes.append(
            f"Minari cannot store the environment {dataset.env}; pass it with --env when you use {dataset_id}."
        )
    if dataset.observation_names or (dataset.action_names and dataset.action_space is None):
        notes.append("Minari cannot store column names.")
    if lost := len(dataset) - sum(len(buffer.rewards) for buffer in buffers):
        notes.append(
            f"{lost:,} of {len(dataset):,} rows are not written: if an episode ends by timeout, Minari keeps only the "
            "observation of its last row."
        )
    return notes


def _stored_space(dataset: Dataset) -> gym.Space[Any]:
    """Return the Gymnasium space of a dataset's actions: a Box, Discrete, or a Tuple of these if there are several."""
    if dataset.action_space is None:
        return gym.spaces.Box(dataset.action_low, dataset.action_high, dtype=np.float32)
    parts = [
        gym.spaces.Discrete(factor.size)
        if factor.choices
        else gym.spaces.Box(dataset.action_low[columns], dataset.action_high[columns], dtype=np.float32)
        for factor, columns in dataset.action_space.blocks()
    ]
    return parts[0] if len(parts) == 1 else gym.spaces.Tuple(parts)


def _stored_actions(space: ActionSpace | None, actions: np.ndarray) -> Any:
    """Convert rows of actions to elements of `_stored_space`."""
    if space is None:
        return actions
    values = space.decode(actions)
    parts = tuple(_of_factor(factor, values[:, i]) for i, factor in enumerate(space.factors))
    return parts[0] if len(parts) == 1 else parts


def _of_factor(factor: Factor, values: np.ndarray) -> np.ndarray:
    return values.astype(np.int64) if factor.choices else values.astype(np.float32)[:, None]


def _environment_spec(env: str | None) -> Any:
    """Return the Gymnasium specification of an environment, or None if it has no specification."""
    if env is None:
        return None
    made = make_env(env)
    spec = made.spec
    made.close()
    return spec


def split_episodes(dataset: Dataset) -> Iterator[dict[str, np.ndarray]]:
    """Yield each episode's arrays, with the observation after its last row as `last`.

    Raises:
        AspcError: The next observations contradict the order of the rows.
    """
    starts, stops = dataset.episode_bounds
    if dataset.next_observations is not None:
        inside = np.setdiff1d(np.arange(len(dataset)), stops - 1)
        differs = (dataset.next_observations[inside] != dataset.observations[inside + 1]).any(axis=1)
        if differs.any():
            raise AspcError(
                f"{dataset.name}: the next observation of row {inside[differs.argmax()] + 1} is not the observation of "
                "the row after it, so the rows are not a trajectory. Mark where episodes end and try again."
            )
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        if dataset.next_observations is not None:
            last = dataset.next_observations[stop - 1]
        elif dataset.terminals[stop - 1]:
            last = dataset.observations[stop - 1]
        else:
            stop -= 1  # Minari can keep only the observation of a timed-out last row
            last = dataset.observations[stop]
        if stop > start:
            rows = slice(start, stop)
            yield {
                "observations": dataset.observations[rows],
                "actions": dataset.actions[rows],
                "rewards": dataset.rewards[rows],
                "terminals": dataset.terminals[rows],
                "last": last,
            }
