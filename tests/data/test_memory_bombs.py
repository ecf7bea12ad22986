"""Small files that decompress to, or state, far more than a machine has: refused within the memory budget.

Each is read by the command line in a separate process, whose peak memory and that of its child are measured.
"""

from __future__ import annotations

import gzip
import io
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from small_logs import make_log
from test_files import columns

BUDGET = 200_000_000  # bytes
OVERHEAD = 200_000_000  # of the interpreter and its libraries, which the limit does not count
ROWS = 10_000_000


def npy(header_length: int, body: bytes = b"") -> bytes:
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", header_length) + body


def write_npz_members(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in members.items():
            archive.writestr(f"{name}.npy", body)
    return path


def npy_bytes(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def long_npy_header(path: Path) -> Path:
    """A header that states 4 GB, of which the file holds 100 MB of spaces (100 KB compressed)."""
    members = {key: npy_bytes(array) for key, array in make_log().items()}
    return write_npz_members(path, {**members, "observations": npy(0xFFFF_FFFF, b" " * 10**8)})


def long_npy_header_unused(path: Path) -> Path:
    members = {key: npy_bytes(array) for key, array in make_log().items()}
    return write_npz_members(path, {**members, "unused": npy(0xFFFF_FFFF, b" " * 10**8)})


def zeros_npz(path: Path) -> Path:
    log = {"observations": np.zeros((ROWS, 3), "f4"), "actions": np.zeros((ROWS, 2), "f4")}
    np.savez_compressed(path, **log, rewards=np.zeros(ROWS, "f4"), terminals=np.zeros(ROWS, bool))
    return path


def zeros_hdf5(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        for key, width in {"observations": (3,), "actions": (2,), "rewards": (), "terminals": ()}.items():
            zeros = np.zeros((ROWS, *width), "f4")
            file.create_dataset(key, data=zeros, chunks=(100_000, *width), compression="gzip", compression_opts=1)
    return path


def one_chunk_hdf5(path: Path) -> Path:
    """A few rows in a chunk of 360 MB."""
    log = make_log()
    with h5py.File(path, "w") as file:
        for key, array in log.items():
            chunk = (30_000_000, *array.shape[1:]) if key == "observations" else array.shape
            file.create_dataset(key, data=array, chunks=chunk, maxshape=(None, *array.shape[1:]), compression=1)
    return path


def zeros_table(rows: int):
    import pyarrow as pa

    names = columns(make_log())
    return pa.table({name: np.zeros(rows, "f4") for name in names})


def zeros_arrow(path: Path) -> Path:
    import pyarrow as pa

    table = zeros_table(ROWS)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(path, table.schema, options=options) as writer:
        writer.write_table(table)
    return path


def overstated_arrow(path: Path) -> Path:
    """Sixty rows whose compressed buffers state a terabyte each."""
    import pyarrow as pa

    table = zeros_table(6000)
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    body = path.read_bytes()
    stated = struct.pack("<q", 6000 * 4)
    assert body.count(stated) >= 8
    path.write_bytes(body.replace(stated, struct.pack("<q", 10**12)))
    return path


def zeros_parquet(path: Path) -> Path:
    import pyarrow.parquet as pq

    pq.write_table(zeros_table(ROWS), path, compression="zstd")
    return path


def endless_line(path: Path) -> Path:
    with gzip.open(path, "wt", compresslevel=1) as file:
        for _ in range(300):
            file.write("0" * 10**6)
    return path


def endless_cell(path: Path) -> Path:
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write(",".join(columns(make_log())) + '\n"')
        for _ in range(100):
            file.write("0\n" * 500_000)
    return path


def many_rows(path: Path) -> Path:
    names = columns(make_log())
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write(",".join(names) + "\n")
        line = ",".join("0" for _ in names) + "\n"
        for _ in range(100):
            file.write(line * 100_000)
    return path


BOMBS = {
    "header.npz": (long_npy_header, "states a length of 4,294,967,295 bytes"),
    "unused.npz": (long_npy_header_unused, None),
    "zeros.npz": (zeros_npz, "zeros.npz needs 258.0 MB of memory"),
    "zeros.hdf5": (zeros_hdf5, "zeros.hdf5 needs 28"),
    "chunk.hdf5": (one_chunk_hdf5, "chunk.hdf5 needs 720.0 MB of memory"),
    "zeros.arrow": (zeros_arrow, "zeros.arrow needs 320.0 MB of memory"),
    "lying.arrow": (overstated_arrow, "lying.arrow needs 8,000.0 GB of memory"),
    "zeros.parquet": (zeros_parquet, "zeros.parquet needs 320.0 MB of memory"),
    "line.csv.gz": (endless_line, "line 1 has more than 16,777,216 bytes"),
    "cell.csv.gz": (endless_cell, "a quoted cell continues over thousands of lines"),
    "rows.csv.gz": (many_rows, "rows.csv.gz needs at least 20"),
}

MEASURED = """
import resource, sys
from aspc.__main__ import main
code = main(sys.argv[1:])
own = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(1024 * max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""


def run_info(path: Path) -> tuple[int, str, int]:
    """Run `aspc data info`; return its exit code, what it wrote to stderr, and the larger of its processes' peaks."""
    environment = {**os.environ, "ASPC_READ_MEMORY": str(BUDGET)}
    command = [sys.executable, "-c", MEASURED, "data", "info", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    return done.returncode, done.stderr.strip(), int(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", BOMBS)
def test_memory_bombs_are_rejected_within_the_budget(tmp_path: Path, name: str) -> None:
    write, message = BOMBS[name]
    path = write(tmp_path / name)
    assert path.stat().st_size < 6_000_000
    code, said, peak = run_info(path)
    if message is None:
        assert code == 0, said
    else:
        assert code == 2, said
        assert message in said
        assert len([line for line in said.splitlines() if not line.startswith("Reading")]) == 1
    assert peak < BUDGET + OVERHEAD
