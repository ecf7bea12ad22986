"""Convert file contents to ordered rows: costs, times, episodes, missing values, resampling and categories."""

from __future__ import annotations

from typing import Any

import numpy as np

from aspc.data.missing import handle_missing, missing_cells
from aspc.data.read_options import ReadOptions
from aspc.data.readers.contents import Arrays, FileContents, complete_flags
from aspc.data.resampling import resample
from aspc.data.time_axis import check_times, median_interval, sort_rows, split_at_gaps
from aspc.data.validation import check_flags
from aspc.errors import AspcError
from aspc.text import count_noun


def prepare_rows(contents: FileContents, options: ReadOptions, name: str) -> FileContents:
    """Return the arrays of a dataset: ordered rows with complete flags, without time, episode and cost columns.

    Args:
        contents: A reader's result, with the arrays `times`, `episodes` and `costs` if the file has them.
        options: The options for reading the log.
        name: Name of the file, for messages.

    Raises:
        AspcError: The times contradict each other, or the flags are invalid.
    """
    arrays, metadata = dict(contents.arrays), dict(contents.metadata)
    notes = list(contents.notes)
    if "costs" in arrays:
        arrays["rewards"] = -np.asarray(arrays.pop("costs"), np.float64)
    lengths = {key: len(array) for key, array in arrays.items()}
    is_consistent = len(set(lengths.values())) == 1  # otherwise, the dataset's validation reports the mismatch
    if "times" in arrays and is_consistent:
        arrays["times"] = check_times(arrays["times"], name)
        arrays, time_notes = sort_rows(arrays, name)
        notes += time_notes
    arrays, flag_notes = complete_flags(arrays, len(arrays["observations"]), name)
    notes += flag_notes
    if is_consistent:
        arrays, row_notes, metadata = _prepare_ordered(arrays, metadata, options, name)
        notes += row_notes
    arrays.pop("times", None)
    return FileContents(arrays, notes, metadata)


def _prepare_ordered(
    arrays: Arrays, metadata: dict[str, Any], options: ReadOptions, name: str
) -> tuple[Arrays, list[str], dict[str, Any]]:
    """Split, fill and resample ordered rows, then encode categories."""
    notes: list[str] = []
    categories: dict[str, list[str]] = metadata.pop("categories", {})
    columns = metadata.get("observation_names", [])
    held = np.array([column in categories for column in columns], dtype=bool)
    if len(held) == 0:
        held = np.zeros(arrays["observations"].shape[-1], dtype=bool)
    if "times" in arrays:
        arrays = arrays | {
            key: check_flags(key, arrays[key], name) for key in ("terminals", "timeouts") if key in arrays
        }
        arrays, gap_notes, text = split_at_gaps(arrays, options.max_gap, options.resample is not None)
        notes += gap_notes
        metadata["time"] = f"{metadata.get('time_name', 'time')}: {text}"
    elif options.resample is not None or options.max_gap is not None:
        raise AspcError(f"{name}: --resample and --max-gap need a time column; name it with --map time=NAME.")
    metadata.pop("time_name", None)
    if options.missing != "error" and missing_cells(arrays).any():
        arrays = _with_timeouts(arrays, name)
        names = {"observations": columns, "actions": metadata.get("action_names", [])}
        arrays, missing_notes = handle_missing(arrays, options.missing, names, held)
        notes += missing_notes
    interval = options.interval or ("times" in arrays and median_interval(arrays)) or None
    if options.resample is not None and interval is not None:
        arrays, resample_notes = resample(arrays, options.resample, interval, held)
        notes += resample_notes
    arrays, fill_notes = _fill_unused_rows(arrays)
    notes += fill_notes
    if categories:
        arrays, metadata = _encode_categories(arrays, metadata, categories, name)
    return arrays, notes, metadata


def _with_timeouts(arrays: Arrays, name: str) -> Arrays:
    """Return the arrays with terminals and timeouts. The last row always ends an episode."""
    length = len(arrays["observations"])
    terminals = check_flags("terminals", arrays["terminals"], name)
    timeouts = check_flags("timeouts", arrays.get("timeouts", np.zeros(length)), name).copy()
    if length:
        timeouts[-1] = not terminals[-1]
    return {**arrays, "terminals": terminals, "timeouts": timeouts}


def unused_rows(arrays: Arrays) -> np.ndarray:
    """Return a mask of rows without a next observation, which training skips: the last rows of truncated episodes.

    An episode is truncated by a timeout or the end of the data. `arrays` can hold episode ids instead of timeouts. With
    logged next observations, every row is used.
    """
    length = len(arrays["observations"])
    rows = np.zeros(length, dtype=bool)
    if length == 0 or "next_observations" in arrays:
        return rows
    rows[-1] = True
    if "episodes" in arrays:
        episodes = arrays["episodes"].reshape(-1)
        rows[:-1] |= episodes[1:] != episodes[:-1]
    if "timeouts" in arrays:
        rows |= np.asarray(arrays["timeouts"]).reshape(-1) == 1
    if "terminals" in arrays:
        rows &= ~(np.asarray(arrays["terminals"]).reshape(-1) == 1)
    return rows


def _fill_unused_rows(arrays: Arrays) -> tuple[Arrays, list[str]]:
    """Fill empty actions and rewards in unused rows, where only the observation is needed."""
    keys = [
        key
        for key in ("actions", "rewards")
        if arrays[key].dtype.kind == "f" and np.isnan(arrays[key][unused_rows(arrays)]).any()
    ]
    if not keys:
        return arrays, []
    rows = np.zeros(len(arrays["observations"]), dtype=bool)
    result = dict(arrays)
    for key in keys:
        values = arrays[key].reshape(len(rows), -1).copy()
        empty = np.isnan(values) & unused_rows(arrays)[:, None]
        rows |= empty.any(axis=1)
        before = np.nan_to_num(np.concatenate([values[:1], values[:-1]]))
        values[empty] = before[empty] if key == "actions" else 0.0
        result[key] = values.reshape(arrays[key].shape)
    return result, [
        f"{count_noun(int(rows.sum()), 'episode', ('has', 'have'))} no action or no reward in the last row: only the "
        "observation there is used."
    ]


def _encode_categories(
    arrays: Arrays, metadata: dict[str, Any], categories: dict[str, list[str]], name: str
) -> tuple[Arrays, dict[str, Any]]:
    """One-hot encode columns of category indices.

    Raises:
        AspcError: A category is missing, or next observations were logged.
    """
    columns: list[str] = metadata["observation_names"]
    for i, column in enumerate(columns):
        if column in categories and np.isnan(arrays["observations"][:, i]).any():
            row = int(np.isnan(arrays["observations"][:, i]).argmax())
            raise AspcError(
                f"{name}: column {column!r} is empty in row {row + 1:,}. Fill it, or pass --missing split or ffill."
            )
    if "next_observations" in arrays:
        raise AspcError(
            f"{name}: --one-hot does not support logged next observations. Rename those columns, so that the "
            "observation of the next row is used instead."
        )
    names: list[str] = []
    for column in columns:
        names += [f"{column}={category}" for category in categories[column]] if column in categories else [column]

    def encode(values: np.ndarray) -> np.ndarray:
        parts = []
        for i, column in enumerate(columns):
            part = values[:, [i]]
            parts.append(part == np.arange(len(categories[column])) if column in categories else part)
        return np.concatenate([part.astype(np.float64) for part in parts], axis=1)

    return {**arrays, "observations": encode(arrays["observations"])}, {
        **metadata,
        "observation_names": names,
        "categories": categories,
    }
