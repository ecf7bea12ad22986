"""Reading arrays of an HDF5 file piece by piece, after the sizes that it states have been checked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from aspc.data.readers.array_files import ArrayFile
from aspc.data.readers.limits import ReadLimits
from aspc.errors import AspcError

MAX_OBJECTS = 20_000  # groups and arrays in a file
MAX_DEPTH = 32  # groups in groups: HDF5 takes time that grows with the cube of it
MAX_COMPRESSION = 1100  # deflate's best ratio is 1032 : 1
SLAB_BYTES = 4_000_000


def stored_arrays(file: Any, name: str, limits: ReadLimits) -> list[str]:
    """Return the names of the arrays in an open HDF5 file.

    Raises:
        AspcError: it holds more objects, or deeper groups, than a dataset has.
    """
    import h5py

    found: list[str] = []
    visited = 0

    def visit(key: str, item: Any) -> bool | None:
        nonlocal visited
        visited += 1
        limits.progress()
        if visited > MAX_OBJECTS or key.count("/") >= MAX_DEPTH:
            return True  # ends the visit
        if isinstance(item, h5py.Dataset):
            found.append(key)
        return None

    if file.visititems(visit):
        raise AspcError(
            f"{name} holds more than {MAX_OBJECTS:,} objects, or groups nested more than {MAX_DEPTH} deep; copy the "
            "arrays of the dataset to a file of their own."
        )
    return found


def check_dataset(dataset: Any, name: str) -> int:
    """Return the bytes of an HDF5 dataset, once it is known to hold numbers that are really in the file."""
    if dataset.dtype.kind not in "fiub":
        raise AspcError(f"{name} must hold numbers, not {dataset.dtype}.")
    if dataset.shape is None or len(dataset.shape) not in (1, 2):
        raise AspcError(f"{name} must have one or two axes, but its shape is {dataset.shape}.")
    if dataset.external or dataset.is_virtual:
        raise AspcError(f"{name} lies in another file; copy the data into this one.")
    stated = math.prod(dataset.shape) * dataset.dtype.itemsize
    held = int(dataset.id.get_storage_size())
    if stated > MAX_COMPRESSION * held + 4096:
        raise AspcError(f"{name} claims {dataset.shape[0]:,} rows, but the file holds {held:,} bytes of them.")
    return stated


def loading_bytes(dtype: np.dtype[Any], count: int) -> int:
    """Return the bytes that loading an array takes: its own, and those of its float32 copy where it needs one."""
    return count * (dtype.itemsize + (0 if dtype == np.float32 or dtype.itemsize == 1 else 4))


def decoding_bytes(dataset: Any) -> int:
    """Return the bytes that reading one slab of a dataset takes: the slab, and a chunk before and after its filters."""
    row = _row_bytes(dataset)
    if dataset.chunks is None:
        return slab_rows(dataset) * row
    return slab_rows(dataset) * row + 2 * math.prod(dataset.chunks) * dataset.dtype.itemsize


def slab_rows(dataset: Any) -> int:
    """Return how many rows to read at once: whole chunks, so that each is decompressed once."""
    rows = max(1, SLAB_BYTES // _row_bytes(dataset))
    if dataset.chunks is None:
        return min(rows, max(1, len(dataset)))
    chunk = max(1, int(dataset.chunks[0]))
    return min(math.ceil(rows / chunk) * chunk, max(1, len(dataset)))


def _row_bytes(dataset: Any) -> int:
    return max(1, math.prod(dataset.shape[1:]) * dataset.dtype.itemsize)


def copy_dataset(dataset: Any, limits: ReadLimits) -> np.ndarray:
    """Return all rows of a dataset as an array that can be handed to another process."""
    result, length, step = ArrayFile(), len(dataset), slab_rows(dataset)
    decoding, held = decoding_bytes(dataset), MAX_COMPRESSION * int(dataset.id.get_storage_size())
    slab = np.empty((min(step, length), *dataset.shape[1:]), dataset.dtype)
    for rows in _slices(length, step):
        limits.progress(min(decoding, held))
        part = slab[: rows.stop - rows.start]
        if part.size:
            dataset.read_direct(part, source_sel=rows)
        result.write(part)
    return result.array(np.dtype(dataset.dtype.str), dataset.shape)


def _slices(length: int, step: int) -> Iterator[slice]:
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))
