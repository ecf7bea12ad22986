"""Write Parquet files of results atomically, and check every value when reading them."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aspc.errors import DISK_ERRORS, AspcError, DiskFailure, first_line
from aspc.io import replace_nonfinite, write_atomically
from aspc.lab.results.schema import SCHEMA_VERSION, TABLES, Column, Kind, Row, arrow_type, import_pyarrow
from aspc.text import count_noun

if TYPE_CHECKING:
    import pyarrow as pa

MAX_ROWS = 100_000_000  # per file: 5,000 runs with 20,000 evaluations each
MAX_CELL_LENGTH = 4_000_000  # characters
MAX_COLUMN_LENGTH = 4_000_000_000  # characters in total


def make_table(rows: Sequence[Row], columns: Mapping[str, Column], name: str) -> pa.Table:
    """Convert rows to an Arrow table.

    Missing keys become null, `schema_version` is filled in, and dictionaries become JSON.

    Args:
        rows: The rows, as dictionaries from column name to value.
        columns: The columns of the table.
        name: Name of the result file, for error messages.

    Raises:
        AspcError: A row has an unknown column, is missing a required one, or has a value of the wrong type.
    """
    pa = import_pyarrow()
    for row in rows:
        unknown = sorted(set(row) - set(columns))
        if unknown:
            raise AspcError(
                f"Result file {name} has an unknown column {unknown[0]!r}. Known columns: {', '.join(columns)}."
            )
    values: dict[str, list[Any]] = {}
    for key, column in columns.items():
        values[key] = [_cell(row.get(key), column.kind) for row in rows]
        if key == "schema_version":
            values[key] = [SCHEMA_VERSION] * len(rows)
        if column.is_required and None in values[key]:
            raise AspcError(f"Result file {name} has a row without the required column {key!r}.")
    try:
        return pa.table({key: pa.array(values[key], arrow_type(column.kind)) for key, column in columns.items()})
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise AspcError(f"Result file {name} has a value of the wrong type: {first_line(error)}.") from error


def _cell(value: Any, kind: Kind) -> Any:
    """Convert a value for storage: NaN becomes null, and a dictionary becomes JSON, with NaN as the string "nan"."""
    if kind == "json" and value is not None and not isinstance(value, str):
        return json.dumps(replace_nonfinite(value, str), sort_keys=True, default=str)
    if kind in ("int", "float") and isinstance(value, np.generic | np.ndarray):
        value = value.item()
    return None if isinstance(value, float) and math.isnan(value) else value


def write_table(path: Path, table: pa.Table) -> None:
    """Write a Parquet file atomically, with checksums that reveal damaged pages.

    Raises:
        DiskFailure: The disk is full or failing.
        AspcError: The file cannot be written for another reason.
    """
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, buffer.getvalue())
    except OSError as error:
        kind = DiskFailure if error.errno in DISK_ERRORS else AspcError
        raise kind(f"Results cannot be written to {path}: {error.strerror or error}.") from error


def read_table(path: Path, kind: str) -> pa.Table:
    """Read a Parquet file of results, checking its size before allocating memory.

    Raises:
        AspcError: The file is damaged, too large, or not a table of this kind and version.
    """
    pa, columns = import_pyarrow(), TABLES[kind]
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(path)
        schema = metadata.schema.to_arrow_schema()
        _check_columns(path, kind, schema)
        if metadata.num_rows > MAX_ROWS:
            raise AspcError(f"{path} has {metadata.num_rows:,} rows, but a result file can have at most {MAX_ROWS:,}.")
        present = [key for key in columns if key in schema.names]
        texts = [key for key in present if columns[key].kind in ("text", "json")]
        with pq.ParquetFile(path, metadata=metadata, read_dictionary=texts, page_checksum_verification=True) as file:
            table = file.read(columns=present, use_threads=False, use_pandas_metadata=False)
        table.validate(full=True)  # a damaged text column can have indices beyond its dictionary
    except AspcError:
        raise
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError, MemoryError) as error:
        raise AspcError(
            f"{path} is not a valid Parquet file; it may be truncated or damaged. Delete it, then run the command "
            "that created it again."
        ) from error
    for key in (key for key in columns if key not in present):
        table = table.append_column(key, pa.nulls(len(table), arrow_type(columns[key].kind)))
    return _check_values(path, kind, table)


def _check_columns(path: Path, kind: str, schema: pa.Schema) -> None:
    pa, columns = import_pyarrow(), TABLES[kind]
    if "schema_version" not in schema.names:
        raise AspcError(f"{path} is not a result table: column 'schema_version' is missing.")
    if len(set(schema.names)) < len(schema.names):
        raise AspcError(f"{path} has duplicate columns.")
    missing = [key for key, column in columns.items() if column.is_in_every_file and key not in schema.names]
    if missing:
        raise AspcError(f"{path} is missing columns required in the {kind} table: {', '.join(missing)}.")
    for key, column in ((k, c) for k, c in columns.items() if k in schema.names):
        found = schema.field(key).type
        if pa.types.is_dictionary(found):
            found = found.value_type
        is_whole = pa.types.is_integer(found)
        is_valid = {
            "int": is_whole,
            "float": is_whole or pa.types.is_floating(found),
            "text": pa.types.is_string(found) or pa.types.is_large_string(found),
        }["text" if column.kind == "json" else column.kind]
        if not is_valid and not (pa.types.is_null(found) and not column.is_required):
            expected = {"int": "whole numbers", "float": "numbers"}.get(column.kind, "text")
            raise AspcError(f"{path}: column {key!r} must contain {expected}, not {found}.")


def _check_values(path: Path, kind: str, table: pa.Table) -> pa.Table:
    pa, columns = import_pyarrow(), TABLES[kind]
    import pyarrow.compute as pc

    arrays = {}
    for key, column in columns.items():
        array = table.column(key)
        if column.is_required and array.null_count:
            raise AspcError(f"{path}: required column {key!r} is empty in {count_noun(array.null_count, 'row')}.")
        if column.kind in ("text", "json"):
            _check_lengths(path, key, array)
        try:
            arrays[key] = array.cast(arrow_type(column.kind))
        except pa.ArrowInvalid as error:
            raise AspcError(f"{path}: column {key!r} contains a value that is out of range.") from error
    newest = pc.max(arrays["schema_version"]).as_py()
    if newest is not None and newest != SCHEMA_VERSION:
        raise AspcError(
            f"{path} has format version {newest}, but this version of aspc reads format version {SCHEMA_VERSION}. "
            "Use the version of aspc that wrote the file."
        )
    if kind == "runs":
        invalid = set(pc.unique(arrays["status"]).to_pylist()) - {"done", "failed"}
        if invalid:
            raise AspcError(f"{path}: column 'status' must contain only 'done' or 'failed', not {min(invalid)[:40]!r}.")
    return pa.table(arrays)


def _check_lengths(path: Path, key: str, array: pa.ChunkedArray) -> None:
    """Raise `AspcError` for text that needs too much memory.

    A small file can contain such text, since it stores equal values only once.
    """
    pa = import_pyarrow()
    import pyarrow.compute as pc

    total = 0
    for chunk in array.chunks:
        lengths = pc.binary_length(chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk)
        if (pc.max(lengths).as_py() or 0) > MAX_CELL_LENGTH:
            raise AspcError(f"{path}: column {key!r} contains a value longer than {MAX_CELL_LENGTH:,} characters.")
        if pa.types.is_dictionary(chunk.type):
            lengths = lengths.take(chunk.indices)
        total += pc.sum(lengths).as_py() or 0
    if total > MAX_COLUMN_LENGTH:
        raise AspcError(
            f"{path}: column {key!r} contains {total / 1e9:,.1f} GB of text; the limit is {MAX_COLUMN_LENGTH / 1e9:g}."
        )
