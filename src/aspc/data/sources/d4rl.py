"""D4RL's files: downloaded once, then read as in D4RL's Q-learning view."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from aspc.data import cache, file_loader
from aspc.data.dataset import Dataset
from aspc.data.download import Record, fetch
from aspc.tasks import d4rl_datasets


def file_path(name: str) -> Path:
    """Return the path of a dataset's file in the cache; the file may not exist."""
    return cache.root() / "d4rl" / PurePosixPath(urlsplit(d4rl_datasets()[name].url).path).name


def download(name: str) -> Path:
    """Return the dataset's file; download it if it is not cached, and verify it if its SHA-256 is published."""
    dataset = d4rl_datasets()[name]
    published = None
    if dataset.size is not None and dataset.sha256 is not None:
        published = Record(dataset.size, dataset.sha256)
    return fetch(dataset.url, file_path(name), published)


def load(name: str, *, path: Path | None = None, **options: Any) -> Dataset:
    """Load a D4RL dataset without next observations, so that timeout rows are dropped as in D4RL's Q-learning view.

    Args:
        name: The dataset.
        path: The file to read. Default: the cached file, downloaded if missing.
        options: Options passed to `Dataset.from_arrays`.
    """
    arrays, notes, _ = file_loader.read_arrays(download(name) if path is None else path)
    arrays.pop("next_observations", None)
    return Dataset.from_arrays(**{"env": name, **arrays, **options}, name=name).with_notes(notes)
