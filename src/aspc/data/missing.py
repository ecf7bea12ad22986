"""Handling of missing values: remove or fill rows with empty cells, and report how many there were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from aspc.data.read_options import MissingPolicy
from aspc.data.readers.contents import Arrays
from aspc.errors import AspcError
from aspc.text import count_noun, join_limited

FILLABLE = ("observations", "actions", "rewards", "next_observations")  # KPIs are never filled
MAX_SHOWN_COLUMNS = 10
WERE = ("was", "were")


def missing_cells(arrays: Arrays) -> np.ndarray:
    """Return a mask of the rows with a missing value (NaN)."""
    length = len(arrays["observations"])
    rows = np.zeros(length, dtype=bool)
    for key in FILLABLE:
        if key in arrays and arrays[key].dtype.kind == "f" and len(arrays[key]) == length:
            # The sum is a cheap first test. Infinities of both signs also make it NaN; the second test is exact.
            with np.errstate(invalid="ignore", over="ignore"):
                has_nan = np.isnan(arrays[key].sum(dtype=np.float64))
            if has_nan:
                rows |= np.isnan(arrays[key]).reshape(length, -1).any(axis=1)
    return rows


def handle_missing(
    arrays: Arrays, policy: MissingPolicy, names: Mapping[str, Sequence[str]], held: np.ndarray
) -> tuple[Arrays, list[str]]:
    """Fill missing values (NaN) or remove their rows, according to `policy`.

    Args:
        arrays: Arrays with rows in time order and with both terminals and timeouts.
        policy: "split" removes rows with missing values and ends the episode before them. "drop" removes these rows
            and joins their neighbors. "ffill" repeats the last value of the episode. "interpolate" interpolates
            linearly between the nearest values of the episode. Rows that cannot be filled are removed as with "split".
        names: Column names by array.
        held: Mask of the observation columns that "interpolate" fills with the last value instead.

    Returns:
        The arrays, and notes on how many values were missing in which columns.
    """
    rows = missing_cells(arrays)
    if not rows.any() or policy == "error":
        return arrays, []
    counts = _counts(arrays, names)
    ends = (arrays["terminals"] == 1) | (arrays["timeouts"] == 1)
    groups = np.concatenate([[0], np.cumsum(ends)[:-1]])
    longest = _longest_run(rows, groups)
    if policy in ("ffill", "interpolate"):
        arrays = {key: _fill(arrays, key, policy, groups, held) for key in arrays}
    left = missing_cells(arrays)
    cells = sum(count for _, count in counts)
    shown = join_limited([f"{count:,} in {column}" for column, count in counts], MAX_SHOWN_COLUMNS)
    if left.all():
        raise AspcError(f"Every row has an empty cell that cannot be filled ({shown}). Exclude these columns.")
    run = f"; at most {longest:,} consecutive rows" if longest > 1 else ""
    where = f"in {int(rows.sum()):,} of {len(rows):,} rows ({shown}{run})"
    note = f"{count_noun(cells, 'cell', ('is', 'are'))} empty, {where}: "
    actions = []
    if policy in ("ffill", "interpolate"):
        filled = "the last value of the episode" if policy == "ffill" else "interpolated values"
        actions.append(f"{count_noun(int(rows.sum() - left.sum()), 'row', WERE)} filled with {filled}")
    if left.any():
        arrays = _remove(arrays, left, ends, joins=policy == "drop")
        consequence = "their neighbors count as consecutive" if policy == "drop" else "an episode ends before each gap"
        actions.append(f"{count_noun(int(left.sum()), 'row', WERE)} removed, and {consequence}")
    return arrays, [note + "; ".join(actions) + "."]


def _counts(arrays: Arrays, names: Mapping[str, Sequence[str]]) -> list[tuple[str, int]]:
    found = []
    for key in FILLABLE:
        if key not in arrays or arrays[key].dtype.kind != "f":
            continue
        counts = np.isnan(arrays[key]).reshape(len(arrays[key]), -1).sum(axis=0)
        columns = names.get(key) or [key if len(counts) == 1 else f"{key} {i + 1}" for i in range(len(counts))]
        found += [(repr(column), int(count)) for column, count in zip(columns, counts, strict=True) if count]
    return found


def _longest_run(rows: np.ndarray, groups: np.ndarray) -> int:
    """Return the largest number of consecutive marked rows within one episode."""
    marked = np.flatnonzero(rows)
    breaks = np.flatnonzero((np.diff(marked) > 1) | (np.diff(groups[marked]) > 0)) + 1
    return max(len(run) for run in np.split(marked, breaks))


def _fill(arrays: Arrays, key: str, policy: MissingPolicy, groups: np.ndarray, held: np.ndarray) -> np.ndarray:
    values = arrays[key]
    if key not in FILLABLE or values.dtype.kind != "f" or not np.isnan(values).any():
        return values
    table = values.reshape(len(values), -1).copy()
    positions = np.asarray(arrays["times"] if "times" in arrays else np.arange(len(values)), np.float64)
    for i in range(table.shape[1]):
        column = table[:, i]
        if not np.isnan(column).any():
            continue
        is_held = policy == "ffill" or key == "actions" or (key == "observations" and bool(held[i]))
        table[:, i] = _fill_forward(column, groups) if is_held else _interpolate(column, groups, positions)
    return table.reshape(values.shape)


def _fill_forward(column: np.ndarray, groups: np.ndarray) -> np.ndarray:
    known = np.where(np.isnan(column), -1, np.arange(len(column)))
    last = np.maximum.accumulate(known)
    usable = (last >= 0) & (groups[last] == groups)
    return np.where(usable, column[last], np.nan)


def _interpolate(column: np.ndarray, groups: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Interpolate between known values of an episode; cells before the first or after the last of them stay NaN."""
    known = np.flatnonzero(~np.isnan(column))
    unknown = np.flatnonzero(np.isnan(column))
    result = column.copy()
    if len(known) == 0:
        return result
    after = np.searchsorted(known, unknown)
    inside = (after > 0) & (after < len(known))
    left, right = known[after[inside] - 1], known[after[inside]]
    rows = unknown[inside]
    same = (groups[left] == groups[rows]) & (groups[right] == groups[rows])
    rows, left, right = rows[same], left[same], right[same]
    span = positions[right] - positions[left]
    weight = np.divide(positions[rows] - positions[left], span, out=np.zeros(len(rows)), where=span > 0)
    result[rows] = column[left] + weight * (column[right] - column[left])
    return result


def _remove(arrays: Arrays, rows: np.ndarray, ends: np.ndarray, *, joins: bool) -> Arrays:
    """Remove rows. With `joins`, an episode ends only where it ended before."""
    kept = np.flatnonzero(~rows)
    result = {key: array[kept] for key, array in arrays.items()}
    if len(kept) == 0:
        return result
    # Each kept row takes over the episode ends of the removed rows that follow it.
    if joins:
        following = np.append(kept[1:], len(rows)) - 1
        total = np.concatenate([[0], np.cumsum(ends)])
        must_end = total[following + 1] > total[kept]
    else:
        must_end = np.append(np.diff(kept) > 1, True)
    result["timeouts"] = (must_end | (result["timeouts"] == 1)) & ~(result["terminals"] == 1)
    return result
