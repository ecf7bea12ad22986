"""Durable files: atomic writes that survive a kill and a power cut."""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

# Some network file systems cannot flush a folder.
FLUSH_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that appears whole or not at all: under another name, flushed to disk, then renamed.

    The file gets the permissions that the umask allows, as any new file does.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
        replace_durably(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def replace_durably(temporary: Path, path: Path) -> None:
    """Rename `temporary`, a file or a folder, to `path`; both its content and its new name are flushed to disk."""
    flush(temporary)
    os.replace(temporary, path)
    flush(path.parent)


def flush(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    folder = path.is_dir()
    if folder and os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not folder or error.errno not in FLUSH_UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)
