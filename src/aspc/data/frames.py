"""Read pandas and polars data frames. They are recognized by their interface, so neither package is imported."""

from __future__ import annotations

from typing import Any

import numpy as np

from aspc.data.read_options import ReadOptions
from aspc.data.readers.column_tables import read_columns
from aspc.data.readers.contents import FileContents


def is_frame(value: Any) -> bool:
    """Return whether a value is a data frame: a table with named columns that convert to NumPy."""
    return hasattr(value, "columns") and hasattr(value, "to_numpy") and hasattr(value, "__getitem__")


def frame_names(value: Any) -> tuple[str, ...]:
    """Return the column names of a data frame, or an empty tuple for any other value."""
    return tuple(str(column) for column in value.columns) if is_frame(value) else ()


def read_frame(frame: Any, options: ReadOptions, name: str) -> FileContents:
    """Return the contents of a data frame in the format of the file readers. The index is ignored."""
    return read_columns({str(column): _to_array(frame[column]) for column in frame.columns}, options, name)


def _to_array(series: Any) -> np.ndarray:
    values = series
    if str(getattr(series, "dtype", "")).startswith(("Int", "UInt", "Float", "boolean")) and hasattr(series, "isna"):
        if series.isna().any():  # by default, pandas converts nullable types to objects
            return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
        values = series.astype(str(series.dtype).lower().replace("boolean", "bool"))
    if getattr(getattr(series, "dt", None), "tz", None) is not None:
        values = series.dt.tz_convert("UTC").dt.tz_localize(None)
    return np.asarray(values.to_numpy())
