"""Where data is kept between runs, and how a file gets there whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock

from aspc.errors import AspcError
from aspc.io import replace_durably

SHOW_AFTER = 2.0  # seconds until a progress bar appears, or a sentence on what is waited for


def root() -> Path:
    """The cache folder: the environment variable ASPC_DATA, else the platform's cache folder."""
    chosen = os.environ.get("ASPC_DATA")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("aspc")) / "data"


def sanitize_file_name(name: str) -> str:
    """A name that data go by, which a file may have said, as one that stays in the folder where it is used."""
    return "".join(letter if letter.isprintable() and letter not in "/\\" else "-" for letter in name)


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Only one process at a time makes or downloads a file of the cache; its folder is made if it is missing.

    A file that is there already can be used without a lock, as in a cache that is shared and read-only.
    """
    guard = FileLock(f"{path}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with notify_if_slow(f"Waiting for another process that is making or downloading {path} …"):
            guard.acquire()
    except OSError as error:
        if not path.exists():
            raise AspcError(
                f"The cache folder {path.parent} cannot be written to ({error.strerror or error}); "
                "set ASPC_DATA to a folder that can."
            ) from error
    try:
        yield
    finally:
        guard.release()


@contextlib.contextmanager
def notify_if_slow(sentence: str) -> Iterator[None]:
    """Says on stderr what is going on, once the block has taken two seconds."""
    with run_after(SHOW_AFTER, lambda: print(sentence, file=sys.stderr, flush=True)):
        yield


@contextlib.contextmanager
def run_after(seconds: float, action: Callable[[], object]) -> Iterator[None]:
    """Does something in another thread, if the block takes longer than that."""
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def temporary_name(path: Path) -> Path:
    """Return the hidden name beside `path` that this process writes to before it renames. It states the owner."""
    return path.with_name(f".{path.name}.{_host()}-{os.getpid()}.tmp")


def _host() -> str:
    """Return a short name of this machine, or of this container: processes are known by number within one only."""
    return hashlib.blake2b(socket.gethostname().encode(), digest_size=4).hexdigest()


def remove_stale(path: Path) -> None:
    """Remove what killed processes of this machine left under their temporary names for `path`.

    One of them may have had the number that this process has now.
    """
    owned = re.compile(re.escape(f".{path.name}.{_host()}-") + r"(\d+)\.tmp")
    with contextlib.suppress(OSError):
        for left in path.parent.iterdir():
            owner = owned.fullmatch(left.name)
            if owner and (int(owner[1]) == os.getpid() or not _is_running(int(owner[1]))):
                if left.is_dir() and not left.is_symlink():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it is somebody else's
        return True
    return True


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` to write to; moved onto it when the block ends well, else removed."""
    temporary = temporary_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(path)
        yield temporary
        replace_durably(temporary, path)
    except OSError as error:
        # HDF5 says much more than the system does, on several lines.
        why = os.strerror(error.errno) if error.errno else " ".join(str(error).split())
        raise AspcError(f"{path} could not be written: {why}; nothing was changed.") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


@contextlib.contextmanager
def progress(title: str, total: int | None, *, unit: str = "steps") -> Iterator[Callable[[int], None]]:
    """Gives a function to call with the amount done; shows a bar on a terminal once it has taken two seconds."""
    started, bar, task = time.monotonic(), None, None

    def show(done: int) -> None:
        nonlocal bar, task
        if bar is None:
            if time.monotonic() - started < SHOW_AFTER or not sys.stderr.isatty():
                return
            bar = _progress_bar(unit)
            bar.start()
            task = bar.add_task(title, total=total)
        bar.update(task, completed=done)

    try:
        yield show
    finally:
        if bar is not None:
            bar.stop()


def _progress_bar(unit: str) -> Any:
    from rich import progress as rich_progress
    from rich.console import Console

    columns = [rich_progress.TextColumn("{task.description}"), rich_progress.BarColumn()]
    if unit == "bytes":
        columns += [rich_progress.DownloadColumn(), rich_progress.TransferSpeedColumn()]
    columns += [rich_progress.TaskProgressColumn(), rich_progress.TimeRemainingColumn()]
    return rich_progress.Progress(*columns, console=Console(stderr=True), transient=True)
