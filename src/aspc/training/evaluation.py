"""Rollouts of policies in worker processes, while training goes on."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from aspc.errors import AspcError
from aspc.policy import Policy
from aspc.training.rollout_worker import receive, rollouts, send

EnvFactory = Callable[[], Any]


@dataclass(frozen=True)
class Evaluation:
    """Episodes of one policy."""

    returns: np.ndarray
    lengths: np.ndarray
    successes: np.ndarray  # NaN where the environment does not say

    @classmethod
    def of(cls, episodes: Sequence[dict[str, float]]) -> Evaluation:
        return cls(*(np.asarray([e[k] for e in episodes], float) for k in ("return", "length", "success")))

    def row(self, normalise: Callable[[float], float | None]) -> dict[str, float]:
        """The columns of `evaluations.csv`. Scores are NaN where no reference scores are known."""
        scores = np.asarray([s if (s := normalise(r)) is not None else np.nan for r in self.returns])
        known = not np.isnan(self.successes).all()
        return {
            "return_mean": self.returns.mean(),
            "return_std": self.returns.std(),
            "score_mean": scores.mean(),
            "score_std": scores.std(),
            "success_rate": float(np.nanmean(self.successes)) if known else np.nan,
            "length_mean": self.lengths.mean(),
            "episodes": len(self.returns),
        }


def episode_seeds(run_seed: int, step: int, episodes: int) -> list[int]:
    """Seeds of the episodes of one evaluation: others at every step, the same in every repetition of the run."""
    return np.random.SeedSequence((run_seed, step)).generate_state(episodes).tolist()


@dataclass(frozen=True)
class PendingEvaluation:
    """An evaluation under way, in parts."""

    parts: list[Future]

    def done(self) -> bool:
        return all(part.done() for part in self.parts)

    def result(self) -> Evaluation:
        """Waits for it. Raises WorkerFailed, or AspcError where the environment cannot be made."""
        return Evaluation.of([episode for part in self.parts for episode in part.result()])


class WorkerFailed(Exception):
    """A worker died, hung, or met an error of the environment."""


class _Worker:
    """One child process; one that has died is started again by the next job, until the worker is ended."""

    def __init__(self) -> None:
        self._starting, self._ended = threading.Lock(), False
        self._start()

    def _start(self) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
        one_thread = {f"{lib}_NUM_THREADS": "1" for lib in ("OMP", "OPENBLAS", "MKL")}
        # The modules that we find, as one that registers an environment, and with -P no others: without it a file in
        # the folder where we are would come before a library of its name.
        modules = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "aspc.training.rollout_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env={**os.environ, **one_thread, **modules},
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )

    def end(self) -> None:
        """Kill it for good, whatever a job of it is doing in another thread."""
        with self._starting:
            self._ended = True
            self.process.kill()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.log):
            with contextlib.suppress(OSError):  # what was still to be sent to a dead worker
                if stream is not None:
                    stream.close()

    def call(self, job: tuple[str, Policy, list[int]], timeout: float) -> list[dict[str, float]]:
        """Run one job, in `timeout` seconds at most."""
        with self._starting:
            if self._ended:
                raise WorkerFailed("the evaluation was ended")
            if self.process.poll() is not None:
                self.close()
                self._start()
        late = threading.Event()
        alarm = threading.Timer(timeout, self._end_late_job, [late])
        alarm.start()
        try:
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            send(self.process.stdin, job)
            kind, answer = receive(self.process.stdout)
        except (EOFError, OSError) as error:
            said = self._last_words()
            self.process.kill()
            self.process.wait()
            what = f"took longer than {timeout:.0f} s" if late.is_set() else "died"
            raise WorkerFailed(f"an evaluation worker {what}{said}") from error
        finally:
            alarm.cancel()
        if kind == "user error":
            raise AspcError(answer)
        if kind == "error":
            raise WorkerFailed(answer)
        return answer

    def _end_late_job(self, late: threading.Event) -> None:
        late.set()  # first: the job may see the end of its process before this thread ends
        self.process.kill()

    def _last_words(self) -> str:
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return f" ({lines[-1]})" if lines else ""


def available_cores() -> int:
    """The cores this process may use (fewer than the machine's, in a container or under taskset)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Evaluator:
    """A pool of rollout workers, which can roll out in any environment. `evaluate` returns at once with a future."""

    def __init__(self, env: str | EnvFactory, workers: int | None = None, timeout: float = 600.0) -> None:
        """`timeout`: seconds that a worker has for its share of an evaluation, or for every ten episodes of it."""
        self.env, self.timeout, self._closing = env, timeout, threading.Event()
        self.busy_seconds, self.episodes = 0.0, 0  # of all workers together
        self._counting = threading.Lock()
        self.size = workers or available_cores()
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._made: dict[EnvFactory, list[Any]] = {}  # environments of somebody's function that are not in use
        self._workers: list[_Worker] = []
        self._threads = ThreadPoolExecutor(self.size, thread_name_prefix="evaluation")
        if isinstance(env, str):
            self._workers = [_Worker() for _ in range(self.size)]
            for worker in self._workers:
                self._idle.put(worker)

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *exception: object) -> None:
        # A thread that waits for a worker then ends at once, and so does one that rolls out itself.
        self._closing.set()
        for worker in self._workers:
            worker.end()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()
        for made in self._made.values():
            for env in made:
                getattr(env, "close", lambda: None)()

    def evaluate(self, policy: Policy, seeds: Sequence[int], env: str | EnvFactory | None = None) -> PendingEvaluation:
        """Roll the policy out once for each seed, spread over the workers; returns at once.

        `env` is another environment than the evaluator's own.
        """
        env = env or self.env
        if not isinstance(env, str):
            return PendingEvaluation([self._threads.submit(self._share_here, env, policy, list(seeds))])
        shares = [list(seeds[i :: self.size]) for i in range(self.size)]
        return PendingEvaluation([self._threads.submit(self._share, env, policy, share) for share in shares if share])

    def _share(self, env: str, policy: Policy, seeds: list[int]) -> list[dict[str, float]]:
        worker, timeout = self._idle.get(), self.timeout * max(len(seeds) / 10, 1)
        try:
            with self._counted(len(seeds)):
                try:
                    return worker.call((env, policy, seeds), timeout)
                except WorkerFailed:
                    # Once more on a fresh process: a passing fault should not cost a run.
                    return worker.call((env, policy, seeds), timeout)
        finally:
            self._idle.put(worker)

    def _share_here(self, make: EnvFactory, policy: Policy, seeds: list[int]) -> list[dict[str, float]]:
        """A Python function that makes the environment cannot be sent to another process: roll out in a thread."""
        with self._counted(len(seeds)), self._borrowed(make, len(seeds)) as envs:
            return rollouts("", policy, seeds, {"": envs}, stopped=self._closing.is_set)

    @contextlib.contextmanager
    def _borrowed(self, make: EnvFactory, count: int) -> Iterator[list[Any]]:
        """Environments that no other thread has, kept for the next evaluation: making one may be dear."""
        with self._counting:
            kept = self._made.setdefault(make, [])
            envs = [kept.pop() for _ in range(min(count, len(kept)))]
        envs += [make() for _ in range(count - len(envs))]
        try:
            yield envs
        finally:
            with self._counting:
                kept += envs

    @contextlib.contextmanager
    def _counted(self, episodes: int) -> Iterator[None]:
        began = time.monotonic()
        yield
        with self._counting:
            self.busy_seconds += time.monotonic() - began
            self.episodes += episodes
