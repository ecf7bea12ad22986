"""Minari datasets: any with Box actions and flat (or flattened) observations, in and out."""

from __future__ import annotations

import os
import socket
import warnings
from typing import Any

import gymnasium as gym
import numpy as np

from aspc.data.dataset import Dataset
from aspc.errors import AspcError, MissingExtra

PREFIX = "minari:"  # marks a Minari id where other names are possible


def _package() -> Any:
    try:
        import minari
    except ImportError as error:
        raise MissingExtra("Minari datasets", "minari") from error
    return minari


def identifier(name: str) -> str:
    """The Minari id of a name with or without the prefix."""
    return name.removeprefix(PREFIX)


def _open(name: str) -> Any:
    """A local Minari dataset, downloaded if it is not there yet."""
    minari, dataset_id = _package(), identifier(name)
    try:
        return minari.load_dataset(dataset_id)
    except FileNotFoundError:
        pass
    except Exception as error:  # a boundary: a damaged folder raises whatever its reader feels like
        raise AspcError(f"The Minari dataset {dataset_id} cannot be read: {error}") from error
    advice = f"run `minari download {dataset_id}` on a machine with a network and copy its folder"
    if not _network_is_there():
        raise AspcError(f"The Minari dataset {dataset_id} is not on this machine and there is no network; {advice}.")
    try:
        minari.download_dataset(dataset_id)
        return minari.load_dataset(dataset_id)
    except Exception as error:  # the hub's client raises errors of many packages
        detail = " ".join(str(error).split())[:200]
        raise AspcError(f"The Minari dataset {dataset_id} could not be downloaded ({detail}); {advice}.") from error


