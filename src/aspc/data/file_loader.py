"""Load datasets from files: HDF5 (D4RL's layout or a key map), NPZ, Parquet, Arrow, CSV, and folders of them.

Nothing is unpickled, and sizes in headers are checked before memory is allocated. Every file is parsed in a child
process with a memory limit and a timeout (`LimitedReader`), so that a damaged file causes an error, not a crash.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aspc import tasks
from aspc.data.columns import KeyMap
from aspc.data.dataset import Dataset
from aspc.data.metadata import drop_forbidden_env
from aspc.data.read_options import ReadOptions
from aspc.data.readers.contents import Arrays, FileContents
from aspc.data.readers.episodes import read_path
from aspc.data.readers.formats import remove_suffix
from aspc.data.readers.limited_reader import LimitedReader
from aspc.ui import notify_if_slow


def load(
    path: str | os.PathLike[str],
    *,
    key_map: KeyMap | None = None,
    env: str | None = None,
    name: str | None = None,
    reward: str | None = None,
    kpis: str | Sequence[str] = (),
    one_hot: str | Sequence[str] = (),
    missing: str = "error",
    max_gap: float | None = None,
    resample: str | None = None,
    interval: float | None = None,
    **options: Any,
) -> Dataset:
    """Load a dataset from a file or a folder of episodes.

    A file whose name and sizes match a D4RL dataset gets that dataset's environment and reference scores.

    Args:
        path: The file or folder.
        key_map: Stored names by array, e.g. `{"observations": "obs"}`; for a table, the columns of an array, e.g.
            `{"observations": ["temp", "flow_*"]}`.
        env: The environment; "none" for no environment.
        name: The dataset's name (default: from the path).
        reward: A formula of a table's columns that replaces the reward column, e.g. "0.3*energy + 0.7*comfort".
        kpis: Columns of a table that are carried along, but not learned from.
        one_hot: Observation columns of a table whose values are categories: each category becomes an observation.
        missing: Treatment of empty cells: "error", "split", "ffill", "interpolate" or "drop" (see docs/data.md).
        max_gap: The longest interval inside an episode, in median intervals of the time column.
        resample: "hold" or "interpolate" to make intervals equal.
        interval: Seconds per row after resampling (default: the median).
        options: Options of `Dataset.from_arrays`.

    Raises:
        AspcError: The file cannot be read, or its data is invalid.
    """
    path = Path(path)
    stem = remove_suffix(path.name)
    read_options = ReadOptions.of(
        key_map,
        reward=reward,
        kpis=kpis,
        one_hot=one_hot,
        missing=missing,
        max_gap=max_gap,
        resample=resample,
        interval=interval,
        has_step_limit=options.get("max_episode_steps") is not None,
    )
    with notify_if_slow(f"Reading {path.name} …"), LimitedReader() as reader:
        arrays, notes, metadata = read_path(reader, path, read_options)
    if env is None:
        metadata, env_notes = drop_forbidden_env(metadata)
        notes = [*notes, *env_notes]
    if env is None and "env" not in metadata:
        shapes = np.shape(arrays["observations"]), np.shape(arrays["actions"])
        if len(shapes[0]) == 2 and len(shapes[1]) == 2:
            env = tasks.name_from_stem(stem, shapes[0][1], shapes[1][1])
    given = {key: value for key, value in {**options, "env": env}.items() if value is not None}
    settings = {**metadata, **given, "name": name or stem}
    return Dataset.from_arrays(**dict[str, Any](arrays), **settings).with_notes(notes)


def read_arrays(path: Path, key_map: Mapping[str, Any] | None = None) -> FileContents:
    """Read the contents of a file or a folder of episodes."""
    with notify_if_slow(f"Reading {path.name} …"), LimitedReader() as reader:
        return read_path(reader, path, ReadOptions.of(key_map))


def read_npz(path: Path, *, required: Sequence[str], optional: Sequence[str] = ()) -> Arrays:
    """Read arrays of an NPZ file by their stored names, with the same limits and checks as a dataset."""
    with notify_if_slow(f"Reading {path.name} …"), LimitedReader() as reader:
        return reader.call("read_npz", path, required=list(required), optional=list(optional)).arrays
