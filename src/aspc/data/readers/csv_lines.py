"""The lines of a CSV file, decoded, counted and converted to a format that NumPy parses."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from aspc.data.readers.limits import ReadLimits
from aspc.errors import AspcError

MAX_LINE_BYTES = 1 << 24
BLOCK_BYTES = 1 << 16
PROGRESS_BYTES = 1_000_000
WHITESPACE = " "  # separator that stands for any run of spaces and tabs


class LineWatcher(io.BufferedIOBase):
    """A binary file that counts lines and separators per block, and raises an error for overlong lines."""

    def __init__(self, source: Any, name: str, limits: ReadLimits) -> None:
        self._source, self._name, self._limits = source, name, limits
        self.separator = b","
        self.restart()

    def restart(self) -> None:
        self._source.seek(0)
        self.lines = self.separators = 0  # counts in the blocks read so far
        self.max_lines = sys.maxsize
        self._line_bytes = self._unreported = 0
        self._block = memoryview(b"")  # the rest of the current block

    def readable(self) -> bool:
        return True

    def read1(self, size: int = -1, /) -> bytes:
        if len(self._block) == 0:
            self._block = memoryview(self._read_block())
        part = bytes(self._block[:size] if size >= 0 else self._block)
        self._block = self._block[len(part) :]
        return part

    def _read_block(self) -> bytes:
        block: bytes = self._source.read1(BLOCK_BYTES)
        codes = np.frombuffer(block, dtype=np.uint8)  # comparing many bytes at once is faster than `bytes.count`
        self.lines += int(np.count_nonzero(codes == ord("\n")))
        self.separators += int(np.count_nonzero(codes == ord(self.separator)))
        end = max(block.rfind(b"\n"), block.rfind(b"\r"))
        self._line_bytes = len(block) - end - 1 + (self._line_bytes if end < 0 else 0)
        self._unreported += len(block)
        if self._line_bytes > MAX_LINE_BYTES:
            raise AspcError(
                f"{self._name}, line {self.lines + 1} has more than {MAX_LINE_BYTES:,} bytes. Write one row per line."
            )
        if self.lines > self.max_lines:
            raise AspcError(f"{self._name}: a quoted cell continues over thousands of lines. Close its quotes.")
        if self._unreported > PROGRESS_BYTES:
            self._limits.progress()
            self._unreported = 0
        return block


class CSVLines:
    """An iterable over the lines of an open file; each iteration starts at the beginning of the file."""

    def __init__(self, watcher: LineWatcher) -> None:
        self.watcher = watcher
        self._text: io.TextIOWrapper[Any] | None = None

    def __iter__(self) -> Iterator[str]:
        if self._text is not None:
            self._text.detach()  # otherwise, deleting the wrapper would close the file
        self.watcher.restart()
        self._text = io.TextIOWrapper(self.watcher, encoding="utf-8-sig", newline="")
        return self._text

    def separated(self, separator: str) -> Iterator[str]:
        """Return all lines; if whitespace separates the cells, replace it with tabs."""
        return ("\t".join(line.split()) + "\n" for line in self) if separator == WHITESPACE else iter(self)


def delimiter_of(separator: str) -> str:
    """Return the character between the cells of `CSVLines.separated`."""
    return "\t" if separator == WHITESPACE else separator


def with_decimal_points(lines: Iterator[str]) -> Iterator[str]:
    """Replace decimal commas in lines whose cells are not separated by commas."""
    return (line.replace(",", ".") for line in lines)


def not_utf8_error(name: str) -> AspcError:
    """Return the error for text that is not UTF-8."""
    return AspcError(f"{name}: the text is not UTF-8. Save it as UTF-8.")
