"""Damaged files of every kind: a dataset or one clear sentence, never a traceback, never a hang.

Reading happens in a child process. Where a C library crashes there, the same file is loaded as users load it, and that
must end in the same clean error.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fuzz_child import damage_file
from small_logs import make_log
from test_files import columns, write_csv, write_hdf5, write_table

from aspc import data
from aspc.errors import AspcError

SUFFIXES = [".hdf5", ".h5", ".npz", ".parquet", ".arrow", ".csv"]
CHILD = Path(__file__).with_name("fuzz_child.py")


def write_whole(folder: Path, suffix: str) -> None:
    log, path = make_log(), folder / f"whole{suffix}"
    if suffix == ".hdf5":
        write_hdf5(path, log)
    elif suffix == ".h5":  # compressed and in chunks: other code paths of the library
        write_hdf5(path, log, compression="gzip", shuffle=True, fletcher32=True)
    elif suffix == ".npz":
        np.savez_compressed(path, **log)
    elif suffix == ".csv":
        write_csv(path, columns(log))
    else:
        write_table(path, columns(log))


def fuzz(folder: Path, suffix: str, cases: int) -> tuple[int, list[int]]:
    """Run all cases; returns how many were refused and which ones crashed or hung the child."""
    write_whole(folder, suffix)
    first, refused, crashed = 0, 0, []
    while first < cases:
        command = [sys.executable, "-W", "error", str(CHILD), str(folder), suffix, str(first), str(cases)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=570, check=False)
        lines = done.stdout.splitlines()
        assert not [line for line in lines if line.startswith(("TRACEBACK", "TWO LINES"))], done.stdout[-2000:]
        if done.returncode == 0:
            return refused + int(lines[-1].split()[1]), crashed
        assert done.returncode < 0, done.stderr[-2000:]  # ended by a signal, or the test itself is broken
        crashed.append(int(lines[-1]))
        first = crashed[-1] + 1
    return refused, crashed


def check(folder: Path, suffix: str, cases: int) -> None:
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
    check(tmp_path, suffix, 5_000)
