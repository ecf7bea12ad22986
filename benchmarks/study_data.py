"""Generate the study's datasets at D4RL's and OGBench's sizes, with public behavior policies.

    python benchmarks/study_data.py POLICIES --out FOLDER [--only 'hopper-*' …] [--scale 0.01] [--workers N]

POLICIES is a folder with behavior policies as NumPy arrays, all from public repositories (see docs/study_data.md).
This repository contains neither the policies nor the datasets. If the policies for a dataset are missing, a message is
printed and the dataset is skipped. Existing files are kept.

D4RL's layout (HDF5):
  hopper, halfcheetah, walker2d   random, medium, expert, medium-expert, medium-replay, full-replay
  maze2d                          umaze, medium, large; with the suffix -clean: without action noise
  antmaze                         umaze, umaze-diverse, medium and large x play and diverse
  pen, door, hammer, relocate     expert
  door                            human (a copy of the demonstrations), cloned
OGBench's layout (NPZ, training and validation files, -v0):
  pointmaze-{medium,large,giant}-navigate, antmaze-{large,giant}-navigate
  cube-single-play, scene-play, puzzle-3x3-play

Datasets are collected in pieces, which are kept in FOLDER/pieces until their file is complete. After an interruption,
run the same command again to continue. The files do not depend on the number of workers, and are the same on all x86
processors with AVX2. The script needs the environments (`aspc[robotics,ogbench]`).
"""

from __future__ import annotations

import argparse
import fnmatch
import multiprocessing
import os
import shutil
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # The rounding of sums depends on the register width, and rollouts amplify differences. Use one width everywhere.
    os.environ |= {"OPENBLAS_CORETYPE": "Haswell", "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR"}

from filelock import FileLock, Timeout

from aspc import tasks
from aspc.data import Dataset, writers
from aspc.data.readers import hdf5
from aspc.errors import AspcError
from aspc.training.evaluation import available_cores
from recipes.catalog import CLONED, HUMAN, NAMES, TRAJECTORIES, pieces_of, sources_of
from recipes.pieces import Piece, collect_piece, write_hdf5, write_npz
from recipes.policies import fit_clone

PIECES = "pieces"
PROGRESS_SECONDS = 30.0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", type=Path, help="folder with the behavior policies")
    parser.add_argument("--out", type=Path, required=True, help="output folder (created if missing)")
    parser.add_argument(
        "--only", nargs="*", default=["*"], help="generate only datasets whose names match these patterns"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the full sizes to generate")
    parser.add_argument("--workers", type=int, default=available_cores(), help="number of processes")
    args = parser.parse_args(argv)
    for pattern in args.only:
        if not fnmatch.filter(NAMES, pattern):
            parser.error(f"No dataset matches {pattern!r}. Available datasets: {', '.join(NAMES)}.")
    if args.scale <= 0 or args.workers < 1:
        parser.error("--scale must be above 0 and --workers at least 1.")
    names = [name for name in NAMES if any(fnmatch.fnmatchcase(name, pattern) for pattern in args.only)]
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(args.out / ".study_data.lock", timeout=0):
            make_datasets(names, args.policies, args.out, args.scale, args.workers)
    except Timeout:
        parser.error(f"Another process is writing to {args.out}. Wait for it, or choose another --out.")
    except AspcError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def make_datasets(names: list[str], policies: Path, out: Path, scale: float, workers: int) -> None:
    """Write datasets one after another, while other processes collect the pieces of later datasets."""
    began, folder = time.monotonic(), out / PIECES
    wanted: dict[str, dict[Path, list[Piece]]] = {}
    for name in names:
        missing = [file for file in sources_of(name, policies) if not file.is_file()]
        if missing:
            print(f"{name}: skipped, because {missing[0]} does not exist", file=sys.stderr)
        elif name == HUMAN:
            copy_demonstrations(policies, out)
        elif unfinished := unfinished_files(name, policies, out, scale):
            wanted[name] = unfinished
    if not wanted:
        return
    uses = Counter(piece for outputs in wanted.values() for pieces in outputs.values() for piece in pieces)
    for leftover in folder.glob(".*.tmp"):  # left behind by killed processes
        leftover.unlink()
    # The worker processes inherit these variables. Each has one core, and its matrices are small.
    os.environ |= {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    with multiprocessing.get_context("spawn").Pool(min(workers, len(uses))) as pool:
        arriving = zip(uses, pool.imap(partial(collect_piece, folder=folder), uses), strict=True)
        ready: set[Piece] = set()
        for name, outputs in wanted.items():
            needed = {piece for pieces in outputs.values() for piece in pieces}
            reported = time.monotonic()
            while not needed <= ready:
                ready.add(next(arriving)[0])
                if time.monotonic() - reported > PROGRESS_SECONDS:
                    reported = time.monotonic()
                    print(f"{elapsed(began)} {name}: {len(needed & ready)} of {len(needed)} pieces", flush=True)
            for path, pieces in outputs.items():
                (write_npz if path.suffix == ".npz" else write_hdf5)(path, pieces, folder)
                print(f"{elapsed(began)} {description(name, path, pieces)}", flush=True)
            uses.subtract(needed)
            for piece in needed:
                if uses[piece] == 0:
                    piece.path(folder).unlink()
    if folder.is_dir() and not any(folder.glob("*.npz")):
        shutil.rmtree(folder)


def unfinished_files(name: str, policies: Path, out: Path, scale: float) -> dict[Path, list[Piece]]:
    """Return the files of a dataset that do not exist yet, with their pieces."""
    clone = out / PIECES / "policies" / "door_clone.npz"
    if name == CLONED and not (out / f"{name}.hdf5").exists():
        demonstrations = hdf5.read_trusted_hdf5(*sources_of(name, policies))
        writers.write_npz(clone, fit_clone(demonstrations["observations"], demonstrations["actions"].clip(-1, 1)))
    outputs = pieces_of(name, policies, clone, scale)
    return {out / file: pieces for file, pieces in outputs.items() if not (out / file).exists()}


def copy_demonstrations(policies: Path, out: Path) -> None:
    target = out / f"{HUMAN}.hdf5"
    if not target.exists():
        (source,) = sources_of(HUMAN, policies)
        shutil.copyfile(source, target)
        print(f"{HUMAN}: copied", flush=True)


def elapsed(began: float) -> str:
    return f"[{time.monotonic() - began:5.0f} s]"


def description(name: str, path: Path, pieces: list[Piece]) -> str:
    """Return a description of a dataset: its size and, if its file has rewards, its mean return and score."""
    rows = sum(piece.rows for piece in pieces)
    if name in TRAJECTORIES:
        return f"{path.stem}: {rows:,} rows, {rows // TRAJECTORIES[name].steps:,} episodes"
    arrays: dict[str, Any] = dict(hdf5.read_trusted_hdf5(path))
    task = tasks.name_from_stem(name, arrays["observations"].shape[1], arrays["actions"].shape[1])
    data = Dataset.from_arrays(**arrays, env=task, name=name)
    episodes = "" if data.is_endless else f"{len(data.episode_lengths):,} episodes, "
    score = f"mean return {data.behavior_return():.1f}, score {data.behavior_score():.1f}"
    return f"{name}: {rows:,} transitions, {episodes}{score}"


if __name__ == "__main__":
    sys.exit(main())
