"""A reader of Parquet and Arrow IPC files: it checks the sizes stated in a file, then reads the file in batches."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from aspc.data.columns import resolve_columns
from aspc.data.formula import Formula
from aspc.data.missing import missing_cells
from aspc.data.read_options import ReadOptions
from aspc.data.readers import arrow_sizes
from aspc.data.readers.contents import Arrays, FileContents
from aspc.data.readers.limits import ReadLimits
from aspc.data.readers.table_columns import (
    BATCH_ROWS,
    PARSERS,
    VECTORS,
    CategoryParser,
    CellParser,
    ColumnCollector,
    batch_rows,
    check_column_count,
    fillable_columns,
    not_numeric_error,
    parse_cells,
    table_metadata,
)
from aspc.data.roles import is_named_like_time
from aspc.data.row_preparation import unused_rows
from aspc.data.time_cells import is_date_time, is_epoch, parse_time, parse_times
from aspc.errors import AspcError, MissingExtra


def read_arrow(path: Path, options: ReadOptions, limits: ReadLimits) -> FileContents:
    """Read a Parquet file or an Arrow IPC file."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtra(f"Reading {path.name}", "tables") from error
    with ExitStack() as opened:
        if path.suffix.lower() == ".parquet":
            file = opened.enter_context(pq.ParquetFile(path, pre_buffer=False))
            schema, rows = file.schema_arrow, file.metadata.num_rows
        else:
            sizes = arrow_sizes.stated_sizes(path)
            source = opened.enter_context(pa.memory_map(str(path)))
            schema, rows = pa.ipc.open_file(source).schema, sizes.rows
        check_column_count(schema.names, path.name)
        if path.suffix.lower() == ".parquet":
            cells = _smallest_cells(file.metadata)
        else:
            limits.require(sizes.largest_batch_bytes + sizes.dictionary_bytes, path.name)
            cells = _first_cells(source, schema)

        def is_date(column: str) -> bool:
            return _is_date(schema.field(column).type) or is_date_time(cells.get(column, ""))

        def is_time(column: str) -> bool:
            return is_date(column) or is_epoch(cells.get(column, ""))

        def is_choice(column: str) -> bool:
            return not str(schema.field(column).type).startswith(("float", "double", "half"))

        found, notes = resolve_columns(schema.names, options, path.name, is_time, is_date, is_choice)
        wanted = list(dict.fromkeys(column for names in found.values() for column in names))
        table = ArrowTable(path.name, schema, found, options)
        needed = rows * table.collector.row_bytes
        limits.require(needed, path.name)
        if path.suffix.lower() == ".parquet":
            limits.require(needed + _largest_column_chunks(file.metadata, set(wanted)), path.name)
            batches = file.iter_batches(batch_size=batch_rows(len(wanted)), columns=wanted, use_threads=False)
        else:
            limits.require(needed + sizes.largest_batch_bytes + sizes.dictionary_bytes, path.name)
            reading = pa.ipc.IpcReadOptions(
                use_threads=False, included_fields=[schema.get_field_index(column) for column in wanted]
            )
            reader = pa.ipc.open_file(source, options=reading)
            batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        for batch in batches:
            limits.progress()
            for start in range(0, len(batch), BATCH_ROWS):
                table.append(batch.slice(start, BATCH_ROWS))
                limits.require(rows * table.collector.row_bytes, path.name)  # the file states no list lengths
    return FileContents(table.arrays(), notes, table.metadata())


def _smallest_cells(metadata: Any) -> dict[str, str]:
    """Return the smallest text or number of each column of a Parquet file, without reading cells.

    They come from the statistics of the first row group.
    """
    if metadata.num_row_groups == 0:
        return {}
    group = metadata.row_group(0)
    chunks = [group.column(j) for j in range(group.num_columns)]
    smallest = {chunk.path_in_schema: chunk.statistics.min for chunk in chunks if chunk.statistics is not None}
    return {column: str(cell) for column, cell in smallest.items() if isinstance(cell, str | int | float)}


