"""Resample logged rows at equal time intervals by holding or interpolating values."""

from __future__ import annotations

import numpy as np

from aspc.data.read_options import ResampleMethod
from aspc.data.readers.contents import Arrays
from aspc.data.time_cells import format_duration
from aspc.errors import AspcError

ROUNDING = 1e-6  # fraction of an interval
MEANS = ("rewards", "kpis")
MAX_GROWTH = 100  # maximum ratio of resampled to logged rows


def resample(arrays: Arrays, method: ResampleMethod, interval: float, held: np.ndarray) -> tuple[Arrays, list[str]]:
    """Resample each episode at equal intervals, starting at its first row.

    Observations are held or interpolated; actions are held. A reward is the mean of the logged rewards in its
    interval, or the last logged reward if the interval has none.

    Args:
        arrays: Arrays in chronological order, with both `terminals` and `timeouts`.
        method: Hold the last observation, or interpolate linearly.
        interval: Seconds per row.
        held: Observation columns that are never interpolated, such as categories.

    Raises:
        AspcError: The result would have more than `MAX_GROWTH` times as many rows.
    """
    times, ends = arrays["times"], (arrays["terminals"] == 1) | (arrays["timeouts"] == 1)
    stops = np.flatnonzero(ends) + 1
    starts = np.concatenate([[0], stops[:-1]]).astype(int)
    count = float(((times[stops - 1] - times[starts]) / interval + 1).sum())
    if count > MAX_GROWTH * len(times):
        raise AspcError(
            f"One row per {format_duration(interval)} would turn {len(times):,} rows into {count:,.0f}. Pass a longer "
            "--interval."
        )
    parts = [
        _resample_episode(arrays, slice(*rows), method, interval, held) for rows in zip(starts, stops, strict=True)
    ]
    result = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    notes = [
        f"rows were resampled to one per {format_duration(interval)} ({method}): {len(times):,} became "
        f"{len(result['times']):,}."
    ]
    if "next_observations" in arrays:
        notes.append("logged next observations are not used, because rows were resampled.")
    return result, notes


def _resample_episode(arrays: Arrays, rows: slice, method: ResampleMethod, interval: float, held: np.ndarray) -> Arrays:
    times = arrays["times"][rows] - arrays["times"][rows.start]
    steps = int(times[-1] / interval + ROUNDING) + 1
    grid = np.arange(steps) * interval
    last = np.searchsorted(times, grid + ROUNDING * interval, side="right") - 1
    result: Arrays = {key: arrays[key][rows][last] for key in ("observations", "actions", "masks") if key in arrays}
    if method == "interpolate":
        observations = result["observations"].astype(np.float64)
        for i in np.flatnonzero(~held):
            observations[:, i] = np.interp(grid, times, arrays["observations"][rows][:, i])
        result["observations"] = observations
    # An interval includes the rows from its start up to, but not at, the start of the next interval.
    first = np.searchsorted(times, grid - ROUNDING * interval, side="left")
    stop = np.append(first[1:], len(times))
    for key in MEANS:
        if key in arrays:
            result[key] = _interval_means(arrays[key][rows].astype(np.float64), first, stop, last)
    result["times"] = grid + arrays["times"][rows.start]
    for key in ("terminals", "timeouts"):
        result[key] = np.zeros(steps, dtype=bool)
        result[key][-1] = arrays[key][rows][-1] == 1
    return result


def _interval_means(values: np.ndarray, first: np.ndarray, stop: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return the mean of the known `values[first:stop]` per interval, or `values[last]` where none are known."""
    is_known = ~np.isnan(values)
    start = np.zeros((1, *values.shape[1:]))
    sums = np.concatenate([start, np.cumsum(np.where(is_known, values, 0.0), axis=0)])
    counts = np.concatenate([start, np.cumsum(is_known, axis=0)])
    count = counts[stop] - counts[first]
    return np.asarray(np.where(count > 0, (sums[stop] - sums[first]) / np.maximum(count, 1), values[last]))
