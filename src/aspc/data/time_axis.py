"""Rows in chronological order: sorting, duplicates, gaps and the sampling rate."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aspc.data.readers.contents import Arrays
from aspc.data.time_cells import FIRST_EPOCH, format_duration, format_time, to_seconds
from aspc.errors import AspcError

REGULAR_FACTOR = 1.5  # with regular sampling, a gap longer than this many median intervals ends an episode
IRREGULAR_FACTOR = 10.0  # the same for irregular sampling and for rows that will be resampled
REGULAR_FRACTION = 0.9  # minimum fraction of intervals within the tolerance, for regular sampling
TOLERANCE = 0.1  # fraction of the median interval
MAX_RESTARTS = 0.5  # if time decreases in a larger fraction of the steps, the decreases are not episode starts


class TimeAxis(NamedTuple):
    """Arrays sorted by time, notes, and a description of the times."""

    arrays: Arrays
    notes: list[str]
    text: str


# ── order ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_times(times: np.ndarray, name: str) -> np.ndarray:
    """Return times in seconds.

    Raises:
        AspcError: A time is invalid, or there is more than one time per row.
    """
    if times.ndim == 2 and times.shape[1] == 1:
        times = times[:, 0]
    if times.ndim != 1:
        raise AspcError(f"{name}: expected one time per row, but got an array of shape {times.shape}.")
    times = to_seconds(np.asarray(times, np.float64))
    if not np.isfinite(times).all():
        row = int(np.flatnonzero(~np.isfinite(times))[0])
        raise AspcError(f"{name}: row {row + 1:,} has no valid time. Correct it, or drop the row.")
    return times


def sort_rows(arrays: Arrays, name: str) -> tuple[Arrays, list[str]]:
    """Sort rows by time within their episodes, and remove rows that are exact duplicates.

    Episodes are identified by their ids. Without ids, all rows are sorted together, along with any flags that mark
    episode ends, unless the times restart in each episode. In that case each restart begins an episode.

    Raises:
        AspcError: Rows with the same time differ, so that their order is unknown.
    """
    times = arrays["times"]
    groups = group_ids(arrays["episodes"]) if "episodes" in arrays else np.zeros(len(times), dtype=np.int64)
    if _is_in_order(times, groups, arrays):
        return _drop_duplicates(arrays, groups, name)
    if "episodes" not in arrays and _restarts(arrays):
        starts = np.append(False, np.diff(times) < 0)
        return (
            {**arrays, "episodes": np.cumsum(starts).astype(np.float64)},
            [f"the time restarts {int(starts.sum()):,} times: each restart begins an episode."],
        )
    backwards = int((np.diff(times) < 0).sum())
    order = np.lexsort((times, groups))
    ordered = {key: np.ascontiguousarray(array[order]) for key, array in arrays.items()}
    note = f"rows are not in chronological order (the time decreases {backwards:,} times), so they were sorted."
    ordered, notes = _drop_duplicates(ordered, groups[order], name)
    return ordered, [note, *notes]


def group_ids(episodes: np.ndarray) -> np.ndarray:
    """Number the episode ids in order of first appearance."""
    if len(episodes) == 0:
        return np.zeros(0, dtype=np.int64)
    episodes = episodes.reshape(-1)
    starts = np.flatnonzero(np.append(True, episodes[1:] != episodes[:-1]))  # sorting is slow, and starts are few
    _, first, inverse = np.unique(episodes[starts], return_index=True, return_inverse=True)
    ranks = np.empty(len(first), dtype=np.int64)
    ranks[np.argsort(first, kind="stable")] = np.arange(len(first))
    return np.repeat(ranks[inverse.reshape(-1)], np.diff(np.append(starts, len(episodes))))


def _ends(arrays: Arrays, length: int) -> np.ndarray:
    """Return a mask of the rows flagged as episode ends."""
    ends = np.zeros(length, dtype=bool)
    for key in ("terminals", "timeouts"):
        if key in arrays:
            ends |= np.asarray(arrays[key]).reshape(-1) == 1
    return ends


def _is_in_order(times: np.ndarray, groups: np.ndarray, arrays: Arrays) -> bool:
    """Return whether time never decreases inside an episode, and no episode id reappears."""
    same = groups[1:] == groups[:-1]
    if (np.diff(groups) < 0).any():
        return False
    inside = same if "episodes" in arrays else ~_ends(arrays, len(times))[:-1]
    return not (np.diff(times) < 0)[inside].any()


def _restarts(arrays: Arrays) -> bool:
    """Return whether times seem to restart in each episode: they decrease in at most half of the steps, and repeat."""
    times = arrays["times"]
    back = np.diff(times) < 0
    if times.max() >= FIRST_EPOCH or back.mean() > MAX_RESTARTS or _ends(arrays, len(times)).any():
        return False
    return len(np.unique(times)) < len(times)


def _drop_duplicates(arrays: Arrays, groups: np.ndarray, name: str) -> tuple[Arrays, list[str]]:
    """Remove rows that repeat the row before them. Rows must be sorted; `groups` holds their episode numbers."""
    times = arrays["times"]
    repeated = np.flatnonzero((np.diff(times) == 0) & (np.diff(groups) == 0) & ~_ends(arrays, len(times))[:-1]) + 1
    if len(repeated) == 0:
        return arrays, []
    differs = rows_differ(arrays, repeated, repeated - 1)
    if differs.any():
        first = format_time(float(times[repeated[differs.argmax()]]))
        raise AspcError(
            f"{name}: {int(differs.sum()):,} rows share a timestamp with another row, but differ from it (first at "
            f"{first}). If they come from several machines, pass --map episode=NAME with the column that names the "
            "machine; otherwise keep one row per time, or ignore the times with --map time=none."
        )
    kept = np.ones(len(times), dtype=bool)
    kept[repeated] = False
    return (
        {key: array[kept] for key, array in arrays.items()},
        [f"{len(repeated):,} rows are exact duplicates of the row before them and were dropped."],
    )


def rows_differ(arrays: Arrays, rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return a mask of the rows that differ from the other rows in any array; missing values count as equal."""
    differs = np.zeros(len(rows), dtype=bool)
    if len(rows) == 0:
        return differs
    for array in arrays.values():
        one, other = (array[indices].reshape(len(rows), -1) for indices in (rows, others))
        unequal = one != other
        if array.dtype.kind == "f":
            unequal &= ~(np.isnan(one) & np.isnan(other))
        differs |= unequal.any(axis=1)
    return differs


