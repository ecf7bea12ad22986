"""Pieces of datasets, which are collected in several processes, kept on disk, and joined once a dataset is complete."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from aspc.data import writers
from aspc.io import atomic_output
from recipes.policies import Arrays, load_arrays

RECIPE_VERSION = 1  # part of a piece's file name; increment it when a recipe's rows change for the same arguments


class Piece(NamedTuple):
    """A set of rows of a dataset, which `collect(*arguments)` returns. Datasets can share pieces."""

    collect: Callable[..., Arrays]
    arguments: tuple[Any, ...]
    rows: int

    def path(self, folder: Path) -> Path:
        """Return the path of the piece. Its name is a hash of the definition, including the policy file's content."""
        facts = [(a.name, _checksum(a)) if isinstance(a, Path) else a for a in self.arguments]
        identity = repr((RECIPE_VERSION, self.collect.__name__, facts))
        return folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.npz"


@cache
def _checksum(file: Path) -> int:
    return zlib.crc32(file.read_bytes())


def collect_piece(piece: Piece, folder: Path) -> None:
    """Collect a piece and write it to its file, unless the file already exists."""
    path = piece.path(folder)
    if not path.exists():
        writers.write_npz(path, piece.collect(*piece.arguments))


def write_hdf5(target: Path, pieces: Sequence[Piece], folder: Path) -> None:
    """Join pieces into an HDF5 file, with only one piece in memory at a time."""
    total, start = sum(piece.rows for piece in pieces), 0
    with atomic_output(target) as temporary, h5py.File(temporary, "w") as file:
        for arrays in _stored(pieces, folder):
            rows = len(arrays["rewards"])
            for key, array in arrays.items():
                column = file.require_dataset(key, (total, *array.shape[1:]), array.dtype)
                column[start : start + rows] = array
            start += rows
        if start != total:
            raise AssertionError(f"{target.name} has {start} rows instead of {total}")


def write_npz(target: Path, pieces: Sequence[Piece], folder: Path) -> None:
    """Join pieces into an NPZ file."""
    parts = list(_stored(pieces, folder))
    writers.write_npz(target, {key: np.concatenate([part[key] for part in parts]) for key in parts[0]})


def _stored(pieces: Sequence[Piece], folder: Path) -> Iterator[Arrays]:
    return (load_arrays(piece.path(folder)) for piece in pieces)
