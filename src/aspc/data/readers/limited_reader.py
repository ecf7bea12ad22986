"""A child process that parses untrusted files within memory and time limits.

All dataset readers run in the child, so that a crash, an infinite loop or exhausted memory in a file format's library
becomes an `AspcError`. `child.py` implements the child's side.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aspc.data.readers import limits
from aspc.data.readers.array_files import map_array
from aspc.errors import AspcError

START_TIMEOUT_SECONDS = 300.0  # allows for imports from a cold network disk on a busy machine
SLOWEST_BYTES_PER_SECOND = 10e6  # extends the timeout of a step in proportion to the bytes it decodes
POLL_SECONDS = 0.5
MAX_REPLY_BYTES = 256_000_000
MAX_ARRAYS = 16
# Use one heap and no threads, since the memory reserved by additional ones counts against the address space limit.
CHILD_ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1"}


class Reply(NamedTuple):
    """The child's answer: a JSON value, and arrays by name."""

    value: Any
    arrays: dict[str, np.ndarray]


class LimitedReader:
    """A child process that reads one file after another; use it in a `with` block.

    The process starts with the first file, and restarts after a file that crashed it. Leaving the block kills the
    process, so that Ctrl-C takes effect immediately.
    """

    def __init__(self, timeout_seconds: float | None = None) -> None:
        self._timeout = limits.timeout_seconds() if timeout_seconds is None else timeout_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._received = b""

    def __enter__(self) -> LimitedReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the child."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()  # no effect if it has ended
            self._process.wait()
            self._process = None

    def call(self, function: str, path: Path, *, taken_bytes: int = 0, **arguments: Any) -> Reply:
        """Call a function of `child.FUNCTIONS` in the child.

        Args:
            function: Name of the function.
            path: The file or folder to read.
            taken_bytes: Bytes of the memory budget that the caller already uses.
            arguments: Additional arguments of the function, as JSON values.

        Raises:
            AspcError: The file cannot be read within the limits.
        """
        _refuse_special_file(path)
        budget = limits.memory_budget(taken_bytes)
        request = {"function": function, "path": os.fspath(path), "budget_bytes": budget, "arguments": arguments}
        try:
            connection = self._connected(path)
            connection.sendall(json.dumps(request).encode() + b"\n")
        except ConnectionError:
            raise self._stopped(path, budget) from None
        except OSError as error:
            raise AspcError(f"{path} cannot be read: the reader process could not be started ({error}).") from error
        return self._reply(path, budget)

    def _connected(self, path: Path) -> socket.socket:
        if self._socket is not None:
            return self._socket
        ours, theirs = socket.socketpair()
        with theirs:
            # -P: never import a module from the current folder, which can contain untrusted files next to the log.
            command = [sys.executable, "-P", "-m", "aspc.data.readers.child", str(theirs.fileno()), str(self._timeout)]
            self._socket, self._received = ours, b""
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **CHILD_ENVIRONMENT},
            )
        self._next_message(path, START_TIMEOUT_SECONDS)
        return ours

    def _reply(self, path: Path, budget: int) -> Reply:
        descriptors: list[int] = []
        patience = self._timeout
        try:
            while "progress" in (message := self._next_message(path, patience, descriptors, budget)):
                patience = self._timeout + int(message["progress"]) / SLOWEST_BYTES_PER_SECOND
            if "error" in message:
                raise AspcError(message["error"])
            arrays = {
                entry["name"]: map_array(descriptor, np.dtype(entry["dtype"]), tuple(entry["shape"]), entry["order"])
                for entry, descriptor in zip(message["arrays"], descriptors, strict=True)
            }
            return Reply(message["value"], arrays)
        except (ValueError, KeyError, TypeError) as error:  # the child's memory is corrupt
            self.close()
            raise AspcError(
                f"{path}: the file is damaged (the process that reads it sent an invalid reply)."
            ) from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _next_message(
        self, path: Path, patience: float, descriptors: list[int] | None = None, budget: int | None = None
    ) -> dict[str, Any]:
        """Return the next message from the child and append its file descriptors; kill the child after a timeout."""
        assert self._socket is not None
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        waited, before = 0.0, time.monotonic()
        while b"\n" not in self._received:
            if poll.poll(1000 * POLL_SECONDS):
                body, received = self._receive()
                if descriptors is not None:
                    descriptors += received
                if not body or len(self._received) > MAX_REPLY_BYTES:
                    raise self._stopped(path, budget)
                self._received += body
            now = time.monotonic()
            waited += min(now - before, 2 * POLL_SECONDS)  # excludes time in which both processes were suspended
            before = now
            if waited > patience:
                self.close()
                raise AspcError(
                    f"{path}: reading made no progress for {patience:.0f} seconds; the file is probably damaged "
                    f"(on a slow disk, raise {limits.TIMEOUT_VARIABLE})."
                )
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _receive(self) -> tuple[bytes, list[int]]:
        """Return the bytes and file descriptors that the child sent; no bytes if it has ended."""
        assert self._socket is not None
        try:
            body, descriptors, _, _ = socket.recv_fds(self._socket, 1 << 20, MAX_ARRAYS)
        except ConnectionError:
            return b"", []
        return body, descriptors

    def _stopped(self, path: Path, budget: int | None) -> AspcError:
        """Return the error for a child that has ended; a `budget` of None means that it ended during startup."""
        status = None
        if self._process is not None:  # the connection closes a moment before the process ends
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._process.wait(timeout=5)
        self.close()
        if budget is None:
            return AspcError(
                f"{path} cannot be read: the process that reads files ended during startup (status {status}). "
                "Check that there is enough memory, and that this installation is complete."
            )
        if status == -signal.SIGKILL:  # killed by the kernel when memory ran out
            return limits.too_large(path.name, f"more than {limits.size_text(budget)}", budget)
        return AspcError(f"{path}: the file is damaged (its reader stopped with status {status}).")


def _refuse_special_file(path: Path) -> None:
    """Raise an `AspcError` for a pipe or a device, which can be endless."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise AspcError(f"There is no file {path}.") from None
    except OSError as error:
        raise AspcError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise AspcError(f"{path} is a pipe or a device; copy the data to a file.")
