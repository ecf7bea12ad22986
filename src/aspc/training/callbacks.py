"""Callbacks: user code that runs when training starts and ends, and after chunks, evaluations and checkpoints.

    class PrintLoss(aspc.Callback):
        def on_chunk(self, event):
            print(event.step, [run.metrics["critic_loss"] for run in event.runs])

    aspc.train("maze2d-umaze", callbacks=[PrintLoss()])

The progress line and the loggers are callbacks too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from aspc.errors import AspcError

if TYPE_CHECKING:
    from jaxtyping import PyTree

    from aspc.policy import Policy

Status = Literal["training", "finished", "stopped", "interrupted", "failed"]


class RunSnapshot:
    """One run at one step, for a callback. Runs with several seeds have one snapshot per seed.

    Attributes:
        name: The name of the run in its folder, such as "seed0".
        dataset: The name of the run's dataset.
        seed: The run's seed.
        hyperparameters: Hyperparameters by dotted name.
        metrics: The latest metrics, averaged over a chunk; `valid_*` are losses on held-out episodes. Empty before the
            first chunk.
        evaluation: The latest evaluation: `score_mean`, `return_mean`, `success_rate`, … (NaN if unknown). Empty before
            the first evaluation.
    """

    def __init__(
        self,
        name: str,
        dataset: str,
        seed: int,
        hyperparameters: Mapping[str, Any],
        metrics: Mapping[str, float],
        evaluation: Mapping[str, float],
        copy_policy: Callable[[], Policy] | None = None,
        copy_state: Callable[[], PyTree] | None = None,
    ) -> None:
        self.name, self.dataset, self.seed, self.hyperparameters = name, dataset, seed, hyperparameters
        self.metrics, self.evaluation = metrics, evaluation
        self._copy_policy, self._copy_state = copy_policy, copy_state

    def policy(self) -> Policy:
        """Return the policy at the event's step. It remains valid after the callback returns.

        Raises:
            AspcError: The event has no policy (`on_start`, or the end of a failed run), or the callback has returned.
        """
        if self._copy_policy is None:
            raise AspcError("This event has no policy. Call policy() in on_chunk, on_evaluation or on_checkpoint.")
        return self._copy_policy()

    def state(self) -> PyTree:
        """Return a copy of the algorithm's state at the event's step, as read-only NumPy arrays.

        The arrays remain valid after the callback returns.

        Raises:
            AspcError: The event has no state (in the same cases as for `policy`, and in `on_evaluation`, because
                training may have advanced by then), or the callback has returned.
        """
        if self._copy_state is None:
            raise AspcError("This event has no state. Call state() in on_chunk or on_checkpoint.")
        return self._copy_state()

    def expire(self) -> None:
        """Detach the snapshot from the states of the runs, whose memory the next chunk reuses."""
        self._copy_policy = self._copy_state = None


@dataclass(frozen=True)
class TrainingEvent:
    """The runs of a folder at one step, and a way to stop them."""

    path: Path
    """The folder of the run."""
    algo: str
    """The name of the algorithm."""
    started: str
    """The start time of the run, in ISO format."""
    first_step: int
    """The step from which training started or continued."""
    last_step: int
    """The requested last step."""
    step: int
    """The step of the event."""
    runs: tuple[RunSnapshot, ...]
    """All runs that have not diverged."""
    status: Status = "training"
    """The outcome of training, set in `on_end`."""
    _request_stop: Callable[[str], None] | None = field(default=None, repr=False)

    def stop(self, reason: str) -> None:
        """Stop training after this chunk.

        The run ends normally, with exit code 0: it saves a checkpoint, evaluates and writes its policies, and
        result.json records the reason under "stopped". If the run is resumed, it trains the remaining steps.
        """
        if self._request_stop is not None:
            self._request_stop(reason)


class Callback:
    """Base class of callbacks. Override the methods that you need; the others do nothing.

    Methods run between chunks of `log_every` steps, and training waits for them. An exception ends the run: the
    error message names the callback and the line, and a checkpoint is saved, so that the run can be resumed.
    """

    def on_start(self, event: TrainingEvent) -> None:
        """Handle the start or the resumption of training."""

    def on_chunk(self, event: TrainingEvent) -> None:
        """Handle the metrics of a chunk (`log_every` steps) after they have been written."""

    def on_evaluation(self, event: TrainingEvent) -> None:
        """Handle the evaluations of all runs at a step, after they have been written.

        On an accelerator, training may have advanced by then.
        """

    def on_checkpoint(self, event: TrainingEvent) -> None:
        """Handle the checkpoint of a step. Its files can appear a moment later."""

    def on_end(self, event: TrainingEvent) -> None:
        """Handle the end of training: called exactly once, also after a failure or an interrupt.

        `TrainingEvent.status` states the outcome.
        """


def check_callbacks(callbacks: Iterable[Callback]) -> list[Callback]:
    """Return callbacks as a list.

    Raises:
        AspcError: One of them is not a `Callback`.
    """
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Iterable):
        raise AspcError("callbacks must be a list, as in callbacks=[MyCallback()].")
    found = list(callbacks)
    for callback in found:
        if isinstance(callback, type):
            raise AspcError(f"callbacks must be objects, not classes. Use {callback.__name__}().")
        if not isinstance(callback, Callback):
            raise AspcError(f"{type(callback).__name__} is not a callback. Derive it from aspc.Callback.")
    return found
