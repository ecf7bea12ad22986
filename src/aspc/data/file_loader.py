"""Load datasets from files: HDF5 (D4RL's layout or a key map), NPZ, Parquet, Arrow, CSV, Excel, and folders of these.

Nothing is unpickled, and sizes in headers are checked before memory is allocated. Every file is parsed in a child
process with a memory limit and a timeout (`LimitedReader`), so that a damaged file causes an error, not a crash.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aspc import tasks
from aspc.action_space import ActionSpace
from aspc.data.cache import sanitize_file_name
from aspc.data.columns import KeyMap
from aspc.data.dataset import Dataset
from aspc.data.frames import is_frame, read_frame
from aspc.data.metadata import drop_forbidden_env
from aspc.data.read_options import ReadOptions
from aspc.data.readers.contents import Arrays, FileContents
from aspc.data.readers.episodes import read_files, read_path
from aspc.data.readers.formats import remove_suffix
from aspc.data.readers.limited_reader import LimitedReader
from aspc.data.row_preparation import prepare_rows
from aspc.errors import AspcError
from aspc.text import natural_sort_key
from aspc.ui import notify_if_slow


def load(
    source: Any,
    *,
    key_map: KeyMap | None = None,
    env: str | None = None,
    name: str | None = None,
    reward: str | None = None,
    kpis: str | Sequence[str] = (),
    one_hot: str | Sequence[str] = (),
    categorical: str | Sequence[str] = (),
    continuous: str | Sequence[str] = (),
    missing: str = "error",
    max_gap: float | None = None,
    resample: str | None = None,
    interval: float | None = None,
    **options: Any,
) -> Dataset:
    """Load a dataset from a file or a folder of episodes.

    A file whose name and sizes match a D4RL dataset gets that dataset's environment and reference scores.

    Args:
        source: A file, a folder, a pattern such as "logs/*.csv", a list of files, or a pandas or polars data frame.
        key_map: Stored names by array, e.g. `{"observations": "obs"}`; for a table, the columns of an array, e.g.
            `{"observations": ["temp", "flow_*"]}`.
        env: The environment; "none" for no environment.
        name: The dataset's name (default: from the path).
        reward: A formula over a table's columns that replaces the reward column, e.g. "0.3*energy + 0.7*comfort".
        kpis: Columns of a table that are kept with the dataset, but not used for training.
        one_hot: Categorical observation columns of a table; each category becomes one observation.
        categorical: Action columns (names or patterns) that are categorical although they hold numbers.
        continuous: Action columns (names or patterns) that are continuous although they look categorical.
        missing: Treatment of empty cells: "error", "split", "ffill", "interpolate" or "drop" (see docs/data.md).
        max_gap: The longest interval inside an episode, in multiples of the time column's median interval.
        resample: Method for resampling at equal intervals, "hold" or "interpolate".
        interval: Seconds per row after resampling (default: the median).
        options: Options of `Dataset.from_arrays`.

    Raises:
        AspcError: The file cannot be read, or its data is invalid.
    """
    read_options = ReadOptions.of(
        key_map,
        reward=reward,
        kpis=kpis,
        one_hot=one_hot,
        categorical=categorical,
        continuous=continuous,
        missing=missing,
        max_gap=max_gap,
        resample=resample,
        interval=interval,
        has_step_limit=options.get("max_episode_steps") is not None,
    )
    stem, (arrays, notes, metadata) = _read_source(source, read_options)
    if env is None:
        metadata, env_notes = drop_forbidden_env(metadata)
        notes = [*notes, *env_notes]
    if env is None and "env" not in metadata:
        shapes = np.shape(arrays["observations"]), np.shape(arrays["actions"])
        if len(shapes[0]) == 2 and len(shapes[1]) == 2:
            env = tasks.name_from_stem(stem, shapes[0][1], shapes[1][1])
    options |= {"categorical": read_options.categorical, "continuous": read_options.continuous}
    given = {key: value for key, value in {**options, "env": env}.items() if value is not None}
    settings = {**metadata, **given, "name": name or stem}
    if "action_space" in settings:  # from a file that this library wrote
        settings["action_space"] = ActionSpace.from_text(settings["action_space"])
    dataset = Dataset.from_arrays(**dict[str, Any](arrays), **settings)
    if "masks" in arrays and dataset.action_space is None:
        notes = [*notes, "the masks are unused, because no action is categorical; declare one with --categorical."]
    return dataset.with_notes(notes)


def _read_source(source: Any, options: ReadOptions) -> tuple[str, FileContents]:
    """Return the name and the contents of a file, a folder, several files or a data frame."""
    if is_frame(source):
        return "frame", prepare_rows(read_frame(source, options, "frame"), options, "frame")
    paths = find_files(source)
    label = Path(os.fspath(source)) if isinstance(source, str | os.PathLike) else paths[0].parent
    if len(paths) > 1:  # a pattern or a list is not a file name
        stem = sanitize_file_name(remove_suffix(label.name).replace("*", "").strip("-_. ") or label.parent.name)
    else:
        stem = remove_suffix(paths[0].name)
    with notify_if_slow(f"Reading {label.name} …"), LimitedReader() as reader:
        if len(paths) == 1:
            return stem, read_path(reader, paths[0], options)
        return stem or "files", read_files(reader, paths, options, label)


def is_pattern(name: str) -> bool:
    """Return whether a name is a file pattern rather than the name of an existing file."""
    # A generated dataset's name can have options, as in maze2d-umaze?steps=2000.
    return re.search(r"[*\[]|\?(?!\w+=)", name) is not None and not os.path.exists(name)


def find_files(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return the files of a path, a pattern or a list of paths; the matches of a pattern are in natural order.

    Raises:
        AspcError: No file matches, or the list is empty.
    """
    if not isinstance(source, str | os.PathLike):
        paths = [Path(os.fspath(path)) for path in source]
        if not paths:
            raise AspcError("The list of files is empty; name at least one.")
        return paths
    name = os.fspath(source)
    if not is_pattern(name):
        return [Path(name)]
    matches = sorted(glob.glob(name, recursive=True), key=natural_sort_key)
    if not matches:
        raise AspcError(f"No file matches {name!r}; check the folder and the pattern.")
    return [Path(match) for match in matches]


def read_arrays(path: Path, key_map: Mapping[str, Any] | None = None) -> FileContents:
    """Read the contents of a file or a folder of episodes."""
    with notify_if_slow(f"Reading {path.name} …"), LimitedReader() as reader:
        return read_path(reader, path, ReadOptions.of(key_map))


def read_npz(path: Path, *, required: Sequence[str], optional: Sequence[str] = ()) -> Arrays:
    """Read arrays of an NPZ file by their stored names, with the same limits and checks as for a dataset."""
    with notify_if_slow(f"Reading {path.name} …"), LimitedReader() as reader:
        return reader.call("read_npz", path, required=list(required), optional=list(optional)).arrays
