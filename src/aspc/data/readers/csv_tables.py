"""CSV, TSV and whitespace-separated files, read in batches of rows.

These files declare no sizes, so the total size of the rows is checked with each batch.
"""

from __future__ import annotations

import csv
import gzip
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aspc.data.columns import resolve_columns
from aspc.data.formula import Formula
from aspc.data.missing import missing_cells
from aspc.data.read_options import ReadOptions
from aspc.data.readers.contents import Arrays, FileContents
from aspc.data.readers.csv_header import Header, first_cells, read_header
from aspc.data.readers.csv_lines import (
    WHITESPACE,
    CSVLines,
    LineWatcher,
    delimiter_of,
    not_utf8_error,
    with_decimal_points,
)
from aspc.data.readers.csv_survey import Survey, report_bad_cells, survey_cells, wrong_count_error
from aspc.data.readers.limits import ReadLimits
from aspc.data.readers.table_columns import (
    LARGEST,
    CategoryParser,
    CellParser,
    ColumnCollector,
    EpisodeIds,
    TimeCells,
    batch_rows,
    check_column_count,
    fillable_columns,
    looks_like_choice,
    looks_like_text,
    parse_flag,
    parse_number_or_missing,
    table_metadata,
)
from aspc.data.row_preparation import unused_rows
from aspc.data.time_cells import is_date_time, is_epoch, parse_time
from aspc.errors import AspcError

LINES_PER_ROW = 10  # average limit, which allows for empty lines and line breaks in quoted cells

Parsers = Mapping[int, CellParser]  # parsers by column index


class _Layout(NamedTuple):
    """The columns of a CSV file, and how to parse them."""

    header: Header
    found: dict[str, list[str]]
    wanted: list[int]  # indices of the used columns, in order
    text_parsers: dict[int, CellParser]  # for columns that can hold text: dates, categories and episode ids
    flag_parsers: dict[int, CellParser]  # for flag columns, which can hold text
    formula: Formula | None
    date_column: int | None
    boolean_columns: frozenset[int] = frozenset()
    missing_columns: frozenset[int] = frozenset()  # columns with cells that are read as missing
    has_decimal_commas: bool = False
    is_surveyed: bool = False  # true if the cells were surveyed, so that flags can be words

    @property
    def delimiter(self) -> str:
        return delimiter_of(self.header.separator)

    @property
    def columns(self) -> list[str]:
        return self.header.columns

    def indices(self, names: list[str]) -> list[int]:
        return [self.columns.index(name) for name in names]


def read_csv(path: Path, options: ReadOptions, limits: ReadLimits) -> FileContents:
    """Read a CSV, TSV or whitespace-separated file, compressed or not."""
    opener: Any = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opener(path, "rb") as source, LineWatcher(source, path.name, limits) as watcher:
            return _CSVReader(CSVLines(watcher), path.name, options, limits).read()
    except UnicodeDecodeError as error:
        raise not_utf8_error(path.name) from error


