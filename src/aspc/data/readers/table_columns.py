"""Collect table columns into arrays, and parse cells of text: flags, numbers, episode ids, categories and times."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aspc.data.formula import Formula
from aspc.data.readers.array_files import ArrayFile
from aspc.data.readers.contents import Arrays
from aspc.data.readers.hdf5 import loading_bytes
from aspc.data.time_cells import parse_joined_times, parse_time
from aspc.errors import AspcError

MAX_COLUMNS = 100_000
BATCH_ROWS = 50_000  # maximum number of rows in memory at once; fewer if they are wide
BATCH_CELLS = 4_000_000
FLAG_WORDS = {**dict.fromkeys(("true", "t", "yes", "y"), 1.0), **dict.fromkeys(("false", "f", "no", "n"), 0.0)}
DROP_LINE = "or drop that line and start a new episode after it"
PLAIN_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d+)?")
WHOLE_NUMBER = re.compile(r"[+-]?\d+(\.0*)?")
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
LARGEST = float(np.finfo(np.float32).max)
VECTORS = ("observations", "actions", "next_observations", "kpis", "masks")
CAN_BE_MISSING = ("observations", "actions", "next_observations", "kpis", "rewards", "costs")
BOOLEANS = {"true": 1.0, "false": 0.0}
MISSING_WORDS = ("nan", "na", "n/a", "#n/a", "null", "none", "nil", "-", "--", "?")
MAX_CATEGORIES = 1_000
MAX_CACHED_IDS = 10_000

CellParser = Callable[[str], float]


def check_column_count(columns: Sequence[str], name: str) -> None:
    """Raise an `AspcError` for a table with too many columns, such as a transposed one."""
    if len(columns) > MAX_COLUMNS:
        raise AspcError(
            f"{name} has {len(columns):,} columns, more than {MAX_COLUMNS:,}. A table needs one row per time step."
        )


def batch_rows(columns: int) -> int:
    """Return the number of rows to hold in memory at once."""
    return max(1, min(BATCH_ROWS, BATCH_CELLS // max(1, columns)))


def table_metadata(
    found: Mapping[str, list[str]], parsers: Mapping[str, CategoryParser], booleans: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the metadata of a table: column names, and the categories of observation and action columns.

    Args:
        found: The columns of each array.
        parsers: The parsers of the columns that hold categories.
        booleans: The action columns that hold Booleans.
    """
    metadata: dict[str, Any] = {"observation_names": found["observations"], "action_names": found["actions"]}
    actions = {column: parser.categories() for column, parser in parsers.items() if column in found["actions"]}
    metadata["action_categories"] = actions | {column: ["false", "true"] for column in booleans}
    categories = {column: parser.categories() for column, parser in parsers.items() if column not in actions}
    if "masks" in found:
        metadata["mask_names"] = found["masks"]
    if "kpis" in found:
        metadata["kpi_names"] = found["kpis"]
    if "times" in found:
        metadata["time_name"] = found["times"][0]
    return metadata | ({"categories": categories} if categories else {})


def fillable_columns(found: Mapping[str, list[str]]) -> list[str]:
    """Return the columns that can have missing values."""
    return [column for key in CAN_BE_MISSING for column in found.get(key, ())]


class ColumnCollector:
    """Arrays written in batches of rows: two-dimensional for vectors, one-dimensional for scalars.

    Args:
        found: The columns of each array.
        dtypes: The type of each column.
        name: The file's name in error messages.
        formula: Formula that computes the reward from its columns.
        lists: Columns that hold a vector per row.
    """

    def __init__(
        self,
        found: Mapping[str, list[str]],
        dtypes: Mapping[str, np.dtype[Any]],
        name: str,
        formula: Formula | None = None,
        lists: frozenset[str] = frozenset(),
    ) -> None:
        self.booleans = [column for column in found["actions"] if dtypes[column].kind == "b"]
        dtypes = {**dtypes, **dict.fromkeys(self.booleans, np.dtype(np.float64))}
        for key, names in found.items():
            if key not in VECTORS and len(names) > 1 and not (key == "rewards" and formula):
                raise AspcError(f"{name}: {key!r} must be one column, but {len(names)} match: {', '.join(names)}.")
        self._found = found
        self._formula = formula
        self._dtypes = {key: np.result_type(*(dtypes[column] for column in names)) for key, names in found.items()}
        if formula is not None:
            self._dtypes["rewards"] = np.dtype(np.float64)
        self._files = {key: ArrayFile() for key in found}
        self._lists = lists
        self._widths = {key: len(names) if key in VECTORS else 1 for key, names in found.items()}
        self.rows = 0

    @property
    def row_bytes(self) -> int:
        """Bytes per loaded row."""
        return sum(loading_bytes(self._dtypes[key], width) for key, width in self._widths.items())

    def append(self, columns: Mapping[str, np.ndarray]) -> None:
        """Append a batch of rows, given as one array per column."""
        for key, names in self._found.items():
            parts = [columns[column] for column in names]
            if key == "rewards" and self._formula is not None:
                rows = self._formula.evaluate(dict(zip(names, parts, strict=True)))
            elif names[0] in self._lists:
                rows = parts[0]
                self._widths[key] = rows.shape[1]
            else:
                rows = np.stack(parts, axis=1) if key in VECTORS else parts[0]
            self._files[key].write(rows.astype(self._dtypes[key], copy=False))
        self.rows += len(rows)

    def arrays(self) -> Arrays:
        """Return the arrays of all rows."""
        return {
            key: self._files[key].array(self._dtypes[key], (self.rows, width) if key in VECTORS else (self.rows,))
            for key, width in self._widths.items()
        }


