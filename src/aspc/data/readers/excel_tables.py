"""Read Excel workbooks: the first sheet, with the column names in its first row."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from aspc.data.read_options import ReadOptions
from aspc.data.readers.column_tables import read_columns
from aspc.data.readers.contents import FileContents
from aspc.data.readers.limits import ReadLimits
from aspc.errors import AspcError, MissingExtra

CELL_BYTES = 64  # memory of one Python number in a list
PROGRESS_ROWS = 1_000


def read_excel(path: Path, options: ReadOptions, limits: ReadLimits) -> FileContents:
    """Read a workbook. A formula is read as the value that the spreadsheet program stored for it."""
    try:
        import openpyxl
    except ImportError as error:
        raise MissingExtra(f"Reading {path.name}", "excel") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about styles and extensions are irrelevant here
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    try:
        sheet = book.worksheets[0]
        rows = sheet.iter_rows(values_only=True)
        header = ["" if cell is None else str(cell).strip() for cell in next(rows, ())]
        while header and not header[-1]:
            header.pop()
        cells: list[list[Any]] = [[] for _ in header]
        for count, row in enumerate(rows):
            if count % PROGRESS_ROWS == 0:
                limits.progress()
                limits.require(count * len(header) * CELL_BYTES, path.name, at_least=True)
            if any(cell is not None for cell in row):
                for column, cell in zip(cells, row, strict=False):
                    column.append(cell)
        others = [f"only the first of {len(book.worksheets)} sheets was read."] if len(book.worksheets) > 1 else []
    finally:
        book.close()
    if not header or not cells[0]:
        raise AspcError(f"{path.name}: the dataset is empty; no row follows the header.")
    repeated = next((name for name in header if header.count(name) > 1), None)
    if repeated is not None:
        raise AspcError(f"{path.name}: duplicate column {repeated!r}; rename one of them.")
    columns = {name: _to_array(column) for name, column in zip(header, cells, strict=True) if name}
    contents = read_columns(columns, options, path.name)
    return contents._replace(notes=[*others, *contents.notes])


def _to_array(cells: list[Any]) -> np.ndarray:
    kinds = {type(cell) for cell in cells}
    if kinds <= {int, float}:  # a workbook does not distinguish 1 from 1.0
        return np.array(cells, dtype=np.float64)
    return np.array(cells, dtype=object)
