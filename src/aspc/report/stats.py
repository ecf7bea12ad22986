"""Intervals: Student's t over seeds for means and differences, rliable's stratified bootstrap for all else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from aspc.errors import MissingExtra

LEVEL = 0.95
REPETITIONS = 1000  # of the bootstrap

Scores = Mapping[str, np.ndarray]  # dataset → one number for each seed


class Estimate(NamedTuple):
    """A number with its 95 % interval; the ends are NaN where one seed says nothing about spread."""

    value: float
    low: float
    high: float

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    def times(self, factor: float) -> Estimate:
        ends = sorted((self.low * factor, self.high * factor)) if self.has_interval else (math.nan, math.nan)
        return Estimate(self.value * factor, *ends)


NONE = Estimate(math.nan, math.nan, math.nan)


def mean(values: Sequence[float] | np.ndarray) -> Estimate:
    """Mean over seeds with Student's t interval."""
    return average({"": np.asarray(values, float)})


def average(scores: Scores) -> Estimate:
    """Mean over datasets of the means over seeds. Each dataset weighs the same, whatever its number of seeds."""
    return _combine([(1 / len(scores), values) for values in scores.values()]) if scores else NONE


def difference(a: Scores, b: Scores, *, level: float = LEVEL) -> Estimate:
    """Average of `a` minus average of `b` over the datasets that both have (Welch)."""
    common = [name for name in a if name in b]
    if not common:
        return NONE
    share = 1 / len(common)
    return _combine([(share, a[name]) for name in common] + [(-share, b[name]) for name in common], level)


def _combine(parts: list[tuple[float, np.ndarray]], level: float = LEVEL) -> Estimate:
    """Σ wᵢ·meanᵢ with a t interval whose degrees of freedom are Satterthwaite's."""
    value = float(sum(w * x.mean() for w, x in parts))
    if any(len(x) < 2 for _, x in parts):
        return Estimate(value, math.nan, math.nan)
    variances = np.array([w * w * x.var(ddof=1) / len(x) for w, x in parts])
    total = variances.sum()
    if total == 0:
        return Estimate(value, value, value)
    freedom = total**2 / sum(v * v / (len(x) - 1) for v, (_, x) in zip(variances, parts, strict=True))
    half = _t_quantile(freedom, level) * math.sqrt(total)
    return Estimate(value, value - half, value + half)


def _t_quantile(freedom: float, level: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + level / 2))


# ── rliable ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def rectangle(scores: Scores, datasets: Sequence[str]) -> np.ndarray:
    """[seeds, datasets] for rliable, which wants as many seeds everywhere: as many as the poorest dataset has."""
    seeds = min(len(scores[name]) for name in datasets)
    return np.stack([scores[name][:seeds] for name in datasets], axis=1)


def bootstrap(
    statistic: Callable[..., np.ndarray], *matrices: np.ndarray, repetitions: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A statistic of one or more [seeds, datasets] matrices, with the ends of its percentile interval.

    Seeds are drawn anew within each dataset. With one seed there is nothing to draw: the ends are NaN. Where all seeds
    agree every draw is the same: there the ends are the value.
    """
    library = _rliable()
    value = np.atleast_1d(statistic(*matrices))
    if min(len(m) for m in matrices) < 2:
        return value, np.full_like(value, np.nan), np.full_like(value, np.nan)
    if all((m == m[0]).all() for m in matrices):
        return value, value, value
    scores: Any = {"": list(matrices) if len(matrices) > 1 else matrices[0]}
    with _seeded():
        points, ends = library.get_interval_estimates(
            scores,
            lambda *m: np.atleast_1d(statistic(*m)),
            reps=repetitions or REPETITIONS,
            confidence_interval_size=LEVEL,
        )
    return points[""], ends[""][0], ends[""][1]


def profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Share of runs that score more than each threshold, averaged over datasets (a performance profile)."""
    return (scores[..., None] > thresholds).mean(axis=(0, 1))


def improvement(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Probability that a run of x beats one of y on a dataset, averaged over datasets; a tie counts one half."""
    return np.asarray(
        ((x[:, None] > y[None]).mean(axis=(0, 1)) + 0.5 * (x[:, None] == y[None]).mean(axis=(0, 1))).mean()
    )


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    from rliable import metrics

    return np.asarray(metrics.aggregate_iqm(scores))


@contextmanager
def _seeded() -> Iterator[None]:
    """rliable draws from NumPy's global state: give it a fixed one, and give the user's back."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002


def _rliable() -> Any:
    try:
        from rliable import library
    except ImportError as error:
        raise MissingExtra("A report", "report") from error
    return library
