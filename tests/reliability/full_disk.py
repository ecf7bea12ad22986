"""Train, export and write results on a small disk that fills up, gets room again, and becomes read-only.

    unshare -rm python full_disk.py FOLDER        prints one JSON object; FOLDER is where the disk is mounted

It mounts a tmpfs that is visible only in its own mount namespace.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from small_runs import write_logs

import aspc
from aspc.__main__ import main
from aspc.errors import AspcError
from aspc.export import export
from aspc.lab.results import read, write_part
from tiny import make_dataset

ENOUGH = 4_000  # KiB
# From no room for the first file to none for the last one: metrics, checkpoints, policy, result, figure.
ROOMS = (0, 4, 8, 40, 130, 200, 230, 250, 260)
SETTINGS = {"actor_hidden_dim": 64, "batch_size": 8, "steps": 80, "log_every": 40, "checkpoint_every": 40}


def mount(disk: Path, *options: str) -> None:
    # Without its own options: among them are the numbers of a user who does not exist in the namespace.
    command = ["mount", "--options-source=disable", *options, str(disk)]
    subprocess.run(command, check=True, capture_output=True)


def room(disk: Path, kib: int) -> None:
    mount(disk, "-o", f"remount,rw,size={max(kib, 4)}k")
    if kib == 0:
        (disk / "filling").write_bytes(b"x" * 4096)
    else:
        (disk / "filling").unlink(missing_ok=True)


def outcome_of(action: Any) -> str:
    """Return "done" or the message of the error."""
    try:
        action()
    except AspcError as error:
        return str(error)
    return "done"


def command(*words: Any) -> list[Any]:
    """Return the exit code of a command and its stderr."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = main([str(word) for word in words])
    return [code, errors.getvalue()]


def weights(run: aspc.Run) -> bytes:
    return b"".join(array.tobytes() for _, array in sorted(run.policy.arrays.items()))


def training(disk: Path, data: Any, whole: aspc.Run, kib: int) -> dict[str, Any]:
    """Train on a disk of some size, then continue after it was enlarged."""
    out = disk / "run"
    room(disk, kib)
    first = outcome_of(lambda: aspc.train(data, "bc", out=out, quiet=True, **SETTINGS))
    room(disk, ENOUGH)
    if not (out / "config.json").exists():
        then = outcome_of(lambda: aspc.train(data, "bc", out=out, quiet=True, **SETTINGS))
    elif not (out / "result.json").exists():
        then = outcome_of(lambda: aspc.train(data, resume=out, quiet=True))
    else:
        then = "done"
    run = aspc.Run(out)
    same = weights(run) == weights(whole)
    same &= (out / "metrics.csv").read_text() == (whole.path / "metrics.csv").read_text()
    shutil.rmtree(out)
    return {"kib": kib, "first": first, "then": then, "same": same}


def smaller_files(disk: Path, whole: aspc.Run) -> dict[str, Any]:
    """Write results and exports: earlier files stay readable, and no partial file appears."""
    row = {"suite": "s", "variant": "v", "algo": "bc", "dataset": "d", "steps": 1, "status": "done", "seed": 0}
    room(disk, ENOUGH)
    write_part(disk / "results", "a", [{**row, "run_id": "a"}], [])
    exported = export(whole.path, "numpy", disk / "numpy").joinpath("weights.npz").read_bytes()
    with contextlib.suppress(OSError), open(disk / "filling", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    report = {
        "results": outcome_of(lambda: write_part(disk / "results", "b", [{**row, "run_id": "b"}], [])),
        "part": outcome_of(lambda: write_part(disk / "results", "a", [{**row, "run_id": "a", "seed": 5}], [])),
        "export": outcome_of(lambda: export(whole.path, "numpy", disk / "numpy", force=True)),
        "convert": command("data", "convert", whole.path.parent / "logs.npz", disk / "logs.hdf5"),
    }
    report["runs"] = read(disk / "results").runs["seed"].tolist()
    report["export_kept"] = (disk / "numpy" / "weights.npz").read_bytes() == exported
    report["files"] = sorted(str(f.relative_to(disk)) for f in disk.rglob("*") if f.is_file())
    return report


def read_only(disk: Path, data: Any, whole: aspc.Run) -> dict[str, Any]:
    aspc.train(data, "bc", out=disk / "run", quiet=True, **SETTINGS)
    shutil.copy(whole.path.parent / "logs.npz", disk)
    mount(disk, "-o", "remount,ro")
    found = {
        "train": outcome_of(lambda: aspc.train(data, "bc", out=disk / "new", quiet=True, **SETTINGS)),
        "resume": outcome_of(lambda: aspc.train(data, resume=disk / "run", steps=120, quiet=True)),
        "bench": command("bench", "embedded", "--out", disk / "bench"),
        "export": command("export", disk / "run", "--format", "numpy"),
        "inspect": command("inspect", disk / "run", "--dataset", disk / "logs.npz", "--out", disk / "page.html"),
        "acts": bool(np.isfinite(aspc.Run(disk / "run").policy.act(np.zeros(4))).all()),
    }
    room(disk, ENOUGH)
    for thing in disk.iterdir():
        shutil.rmtree(thing) if thing.is_dir() else thing.unlink()
    return found


def report(disk: Path) -> dict[str, Any]:
    data = make_dataset()
    write_logs(disk.parent / "logs.npz")
    whole = aspc.train(data, "bc", out=disk.parent / "whole", quiet=True, **SETTINGS)
    mount(disk, "-t", "tmpfs", "-o", f"size={ENOUGH}k", "tmpfs")
    return {
        "read_only": read_only(disk, data, whole),  # first: a writer that met a full disk keeps its file open
        "training": [training(disk, data, whole, kib) for kib in ROOMS],
        "files": smaller_files(disk, whole),
    }


if __name__ == "__main__":
    print(json.dumps(report(Path(sys.argv[1]))))
