"""Arrays in anonymous files, which one process writes and another maps.

The file is in memory if the system supports it (`memfd_create`), else an unnamed file in the temporary folder. It
disappears with the last process that holds it, so that a killed process leaves nothing behind.
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
        """Map the written bytes. Raises ValueError if they are not an array of this shape."""
        array = map_array(self.descriptor, dtype, shape, order, mmap.MAP_SHARED)
        if isinstance(array.base, _Mapping):
            array.base.file = self
        return array


class _Mapping(mmap.mmap):
    """A mapping that keeps a reference to its file, if this process wrote it."""

    file: ArrayFile | None = None


def _open_anonymous() -> int:
    if hasattr(os, "memfd_create"):
        try:
            return os.memfd_create("aspc-array", os.MFD_CLOEXEC)
        except OSError:  # an old kernel, or a sandbox that forbids it
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
        ValueError: The file's length does not match.
    """
    size = os.fstat(descriptor).st_size
    if size != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{size:,} bytes are not an array of {dtype} with shape {shape}")
    if size == 0:
        return np.empty(shape, dtype)
    mapping = _Mapping(descriptor, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return np.ndarray(shape, dtype, buffer=mapping, order=order)


def file_of(array: np.ndarray) -> tuple[ArrayFile, Order]:
    """Return the file of an array and its memory order: the file that it was mapped from, or a new one."""
    base = array.base
    if isinstance(base, _Mapping) and base.file is not None and array.nbytes == len(base):
        if array.flags.c_contiguous:
            return base.file, "C"
        if array.flags.f_contiguous:
            return base.file, "F"
    written = ArrayFile()
    written.write(array)
    return written, "C"
