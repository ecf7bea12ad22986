"""Datasets, all of which are loaded with `aspc.data.load(name_or_path)`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from aspc import minari_store, tasks
from aspc.data.dataset import Dataset, Transitions
from aspc.errors import AspcError, unknown_name

__all__ = ["Dataset", "Transitions", "known_names", "load"]

# Functions import sources and readers lazily: the child process that parses files imports this package without them.


def known_names() -> list[str]:
    """Return the names of generated mazes, D4RL datasets and OGBench single tasks."""
    from aspc.data.sources import maze2d

    return [*maze2d.NAMES, *tasks.d4rl_datasets(), *tasks.ogbench_names()]


def downloaded_file(name: str) -> Path | None:
    """Return the cache path of a D4RL or OGBench dataset (the file may not exist), or None for any other name."""
    from aspc.data.sources import d4rl, ogbench

    if name in tasks.d4rl_datasets():
        return d4rl.file_path(name)
    return ogbench.file_path(name) if tasks.is_ogbench_task(name) else None


def load(source: Any, **options: Any) -> Dataset:
    """Load a dataset by name or path, or from a data frame.

    Args:
        source: A generated maze (`maze2d-umaze`, `maze2d-umaze-clean`, optionally with
            `?steps=1000000&seed=1`), a D4RL dataset (`hopper-medium-v2`), an OGBench single task, a Minari id
            (`D4RL/pen/human-v2`), a pandas or polars data frame, the path of an HDF5, NPZ, Parquet, Arrow, CSV or
            Excel file, the path of a folder of episodes, a pattern ("logs/*.csv"), or a list of paths.
        options: Options of the loader for this kind of source (`aspc.data.file_loader.load` for paths).

    Raises:
        AspcError: The dataset or an option is unknown, or the data is invalid.
    """
    if not is_source(source):
        raise AspcError(
            f"A dataset must be a name, a path, a list of paths or a data frame, not {type(source).__name__}. "
            "Write the data to a Parquet or CSV file and load that file, or pass arrays to "
            "aspc.data.Dataset.from_arrays."
        )
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else type(source).__name__
    try:
        is_name = isinstance(source, str | os.PathLike)
        return (_find_loader(name) if is_name else partial(_load_files, source))(**options)
    except TypeError as error:
        if "unexpected keyword argument" in str(error):
            raise AspcError(f"{name}: {error.args[0].split('() ')[-1]}; this dataset has no such option.") from error
        raise


def is_source(source: Any) -> bool:
    """Return whether a value is a source that `load` accepts: a name, a path, a list of paths or a data frame."""
    from aspc.data.frames import is_frame

    if isinstance(source, list | tuple):
        return all(isinstance(path, str | os.PathLike) for path in source)
    return isinstance(source, str | os.PathLike) or is_frame(source)


def _load_files(source: Any, **options: Any) -> Dataset:
    from aspc.data import file_loader

    return file_loader.load(source, **options)


def _parse_query(query: str) -> dict[str, Any]:
    try:
        return {key: int(value) for key, value in parse_qsl(query, keep_blank_values=True)}
    except ValueError as error:
        raise AspcError(f"Invalid options {query!r}; write name=number, as in ?steps=1000000&seed=1.") from error


def _find_loader(name: str) -> Callable[..., Dataset]:
    from aspc.data import file_loader, streaming
    from aspc.data.readers import formats
    from aspc.data.sources import d4rl, maze2d, minari, ogbench

    maze, _, query = name.partition("?")
    if maze in maze2d.NAMES:
        return partial(maze2d.load, maze, **_parse_query(query))
    if name in tasks.d4rl_datasets():
        return partial(d4rl.load, name)
    path = Path(name)
    if streaming.is_packed(path):
        raise AspcError(f"{path} is a packed folder; open it with aspc.data.streaming.StreamingDataset.")
    if path.exists() or name.lower().endswith(formats.SUFFIXES) or file_loader.is_pattern(name):
        return partial(file_loader.load, path)
    if tasks.is_ogbench_task(name):
        return partial(ogbench.load, name)
    if minari_store.is_id(name):
        return partial(minari.load, name)
    if not difflib.get_close_matches(name, known_names(), n=1, cutoff=0.5):
        raise AspcError(f"{name!r} is neither a file nor a dataset name; `aspc data list` shows the names.")
    raise unknown_name("dataset", name, known_names())
