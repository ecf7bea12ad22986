"""`aspc bench` on this machine: kills, signals, crashes and continuation."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from result_assertions import assert_each_run_once, assert_same_results

from aspc.data import writers
from aspc.errors import AspcError, ExternalFailure
from aspc.interrupts import Interrupted, Terminated
from aspc.lab import results, suites
from aspc.lab.commands.bench import main as bench
from aspc.lab.commands.bench_run import graceful_shutdown
from aspc.lab.engines import processes
from aspc.lab.engines.interface import FinishedGroup
from aspc.lab.engines.local import LocalEngine
from aspc.lab.engines.processes import ProcessesEngine
from aspc.lab.group_training import capture_failure, record_failure
from aspc.lab.groups import GROUP, RunGroup, group_path, make_groups, write_group
from aspc.lab.plan import make_plan
from aspc.lab.scheduler import Scheduler
from aspc.policy import Policy
from aspc.training import evaluation
from aspc.training.checkpoints import CheckpointStore
from aspc.training.trainer import Trainer
from tiny import make_dataset
from waiting import DEADLINE_SECONDS, wait_until

Start = Callable[..., "subprocess.Popen[str]"]
GROUPS_OF_TWO = ("--group-size", "2")


def kill_when(process: subprocess.Popen[str], condition: Callable[[], bool]) -> bool:
    """Send SIGKILL once a condition holds; return False if the process ended before."""
    if not wait_until(condition, process):
        process.stdout.close()
        return False
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return True


def finish(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, output


def test_a_killed_bench_continues_to_the_same_results(start: Start, uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "bench"
    words = ("tiny", "--out", out, *GROUPS_OF_TWO)
    # Once during the first group, after a checkpoint, and once after two groups.
    assert kill_when(start(*words), lambda: any(out.glob("groups/*/fleet-*/checkpoints/[0-9]*")))
    assert kill_when(start(*words), lambda: len(list((out / "runs").glob("[!.]*"))) >= 2)
    finish(start(*words))
    assert_same_results(out, uninterrupted)
    assert_each_run_once(out)


def test_parallel_groups_give_the_same_results_and_end_with_their_parent(
    start: Start, uninterrupted: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bench"
    words = ("tiny", "--out", out, "--parallel-groups", "2", *GROUPS_OF_TWO)

    def running_groups() -> list[Path]:
        return [lock.parent for lock in out.glob("groups/*/.group.lock") if list(lock.parent.glob("fleet-*/metrics*"))]

    assert kill_when(start(*words), lambda: len(running_groups()) >= 2)
    for folder in running_groups():
        with FileLock(folder / ".group.lock", timeout=DEADLINE_SECONDS):  # its process has ended
            pass
    finish(start(*words))
    assert_same_results(out, uninterrupted)
    assert_each_run_once(out)


def test_a_crashed_process_fails_its_group_and_a_stopped_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first group has a file that cannot be opened; the second is stopped by `close`."""
    monkeypatch.setattr(processes, "STOP_SECONDS", 600)
    plan = make_plan([suites.get("tiny_shared")], steps=10_000_000)
    crashing, stopped = (replace(make_groups(plan, plan.runs, 1, {})[0], attempt=i) for i in range(2))
    engine = ProcessesEngine(tmp_path, parallel_groups=2)
    for group in (crashing, stopped):
        write_group(tmp_path, group)
        if group is crashing:
            (group_path(tmp_path, group.group_id) / GROUP).unlink()
            (group_path(tmp_path, group.group_id) / GROUP).symlink_to(GROUP)  # a loop
        engine.start(group)
    assert not engine.has_room(crashing)
    (ended,) = engine.wait(600)
    assert ended.group == crashing
    assert "ended with exit code 1 and no results" in str(ended.error)
    assert engine.has_room(crashing)
    timed = replace(crashing, members=tuple(replace(m, run=replace(m.run, alone=True)) for m in crashing.members))
    assert not engine.has_room(timed)
    checkpoints = group_path(tmp_path, stopped.group_id)
    wait_until(lambda: list(checkpoints.glob("fleet-*/checkpoints/[0-9]*")) or engine.wait(0.1))
    assert engine.wait(0) == []
    process = engine._jobs[stopped.group_id][1]
    engine.close()
    assert process.returncode == 128 + signal.SIGTERM


