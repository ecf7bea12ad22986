"""Durable files: atomic writes, exclusive locks and JSON. No other module renames temporary files."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from aspc.errors import AspcError
from aspc.ui import notify_if_slow

# Some network file systems cannot flush a folder.
FLUSH_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP)
MAX_JSON_BYTES = 16_000_000
# Process IDs are reused, so this token distinguishes this process from earlier ones.
_PROCESS_TOKEN = secrets.token_hex(4)
_temporary_count = count()


# ── atomic writes ───────────────────────────────────────────────────────────────────────────────────────────────────


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that appears complete or not at all; its permissions follow the umask."""
    with atomic_replacement(path) as temporary:
        temporary.write_bytes(content)


def write_folder_atomically(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files that appears only when complete; an existing folder is removed once it is replaced."""
    previous = temporary_path(folder)
    with atomic_replacement(folder) as temporary:
        temporary.mkdir()
        for name, content in files.items():
            write_atomically(temporary / name, content)
        if folder.exists():
            os.rename(folder, previous)
    _remove(previous)


@contextmanager
def atomic_output(path: Path) -> Iterator[Path]:
    """Extend `atomic_replacement` for user data: create the parent folder and remove leftovers of killed processes.

    Raises:
        AspcError: `path` cannot be written; it is left unchanged.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_stale_temporaries(path)
        with atomic_replacement(path) as temporary:
            yield temporary
    except OSError as error:
        # HDF5's error messages span several lines.
        reason = os.strerror(error.errno) if error.errno else " ".join(str(error).split())
        raise AspcError(f"{path} could not be written: {reason}. Nothing was changed.") from error


@contextmanager
def atomic_replacement(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a new file or folder, and rename it to `path` if the block succeeds."""
    temporary = temporary_path(path)
    try:
        yield temporary
        replace_durably(temporary, path)
    finally:
        _remove(temporary)


def replace_durably(temporary: Path, path: Path) -> None:
    """Rename a file or folder, and flush its content and its new name to disk."""
    flush(temporary)
    os.replace(temporary, path)
    flush(path.parent)


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":  # Windows cannot open folders
        return
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not is_folder or error.errno not in FLUSH_UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)


def temporary_path(path: Path) -> Path:
    """Return a new hidden path next to `path`. Its name identifies this process, so stale files can be detected."""
    return path.with_name(f".{path.name}.{_host()}-{os.getpid()}-{_PROCESS_TOKEN}{next(_temporary_count)}.tmp")


def remove_stale_temporaries(path: Path) -> None:
    """Remove temporary files and folders for `path` left behind by killed processes on this machine."""
    owned = re.compile(re.escape(f".{path.name}.{_host()}-") + r"(\d+)-([0-9a-f]{8})\d+\.tmp")
    with suppress(OSError):
        for entry in path.parent.iterdir():
            owner = owned.fullmatch(entry.name)
            if owner and not _is_running(int(owner[1]), owner[2]):
                _remove(entry)


def _host() -> str:
    """Return a short name of this machine or container, within which process IDs are unique."""
    return hashlib.blake2b(socket.gethostname().encode(), digest_size=4).hexdigest()


def _is_running(process: int, token: str) -> bool:
    if process == os.getpid():
        return token == _PROCESS_TOKEN
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's process
        return True
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def prepare_output_file(path: Path, *suffixes: str) -> None:
    """Check that a file can be written, and create its folder, before its content is computed.

    Args:
        path: The file. Its suffix must match its content, so that no log is overwritten by mistake.
        suffixes: The valid suffixes, in lower case.

    Raises:
        AspcError: The suffix is wrong, `path` is a folder, or the parent folder cannot be written.
    """
    if path.suffix.lower() not in suffixes:
        raise AspcError(f"{path} cannot be written. Choose a name that ends in {' or '.join(suffixes)}.")
    if path.is_dir():
        raise AspcError(f"{path} is a folder. Choose another name for the file.")
    prepare_parent(path)


def prepare_parent(path: Path) -> None:
    """Create the parent folder of `path` and check that files can be created in it.

    Raises:
        AspcError: Files cannot be created there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise AspcError(f"{path} cannot be written: {error.strerror}. Choose another path.") from error


# ── locks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def exclusive_lock(
    path: Path, *, timeout_seconds: float = -1, busy_message: str = "", wait_notice: str | None = None
) -> Iterator[None]:
    """Hold an exclusive lock on a file. The kernel releases it when its owner dies.

    Args:
        path: The lock file, created if missing.
        timeout_seconds: Time to wait for another owner to release the lock; unlimited if negative.
        busy_message: The error message after the timeout.
        wait_notice: A sentence to print if waiting takes longer than `ui.NOTICE_SECONDS`.

    Raises:
        AspcError: Another process holds the lock.
    """
    guard = FileLock(path)
    try:
        with notify_if_slow(wait_notice) if wait_notice else nullcontext():
            guard.acquire(timeout=timeout_seconds)
    except Timeout:
        raise AspcError(busy_message) from None
    try:
        yield
    finally:
        guard.release()


# ── JSON ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_json(path: Path, *default: Any) -> Any:
    """Read a JSON file.

    Args:
        path: The file.
        default: A value to return if the file does not exist.

    Raises:
        AspcError: The file cannot be read as JSON.
    """
    if default and not path.exists():
        return default[0]
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise AspcError(f"{path} cannot be read as JSON; it may be damaged.") from error


def read_bounded_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Read a JSON file from an untrusted source.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is longer than `max_bytes`, nested too deeply, or not JSON in UTF-8.
    """
    with open(path, "rb") as file:
        body = file.read(max_bytes + 1)
    if len(body) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    try:
        return json.loads(body.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically. NaN and infinities become the strings "nan", "inf" and "-inf"."""
    text = json.dumps(replace_nonfinite(content, str), indent=2, default=_to_json, allow_nan=False)
    write_atomically(path, (text + "\n").encode())


def replace_nonfinite(value: Any, replacement: Callable[[float], Any] = lambda number: None) -> Any:
    """Recursively replace NaN and infinities, which JSON does not support, with None or `replacement(number)`."""
    if isinstance(value, Mapping):
        return {key: replace_nonfinite(item, replacement) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(item, replacement) for item in value]
    is_number = isinstance(value, float | np.floating)
    return replacement(float(value)) if is_number and not math.isfinite(value) else value


def _to_json(value: Any) -> Any:
    """Convert NumPy values and paths to JSON types."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)
