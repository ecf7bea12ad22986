"""Curves of a series on a dataset: mean and spread over seeds, with few enough points to draw."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from aspc.lab.paper_tables import domain_of
from aspc.lab.report.view import TASKS, View, one_each, task_of
from aspc.tasks import without_version

METRICS = ("score", "scale", "q", "bc_loss")
MOST_POINTS = 200
MOST_NUMBERS = 1_200_000  # on the page, in all curves together


@dataclass(frozen=True)
class Curve:
    """Mean over n seeds at each step, and one standard deviation up and down."""

    series: str
    dataset: str
    metric: str
    steps: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    n: int


def with_measure(curves: pd.DataFrame) -> pd.DataFrame:
    """`score` filled in as the run's dataset is measured: success in percent or return where there is no score."""
    score = curves["score"].where(curves["measure"] == "score", curves["return"])
    return curves.assign(score=score.where(curves["measure"] != "success", 100 * curves["success_rate"]))


def runs_of_series(view: View) -> pd.DataFrame:
    """Each series, dataset and seed once."""
    return one_each(view.places.drop_duplicates(["series", "run_id"]), ["dataset", "series"])


def all_curves(view: View) -> list[Curve]:
    """The curves of all series on all datasets, at the steps that all seeds have."""
    runs = runs_of_series(view)[["series", "dataset", "measure", "run_id"]]
    table = with_measure(view.curves.merge(runs, on="run_id")).replace([np.inf, -np.inf], np.nan)
    by_step = table.groupby(["series", "dataset", "step"], sort=True)[list(METRICS)].agg(["mean", "std", "count"])
    groups = list(by_step.groupby(level=["series", "dataset"], sort=True))
    points = points_of_a_curve(len(groups) * len(METRICS))
    return [curve for (s, d), group in groups for curve in _curves(str(s), str(d), group, points)]


def points_of_a_curve(count: int) -> int:
    """Fewer points where there are very many curves, so that the page stays light."""
    return int(np.clip(MOST_NUMBERS // (3 * max(count, 1)), 40, MOST_POINTS))


def _curves(series: str, dataset: str, group: pd.DataFrame, points: int) -> Iterator[Curve]:
    steps = group.index.get_level_values("step").to_numpy()
    for metric in METRICS:
        mean, std, count = group[metric].to_numpy(float).T
        n = int(count.max())
        if n == 0:
            continue
        whole = np.flatnonzero(count == n)
        kept = whole[downsample(len(whole), points)]
        yield Curve(series, dataset, metric, steps[kept], mean[kept], np.nan_to_num(std[kept]), n)


def downsample(length: int, points: int) -> np.ndarray:
    """Indices of at most `points` rows, evenly spaced, first and last among them."""
    return np.unique(np.linspace(0, length - 1, min(length, points)).round().astype(int))


def pick(curves: Sequence[Curve], metric: str, series: str | None = None, dataset: str | None = None) -> list[Curve]:
    return [c for c in curves if c.metric == metric and series in (None, c.series) and dataset in (None, c.dataset)]


def by_task(datasets: Iterable[str]) -> dict[str, dict[str, str]]:
    """Tasks, their datasets, and what tells each from the others there: few enough for one picture of a task."""
    out: dict[str, dict[str, str]] = {}
    for name in datasets:
        task = _picture_of(name)
        out.setdefault(task, {})[name] = name.removeprefix(f"{task}-")
    return out


def _picture_of(dataset: str) -> str:
    """OGBench has five tasks in each of its mazes; names that nobody knows are together."""
    if domain_of(dataset) == "OGBench":
        return re.sub(r"-task[0-9]+$", "", without_version(dataset))
    return task if (task := task_of(dataset)) in TASKS else "other datasets"
