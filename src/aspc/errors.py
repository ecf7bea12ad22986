"""Errors that a user can fix, and helpers that format them."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable
from typing import Any

from aspc.text import join_limited


class AspcError(Exception):
    """An error that the user can fix. Its message names the problem and the remedy.

    The command line prints the message on stderr and exits with `exit_code`, without a traceback.
    """

    exit_code: int = 2

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the message itself, since subclasses build it from other arguments.

        If unpickling an error fails, the thread that collects results from worker processes ends, and its caller waits
        forever.
        """
        return _restore_error, (type(self), self.args, self.__dict__)


def _restore_error(kind: type[AspcError], args: tuple[Any, ...], attributes: dict[str, Any]) -> AspcError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


# Errors caused by full, read-only or broken disks, missing permissions, invalid paths, and files deleted while in use.
DISK_ERRORS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ESTALE,
)


class ExternalFailure(AspcError):
    """An external failure (disk, network, cluster). The same command succeeds once the failure is fixed."""


class DiskFailure(ExternalFailure):
    """Files cannot be written."""


class MissingExtra(AspcError):
    """An optional dependency is not installed.

    Args:
        feature: The feature that needs the dependency.
        extra: The extra of this package that installs the dependency.
        error: The import error, which may name the missing package.
    """

    def __init__(self, feature: str, extra: str, error: BaseException | None = None) -> None:
        package = missing_module(error).partition(".")[0] if error else ""
        needed = f"{package}, which is not installed" if package else "an extra"
        super().__init__(f"{feature} needs {needed}: pip install 'aspc[{extra}]'.")


def missing_module(error: BaseException) -> str:
    """Return the name of the module that an import could not find, or "" if the error has another cause."""
    for candidate in (error, error.__cause__):
        if isinstance(candidate, ModuleNotFoundError) and candidate.name:
            return candidate.name
    return ""


def unknown_name(kind: str, name: str, known: Iterable[str], context: str = "") -> AspcError:
    """Return an error for an unknown name, which suggests the nearest known names.

    `context` says where the name was found, as in "returned by the algorithm mine".
    """
    known = sorted(known)
    problem = f"Unknown {kind} {name!r}{f' {context}' if context else ''}"
    if matches := difflib.get_close_matches(name, known, n=3, cutoff=0.5):
        return AspcError(f"{problem}; did you mean {', '.join(matches)}?")
    return AspcError(f"{problem}; choose from {join_limited(known, 8)}.")


def printable(text: str) -> str:
    """Replace control characters, which could move the cursor of a terminal, with "?"."""
    return "".join(c if c.isprintable() else "?" for c in text)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its class name if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