def test_errors_of_a_process_stop_the_bench(tmp_path: Path) -> None:
    plan = make_plan([suites.get("tiny_shared")])
    (group,) = make_groups(plan, plan.runs, 2, {})
    write_group(tmp_path, group)
    (group_path(tmp_path, group.group_id) / GROUP).write_text("{}")
    engine = ProcessesEngine(tmp_path, parallel_groups=1)
    engine.start(group)
    with pytest.raises(AspcError, match=r"group\.json is damaged; remove its folder"):
        engine.wait(600)
    engine.start(group)
    engine._jobs[group.group_id][1].kill()
    with pytest.raises(AspcError, match=r"killed by SIGKILL .*Run the same command again"):
        engine.wait(600)
    engine.close()


def test_the_next_attempt_continues_after_a_failed_evaluation(
    tmp_path: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = evaluation.WorkerProcess.call

    def fail(
        worker: evaluation.WorkerProcess, job: tuple[str, Policy, list[int]], timeout: float
    ) -> list[dict[str, float]]:
        if job[1].info["step"] >= 3000:
            raise evaluation.WorkerFailed("an evaluation worker died")
        return usual(worker, job, timeout)

    monkeypatch.setattr(evaluation.WorkerProcess, "call", fail)
    words = ["tiny", "--only", "BC", "maze2d-umaze?steps=2000", "--out", str(tmp_path), "--quiet", *GROUPS_OF_TWO]
    assert bench(words) == 1
    (unfinished,) = tmp_path.glob("groups/*/fleet-*")
    assert list(unfinished.glob("checkpoints/[0-9]*"))
    started = json.loads((unfinished / "config.json").read_text())["started"]
    monkeypatch.setattr(evaluation.WorkerProcess, "call", usual)
    assert bench([*words, "--retry-failed"]) == 0
    (finished,) = tmp_path.glob("groups/*/fleet-*")
    assert finished.parent != unfinished.parent
    assert json.loads((finished / "config.json").read_text())["started"] == started
    assert not (finished / "checkpoints").exists()
    expected = results.read(uninterrupted).runs.set_index("run_id")["score_last"]
    found = results.read(tmp_path).runs.set_index("run_id")["score_last"]
    assert len(found) == 2
    assert (found == expected[found.index]).all()


def test_replaced_data_of_an_interrupted_run_stops_the_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Trainer._process_chunk

    def signaled(trainer: Trainer, chunk: Any) -> None:
        usual(trainer, chunk)
        signal.raise_signal(signal.SIGTERM)

    folder = tmp_path / "data"
    folder.mkdir()
    file = folder / "mine.npz"
    writers.write_npz(file, writers.dataset_arrays(make_dataset()))
    words = ["tiny_files", "--data", str(folder), "--steps", "20000", "--out", str(tmp_path), "--quiet"]
    monkeypatch.setattr(Trainer, "_process_chunk", signaled)
    with pytest.raises(Interrupted):
        bench(words)
    monkeypatch.setattr(Trainer, "_process_chunk", usual)
    checkpoints = sorted(tmp_path.glob("groups/*/fleet-*/checkpoints/[0-9]*"))
    assert checkpoints
    good = file.read_bytes()
    writers.write_npz(file, writers.dataset_arrays(make_dataset(seed=1)))
    with pytest.raises(ExternalFailure, match=r"mine differs from the data that .* was trained on"):
        bench(words)
    assert sorted(tmp_path.glob("groups/*/fleet-*/checkpoints/[0-9]*")) == checkpoints
    file.write_bytes(good)
    assert bench(words) == 0


class InterruptedEngine:
    """An engine that is interrupted while it waits, and whose groups finish when it is closed."""

    def __init__(self, bench: Path, interruption: BaseException) -> None:
        self.bench, self.interruption, self.groups = bench, interruption, list[RunGroup]()

    def has_room(self, group: RunGroup) -> bool:
        return not self.groups

    def start(self, group: RunGroup) -> None:
        self.groups.append(group)

    def wait(self, seconds: float) -> list[FinishedGroup]:
        raise self.interruption

    def close(self) -> None:
        for group in self.groups:
            record_failure(self.bench, group, "an error")


@pytest.mark.parametrize("interruption", [Interrupted("Stopped.", signal.SIGTERM), Terminated()])
def test_groups_that_finish_during_a_stop_are_recorded(tmp_path: Path, interruption: BaseException) -> None:
    plan = make_plan([suites.get("tiny_shared")])
    groups = make_groups(plan, plan.runs, 2, {})
    scheduler = Scheduler(tmp_path, plan, groups, {}, InterruptedEngine(tmp_path, interruption), quiet=True)
    with pytest.raises(Interrupted, match="Run the same command again"):
        scheduler.run()
    assert set(scheduler.recorded) == set(plan.runs)
    assert scheduler.running == {}


def test_a_signal_is_not_a_failure_of_the_interrupted_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Any exception of Orbax is reported as a damaged checkpoint, but not a signal."""
    import orbax.checkpoint

    def signaled(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(orbax.checkpoint, "CheckpointManager", signaled)
    with pytest.raises(Interrupted, match="Run the same command again") as interruption, graceful_shutdown():
        capture_failure(partial(CheckpointStore, tmp_path / "checkpoints"))
    assert interruption.value.exit_code == 143


def test_a_signal_in_the_last_chunk_stops_before_the_next_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = Trainer._save_policies

    def signaled(*arguments: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        saved(*arguments)

    monkeypatch.setattr(Trainer, "_save_policies", signaled)
    plan = make_plan([suites.get("tiny_shared")], steps=500)
    groups = make_groups(plan, plan.runs, 1, {})
    assert len(groups) == 2
    scheduler = Scheduler(tmp_path, plan, groups, {}, LocalEngine(tmp_path, quiet=True), quiet=True)
    with pytest.raises(Interrupted, match="Run the same command again") as interruption:
        scheduler.run()
    assert interruption.value.exit_code == 143
    assert len(scheduler.recorded) == 1  # the finished group is recorded
    assert {run.status for run in scheduler.recorded.values()} == {"done"}


def test_ctrl_c_explains_how_to_continue() -> None:
    with pytest.raises(Interrupted, match="Run the same command again") as interruption, graceful_shutdown():
        raise KeyboardInterrupt
    assert interruption.value.exit_code == 130


@pytest.mark.slow
def test_kills_at_random_moments_change_nothing(start: Start, uninterrupted: Path, tmp_path: Path) -> None:
    out, rng = tmp_path / "bench", random.Random(0)
    words = ("tiny", "--out", out, *GROUPS_OF_TWO)
    kills = 0
    while kills < 10:
        process, kill_time = start(*words), time.monotonic() + rng.uniform(0.5, 15)
        if not kill_when(process, lambda end=kill_time: time.monotonic() > end):
            # It had finished: start over, to reach ten kills.
            assert_same_results(out, uninterrupted)
            out = tmp_path / f"bench{kills}"
            words = ("tiny", "--out", out, *GROUPS_OF_TWO)
            continue
        kills += 1
    finish(start(*words))
    assert_same_results(out, uninterrupted)
    assert_each_run_once(out)


@pytest.mark.slow
def test_a_budget_stops_a_run_and_the_next_one_continues(tmp_path: Path, capsys) -> None:
    words = ["tiny_shared", "--steps", "60000", "--out", str(tmp_path), "--quiet"]
    budgets = 0
    while bench([*words, "--budget", "0.1"]) == 0 and "left" in capsys.readouterr().out:
        budgets += 1
        assert budgets < 50
    assert budgets >= 1
    assert (results.read(tmp_path).runs["status"] == "done").all()
    assert_each_run_once(tmp_path)


def test_sigterm_saves_a_checkpoint_and_prints_a_message(start: Start, tmp_path: Path) -> None:
    process = start("tiny_shared", "--steps", "10000000", "--eval-every", "1000000", "--out", tmp_path)
    assert wait_until(lambda: list(tmp_path.glob("groups/*/fleet-*/checkpoints/[0-9]*")), process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 128 + signal.SIGTERM, output
    assert "Traceback" not in output
    assert "Stopped. Run the same command again to continue." in output
