"""Read many damaged files in a separate process, so that the test that starts it survives a crash.

    python fuzz_child.py FOLDER SUFFIX FIRST LAST

Case i is the valid file FOLDER/whole + SUFFIX, damaged by a generator seeded with i. The number of a case is printed
before it is read, so that after a crash it is known. A policy's suffix is .safetensors; the others are datasets', which
are read as users read them, by one `LimitedReader` after another: its process is started again where a file ended it.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import signal
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from aspc.data.dataset import Dataset
from aspc.data.readers import formats
from aspc.data.readers.episodes import read_path
from aspc.data.readers.limited_reader import LimitedReader
from aspc.errors import AspcError
from aspc.policy import Policy

SECONDS = 20  # for one file; then the default action of SIGALRM ends the process, which counts as a hang
MEMORY = 6 << 30
POLICY_MEMORY = 2 << 30
READ_MEMORY = 500_000_000  # the budget of the process that reads a dataset
READ_OVERHEAD = 300_000_000  # the interpreter and its libraries


def damage(whole: bytes, case: int) -> bytes:
    """Apply one to eight random changes: bits, bytes, ranges, cuts, repetitions, gaps; more often near the ends."""
    rng = np.random.default_rng(case)
    body = bytearray(whole)
    for _ in range(rng.integers(1, 9)):
        if not body:
            break
        near = rng.choice([len(body), min(len(body), 512)])
        at = int(rng.integers(near))
        if rng.random() < 0.3:
            at = len(body) - 1 - at  # where zip and Parquet keep their tables
        length = int(rng.integers(1, 40))
        match rng.integers(7):
            case 0:
                body[at] ^= 1 << int(rng.integers(8))
            case 1:
                body[at : at + length] = rng.bytes(min(length, len(body) - at))
            case 2:
                body[at : at + length] = bytes([int(rng.choice([0, 255]))]) * min(length, len(body) - at)
            case 3:
                del body[at : at + length]
            case 4:
                body[at:at] = body[at : at + length]
            case 5 if rng.random() < 0.3:
                del body[at:]
            case _:
                number = int(rng.choice([0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1])).to_bytes(8, "little")
                body[at : at + 8] = number[: len(body) - at]
    return bytes(body)


def damage_file(whole: bytes, suffix: str, case: int) -> bytes:
    """Return a damaged file; every other case of an archive has a damaged member with a valid checksum."""
    if suffix == ".safetensors" and case % 3:
        return damage_header(whole, case)
    if suffix == ".csv.gz" and case % 4:  # else most cases end at gzip's checksum
        return gzip.compress(damage(gzip.decompress(whole), case), compresslevel=1)
    if suffix != ".npz" or case % 2:
        return damage(whole, case)
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as source, zipfile.ZipFile(buffer, "w") as target:
        names = source.namelist()
        for i, name in enumerate(names):
            body = source.read(name)
            target.writestr(name, damage(body, case) if i == case // 2 % len(names) else body)
    return buffer.getvalue()


HOSTILE = (None, -1, 0, 2**31, 10**12, 10**400, 1e308, -0.5, "", "x", [], [[]], {}, [1e9] * 3, True, float("nan"))


def damage_header(whole: bytes, case: int) -> bytes:
    """Return a safetensors file with a well-formed but false header, or with a damaged one of the right length."""
    size = int.from_bytes(whole[:8], "little")
    header, body = whole[8 : 8 + size], whole[8 + size :]
    if case % 3 == 1:
        header = damage(header, case)
    else:
        tree = json.loads(header)
        tree["__metadata__"]["aspc"] = json.loads(tree["__metadata__"]["aspc"])
        rng = np.random.default_rng(case)
        for _ in range(rng.integers(1, 4)):
            replace_one(tree, deepcopy(HOSTILE[rng.integers(len(HOSTILE))]), rng)
        if isinstance(tree.get("__metadata__"), dict) and "aspc" in tree["__metadata__"]:
            tree["__metadata__"]["aspc"] = json.dumps(tree["__metadata__"]["aspc"])
        header = json.dumps(tree).encode()
    return len(header).to_bytes(8, "little") + header + body


def replace_one(tree: Any, value: Any, rng: np.random.Generator) -> None:
    """Put `value` at the end of a random path, which can be an inner node."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    if not keys:
        return
    key = keys[rng.integers(len(keys))]
    if isinstance(tree[key], dict | list) and tree[key] and rng.random() < 0.9:
        replace_one(tree[key], value, rng)
    else:
        tree[key] = value


