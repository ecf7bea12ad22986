"""The radar chart: the mean score per task, scaled from 0 (worst label) to 1 (best label)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from aspc.lab.report.datasets import TASKS, task_of
from aspc.lab.report.statistics import Scores

MAX_CORNERS = 12  # more would be unreadable
MIN_LABELS = 3  # with two labels, each scaled value would be 0 or 1


@dataclass(frozen=True)
class RadarChart:
    """The data of a radar chart.

    Attributes:
        tasks: the tasks at the corners.
        values: scaled means per label, one per task.
        raw: unscaled means per label, one per task.
        left_out: number of tasks that are not shown.
    """

    tasks: tuple[str, ...]
    values: Mapping[str, tuple[float, ...]]
    raw: Mapping[str, tuple[float, ...]]
    left_out: int = 0

    @property
    def caption(self) -> str:
        """A note on the number of tasks if some are left out, otherwise an empty string."""
        return f"the first {len(self.tasks)} of {len(self.tasks) + self.left_out} tasks" if self.left_out else ""


def build_radar(scores: Mapping[str, Scores]) -> RadarChart | None:
    """Return a chart of the tasks that all labels share, or None if there are fewer than three tasks or labels."""
    means = {label: _task_means(values) for label, values in scores.items()}
    others = sorted({t for m in means.values() for t in m if t not in TASKS})
    shared = [task for task in (*TASKS, *others) if all(task in m for m in means.values())]
    tasks = shared[:MAX_CORNERS]
    if len(tasks) < 3 or len(means) < MIN_LABELS:
        return None
    raw = {label: tuple(m[task] for task in tasks) for label, m in means.items()}
    scaled = scale_to_range(np.array(list(raw.values())))
    values = {label: tuple(map(float, row)) for label, row in zip(raw, scaled, strict=True)}
    return RadarChart(tuple(tasks), values, raw, len(shared) - len(tasks))


def _task_means(values: Scores) -> dict[str, float]:
    by_task: dict[str, list[float]] = {}
    for dataset, seeds in values.items():
        by_task.setdefault(task_of(dataset), []).append(float(seeds.mean()))
    return {task: float(np.mean(m)) for task, m in by_task.items()}


def scale_to_range(means: np.ndarray) -> np.ndarray:
    """Scale means [methods, ...] so that, in each column, the worst method has the value 0 and the best has 1."""
    low, high = means.min(axis=0), means.max(axis=0)
    return np.asarray((means - low) / np.where(high > low, high - low, 1))


def polygon_area(corners: np.ndarray) -> np.ndarray:
    """Return the area of a polygon in the radar chart as a fraction of the largest possible area.

    Args:
        corners: Scaled values [..., tasks].
    """
    return np.asarray((corners * np.roll(corners, -1, axis=-1)).mean(axis=-1))
