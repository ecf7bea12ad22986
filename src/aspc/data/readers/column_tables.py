"""Read tables held in memory as columns: data frames and the sheets of a workbook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from aspc.data.columns import resolve_columns
from aspc.data.formula import Formula
from aspc.data.read_options import ReadOptions
from aspc.data.readers.contents import FileContents
from aspc.data.readers.table_columns import (
    PARSERS,
    CategoryParser,
    ColumnCollector,
    cell_problem,
    check_column_count,
    fillable_columns,
    looks_like_choice,
    not_numeric_error,
    table_metadata,
)
from aspc.data.time_cells import is_date_time, is_epoch, parse_time
from aspc.errors import AspcError

Column = np.ndarray  # an array of numbers, booleans, datetime64 or objects


def read_columns(columns: Mapping[str, Column], options: ReadOptions, name: str) -> FileContents:
    """Return the contents of a table in the form that file readers return.

    Args:
        columns: The columns by name.
        options: Options for reading the log.
        name: Name of the table, for messages.

    Raises:
        AspcError: A required column is missing or invalid.
    """
    check_column_count(list(columns), name)

    def holds(column: str, accepts: Callable[[str], bool]) -> bool:
        values = columns[column]
        if values.dtype.kind == "M":
            return True
        first = next((value for value in values[:1_000] if not _is_empty(value)), None)
        return first is not None and not isinstance(first, bool | np.bool_) and accepts(str(first))

    found, notes = resolve_columns(
        list(columns),
        options,
        name,
        lambda column: holds(column, lambda text: is_date_time(text) or is_epoch(text)),
        lambda column: holds(column, is_date_time),
        lambda column: columns[column].dtype.kind in "iub" or _first_cell(columns[column], looks_like_choice),
    )
    named = [c for c in found["actions"] if columns[c].dtype.kind not in "fiubM" and _first_cell(columns[c], str.strip)]
    categories = {column: CategoryParser() for column in (*options.one_hot, *named)}
    parsers: dict[str, Callable[[str], float]] = {
        c: parse for key, parse in PARSERS.items() for c in found.get(key, ())
    }
    parsers |= dict.fromkeys(found.get("times", ()), parse_time)
    parsers |= categories
    fillable = set(fillable_columns(found))
    wanted = dict.fromkeys(column for names in found.values() for column in names)
    numbers = {c: _to_numbers(columns[c], c, parsers.get(c), c in fillable, name) for c in wanted}
    formula = None if options.reward is None else Formula.parse(options.reward)
    collector = ColumnCollector(found, {c: values.dtype for c, values in numbers.items()}, name, formula)
    collector.append(numbers)
    metadata = table_metadata(found, categories, collector.booleans)
    return FileContents(collector.arrays(), notes, metadata)


def _first_cell(values: Column, accepts: Callable[[str], Any]) -> bool:
    """Return whether the first non-empty cell is text for which `accepts` returns a true value."""
    first = next((value for value in values[:1_000] if not _is_empty(value)), None)
    return isinstance(first, str) and bool(accepts(first))


def _is_empty(value: Any) -> bool:
    if value is None or str(value) in ("<NA>", "NaT"):  # pandas' missing values
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def _to_numbers(
    values: Column, column: str, parse: Callable[[str], float] | None, is_fillable: bool, name: str
) -> np.ndarray:
    """Convert a column to numbers; empty cells become NaN if they can be filled later."""
    if values.dtype.kind == "M":
        seconds = values.astype("datetime64[us]").astype(np.int64) / 1e6
        return np.where(np.isnat(values), np.nan, seconds)
    is_text = values.dtype.kind not in "fiub"
    if not is_text and not isinstance(parse, CategoryParser):
        return values
    cells = values.tolist()
    kinds = {type(cell) for cell in cells if not _is_empty(cell)}
    if parse is None and kinds == {bool}:
        return np.array(cells, dtype=bool)
    if parse is None and any(issubclass(kind, str) for kind in kinds):
        raise not_numeric_error(name, column, "text")
    result = np.empty(len(cells))
    for i, cell in enumerate(cells):
        if _is_empty(cell) or (isinstance(cell, str) and not cell.strip()):
            if not is_fillable:
                raise AspcError(
                    f"{name}: column {column!r} has an empty cell in row {i + 1:,}. Fill it, or drop its row."
                )
            result[i] = np.nan
        elif parse is None:
            result[i] = float(cell)
        else:
            problem = "" if isinstance(parse, CategoryParser) else cell_problem(str(cell), parse)
            if problem:
                raise AspcError(f"{name}: column {column!r}, row {i + 1:,} {problem}.")
            result[i] = parse(str(cell))
    return result
