"""D4RL's files: downloaded once, then read with D4RL's own view of transitions."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from aspc.data import cache, files
from aspc.data.d4rl import datasets
from aspc.data.dataset import Dataset
from aspc.data.download import fetch
from aspc.errors import AspcError


def file_path(name: str) -> Path:
    """Where a dataset's file lies in the cache, or will."""
    return cache.folder("d4rl") / PurePosixPath(urlsplit(datasets()[name].url).path).name


def download(name: str) -> Path:
    """The dataset's file, downloaded if it is not in the cache."""
    return fetch(datasets()[name].url, file_path(name))


def load(name: str, **options: Any) -> Dataset:
    """A D4RL dataset with D4RL's own transitions: timeout rows are dropped, as its Q-learning view does."""
    facts = datasets()[name]
    arrays, notes, _ = files.read_arrays(download(name))
    arrays.pop("next_observations", None)
    dataset = Dataset.from_arrays(**{"env": name, **arrays, **options}, name=name)
    if (dataset.observation_size, dataset.action_size) != (facts.family.observation_size, facts.family.action_size):
        raise AspcError(
            f"{file_path(name)} holds observations of {dataset.observation_size} and actions of {dataset.action_size} "
            f"numbers; {name} has {facts.family.observation_size} and {facts.family.action_size}: it is another file."
        )
    return dataset.with_notes(notes)
