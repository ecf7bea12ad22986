"""OGBench's single-task datasets: files, rewards and masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from aspc import tasks
from aspc.data import cache
from aspc.data.dataset import Dataset
from aspc.data.download import fetch
from aspc.data.file_loader import read_npz
from aspc.envs import make_env
from aspc.errors import AspcError


def file_path(name: str, split: str = "train") -> Path:
    """Return the path of a task's training or validation file in the cache; the file may not exist."""
    suffix = {"train": "", "val": "-val"}.get(split)
    if suffix is None:
        raise AspcError(f"OGBench's splits are train and val, not {split!r}.")
    return cache.root() / "ogbench" / f"{tasks.ogbench_file_stem(name)}{suffix}.npz"


def download(name: str, split: str = "train") -> Path:
    """Return the path of the training or validation file; download the file if it is not in the cache."""
    path = file_path(name, split)
    return fetch(f"{tasks.OGBENCH_URL}/{path.name}", path)


def load(name: str, *, split: str = "train", path: Path | None = None, **options: Any) -> Dataset:
    """Load a single-task dataset with OGBench's rewards and masks; a mask of 0 disables bootstrapping.

    Args:
        name: Name of the single-task dataset.
        split: "train" or "val" (the validation file).
        path: A file in OGBench's layout, used instead of the downloaded file.
        options: Options passed to `Dataset.from_arrays`.
    """
    env = make_env(name)  # before the download, so that an invalid name fails at once
    stored = read_npz(
        path if path is not None else download(name, split),
        required=("observations", "actions", "terminals", "qpos"),
        optional=("button_states",),
    )
    arrays = trajectories_to_transitions(stored)
    relabel(name, env, arrays)
    env.close()
    is_last = arrays["terminals"] != 0
    is_solved = arrays["masks"] == 0
    return Dataset.from_arrays(
        arrays["observations"],
        arrays["actions"],
        arrays["rewards"],
        is_solved,
        is_last & ~is_solved,
        arrays["next_observations"],
        **{"env": name, "name": name, **options},
    )


def trajectories_to_transitions(stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Drop each trajectory's last row, after using its observation as the previous row's next observation."""
    ends = np.asarray(stored["terminals"]).astype(bool)
    if len(ends) < 2 or len({len(array) for array in stored.values()}) != 1:
        raise AspcError("An OGBench file needs at least two rows, and arrays of equal length.")
    rows = np.flatnonzero(~ends[:-1])
    arrays = {key: array[rows] for key, array in stored.items()}
    arrays["next_observations"] = stored["observations"][rows + 1]
    arrays["terminals"] = ends[rows + 1] | (rows + 1 == len(ends) - 1)
    return arrays


def relabel(name: str, env: gym.Env[Any, Any], arrays: dict[str, np.ndarray]) -> None:
    """Add the task's `rewards` and `masks` as OGBench defines them."""
    from ogbench.relabel_utils import relabel_dataset

    relabel_dataset(tasks.ogbench_env_id(name), env, arrays)
