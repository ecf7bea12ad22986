"""The progress line: a callback that prints notes and shows the progress of training."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from aspc import plugins
from aspc.training.callbacks import Callback, TrainingEvent
from aspc.training.prepared_data import warnings_of
from aspc.training.training_plan import Outcome, TrainingPlan
from aspc.ui import Progress


class ProgressLine(Callback):
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

    def on_start(self, event: TrainingEvent) -> None:
        plan, options, first_step, last_step = self.plan, self.plan.options, event.first_step, event.last_step
        pairs = dict.fromkeys((run_spec.task, run_spec.algorithm) for run_spec in plan.run_specs)  # once for all seeds
        warnings = (text for task, algorithm in pairs for text in warnings_of(plan.tasks[task].data, algorithm))
        notes = (note for task in plan.tasks for note in task.data.notes)
        for kind, texts in (("note", notes), ("warning", warnings)):
            for text in dict.fromkeys(texts):
                self.progress.print(f"{kind}: {text}")
        if first_step:
            self.progress.print(f"Continuing {plan.path} from step {first_step:,}.")
            if plugins.has_changed(plan.algo, plan.config.software.versions):
                self.progress.print("warning: previous training used another version of the plugin.")
        if last_step > options.steps:
            self.progress.print(
                f"Training up to {last_step:,} steps. Schedules that decay keep the original horizon of "
                f"{options.horizon or options.steps:,} steps."
            )

    def on_chunk(self, event: TrainingEvent) -> None:
        scales = [run.metrics["scale"] for run in event.runs if "scale" in run.metrics]
        fields = {self.scale_name: f"{np.mean(scales):.3g}"} if scales else {}
        self.progress.show(event.step, **fields)
        if self.on_progress is not None:
            self.on_progress(event.step, self.progress.total)

    def on_evaluation(self, event: TrainingEvent) -> None:
        name = "return" if math.isnan(event.runs[-1].evaluation["score_mean"]) else "score"
        mean = np.mean([run.evaluation[f"{name}_mean"] for run in event.runs])
        self.progress.show(event.step, **{name: f"{mean:.1f}"})

    def print_evaluation_cost(self, outcome: Outcome, workers: int) -> None:
        """Report whether training on an accelerator waited for evaluations."""
        if outcome.min_free_eval_every is None:
            return
        eval_every = self.plan.options.eval_every
        does_wait = outcome.min_free_eval_every > eval_every
        self.progress.print(
            f"Evaluating all runs takes {outcome.evaluation_seconds:.1f} s on {workers} workers, as long as "
            f"{outcome.min_free_eval_every:,} training steps. With evaluations every {eval_every:,} steps, "
            f"training {'waits' if does_wait else 'does not wait'} for them."
        )
