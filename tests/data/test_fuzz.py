"""Damaged files of every kind: a dataset or one clear sentence, never a traceback, never a hang.

Reading happens in a child process. Where a C library crashes there, the same file is loaded as users load it, and that
must end in the same clean error.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_logs import make_log
from test_files import columns, write_csv, write_hdf5, write_table

from aspc import data
from aspc.errors import AspcError
from fuzz_child import damage_file, fuzz

SUFFIXES = [".hdf5", ".h5", ".npz", ".parquet", ".arrow", ".csv"]


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
    elif suffix == ".csv":
        write_csv(path, columns(log))
    else:
        write_table(path, columns(log))


def check(folder: Path, suffix: str, cases: int) -> None:
    write_whole(folder, suffix)
    refused, crashed = fuzz(folder, suffix, cases)
    assert refused > cases / 20  # else the damage does nothing
    if suffix in (".npz", ".csv"):
        assert crashed == []  # these are read without a child
    whole = (folder / f"whole{suffix}").read_bytes()
    for case in crashed:
        path = folder / f"case{case}{suffix}"
        path.write_bytes(damage_file(whole, suffix, case))
        with pytest.raises(AspcError, match="damaged"):
            data.load(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_files(tmp_path: Path, suffix: str) -> None:
    check(tmp_path, suffix, 150)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_thousands_of_damaged_files(tmp_path: Path, suffix: str) -> None:
    check(tmp_path, suffix, 10_000)
