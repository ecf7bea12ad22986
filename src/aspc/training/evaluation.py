"""Evaluation of policies: rollouts in worker processes while training continues."""

from __future__ import annotations

import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from aspc.errors import AspcError
from aspc.policy import Policy
from aspc.training.rollout_worker import Episode, receive, rollouts, send
from aspc.training.run_folder import Row, RowFile, RunRow

EnvFactory = Callable[[], Any]


@dataclass(frozen=True)
class Evaluation:
    """The episodes of one policy, one entry per episode."""

    returns: np.ndarray
    lengths: np.ndarray
    successes: np.ndarray  # NaN if the environment does not report success

    @classmethod
    def from_episodes(cls, episodes: Sequence[Episode]) -> Evaluation:
        return cls(
            *(np.asarray([episode[key] for episode in episodes], float) for key in ("return", "length", "success"))
        )

    def to_row(self, normalize: Callable[[float], float | None]) -> Row:
        """Return the columns of `evaluations.csv`; scores are NaN if `normalize` returns None."""
        scores = np.asarray([s if (s := normalize(r)) is not None else np.nan for r in self.returns])
        has_success = not np.isnan(self.successes).all()
        return {
            "return_mean": self.returns.mean(),
            "return_std": self.returns.std(),
            "score_mean": scores.mean(),
            "score_std": scores.std(),
            "success_rate": float(np.nanmean(self.successes)) if has_success else np.nan,
            "length_mean": self.lengths.mean(),
            "episodes": len(self.returns),
        }


def episode_seeds(run_seed: int, step: int, episodes: int) -> list[int]:
    """Return the seeds of an evaluation's episodes: they differ between steps, but not between repetitions of a run."""
    seeds: list[int] = np.random.SeedSequence((run_seed, step)).generate_state(episodes).tolist()
    return seeds


@dataclass(frozen=True)
class PendingEvaluation:
    """An evaluation that may still be running; its episodes are divided into shares."""

    shares: list[Future[list[Episode]]]

    def done(self) -> bool:
        return all(share.done() for share in self.shares)

    def result(self) -> Evaluation:
        """Wait for all episodes.

        Raises:
            WorkerFailed: A worker failed twice.
            AspcError: The environment cannot be created.
        """
        return Evaluation.from_episodes([episode for share in self.shares for episode in share.result()])


class WorkerFailed(Exception):
    """A worker died or timed out, or the environment raised an error."""


