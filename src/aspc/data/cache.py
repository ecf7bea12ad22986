"""The folder in which downloaded and generated data are kept between runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import platformdirs

from aspc.errors import AspcError
from aspc.io import exclusive_lock


def root() -> Path:
    """Return the cache folder: the environment variable ASPC_DATA, or the platform's cache folder."""
    chosen = os.environ.get("ASPC_DATA")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("aspc")) / "data"


def sanitize_file_name(name: str) -> str:
    """Return a dataset's name, which a file may have chosen, as a file name without separators."""
    return "".join(letter if letter.isprintable() and letter not in "/\\" else "-" for letter in name)


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Let only one process at a time generate or download a cached file; create its folder.

    A file that exists is usable without a lock, as in a shared read-only cache.

    Raises:
        AspcError: The cache folder cannot be written to, and the file does not exist.
    """
    notice = f"Waiting for another process that is generating or downloading {path} …"
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(exclusive_lock(Path(f"{path}.lock"), wait_notice=notice))
        except OSError as error:
            if not path.exists():
                raise AspcError(
                    f"The cache folder {path.parent} cannot be written to ({error.strerror or error}). "
                    "Set ASPC_DATA to a folder that can."
                ) from error
        yield