# ── cells ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def looks_like_text(cell: str) -> bool:
    """Return whether a cell is text: neither a number, nor a Boolean, nor a missing-value marker."""
    word = cell.strip().lower()
    try:
        parse_number_or_missing(word)
    except ValueError:
        return not DECIMAL_COMMA.fullmatch(word)
    return False


def looks_like_choice(cell: str) -> bool:
    """Return whether a cell is text, a Boolean or an integer, as in a categorical column."""
    return looks_like_text(cell) or cell.strip().lower() in BOOLEANS or bool(WHOLE_NUMBER.fullmatch(cell.strip()))


def parse_flag(text: str) -> float:
    """Parse a number, or a Boolean in a common spelling such as TRUE, yes or f."""
    word = text.strip().strip('"').lower()
    return FLAG_WORDS[word] if word in FLAG_WORDS else float(word)


def parse_number(text: str) -> float:
    """Parse a number."""
    return float(text)


def parse_number_or_missing(text: str) -> float:
    """Parse a number or a Boolean; return NaN for an empty cell or a common missing-value marker."""
    word = text.strip().lower()
    if word in BOOLEANS:
        return BOOLEANS[word]
    return float("nan") if not word or word in MISSING_WORDS else float(word)


def parse_episode_id(text: str) -> float:
    """Parse a plain decimal number, or hash other text to a number that is not an integer.

    Other notations are treated as text, because hexadecimal ids can look like numbers: 1e5, 100000 and 007 are
    three different ids.
    """
    word = text.strip().strip('"')
    if PLAIN_NUMBER.fullmatch(word):
        return float(word)
    if not word:
        raise ValueError("an episode id is empty")
    return 0.5 + int.from_bytes(hashlib.blake2b(word.encode(), digest_size=6).digest())


class EpisodeIds(dict[str, float]):
    """The ids of episodes by cell, filled on demand by `parse_episode_id`.

    Its `__getitem__` is a parser that runs no Python code for a known cell, and most cells repeat the previous cell.
    """

    def __missing__(self, cell: str) -> float:
        if len(self) >= MAX_CACHED_IDS:  # ids that change with every row
            self.clear()
        self[cell] = parse_episode_id(cell)
        return self[cell]


class CategoryParser:
    """A parser that numbers categories in order of appearance and returns NaN for an empty cell."""

    def __init__(self) -> None:
        self._numbers: dict[str, float] = {}

    def __call__(self, text: str) -> float:
        word = text.strip()
        if not word:
            return float("nan")
        number = self._numbers.setdefault(word, float(len(self._numbers)))
        if number >= MAX_CATEGORIES:
            raise AspcError(
                f"A text column (an action or a --one-hot column) has more than {MAX_CATEGORIES:,} distinct values, "
                "too many for categories. Leave it out."
            )
        return number

    def categories(self) -> list[str]:
        """Return the categories in order of their numbers."""
        return list(self._numbers)


class TimeCells:
    """The cells of a date column, collected so that they can be parsed together, which is faster.

    `collect` stores a cell and returns its length without running Python code.
    """

    def __init__(self) -> None:
        self._cells = io.StringIO(newline="")
        self.collect: CellParser = self._cells.write

    def take(self, lengths: np.ndarray) -> np.ndarray:
        """Parse and discard the collected cells, given the lengths that `collect` returned.

        Raises:
            ValueError: A cell is not a time.
        """
        text = self._cells.getvalue()
        self._cells.seek(0)
        self._cells.truncate()
        return parse_joined_times(text, lengths.astype(np.int64))


PARSERS: dict[str, CellParser] = {
    "terminals": parse_flag,
    "timeouts": parse_flag,
    "masks": parse_flag,
    "episodes": parse_episode_id,
}


def parse_cells(cells: Sequence[str], parse: CellParser, name: str, previous_rows: int = 0) -> np.ndarray:
    """Parse a column of text; `previous_rows` is the number of rows before these cells."""
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
    expected = "flag" if is_flag else "time such as 2024-12-31 23:59:59" if parse is parse_time else "number"
    try:
        value = parse(cell)
    except ValueError:
        if DECIMAL_COMMA.fullmatch(cell.strip()):
            return f"{content}, not a number; write decimals with a point, not with a comma"
        return f"{content}, not a {expected}; fix it, {DROP_LINE}"
    if not abs(value) <= LARGEST:
        return f"{content}, which is NaN, infinite or too large; fix it, {DROP_LINE}"
    return f"{content}, but must be 0 or 1; fix it, {DROP_LINE}" if is_flag and value not in (0, 1) else ""


def not_numeric_error(name: str, column: str, content: str) -> AspcError:
    """Return the error for a column of text or of another non-numeric type."""
    return AspcError(
        f"{name}: column {column!r} holds {content}, not numbers. Encode it as numbers, list it in --one-hot if "
        "it is a categorical observation, or select other columns with --map."
    )
