"""The parts of the trainer, each alone: divergence guard, evaluation queue, checkpoint writer, callbacks, shutdown."""

from __future__ import annotations

import math
import os
import signal
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aspc.errors import AspcError
from aspc.interrupts import GracefulShutdown
from aspc.training import checkpoints as checkpoints_module
from aspc.training.callbacks import RunSnapshot, TrainingEvent
from aspc.training.checkpoints import CheckpointWriter
from aspc.training.divergence import DivergenceGuard, Failure
from aspc.training.evaluation import EvaluationQueue, PendingEvaluation, QueuedEvaluation, WorkerFailed
from aspc.training.loggers import LoggedRun, Logger
from aspc.training.progress_line import ProgressLine
from aspc.training.rollout_worker import Episode
from aspc.training.run_folder import RowFile, RunRow, read_rows
from aspc.ui import Progress

# ── divergence ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_guard_records_the_earliest_non_finite_metric() -> None:
    reported: list[Failure] = []
    guard = DivergenceGuard(["a", "b", "c"], ["run a", "run b", "run c"], reported.append)
    metrics = {
        "loss": np.array([[1.0, 2.0, np.nan], [1.0, 2.0, 3.0], [1.0, np.inf, 2.0]]),
        "q": np.array([[1.0, np.nan, 2.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]),
    }
    assert guard.check_metrics(metrics, first_step=100, steps_per_sample=20)
    assert reported == [
        Failure(140, "q became nan at step 140 (run a)."),
        Failure(140, "loss became inf at step 140 (run c)."),
    ]
    assert guard.active_runs == [1]
    assert not guard.check_metrics(metrics, first_step=200, steps_per_sample=20)


def test_guard_checks_the_state_of_each_run() -> None:
    guard = DivergenceGuard(["a", "b"], ["run a", "run b"])
    assert not guard.check_state(5, {"weight": np.zeros((2, 3))})
    assert guard.check_state(6, {"weight": np.array([[0.0], [np.inf]])})
    assert guard.failures[1].message == "'weight'] became NaN or infinite at step 6 (run b)."


def test_guard_restores_failures_up_to_a_step() -> None:
    guard = DivergenceGuard(["a", "b"], ["a", "b"])
    guard.failures = {0: Failure(10, "early"), 1: Failure(30, "late")}
    restored = DivergenceGuard(["a", "b"], ["a", "b"])
    restored.restore(guard.to_json(), up_to_step=20)
    assert restored.failures == {0: Failure(10, "early")}


def test_a_failure_that_ends_the_training_is_not_recorded() -> None:
    def end(failure: Failure) -> None:
        raise AspcError(failure.message)

    guard = DivergenceGuard(["a"], ["a"], end)
    with pytest.raises(AspcError, match="loss became nan at step 1"):
        guard.check_metrics({"loss": np.array([[np.nan]])}, 0, 1)
    assert guard.to_json() == {}


# ── evaluations and checkpoints ─────────────────────────────────────────────────────────────────────────────────────


class Queue:
    """An evaluation queue whose results the test provides."""

    def __init__(self, path: Path) -> None:
        self.seen: list[RunRow] = []
        self.path = path
        self.queue = EvaluationQueue(RowFile(path), self.seen.extend, "aspc train --resume run")

    def submit(self, step: int) -> Future[list[Episode]]:
        future: Future[list[Episode]] = Future()
        pending = PendingEvaluation([future])
        self.queue.submit(QueuedEvaluation(0, {"step": step, "seed": 0}, pending, lambda value: None))
        return future

    def steps(self) -> list[float]:
        return [row["step"] for row in read_rows(self.path)]


@pytest.fixture
def evaluations(tmp_path: Path) -> Queue:
    return Queue(tmp_path / "evaluations.csv")


EPISODES: list[Episode] = [
    {"return": 2.0, "length": 3.0, "success": 1.0},
    {"return": 4.0, "length": 5.0, "success": 0.0},
]


def test_rows_are_written_in_the_order_of_submission(evaluations: Queue) -> None:
    first, second = evaluations.submit(10), evaluations.submit(20)
    second.set_result(EPISODES)
    evaluations.queue.collect(wait=False)
    assert evaluations.steps() == []
    first.set_result(EPISODES)
    evaluations.queue.collect(wait=False)
    assert evaluations.steps() == [10, 20]
    assert [row.values["return_mean"] for row in evaluations.seen] == [3.0, 3.0]
    assert evaluations.seen[0].values["success_rate"] == 0.5
    assert math.isnan(evaluations.seen[0].values["score_mean"])


def test_the_queue_waits_up_to_a_step_only(evaluations: Queue) -> None:
    first, _ = evaluations.submit(10), evaluations.submit(20)
    threading.Timer(0.05, first.set_result, [EPISODES]).start()
    evaluations.queue.collect(wait=True, up_to_step=10)
    assert evaluations.steps() == [10]
    assert not evaluations.queue.has_pending(10)
    assert evaluations.queue.has_pending(20)
    assert evaluations.queue.wait_seconds > 0


def test_a_failed_evaluation_names_the_command_that_continues(evaluations: Queue) -> None:
    evaluations.submit(10).set_exception(WorkerFailed("it died"))
    with pytest.raises(AspcError, match=r"step 10 failed twice: it died\. Continue with: aspc train --resume run"):
        evaluations.queue.collect(wait=True)
    assert evaluations.queue.has_pending(10)


class Store:
    """Checkpoints in memory."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def save(self, step: int, state: Any) -> None:
        self.steps.append(step)


def make_writer(evaluations: Queue, every_steps: int = 0) -> tuple[CheckpointWriter, Store, list[str]]:
    store, events = Store(), list[str]()
    writer = CheckpointWriter(
        store,  # type: ignore[arg-type]
        evaluations.queue,
        every_steps,
        lambda step: events.append(f"checksums {step}"),
        lambda step, state: events.append("status"),
    )
    return writer, store, events


def test_a_checkpoint_waits_for_its_evaluations(evaluations: Queue) -> None:
    writer, store, events = make_writer(evaluations)
    future = evaluations.submit(10)
    writer.submit(10, {})
    writer.save_if_evaluated()
    assert store.steps == []
    future.set_result(EPISODES)
    writer.submit(20, {})  # collects the evaluation of the first one
    assert store.steps == [10]
    assert events == ["checksums 10", "status"]
    writer.save_if_evaluated()
    assert store.steps == [10, 20]


def test_a_pending_checkpoint_is_saved_before_a_failure(evaluations: Queue) -> None:
    writer, store, _ = make_writer(evaluations)
    evaluations.submit(10).set_result(EPISODES)
    writer.submit(10, {})
    writer.save_before_failure()
    assert store.steps == [10]
    evaluations.submit(20).set_exception(WorkerFailed("it died"))
    writer.submit(20, {})
    writer.save_before_failure()  # the first failure is the one to report
    assert store.steps == [10]


def test_checkpoints_are_due_by_steps_or_by_time(evaluations: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    by_steps, _, _ = make_writer(evaluations, every_steps=100)
    assert [by_steps.is_due(end - 40, end, force=False) for end in (40, 80, 120, 160, 200)] == [
        False,
        False,
        True,
        False,
        True,
    ]
    assert by_steps.is_due(0, 40, force=True)
    now = [0.0]
    monkeypatch.setattr(checkpoints_module.time, "monotonic", lambda: now[0])
    by_time, _, _ = make_writer(evaluations)
    due = []
    for now[0] in (30.0, 61.0, 90.0, 122.0):
        due.append(by_time.is_due(0, 1, force=False))
    assert due == [False, True, False, True]


# ── callbacks ───────────────────────────────────────────────────────────────────────────────────────────────────────


def snapshot(
    name: str = "seed0",
    seed: int = 0,
    metrics: dict[str, float] | None = None,
    evaluation: dict[str, float] | None = None,
) -> RunSnapshot:
    return RunSnapshot(name, "data", seed, {}, metrics or {}, evaluation or {})


def event(step: int, *runs: RunSnapshot, **changes: Any) -> TrainingEvent:
    return TrainingEvent(Path("run"), "bc", "now", 0, 100, step, runs, **changes)


def test_the_progress_line_shows_the_mean_scale_and_score() -> None:
    progress, steps = Progress(100, quiet=True), list[tuple[int, int]]()
    plan: Any = SimpleNamespace(config=SimpleNamespace(scale_name="beta"))
    line = ProgressLine(progress, plan, lambda step, total: steps.append((step, total)))
    line.on_chunk(event(40, snapshot(metrics={"scale": 1.0}), snapshot(metrics={"scale": 2.0})))
    line.on_evaluation(event(40, snapshot(evaluation={"score_mean": 10.0, "return_mean": 1.0})))
    assert progress.fields == {"beta": "1.5", "score": "10.0"}
    line.on_evaluation(event(40, snapshot(evaluation={"score_mean": math.nan, "return_mean": 1.0})))
    assert progress.fields["return"] == "1.0"
    assert steps == [(40, 100)]


class Recording(Logger):
    """Logs in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: dict[str, list[Any]] = {}

    def open_log(self, run: LoggedRun) -> list[Any]:
        if run.name == "broken":
            raise OSError("no space")
        return self.logged.setdefault(run.name, [])

    def write(self, log: list[Any], values: Any, step: int) -> None:
        log.append((dict(values), step))

    def close_log(self, log: list[Any]) -> None:
        log.append("closed")


def test_each_run_has_its_own_log() -> None:
    logger = Recording()
    logger.on_start(event(0, snapshot("one"), snapshot("two", seed=1)))
    logger.on_chunk(event(40, snapshot("one", metrics={"loss": 1.0, "q": math.nan})))
    evaluation = {"score_mean": 5.0, "return_mean": 1.0, "success_rate": math.nan}
    logger.on_evaluation(event(20, snapshot("two", seed=1, evaluation=evaluation)))
    logger.on_end(event(40))
    assert logger.logged["one"] == [({"train/loss": 1.0}, 40), "closed"]
    assert logger.logged["two"] == [({"evaluation/score_mean": 5.0, "evaluation/return_mean": 1.0}, 20), "closed"]


def test_open_logs_are_closed_if_another_cannot_be_opened() -> None:
    logger = Recording()
    with pytest.raises(OSError, match="no space"):
        logger.on_start(event(0, snapshot("one"), snapshot("broken")))
    assert logger.logged == {"one": ["closed"]}


# ── shutdown ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_signal_is_recorded_and_the_second_raises() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with GracefulShutdown() as shutdown:
        assert shutdown.signal_number is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert shutdown.signal_number == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


def test_signals_are_left_alone_in_other_threads() -> None:
    numbers: list[int | None] = []

    def work() -> None:
        with GracefulShutdown() as shutdown:
            numbers.append(shutdown.signal_number)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert numbers == [None]
