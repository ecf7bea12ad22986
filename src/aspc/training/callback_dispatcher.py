"""Dispatch training events to callbacks, and handle their failures and stop requests."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Self

from aspc.errors import AspcError, first_line
from aspc.interrupts import Interrupted
from aspc.policy import Policy
from aspc.training.callbacks import Callback, RunSnapshot, Status, TrainingEvent
from aspc.training.hyperparameters import flat_values
from aspc.training.policy_export import RunStates
from aspc.training.run_folder import Row, RunRow
from aspc.training.training_plan import TrainingPlan


class CallbackDispatcher:
    """A dispatcher of events to callbacks. Use it in a `with` block, which calls `on_end` if `end` was not called.

    Errors in the library's callbacks are raised. An error in a user-supplied callback is stored in `failure`, so that
    the trainer can save a checkpoint first; after that, only `on_end` of the user-supplied callbacks is called.

    Args:
        plan: The training plan.
        first_step: The step from which training continues.
        last_step: The step to train up to.
        active_runs: Function that returns the indices of the runs that have not diverged.
        own: The library's callbacks.
        users: User-supplied callbacks, called after the library's.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        first_step: int,
        last_step: int,
        active_runs: Callable[[], Sequence[int]],
        own: Sequence[Callback],
        users: Sequence[Callback],
    ) -> None:
        self.plan, self.first_step, self.last_step = plan, first_step, last_step
        self.active_runs, self.own, self.users = active_runs, list(own), list(users)
        self.stop_reason: str | None = None
        """The reason given by the first callback that requested a stop."""
        self.failure: AspcError | None = None
        """The first failure of a user-supplied callback."""
        self._hyperparameters = [flat_values(run_spec.algorithm) for run_spec in plan.run_specs]
        self._metrics: dict[int, Row] = {}
        self._evaluations: dict[int, Row] = {}
        self._evaluated: dict[tuple[int, int], Policy] = {}  # policies by (step, run), until their evaluations arrive
        self._partial: list[RunRow] = []  # rows of steps with pending evaluations
        self._step = first_step
        self._started: list[Callback] = []  # started, but not ended

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end("interrupted" if kind is not None and issubclass(kind, Interrupted | KeyboardInterrupt) else "failed")

    @property
    def should_stop(self) -> bool:
        """True if a callback has failed or requested a stop."""
        return self.failure is not None or self.stop_reason is not None

    def start(self) -> None:
        """Call `on_start`.

        Raises:
            AspcError: A user-supplied callback failed.
        """
        for callback in (*self.own, *self.users):
            self._call([callback], "on_start", self._event(self.first_step))
            self.raise_failure()
            self._started.append(callback)

    def chunk(self, step: int, rows: Iterable[RunRow], states: RunStates | None) -> None:
        """Call `on_chunk` with the metrics of the active runs."""
        self._step = step
        self._metrics |= {run: self._without_labels(run, values) for run, values in rows}
        self._call(self._started, "on_chunk", self._event(step, states))

    def expect_evaluation(self, step: int, run: int, policy: Policy) -> None:
        """Keep the policy of a submitted evaluation for the `on_evaluation` event."""
        self._evaluated[step, run] = policy

    def evaluation(self, rows: Iterable[RunRow], has_pending: Callable[[int], bool]) -> None:
        """Call `on_evaluation` once per step, when the rows of all its runs have arrived.

        Args:
            rows: New rows, in the order of their steps.
            has_pending: Function that returns whether an evaluation up to a step is still pending.
        """
        self._partial += rows
        for step in dict.fromkeys(int(row.values["step"]) for row in self._partial):
            if has_pending(step):
                return
            arrived = [row for row in self._partial if row.values["step"] == step]
            self._partial = self._partial[len(arrived) :]
            self._evaluations |= {run: self._without_labels(run, values) for run, values in arrived}
            policies = {row.run: self._evaluated.pop((step, row.run)) for row in arrived}
            self._call(self._started, "on_evaluation", self._event(step, policies=policies))

    def checkpoint(self, step: int, states: RunStates) -> None:
        """Call `on_checkpoint`."""
        self._call(self._started, "on_checkpoint", self._event(step, states))

    def end(self, status: Status, states: RunStates | None = None) -> None:
        """Call `on_end` once for every started callback.

        Raises:
            AspcError: A user-supplied callback failed, although training itself succeeded.
        """
        started, self._started = self._started, []
        errors: list[Exception] = []
        for callback in started:
            try:
                self._call([callback], "on_end", self._event(self._step, states, status=status))
            except Exception as error:  # call `on_end` of the other callbacks first
                errors.append(error)
        if errors:
            raise errors[0]
        if status in ("finished", "stopped"):  # otherwise another failure is being reported
            self.raise_failure()

    def raise_failure(self) -> None:
        """Raise the failure of a user-supplied callback, if any."""
        if self.failure is not None:
            raise self.failure

    def _event(
        self,
        step: int,
        states: RunStates | None = None,
        policies: Mapping[int, Policy] | None = None,
        status: Status = "training",
    ) -> TrainingEvent:
        plan = self.plan
        snapshots = []
        for run in self.active_runs() if policies is None else policies:
            run_spec = plan.run_specs[run]
            copy_policy = copy_state = None
            if states is not None:
                copy_policy, copy_state = partial(states.policy, run), partial(states.state, run)
            elif policies is not None:
                copy_policy = partial(policies.__getitem__, run)
            snapshots.append(
                RunSnapshot(
                    run_spec.name,
                    plan.tasks[run_spec.task].data.name,
                    run_spec.seed,
                    self._hyperparameters[run],
                    dict(self._metrics.get(run, {})),
                    dict(self._evaluations.get(run, {})),
                    copy_policy,
                    copy_state,
                )
            )
        return TrainingEvent(
            plan.path,
            plan.algo,
            plan.config.started,
            self.first_step,
            self.last_step,
            step,
            tuple(snapshots),
            status,
            self._request_stop,
        )

    def _call(self, callbacks: Iterable[Callback], method: str, event: TrainingEvent) -> None:
        for callback in callbacks:
            if callback in self.own:
                getattr(callback, method)(event)
            elif method == "on_end" or (self.failure is None and event.runs):  # no event if all runs have diverged
                try:
                    getattr(callback, method)(event)
                except Exception as error:  # user code can raise any exception
                    failure = AspcError(self._describe_failure(callback, method, event.step, error))
                    failure.__cause__ = error
                    self.failure = self.failure or failure
        for run in event.runs:
            run.expire()

    def _request_stop(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or str(reason) or "a callback requested it"

    def _without_labels(self, run: int, values: Row) -> Row:
        labels = ("step", *self.plan.run_specs[run].labels)
        return {name: float(value) for name, value in values.items() if name not in labels}

    def _describe_failure(self, callback: Callback, method: str, step: int, error: Exception) -> str:
        """Return a message that names the callback, the line that failed and the remedy."""
        source = getattr(getattr(type(callback), method), "__code__", None)
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if source is not None and frame.filename == source.co_filename]
        location = f" ({source.co_filename}, line {lines[-1]})" if source is not None and lines else ""
        problem = first_line(error) if isinstance(error, AspcError) else f"{type(error).__name__}: {first_line(error)}"
        is_new = method == "on_start" and self.first_step == 0  # the new folder is emptied again
        remedy = "Fix it, then try again." if is_new else f"Fix it, then continue with: {self.plan.resume_with}"
        return f"{type(callback).__name__}.{method} failed at step {step:,}{location}: {problem}. {remedy}"
