"""Faults of the machine: disks, clocks, locks, workers. Signals and kills of whole commands are in
tests/training/test_run.py, tests/lab/test_bench.py and, at random moments, in test_soak.py."""

from __future__ import annotations

import datetime
import errno
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import SHORT, SMALL

import aspc
from aspc.__main__ import main, run_reporting_errors
from aspc.errors import AspcError, DiskFailure
from aspc.lab import results
from aspc.training import evaluation, run_config, trainer
from aspc.training import run as run_module
from aspc.training.checkpoints import CheckpointStore
from aspc.training.evaluation import Evaluator
from aspc.training.progress_line import ProgressLine
from aspc.training.run_folder import Run, explain_disk_errors
from aspc.training.run_status import RunStatus
from aspc.training.trainer import Trainer
from tiny import make_dataset

HERE = Path(__file__).parent


def weights(run: Run) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in run.policy.arrays.items()}


# ── disks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def own_mounts() -> list[str]:
    """A command prefix that gives a program its own mounts, if that is allowed."""
    for words in (["unshare", "-rm"], ["unshare", "-m"]):
        try:
            if subprocess.run([*words, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode == 0:
                return words
        except OSError:
            return []
    return []


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of full_disk.py on a small tmpfs."""
    words = own_mounts()
    if not words:
        pytest.skip("mounting a small disk is not allowed here")
    disk = tmp_path_factory.mktemp("small") / "disk"
    disk.mkdir()
    command = [*words, sys.executable, "-W", "error", str(HERE / "full_disk.py"), str(disk)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_run_continues_after_a_full_disk_without_loss(small_disk: dict[str, Any]) -> None:
    for case in small_disk["training"]:
        assert case["then"] == "done", case
        assert case["same"], case
        assert case["first"] == "done" or "No space left on device" in case["first"], case
        assert "\n" not in case["first"]
    stopped = [case for case in small_disk["training"] if case["first"] != "done"]
    assert len(stopped) >= 6
    assert sum("continue with: aspc train --resume" in case["first"] for case in stopped) >= 5


NO_ROOM_FOR_FOLDERS = """
import errno, os, sys
from pathlib import Path
import numpy as np
from aspc.training.checkpoints import CheckpointStore

checkpoints = CheckpointStore(Path(sys.argv[1]))

def full(path, *_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

os.mkdir = full
try:
    checkpoints.save(40, {"weight": np.zeros((8, 8), np.float32)})
    checkpoints.close()
except OSError as error:
    print(error.strerror)
"""


def test_a_process_exits_after_its_disk_was_full(tmp_path: Path) -> None:
    """Orbax threads that wait for a folder that cannot be created must not keep the process alive."""
    command = [sys.executable, "-c", NO_ROOM_FOR_FOLDERS, str(tmp_path / "checkpoints")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "No space left on device\n"


def test_results_exports_and_conversions_on_a_full_disk_are_complete_or_absent(small_disk: dict[str, Any]) -> None:
    found = small_disk["files"]
    for sentence in (found["results"], found["part"], found["export"], found["convert"][1].strip()):
        assert "No space left on device" in sentence
        assert "\n" not in sentence
    assert found["convert"][0] == 2
    assert found["runs"] == [0]  # what was there before, and as it was
    assert found["export_kept"]
    kept = ["filling", "numpy/policy.py", "numpy/weights.npz", "results/curves/a.parquet", "results/runs/a.parquet"]
    assert found["files"] == kept


def test_a_read_only_disk_is_reported_and_readable(small_disk: dict[str, Any]) -> None:
    found = small_disk["read_only"]
    assert "cannot be written: Read-only file system; choose another --out" in found["train"]
    assert "Read-only file system" in found["resume"]
    for command in ("bench", "export", "inspect"):
        code, said = found[command]
        assert code == 2, said
        assert "Read-only file system" in said.splitlines()[-1]
    assert found["acts"]


def test_a_path_below_a_file_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(AspcError, match=r"cannot be written|not empty"):
        aspc.train(make_dataset(), "bc", out=tmp_path / "file" / "run", **SHORT)
    assert main(["bench", "embedded", "--out", str(tmp_path / "file" / "bench"), "--quiet"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(("missing", "expected"), [("run/metrics.csv", DiskFailure), ("fonts.json", FileNotFoundError)])
def test_only_files_of_the_run_are_disk_failures(missing: str, expected: type[Exception], tmp_path: Path) -> None:
    """A file that an installation lacks is an error of the program, not of the disk."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text("{}")
    with pytest.raises(expected) as failure, explain_disk_errors(run, "aspc train --resume run"):
        (tmp_path / missing).read_text()
    assert (failure.type is DiskFailure) == ("continue with: aspc train" in str(failure.value))


def test_a_backslash_in_a_path_is_rejected_before_anything_is_created(tmp_path: Path) -> None:
    """Checkpoints would be written to another folder."""
    with pytest.raises(AspcError, match="backslash"):
        aspc.train(make_dataset(), "bc", out=tmp_path / "a\\b", **SHORT)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_killed_start_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.json.abc123").write_text('{"algo": ')
    assert aspc.train(make_dataset(), "bc", out=tmp_path / "run", **SHORT).result["steps"] == 80


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (ProgressLine, "on_start"),
        (Trainer, "_process_chunk"),
        (RunStatus, "write"),
        (Trainer, "_save_policies"),
        (Trainer, "_outcome"),
        (CheckpointStore, "save"),
        (CheckpointStore, "close"),
    ],
)
def test_a_run_folder_deleted_during_training_is_reported(
    owner: type, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(owner, name)

    def delete_first(*arguments: Any) -> Any:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return original(*arguments)

    monkeypatch.setattr(owner, name, delete_first)
    with pytest.raises(AspcError, match=r"was deleted or moved during training|There is no run in") as failure:
        aspc.train(make_dataset(), "bc", out=tmp_path / "run", **SHORT)
    assert "\n" not in str(failure.value)


LONG = "x" * 300


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--out", LONG, "--steps", "10"],
        ["train", LONG],
        ["train", "--resume", LONG],
        ["eval", LONG],
        ["bench", "embedded", "--out", LONG],
        ["results", LONG],
        ["data", "info", f"{LONG}.csv"],
        ["export", LONG, "--format", "numpy"],
    ],
    ids=lambda words: " ".join(words).replace(LONG, "LONG"),
)
def test_a_name_that_is_too_long_is_reported(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "File name too long" in line


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ENOENT, errno.ENAMETOOLONG])
def test_other_disk_errors_are_reported(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A network disk disappears while a run is written and while a command reads."""

    def broken(*_: Any) -> None:
        raise OSError(number, os.strerror(number), str(tmp_path / "run" / "file"))

    with monkeypatch.context() as stale:
        stale.setattr(RunStatus, "write", broken)
        with pytest.raises(DiskFailure, match=r"Fix the problem, then continue with: aspc train --resume"):
            aspc.train(make_dataset(), "bc", out=tmp_path / "run", **SHORT)
    assert aspc.train(make_dataset(), resume=tmp_path / "run", quiet=True).result is not None
    assert run_reporting_errors(broken) == 2  # type: ignore[arg-type]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"aspc: {tmp_path / 'run' / 'file'}: {os.strerror(number)}. ")


# ── clocks ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_clock_that_goes_backwards_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = aspc.train(make_dataset(), "bc", out=tmp_path / "whole", **{**SHORT, "steps": 200})
    now = [time.time()]

    def earlier(*_: Any) -> float:
        now[0] -= 1000
        return now[0]

    class Backwards(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime.datetime:
            return datetime.datetime.fromtimestamp(earlier(), tz)

    monkeypatch.setattr(time, "time", earlier)
    monkeypatch.setattr(time, "time_ns", lambda: int(1e9 * earlier()))
    for module in (run_module, run_config):
        monkeypatch.setattr(module, "datetime", Backwards)
    options = {**SMALL, "tensorboard": True, "horizon": 200}
    aspc.train(make_dataset(), "bc", out=tmp_path / "run", **{**options, "steps": 120})
    assert sorted(int(f.name) for f in (tmp_path / "run" / "checkpoints").iterdir()) == [80, 120]  # the newest two
    run = aspc.train(make_dataset(), resume=tmp_path / "run", steps=200, quiet=True)
    assert weights(run) == weights(whole)
    assert (run.path / "metrics.csv").read_text() == (whole.path / "metrics.csv").read_text()
    assert run.result["seconds"] >= 0


def test_results_of_a_clock_that_went_backwards_are_readable(tmp_path: Path) -> None:
    """A run that ended "before" it began; one repeated at an "earlier" time: done beats failed, and curves follow."""
    row = {"run_id": "a", "suite": "s", "variant": "v", "algo": "bc", "dataset": "d", "seed": 0, "steps": 9}
    late, early = "2026-01-02T00:00:00+00:00", "2026-01-01T00:00:00+00:00"
    first = {**row, "status": "failed", "error": "x", "started": late, "finished": late}
    again = {**row, "status": "done", "started": late, "finished": early, "seconds": 3.0}
    results.write_part(tmp_path, "first", [first], [{"run_id": "a", "step": 1, "score": 0.0}])
    results.write_part(tmp_path, "again", [again], [{"run_id": "a", "step": 9, "score": 1.0}])
    found = results.read(tmp_path)
    assert found.runs["status"].tolist() == ["done"]
    assert found.curves["step"].tolist() == [9]


# ── locks ───────────────────────────────────────────────────────────────────────────────────────────────────────────

HOLD = """
import sys, time
from pathlib import Path
if sys.argv[1] == "train":
    from aspc.training.run_folder import run_lock as lock
else:
    from aspc.lab.bench_folder import bench_lock as lock
with lock(Path(sys.argv[2])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("what", ["train", "bench"])
def test_a_lock_is_exclusive_and_ends_with_its_owner(tmp_path: Path, what: str) -> None:
    from aspc.lab.bench_folder import bench_lock
    from aspc.training.run_folder import run_lock

    def take() -> None:
        with (run_lock if what == "train" else bench_lock)(tmp_path):
            pass

    owner = subprocess.Popen([sys.executable, "-c", HOLD, what, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "held\n"
    with pytest.raises(AspcError, match="Another") as refusal:
        take()
    assert "choose another --out" in str(refusal.value)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    take()


# ── workers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("does", "message", "patience"),
    [
        ("import sys; sys.exit('the simulator is broken')", r"worker died \(the simulator is broken\)", 60),
        ("import os; os.kill(os.getpid(), 9)", r"worker died\.", 60),
        ("import time; time.sleep(600)", r"worker took longer than 1 s\.", 1),
    ],
)
def test_a_worker_that_fails_twice_ends_the_run(
    does: str, message: str, patience: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{does}"\n')
    python.chmod(0o755)
    started, start = [], evaluation.WorkerProcess._start
    monkeypatch.setattr(evaluation.WorkerProcess, "_start", lambda self: (started.append(self), start(self))[1])
    monkeypatch.setattr(trainer, "Evaluator", functools.partial(Evaluator, workers=1, timeout_seconds=patience))
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", str(python))
        with pytest.raises(AspcError, match=message) as failure:
            aspc.train(make_dataset(), "bc", env="maze2d-umaze", eval_every=80, out=tmp_path / "run", **SHORT)
    assert "at step 80 failed twice" in str(failure.value)
    assert "aspc train --resume" in str(failure.value)
    assert len(started) >= 2  # it was started again
    assert Run(tmp_path / "run").result is None


# ── what a file may ask for ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_folder_cannot_name_a_module_to_import(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')")
    run = shutil.copytree(folders / "run", tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    for change in ({"env": "evil_module:X-v0"}, {"dataset": {**config["dataset"], "options": {"env": "os:X-v0"}}}):
        (run / "config.json").write_text(json.dumps({**config, **change}))
        for words in (["eval", run], ["train", "--from", run], ["train", "--resume", run, "--steps", "120"]):
            if words[0] == "eval" and "env" not in change:
                continue
            assert main([str(word) for word in words]) == 2
            assert "would import a module" in capsys.readouterr().err
    assert os.path.exists(run)


def test_a_trusted_environment_must_be_passed_again(folders: Path) -> None:
    """A user's own environment, --env module:Name, is not taken from a run folder on resume."""
    run = Run(folders / "run")
    run.config.dataset.options["env"] = "mine:Env-v0"
    assert run.data_options("mine:Env-v0")["env"] == "mine:Env-v0"
    with pytest.raises(AspcError, match="pass it explicitly: --env mine:Env-v0"):
        run.data_options("other:Env-v0")


def test_a_checkpoint_that_claims_a_trillion_rows_is_rejected_at_once(tmp_path: Path) -> None:
    import tensorstore
    from folders_child import checkpoint_state

    from aspc.training.checkpoints import CheckpointStore

    checkpoints = CheckpointStore(tmp_path / "checkpoints")
    checkpoints.save(40, checkpoint_state())
    checkpoints.close()
    base = {"driver": "file", "path": f"{tmp_path / 'checkpoints' / '40' / 'default'}/"}
    spec = {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": base, "path": "['weight']/"}}
    tensorstore.open(
        {**spec, "metadata": {"shape": [10**12, 8, 4], "chunks": [2, 8, 4], "dtype": "<f4"}},
        create=True,
        delete_existing=True,
    ).result()
    checkpoints = CheckpointStore(tmp_path / "checkpoints", read_only=True)
    with pytest.raises(AspcError, match="checkpoint"):
        checkpoints.restore(40, checkpoint_state())
    checkpoints.close()
    assert np.isfinite(checkpoint_state()["weight"]).all()


def test_a_full_disk_does_not_mark_bench_runs_as_failed() -> None:
    from aspc.errors import DiskFailure
    from aspc.lab.group_training import capture_failure

    def full() -> None:
        raise DiskFailure("no room")

    with pytest.raises(DiskFailure):
        capture_failure(full)
    assert capture_failure(lambda: 1 / 0) == "ZeroDivisionError: division by zero"  # what is the run's own is noted


def test_a_bench_does_not_run_a_plugin_that_only_a_file_names(folders: Path) -> None:
    from dataclasses import replace

    from aspc.lab.bench_folder import collect_groups, read_unfinished_groups
    from aspc.lab.groups import write_group
    from aspc.lab.plan import BenchPlan, SuiteEntry

    bench = folders.parent / f"bench{os.getpid()}"
    (group,) = read_unfinished_groups(folders / "results")
    write_group(bench, replace(group, plugin="/evil.py"))
    member = group.members[0]
    plan = BenchPlan({member.run.run_id: member.run}, (SuiteEntry("s", "v", member.run.run_id),), ())
    (begun,) = collect_groups(bench, plan, [member.run.run_id], 4, {})
    assert begun.plugin is None
    (begun,) = collect_groups(bench, plan, [member.run.run_id], 4, {}, "/evil.py")
    assert begun.plugin == "/evil.py"
