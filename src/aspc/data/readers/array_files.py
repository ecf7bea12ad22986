"""Arrays in anonymous files that one process writes and another maps into memory.

The file is in memory if the system supports `memfd_create`; otherwise it is an unnamed file in the temporary folder. It
is freed when the last process that holds it ends, so a killed process leaves nothing behind.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from typing import Any, Literal

import numpy as np

from aspc.errors import AspcError

Order = Literal["C", "F"]


class ArrayFile:
    """An anonymous file to which an array is written in parts."""

    def __init__(self) -> None:
        self.descriptor = -1
        try:
            self.descriptor = _open_anonymous()
        except OSError as error:
            raise _temporary_folder_error(error) from error

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def write(self, part: np.ndarray) -> None:
        """Append the bytes of an array."""
        body = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
        try:
            while len(body):
                body = body[os.write(self.descriptor, body[: 1 << 30]) :]
        except OSError as error:
            raise _temporary_folder_error(error) from error

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...], order: Order = "C") -> np.ndarray:
        """Map the written bytes as an array. Raises ValueError if their number does not match the shape."""
        array = map_array(self.descriptor, dtype, shape, order, mmap.MAP_SHARED)
        if isinstance(array.base, _Mapping):
            array.base.file = self
        return array


class _Mapping(mmap.mmap):
    """A memory mapping with a reference to its file, if this process wrote the file."""

    file: ArrayFile | None = None


def _open_anonymous() -> int:
    if hasattr(os, "memfd_create"):
        try:
            return os.memfd_create("aspc-array", os.MFD_CLOEXEC)
        except OSError:  # the kernel is old, or a sandbox forbids the call
            pass
    with tempfile.TemporaryFile(prefix="aspc-") as file:
        return os.dup(file.fileno())


def _temporary_folder_error(error: OSError) -> AspcError:
    try:
        folder = tempfile.gettempdir()
    except OSError:
        folder = os.environ.get("TMPDIR", "/tmp")
    return AspcError(
        f"The temporary folder {folder} cannot be written to: {error.strerror or error}. "
        "Free some space there, or set TMPDIR to another folder."
    )


def map_array(
    descriptor: int, dtype: np.dtype[Any], shape: tuple[int, ...], order: Order = "C", flags: int = mmap.MAP_PRIVATE
) -> np.ndarray:
    """Memory-map a file as an array; by default the mapping is private (copy-on-write).

    Raises:
        ValueError: The file's length does not match the dtype and shape.
    """
    size = os.fstat(descriptor).st_size
    if size != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"a file of {size:,} bytes cannot be read as a {dtype} array of shape {shape}")
    if size == 0:
        return np.empty(shape, dtype)
    mapping = _Mapping(descriptor, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return np.ndarray(shape, dtype, buffer=mapping, order=order)


def file_of(array: np.ndarray) -> tuple[ArrayFile, Order]:
    """Return an array's file and memory order. An array that is not mapped from a file is written to a new one."""
    base = array.base
    if isinstance(base, _Mapping) and base.file is not None and array.nbytes == len(base):
        if array.flags.c_contiguous:
            return base.file, "C"
        if array.flags.f_contiguous:
            return base.file, "F"
    written = ArrayFile()
    written.write(array)
    return written, "C"
