"""The contents of a dataset file, as returned by every reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from aspc.data.validation import check_flags
from aspc.errors import AspcError

Arrays = dict[str, np.ndarray]


class FileContents(NamedTuple):
    """Arrays by the keys of `columns.ALIASES`, notes for the user, and metadata (see `aspc.data.metadata`)."""

    arrays: Arrays
    notes: list[str]
    metadata: dict[str, Any]


def concatenate(arrays: Sequence[np.ndarray], parts: str) -> np.ndarray:
    """Concatenate arrays by rows. Raises an `AspcError` that names the parts if they differ in width."""
    try:
        return np.concatenate(arrays)
    except ValueError as error:
        raise AspcError(f"{parts} differ in observation or action size.") from error


def complete_flags(arrays: Arrays, length: int, name: str) -> tuple[Arrays, list[str]]:
    """Add terminals if there are none, and turn episode numbers into timeouts.

    Returns:
        The arrays, and a note if an episode number reappears after another one.
    """
    notes: list[str] = []
    if "terminals" not in arrays:
        arrays["terminals"] = np.zeros(length, dtype=bool)
    numbers = arrays.pop("episodes", None)
    if numbers is not None:
        if numbers.shape != (length,):
            raise AspcError(f"{name}: expected one episode number per row, but got an array of shape {numbers.shape}.")
        notes = _order_notes(numbers)
        ends = np.append(numbers[1:] != numbers[:-1], True) if length else np.zeros(0, dtype=bool)
        if "timeouts" in arrays:
            ends = ends | check_flags("timeouts", arrays["timeouts"], name)
        terminals = check_flags("terminals", arrays["terminals"], name)
        if len(terminals) == len(ends):
            arrays["timeouts"] = ends & ~terminals
    return arrays, notes


def _order_notes(numbers: np.ndarray) -> list[str]:
    """Warn if an episode number reappears after another one."""
    segments = np.concatenate([numbers[:1], numbers[1:][numbers[1:] != numbers[:-1]]])
    if len(np.unique(segments)) == len(segments):
        return []
    return [
        "episode numbers reappear after a change, and each segment counts as an episode: sort the rows by episode and "
        "time, or give each segment a different number."
    ]
