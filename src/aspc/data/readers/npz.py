"""A reader for NPZ files that checks the sizes in the headers, then reads one array at a time. It never unpickles."""

from __future__ import annotations

import io
import math
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from aspc.data.columns import list_names, resolve_arrays, unused_array_notes
from aspc.data.metadata import NPZ_KEYS, select_valid
from aspc.data.read_options import ReadOptions, check_array_options
from aspc.data.readers import hdf5
from aspc.data.readers.array_files import ArrayFile
from aspc.data.readers.contents import Arrays, FileContents
from aspc.data.readers.limits import ReadLimits
from aspc.errors import AspcError

MAX_MEMBERS = 10_000
MAX_HEADER_BYTES = 65_536  # NumPy itself parses at most 10,000
MAX_METADATA_BYTES = 1_000_000  # size limit per metadata array
CHUNK_BYTES = 4_000_000


class _Header(NamedTuple):
    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]


def read_npz(path: Path, options: ReadOptions, limits: ReadLimits) -> FileContents:
    """Read a dataset from an NPZ file."""
    check_array_options(options, path.name)
    with zipfile.ZipFile(path) as archive:
        members = _list_members(archive, path.name)
        found, notes = resolve_arrays(list(members), options.key_map, path.name, options.needs_no_ends)
        notes += unused_array_notes(_stated_shapes(archive, members, limits), found)
        wanted = {**found, **{key: key for key in NPZ_KEYS if key in members}}
        arrays = _read_members(archive, {key: members[source] for key, source in wanted.items()}, path.name, limits)
    metadata = {NPZ_KEYS[key]: _to_list(arrays.pop(key)) for key in NPZ_KEYS if key in arrays}
    return FileContents(arrays, notes, select_valid(metadata))


def read_named_arrays(path: Path, required: Sequence[str], optional: Sequence[str], limits: ReadLimits) -> Arrays:
    """Read arrays by their stored names."""
    with zipfile.ZipFile(path) as archive:
        members = _list_members(archive, path.name)
        missing = [key for key in required if key not in members]
        if missing:
            raise AspcError(f"{path.name}: {missing[0]!r} not found among {list_names(list(members))}.")
        wanted = {key: members[key] for key in (*required, *optional) if key in members}
        return _read_members(archive, wanted, path.name, limits)


def _to_list(array: np.ndarray) -> Any:
    """Convert an array to lists. Raises ValueError for text that is not Unicode."""
    if array.dtype.kind == "U":
        codes = np.frombuffer(array.tobytes(), np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if codes.max(initial=0) > sys.maxunicode:
            raise ValueError("its text is not Unicode")
    return array.tolist()


def _list_members(archive: zipfile.ZipFile, name: str) -> dict[str, zipfile.ZipInfo]:
    """Return the members of an archive by array name."""
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise AspcError(
            f"{name} holds {len(members):,} arrays, more than {MAX_MEMBERS:,}. Save one array per quantity, with one "
            "row per time step."
        )
    return {info.filename.removesuffix(".npy"): info for info in members}


def _open_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> IO[bytes]:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise AspcError(
            f"{name}: {info.filename!r} is compressed with a method that NumPy does not support. Save the file again "
            "with numpy.savez or numpy.savez_compressed."
        )
    return archive.open(info)


def _read_members(
    archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], name: str, limits: ReadLimits
) -> Arrays:
    """Read arrays after checking that their headers are valid and that all of them fit in memory."""
    needed = 0
    for key, info in members.items():
        with _open_member(archive, info, name) as file:
            header = _check_header(file, info, f"{name}: {info.filename.removesuffix('.npy')!r}", key)
            needed += hdf5.loading_bytes(header.dtype, math.prod(header.shape))
    limits.require(needed + 2 * CHUNK_BYTES, name)
    return {key: _read_member(archive, info, name, limits) for key, info in members.items()}


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, limits: ReadLimits) -> np.ndarray:
    result = ArrayFile()
    with _open_member(archive, info, name) as file:
        shape, is_fortran, dtype = _read_header(file)
        remaining = math.prod(shape) * dtype.itemsize
        chunk = np.empty(min(CHUNK_BYTES, remaining), np.uint8)
        while remaining:
            limits.progress()
            count = file.readinto(chunk[:remaining])  # type: ignore[attr-defined]
            if not count:
                raise EOFError(f"{info.filename} ends too early")
            result.write(chunk[:count])
            remaining -= count
        file.read(1)  # at the end of a member, zipfile verifies its checksum
    return result.array(dtype, shape, "F" if is_fortran else "C")


def _read_header(file: IO[bytes]) -> _Header:
    """Read an array's header. Its length is checked first, because NumPy would allocate any stated length."""
    start = file.read(8)
    version = np.lib.format.read_magic(io.BytesIO(start))
    digits = file.read(2 if version == (1, 0) else 4)
    length = int.from_bytes(digits, "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"the header of an array states a length of {length:,} bytes")
    parse = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return _Header(*parse(io.BytesIO(digits + file.read(length))))


def _stated_shapes(
    archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], limits: ReadLimits
) -> dict[str, tuple[int, ...]]:
    """Return the array shapes stated in the headers; members without a valid header are skipped."""
    shapes = {}
    for key, info in members.items():
        limits.progress()
        try:
            with _open_member(archive, info, key) as file:
                shapes[key] = _read_header(file).shape
        except Exception:  # any damage to an unused array is harmless
            continue
    return shapes


def _check_header(file: IO[bytes], info: zipfile.ZipInfo, name: str, key: str) -> _Header:
    """Return an array's header after checking its type and comparing its stated size with the archive member's."""
    header = _read_header(file)
    shape, _, dtype = header
    if dtype.hasobject:
        raise AspcError(
            f"{name} holds pickled Python objects, which are never loaded; save plain numeric arrays instead."
        )
    if dtype.kind not in ("fiubU" if key in NPZ_KEYS else "fiub"):
        raise AspcError(f"{name} must hold numbers, not {dtype}.")
    stated = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or stated > info.file_size:
        raise AspcError(f"{name} declares shape {shape}, but the file holds only {info.file_size:,} bytes of it.")
    if stated > hdf5.MAX_COMPRESSION * info.compress_size + 4096:
        raise AspcError(
            f"{name} declares shape {shape}, but the file holds only {info.compress_size:,} compressed bytes of it."
        )
    if key in NPZ_KEYS and stated > MAX_METADATA_BYTES:
        raise AspcError(f"{name} has {stated:,} bytes, too large for metadata; remove it.")
    return header
