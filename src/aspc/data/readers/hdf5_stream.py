"""An HDF5 file of any size, read in ranges of rows by the child process while it is packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from aspc.data.columns import KeyMap, resolve_arrays, unused_array_notes
from aspc.data.metadata import HDF5_ATTRIBUTE, parse_metadata
from aspc.data.readers import hdf5
from aspc.data.readers.limits import MEMORY_VARIABLE, ReadLimits, size_text
from aspc.errors import AspcError, first_line

FLAGS = ("terminals", "timeouts", "episodes")


class HDF5Log:
    """An open file whose stated sizes have been checked. Only its flags are read completely."""

    def __init__(self, path: Path, key_map: KeyMap, limits: ReadLimits, needs_no_ends: bool) -> None:
        import h5py

        try:
            self._file = h5py.File(path, "r")
        except OSError as error:
            raise AspcError(f"{path}: the file is absent, damaged or not HDF5 ({first_line(error)}).") from error
        self._path, self._limits = path, limits
        stored = hdf5.stored_arrays(self._file, path.name, limits)
        self._found, notes = resolve_arrays(stored, key_map, path.name, needs_no_ends)
        needed = 0
        for key, source in self._found.items():
            dataset = self._file[source]
            stated = hdf5.check_dataset(dataset, f"{path.name}: {source!r}")
            needed += (2 * stated if key in FLAGS else 0) + hdf5.decoding_bytes(dataset)
        if needed > limits.budget_bytes:
            raise AspcError(
                f"{path.name}: reading it in parts requires {size_text(needed)} of memory, but the limit is "
                f"{size_text(limits.budget_bytes)}. Write it with smaller chunks, or raise the limit with "
                f"{MEMORY_VARIABLE}."
            )
        sizes = {key: len(self._file[source]) for key, source in self._found.items()}
        if len(set(sizes.values())) != 1:
            raise AspcError(f"{path.name}: its arrays differ in length: {sizes}.")
        if any(self._file[self._found[key]].ndim != 2 for key in ("observations", "actions")):
            raise AspcError(f"{path.name}: observations and actions must have two axes (rows, features).")
        self._datasets = {key: self._with_chunk_cache(source) for key, source in self._found.items()}
        shapes = {key: self._file[key].shape or () for key in stored}
        self._notes = [*notes, *unused_array_notes(shapes, self._found)]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _with_chunk_cache(self, source: str) -> Any:
        """Open a dataset with a cache for one row of chunks, so a chunk split between ranges is decompressed once."""
        import h5py

        dataset = self._file[source]
        if dataset.chunks is None:
            return dataset
        across = int(np.prod([-(-n // c) for n, c in zip(dataset.shape[1:], dataset.chunks[1:], strict=True)]))
        chunk = int(np.prod(dataset.chunks, dtype=object)) * dataset.dtype.itemsize
        access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
        access.set_chunk_cache(521, min(across * chunk + 1, self._limits.budget_bytes), 0.75)
        return h5py.Dataset(h5py.h5d.open(self._file.id, source.encode(), access))

    def description(self) -> dict[str, Any]:
        """Return the names of the arrays, the number of rows, sizes, notes and metadata."""
        return {
            "keys": list(self._found),
            "rows": len(self._datasets["observations"]),
            "observation_size": self._datasets["observations"].shape[1],
            "action_size": self._datasets["actions"].shape[1],
            "notes": self._notes,
            "metadata": parse_metadata(self._file.attrs.get(HDF5_ATTRIBUTE)),
        }

    def flags(self) -> dict[str, np.ndarray]:
        """Return the flags and episode numbers of all rows."""
        return {key: self.read(key, slice(None)) for key in FLAGS if key in self._found}

    def read(self, key: str, rows: slice) -> np.ndarray:
        """Return a range of rows of an array."""
        try:
            if rows == slice(None):
                return hdf5.copy_dataset(self._datasets[key], self._limits)
            return np.asarray(self._datasets[key][rows])
        except OSError as error:
            raise AspcError(f"{self._path}: {self._found[key]!r} is damaged ({first_line(error)}).") from error
