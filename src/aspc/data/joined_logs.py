"""Join the files of one log, such as daily exports of a plant, in chronological order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from aspc.data.readers.contents import Arrays, FileContents, concatenate
from aspc.data.time_axis import check_times, group_ids, rows_differ
from aspc.data.time_cells import FIRST_EPOCH, format_time
from aspc.errors import AspcError
from aspc.text import count_noun, join_limited

MAX_SHOWN_FILES = 5
SAME_LOG = 0.5  # fraction of equal rows among shared times above which files seem to be parts of one log
FLAGS = ("terminals", "timeouts")


class JoinedLogs(NamedTuple):
    """The contents of several files as one log (None if each file is a separate log), and notes."""

    contents: FileContents | None
    notes: list[str]


def join_logs(files: Sequence[FileContents], names: Sequence[str], label: str) -> JoinedLogs:
    """Join files whose times follow one another.

    Files are joined if all have absolute times (dates or seconds since 1970). They are sorted by their first times, and
    a row that is in several files is kept once. Files with different rows for the same times are separate logs, for
    example from several machines, unless an episode column distinguishes their rows.

    Args:
        files: The contents of the files, before rows are prepared. Their arrays are removed if they are joined.
        names: The names of the files, for messages.
        label: The name of all files, for messages.

    Raises:
        AspcError: A time is invalid, or it is unclear whether overlapping files are parts of one log.
    """
    if not all("times" in file.arrays and _has_equal_lengths(file.arrays) for file in files):
        return JoinedLogs(None, [])
    times = [check_times(file.arrays["times"], name) for file, name in zip(files, names, strict=True)]
    if any(len(column) == 0 or column.min() < FIRST_EPOCH for column in times):  # times are relative
        return JoinedLogs(None, [])
    parts = [{**file.arrays, "times": column} for file, column in zip(files, times, strict=True)]
    parts, categories = _with_common_categories(parts, files)
    _complete_flags(parts)
    if any(part.keys() != parts[0].keys() for part in parts):
        return JoinedLogs(None, [])  # the reader of separate files reports the difference
    order = sorted(range(len(parts)), key=lambda i: float(times[i].min()))
    parts, times, names = [parts[i] for i in order], [times[i] for i in order], [names[i] for i in order]
    repeated, differs = _shared_rows(parts, label)
    if "episodes" not in parts[0] and (differs.any() or len(repeated) == 0):
        overlap = _describe_overlap(times, names)
        if overlap and not differs.all() and (~differs).mean() >= SAME_LOG:
            time = format_time(float(np.concatenate(times)[repeated[differs.argmax()]]))
            raise AspcError(
                f"{label}: {overlap}, and most rows with the same time are identical, but {int(differs.sum()):,} "
                f"differ (first at {time}). If the files are parts of one log, keep one row per time; if they are "
                "separate logs, pass --map time=none."
            )
        if overlap:
            note = (
                f"{overlap}, but their rows differ: each file was read as a separate log. If they are parts of one "
                "log, join them into one file with one row per time."
            )
            return JoinedLogs(None, [note])
    notes = [
        f"{len(parts)} files were read as one log: an episode ends at a gap in time, not at the end of a file. To end "
        "an episode with each file, pass --map time=none."
    ]
    if order != list(range(len(order))):
        notes.append(f"files were put in chronological order: {join_limited(names, MAX_SHOWN_FILES)}.")
    notes += list(dict.fromkeys(note for file in files for note in file.notes))
    metadata: dict[str, Any] = {**files[0].metadata, **({"categories": categories} if categories else {})}
    for file in files:
        file.arrays.clear()  # otherwise all rows would be in memory twice
    arrays = {key: concatenate([part.pop(key) for part in parts], f"{label}: its files") for key in list(parts[0])}
    if len(repeated) and not differs.any():
        kept = np.ones(len(arrays["times"]), dtype=bool)
        kept[repeated] = False
        arrays = {key: array[kept] for key, array in arrays.items()}
        found = count_noun(len(repeated), "row", ("appears", "appear"))
        notes.append(f"{found} in more than one file; only one copy of each was kept.")
    return JoinedLogs(FileContents(arrays, notes, metadata), [])


def _has_equal_lengths(arrays: Arrays) -> bool:
    return len({len(array) for array in arrays.values()}) == 1


def _complete_flags(parts: list[Arrays]) -> None:
    """Give all files the same flags; a flag that is missing from a file is 0 in every row of that file."""
    for key in FLAGS:
        if any(key in part for part in parts):
            for part in parts:
                part.setdefault(key, np.zeros(len(part["times"])))


def _describe_overlap(times: Sequence[np.ndarray], names: Sequence[str]) -> str:
    """Return text that names two files with overlapping times, or "". The files are sorted by their first times."""
    for i in range(1, len(times)):
        if times[i].min() <= times[i - 1].max():
            return f"the times of {names[i - 1]} and {names[i]} overlap"
    return ""


def _shared_rows(parts: Sequence[Arrays], label: str) -> tuple[np.ndarray, np.ndarray]:
    """Find the rows whose time is also in an earlier file.

    Returns:
        The numbers of these rows in all files, and a mask of those that differ from the row in the earlier file.
    """
    times = np.concatenate([part["times"] for part in parts])
    file_numbers = np.repeat(np.arange(len(parts)), [len(part["times"]) for part in parts])
    groups = np.zeros(len(times), dtype=np.int64)
    if "episodes" in parts[0]:
        groups = group_ids(np.concatenate([part["episodes"] for part in parts]))
    order = np.lexsort((file_numbers, times, groups))
    before, now = order[:-1], order[1:]
    shared = (times[now] == times[before]) & (groups[now] == groups[before])
    shared &= file_numbers[now] != file_numbers[before]
    before, now = before[shared], now[shared]
    differs = np.zeros(len(now), dtype=bool)
    for key in parts[0] if len(now) else ():
        differs |= rows_differ({key: concatenate([part[key] for part in parts], f"{label}: its files")}, now, before)
    return now, differs


def _with_common_categories(
    parts: list[Arrays], files: Sequence[FileContents]
) -> tuple[list[Arrays], dict[str, list[str]]]:
    """Give each category the same number in all files, in order of appearance."""
    found: dict[str, list[str]] = {}
    for file in files:
        for column, categories in file.metadata.get("categories", {}).items():
            known = found.setdefault(column, [])
            known += [category for category in categories if category not in known]
    if not found:
        return parts, {}
    renumbered = []
    for part, file in zip(parts, files, strict=True):
        observations = part["observations"].copy()
        for column, categories in file.metadata.get("categories", {}).items():
            i = file.metadata["observation_names"].index(column)
            numbers = np.array([found[column].index(category) for category in categories], dtype=np.float64)
            is_known = np.isfinite(observations[:, i])
            observations[is_known, i] = numbers[observations[is_known, i].astype(np.int64)]
        renumbered.append({**part, "observations": observations})
    return renumbered, found
