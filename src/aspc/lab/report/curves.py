"""Curves per series and dataset: the mean and standard deviation over seeds, downsampled for drawing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from aspc.lab.paper_tables import domain_of
from aspc.lab.report.datasets import TASKS, task_of
from aspc.lab.report.view import View, select_one_per_seed
from aspc.tasks import without_version

METRICS = ("score", "scale", "q", "bc_loss")
MAX_POINTS = 200  # per curve
MAX_NUMBERS = 1_200_000  # across all curves on the page


@dataclass(frozen=True)
class Curve:
    """The mean and standard deviation of a metric over n seeds at each step."""

    series: str
    dataset: str
    metric: str
    steps: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    n: int


def fill_scores(curves: pd.DataFrame) -> pd.DataFrame:
    """Set `score` to the measure of each run's dataset: the score, the success rate in percent, or the return."""
    score = curves["score"].where(curves["measure"] == "score", curves["return"])
    return curves.assign(score=score.where(curves["measure"] != "success", 100 * curves["success_rate"]))


def build_curves(view: View) -> list[Curve]:
    """Return the curves of all series on all datasets, restricted to the steps that all seeds share."""
    runs = select_one_per_seed(view.entries.drop_duplicates(["series", "run_id"]), ["dataset", "series"])
    runs = runs[["series", "dataset", "measure", "run_id"]]
    table = fill_scores(view.curves.merge(runs, on="run_id")).replace([np.inf, -np.inf], np.nan)
    by_step = table.groupby(["series", "dataset", "step"], sort=True)[list(METRICS)].agg(["mean", "std", "count"])
    groups = list(by_step.groupby(level=["series", "dataset"], sort=True))
    points = points_per_curve(len(groups) * len(METRICS))
    return [curve for (s, d), group in groups for curve in _group_curves(str(s), str(d), group, points)]


def points_per_curve(curves: int) -> int:
    """Return the maximum number of points per curve. It decreases as curves are added, to limit the page's size."""
    return int(np.clip(MAX_NUMBERS // (3 * max(curves, 1)), 40, MAX_POINTS))


def _group_curves(series: str, dataset: str, group: pd.DataFrame, points: int) -> Iterator[Curve]:
    steps = group.index.get_level_values("step").to_numpy()
    for metric in METRICS:
        mean, std, count = group[metric].to_numpy(float).T
        n = int(count.max())
        if n == 0:
            continue
        complete = np.flatnonzero(count == n)
        kept = complete[downsample(len(complete), points)]
        yield Curve(series, dataset, metric, steps[kept], mean[kept], np.nan_to_num(std[kept]), n)


def downsample(length: int, points: int) -> np.ndarray:
    """Return at most `points` evenly spaced indices, including the first and the last."""
    return np.unique(np.linspace(0, length - 1, min(length, points)).round().astype(int))


def select_curves(
    curves: Sequence[Curve], metric: str, series: str | None = None, dataset: str | None = None
) -> list[Curve]:
    """Return the curves of a metric, optionally of one series or one dataset."""
    return [c for c in curves if c.metric == metric and series in (None, c.series) and dataset in (None, c.dataset)]


def group_by_task(datasets: Iterable[str]) -> dict[str, dict[str, str]]:
    """Group datasets by task, as {task: {dataset: name without the task}}. The datasets of a task share a panel."""
    out: dict[str, dict[str, str]] = {}
    for name in datasets:
        task = _panel_title(name)
        out.setdefault(task, {})[name] = name.removeprefix(f"{task}-")
    return out


def _panel_title(dataset: str) -> str:
    """Return the title of a dataset's panel. The tasks of an OGBench maze share a panel, and so do unknown datasets."""
    if domain_of(dataset) == "OGBench":
        return re.sub(r"-task[0-9]+$", "", without_version(dataset))
    return task if (task := task_of(dataset)) in TASKS else "other datasets"
