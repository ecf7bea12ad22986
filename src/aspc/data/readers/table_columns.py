"""Columns of tables: collected into arrays, with parsers for flags and episode ids that are written as text."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aspc.data.readers.array_files import ArrayFile
from aspc.data.readers.contents import Arrays
from aspc.data.readers.hdf5 import loading_bytes
from aspc.errors import AspcError

MAX_COLUMNS = 100_000
BATCH_ROWS = 50_000  # rows that are held at once, unless they are wide
BATCH_CELLS = 4_000_000
FLAG_WORDS = {**dict.fromkeys(("true", "t", "yes", "y"), 1.0), **dict.fromkeys(("false", "f", "no", "n"), 0.0)}
DROP_LINE = "or drop that line and start a new episode after it"
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
LARGEST = float(np.finfo(np.float32).max)
VECTORS = ("observations", "actions", "next_observations")

CellParser = Callable[[str], float]


def check_column_count(columns: Sequence[str], name: str) -> None:
    """Raise an `AspcError` for a table with too many columns, such as a transposed one."""
    if len(columns) > MAX_COLUMNS:
        raise AspcError(
            f"{name} has {len(columns):,} columns, more than {MAX_COLUMNS:,}. A table needs one row per time step."
        )


def batch_rows(columns: int) -> int:
    """Return the number of rows to hold at once."""
    return max(1, min(BATCH_ROWS, BATCH_CELLS // max(1, columns)))


def column_names(found: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the column names of observations and actions, as metadata."""
    return {"observation_names": found["observations"], "action_names": found["actions"]}


class ColumnCollector:
    """Arrays that are written in batches of rows: vectors as matrices, scalars as they are.

    Args:
        found: The columns of each array.
        dtypes: The type of each column.
        name: The file, for messages.
    """

    def __init__(self, found: Mapping[str, list[str]], dtypes: Mapping[str, np.dtype[Any]], name: str) -> None:
        booleans = [column for column in found["actions"] if dtypes[column].kind == "b"]
        if booleans:  # together with floats they would become numbers
            raise AspcError(
                f"{name}: column {booleans[0]!r} holds truth values, which means discrete actions; only continuous "
                "actions are supported. Leave that column out with --map."
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
        """Bytes per loaded row."""
        return sum(loading_bytes(self._dtypes[key], len(names)) for key, names in self._found.items())

    def append(self, columns: Mapping[str, np.ndarray]) -> None:
        """Append rows, given by column."""
        for key, names in self._found.items():
            parts = [columns[column] for column in names]
            rows = np.stack(parts, axis=1) if key in VECTORS else parts[0]
            self._files[key].write(rows.astype(self._dtypes[key], copy=False))
        self.rows += len(rows)

    def arrays(self) -> Arrays:
        """Return the arrays of all rows."""
        return {
            key: self._files[key].array(self._dtypes[key], (self.rows, len(names)) if key in VECTORS else (self.rows,))
            for key, names in self._found.items()
        }


# ── cells ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def parse_flag(text: str) -> float:
    """Parse a number or a truth value as spreadsheets and people write it."""
    word = text.strip().strip('"').lower()
    return FLAG_WORDS[word] if word in FLAG_WORDS else float(word)


def parse_episode_id(text: str) -> float:
    """Parse a number, or hash other text to a number that is not an integer."""
    word = text.strip().strip('"')
    try:
        return float(word)
    except ValueError:
        if not word:
            raise
        return 0.5 + int.from_bytes(hashlib.blake2b(word.encode(), digest_size=6).digest())


PARSERS: dict[str, CellParser] = {"terminals": parse_flag, "timeouts": parse_flag, "episodes": parse_episode_id}


def parse_cells(cells: Sequence[str], parse: CellParser, name: str, previous_rows: int = 0) -> np.ndarray:
    """Parse a column of text; `previous_rows` rows came before these cells."""
    for i, cell in enumerate(cells):
        problem = cell_problem(cell, parse)
        if problem:
            raise AspcError(f"{name}, row {previous_rows + i + 1:,} {problem}.")
    return np.array([parse(cell) for cell in cells], dtype=np.float64)


def cell_problem(cell: str, parse: CellParser) -> str:
    """Return the problem with a cell and its remedy, or "" for a valid cell."""
    if not cell.strip():
        return f"is empty; fill it, {DROP_LINE}"
    content = f"holds {cell[:40]!r}"
    is_flag = parse is parse_flag
    try:
        value = parse(cell)
    except ValueError:
        if DECIMAL_COMMA.fullmatch(cell.strip()):
            return f"{content}, not a number; write decimals with a point, not with a comma"
        return f"{content}, not a {'flag' if is_flag else 'number'}; fix it, {DROP_LINE}"
    if not abs(value) <= LARGEST:
        return f"{content}, which is NaN, infinite or too large; fix it, {DROP_LINE}"
    return f"{content}, but must be 0 or 1; fix it, {DROP_LINE}" if is_flag and value not in (0, 1) else ""


def not_numeric_error(name: str, column: str, content: str) -> AspcError:
    """Return the error for a column of text or of another type that is not numeric."""
    return AspcError(
        f"{name}: column {column!r} holds {content}, not numbers. Encode it as numbers, or name other columns with "
        "--map."
    )
