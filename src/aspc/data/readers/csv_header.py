"""Read the header of a CSV file (separator and column names) and the first cell of each column."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from aspc.data.readers.csv_lines import WHITESPACE, CSVLines, delimiter_of, not_utf8_error
from aspc.data.time_cells import is_date_time
from aspc.errors import AspcError

SEPARATORS = ",;\t"
MAX_COMMENT_LINES = 1_000
SAMPLE_ROWS = 20


class Header(NamedTuple):
    """The separator, the columns, the number of lines before the first row, and notes."""

    separator: str
    columns: list[str]
    line_count: int
    notes: list[str]


def read_header(lines: CSVLines, name: str) -> Header:
    """Find the header: the first line after any comments, or the last comment if rows follow it directly.

    Raises:
        AspcError: The first line holds values, so the file has no header.
    """
    stream = iter(lines)
    line = next(stream, "")
    if "\0" in line:  # UTF-16 without a byte order mark
        raise not_utf8_error(name)
    comment, count = "", 1
    while line.lstrip().startswith("#") and count < MAX_COMMENT_LINES:
        comment, line, count = line, next(stream, ""), count + 1
    if comment and _holds_numbers(line):
        separator, columns = _split_header(comment.lstrip().lstrip("#").strip())
        notes = ["the column names were read from a comment: the header begins with '#'."]
        return Header(separator, columns, count - 1, notes)
    separator, columns = _split_header(line)
    if not comment and line.strip() and all(_is_value(column) for column in columns if column):
        raise AspcError(
            f"{name} has no header: its first line holds values ({', '.join(columns)[:60]}), not column names. Add a "
            "first line such as obs_0,obs_1,action_0,reward,episode."
        )
    return Header(separator, columns, count, [f"{count - 1:,} comment lines were skipped."] if comment else [])


def _split_header(line: str) -> tuple[str, list[str]]:
    """Return the separator that splits the header into the most names, and these names."""
    names = {separator: next(csv.reader([line], delimiter=separator), []) for separator in SEPARATORS}
    separator = max(names, key=lambda separator: len(names[separator]))
    if len(names[separator]) == 1 and len(line.split()) > 1:
        return WHITESPACE, line.split()
    return separator, [column.strip() for column in names[separator]]


def _is_value(cell: str) -> bool:
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return is_date_time(cell)
    return True


def _holds_numbers(line: str) -> bool:
    _, cells = _split_header(line)
    return any(_is_value(cell) for cell in cells if cell)


def first_cells(lines: CSVLines, header: Header) -> dict[str, str]:
    """Return the first non-empty cell of each column among the first rows."""
    rows: Iterator[list[str]] = csv.reader(
        itertools.islice(lines.separated(header.separator), header.line_count, header.line_count + SAMPLE_ROWS),
        delimiter=delimiter_of(header.separator),
    )
    found: dict[str, str] = {}
    for row in rows:
        for column, cell in zip(header.columns, row, strict=False):
            if cell.strip():
                found.setdefault(column, cell.strip())
    return found
