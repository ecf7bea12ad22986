"""Minari datasets: any with Box actions and flat (or flattened) observations, in and out."""

from __future__ import annotations

import os
import re
import socket
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from aspc.data.cache import notify_if_slow
from aspc.data.dataset import Dataset
from aspc.data.readers.limited_reader import LimitedReader
from aspc.data.readers.limits import read_json
from aspc.data.readers.minari import METADATA, check_metadata, evaluation_spec
from aspc.errors import AspcError, MissingExtra, first_line

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


def is_id(name: str) -> bool:
    """Return whether a name is a Minari id: it has the prefix, or a namespace and a version."""
    return name.startswith(PREFIX) or ("/" in name and re.search(r"-v\d+$", name) is not None)


def _data_folder(name: str) -> Path:
    """Return where a dataset's files are in Minari's store, or would be."""
    _package()
    from minari.storage.datasets_root_dir import get_dataset_path

    return Path(get_dataset_path(identifier(name)), "data")


def is_local(name: str) -> bool:
    """Return whether a dataset is in Minari's store on this machine."""
    return os.path.exists(_data_folder(name))  # Path.exists raises on a name that is too long


def _load_local(name: str) -> Any:
    """Load a dataset from the store without making its environment, as Minari does for one that states no spaces."""
    check_metadata(_data_folder(name))
    return _package().load_dataset(identifier(name))


def _open(name: str) -> Any:
    """A local Minari dataset, downloaded if it is not there yet."""
    minari, dataset_id = _package(), identifier(name)
    try:
        if is_local(name):
            return _load_local(name)
    except Exception as error:  # a boundary: a damaged folder raises whatever its reader feels like
        raise AspcError(f"The Minari dataset {dataset_id} cannot be read: {error}") from error
    advice = f"run `minari download {dataset_id}` on a machine with a network and copy its folder"
    if not _network_is_there():
        raise AspcError(f"The Minari dataset {dataset_id} is not on this machine and there is no network; {advice}.")
    try:
        minari.download_dataset(dataset_id)
        return _load_local(name)
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
    dataset_id = identifier(name)
    folder = _local_folder(name)
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
    return Dataset.from_episodes(_split_episodes(arrays), **settings).with_notes(notes)


def _local_folder(name: str) -> Path:
    """Return the folder of a dataset's files, downloaded if it is not there yet."""
    if not is_local(name):
        _open(name)
    return _data_folder(name)


def _split_episodes(arrays: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Episodes as `Dataset.from_episodes` takes them, of arrays that hold one after the other."""
    ends = np.cumsum(arrays["steps"])
    cuts = dict.fromkeys(("actions", "rewards", "terminals"), ends)
    cuts["observations"] = ends + np.arange(1, len(ends) + 1)
    parts = {key: np.split(arrays[key], cut[:-1]) for key, cut in cuts.items() if key in arrays}
    return [{key: part[i] for key, part in parts.items()} for i in range(len(ends))]


def recover_environment(name: str) -> gym.Env[Any, Any]:
    """Make the environment that a Minari dataset says to evaluate in.

    Raises:
        AspcError: If the dataset states none, its entry point is not of a known package, or making it fails.
    """
    from aspc.envs.allowed import problem_with_spec
    from aspc.envs.packages import quiet_packages

    spec, dataset_id = evaluation_spec(_open(name)), identifier(name)
    if spec is None:
        raise AspcError(f"The Minari dataset {dataset_id} states no environment; name one with --env.")
    if problem := problem_with_spec(spec):
        raise AspcError(
            f"The environment of {dataset_id} is not made: {problem}; name one that you trust with --env MODULE:ID."
        )
    with quiet_packages():
        try:
            return gym.make(spec)
        except Exception as error:  # a boundary: what a constructor raises on arguments that do not fit
            reason = first_line(error)
            raise AspcError(f"The environment of {dataset_id} cannot be made: {reason}.") from error


def reference_scores(name: str) -> tuple[float, float] | None:
    """The scores that the dataset itself carries."""
    try:
        metadata = read_json(_local_folder(name) / METADATA)
        low, high = (metadata.get(f"ref_{end}_score") for end in ("min", "max"))
        return None if low is None or high is None else (float(low), float(high))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise AspcError(f"The Minari dataset {identifier(name)} cannot be read: its {METADATA} is damaged.") from error


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
