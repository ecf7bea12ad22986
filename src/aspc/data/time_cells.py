"""Convert times, given as text or numbers, to seconds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

# ISO 8601, also with a space or slashes, and the Central European notation with the day first, separated by periods.
ISO = re.compile(r"\d{4}[-/]\d{2}[-/]\d{2}([ T]\d{2}:\d{2}(:\d{2}([.,]\d+)?)?)?\s*(Z|UTC|[+-]\d{2}:?\d{2})?")
POINTS = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})(?:[ T]+(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d+))?)?)?")
ZONE = re.compile(r"(Z|UTC|[+-]\d{2}:?\d{2})\s*$")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHORTEST_DATE = 10
EPOCH_UNITS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))  # larger numbers are nano-, micro- or milliseconds since 1970
FIRST_EPOCH = 1e8  # earliest plausible time, in seconds since 1970: March 1973
DAY_SECONDS = 86_400.0


def is_date_time(cell: str) -> bool:
    """Return whether a cell holds a date, with or without a time of day, in a supported notation."""
    text = cell.strip().strip('"').strip()
    return bool(ISO.fullmatch(text) or POINTS.fullmatch(text))


def is_epoch(cell: str) -> bool:
    """Return whether a cell holds a number of seconds (or milli-, micro-, nanoseconds) since 1970."""
    try:
        value = float(cell)
    except ValueError:
        return False
    return FIRST_EPOCH <= value < 1e20


def parse_time(cell: str) -> float:
    """Parse a number or a date. Raises ValueError for anything else."""
    text = cell.strip().strip('"').strip()
    if ISO.fullmatch(text):
        text = text.replace("/", "-").replace(",", ".").replace("UTC", "Z")
        found = datetime.fromisoformat(re.sub(r"\s+(?=Z|[+-]\d{2}:?\d{2}$)", "", text))
    elif match := POINTS.fullmatch(text):
        day, month, year, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
        fraction = int((match[7] or "0").ljust(6, "0")[:6])
        found = datetime(year, month, day, hour, minute, second, fraction)
    else:
        return float(text)
    return ((found if found.tzinfo else found.replace(tzinfo=UTC)) - EPOCH).total_seconds()


def parse_times(cells: Sequence[str]) -> np.ndarray:
    """Parse a time column. Raises ValueError if a cell is invalid.

    Times without a zone are read as UTC, because only differences matter.
    """
    if cells and _is_plain_iso(cells[0]):
        if min(map(len, cells)) < SHORTEST_DATE:
            raise ValueError("a time is incomplete")
        try:
            return _seconds_since_1970(np.array(cells, dtype="datetime64[us]"))
        except (ValueError, UserWarning):  # later cells have zones or another notation
            pass
    return np.array([parse_time(cell) for cell in cells], dtype=np.float64)


def parse_joined_times(text: str, lengths: np.ndarray) -> np.ndarray:
    """Parse times that are joined without separators. The result equals that of `parse_times` for the separate cells.

    Args:
        text: The cells, one after the other.
        lengths: The length of each cell.
    """
    width = int(lengths[0])
    if text.isascii() and (lengths == width).all() and _is_plain_iso(text[:width]):
        try:
            cells = np.frombuffer(text.encode("ascii"), dtype=f"S{width}")
            return _seconds_since_1970(cells.astype("datetime64[us]"))
        except (ValueError, UserWarning):
            pass
    ends = np.cumsum(lengths)
    return parse_times([text[start:end] for start, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True)])


def _is_plain_iso(cell: str) -> bool:
    """Return whether a cell is a date in ISO 8601 with hyphens and without a zone."""
    return bool(ISO.fullmatch(cell)) and not ZONE.search(cell[SHORTEST_DATE:]) and "/" not in cell


def _seconds_since_1970(times: np.ndarray) -> np.ndarray:
    return np.asarray(times.astype(np.int64) / 1e6)


def to_seconds(times: np.ndarray) -> np.ndarray:
    """Convert milli-, micro- or nanoseconds since 1970 to seconds; return other numbers unchanged."""
    typical = float(np.abs(times[0])) if len(times) else 0.0
    factor = next((factor for limit, factor in EPOCH_UNITS if typical > limit), 1.0)
    return times if factor == 1.0 else times * factor


def format_time(seconds: float) -> str:
    """Format seconds since 1970 as a date, and other numbers as plain numbers."""
    if FIRST_EPOCH <= seconds < 1e11:
        shown = datetime.fromtimestamp(seconds, UTC)
        return shown.strftime("%Y-%m-%d %H:%M:%S" if shown.time().isoformat() != "00:00:00" else "%Y-%m-%d")
    return f"{seconds:g}"


def format_duration(seconds: float) -> str:
    """Format a duration in the largest suitable unit, from days to seconds."""
    for unit, size in (("d", DAY_SECONDS), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size or (seconds >= size and seconds % size == 0):
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds:.4g} s"
