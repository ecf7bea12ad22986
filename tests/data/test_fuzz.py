"""Damaged files of every kind: a dataset or one clear sentence, never a traceback, a hang, or too much memory.

Each file is read as users read it. A library that crashes or hangs ends the process that reads, which gives a sentence.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from small_logs import make_log
from test_files import columns, write_csv, write_hdf5, write_table

from fuzz_child import fuzz

SUFFIXES = [".hdf5", ".h5", ".npz", ".parquet", ".arrow", ".feather", ".csv", ".csv.gz"]


def write_whole(folder: Path, suffix: str) -> None:
    log, path = make_log(), folder / f"whole{suffix}"
    if suffix == ".hdf5":
        write_hdf5(path, log)
    elif suffix == ".h5":  # compressed and in chunks: other code paths of the library
        write_hdf5(path, log, compression="gzip", shuffle=True, fletcher32=True)
    elif suffix == ".npz":
        facts = {
            "aspc_action_low": np.full(2, -3.0),
            "aspc_env": np.array("Pendulum-v1"),
            "aspc_ref_min": np.array(1.0),
        }
        np.savez_compressed(path, **log, **facts)
    elif suffix == ".feather":  # the same as .arrow, with compressed buffers
        table = pa.table(columns(log))
        with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
    elif suffix in (".csv", ".csv.gz"):
        write_csv(path, columns(log))
    else:
        write_table(path, columns(log))


def check(folder: Path, suffix: str, cases: int, first: int = 0) -> None:
    write_whole(folder, suffix)
    refused, crashed = fuzz(folder, suffix, cases, first=first)
    assert refused > cases / 20  # else the damage does nothing
    assert crashed == []  # a crash or a hang in the reader's process, not in the one that asks


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_files(tmp_path: Path, suffix: str) -> None:
    check(tmp_path, suffix, 150)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_thousands_of_damaged_files(tmp_path: Path, suffix: str) -> None:
    check(tmp_path, suffix, 10_000)