class WorkerProcess:
    """A child process that rolls out policies. If it has died, the next job restarts it."""

    def __init__(self) -> None:
        self._start_lock, self._is_stopped = threading.Lock(), False
        self._start()

    def _start(self) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process)
        one_thread = {f"{lib}_NUM_THREADS": "1" for lib in ("OMP", "OPENBLAS", "MKL")}
        # The child must find the same modules, such as one that registers an environment. Without -P, a file in the
        # current folder would shadow a library of the same name.
        modules = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "aspc.training.rollout_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env={**os.environ, **one_thread, **modules},
            start_new_session=True,  # the parent handles Ctrl-C
        )

    def stop(self) -> None:
        """Kill the process permanently, even if another thread is waiting for its answer."""
        with self._start_lock:
            self._is_stopped = True
            self.process.kill()

    def close(self) -> None:
        """Kill the process and close its streams."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.log):
            with suppress(OSError):  # unsent data for a dead worker
                if stream is not None:
                    stream.close()

    def call(self, job: tuple[str, Policy, list[int]], timeout_seconds: float) -> list[Episode]:
        """Run one job: an environment's name, a policy and the seeds of the episodes.

        Raises:
            WorkerFailed: The process died, timed out or reported an error of the environment.
            AspcError: The environment cannot be created.
        """
        with self._start_lock:
            if self._is_stopped:
                raise WorkerFailed("the evaluation was stopped")
            if self.process.poll() is not None:
                self.close()
                self._start()
        has_timed_out = threading.Event()
        watchdog = threading.Timer(timeout_seconds, self._kill_late_job, [has_timed_out])
        watchdog.start()
        try:
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            send(self.process.stdin, job)
            kind, answer = receive(self.process.stdout)
        except (EOFError, OSError) as error:
            last_line = self._last_log_line()
            self.process.kill()
            self.process.wait()
            problem = f"took longer than {timeout_seconds:.0f} s" if has_timed_out.is_set() else "died"
            raise WorkerFailed(f"an evaluation worker {problem}{last_line}") from error
        finally:
            watchdog.cancel()
        if kind == "user error":
            raise AspcError(answer)
        if kind == "error":
            raise WorkerFailed(answer)
        episodes: list[Episode] = answer
        return episodes

    def _kill_late_job(self, has_timed_out: threading.Event) -> None:
        has_timed_out.set()  # before the kill, which the waiting thread can notice at once
        self.process.kill()

    def _last_log_line(self) -> str:
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return f" ({lines[-1]})" if lines else ""


def available_cores() -> int:
    """Return the number of cores that this process may use, which a container or taskset can limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Evaluator:
    """A pool of rollout workers for any environment.

    Args:
        env: The default environment: a name, or a function that creates it.
        workers: The number of workers. Default: one per available core.
        timeout_seconds: Time limit for up to ten episodes of one worker, extended in proportion for more.
    """

    def __init__(self, env: str | EnvFactory, workers: int | None = None, timeout_seconds: float = 600.0) -> None:
        self.env, self.timeout_seconds, self._closing = env, timeout_seconds, threading.Event()
        self.busy_seconds, self.episodes = 0.0, 0  # totals over all workers
        self._lock = threading.Lock()
        self.size = workers or available_cores()
        self._idle: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
        self._idle_envs: dict[EnvFactory, list[Any]] = {}
        self._workers: list[WorkerProcess] = []
        self._threads = ThreadPoolExecutor(self.size, thread_name_prefix="evaluation")
        if isinstance(env, str):
            self._workers = [WorkerProcess() for _ in range(self.size)]
            for worker in self._workers:
                self._idle.put(worker)

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *exception: object) -> None:
        # The event ends rollouts in the threads of this process; stopping the workers ends the threads that wait.
        self._closing.set()
        for worker in self._workers:
            worker.stop()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()
        for envs in self._idle_envs.values():
            for env in envs:
                with suppress(AttributeError):  # a user-supplied environment may lack close()
                    env.close()

    def evaluate(self, policy: Policy, seeds: Sequence[int], env: str | EnvFactory | None = None) -> PendingEvaluation:
        """Start one episode per seed, spread over the workers.

        Args:
            policy: The policy to roll out.
            seeds: The seed of each episode.
            env: The environment. Default: the evaluator's environment.
        """
        env = env or self.env
        if not isinstance(env, str):
            return PendingEvaluation([self._threads.submit(self._roll_out_in_thread, env, policy, list(seeds))])
        shares = [list(seeds[i :: self.size]) for i in range(self.size)]
        return PendingEvaluation(
            [self._threads.submit(self._roll_out_in_worker, env, policy, share) for share in shares if share]
        )

    def seconds_per_episode(self) -> float:
        """Return the mean time per episode so far, assuming that all workers are busy."""
        return self.busy_seconds / self.episodes / self.size

    def _roll_out_in_worker(self, env: str, policy: Policy, seeds: list[int]) -> list[Episode]:
        worker, timeout = self._idle.get(), self.timeout_seconds * max(len(seeds) / 10, 1)
        try:
            with self._count_episodes(len(seeds)):
                try:
                    return worker.call((env, policy, seeds), timeout)
                except WorkerFailed:
                    # Retry in a new process: a transient fault should not end a run.
                    return worker.call((env, policy, seeds), timeout)
        finally:
            self._idle.put(worker)

    def _roll_out_in_thread(self, make_env: EnvFactory, policy: Policy, seeds: list[int]) -> list[Episode]:
        """Roll out in the calling thread, since an environment factory cannot be sent to another process."""
        with self._count_episodes(len(seeds)), self._borrow_envs(make_env, len(seeds)) as envs:
            return rollouts("", policy, seeds, {"": envs}, should_stop=self._closing.is_set)

    @contextmanager
    def _borrow_envs(self, make_env: EnvFactory, count: int) -> Iterator[list[Any]]:
        """Yield environments that no other thread uses; they are reused, since creating one can be expensive."""
        with self._lock:
            idle = self._idle_envs.setdefault(make_env, [])
            envs = [idle.pop() for _ in range(min(count, len(idle)))]
        envs += [make_env() for _ in range(count - len(envs))]
        try:
            yield envs
        finally:
            with self._lock:
                idle += envs

    @contextmanager
    def _count_episodes(self, episodes: int) -> Iterator[None]:
        started = time.monotonic()
        yield
        with self._lock:
            self.busy_seconds += time.monotonic() - started
            self.episodes += episodes


class QueuedEvaluation(NamedTuple):
    """A submitted evaluation, and the data for converting its result to a row."""

    run: int
    labels: Row
    """The first columns of the row, including the step."""
    pending: PendingEvaluation
    normalize: Callable[[float], float | None]


class EvaluationQueue:
    """Submitted evaluations. Their rows are written to a table in the order of submission.

    Args:
        table: The table of the rows.
        on_rows: Called with new rows after they have been written.
        resume_with: The command that continues the run, for the message if an evaluation fails.
    """

    def __init__(self, table: RowFile, on_rows: Callable[[list[RunRow]], None], resume_with: str) -> None:
        self.table, self.on_rows, self.resume_with = table, on_rows, resume_with
        self.wait_seconds = 0.0
        self._queue: list[QueuedEvaluation] = []

    def submit(self, evaluation: QueuedEvaluation) -> None:
        self._queue.append(evaluation)

    def has_pending(self, up_to_step: int) -> bool:
        """Return whether any evaluation up to and including this step has an unwritten row."""
        return any(evaluation.labels["step"] <= up_to_step for evaluation in self._queue)

    def collect(self, wait: bool, up_to_step: float = math.inf) -> None:
        """Write the rows of finished evaluations up to a step; if `wait`, wait for the unfinished evaluations first.

        Raises:
            AspcError: An evaluation failed.
        """
        started = time.monotonic()
        rows: list[RunRow] = []
        for evaluation in self._queue:
            if evaluation.labels["step"] > up_to_step or not (wait or evaluation.pending.done()):
                break
            try:
                row = evaluation.pending.result().to_row(evaluation.normalize)
            except WorkerFailed as failure:
                raise AspcError(
                    f"Evaluation at step {evaluation.labels['step']:,} failed twice: {failure}. "
                    f"Continue with: {self.resume_with}"
                ) from failure
            rows.append(RunRow(evaluation.run, {**evaluation.labels, **row}))
        self.wait_seconds += time.monotonic() - started
        self.table.append([row.values for row in rows])
        del self._queue[: len(rows)]  # only now, because a checkpoint waits for rows that are not yet on disk
        if rows:
            self.on_rows(rows)
