"""Classify the cells of a CSV file that NumPy could not parse, and report the invalid cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from aspc.data.readers.table_columns import (
    DECIMAL_COMMA,
    DROP_LINE,
    MISSING_WORDS,
    CellParser,
    cell_problem,
    not_numeric_error,
    parse_flag,
    parse_number,
)
from aspc.errors import AspcError

BOOLEAN_WORDS = ("true", "false")
MAX_SHOWN_CELLS = 10


class BadCell(NamedTuple):
    """An invalid cell: its line, column index and text."""

    line: int
    column: int
    text: str


@dataclass
class Survey:
    """The number of cells per column and kind, and the first cells of each kind other than plain numbers."""

    kinds: dict[int, Counter[str]]
    cells: dict[str, list[BadCell]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, line: int, column: int, kind: str, text: str) -> None:
        self.kinds[column][kind] += 1
        if kind not in ("number", "point"):
            self.counts[kind] += 1
            listed = self.cells.setdefault(kind, [])
            if len(listed) < MAX_SHOWN_CELLS:
                listed.append(BadCell(line, column, text))

    def columns_with(self, *kinds: str) -> set[int]:
        """Return the columns with at least one cell of these kinds."""
        return {column for column, found in self.kinds.items() if any(found[kind] for kind in kinds)}

    def boolean_columns(self) -> set[int]:
        """Return the columns that hold only Booleans and empty cells."""
        others = ("number", "point", "comma", "text", "range", "flag", "missing")
        return self.columns_with("boolean") - self.columns_with(*others)

    def text_columns(self) -> list[int]:
        """Return the columns that hold text but no numbers."""
        return sorted(self.columns_with("text") - self.columns_with("number", "point", "comma", "range"))


def survey_cells(
    rows: Iterator[Sequence[str]], line_number: object, columns: Sequence[int], parsers: Mapping[int, CellParser]
) -> Survey:
    """Classify the cells of some columns. Rows must be complete; `line_number.line_num` is the current line."""
    survey = Survey({column: Counter() for column in columns})
    for row in rows:
        for column in columns if row else ():
            text = row[column]
            survey.add(line_number.line_num, column, _kind(text, parsers.get(column)), text)  # type: ignore[attr-defined]
    return survey


def _kind(text: str, parser: CellParser | None) -> str:
    word = text.strip()
    if not word:
        return "empty"
    if parser is not None:
        return "number" if not cell_problem(text, parser) else "flag" if parser is parse_flag else "text"
    try:
        value = parse_number(word)
    except ValueError:
        lower = word.lower()
        if lower in BOOLEAN_WORDS:
            return "boolean"
        return "missing" if lower in MISSING_WORDS else "comma" if DECIMAL_COMMA.fullmatch(word) else "text"
    if value != value:
        return "missing"
    if cell_problem(text, parse_number):
        return "range"
    return "point" if "." in word else "number"


def report_bad_cells(
    survey: Survey,
    kinds: Sequence[str],
    columns: Sequence[str],
    parsers: Mapping[int, CellParser],
    name: str,
    fillable: set[int],
) -> None:
    """Raise an `AspcError` that lists the first invalid cells, if there are any.

    Args:
        survey: The classified cells.
        kinds: The kinds of cells that are invalid.
        columns: Names of all columns.
        parsers: Parsers for columns of flags and episode ids.
        name: Name of the file, for messages.
        fillable: Columns whose empty cells --missing can fill.
    """
    text_columns = [column for column in survey.text_columns() if column not in parsers]
    if text_columns and "text" in kinds:
        raise not_numeric_error(name, columns[text_columns[0]], "text")
    boolean = survey.boolean_columns()
    cells = sorted(cell for kind in kinds for cell in survey.cells.get(kind, ()) if kind != "boolean")
    cells += [cell for cell in survey.cells.get("boolean", ()) if "boolean" in kinds and cell.column not in boolean]
    if not cells:
        return
    cells.sort()
    first = cells[0]
    problem = cell_problem(
        first.text, parsers.get(first.column, parse_flag if first.column in boolean else parse_number)
    )
    message = f"{name}, line {first.line}: the cell of column {columns[first.column]!r} {problem}."
    count = sum(survey.counts[kind] for kind in kinds if kind != "boolean")
    count += sum(survey.kinds[column]["boolean"] for column in survey.kinds if column not in boolean) * (
        "boolean" in kinds
    )
    if count > 1:
        shown = ", ".join(f"line {cell.line} {columns[cell.column]!r}" for cell in cells[:MAX_SHOWN_CELLS])
        more = f" and {count - MAX_SHOWN_CELLS:,} more" if count > MAX_SHOWN_CELLS else ""
        message += f" {count:,} cells are invalid: {shown}{more}."
    if survey.columns_with("empty", "missing") & fillable:
        message += " For missing values, pass --missing split, ffill, interpolate or drop."
    raise AspcError(message)


def wrong_count_error(location: str, cells: int, columns: int, hint: str = "") -> AspcError:
    """Return the error for a line whose number of cells differs from the header's."""
    return AspcError(f"{location} has {cells} cells, but the header has {columns}; fix it, {DROP_LINE}{hint}.")
