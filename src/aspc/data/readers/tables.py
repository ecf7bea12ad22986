"""Tables: Parquet, Arrow IPC and CSV files, read a stretch of rows at a time.

Sizes that a file states are compared with the memory budget before they are taken; a CSV states none, so there the
running total is.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aspc.data.files import Arrays, Extracted, KeyMap, completed, resolve_columns
from aspc.data.readers import arrow_sizes
from aspc.data.readers.array_files import ArrayFile
from aspc.data.readers.hdf5 import loading_bytes
from aspc.data.readers.limits import ReadLimits
from aspc.errors import AspcError, MissingExtra

MAX_COLUMNS = 100_000
MAX_LINE_BYTES = 1 << 24
STRETCH_ROWS = 50_000  # rows that are held at once, unless they are wide
STRETCH_CELLS = 4_000_000
LINES_PER_ROW = 10  # on average: empty lines, and line breaks in quoted cells
PROGRESS_BYTES = 1_000_000
SEPARATORS = ",;\t"  # of a CSV's cells
TRUTHS = ("true", "false")
FLAG_WORDS = {**dict.fromkeys(("true", "t", "yes", "y"), 1.0), **dict.fromkeys(("false", "f", "no", "n"), 0.0)}
OR_DROP_LINE = "or drop that line and give the rows after it another episode"
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
LARGEST = float(np.finfo(np.float32).max)
VECTORS = ("observations", "actions", "next_observations")


def _check_column_count(columns: Sequence[str], name: str) -> None:
    if len(columns) > MAX_COLUMNS:
        raise AspcError(
            f"{name} has {len(columns):,} columns, more than {MAX_COLUMNS:,}; is it a table with one row per time step?"
        )


def _names(found: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Which number of an observation and of an action is which column."""
    return {"observation_names": found["observations"], "action_names": found["actions"]}


