"""The child process that reads one file: arrays go to a folder, a report to standard output."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np

from aspc.data import files
from aspc.errors import AspcError


def main(path: str, folder: str, how: str) -> None:
    report_to = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not mix with the report
    try:
        arrays, notes, facts = files.extract(Path(path), **json.loads(how))
        for key, array in arrays.items():
            np.save(Path(folder) / f"{key}.npy", array, allow_pickle=False)
        report: dict[str, object] = {"keys": list(arrays), "notes": notes, "facts": facts}
    except AspcError as error:
        report = {"error": str(error)}
    os.write(report_to, json.dumps(report).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