class _CSVReader:
    """A reader of an open CSV file. It reads the file again from its start to describe an error."""

    def __init__(self, lines: CSVLines, name: str, options: ReadOptions, limits: ReadLimits) -> None:
        self._lines, self._name, self._options, self._limits = lines, name, options, limits

    def read(self) -> FileContents:
        header = read_header(self._lines, self._name)
        check_column_count(header.columns, self._name)
        sample = first_cells(self._lines, header)
        found, notes = resolve_columns(
            header.columns,
            self._options,
            self._name,
            lambda column: is_date_time(sample.get(column, "")) or is_epoch(sample.get(column, "")),
            lambda column: is_date_time(sample.get(column, "")),
            lambda column: looks_like_choice(sample.get(column, "")),
        )
        position = {column: i for i, column in enumerate(header.columns)}
        named = [column for column in found["actions"] if looks_like_text(sample.get(column, ""))]
        labels = {column: CategoryParser() for column in (*self._options.one_hot, *named)}
        text: dict[int, CellParser] = {position[column]: parser for column, parser in labels.items()}
        text |= {position[column]: EpisodeIds().__getitem__ for column in found.get("episodes", ())}
        dates = next((c for c in found.get("times", ()) if is_date_time(sample.get(c, ""))), None)
        if dates is not None:
            text[position[dates]] = parse_time
        layout = _Layout(
            header,
            found,
            sorted({position[column] for names in found.values() for column in names}),
            text,
            {position[n]: parse_flag for key in ("terminals", "timeouts", "masks") for n in found.get(key, ())},
            None if self._options.reward is None else Formula.parse(self._options.reward),
            None if dates is None else position[dates],
        )
        arrays, booleans, read_notes = self._read_cells(layout)
        return FileContents(arrays, [*header.notes, *notes, *read_notes], table_metadata(found, labels, booleans))

    def _read_cells(self, layout: _Layout) -> tuple[Arrays, list[str], list[str]]:
        """Return the arrays, the action columns that hold Booleans, and notes.

        The cells are surveyed, which is slow, only after plain parsing has failed.
        """
        try:
            return self._parse_cells(layout), [], []
        except ValueError:
            survey = self._survey(layout)
        layout = self._adapt(layout, survey)
        arrays = self._parse_cells(layout)
        if layout.missing_columns and self._options.missing == "error":
            rows = missing_cells(arrays)
            if (rows & ~unused_rows(arrays)).any():
                self._report(layout, survey, ("empty", "missing"))
        notes = ["decimals are written with a comma: 1,5 was read as 1.5."] if layout.has_decimal_commas else []
        booleans = [name for name in layout.found["actions"] if layout.columns.index(name) in layout.boolean_columns]
        return arrays, booleans, notes

    def _adapt(self, layout: _Layout, survey: Survey) -> _Layout:
        """Return a layout adapted to the cells. Raises an `AspcError` for a cell that is invalid in every layout."""
        invalid = ["text", "range", "flag", "boolean"]
        # In a file with decimal points, a comma can be a thousands separator.
        is_separator = layout.header.separator == "," or bool(survey.columns_with("point"))
        has_commas = survey.counts["comma"] > 0 and not is_separator
        if not has_commas:
            invalid.append("comma")
        names = fillable_columns(layout.found) if self._options.missing != "error" else self._droppable_columns(layout)
        names += layout.found.get("kpis", [])
        allowed = set(layout.indices(names))
        empty = survey.columns_with("empty", "missing")
        if empty - allowed:
            invalid += ["empty", "missing"]
        self._report(layout, survey, invalid)
        return layout._replace(
            boolean_columns=frozenset(survey.boolean_columns() - empty),
            missing_columns=frozenset(empty & allowed),
            has_decimal_commas=has_commas,
            is_surveyed=True,
        )

    def _droppable_columns(self, layout: _Layout) -> list[str]:
        """Return the columns that can be empty in the last row of an episode, which is not used for training."""
        if "next_observations" in layout.found:
            return []
        return [*layout.found["actions"], *layout.found.get("rewards", ()), *layout.found.get("costs", ())]

    def _report(self, layout: _Layout, survey: Survey, kinds: list[str] | tuple[str, ...]) -> None:
        parsers = self._single_cell_parsers(layout)
        fillable = set(layout.indices(fillable_columns(layout.found)))
        report_bad_cells(survey, kinds, layout.columns, parsers, self._name, fillable)

    def _parse_cells(self, layout: _Layout) -> Arrays:
        """Return the arrays. Raises ValueError for a cell that is neither a number nor accepted by a parser."""
        names = [layout.columns[i] for i in layout.wanted]
        dtypes = {
            name: np.dtype(bool if i in layout.boolean_columns else np.float64)
            for i, name in zip(layout.wanted, names, strict=True)
        }
        collector = ColumnCollector(layout.found, dtypes, self._name, layout.formula)
        flags = [i for i, column in enumerate(layout.wanted) if column in layout.flag_parsers]
        may_be_missing = np.isin(layout.wanted, list(layout.missing_columns))
        for batch in self._batches(layout):
            in_range = batch.min() >= -LARGEST and batch.max() <= LARGEST  # false for NaN
            if not in_range and may_be_missing.any():
                in_range = bool((np.abs(batch) <= LARGEST)[~(np.isnan(batch) & may_be_missing)].all())
            if not in_range or not np.isin(batch[:, flags], (0, 1)).all():
                raise ValueError("a cell is out of range")
            self._limits.require((collector.rows + len(batch)) * collector.row_bytes, self._name, at_least=True)
            collector.append({name: batch[:, i].astype(dtypes[name], copy=False) for i, name in enumerate(names)})
        if collector.rows == 0:
            raise AspcError(f"{self._name}: the dataset is empty; no row follows the header.")
        expected_separators = (len(layout.columns) - 1) * (collector.rows + 1)
        watcher = self._lines.watcher
        is_counted = layout.header.separator != WHITESPACE
        if not is_counted or watcher.separators != expected_separators:  # quoted separators are harmless
            self._report_extra_cells(layout)
        return collector.arrays()

    def _batches(self, layout: _Layout) -> Iterator[np.ndarray]:
        """Yield the used cells as numbers, in batches of rows."""
        rows = batch_rows(len(layout.wanted))
        dates, parsers = TimeCells(), self._parsers(layout)
        if layout.date_column is not None:
            parsers[layout.date_column] = dates.collect
        parse: Callable[..., np.ndarray] = partial(
            np.loadtxt,
            delimiter=layout.delimiter,
            usecols=layout.wanted,
            ndmin=2,
            dtype=np.float64,
            quotechar='"',
            comments=None,
            converters=parsers or None,
        )
        watcher = self._lines.watcher
        watcher.separator = layout.delimiter.encode()
        separated = self._lines.separated(layout.header.separator)
        lines: Iterator[str] = itertools.islice(separated, layout.header.line_count, None)
        if layout.has_decimal_commas:
            lines = with_decimal_points(lines)
        for line in lines:
            if line.strip():
                watcher.max_lines = watcher.lines + LINES_PER_ROW * (rows + 100)
                batch = parse(itertools.chain([line], lines), max_rows=rows)
                if layout.date_column is not None:
                    lengths = batch[:, layout.wanted.index(layout.date_column)]
                    lengths[:] = dates.take(lengths)
                yield batch

    def _parsers(self, layout: _Layout) -> dict[int, CellParser]:
        """Return the parsers for columns that are not plain numbers."""
        return {
            **dict.fromkeys(layout.missing_columns, parse_number_or_missing),
            **(layout.flag_parsers if layout.is_surveyed else {}),
            **layout.text_parsers,
            **dict.fromkeys(layout.boolean_columns, parse_flag),
        }

    def _survey(self, layout: _Layout) -> Survey:
        """Classify all used cells."""
        rows = self._rows(layout)

        def complete_rows() -> Iterator[list[str]]:
            for row in rows:
                if row and len(row) <= layout.wanted[-1]:
                    location = f"{self._name}, line {rows.line_num}"
                    raise wrong_count_error(location, len(row), len(layout.columns))
                yield row

        return survey_cells(complete_rows(), rows, layout.wanted, self._single_cell_parsers(layout))

    def _single_cell_parsers(self, layout: _Layout) -> dict[int, CellParser]:
        return {**layout.text_parsers, **layout.flag_parsers}

    def _rows(self, layout: _Layout) -> Any:
        """Return a CSV reader of the rows after the header; its line numbers are those of the file."""
        rows = csv.reader(self._lines.separated(layout.header.separator), delimiter=layout.delimiter)
        while rows.line_num < layout.header.line_count and next(rows, None) is not None:
            pass
        return rows

    def _report_extra_cells(self, layout: _Layout) -> None:
        """Raise an `AspcError` for the first line with a non-empty cell beyond the last column of the header."""
        rows = self._rows(layout)
        for row in rows:
            if any(cell.strip() for cell in row[len(layout.columns) :]):
                decimals = " (write decimals with a point, not with a comma)" if layout.header.separator == "," else ""
                location = f"{self._name}, line {rows.line_num}"
                raise wrong_count_error(location, len(row), len(layout.columns), decimals)
