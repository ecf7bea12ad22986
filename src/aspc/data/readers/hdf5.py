"""A reader of HDF5 files that checks the declared sizes, then reads slab by slab."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from aspc.data.columns import resolve_arrays, unused_array_notes
from aspc.data.metadata import HDF5_ATTRIBUTE, parse_metadata
from aspc.data.read_options import ReadOptions, check_array_options
from aspc.data.readers.array_files import ArrayFile
from aspc.data.readers.contents import Arrays, FileContents
from aspc.data.readers.limits import ReadLimits
from aspc.errors import AspcError

MAX_OBJECTS = 20_000  # groups and arrays in a file
MAX_DEPTH = 32  # nesting depth of groups; HDF5's run time grows with the cube of the depth
MAX_COMPRESSION = 1100  # deflate's best ratio is 1032 : 1
SLAB_BYTES = 4_000_000


def read_hdf5(path: Path, options: ReadOptions, limits: ReadLimits) -> FileContents:
    """Read a dataset from an HDF5 file."""
    import h5py

    check_array_options(options, path.name)
    with h5py.File(path, "r") as file:
        stored = stored_arrays(file, path.name, limits)
        found, notes = resolve_arrays(stored, options.key_map, path.name, options.needs_no_ends)
        needed = decoding = 0
        for source in found.values():
            dataset = file[source]
            stated = check_dataset(dataset, f"{path.name}: {source!r}")
            needed += loading_bytes(dataset.dtype, stated // dataset.dtype.itemsize)
            decoding = max(decoding, decoding_bytes(dataset))
        limits.require(needed + decoding, path.name)
        arrays = {key: copy_dataset(file[source], limits) for key, source in found.items()}
        notes += unused_array_notes({key: file[key].shape or () for key in stored}, found)
        metadata = parse_metadata(file.attrs.get(HDF5_ATTRIBUTE))
    return FileContents(arrays, notes, metadata)


def read_trusted_hdf5(path: Path) -> Arrays:
    """Read a file that this library has written, in this process."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            return {key: np.asarray(item[()]) for key, item in file.items()}
    except (OSError, KeyError, ValueError) as error:
        raise AspcError(f"The cached file {path} is damaged; delete it, and it will be generated again.") from error


def stored_arrays(file: Any, name: str, limits: ReadLimits) -> list[str]:
    """Return the names of the arrays in an open HDF5 file.

    Raises:
        AspcError: The file holds too many objects or too deeply nested groups.
    """
    import h5py

    found: list[str] = []
    visited = 0

    def visit(key: str, item: Any) -> bool | None:
        nonlocal visited
        visited += 1
        limits.progress()
        if visited > MAX_OBJECTS or key.count("/") >= MAX_DEPTH:
            return True  # stops the traversal
        if isinstance(item, h5py.Dataset):
            found.append(key)
        return None

    if file.visititems(visit):
        raise AspcError(
            f"{name} holds more than {MAX_OBJECTS:,} objects, or groups nested more than {MAX_DEPTH} deep. Copy the "
            "dataset's arrays to a separate file."
        )
    return found


def check_dataset(dataset: Any, name: str) -> int:
    """Check the type and the declared size of an HDF5 dataset; return its size in bytes."""
    if dataset.dtype.kind not in "fiub":
        raise AspcError(f"{name} must hold numbers, not {dataset.dtype}.")
    if dataset.shape is None or len(dataset.shape) not in (1, 2):
        raise AspcError(f"{name} must have one or two axes, but its shape is {dataset.shape}.")
    if dataset.external or dataset.is_virtual:
        raise AspcError(f"{name} links to data in another HDF5 file; copy that data into this file.")
    stated = math.prod(dataset.shape) * dataset.dtype.itemsize
    stored = int(dataset.id.get_storage_size())
    if stated > MAX_COMPRESSION * stored + 4096:
        raise AspcError(f"{name} declares {dataset.shape[0]:,} rows, but the file has only {stored:,} bytes for them.")
    return int(stated)


def loading_bytes(dtype: np.dtype[Any], count: int) -> int:
    """Return the bytes needed to load an array, including its float32 copy if one is made."""
    return count * (dtype.itemsize + (0 if dtype == np.float32 or dtype.itemsize == 1 else 4))


def decoding_bytes(dataset: Any) -> int:
    """Return the bytes needed to read one slab: the slab, and one chunk before and after decompression."""
    chunk = 0 if dataset.chunks is None else int(math.prod(dataset.chunks) * dataset.dtype.itemsize)
    return slab_rows(dataset) * _row_bytes(dataset) + 2 * chunk


def slab_rows(dataset: Any) -> int:
    """Return the number of rows per slab: a multiple of the chunk length, so that each chunk is decompressed once."""
    rows = max(1, SLAB_BYTES // _row_bytes(dataset))
    if dataset.chunks is None:
        return min(rows, max(1, len(dataset)))
    chunk = max(1, int(dataset.chunks[0]))
    return min(math.ceil(rows / chunk) * chunk, max(1, len(dataset)))


def _row_bytes(dataset: Any) -> int:
    return max(1, int(math.prod(dataset.shape[1:]) * dataset.dtype.itemsize))


def copy_dataset(dataset: Any, limits: ReadLimits) -> np.ndarray:
    """Return all rows of a dataset as an array that another process can memory-map."""
    result, length, step = ArrayFile(), len(dataset), slab_rows(dataset)
    decoding, most = decoding_bytes(dataset), MAX_COMPRESSION * int(dataset.id.get_storage_size())
    slab = np.empty((min(step, length), *dataset.shape[1:]), dataset.dtype)
    for start in range(0, length, step):
        limits.progress(min(decoding, most))
        part = slab[: length - start]
        if part.size:
            dataset.read_direct(part, source_sel=slice(start, start + len(part)))
        result.write(part)
    return result.array(np.dtype(dataset.dtype.str), dataset.shape)
