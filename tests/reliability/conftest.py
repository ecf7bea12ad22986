"""A run, a fleet and other folders to damage, each created once per test run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from small_runs import write_logs

import aspc
from tiny import Counting, make_dataset


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this test run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def once(folder: Path, make: Callable[[Path], None]) -> Path:
    with FileLock(f"{folder}.lock"):
        if not (folder / "made").exists():
            folder.mkdir()
            make(folder)
            (folder / "made").touch()
    return folder


@pytest.fixture(scope="session")
def folders(shared: Path) -> Path:
    """One small, valid folder of each kind that the library reads; tests copy what they change."""
    return once(shared / "folders", make_folders)


def make_folders(out: Path) -> None:
    from folders_child import checkpoint_state

    from aspc.algorithms import default
    from aspc.data.packing import pack
    from aspc.lab.groups import GroupMember, RunGroup, write_group
    from aspc.lab.plan import PlannedRun
    from aspc.lab.results import write_entries, write_part
    from aspc.training import fleet
    from aspc.training.checkpoints import CheckpointStore
    from aspc.training.hyperparameters import replace_fields
    from aspc.training.run_config import TrainOptions

    options = {"eval_every": 40, "eval_episodes": 2, "steps": 80, "log_every": 40, "tensorboard": False}
    small = {"actor_hidden_dim": 4, "batch_size": 4}
    aspc.train(write_logs(out / "logs.npz"), "bc", env=Counting, out=out / "run", quiet=True, **options, **small)
    config = json.loads((out / "run" / "config.json").read_text())
    (out / "run" / "config.json").write_text(json.dumps({**config, "env": "maze2d-umaze"}))
    checksums = json.loads((out / "run" / "checksums.json").read_text())
    checksums["files"]["config.json"] = hashlib.sha256((out / "run" / "config.json").read_bytes()).hexdigest()
    (out / "run" / "checksums.json").write_text(json.dumps(checksums))

    data = make_dataset()
    members = [fleet.Member(name, data, seed) for name, seed in (("one", 0), ("two", 1))]
    algorithm = replace_fields(default("bc"), small)
    fleet.train_fleet("bc", algorithm, members, TrainOptions(**options), out / "fleet", env=Counting, quiet=True)
    for name in ("run", "fleet"):  # checkpoints are a separate kind
        for file in sorted((out / name / "checkpoints").rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()

    checkpoints = CheckpointStore(out / "checkpoints")
    checkpoints.save(40, checkpoint_state())
    checkpoints.close()

    facts = {"suite": "s", "variant": "v", "algo": "bc", "dataset": "d", "steps": 10, "status": "done"}
    runs = [{**facts, "run_id": f"r{i}", "seed": i, "config": {"a": [1, "x"]}, "score_last": i / 3} for i in range(3)]
    write_part(out / "results", "p", runs, [{"run_id": "r0", "step": 5, "score": 1.0}])
    write_entries(out / "results", "e", [("s", "v", "r0")])
    spec = PlannedRun("bc", "maze2d-umaze", 0, 80, settings=small, options={"log_every": 40})
    write_group(out / "results", RunGroup((GroupMember(spec, "s", "v"),)))

    pack(make_dataset(rows=100), out / "packed")
