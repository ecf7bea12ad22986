"""Detection of runs whose metrics or state became NaN or infinite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from aspc.errors import AspcError


class Diverged(AspcError):
    """A metric or a parameter became NaN or infinite."""


class Failure(NamedTuple):
    """The step at which a run diverged, and a message for the user."""

    step: int
    message: str


class DivergenceGuard:
    """A record of the runs of a fleet that have diverged.

    Args:
        names: The name of each run in status.json.
        titles: The name of each run in messages.
        on_failure: Called for each run that diverges, before it is recorded. It can raise an exception to end training.
    """

    def __init__(
        self, names: Sequence[str], titles: Sequence[str], on_failure: Callable[[Failure], None] = lambda failure: None
    ) -> None:
        self.names, self.titles, self.on_failure = list(names), list(titles), on_failure
        self.failures: dict[int, Failure] = {}

    @property
    def active_runs(self) -> list[int]:
        """The indices of the runs that have not diverged."""
        return [run for run in range(len(self.names)) if run not in self.failures]

    def check_metrics(self, metrics: Mapping[str, np.ndarray], first_step: int, steps_per_sample: int) -> bool:
        """Record the runs with a non-finite metric, earliest divergence first; return whether any were added.

        Args:
            metrics: Samples of each metric, [runs, samples].
            first_step: The step before the first sample.
            steps_per_sample: Steps between samples.
        """
        found: dict[int, tuple[int, str, float]] = {}  # by run: its first non-finite sample, the metric, the value
        for name, samples in metrics.items():
            for run in np.flatnonzero(~np.isfinite(samples).all(1)).tolist():
                first = int(np.flatnonzero(~np.isfinite(samples[run]))[0])
                if run not in self.failures and (run not in found or first < found[run][0]):
                    found[run] = (first, name, samples[run, first])
        for run, (first, name, value) in sorted(found.items(), key=lambda item: item[1][0]):
            self._record(run, first_step + (first + 1) * steps_per_sample, f"{name} became {value}")
        return bool(found)

    def check_state(self, step: int, state: PyTree) -> bool:
        """Record the runs with a non-finite leaf in their state; return whether any were added.

        Metrics are computed before an update, so they show a divergence one update too late for a checkpoint.
        """
        before = len(self.failures)
        for path, values in jax.tree_util.tree_leaves_with_path(state):
            is_finite = np.isfinite(values).reshape(len(values), -1).all(1)
            for run in self.active_runs if not is_finite.all() else ():
                if not is_finite[run]:
                    self._record(run, step, f"{jax.tree_util.keystr(path)[1:]} became NaN or infinite")
        return len(self.failures) > before

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Return the failures by run name, for status.json."""
        return {self.names[run]: failure._asdict() for run, failure in self.failures.items()}

    def restore(self, failures: Mapping[str, Mapping[str, Any]], up_to_step: int) -> None:
        """Restore failures saved by `to_json`, up to a step. Later failures recur when training repeats their steps."""
        restored = {self.names.index(name): Failure(**failure) for name, failure in failures.items()}
        self.failures = {run: failure for run, failure in restored.items() if failure.step <= up_to_step}

    def _record(self, run: int, step: int, problem: str) -> None:
        failure = Failure(step, f"{problem} at step {step:,} ({self.titles[run]}).")
        self.on_failure(failure)
        self.failures[run] = failure