def _network_is_there() -> bool:
    """Whether the hub's name can be found: Minari itself would try for half a minute."""
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return False
    if any(os.environ.get(key) for key in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    try:
        socket.getaddrinfo("huggingface.co", 443)
    except OSError:
        return False
    return True


def download(name: str) -> str:
    """Make sure that a dataset is in Minari's store; says its id."""
    _open(name)
    return identifier(name)


def load(name: str, **options: Any) -> Dataset:
    """A Minari dataset by its id; dict observations are flattened in the order of their space's keys."""
    source = _open(name)
    dataset_id = identifier(name)
    if not isinstance(source.action_space, gym.spaces.Box):
        raise AspcError(
            f"{dataset_id}: its actions are {source.action_space}; this library is for continuous (Box) ones."
        )
    space = source.observation_space
    order = _flat_order(space, dataset_id)
    try:
        episodes = [_episode(episode, space) for episode in source.iterate_episodes()]
    except Exception as error:  # a boundary: a damaged folder raises whatever its reader feels like
        raise AspcError(f"The Minari dataset {dataset_id} cannot be read: {error}") from error
    low, high = source.action_space.low.ravel(), source.action_space.high.ravel()
    if np.isfinite(low).all() and np.isfinite(high).all():
        options = {"action_low": low, "action_high": high, **options}
    scores = {key: source.storage.metadata.get(f"{key}_score") for key in ("ref_min", "ref_max")}
    env = None if source.env_spec is None else f"{PREFIX}{dataset_id}"
    dataset = Dataset.from_episodes(episodes, **{"name": dataset_id, "env": env, **scores, **options})
    return dataset.with_notes([f"observations are flattened in this order: {order}."] if order else [])


def _flat_order(space: gym.Space[Any], name: str) -> str:
    """How a structured observation is laid out flat, or '' for one that is flat already."""
    if isinstance(space, gym.spaces.Box) and space.shape is not None and len(space.shape) == 1:
        return ""
    if isinstance(space, gym.spaces.Box):
        return f"all {space.shape} numbers, last axis fastest"
    if isinstance(space, gym.spaces.Dict) and all(isinstance(s, gym.spaces.Box) for s in space.spaces.values()):
        return ", ".join(f"{key} ({int(np.prod(part.shape or ()))})" for key, part in space.spaces.items())
    raise AspcError(f"{name}: its observations are {space}; only Box and Dict of Box spaces work.")


def _flatten(space: gym.Space[Any], values: Any) -> np.ndarray:
    """Observations of one episode as [T + 1, size]."""
    if isinstance(space, gym.spaces.Dict):
        return np.concatenate([_flatten(part, values[key]) for key, part in space.spaces.items()], axis=1)
    return np.asarray(values).reshape(len(values), -1)


def _episode(episode: Any, space: gym.Space[Any]) -> dict[str, Any]:
    return {
        "observations": _flatten(space, episode.observations),
        "actions": np.asarray(episode.actions, dtype=np.float32).reshape(len(episode.rewards), -1),
        "rewards": episode.rewards,
        "terminals": np.asarray(episode.terminations, dtype=bool),
    }


def recover_environment(name: str) -> gym.Env[Any, Any]:
    """The environment that a Minari dataset says to evaluate in."""
    source = _open(name)
    from aspc.envs import quiet_packages

    with quiet_packages(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*(requirement|is not installed).*", category=UserWarning)
        try:
            return source.recover_environment(eval_env=True)
        except (ValueError, gym.error.Error, ImportError) as error:
            raise AspcError(f"The environment of {identifier(name)} cannot be made: {error}") from error


def reference_scores(name: str) -> tuple[float, float] | None:
    """The scores that the dataset itself carries."""
    metadata = _open(name).storage.metadata
    low, high = metadata.get("ref_min_score"), metadata.get("ref_max_score")
    return None if low is None or high is None else (float(low), float(high))


def write(dataset: Dataset, dataset_id: str) -> list[str]:
    """Write a dataset into Minari's own store; it is whole there or not there at all. Returns notes on what is lost.

    Minari keeps T + 1 observations an episode: without logged next observations an episode that timed out loses its
    last row (its observation becomes the last one), and a terminal row's observation is repeated.
    """
    minari = _package()
    from minari.data_collector.episode_buffer import EpisodeBuffer

    if dataset_id in minari.list_local_datasets():
        raise AspcError(f"Minari has a dataset {dataset_id} already; choose another id or delete that one.")
    buffers = [
        EpisodeBuffer(
            id=i,
            observations=np.concatenate([episode["observations"], episode["last"][None]]),
            actions=episode["actions"],
            rewards=list(episode["rewards"].astype(float)),
            terminations=[bool(flag) for flag in episode["terminals"]],
            truncations=[*([False] * (len(episode["rewards"]) - 1)), not episode["terminals"][-1]],
        )
        for i, episode in enumerate(episodes_with_last(dataset))
    ]
    if not buffers:
        raise AspcError(f"{dataset.name}: no episode is long enough to be written.")
    environment = _minari_environment(dataset.env)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="minari.*")  # no author, no licence, ...
        written = minari.create_dataset_from_buffers(
            dataset_id,
            buffers,
            env=environment,
            observation_space=gym.spaces.Box(-np.inf, np.inf, (dataset.observation_size,), np.float32),
            action_space=gym.spaces.Box(dataset.action_low, dataset.action_high, dtype=np.float32),
            description=f"Converted from {dataset.name} by aspc.",
        )
    if dataset.ref_min is not None and dataset.ref_max is not None:  # without an environment Minari would drop them
        written.storage.update_metadata({"ref_min_score": dataset.ref_min, "ref_max_score": dataset.ref_max})
    notes = []
    if dataset.env is not None and environment is None:
        notes.append(
            f"Minari cannot keep the environment {dataset.env}; give it with --env where you use {dataset_id}."
        )
    if dataset.observation_names or dataset.action_names:
        notes.append("Minari cannot keep the names of columns.")
    return notes


def _minari_environment(env: str | None) -> Any:
    """The Gymnasium specification of an environment, where it has one that Minari can make again."""
    if env is None:
        return None
    from aspc import envs

    made = envs.make_env(env)
    spec = made.spec
    made.close()
    return spec


def episodes_with_last(dataset: Dataset) -> Any:
    """Each episode's arrays and the observation after its last row."""
    starts, stops = dataset.episode_bounds
    if dataset.next_observations is not None:
        inside = np.setdiff1d(np.arange(len(dataset)), stops - 1)
        apart = (dataset.next_observations[inside] != dataset.observations[inside + 1]).any(axis=1)
        if apart.any():
            raise AspcError(
                f"{dataset.name}: the next observation of row {inside[apart.argmax()] + 1} is not the observation of "
                "the row after it, so the rows are no trajectory; mark where episodes end and try again."
            )
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        if dataset.next_observations is not None:
            last = dataset.next_observations[stop - 1]
        elif dataset.terminals[stop - 1]:
            last = dataset.observations[stop - 1]
        else:
            stop -= 1  # the row that a timeout cut: its observation is all that can be kept
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
