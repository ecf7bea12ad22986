"""File formats by suffix, and the readers that parse them in a child process with limited resources."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from aspc.data.read_options import ReadOptions
from aspc.data.readers import arrow_tables, csv_tables, excel_tables, hdf5, npz
from aspc.data.readers.contents import FileContents
from aspc.data.readers.limits import ReadLimits, size_text, too_large
from aspc.errors import AspcError

HDF5_SUFFIXES = (".hdf5", ".h5")
TABLE_SUFFIXES = (".parquet", ".arrow", ".feather")
CSV_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".dat", ".dat.gz")
EXCEL_SUFFIXES = (".xlsx",)
SUFFIXES = (*HDF5_SUFFIXES, ".npz", *TABLE_SUFFIXES, *CSV_SUFFIXES, *EXCEL_SUFFIXES)
READERS: dict[tuple[str, ...], Callable[[Path, ReadOptions, ReadLimits], FileContents]] = {
    HDF5_SUFFIXES: hdf5.read_hdf5,
    (".npz",): npz.read_npz,
    TABLE_SUFFIXES: arrow_tables.read_arrow,
    CSV_SUFFIXES: csv_tables.read_csv,
    EXCEL_SUFFIXES: excel_tables.read_excel,
}
UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ENOENT, errno.EISDIR)
OUT_OF_MEMORY = re.compile(
    r"(can't|unable to|could not|failed to) (allocate|reserve)|allocation failed|out of memory", re.IGNORECASE
)
Result = TypeVar("Result")


def remove_suffix(file_name: str) -> str:
    """Return a file's name without the suffix of its format."""
    for suffix in SUFFIXES:
        if file_name.lower().endswith(suffix):
            file_name = file_name[: -len(suffix)]
    return file_name


def parse_file(path: Path, options: ReadOptions, limits: ReadLimits) -> FileContents:
    """Parse a file in this process. Errors that the format's library raises for a damaged file are not converted."""
    read = next(read for suffixes, read in READERS.items() if path.name.lower().endswith(suffixes))
    return read(path, options, limits)


def wrap_errors(path: Path, limits: ReadLimits, read: Callable[[], Result]) -> Result:
    """Call a reader, and convert its library's errors for damaged files to an `AspcError`."""
    try:
        if path.is_file() and path.stat().st_size == 0:
            raise AspcError(f"{path}: the file is empty.")
        return read()
    except AspcError:
        raise
    except Exception as error:  # libraries raise both their own and built-in errors
        detail = " ".join(str(error).split())[:200] or type(error).__name__
        if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(str(error)):
            raise too_large(path.name, f"more than {size_text(limits.budget_bytes)}", limits.budget_bytes) from error
        if isinstance(error, OSError) and error.errno in UNREADABLE:
            raise AspcError(f"{path} cannot be read: {os.strerror(error.errno)}.") from error
        raise AspcError(
            f"{path}: the file is damaged, truncated or not in the format that its name suggests ({detail})."
        ) from error
