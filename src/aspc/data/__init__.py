"""Datasets: one call gives any of them, `aspc.data.load(name_or_path)`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from aspc.data.dataset import Dataset, Transitions
from aspc.errors import AspcError, unknown_name

__all__ = ["Dataset", "Transitions", "known_names", "load"]


def known_names() -> list[str]:
    """The names of generated mazes, of D4RL's and of OGBench's single-task datasets."""
    from aspc import tasks
    from aspc.data.sources import maze2d, ogbench

    return [*maze2d.NAMES, *tasks.datasets(), *ogbench.known_names()]


def downloaded_file(name: str) -> Path | None:
    """Where a D4RL or OGBench dataset lies in the cache, or will; None for what is made here, or not kept by us."""
    from aspc import tasks
    from aspc.data.sources import d4rl as d4rl_files
    from aspc.data.sources import ogbench

    if name in tasks.datasets():
        return d4rl_files.file_path(name)
    return ogbench.file_path(name) if ogbench.is_single_task(name) else None


def load(name_or_path: str | os.PathLike[str], **options: Any) -> Dataset:
    """A dataset by its name or path.

    Names: a generated maze (`maze2d-umaze`, `maze2d-umaze-clean`, ..., with `?steps=1000000&seed=1` if wished), a
    D4RL dataset (`hopper-medium-v2`), an OGBench single task, a Minari id (`D4RL/pen/human-v2`).
    Paths: HDF5, NPZ, Parquet, Arrow, CSV, or a folder of episodes. Options are those of the kind's own loader
    (`aspc.data.files.load` for paths); one that the kind does not know is an error.
    """
    if not isinstance(name_or_path, str | os.PathLike):
        raise AspcError(
            f"A dataset is loaded by its name or path, not from {type(name_or_path).__name__}: write a table to a "
            "Parquet or CSV file and load that, or give its arrays to aspc.data.Dataset.from_arrays."
        )
    name = os.fspath(name_or_path)
    try:
        return _loader(name)(**options)
    except TypeError as error:
        if "unexpected keyword argument" in str(error):
            raise AspcError(
                f"{name}: {error.args[0].split('() ')[-1]} (an option that this dataset does not have)."
            ) from error
        raise


def _parsed(query: str) -> dict[str, Any]:
    try:
        return {key: int(value) for key, value in parse_qsl(query, keep_blank_values=True)}
    except ValueError as error:
        raise AspcError(f"In {query!r} each option is name=number, as in ?steps=1000000&seed=1.") from error


def _loader(name: str) -> Callable[..., Dataset]:
    from aspc import tasks
    from aspc.data import files, streaming
    from aspc.data.sources import d4rl as d4rl_files
    from aspc.data.sources import maze2d, minari, ogbench

    maze, _, query = name.partition("?")
    if maze in maze2d.NAMES:
        return partial(maze2d.load, maze, **_parsed(query))
    if name in tasks.datasets():
        return partial(d4rl_files.load, name)
    path = Path(name)
    if streaming.is_packed(path):
        raise AspcError(f"{path} is a packed folder, to be streamed: aspc.data.streaming.StreamingDataset opens it.")
    if path.exists() or name.lower().endswith(files.SUFFIXES):
        return partial(files.load, path)
    if ogbench.is_single_task(name):
        return partial(ogbench.load, name)
    if minari.is_id(name):
        return partial(minari.load, name)
    if not difflib.get_close_matches(name, known_names(), n=1, cutoff=0.5):
        raise AspcError(f"{name!r} is no file here and no dataset's name; `aspc data list` shows the names.")
    raise unknown_name("dataset", name, known_names())
