"""Parquet and Arrow IPC files, read in batches after the sizes that they state have been checked."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from aspc.data.columns import KeyMap, resolve_columns
from aspc.data.readers import arrow_sizes
from aspc.data.readers.contents import Arrays, FileContents, complete_contents
from aspc.data.readers.limits import ReadLimits
from aspc.data.readers.table_columns import (
    BATCH_ROWS,
    PARSERS,
    ColumnCollector,
    batch_rows,
    check_column_count,
    column_names,
    not_numeric_error,
    parse_cells,
)
from aspc.errors import AspcError, MissingExtra


def read_arrow(path: Path, key_map: KeyMap, single_episode: bool, limits: ReadLimits) -> FileContents:
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
        found, notes = resolve_columns(schema.names, key_map, path.name, single_episode)
        wanted = list(dict.fromkeys(column for names in found.values() for column in names))
        table = _ArrowTable(path.name, schema, found)
        needed = rows * table.collector.row_bytes
        limits.require(needed, path.name)
        if path.suffix.lower() == ".parquet":
            limits.require(needed + _largest_column_chunks(file.metadata, set(wanted)), path.name)
            batches = file.iter_batches(batch_size=batch_rows(len(wanted)), columns=wanted, use_threads=False)
        else:
            limits.require(needed + sizes.largest_batch_bytes + sizes.dictionary_bytes, path.name)
            options = pa.ipc.IpcReadOptions(
                use_threads=False, included_fields=[schema.get_field_index(column) for column in wanted]
            )
            reader = pa.ipc.open_file(source, options=options)
            batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        for batch in batches:
            limits.progress()
            for start in range(0, len(batch), BATCH_ROWS):
                table.append(batch.slice(start, BATCH_ROWS))
    return complete_contents(table.arrays(), notes, column_names(found), path.name)


def _largest_column_chunks(metadata: Any, wanted: set[str]) -> int:
    """Return the stated bytes of the wanted columns in the largest row group."""
    largest = 0
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        chunks = (group.column(j) for j in range(group.num_columns))
        sizes = [chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema in wanted]
        largest = max(largest, sum(sizes))
    return largest


def _is_text(type_: Any) -> bool:
    return "string" in str(type_)


class _ArrowTable:
    """Batches of Arrow columns, converted to arrays of numbers."""

    def __init__(self, name: str, schema: Any, found: Mapping[str, list[str]]) -> None:
        self._name = name
        parsers = {column: parse for key, parse in PARSERS.items() for column in found.get(key, ())}
        types = {column: schema.field(column).type for names in found.values() for column in names}
        self._parsers = {column: parsers[column] for column in types if column in parsers and _is_text(types[column])}
        dtypes = {column: self._dtype(column, type_) for column, type_ in types.items()}
        self._empty_cells = dict.fromkeys(types, 0)
        self.collector = ColumnCollector(found, dtypes, name)

    def _dtype(self, column: str, type_: Any) -> np.dtype[Any]:
        import pyarrow.types as kinds

        if column in self._parsers:
            return np.dtype(np.float64)
        if not (kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_boolean(type_)):
            raise not_numeric_error(self._name, column, "text" if _is_text(type_) else str(type_))
        dtype: np.dtype[Any] = np.dtype(type_.to_pandas_dtype())
        return dtype

    def append(self, batch: Any) -> None:
        values = {column: batch.column(batch.schema.get_field_index(column)) for column in self._empty_cells}
        for column, cells in values.items():
            self._empty_cells[column] += cells.null_count
        if not any(self._empty_cells.values()):
            self.collector.append({column: self._numbers(column, cells) for column, cells in values.items()})

    def _numbers(self, column: str, cells: Any) -> np.ndarray:
        if column in self._parsers:
            where = f"{self._name}: column {column!r}"
            return parse_cells(cells.to_pylist(), self._parsers[column], where, self.collector.rows)
        return np.asarray(cells.to_numpy(zero_copy_only=False))

    def arrays(self) -> Arrays:
        for column, count in self._empty_cells.items():
            if count:
                is_one = count == 1
                raise AspcError(
                    f"{self._name}: column {column!r} has {count:,} empty {'cell' if is_one else 'cells'}. Fill "
                    f"{'it' if is_one else 'them'}, or drop {'its row' if is_one else 'their rows'} and start a new "
                    "episode after each gap."
                )
        return self.collector.arrays()
