"""CSV and TSV files, read in batches of rows. They state no sizes, so the running total is checked."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aspc.data.columns import KeyMap, resolve_columns
from aspc.data.readers.contents import Arrays, FileContents, complete_contents
from aspc.data.readers.limits import ReadLimits
from aspc.data.readers.table_columns import (
    DECIMAL_COMMA,
    DROP_LINE,
    LARGEST,
    PARSERS,
    CellParser,
    ColumnCollector,
    batch_rows,
    cell_problem,
    check_column_count,
    column_names,
    not_numeric_error,
    parse_flag,
)
from aspc.errors import AspcError

MAX_LINE_BYTES = 1 << 24
LINES_PER_ROW = 10  # on average: empty lines, and line breaks in quoted cells
PROGRESS_BYTES = 1_000_000
SEPARATORS = ",;\t"
BOOLEAN_WORDS = ("true", "false")

Parsers = dict[int, CellParser]  # by index of the column


class _Layout(NamedTuple):
    """The columns of a CSV file, and how to parse them."""

    separator: str
    columns: list[str]
    wanted: list[int]  # indices of the used columns, in order
    parsers: Parsers  # of used columns that can hold text


def _split_header(line: str) -> tuple[str, list[str]]:
    """Return the separator that splits the header into the most names, and these names."""
    names = {separator: next(csv.reader([line], delimiter=separator), []) for separator in SEPARATORS}
    separator = max(names, key=lambda separator: len(names[separator]))
    return separator, [column.strip() for column in names[separator]]


def read_csv(path: Path, key_map: KeyMap, single_episode: bool, limits: ReadLimits) -> FileContents:
    """Read a CSV or TSV file, compressed or not."""
    opener: Any = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opener(path, "rb") as source, _LineWatcher(source, path.name, limits) as watcher:
            return _CSVReader(watcher, path.name, limits).read(key_map, single_episode)
    except UnicodeDecodeError as error:
        raise _not_utf8(path.name) from error


class _LineWatcher(io.BufferedIOBase):
    """A binary file that counts lines and separators per block, and raises an error for endless lines."""

    def __init__(self, source: Any, name: str, limits: ReadLimits) -> None:
        self._source, self._name, self._limits = source, name, limits
        self.separator = b","
        self.restart()

    def restart(self) -> None:
        self._source.seek(0)
        self.lines = self.separators = 0  # read so far
        self.max_lines = sys.maxsize
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
                f"{self._name}, line {self.lines + 1}: more than {MAX_LINE_BYTES:,} bytes. Write one row per line."
            )
        if self.lines > self.max_lines:
            raise AspcError(f"{self._name}: a quoted cell continues over thousands of lines. Close its quotes.")
        if self._unreported > PROGRESS_BYTES:
            self._limits.progress()
            self._unreported = 0
        return block


def _not_utf8(name: str) -> AspcError:
    return AspcError(f"{name}: the text is not UTF-8. Save it as UTF-8.")


class _CSVReader:
    """An open CSV file, which is read again from its start to describe what is wrong with it."""

    def __init__(self, watcher: _LineWatcher, name: str, limits: ReadLimits) -> None:
        self._watcher, self._name, self._limits = watcher, name, limits
        self._text: io.TextIOWrapper[Any] | None = None

    def _lines(self) -> Iterator[str]:
        """Return all lines."""
        if self._text is not None:
            self._text.detach()  # otherwise it would close the file
        self._watcher.restart()
        self._text = io.TextIOWrapper(self._watcher, encoding="utf-8-sig", newline="")
        return self._text

    def _rows(self, layout: _Layout) -> Any:
        return csv.reader(self._lines(), delimiter=layout.separator)

    def read(self, key_map: KeyMap, single_episode: bool) -> FileContents:
        header = next(self._lines(), "")
        if "\0" in header:  # UTF-16 without a byte order mark
            raise _not_utf8(self._name)
        separator, columns = _split_header(header)
        check_column_count(columns, self._name)
        found, notes = resolve_columns(columns, key_map, self._name, single_episode)
        position = {column: i for i, column in enumerate(columns)}
        wanted = sorted({position[column] for names in found.values() for column in names})
        parsers: Parsers = {position[n]: parse for key, parse in PARSERS.items() for n in found.get(key, ())}
        arrays = self._read_cells(_Layout(separator, columns, wanted, parsers), found, frozenset())
        return complete_contents(arrays, notes, column_names(found), self._name)

    def _read_cells(self, layout: _Layout, found: Mapping[str, list[str]], boolean_columns: frozenset[int]) -> Arrays:
        """Return the arrays. Parsers are slow, so they are used only after plain parsing has failed."""
        for parsers in ({}, layout.parsers):
            try:
                return self._parse_cells(layout, found, boolean_columns, parsers)
            except ValueError:
                continue
        booleans = frozenset() if boolean_columns else frozenset(self._boolean_columns(layout))
        if booleans:
            parsers = layout.parsers | dict.fromkeys(booleans, parse_flag)
            return self._read_cells(layout._replace(parsers=parsers), found, booleans)
        self._report_invalid_cell(layout)
        raise ValueError("a cell is not a number")

    def _parse_cells(
        self, layout: _Layout, found: Mapping[str, list[str]], boolean_columns: frozenset[int], parsers: Parsers
    ) -> Arrays:
        """Return the arrays. Raises ValueError for a cell that is not a number and that no parser accepts."""
        names = [layout.columns[i] for i in layout.wanted]
        dtypes = {
            name: np.dtype(bool if i in boolean_columns else np.float64)
            for i, name in zip(layout.wanted, names, strict=True)
        }
        collector = ColumnCollector(found, dtypes, self._name)
        flags = [i for i, column in enumerate(layout.wanted) if layout.parsers.get(column) is parse_flag]
        for batch in self._batches(layout, parsers):
            in_range = batch.min() >= -LARGEST and batch.max() <= LARGEST  # false for NaN
            if not in_range or not np.isin(batch[:, flags], (0, 1)).all():
                self._report_invalid_cell(layout)
            self._limits.require((collector.rows + len(batch)) * collector.row_bytes, self._name, at_least=True)
            collector.append({name: batch[:, i].astype(dtypes[name], copy=False) for i, name in enumerate(names)})
        if collector.rows == 0:
            raise AspcError(f"{self._name}: the dataset is empty; no row follows the header.")
        expected_separators = (len(layout.columns) - 1) * (collector.rows + 1)
        if self._watcher.separators != expected_separators:  # quoted separators are harmless
            self._report_extra_cells(layout)
        return collector.arrays()

    def _batches(self, layout: _Layout, parsers: Parsers) -> Iterator[np.ndarray]:
        """Yield the used cells as numbers, in batches of rows."""
        rows = batch_rows(len(layout.wanted))
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

    def _boolean_columns(self, layout: _Layout) -> set[int]:
        """Return the columns that hold only truth values. Raises an `AspcError` for a column of text."""
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
            raise not_numeric_error(self._name, layout.columns[text[0]], "text")
        return {i for i in undecided if kinds[i]}

    def _report_extra_cells(self, layout: _Layout) -> None:
        """Raise an `AspcError` for the first line with more cells than the header, not counting empty ones."""
        rows = self._rows(layout)
        for row in rows:
            if any(cell.strip() for cell in row[len(layout.columns) :]):
                decimals = " (write decimals with a point, not with a comma)" if layout.separator == "," else ""
                raise _wrong_count(f"{self._name}, line {rows.line_num}", row, layout, decimals)

    def _report_invalid_cell(self, layout: _Layout) -> None:
        """Raise an `AspcError` for the first invalid cell, if there is one."""
        rows = self._rows(layout)
        next(rows)
        for row in rows:
            location = f"{self._name}, line {rows.line_num}"
            if row and len(row) <= layout.wanted[-1]:
                raise _wrong_count(location, row, layout)
            for i in layout.wanted if row else ():
                problem = cell_problem(row[i], layout.parsers.get(i, float))
                if problem:
                    raise AspcError(f"{location}: the cell of column {layout.columns[i]!r} {problem}.")


def _kind(cell: str) -> str:
    if cell.lower() in BOOLEAN_WORDS:
        return "boolean"
    try:
        float(cell)
    except ValueError:
        return "number" if DECIMAL_COMMA.fullmatch(cell) else "text"
    return "number"


def _wrong_count(location: str, row: list[str], layout: _Layout, hint: str = "") -> AspcError:
    return AspcError(
        f"{location}: {len(row)} cells, but the header has {len(layout.columns)}; fix it, {DROP_LINE}{hint}."
    )
