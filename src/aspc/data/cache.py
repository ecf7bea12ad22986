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
    """Return the cache folder: ASPC_DATA if this environment variable is set, otherwise the platform's cache folder."""
    chosen = os.environ.get("ASPC_DATA")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("aspc")) / "data"


def sanitize_file_name(name: str) -> str:
    """Replace path separators and control characters in a dataset's name, which can come from a file."""
    return "".join(letter if letter.isprintable() and letter not in "/\\" else "-" for letter in name)


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Lock a cached file so that one process at a time generates or downloads it, and create its folder.

    An existing file needs no lock, so a shared cache can be read-only.

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
                    "Set ASPC_DATA to a writable folder."
                ) from error
        yield
