"""The layout of tables, on disk or on the device, whose rows hold several named fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np


@dataclass(frozen=True)
class RowLayout:
    """Named fields in the order of their columns.

    Args:
        fields: Name and size of each field. Size None denotes a scalar, which is unpacked without a last axis.
    """

    fields: tuple[tuple[str, int | None], ...]

    @cached_property
    def width(self) -> int:
        """Number of columns."""
        return sum(1 if size is None else size for _, size in self.fields)

    def pack(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Concatenate the fields of N rows into a float32 table [N, width]."""
        columns = [arrays[name][:, None] if size is None else arrays[name] for name, size in self.fields]
        return np.concatenate(columns, axis=1, dtype=np.float32)

    def unpack(self, rows: Any) -> dict[str, Any]:
        """Split rows [..., width] of a NumPy or JAX array into fields with the same leading axes."""
        unpacked, start = {}, 0
        for name, size in self.fields:
            unpacked[name] = rows[..., start] if size is None else rows[..., start : start + size]
            start += 1 if size is None else size
        return unpacked