def _first_cells(source: Any, schema: Any) -> dict[str, str]:
    """Return the first cell of each column of an Arrow IPC file that can hold times."""
    import pyarrow as pa

    wanted = [i for i, field in enumerate(schema) if _is_text(field.type) or is_named_like_time(field.name)]
    reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(use_threads=False, included_fields=wanted))
    if not wanted or reader.num_record_batches == 0:
        return {}
    first = reader.get_batch(0)
    return {first.schema.names[i]: _to_text(column[0].as_py()) for i, column in enumerate(first.columns) if len(column)}


def _largest_column_chunks(metadata: Any, wanted: set[str]) -> int:
    """Return the stated size in bytes of the wanted columns in the largest row group."""
    largest = 0
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        chunks = (group.column(j) for j in range(group.num_columns))
        sizes = [chunk.total_uncompressed_size for chunk in chunks if _column_of(chunk, wanted) in wanted]
        largest = max(largest, sum(sizes))
    return largest


def _column_of(chunk: Any, wanted: set[str]) -> str:
    """Return the column of a chunk. The path of a list's chunk has a suffix, such as `.list.element`."""
    path = str(chunk.path_in_schema)
    return path if path in wanted else path.removesuffix(".list.element").removesuffix(".list.item")


def _is_text(type_: Any) -> bool:
    return "string" in str(type_)


def _to_text(cell: Any) -> str:
    return "" if cell is None else str(cell)


def _is_date(type_: Any) -> bool:
    return str(type_).startswith(("timestamp", "date32", "date64"))


def _list_size(type_: Any) -> int | None:
    """Return the list length of a type: 0 if the lists can differ in length, None if the type is not a list."""
    import pyarrow.types as kinds

    if kinds.is_fixed_size_list(type_):
        return int(type_.list_size)
    return 0 if kinds.is_list(type_) or kinds.is_large_list(type_) else None