# ── intervals ───────────────────────────────────────────────────────────────────────────────────────────────────────


def split_at_gaps(arrays: Arrays, max_gap: float | None, will_resample: bool) -> TimeAxis:
    """End the episode with a timeout before each gap in time.

    Args:
        arrays: Arrays sorted by time, with all episode ends flagged.
        max_gap: The longest interval inside an episode, in median intervals; None chooses a limit according to the
            regularity of the sampling.
        will_resample: True if resampling will fill in rows, so that short gaps need no split.
    """
    times = arrays["times"]
    ends = _ends(arrays, len(times))
    intervals, inside = np.diff(times), ~ends[:-1]
    span = f"{format_time(float(times.min()))} to {format_time(float(times.max()))}" if len(times) else "no rows"
    usual = median_interval(arrays)
    if usual is None:
        return TimeAxis(_with_timeouts(arrays, ends, np.zeros_like(ends)), [], span)
    multiples = intervals[inside] / usual
    is_multiple = np.abs(multiples - np.maximum(1, np.round(multiples))) <= TOLERANCE
    is_regular = bool(is_multiple.mean() >= REGULAR_FRACTION)
    factor = max_gap or (REGULAR_FACTOR if is_regular and not will_resample else IRREGULAR_FACTOR)
    is_gap = np.append((intervals > factor * usual) & inside, False)
    notes = []
    if gaps := int(is_gap.sum()):
        longest = float(intervals[is_gap[:-1]].max())
        notes.append(
            f"{gaps:,} gap{'s' * (gaps > 1)} of more than {factor:g} intervals ({format_duration(factor * usual)}; the "
            f"longest is {format_duration(longest)}) {'ends' if gaps == 1 else 'each end'} an episode, because the "
            "rows on either side are not consecutive. Change the limit with --max-gap, or fill short gaps with "
            "--resample hold."
        )
    kept = intervals[inside & ~is_gap[:-1]]
    fraction = float((np.abs(kept / usual - 1) <= TOLERANCE).mean()) if len(kept) else 1.0
    if fraction < REGULAR_FRACTION and not will_resample:
        low, high = np.quantile(kept, (0.05, 0.95))
        notes.append(
            f"the sampling is irregular: 90 % of the intervals range from {format_duration(float(low))} to "
            f"{format_duration(float(high))}, but training treats every step as equally long. Resample with --resample "
            "hold or --resample interpolate."
        )
    text = f"{span}, one row per {format_duration(usual)} ({100 * fraction:.0f} % of the intervals)"
    return TimeAxis(_with_timeouts(arrays, ends, is_gap), notes, text)


def median_interval(arrays: Arrays) -> float | None:
    """Return the median time between consecutive rows of an episode; None if no time passes."""
    times = arrays["times"]
    inside = np.diff(times)[~_ends(arrays, len(times))[:-1]]
    inside = inside[inside > 0]
    return float(np.median(inside)) if len(inside) else None


def _with_timeouts(arrays: Arrays, ends: np.ndarray, is_gap: np.ndarray) -> Arrays:
    timeouts = np.asarray(arrays.get("timeouts", np.zeros(len(ends), dtype=bool))).reshape(-1) == 1
    timeouts |= is_gap
    if len(ends):
        timeouts[-1] = np.asarray(arrays["terminals"]).reshape(-1)[-1] != 1
    return {**arrays, "timeouts": timeouts}
