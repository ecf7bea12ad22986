"""The child process of `LimitedReader`. Requests and answers are lines of JSON; arrays are sent as file descriptors."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from aspc.data.columns import KeyMap
from aspc.data.read_options import ReadOptions
from aspc.data.readers import formats, hdf5_stream, minari, npz
from aspc.data.readers.array_files import file_of
from aspc.data.readers.limited_reader import SLOWEST_BYTES_PER_SECOND
from aspc.data.readers.limits import ReadLimits
from aspc.errors import AspcError

Answer = tuple[Any, dict[str, np.ndarray]]
OVERHEAD_BYTES = 256_000_000  # allowance for libraries imported later and for thread stacks
PROGRESS_SECONDS = 0.2  # minimum time between reports, unless a long step follows
LONG_STEP_BYTES = 8_000_000
IMPORT_BYTES = 3_000_000_000  # an import can take as long as decoding this many bytes


def read_file(path: Path, limits: ReadLimits, *, options: dict[str, Any]) -> Answer:
    """Read a dataset in any known format."""
    arrays, notes, metadata = formats.parse_file(path, ReadOptions.from_json(options), limits)
    return {"notes": notes, "metadata": metadata}, arrays


def read_npz(path: Path, limits: ReadLimits, *, required: list[str], optional: list[str]) -> Answer:
    """Read named arrays of an NPZ file."""
    return None, npz.read_named_arrays(path, required, optional, limits)


class _OpenLog:
    """The HDF5 file that is being packed. One request opens it, and later requests read it."""

    def __init__(self) -> None:
        self._log: hdf5_stream.HDF5Log | None = None

    def open(self, path: Path, limits: ReadLimits, *, key_map: KeyMap, needs_no_ends: bool) -> Answer:
        if self._log is not None:
            self._log.close()
        self._log = hdf5_stream.HDF5Log(path, key_map, limits, needs_no_ends)
        return self._log.description(), self._log.flags()

    def rows(self, path: Path, limits: ReadLimits, *, key: str, start: int, stop: int) -> Answer:
        assert self._log is not None
        return None, {"rows": self._log.read(key, slice(start, stop))}


_open_log = _OpenLog()
FUNCTIONS: dict[str, Callable[..., Answer]] = {
    "read_file": read_file,
    "read_npz": read_npz,
    "open_hdf5": _open_log.open,
    "read_hdf5_rows": _open_log.rows,
    "read_minari": minari.read_episodes,
}


def import_library(function: str, path: Path) -> None:
    """Import the library that parses a file, before the file's memory and time limits apply."""
    suffixes = {
        formats.HDF5_SUFFIXES: "h5py",
        formats.TABLE_SUFFIXES: "pyarrow.parquet",
        formats.EXCEL_SUFFIXES: "openpyxl",
    }
    found = (library for endings, library in suffixes.items() if path.name.lower().endswith(endings))
    library = "minari" if function == "read_minari" else next(found, "numpy")
    with contextlib.suppress(ImportError):  # the reader reports the missing extra
        importlib.import_module(library)


def limit_memory(budget_bytes: int, path: Path) -> None:
    """Make allocations beyond the budget fail. A mapped file uses address space, so its size is added."""
    mapped = path.stat().st_size if path.name.lower().endswith(formats.TABLE_SUFFIXES) else 0
    try:
        in_use = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    except OSError:  # not on Linux; the sizes declared in files are still checked
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    allowed = in_use + OVERHEAD_BYTES + mapped + budget_bytes
    if hard != resource.RLIM_INFINITY:
        allowed = min(allowed, hard)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))


def limit_processor_time(seconds: float) -> None:
    """Limit further CPU time to `seconds`, so that this process ends even if its parent was killed."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    allowed = int(usage.ru_utime + usage.ru_stime + seconds) + 1
    if hard != resource.RLIM_INFINITY:
        allowed = min(allowed, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (allowed, hard))


class Connection:
    """The connection to the parent process, for requests, progress reports and answers."""

    def __init__(self, descriptor: int, timeout_seconds: float) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._timeout = timeout_seconds
        self._reported = 0.0

    def requests(self) -> BinaryIO:
        """Return a stream of request lines, which ends when the parent closes the connection."""
        return cast(BinaryIO, self._socket.makefile("rb"))

    def report_progress(self, upcoming_bytes: int) -> None:
        """Report progress at most every `PROGRESS_SECONDS`, and before every long step."""
        if upcoming_bytes > LONG_STEP_BYTES or time.monotonic() - self._reported > PROGRESS_SECONDS:
            self.begin_step(upcoming_bytes)

    def begin_step(self, upcoming_bytes: int = 0) -> None:
        """Report the start of a step. Its time limit grows with the number of bytes to decode."""
        self._reported = time.monotonic()
        self.send({"progress": upcoming_bytes})
        limit_processor_time(2 * (self._timeout + upcoming_bytes / SLOWEST_BYTES_PER_SECOND))

    def send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        body = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n"  # names can be invalid UTF-8
        if descriptors:
            sent = socket.send_fds(self._socket, [body], descriptors)
            body = body[sent:]
        self._socket.sendall(body)


def answer(connection: Connection, request: dict[str, Any]) -> None:
    """Answer a request with the arrays, or with an error message."""
    path = Path(request["path"])
    reading = ReadLimits(request["budget_bytes"], connection.report_progress)
    connection.begin_step(IMPORT_BYTES)
    import_library(request["function"], path)
    connection.begin_step()
    try:
        limit_memory(reading.budget_bytes, path)
        value, arrays = formats.wrap_errors(
            path, reading, lambda: FUNCTIONS[request["function"]](path, reading, **request["arguments"])
        )
        array_files = {name: file_of(array) for name, array in arrays.items()}
    except AspcError as error:
        connection.send({"error": str(error)})
        return
    described = [
        {"name": name, "dtype": arrays[name].dtype.str, "shape": arrays[name].shape, "order": order}
        for name, (_, order) in array_files.items()
    ]
    connection.send({"value": value, "arrays": described}, [file.descriptor for file, _ in array_files.values()])


def main(descriptor: str, timeout_seconds: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and then ends this process
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection = Connection(int(descriptor), float(timeout_seconds))
    connection.send({"ready": os.getpid()})
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for line in connection.requests():
            answer(connection, json.loads(line))


if __name__ == "__main__":
    main(*sys.argv[1:])
