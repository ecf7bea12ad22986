"""The one exception that is the user's to read."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable


class AspcError(Exception):
    """Something the user can mend: its text is one sentence that says what to do.

    The command line prints it on stderr and leaves with exit code 2, without a traceback.
    """


# What the system reports for a disk that is full, read-only, somebody else's or broken, for a path that it cannot have,
# and for files that were deleted while in use.
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
    """Nothing is wrong with what was being done, but with what is around it: it goes on once that is mended."""


class DiskFailure(ExternalFailure):
    """Files cannot be written."""


class MissingExtra(AspcError):
    """An optional dependency is not installed; `error` may say which."""

    def __init__(self, what: str, extra: str, error: BaseException | None = None) -> None:
        package = missing_module(error).partition(".")[0] if error else ""
        needed = f"{package}, which is not installed" if package else "an extra"
        super().__init__(f"{what} needs {needed}: pip install 'aspc[{extra}]'.")


def missing_module(error: BaseException) -> str:
    """The module that an import did not find, be that told by another error; "" where it is not about one."""
    for told in (error, error.__cause__):
        if isinstance(told, ModuleNotFoundError) and told.name:
            return told.name
    return ""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> AspcError:
    """An error for a name that does not exist, with the nearest ones that do."""
    known = sorted(known)
    if near := difflib.get_close_matches(name, known, n=3, cutoff=0.5):
        return AspcError(f"Unknown {kind} {name!r}; did you mean {', '.join(near)}?")
    more = f" and {len(known) - 8} more" if len(known) > 8 else ""
    return AspcError(f"Unknown {kind} {name!r}; there are {', '.join(known[:8])}{more}.")


def printable(text: str) -> str:
    """Text that cannot move the cursor or ring the bell of a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def first_line(error: BaseException) -> str:
    """What another library says of a failure, short enough for a sentence."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