class ArrowTable:
    """Batches of Arrow columns, converted to arrays of numbers."""

    def __init__(self, name: str, schema: Any, found: Mapping[str, list[str]], options: ReadOptions) -> None:
        self._name, self._found, self._options = name, found, options
        parsers = {column: parse for key, parse in PARSERS.items() for column in found.get(key, ())}
        types = {column: schema.field(column).type for names in found.values() for column in names}
        self._parsers: dict[str, CellParser] = {c: parsers[c] for c in types if c in parsers and _is_text(types[c])}
        named = [column for column in found["actions"] if _is_text(types[column])]
        self.categories = {column: CategoryParser() for column in (*options.one_hot, *named)}
        self._times = [
            column for column in found.get("times", ()) if _is_text(types[column]) or _is_date(types[column])
        ]
        self._lists = {
            column: size
            for key in VECTORS
            for column in found.get(key, ())
            if len(found[key]) == 1 and (size := _list_size(types[column])) is not None
        }
        dtypes = {column: self._dtype(column, type_) for column, type_ in types.items()}
        self._empty_cells = dict.fromkeys(types, 0)
        formula = None if options.reward is None else Formula.parse(options.reward)
        self._can_be_missing = {
            column for column in fillable_columns(found) if dtypes[column].kind == "f" and column not in self._lists
        }
        self.collector = ColumnCollector(found, dtypes, name, formula, frozenset(self._lists))

    def _dtype(self, column: str, type_: Any) -> np.dtype[Any]:
        import pyarrow.types as kinds

        if column in self._parsers or column in self._times or column in self.categories:
            return np.dtype(np.float64)
        if column in self._lists:
            type_ = type_.value_type
        if not (kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_boolean(type_)):
            raise not_numeric_error(self._name, column, "text" if _is_text(type_) else str(type_))
        dtype: np.dtype[Any] = np.dtype(type_.to_pandas_dtype())
        if self._options.missing != "error" and column in fillable_columns(self._found) and dtype.kind in "iu":
            return np.dtype(np.float64)
        return dtype

    def append(self, batch: Any) -> None:
        """Append a batch of rows."""
        values = {column: batch.column(batch.schema.get_field_index(column)) for column in self._empty_cells}
        for column, cells in values.items():
            self._empty_cells[column] += cells.null_count
        if not any(count for column, count in self._empty_cells.items() if column not in self._can_be_missing):
            self.collector.append({column: self._numbers(column, cells) for column, cells in values.items()})

    def _numbers(self, column: str, cells: Any) -> np.ndarray:
        if column in self._times:
            return self._seconds(column, cells)
        if column in self._lists:
            return self._matrix(column, cells)
        if column in self.categories:
            return np.array([self.categories[column](_to_text(cell)) for cell in cells.to_pylist()], np.float64)
        if column in self._parsers:
            where = f"{self._name}: column {column!r}"
            return parse_cells(cells.to_pylist(), self._parsers[column], where, self.collector.rows)
        return np.asarray(cells.to_numpy(zero_copy_only=False))

    def _seconds(self, column: str, cells: Any) -> np.ndarray:
        import pyarrow as pa

        if _is_date(cells.type):
            return np.asarray(cells.cast(pa.timestamp("us"), safe=False).cast(pa.int64())) / 1e6
        texts = cells.to_pylist()
        try:
            return parse_times(texts)
        except ValueError:
            where = f"{self._name}: column {column!r}"
            return parse_cells(texts, parse_time, where, self.collector.rows)

    def _matrix(self, column: str, cells: Any) -> np.ndarray:
        values = cells.flatten()
        rows = len(cells)
        size = len(values) // rows if rows else 0
        lengths = np.asarray(cells.value_lengths())
        first = self._lists[column] or size
        self._lists[column] = first
        if values.null_count or (lengths != first).any():
            raise AspcError(
                f"{self._name}: the lists in column {column!r} differ in length or have empty entries. Make all lists "
                "equally long, with a number in every entry."
            )
        return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(rows, first)

    def arrays(self) -> Arrays:
        """Return the arrays of all rows. Raises an `AspcError` for empty cells that the options do not allow."""
        empty = {column: count for column, count in self._empty_cells.items() if count}
        empty = {column: count for column, count in empty.items() if column not in self._found.get("kpis", ())}
        is_allowed = self._options.missing != "error" or self._only_unused_rows(empty)
        for column, count in empty.items():
            if column not in self._can_be_missing or not is_allowed:
                raise self._empty_cells_error(column, count)
        return self.collector.arrays()

    def metadata(self) -> dict[str, Any]:
        """Return the column names and the categories."""
        found = {
            key: [
                name
                for column in columns
                for name in (
                    [f"{column}_{i}" for i in range(self._lists[column])] if column in self._lists else [column]
                )
            ]
            for key, columns in self._found.items()
        }
        return table_metadata(found, self.categories, self.collector.booleans)

    def _only_unused_rows(self, empty: Mapping[str, int]) -> bool:
        """Return whether all empty cells are actions, rewards or costs in rows that training does not use."""
        allowed = {column for key in ("actions", "rewards", "costs") for column in self._found.get(key, ())}
        if not empty or not allowed.issuperset(empty):
            return False
        arrays = self.collector.arrays()
        return not (missing_cells(arrays) & ~unused_rows(arrays)).any()

    def _empty_cells_error(self, column: str, count: int) -> AspcError:
        is_one = count == 1
        hint = " For missing values, pass --missing split, ffill, interpolate or drop."
        return AspcError(
            f"{self._name}: column {column!r} has {count:,} empty {'cell' if is_one else 'cells'}. Fill "
            f"{'it' if is_one else 'them'}, or drop {'its row' if is_one else 'their rows'} and start a new "
            f"episode after each gap.{hint if column in self._can_be_missing else ''}"
        )