def read_policy(path: Path) -> None:
    """Load a policy and use it."""
    policy = Policy.load(path)
    with np.errstate(all="ignore"), far_observations_allowed():
        assert policy.act(np.zeros((2, policy.observation_size))).shape == (2, policy.action_size)


@contextmanager
def far_observations_allowed() -> Iterator[None]:
    """Ignore the warning about observations outside the logged range, which a damaged header can state."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"observations?\[.* far outside the logged")
        yield


def read_dataset(path: Path, reader: LimitedReader) -> None:
    """Read as users do, and use the data; read every other HDF5 file in slabs, as for packing."""
    if path.suffix in formats.HDF5_SUFFIXES and path.stat().st_size % 2:
        stated = reader.call("open_hdf5", path, key_map={}).value
        for key in stated["keys"]:
            rows = reader.call("read_hdf5_rows", path, key=key, start=10, stop=20).arrays["rows"]
            assert len(rows) == max(0, min(10, stated["rows"] - 10))
    else:
        Dataset.from_arrays(**read_path(reader, path).arrays)


def fuzz(folder: Path, suffix: str, cases: int, child: str = __file__, first: int = 0) -> tuple[int, list[int]]:
    """Run all cases from `first` on in child processes; return how many were rejected, and which crashed a child."""
    refused, crashed, cases = 0, list[int](), first + cases
    while first < cases:
        command = [sys.executable, "-W", "error", child, str(folder), suffix, str(first), str(cases)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
        lines = done.stdout.splitlines()
        wrong = [line for line in lines if line.startswith(("TRACEBACK", "TWO LINES", "TOO MUCH MEMORY"))]
        assert not wrong, "\n".join(wrong[:5])
        if done.returncode == 0:
            (done_line,) = [line for line in lines if line.startswith("refused")]
            return refused + int(done_line.split()[1]), crashed
        assert done.returncode < 0, done.stderr[-2000:]  # ended by a signal, or the test itself is broken
        crashed.append(int(lines[-1]))
        first = crashed[-1] + 1
    return refused, crashed


def main(folder: Path, suffix: str, first: int, last: int) -> None:
    whole = (folder / f"whole{suffix}").read_bytes()
    path = folder / f"damaged{suffix}"

    def damaged(case: int) -> Path:
        path.unlink(missing_ok=True)  # HDF5 takes a file that it has open for the same one
        path.write_bytes(damage_file(whole, suffix, case))
        return path

    if suffix == ".safetensors":
        read_all(first, last, POLICY_MEMORY, damaged, read_policy)
        return
    os.environ["ASPC_READ_MEMORY"] = str(READ_MEMORY)
    with LimitedReader() as reader:
        read_all(first, last, MEMORY, damaged, lambda path: read_dataset(path, reader))
    peak = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    if peak > READ_MEMORY + READ_OVERHEAD:
        print(f"TOO MUCH MEMORY: {peak:,} bytes", flush=True)


def read_all(first: int, last: int, memory: int, damaged: Callable[[int], Path], read: Callable[[Path], None]) -> None:
    """Read damaged files or folders within limits of time and memory; print the outcomes."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    refused = 0
    for case in range(first, last):
        path = damaged(case)
        print(case, flush=True)
        signal.alarm(SECONDS)
        try:
            read(path)
        except AspcError as error:
            refused += 1
            if "\n" in str(error):
                print(f"TWO LINES in case {case}: {error}", flush=True)
        except Exception as error:
            print(f"TRACEBACK in case {case}: {type(error).__name__}: {error}", flush=True)
        signal.alarm(0)
    print(f"refused {refused}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
