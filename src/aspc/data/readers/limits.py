"""Limits for reading data files: a memory budget and a stall timeout.

The budget is the value of the environment variable `ASPC_READ_MEMORY`, or by default a fraction of the memory that
this machine and its control groups have available. Readers check the sizes declared in a file against the budget before
they allocate, and the kernel enforces the budget on the process that reads the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from aspc.errors import AspcError

MEMORY_VARIABLE = "ASPC_READ_MEMORY"
TIMEOUT_VARIABLE = "ASPC_READ_TIMEOUT"
MEMORY_FRACTION = 0.9  # default budget as a fraction of the available memory
DEFAULT_TIMEOUT_SECONDS = 18.0
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def available_memory() -> int:
    """Return the available memory in bytes, within the limits of control groups."""
    return min(_system_memory(), *cgroup_headrooms())


def _system_memory() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cgroup_headrooms(membership: str = "/proc/self/cgroup", mount: str = "/sys/fs/cgroup") -> list[int]:
    """Return the available bytes of each control group (version 1 or 2) of this process.

    The first entry is a huge number, so the list is never empty. The file cache is treated as available, because the
    kernel evicts it before a group runs out of memory.
    """
    found = [2**63 - 1]
    try:
        lines = Path(membership).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return found
    for line in lines:
        hierarchy, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if hierarchy == "0" and not controllers:
            roots, names = [Path(mount), Path(mount, "unified")], ("memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            roots, names = [Path(mount, "memory")], ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        else:
            continue
        for root in roots:
            for folder in _ancestors(root, group):
                headroom = _headroom(folder, *names)
                if headroom is not None:
                    found.append(headroom)
    return found


def _ancestors(root: Path, group: str) -> Iterator[Path]:
    """Yield the folders of a control group and its ancestors."""
    folder = root / group.strip("/")
    while folder != root and root in folder.parents:
        yield folder
        folder = folder.parent
    yield root


def _headroom(folder: Path, limit: str, usage: str, prefix: str) -> int | None:
    try:
        allowed = (folder / limit).read_text("ascii").strip()
        used = int((folder / usage).read_text("ascii"))
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text("ascii").splitlines())
        cached = sum(int(statistics.get(f"{prefix}{kind}_file", 0)) for kind in ("inactive", "active"))
        return None if allowed == "max" else max(0, int(allowed) - max(0, used - cached))
    except (OSError, ValueError):
        return None


def memory_budget(taken_bytes: int = 0) -> int:
    """Return the memory budget for reading, in bytes: `ASPC_READ_MEMORY`, or a fraction of the available memory.

    `taken_bytes` is the size of the data that this process already holds. It is subtracted from `ASPC_READ_MEMORY`; the
    available memory already excludes it.
    """
    stated = os.environ.get(MEMORY_VARIABLE, "").strip()
    if not stated:
        return int(MEMORY_FRACTION * available_memory())
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", stated.upper())
    if match is None or float(match[1]) == 0:
        raise AspcError(f"{MEMORY_VARIABLE} is {stated!r}, which is not a size; write 8GB or 500MB, for example.")
    return max(0, int(float(match[1]) * UNITS[match[2]]) - taken_bytes)


def timeout_seconds() -> float:
    """Return the stall timeout in seconds: `ASPC_READ_TIMEOUT`, or the default."""
    stated = os.environ.get(TIMEOUT_VARIABLE, "").strip()
    if not stated:
        return DEFAULT_TIMEOUT_SECONDS
    try:
        seconds = float(stated)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise AspcError(f"{TIMEOUT_VARIABLE} is {stated!r}; it must be a number of seconds above 0.")
    return seconds


def size_text(count: int) -> str:
    """Format a number of bytes in GB or MB."""
    return f"{count / 1e9:,.1f} GB" if count >= 10**9 else f"{count / 1e6:,.1f} MB"


def too_large(name: str, needed: str, budget_bytes: int) -> AspcError:
    """Return the error for a file that needs too much memory, with instructions for streaming."""
    is_hdf5 = name.lower().endswith((".hdf5", ".h5"))
    source = name if is_hdf5 else "FILE.hdf5"
    remedy = f"{'' if is_hdf5 else 'write it as HDF5, '}pack it with `aspc data convert {source} FOLDER`"
    return AspcError(
        f"{name} needs {needed} of memory, but the limit for reading is {size_text(budget_bytes)}. Raise the "
        f"limit with {MEMORY_VARIABLE}, or stream the file: {remedy} and train on FOLDER."
    )


@dataclass
class ReadLimits:
    """The memory budget and the progress callback of a reader."""

    budget_bytes: int
    report_progress: Callable[[int], None] = lambda upcoming_bytes: None

    def require(self, needed_bytes: int, name: str, *, at_least: bool = False) -> None:
        """Raise an `AspcError` if a file needs more memory than the budget allows.

        Args:
            needed_bytes: Bytes for the arrays, their float32 copies, and one decoding step.
            name: The file's name.
            at_least: True if `needed_bytes` is only a lower bound.
        """
        if needed_bytes > self.budget_bytes:
            raise too_large(name, f"{'at least ' if at_least else ''}{size_text(needed_bytes)}", self.budget_bytes)

    def progress(self, upcoming_bytes: int = 0) -> None:
        """Report progress. The next step decodes `upcoming_bytes` without reporting."""
        self.report_progress(upcoming_bytes)
