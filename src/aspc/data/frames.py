"""Read pandas and polars data frames. They are recognized by their interface, so neither package is imported."""

from __future__ import annotations

from typing import Any

import numpy as np

from aspc.data.read_options import ReadOptions
from aspc.data.readers.column_tables import read_columns
from aspc.data.readers.contents import FileContents

DATE_INDEX = "timestamp"  # column name of an unnamed date index


def is_frame(value: Any) -> bool:
    """Return whether a value is a data frame: a table with named columns that convert to NumPy."""
    # Check `to_numpy` first: polars lazy frames do not have it, and reading their `columns` raises a warning.
    return hasattr(value, "to_numpy") and hasattr(value, "__getitem__") and hasattr(value, "columns")


def frame_names(value: Any) -> tuple[str, ...]:
    """Return the column names of a data frame, or an empty tuple for any other value."""
    return tuple(str(column) for column in value.columns) if is_frame(value) else ()


def read_frame(frame: Any, options: ReadOptions, name: str) -> FileContents:
    """Return the contents of a data frame in the format of the file readers.

    An index that has a name or holds dates is read like a column; row numbers are ignored.
    """
    columns = {str(column): _to_array(frame[column]) for column in frame.columns}
    return read_columns({**_index_columns(frame), **columns}, options, name)


def _index_columns(frame: Any) -> dict[str, np.ndarray]:
    """Return the levels of a pandas index that are not row numbers, by name."""
    index: Any = getattr(frame, "index", None)
    found: dict[str, np.ndarray] = {}
    for level, name in enumerate(getattr(index, "names", ())):  # polars has no index
        values = index.get_level_values(level)
        if name is not None or values.dtype.kind == "M":
            found[DATE_INDEX if name is None else str(name)] = _to_array(values.to_series())
    return found


def _to_array(series: Any) -> np.ndarray:
    values = series
    if str(getattr(series, "dtype", "")).startswith(("Int", "UInt", "Float", "boolean")) and hasattr(series, "isna"):
        if series.isna().any():  # by default, pandas converts nullable types to objects
            return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
        values = series.astype(str(series.dtype).lower().replace("boolean", "bool"))
    if getattr(getattr(series, "dt", None), "tz", None) is not None:
        values = series.dt.tz_convert("UTC").dt.tz_localize(None)
    return np.asarray(values.to_numpy())
