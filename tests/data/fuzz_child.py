"""Reads many damaged files in this process; the test that starts it sees whether one of them crashed it.

    python fuzz_child.py FOLDER SUFFIX FIRST LAST

Case i is the valid file FOLDER/whole + SUFFIX, damaged by a generator seeded with i. The number of a case is printed
before it is read, so that after a crash it is known.
"""

from __future__ import annotations

import io
import resource
import signal
import sys
import zipfile
from pathlib import Path

import numpy as np

from aspc.data import files
from aspc.data.dataset import Dataset
from aspc.errors import AspcError

SECONDS = 20  # for one file; then the default action of SIGALRM ends the process, which counts as a hang
MEMORY = 6 << 30


def damage(whole: bytes, case: int) -> bytes:
    """One to eight random wounds: bits, bytes, stretches, cuts, doubled and missing parts; the ends more often."""
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
    """A damaged file; of an archive every other case has a wounded member in a sound archive, past its checksums."""
    if suffix != ".npz" or case % 2:
        return damage(whole, case)
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as source, zipfile.ZipFile(buffer, "w") as target:
        names = source.namelist()
        for i, name in enumerate(names):
            body = source.read(name)
            target.writestr(name, damage(body, case) if i == case // 2 % len(names) else body)
    return buffer.getvalue()


def main(folder: Path, suffix: str, first: int, last: int) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    whole = (folder / f"whole{suffix}").read_bytes()
    path = folder / f"damaged{suffix}"
    refused = 0
    for case in range(first, last):
        path.write_bytes(damage_file(whole, suffix, case))
        print(case, flush=True)
        signal.alarm(SECONDS)
        try:
            Dataset.from_arrays(**files.extract(path, {}).arrays)
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
