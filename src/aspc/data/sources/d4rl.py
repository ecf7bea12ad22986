"""D4RL's files: downloaded once, then read with D4RL's own view of transitions."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from aspc.data import cache, files
from aspc.data.dataset import Dataset
from aspc.data.download import Record, fetch
from aspc.tasks import datasets


def file_path(name: str) -> Path:
    """Where a dataset's file lies in the cache, or will."""
    return cache.root() / "d4rl" / PurePosixPath(urlsplit(datasets()[name].url).path).name


def download(name: str) -> Path:
    """Return the dataset's file, downloaded if it is not in the cache, and verified where its SHA-256 is published."""
    dataset = datasets()[name]
    published = None
    if dataset.size is not None and dataset.sha256 is not None:
        published = Record(dataset.size, dataset.sha256)
    return fetch(dataset.url, file_path(name), published)


def load(name: str, *, path: Path | None = None, **options: Any) -> Dataset:
    """A D4RL dataset with D4RL's own transitions: timeout rows are dropped, as its Q-learning view does.

    `path` is another file than the one in the cache, which is downloaded where it is not there.
    """
    arrays, notes, _ = files.read_arrays(download(name) if path is None else path)
    arrays.pop("next_observations", None)
    return Dataset.from_arrays(**{"env": name, **arrays, **options}, name=name).with_notes(notes)
