"""The speed of training and the cost of evaluations, for result.json."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from aspc.training.evaluation import Evaluator
from aspc.training.training_plan import TrainingPlan


class Speed(NamedTuple):
    """Measurements of training; see the fields of `Outcome`."""

    steps_per_second: float | None
    evaluation_seconds: float | None
    min_free_eval_every: int | None


class SpeedMeter:
    """Measure training speed from the end of the first chunk, when compilation is over."""

    def __init__(self, plan: TrainingPlan) -> None:
        self.options = plan.options
        self.episodes = (
            sum(plan.tasks[spec.task].env is not None for spec in plan.run_specs) * plan.options.eval_episodes
        )
        self._first_chunk: tuple[int, float] | None = None  # its last step and end time

    def mark_chunk(self, step: int) -> None:
        """Record the end of a chunk."""
        self._first_chunk = self._first_chunk or (step, time.monotonic())

    def measure(self, step: int, wait_seconds: float, evaluator: Evaluator | None) -> Speed:
        """Return the speed up to a step, excluding the time that training waited for evaluations."""
        rate = cost = min_free_eval_every = None
        if self._first_chunk is not None and step > self._first_chunk[0]:
            training_seconds = time.monotonic() - self._first_chunk[1] - wait_seconds
            rate = (step - self._first_chunk[0]) / max(training_seconds, 1e-9)
        if evaluator is not None and evaluator.episodes:
            cost = evaluator.seconds_per_episode() * self.episodes
        if rate is not None and cost is not None:
            chunk = self.options.chunk_steps
            min_free_eval_every = max(math.ceil(cost * rate / chunk), 1) * chunk
        return Speed(rate, cost, min_free_eval_every)
