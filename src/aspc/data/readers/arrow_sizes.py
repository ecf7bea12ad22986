"""The sizes that an Arrow IPC file declares: its number of rows and the decompressed size of its buffers.

Arrow allocates the size declared in the first eight bytes of a compressed buffer without checking it. This module
therefore reads the file's footer and the headers of its record batches (FlatBuffers, see Arrow's File.fbs and
Message.fbs).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

MAGIC = b"ARROW1"
DICTIONARY_BATCH = 2  # index in the union MessageHeader
MAX_HEADER_BYTES = 64_000_000


class ArrowSizes(NamedTuple):
    """Sizes that a file declares."""

    rows: int
    largest_batch_bytes: int  # decompressed buffers of one record batch
    dictionary_bytes: int  # decompressed buffers of all dictionaries


class _Table:
    """A FlatBuffers table. Offsets outside its buffer raise struct.error."""

    def __init__(self, body: bytes, position: int) -> None:
        self.body, self.position = body, position
        self._fields = position - _number(body, "<i", position)

    @classmethod
    def root(cls, body: bytes) -> _Table:
        return cls(body, _number(body, "<I", 0))

    def _field(self, index: int) -> int:
        """Return the position of a field, or 0 if the table omits it."""
        entry = 4 + 2 * index
        if entry >= _number(self.body, "<H", self._fields):
            return 0
        offset = _number(self.body, "<H", self._fields + entry)
        return self.position + offset if offset else 0

    def number(self, index: int, layout: str) -> int:
        position = self._field(index)
        return _number(self.body, layout, position) if position else 0

    def table(self, index: int) -> _Table | None:
        position = self._field(index)
        return _Table(self.body, position + _number(self.body, "<I", position)) if position else None

    def structs(self, index: int, layout: str) -> list[tuple[int, ...]]:
        position = self._field(index)
        if not position:
            return []
        position += _number(self.body, "<I", position)
        size = _number(self.body, "<I", position) * struct.calcsize(layout)
        if position + 4 + size > len(self.body):
            raise struct.error("a list is longer than the header")
        return list(struct.iter_unpack(layout, self.body[position + 4 : position + 4 + size]))


def _number(body: bytes, layout: str, position: int) -> int:
    if position < 0:
        raise struct.error("an offset is negative")
    (value,) = struct.unpack_from(layout, body, position)
    return int(value)


def stated_sizes(path: Path) -> ArrowSizes:
    """Return the sizes that a file declares.

    Raises:
        ValueError: The file is not an Arrow IPC file, or its headers are damaged.
    """
    try:
        with open(path, "rb") as file:
            footer = _footer(file)
            batches = [_batch_sizes(file, *block) for block in footer.structs(3, "<qi4xq")]
            dictionaries = [_batch_sizes(file, *block) for block in footer.structs(2, "<qi4xq")]
    except (struct.error, OverflowError) as error:
        raise ValueError(f"its headers are damaged: {error}") from error
    return ArrowSizes(
        rows=sum(rows for rows, _ in batches),
        largest_batch_bytes=max((size for _, size in batches), default=0),
        dictionary_bytes=sum(size for _, size in dictionaries),
    )


def _footer(file: BinaryIO) -> _Table:
    file.seek(0, os.SEEK_END)
    length = file.tell()
    end = _read(file, length - 10, 10)
    size = _number(end, "<i", 0)
    if end[4:] != MAGIC or not 0 < size <= min(length, MAX_HEADER_BYTES):
        raise ValueError("it does not end like an Arrow file")
    return _Table.root(_read(file, length - 10 - size, size))


def _read(file: BinaryIO, position: int, size: int) -> bytes:
    if position < 0 or not 0 <= size <= MAX_HEADER_BYTES:
        raise struct.error("an offset lies outside of the file")
    file.seek(position)
    return file.read(size)


def _batch_sizes(file: BinaryIO, offset: int, header_bytes: int, _: int) -> tuple[int, int]:
    """Return the number of rows of a batch, and the decompressed bytes that its compressed buffers declare."""
    header = _read(file, offset, header_bytes)
    start = 8 if header[:4] == b"\xff\xff\xff\xff" else 4
    message = _Table.root(header[start:])
    batch = message.table(2)
    if batch is not None and message.number(1, "<B") == DICTIONARY_BATCH:
        batch = batch.table(1)
    if batch is None:
        raise struct.error("a batch has no header")
    rows = batch.number(0, "<q")
    if rows < 0:
        raise struct.error("a batch states a negative number of rows")
    if batch.table(3) is None:  # not compressed: the buffers are mapped, not copied
        return rows, 0
    return rows, sum(_decompressed_sizes(file, offset + header_bytes, batch))


def _decompressed_sizes(file: BinaryIO, body: int, batch: _Table) -> Iterator[int]:
    for offset, length in batch.structs(2, "<qq"):
        if length >= 8:
            stated = _number(_read(file, body + offset, 8), "<q", 0)
            yield length if stated < 0 else stated  # -1: this buffer is not compressed