def _stretch_rows(columns: int) -> int:
    return max(1, min(STRETCH_ROWS, STRETCH_CELLS // max(1, columns)))


class _TableWriter:
    """The arrays that columns make, written a stretch of rows at a time: vectors as matrices, the rest as they are."""

    def __init__(self, found: Mapping[str, list[str]], dtypes: Mapping[str, np.dtype[Any]], name: str) -> None:
        truths = [column for column in found["actions"] if dtypes[column].kind == "b"]
        if truths:  # beside floats they would pass for numbers
            raise AspcError(
                f"{name}: column {truths[0]!r} holds truth values, so discrete actions; this library is for continuous "
                "ones (leave that column out with --map)."
            )
        for key, names in found.items():
            if key not in VECTORS and len(names) > 1:
                raise AspcError(f"{name}: {key!r} is one column, but {len(names)} match: {', '.join(names)}.")
        self._found = found
        self._dtypes = {key: np.result_type(*(dtypes[column] for column in names)) for key, names in found.items()}
        self._files = {key: ArrayFile() for key in found}
        self.rows = 0

    @property
    def row_bytes(self) -> int:
        """Bytes that a row takes when it is loaded."""
        return sum(loading_bytes(self._dtypes[key], len(names)) for key, names in self._found.items())

    def append(self, columns: Mapping[str, np.ndarray]) -> None:
        """Append rows, given by column."""
        for key, names in self._found.items():
            parts = [columns[column] for column in names]
            rows = np.stack(parts, axis=1) if key in VECTORS else parts[0]
            self._files[key].write(rows.astype(self._dtypes[key], copy=False))
        self.rows += len(rows)

    def arrays(self) -> Arrays:
        """Return what was written."""
        return {
            key: self._files[key].array(self._dtypes[key], (self.rows, len(names)) if key in VECTORS else (self.rows,))
            for key, names in self._found.items()
        }


def _no_numbers(name: str, column: str, held: str) -> AspcError:
    return AspcError(
        f"{name}: column {column!r} holds {held}, not numbers; code it as numbers, or name other columns with --map."
    )


def _flag(text: str) -> float:
    """A number or a truth value, as spreadsheets and people write it."""
    word = text.strip().strip('"').lower()
    return FLAG_WORDS[word] if word in FLAG_WORDS else float(word)


def _episode_number(text: str) -> float:
    """A number, or a number for a text that no other text and no whole number has."""
    word = text.strip().strip('"')
    try:
        return float(word)
    except ValueError:
        if not word:
            raise
        return 0.5 + int.from_bytes(hashlib.blake2b(word.encode(), digest_size=6).digest())


Parsers = dict[int | str, Callable[[str], float]]  # by column
PARSERS: dict[str, Callable[[str], float]] = {"terminals": _flag, "timeouts": _flag, "episodes": _episode_number}


def _parsed(cells: Sequence[str], parse: Callable[[str], float], name: str, before: int = 0) -> np.ndarray:
    """Return a column of text as flags or episode numbers; `before` rows came before these cells."""
    for i, cell in enumerate(cells):
        fault = _fault(cell, parse)
        if fault:
            raise AspcError(f"{name}, row {before + i + 1:,} {fault}.")
    return np.array([parse(cell) for cell in cells], dtype=np.float64)


# ── Parquet and Arrow ───────────────────────────────────────────────────────────────────────────────────────────────


def read_arrow(path: Path, key_map: KeyMap, one_episode: bool, limits: ReadLimits) -> Extracted:
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
        _check_column_count(schema.names, path.name)
        found, notes = resolve_columns(schema.names, key_map, path.name, one_episode)
        wanted = list(dict.fromkeys(column for names in found.values() for column in names))
        table = _ArrowTable(path.name, schema, found)
        needed = rows * table.writer.row_bytes
        limits.require(needed, path.name)
        if path.suffix.lower() == ".parquet":
            limits.require(needed + _largest_column_chunks(file.metadata, set(wanted)), path.name)
            batches = file.iter_batches(batch_size=_stretch_rows(len(wanted)), columns=wanted, use_threads=False)
        else:
            limits.require(needed + sizes.largest_batch_bytes + sizes.dictionary_bytes, path.name)
            options = pa.ipc.IpcReadOptions(
                use_threads=False, included_fields=[schema.get_field_index(column) for column in wanted]
            )
            reader = pa.ipc.open_file(source, options=options)
            batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        for batch in batches:
            limits.progress()
            for start in range(0, len(batch), STRETCH_ROWS):
                table.append(batch.slice(start, STRETCH_ROWS))
    return completed(table.arrays(), notes, _names(found), path.name)


def _largest_column_chunks(metadata: Any, wanted: set[str]) -> int:
    """Return the bytes of the wanted columns in the row group where they are largest, as the file states them."""
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
    """Batches of Arrow's columns, turned into arrays of numbers."""

    def __init__(self, name: str, schema: Any, found: Mapping[str, list[str]]) -> None:
        self._name = name
        parsers = {column: parse for key, parse in PARSERS.items() for column in found.get(key, ())}
        types = {column: schema.field(column).type for names in found.values() for column in names}
        self._parsers = {column: parsers[column] for column in types if column in parsers and _is_text(types[column])}
        dtypes = {column: self._dtype(column, type_) for column, type_ in types.items()}
        self._empty_cells = dict.fromkeys(types, 0)
        self.writer = _TableWriter(found, dtypes, name)

    def _dtype(self, column: str, type_: Any) -> np.dtype[Any]:
        import pyarrow.types as kinds

        if column in self._parsers:
            return np.dtype(np.float64)
        if not (kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_boolean(type_)):
            raise _no_numbers(self._name, column, "text" if _is_text(type_) else str(type_))
        return np.dtype(type_.to_pandas_dtype())

    def append(self, batch: Any) -> None:
        values = {column: batch.column(batch.schema.get_field_index(column)) for column in self._empty_cells}
        for column, cells in values.items():
            self._empty_cells[column] += cells.null_count
        if not any(self._empty_cells.values()):
            self.writer.append({column: self._numbers(column, cells) for column, cells in values.items()})

    def _numbers(self, column: str, cells: Any) -> np.ndarray:
        if column in self._parsers:
            where = f"{self._name}: column {column!r}"
            return _parsed(cells.to_pylist(), self._parsers[column], where, self.writer.rows)
        return np.asarray(cells.to_numpy(zero_copy_only=False))

    def arrays(self) -> Arrays:
        for column, count in self._empty_cells.items():
            if count:
                cells, them, rows = ("cell", "it", "its row") if count == 1 else ("cells", "them", "their rows")
                raise AspcError(
                    f"{self._name}: column {column!r} has {count:,} empty {cells}; fill {them}, or drop {rows} "
                    "and give the rows after another episode."
                )
        return self.writer.arrays()


# ── CSV ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Layout(NamedTuple):
    """How the lines of a CSV are to be read."""

    separator: str
    columns: list[str]
    wanted: list[int]  # columns that are used, in order
    parsers: Parsers  # of those of them whose cells may be other than plain numbers


def _split_header(line: str) -> tuple[str, list[str]]:
    """The separator that parts a CSV's first line into the most names, and these names."""
    parted = {separator: next(csv.reader([line], delimiter=separator), []) for separator in SEPARATORS}
    separator = max(parted, key=lambda separator: len(parted[separator]))
    return separator, [column.strip() for column in parted[separator]]


def read_csv(path: Path, key_map: KeyMap, one_episode: bool, limits: ReadLimits) -> Extracted:
    """Read a file of separated values, compressed or not."""
    opener: Any = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opener(path, "rb") as source, _LineWatcher(source, path.name, limits) as watcher:
            return _CSVReader(watcher, path.name, limits).read(key_map, one_episode)
    except UnicodeDecodeError as error:
        raise _not_utf8(path.name) from error


class _LineWatcher(io.BufferedIOBase):
    """A binary file that refuses endless lines, and counts: once per block, which costs next to nothing."""

    def __init__(self, source: Any, name: str, limits: ReadLimits) -> None:
        self._source, self._name, self._limits = source, name, limits
        self.separator = b","
        self.restart()

    def restart(self) -> None:
        self._source.seek(0)
        self.lines = self.separators = 0  # that were read
        self.max_lines = sys.maxsize  # that may be read until this is changed
        self._line_bytes = self._unreported = 0

    def readable(self) -> bool:
        return True

    def read1(self, size: int = -1, /) -> bytes:
        block: bytes = self._source.read1(size)
        self.lines += block.count(b"\n")
        self.separators += block.count(self.separator)
        end = max(block.rfind(b"\n"), block.rfind(b"\r"))
        self._line_bytes = len(block) - end - 1 + (self._line_bytes if end < 0 else 0)
        self._unreported += len(block)
        if self._line_bytes > MAX_LINE_BYTES:
            raise AspcError(
                f"{self._name}, line {self.lines + 1}: it has more than {MAX_LINE_BYTES:,} bytes; write one row "
                "per line."
            )
        if self.lines > self.max_lines:
            raise AspcError(f"{self._name}: a quoted cell continues over thousands of lines; close its quotes.")
        if self._unreported > PROGRESS_BYTES:
            self._limits.progress()
            self._unreported = 0
        return block


def _not_utf8(name: str) -> AspcError:
    return AspcError(f"{name}: its text is not in UTF-8; save it as UTF-8 and load it again.")


class _CSVReader:
    """The table of an open CSV, which is read from its start as often as it takes to say what is wrong with it."""

    def __init__(self, watcher: _LineWatcher, name: str, limits: ReadLimits) -> None:
        self._watcher, self._name, self._limits = watcher, name, limits
        self._text: io.TextIOWrapper[Any] | None = None

    def _lines(self) -> Iterator[str]:
        """Return the lines from the first on."""
        if self._text is not None:
            self._text.detach()  # or it would close the file when it is thrown away
        self._watcher.restart()
        self._text = io.TextIOWrapper(self._watcher, encoding="utf-8-sig", newline="")
        return self._text

    def _rows(self, layout: _Layout) -> Any:
        return csv.reader(self._lines(), delimiter=layout.separator)

    def read(self, key_map: KeyMap, one_episode: bool) -> Extracted:
        header = next(self._lines(), "")
        if "\0" in header:  # UTF-16 of which the first two bytes do not say so
            raise _not_utf8(self._name)
        separator, columns = _split_header(header)
        _check_column_count(columns, self._name)
        found, notes = resolve_columns(columns, key_map, self._name, one_episode)
        position = {column: i for i, column in enumerate(columns)}
        wanted = sorted({position[column] for names in found.values() for column in names})
        parsers: Parsers = {position[n]: parse for key, parse in PARSERS.items() for n in found.get(key, ())}
        arrays = self._read_cells(_Layout(separator, columns, wanted, parsers), found, frozenset())
        return completed(arrays, notes, _names(found), self._name)

    def _read_cells(self, layout: _Layout, found: Mapping[str, list[str]], truths: frozenset[int]) -> Arrays:
        """Return the arrays; only where a cell is no number, the file is read again to find out what it holds. A parser
        costs as much as all the rest, so it is used only then."""
        for parsers in ({}, layout.parsers):
            try:
                return self._parse_cells(layout, found, truths, parsers)
            except ValueError:
                continue
        new = frozenset() if truths else frozenset(self._truth_columns(layout))
        if new:
            return self._read_cells(layout._replace(parsers=layout.parsers | dict.fromkeys(new, _flag)), found, new)
        self._refuse_bad_cell(layout)
        raise ValueError("a cell is no number")

    def _parse_cells(
        self, layout: _Layout, found: Mapping[str, list[str]], truths: frozenset[int], parsers: Parsers
    ) -> Arrays:
        """Return the arrays. Raises ValueError where a cell is not a number and no parser can read it."""
        names = [layout.columns[i] for i in layout.wanted]
        dtypes = {
            name: np.dtype(bool if i in truths else np.float64) for i, name in zip(layout.wanted, names, strict=True)
        }
        writer = _TableWriter(found, dtypes, self._name)
        flags = [i for i, column in enumerate(layout.wanted) if layout.parsers.get(column) is _flag]
        for stretch in self._stretches(layout, parsers):
            in_range = stretch.min() >= -LARGEST and stretch.max() <= LARGEST  # no NaN is
            if not in_range or not np.isin(stretch[:, flags], (0, 1)).all():
                self._refuse_bad_cell(layout)
            self._limits.require((writer.rows + len(stretch)) * writer.row_bytes, self._name, at_least=True)
            writer.append({name: stretch[:, i].astype(dtypes[name], copy=False) for i, name in enumerate(names)})
        if writer.rows == 0:
            raise AspcError(f"{self._name}: no row follows the header, so the dataset is empty.")
        if self._watcher.separators != (len(layout.columns) - 1) * (
            writer.rows + 1
        ):  # more cells, or fewer, or quoted separators
            self._refuse_more_cells(layout)
        return writer.arrays()

    def _stretches(self, layout: _Layout, parsers: Parsers) -> Iterator[np.ndarray]:
        """Yield the cells that are used, as numbers, some rows at a time."""
        rows = _stretch_rows(len(layout.wanted))
        parse = partial(
            np.loadtxt,
            delimiter=layout.separator,
            usecols=layout.wanted,
            ndmin=2,
            dtype=np.float64,
            quotechar='"',
            comments=None,
            converters=parsers or None,
        )
        self._watcher.separator = layout.separator.encode()
        lines = self._lines()
        next(lines)
        for line in lines:
            if line.strip():
                self._watcher.max_lines = self._watcher.lines + LINES_PER_ROW * (rows + 100)
                yield parse(itertools.chain([line], lines), max_rows=rows)

    def _truth_columns(self, layout: _Layout) -> set[int]:
        """Return the columns that hold only truth values. Raises an error for one that holds text and no number."""
        rows = self._rows(layout)
        next(rows)
        undecided = [i for i in layout.wanted if i not in layout.parsers]
        kinds: dict[int, set[str]] = {i: set() for i in undecided}
        for row in rows:
            for i in undecided:
                if i < len(row) and row[i].strip():
                    kinds[i].add(_kind(row[i].strip()))
            undecided = [i for i in undecided if "number" not in kinds[i]]
            if not undecided:
                return set()
        text = [i for i in undecided if "text" in kinds[i]]
        if text:
            raise _no_numbers(self._name, layout.columns[text[0]], "text")
        return {i for i in undecided if kinds[i]}

    def _refuse_more_cells(self, layout: _Layout) -> None:
        """An error for the first line with more cells than the header; empty ones at its end are none."""
        rows = self._rows(layout)
        for row in rows:
            if any(cell.strip() for cell in row[len(layout.columns) :]):
                decimals = " (write decimals with a point, not with a comma)" if layout.separator == "," else ""
                raise _wrong_count(f"{self._name}, line {rows.line_num}", row, layout, decimals)

    def _refuse_bad_cell(self, layout: _Layout) -> None:
        """An error that names the first cell of a CSV that cannot be used; none where no such cell is found."""
        rows = self._rows(layout)
        next(rows)
        for row in rows:
            at = f"{self._name}, line {rows.line_num}"
            if row and len(row) <= layout.wanted[-1]:
                raise _wrong_count(at, row, layout)
            for i in layout.wanted if row else ():
                fault = _fault(row[i], layout.parsers.get(i, float))
                if fault:
                    raise AspcError(f"{at}: the cell of column {layout.columns[i]!r} {fault}.")


def _kind(cell: str) -> str:
    if cell.lower() in TRUTHS:
        return "truth"
    try:
        float(cell)
    except ValueError:
        return "number" if DECIMAL_COMMA.fullmatch(cell) else "text"
    return "number"


def _wrong_count(at: str, row: list[str], layout: _Layout, hint: str = "") -> AspcError:
    return AspcError(
        f"{at}: it has {len(row)} cells, but the header {len(layout.columns)}; mend it, {OR_DROP_LINE}{hint}."
    )


def _fault(cell: str, parse: Callable[[str], float]) -> str:
    """What is wrong with a cell and what to do, or nothing."""
    if not cell.strip():
        return f"is empty; fill it, {OR_DROP_LINE}"
    held = f"holds {cell[:40]!r}"
    is_flag = parse is _flag
    try:
        value = parse(cell)
    except ValueError:
        if DECIMAL_COMMA.fullmatch(cell.strip()):
            return f"{held}, not a number; write decimals with a point, not with a comma"
        return f"{held}, not a {'flag' if is_flag else 'number'}; mend it, {OR_DROP_LINE}"
    if not abs(value) <= LARGEST:
        return f"{held}, which is NaN, infinite or too large; mend it, {OR_DROP_LINE}"
    return f"{held}, but must be 0 or 1; mend it, {OR_DROP_LINE}" if is_flag and value not in (0, 1) else ""
