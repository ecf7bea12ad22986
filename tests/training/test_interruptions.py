"""Interrupted and failed runs: run folders stay consistent and can be continued."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aspc
from aspc import ui
from aspc.__main__ import main
from aspc.algorithms.bc import BC
from aspc.algorithms.td3_bc import TD3BC
from aspc.data import writers
from aspc.errors import AspcError, DiskFailure
from aspc.interrupts import GracefulShutdown
from aspc.io import read_json
from aspc.training import run_folder, trainer
from aspc.training.checkpoints import CheckpointStore
from aspc.training.fleet import Member, train_fleet
from aspc.training.hyperparameters import replace_fields
from aspc.training.policy_export import PolicyExporter
from aspc.training.run import Diverged, Interrupted, default_folder
from aspc.training.run_config import TrainOptions
from tiny import TINY, Counting, make_dataset

SHORT = {**TINY, "steps": 80, "log_every": 40, "eval_every": 40, "quiet": True, "tensorboard": False}


# -- folders ------------------------------------------------------------------------------------------------


def test_runs_started_in_the_same_second_have_different_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = [default_folder("data", "aspc") for _ in range(5)]
    assert len(set(made)) == 5
    for path in made:
        run_folder.create(path, {})


@pytest.mark.parametrize("name", ["../../elsewhere", "/tmp/elsewhere", "D4RL/pen/human-v2", "a\\b\0c\nd", "..", "é 1"])
def test_dataset_name_cannot_escape_the_runs_folder(name, tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    made = default_folder(name, "aspc")
    run_folder.create(made, {})
    assert made.resolve().parent == tmp_path / "work" / "runs"
    assert [path.name for path in tmp_path.iterdir()] == ["work"]


def test_concurrent_creation_of_a_run_succeeds_once(tmp_path):
    for i in range(20):
        barrier, outcomes = threading.Barrier(2), []

        def make(number: int, i: int = i, barrier: threading.Barrier = barrier, outcomes: list = outcomes) -> None:
            barrier.wait(600)
            try:
                run_folder.create(tmp_path / f"{i}", {"number": number})
                outcomes.append(number)
            except AspcError:
                pass

        threads = [threading.Thread(target=make, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(outcomes) == 1
        assert read_json(tmp_path / f"{i}" / run_folder.CONFIG) == {"number": outcomes[0]}


@dataclass(frozen=True)
class Faulty(BC):
    """Fails until it is fixed."""

    faulty: ClassVar[bool] = True

    def update(self, state, batch, noise, parts):
        if Faulty.faulty:
            raise ValueError("shapes do not fit")
        return super().update(state, batch, noise, parts)


FAULTY = {"env": None, "steps": 40, "log_every": 20, "quiet": True, "batch_size": 16, "actor_hidden_dim": 16}


def test_early_failure_empties_the_folder(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="shapes do not fit"):
        aspc.train(make_dataset(), Faulty(), out=tmp_path / "run", **FAULTY)
    assert {file.name for file in (tmp_path / "run").iterdir()} <= {run_folder.LOCK}
    monkeypatch.setattr(Faulty, "faulty", False)
    assert aspc.train(make_dataset(), Faulty(), out=tmp_path / "run", **FAULTY).result["steps"] == 40


@pytest.mark.parametrize("left", [run_folder.METRICS, run_folder.EVALUATIONS, "checkpoints/40", "notes.txt"])
def test_early_failure_keeps_existing_results(left, tmp_path):
    run = tmp_path / "run"
    run_folder.create(run, {"some": "config"})
    for name in (run_folder.METRICS, run_folder.EVALUATIONS):
        run_folder.RowFile(run / name)
    (run / left).parent.mkdir(exist_ok=True)
    (run / left).write_text("step\n40\n")
    before = {file.name for file in run.rglob("*")}
    with pytest.raises(ZeroDivisionError), run_folder.rollback_on_early_failure(run):
        raise ZeroDivisionError
    assert {file.name for file in run.rglob("*")} == before
    with pytest.raises(AspcError, match="already holds a run"):
        run_folder.create(run, {})


def test_disk_failure_keeps_the_folder(tmp_path):
    """As the message says."""
    run_folder.create(tmp_path / "run", {})
    with pytest.raises(DiskFailure), run_folder.rollback_on_early_failure(tmp_path / "run"):
        raise DiskFailure
    assert (tmp_path / "run" / run_folder.CONFIG).exists()


def test_new_columns_are_added(tmp_path):
    rows = run_folder.RowFile(tmp_path / "rows.csv")
    rows.append([{"step": 1, "a": 0.5}])
    rows.append([{"step": 2, "a": 1.5, "b": 2.5}])
    rows.append([{"step": 3, "b": 3.5}])
    seen = run_folder.columns(run_folder.read_rows(tmp_path / "rows.csv"))
    np.testing.assert_array_equal(seen["a"], [0.5, 1.5, np.nan])
    np.testing.assert_array_equal(seen["b"], [np.nan, 2.5, 3.5])


# -- stopping -----------------------------------------------------------------------------------------------


class Interrupting(Counting):
    """Sends a signal during the first evaluation."""

    pending = True

    def reset(self, **options):
        if Interrupting.pending:
            Interrupting.pending = False
            os.kill(os.getpid(), signal.SIGTERM)
        return super().reset(**options)


def test_signal_during_an_evaluation_loses_nothing(tmp_path, capsys):
    data = make_dataset()
    whole = aspc.train(data, "td3_bc", out=tmp_path / "whole", env=Counting, **SHORT)
    Interrupting.pending = True
    with pytest.raises(Interrupted, match="Stopped at step 40"):
        aspc.train(data, "td3_bc", out=tmp_path / "run", env=Interrupting, **SHORT)
    assert CheckpointStore(tmp_path / "run" / "checkpoints", read_only=True).latest_step() == 40
    before = read_json(tmp_path / "run" / run_folder.STATUS)["seconds"]
    status = (tmp_path / "run" / run_folder.STATUS).read_bytes()
    for damage in ("[]", '{"seconds": "x", "failures": {}}', '{"seconds": 1, "failures": {"nobody": {}}}'):
        (tmp_path / "run" / run_folder.STATUS).write_text(damage)
        with pytest.raises(AspcError, match=r"status\.json is damaged; remove it"):
            aspc.train(data, resume=tmp_path / "run", env=Counting, quiet=True)
    (tmp_path / "run" / run_folder.STATUS).write_bytes(status)
    with pytest.raises(AspcError, match="is already at step 40; pass a larger --steps"):
        aspc.train(data, resume=tmp_path / "run", steps=20, env=Counting, quiet=True)
    run = aspc.train(data, resume=tmp_path / "run", env=Counting, quiet=True)
    assert run.result is not None
    assert run.result["seconds"] > before > 0
    for name, array in whole.policy.arrays.items():
        np.testing.assert_array_equal(run.policy.arrays[name], array)
    for name, column in whole.evaluations.items():
        np.testing.assert_array_equal(run.evaluations[name], column)
    capsys.readouterr()


def test_signal_during_the_evaluation_of_a_saved_chunk(tmp_path):
    """It is saved once."""
    Interrupting.pending = True
    with pytest.raises(Interrupted, match="Stopped at step 40"):
        aspc.train(make_dataset(), "td3_bc", out=tmp_path / "run", env=Interrupting, checkpoint_every=40, **SHORT)
    assert CheckpointStore(tmp_path / "run" / "checkpoints", read_only=True).latest_step() == 40


def test_signal_while_a_saved_chunk_is_submitted(tmp_path, monkeypatch):
    """The checkpoint waits for its evaluations, which are awaited."""

    class Slow(Counting):
        def step(self, action):
            time.sleep(0.02)
            return super().step(action)

    export = PolicyExporter.export_arrays
    should_interrupt = iter([False, True])  # not in the comparison before the first step, but in the first evaluation

    def interrupted(self, state, overrides):
        if next(should_interrupt, False):
            os.kill(os.getpid(), signal.SIGTERM)
        return export(self, state, overrides)

    monkeypatch.setattr(trainer, "on_accelerator", lambda: True)
    monkeypatch.setattr(PolicyExporter, "export_arrays", interrupted)
    with pytest.raises(Interrupted, match="Stopped at step 40"):
        aspc.train(make_dataset(), "td3_bc", out=tmp_path / "run", env=Slow, checkpoint_every=40, **SHORT)
    assert CheckpointStore(tmp_path / "run" / "checkpoints", read_only=True).latest_step() == 40
    assert list(aspc.Run(tmp_path / "run").evaluations["step"]) == [40]


class Late(Counting):
    """Episodes start after training has failed."""

    training_failed = threading.Event()
    breaks = False

    def reset(self, **options):
        assert self.training_failed.wait(timeout=600)
        if self.breaks:
            raise RuntimeError("the simulator is broken as well")
        return super().reset(**options)


@pytest.fixture
def fails_late(monkeypatch):
    """Make the chunk at step 120 fail as on an accelerator, while the checkpoint of step 80 waits for evaluations."""
    monkeypatch.setattr(trainer, "on_accelerator", lambda: True)
    monkeypatch.setattr(Late, "training_failed", threading.Event())
    run_chunk, handle = trainer.run_chunk, trainer.Trainer._handle_divergence

    def noted(self, failure):
        Late.training_failed.set()
        handle(self, failure)

    monkeypatch.setattr(trainer.Trainer, "_handle_divergence", noted)

    def choose(how):
        def failing(devices, state, runs, table, pieces, block_steps):
            here = pieces[0].first_step == 120
            if here and how == "raises":
                Late.training_failed.set()
                raise RuntimeError("the device is gone")
            if here and how == "losses":
                state = not_finite(state)
            state, results = run_chunk(devices, state, runs, table, pieces, block_steps)
            return not_finite(state) if here and how == "state" else state, results

        monkeypatch.setattr(trainer, "run_chunk", failing)

    return choose


def not_finite(state):
    return jax.tree.map(lambda x: x * math.nan if jnp.issubdtype(x.dtype, jnp.floating) else x, state)


FAILING = {**SHORT, "steps": 240, "checkpoint_every": 80}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("losses", r"became nan at step 1[246]0 \(seed 0\); the last good checkpoint, step 80, is kept"),
        ("state", r"became NaN or infinite at step 160 \(seed 0\); the last good checkpoint, step 80, is kept"),
        ("raises", "the device is gone"),
    ],
)
def test_failure_saves_the_pending_checkpoint(how, message, tmp_path, monkeypatch, fails_late):
    """Evaluations run during training, as on an accelerator; the older state is valid."""
    fails_late(how)
    data = make_dataset()
    with pytest.raises((Diverged, RuntimeError), match=message):
        aspc.train(data, "td3_bc", out=tmp_path / "run", env=Late, **FAILING)
    assert CheckpointStore(tmp_path / "run" / "checkpoints", read_only=True).latest_step() == 80
    assert list(aspc.Run(tmp_path / "run").evaluations["step"]) == [40, 80]
    monkeypatch.undo()
    whole = aspc.train(data, "td3_bc", out=tmp_path / "whole", env=Counting, **FAILING)
    run = aspc.train(data, resume=tmp_path / "run", env=Counting, quiet=True)
    assert list(run.evaluations["step"]) == list(whole.evaluations["step"])
    for name in ("return_mean", "length_mean"):
        np.testing.assert_allclose(run.evaluations[name], whole.evaluations[name], rtol=1e-4)


def test_failure_is_reported_when_the_pending_evaluation_fails_too(tmp_path, monkeypatch, fails_late):
    """The checkpoint is not saved, since evaluations before a checkpoint are never repeated."""
    fails_late("losses")
    monkeypatch.setattr(Late, "breaks", True)
    with pytest.raises(Diverged, match="there is no checkpoint yet"):
        aspc.train(make_dataset(), "td3_bc", out=tmp_path / "run", env=Late, **FAILING)
    assert CheckpointStore(tmp_path / "run" / "checkpoints", read_only=True).latest_step() is None


def test_failed_members_keep_earlier_evaluations(tmp_path, fails_late):
    fails_late("losses")

    class Slow(Late):
        def step(self, action):
            time.sleep(0.005)
            return super().step(action)

    without_a_pause = {**FAILING, "checkpoint_every": 120}
    options = TrainOptions(**{name: value for name, value in without_a_pause.items() if name not in (*TINY, "quiet")})
    algorithm = replace_fields(TD3BC(), TINY)
    members = [Member(f"seed {seed}", make_dataset(), seed) for seed in range(2)]
    fleet = train_fleet("td3_bc", algorithm, members, options, tmp_path / "fleet", env=Slow, quiet=True)
    assert {member["status"] for member in fleet.result["members"].values()} == {"failed"}
    for member in members:
        assert list(fleet.evaluations(member.name)["step"]) == [40, 80, 120]


def test_resume_command_is_shell_quoted():
    assert run_folder.resume_command("train", Path("rün 2"), None) == "aspc train --resume 'rün 2'"
    assert run_folder.resume_command("train", Path("a"), "Hopper-v4", 20_000) == "aspc train --resume a --steps 20000"
    own = run_folder.resume_command("finetune", Path("a"), "plant:Env")
    assert own == "aspc finetune --resume a --env plant:Env"
    theirs = run_folder.resume_command("train", Path("a"), "minari:D/x-v0")
    assert theirs == "aspc train --resume a --env minari:D/x-v0"


def test_interrupted_extension_names_its_steps(tmp_path):
    data = make_dataset()
    aspc.train(data, "td3_bc", out=tmp_path / "run", env=Counting, **SHORT)
    steps = 2 * SHORT["steps"]
    Interrupting.pending = True
    with pytest.raises(Interrupted, match=rf"continue with: aspc train --resume \S+ --steps {steps}"):
        aspc.train(data, resume=tmp_path / "run", steps=steps, env=Interrupting, quiet=True)


def test_resuming_with_moved_data(tmp_path, capsys):
    made = make_dataset()
    log = tmp_path / "log.npz"
    writers.write_npz(log, writers.dataset_arrays(made), writers.dataset_metadata(made))
    aspc.train(str(log), "td3_bc", out=tmp_path / "run", env=None, **SHORT)
    log.rename(tmp_path / "moved.npz")
    further = ["train", "--resume", str(tmp_path / "run"), "--steps", "120", "--quiet"]
    assert main(further) == 2
    assert "no longer exists; pass its new path with --dataset" in capsys.readouterr().err
    assert main([*further, "--dataset", str(tmp_path / "moved.npz")]) == 0
    assert run_folder.Run(tmp_path / "run").result["steps"] == 120
    other = make_dataset(seed=1)
    writers.write_npz(log, writers.dataset_arrays(other), writers.dataset_metadata(other))
    assert main([*further[:-2], "160", "--quiet", "--dataset", str(log)]) == 2
    assert "Pass the original data, or start a new run" in capsys.readouterr().err


def test_ctrl_c_is_acknowledged_at_once(capfd):
    with GracefulShutdown() as shutdown:
        os.kill(os.getpid(), signal.SIGINT)
        assert shutdown.signal_number == signal.SIGINT
        assert "Stopping after this chunk is saved" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_works_with_a_closed_stderr():
    """In `aspc train … 2>&1 | tee log` Ctrl-C ends the reader first; the chunk is still saved."""
    reader, writer = os.pipe()
    os.close(reader)
    before = os.dup(2)
    os.dup2(writer, 2)
    try:
        with GracefulShutdown() as shutdown:
            os.kill(os.getpid(), signal.SIGINT)
            assert shutdown.signal_number == signal.SIGINT
    finally:
        os.dup2(before, 2)
        for descriptor in (before, writer):
            os.close(descriptor)


def test_options_of_a_resumed_run(tmp_path, capsys):
    run = Path("maze2d-umaze?steps=300")
    words = ["--steps", "40", "--log-every", "20", "--batch-size", "16", "--actor-hidden-dim", "16", "--env", "none"]
    assert main(["train", str(run), "--algo", "bc", *words, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    resume = ["train", "--resume", str(tmp_path / "run")]
    for more, message in (
        (["--alpha", "3"], "keeps its settings"),
        (["another"], "Unexpected argument 'another'"),
        (["--steps"], "must be followed by an integer"),
        (["--steps", "0"], "at least 1"),
    ):
        capsys.readouterr()
        assert main([*resume, *more]) == 2
        assert message in capsys.readouterr().err
    before = (tmp_path / "run" / "result.json").read_bytes()
    for more in ([], ["--steps", "40"], ["--steps", "30"]):  # a loop "until aspc train --resume RUN" ends
        assert main([*resume, *more]) == 0
        assert "already finished its 40 steps; to train longer, pass a larger --steps" in capsys.readouterr().err
    assert (tmp_path / "run" / "result.json").read_bytes() == before
    assert main([*resume, "--steps", "60", "--env", "none", "--quiet"]) == 0
    assert "60 steps" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main([*resume, "--help"])
    assert ended.value.code == 0
    assert "last checkpoint" in capsys.readouterr().out


def test_time_left_excludes_compilation(monkeypatch, capsys):
    clock = iter([0.0, 30.0, 41.0, 52.0])
    monkeypatch.setattr(ui.time, "monotonic", lambda: next(clock))
    seen = ui.Progress(4_000)
    seen.show(1_000)
    seen.show(2_000)
    seen.show(3_000, score="7.0")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "1,000/4,000 steps",
        "2,000/4,000 steps  91 steps/s  0:22 left",
        "3,000/4,000 steps  91 steps/s  0:11 left  score 7.0",
    ]
