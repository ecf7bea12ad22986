"""Observers of training: the progress line and the loggers of each run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import numpy as np

from aspc import plugins
from aspc.training.hyperparameters import flat_values
from aspc.training.loggers import LoggedRun, Logger, open_loggers
from aspc.training.prepared_data import warnings_of
from aspc.training.run_folder import Row, RunRow
from aspc.training.training_plan import Outcome, RunSpec, TrainingPlan
from aspc.ui import Progress


class Callback(Protocol):
    """An observer of training."""

    def on_start(self, first_step: int, last_step: int) -> None:
        """Handle the start of training."""

    def on_metrics(self, step: int, rows: Sequence[RunRow]) -> None:
        """Handle the metrics of a chunk that ended at `step`, one row per active run, after they were written."""

    def on_evaluations(self, rows: Sequence[RunRow]) -> None:
        """Handle evaluations after they were written, which can be long after their step."""


class ProgressLine:
    """Print notes and warnings, and show the mean scale and score of the runs in the progress line.

    Args:
        progress: The progress line.
        plan: The training plan.
        on_progress: Called with the step and the total number of steps after each chunk.
    """

    def __init__(
        self, progress: Progress, plan: TrainingPlan, on_progress: Callable[[int, int], None] | None = None
    ) -> None:
        self.progress, self.plan, self.on_progress = progress, plan, on_progress
        self.scale_name: str = plan.config.scale_name or "scale"

    def on_start(self, first_step: int, last_step: int) -> None:
        plan, options = self.plan, self.plan.options
        pairs = dict.fromkeys((run_spec.task, run_spec.algorithm) for run_spec in plan.run_specs)  # once for all seeds
        warnings = (text for task, algorithm in pairs for text in warnings_of(plan.tasks[task].data, algorithm))
        notes = (note for task in plan.tasks for note in task.data.notes)
        for kind, texts in (("note", notes), ("warning", warnings)):
            for text in dict.fromkeys(texts):
                self.progress.print(f"{kind}: {text}")
        if first_step:
            self.progress.print(f"Continuing {plan.path} from step {first_step:,}.")
            if plugins.has_changed(plan.algo, plan.config.software.versions):
                self.progress.print("warning: another version of the plugin's code trained the steps so far.")
        if last_step > options.steps:
            self.progress.print(
                f"Training up to {last_step:,} steps. Schedules that decay keep the original horizon of "
                f"{options.horizon or options.steps:,} steps."
            )

    def on_metrics(self, step: int, rows: Sequence[RunRow]) -> None:
        fields = {}
        if rows and "scale" in rows[0].values:
            fields[self.scale_name] = f"{np.mean([row.values['scale'] for row in rows]):.3g}"
        self.progress.show(step, **fields)
        if self.on_progress is not None:
            self.on_progress(step, self.progress.total)

    def on_evaluations(self, rows: Sequence[RunRow]) -> None:
        latest = rows[-1].values
        name = "return" if math.isnan(latest["score_mean"]) else "score"
        means = [row.values[f"{name}_mean"] for row in rows if row.values["step"] == latest["step"]]
        self.progress.show(int(latest["step"]), **{name: f"{np.mean(means):.1f}"})

    def print_evaluation_cost(self, outcome: Outcome, workers: int) -> None:
        """Report whether training waited for evaluations on an accelerator."""
        if outcome.min_free_eval_every is None:
            return
        eval_every = self.plan.options.eval_every
        does_wait = outcome.min_free_eval_every > eval_every
        self.progress.print(
            f"Evaluating all runs takes {outcome.evaluation_seconds:.1f} s on {workers} workers, as long as "
            f"{outcome.min_free_eval_every:,} training steps. With an evaluation every {eval_every:,} steps, training "
            f"{'waits' if does_wait else 'does not wait'} for it."
        )


class RunLogging:
    """Send the rows of each run to its loggers; use it in a `with` block.

    Args:
        plan: The training plan.
        first_step: The step from which training continues.
    """

    def __init__(self, plan: TrainingPlan, first_step: int) -> None:
        self.plan = plan
        with ExitStack() as stack:
            self.loggers = [self._open(run_spec, first_step, stack) for run_spec in plan.run_specs]
            self._resources = stack.pop_all()

    def __enter__(self) -> RunLogging:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._resources.__exit__(*exception)

    def on_start(self, first_step: int, last_step: int) -> None:
        pass

    def on_metrics(self, step: int, rows: Sequence[RunRow]) -> None:
        for run, values in rows:
            hidden = ("step", *self.plan.run_specs[run].labels)
            self._log(run, "train", {name: value for name, value in values.items() if name not in hidden}, step)

    def on_evaluations(self, rows: Sequence[RunRow]) -> None:
        for run, values in rows:
            shown = {name: values[name] for name in ("score_mean", "return_mean", "success_rate")}
            self._log(run, "evaluation", shown, int(values["step"]))

    def _open(self, run_spec: RunSpec, first_step: int, stack: ExitStack) -> list[Logger]:
        settings = {
            "algo": self.plan.algo,
            "dataset": self.plan.tasks[run_spec.task].data.name,
            "seed": run_spec.seed,
            **flat_values(run_spec.algorithm),
        }
        run = LoggedRun(self.plan.path, run_spec.name, settings, self.plan.config.started, first_step)
        loggers = open_loggers(self.plan.options.tensorboard, self.plan.options.logger, run)
        for logger in loggers:
            stack.callback(logger.close)
        return loggers

    def _log(self, run: int, group: str, values: Row, step: int) -> None:
        known = {f"{group}/{name}": value for name, value in values.items() if not math.isnan(value)}
        for logger in self.loggers[run]:
            logger.log(known, step)
