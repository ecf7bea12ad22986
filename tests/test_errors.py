"""Errors that cross a process boundary."""

from __future__ import annotations

import pickle
import signal

import pytest

from aspc.errors import AspcError, DiskFailure, MissingExtra
from aspc.interrupts import Interrupted
from aspc.training.divergence import Diverged


@pytest.mark.parametrize(
    "error",
    [
        AspcError("No file."),
        DiskFailure("Disk full."),
        Diverged("NaN."),
        MissingExtra("A table", "tables", ModuleNotFoundError(name="pyarrow.parquet")),
        Interrupted("Stopped.", signal.SIGTERM),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling(error: AspcError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), copy.exit_code) == (str(error), error.exit_code)
