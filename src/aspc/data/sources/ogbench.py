"""OGBench's single-task datasets: names, files, rewards and masks."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from aspc.data import cache
from aspc.data.dataset import Dataset
from aspc.errors import AspcError

ADDRESS = "https://rail.eecs.berkeley.edu/datasets/ogbench"

SIZES = {
    "pointmaze": ("medium", "large", "giant", "teleport"),
    "antmaze": ("medium", "large", "giant", "teleport"),
    "humanoidmaze": ("medium", "large", "giant"),
    "antsoccer": ("arena", "medium"),
}
KINDS = {
    "pointmaze": ("navigate", "stitch"),
    "antmaze": ("navigate", "stitch", "explore"),
    "humanoidmaze": ("navigate", "stitch"),
    "antsoccer": ("navigate", "stitch"),
}
MANIPULATION = (
    "cube-single",
    "cube-double",
    "cube-triple",
    "cube-quadruple",
    "scene",
    "puzzle-3x3",
    "puzzle-4x4",
    "puzzle-4x5",
    "puzzle-4x6",
)
TASKS = ("", *(f"-task{i}" for i in range(1, 6)))


def known_names() -> list[str]:
    """All single-task names with state observations; without `-taskN` the default task is meant."""
    stems = [f"{agent}-{size}-{kind}" for agent in SIZES for size in SIZES[agent] for kind in KINDS[agent]]
    stems += [f"{task}-{kind}" for task in MANIPULATION for kind in ("play", "noisy")]
    return [f"{stem}-singletask{task}-v0" for stem in stems for task in TASKS]


def is_single_task(name: str) -> bool:
    """Whether a name has the form of OGBench's single-task names (`antmaze-large-navigate-singletask-task1-v0`)."""
    return re.fullmatch(r"[\w-]+-singletask(-task[1-5])?-v0", name) is not None


def environment_id(name: str) -> str:
    """The Gymnasium id of a single-task name: the name less the kind of data."""
    return re.sub(r"-[a-z]+(-singletask)", r"\1", name)


def file_stem(name: str) -> str:
    """The name of the data that the tasks of one environment share."""
    return re.sub(r"-singletask(-task[1-5])?", "", name)


def tasks_of_file(stem: str) -> list[str] | None:
    """Return the single-task names that share a file (`antmaze-large-navigate-v0`), None for an unknown stem.

    A validation file (`…-v0-val`) has none: tasks train on the other file.
    """
    found = _tasks_by_file().get(stem.removesuffix("-val"))
    return [] if found and stem.endswith("-val") else found


@functools.cache
def _tasks_by_file() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in known_names():
        found.setdefault(file_stem(name), []).append(name)
    return found


def file_path(name: str, split: str = "train") -> Path:
    """Where the training or validation file of a name lies in the cache, or will."""
    suffix = {"train": "", "val": "-val"}.get(split)
    if suffix is None:
        raise AspcError(f"OGBench's splits are train and val, not {split!r}.")
    return cache.root() / "ogbench" / f"{file_stem(name)}{suffix}.npz"


def download(name: str, split: str = "train") -> Path:
    """The training or validation file, downloaded if it is not in the cache."""
    from aspc.data.download import fetch

    path = file_path(name, split)
    return fetch(f"{ADDRESS}/{path.name}", path)


def load(name: str, *, split: str = "train", path: Path | None = None, **options: Any) -> Dataset:
    """A single-task dataset with OGBench's rewards and masks: where a mask is 0, nothing is bootstrapped.

    `split="val"` gives the validation file; `path` reads another file of OGBench's layout.
    """
    from aspc import envs
    from aspc.data import files

    env = envs.make_env(name)  # first: a wrong name needs no download
    stored = files.read_npz(
        path if path is not None else download(name, split),
        required=("observations", "actions", "terminals", "qpos"),
        optional=("button_states",),
    )
    arrays = transitions_of_trajectories(stored)
    relabel(name, env, arrays)
    env.close()
    ended = arrays["terminals"] != 0
    solved = arrays["masks"] == 0
    return Dataset.from_arrays(
        arrays["observations"],
        arrays["actions"],
        arrays["rewards"],
        solved,
        ended & ~solved,
        arrays["next_observations"],
        **{"env": name, "name": name, **options},
    )


def transitions_of_trajectories(stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Drop each trajectory's last row, whose action leads nowhere; its state is the next one of the row before."""
    ends = np.asarray(stored["terminals"]).astype(bool)
    if len(ends) < 2 or len({len(array) for array in stored.values()}) != 1:
        raise AspcError("An OGBench file needs arrays of one length, of two rows or more.")
    kept = np.flatnonzero(~ends[:-1])
    arrays = {key: array[kept] for key, array in stored.items()}
    arrays["next_observations"] = stored["observations"][kept + 1]
    arrays["terminals"] = ends[kept + 1] | (kept + 1 == len(ends) - 1)
    return arrays


def relabel(name: str, env: gym.Env[Any, Any], arrays: dict[str, np.ndarray]) -> None:
    """Add the task's `rewards` and `masks`, by OGBench's own definition."""
    from ogbench.relabel_utils import relabel_dataset

    relabel_dataset(environment_id(name), env, arrays)
