"""Read many damaged folders (runs, fleets, checkpoints, results, packed data) in a separate process.

    python folders_child.py FOLDER KIND FIRST LAST

FOLDER/KIND is a valid folder of that kind; "all" takes the kinds in turn. In case i one of its files is damaged,
removed, or replaced by a pickle that creates a file when it is loaded. Every second case of a JSON file or checkpoint
is well-formed with false values.
"""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz_child import HOSTILE, damage, far_observations_allowed, read_all, replace_one

MEMORY = 12 << 30
MARK = "unpickled"


def use_run(path: Path) -> None:
    from aspc.cli.shared import final_scale
    from aspc.cli.train import recorded_defaults
    from aspc.errors import AspcError
    from aspc.training.checksums import verify
    from aspc.training.run import recorded_algorithm
    from aspc.training.run_folder import CHECKSUMS, Run

    if (path / CHECKSUMS).exists():
        with suppress(AspcError):  # this reports the damage; the readers below must detect it too
            verify(path)
    run = Run(path)
    repr(run), run.metrics, run.evaluations, run.result, run.env, final_scale(run)
    recorded_algorithm(run.config), recorded_defaults(path, None)
    with far_observations_allowed():
        assert run.policy.act(np.zeros(run.policy.observation_size)).shape == (run.policy.action_size,)


def use_fleet(path: Path) -> None:
    from aspc.training.fleet import Fleet

    fleet = Fleet(path)
    repr(fleet), fleet.result
    for member in fleet.members:
        fleet.metrics(member.name), fleet.evaluations(member.name), fleet.policy(member.name)


def use_checkpoints(path: Path) -> None:
    from aspc.errors import AspcError
    from aspc.training.checkpoints import CheckpointStore

    checkpoints = CheckpointStore(path, read_only=True)
    try:
        step = checkpoints.latest_step()
        if step is not None:
            with suppress(AspcError):
                checkpoints.verify(step)
            state = checkpoints.restore(step, checkpoint_state())
            assert all(state[name].shape == leaf.shape for name, leaf in checkpoint_state().items())
    finally:
        checkpoints.close()


def checkpoint_state() -> dict[str, np.ndarray]:
    """Return a state with the types of arrays that a run has."""
    rng = np.random.default_rng(0)
    return {
        "weight": rng.normal(size=(2, 8, 4)).astype(np.float32),
        "count": np.arange(2, dtype=np.int32),
        "scale": np.ones(2, np.float32),
    }


def use_results(path: Path) -> None:
    from aspc.lab import bench_folder, recorded_runs, results

    results.export_csv(results.read(path), path.parent / "csv")
    recorded_runs.read_recorded_runs([path]), bench_folder.read_unfinished_groups(path)


def use_packed(path: Path) -> None:
    from aspc.data.streaming import StreamingDataset

    data = StreamingDataset.open(path)
    with data.windows(data.window_rows(1 << 20)) as windows:
        fields = data.split(next(windows))
    assert fields.observations.shape[1:] == data.observation_mean.shape == data.observation_std.shape
    assert fields.actions.shape[1:] == data.action_low.shape == data.action_high.shape


USES: dict[str, Callable[[Path], None]] = {
    "run": use_run,
    "fleet": use_fleet,
    "checkpoints": use_checkpoints,
    "results": use_results,
    "packed": use_packed,
}


class Marking:
    """An object that creates a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def damage_folder(whole: Path, damaged: Path, case: int) -> None:
    """Copy the folder `whole` and damage one of its files."""
    if damaged.exists():
        shutil.rmtree(damaged)
    shutil.copytree(whole, damaged)
    rng = np.random.default_rng([case, 1])
    files = sorted(f for f in damaged.rglob("*") if f.is_file() and f.suffix != ".png" and f.name != ".lock")
    file = files[rng.integers(len(files))]
    body = file.read_bytes()
    tree = as_json(body)
    chance = rng.random()
    if chance < 0.02:
        file.unlink()
    elif chance < 0.07:
        file.write_bytes(pickle.dumps(Marking(damaged.parent / MARK)))
    elif tree and chance < 0.5:
        for _ in range(rng.integers(1, 4)):
            replace_one(tree, deepcopy(HOSTILE[rng.integers(len(HOSTILE))]), rng)
        file.write_text(json.dumps(tree))
    else:
        file.write_bytes(damage(body, case))


def as_json(body: bytes) -> Any:
    try:
        tree = json.loads(body)
    except ValueError:
        return None
    return tree if isinstance(tree, dict | list) else None


def main(folder: Path, kind: str, first: int, last: int) -> None:
    kinds = list(USES) if kind == "all" else [kind]

    def damaged(case: int) -> Path:
        path = folder / "damaged" / kinds[case % len(kinds)]
        damage_folder(folder / path.name, path, case)
        return path

    read_all(first, last, MEMORY, damaged, lambda path: USES[path.name](path))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
