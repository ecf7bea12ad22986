"""The child process that reads files: asked for each by a line on standard input, it leaves the arrays in a folder and
answers with a line on standard output."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from aspc.data import files
from aspc.errors import AspcError


def read(path: Path, folder: Path, how: dict[str, Any]) -> dict[str, Any]:
    """The arrays of a file, each as a file of its own, and what is to be said of them."""
    try:
        arrays, notes, facts = files.extract(path, **how)
    except AspcError as error:
        return {"error": str(error)}
    for key, array in arrays.items():
        np.save(folder / f"{key}.npy", array, allow_pickle=False)
    return {"keys": list(arrays), "notes": notes, "facts": facts}


def main(folder: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not mix with the answers
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(read(Path(request["path"]), Path(folder), request["how"])), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
