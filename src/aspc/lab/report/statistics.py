"""Compute 95 % intervals that account for variation between datasets and between seeds.

With at least three datasets, intervals are percentile intervals of a two-level bootstrap. It draws datasets with
replacement (the same draw for all compared methods), then seeds within each drawn dataset and method. With fewer
datasets, intervals are Student's t intervals over the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from aspc.errors import MissingExtra

LEVEL = 0.95
REPETITIONS = 1000  # number of bootstrap samples
MIN_DATASETS = 3  # required for resampling datasets
MIN_SEEDS = 2  # per dataset, required for resampling datasets and seeds
MIN_SEEDS_ALONE = 3  # per dataset, required for an interval over seeds only

Scores = Mapping[str, np.ndarray]  # dataset → one value per seed


class IntervalEstimate(NamedTuple):
    """A value with its 95 % interval. The bounds are NaN if there are too few seeds."""

    value: float
    low: float
    high: float

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    def scaled(self, factor: float) -> IntervalEstimate:
        bounds = sorted((self.low * factor, self.high * factor)) if self.has_interval else (math.nan, math.nan)
        return IntervalEstimate(self.value * factor, *bounds)

    def exact(self) -> IntervalEstimate:
        """Return an estimate with the same value and an interval of zero width."""
        return IntervalEstimate(self.value, self.value, self.value)

    def complement(self) -> IntervalEstimate:
        """Return the estimate of the complementary probability, 1 − p."""
        return IntervalEstimate(1 - self.value, 1 - self.high, 1 - self.low)


NO_ESTIMATE = IntervalEstimate(math.nan, math.nan, math.nan)


def mean(values: Sequence[float] | np.ndarray) -> IntervalEstimate:
    """Return the mean over the seeds of one dataset, with Student's t interval if there are three or more seeds."""
    return average({"": np.asarray(values, float)})


def average(scores: Scores) -> IntervalEstimate:
    """Return the mean over datasets of each dataset's mean over seeds. All datasets have equal weight."""
    return _estimate([(1.0, list(scores.values()))], np.mean) if scores else NO_ESTIMATE


def grand_mean(scores: Scores) -> float:
    """Return the value of `average` without its interval."""
    return float(np.mean([values.mean() for values in scores.values()])) if scores else math.nan


def difference(a: Scores, b: Scores, *, level: float = LEVEL) -> IntervalEstimate:
    """Return the mean over common datasets of the difference between the two means over seeds, paired by dataset."""
    return _compare(a, b, np.mean, level)


def median_difference(a: Scores, b: Scores) -> IntervalEstimate:
    """Return the median over common datasets of the difference between the two means over seeds, paired by dataset."""
    return _compare(a, b, np.median)


def _compare(a: Scores, b: Scores, center: Callable[..., Any], level: float = LEVEL) -> IntervalEstimate:
    common = [name for name in a if name in b]
    if not common:
        return NO_ESTIMATE
    return _estimate([(1.0, [a[name] for name in common]), (-1.0, [b[name] for name in common])], center, level)


Side = tuple[float, Sequence[np.ndarray]]  # a sign, and the seeds' scores on each dataset


def _estimate(sides: Sequence[Side], center: Callable[..., Any], level: float = LEVEL) -> IntervalEstimate:
    """Return the center (mean or median) over datasets of Σ sign·(mean over seeds), with its interval."""
    value = float(center(sum(sign * np.array([x.mean() for x in scores]) for sign, scores in sides)))
    datasets, seeds = len(sides[0][1]), min(len(x) for _, scores in sides for x in scores)
    if not can_resample(datasets, seeds):
        return IntervalEstimate(value, math.nan, math.nan)
    if datasets < MIN_DATASETS:  # the mean and the median of one or two values are equal
        return _student_interval(value, [(sign / datasets, x) for sign, scores in sides for x in scores], level)
    rng = np.random.default_rng(0)
    draws = rng.integers(datasets, size=(REPETITIONS, datasets))
    drawn = center(sum(sign * resampled_means(scores, draws, rng) for sign, scores in sides), axis=1)
    return IntervalEstimate(value, *percentile_interval(drawn, level))


def can_resample(datasets: int, fewest_seeds: int) -> bool:
    """Return whether there are enough seeds per dataset for an interval.

    The minimum is two seeds if there are three or more datasets, and three seeds otherwise.
    """
    return fewest_seeds >= (MIN_SEEDS if datasets >= MIN_DATASETS else MIN_SEEDS_ALONE)


def resampled_means(scores: Sequence[np.ndarray], draws: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw seeds within the drawn datasets and return their means.

    Args:
        scores: Scores of all seeds, per dataset. Datasets can have different numbers of seeds.
        draws: Indices of the drawn datasets, of any shape. Each occurrence of a dataset gets a new draw of seeds.
        rng: Random generator for the draws of seeds.

    Returns:
        The means, as an array with the shape of `draws`.
    """
    counts = np.array([len(x) for x in scores])
    most = counts.max()
    padded = np.stack([np.pad(x, (0, most - len(x))) for x in scores])
    seeds = counts[draws][..., None]
    chosen = (rng.random((*draws.shape, most)) * seeds).astype(np.intp)
    values = padded[draws[..., None], chosen]
    return np.asarray((values * (np.arange(most) < seeds)).sum(axis=-1) / seeds[..., 0])


def percentile_interval(draws: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _student_interval(value: float, parts: Sequence[tuple[float, np.ndarray]], level: float) -> IntervalEstimate:
    """Return Σ wᵢ·meanᵢ with a t interval over seeds and Satterthwaite's degrees of freedom."""
    variances = np.array([w * w * x.var(ddof=1) / len(x) for w, x in parts])
    total = variances.sum()
    if total == 0:
        return IntervalEstimate(value, value, value)
    freedom = total**2 / sum(v * v / (len(x) - 1) for v, (_, x) in zip(variances, parts, strict=True))
    half = _t_quantile(freedom, level) * math.sqrt(total)
    return IntervalEstimate(value, value - half, value + half)


def _t_quantile(freedom: float, level: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + level / 2))


# ── rliable ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def stack(methods: Sequence[Scores], datasets: Sequence[str]) -> np.ndarray:
    """Stack scores into an array [seeds, datasets, methods] for rliable, truncated to the smallest number of seeds."""
    seeds = min(len(scores[name]) for scores in methods for name in datasets)
    return np.stack([[scores[name][:seeds] for name in datasets] for scores in methods]).transpose(2, 1, 0)


def bootstrap(
    statistic: Callable[[np.ndarray], np.ndarray], scores: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a statistic of scores and the bounds of its percentile interval, which rliable computes.

    rliable draws datasets jointly for all methods, and seeds independently per drawn dataset and method. With fewer
    than three datasets, it draws only seeds. The bounds are NaN if there are too few seeds (see `can_resample`).

    Args:
        statistic: Function of scores [seeds, datasets, methods].
        scores: Scores [seeds, datasets, methods].
    """
    library = _import_rliable()
    value = np.asarray(statistic(scores), float)
    seeds, datasets, _ = scores.shape
    if not can_resample(datasets, seeds):
        return value, np.full_like(value, np.nan), np.full_like(value, np.nan)
    with _fixed_numpy_seed():
        _, bounds = library.get_interval_estimates(
            {"": scores},
            lambda drawn: np.ravel(statistic(drawn)),
            task_bootstrap=datasets >= MIN_DATASETS,
            reps=REPETITIONS,
            confidence_interval_size=LEVEL,
        )
    low, high = (bound.reshape(value.shape) for bound in bounds[""])
    return value, low, high


def profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return the fraction of runs above each threshold, averaged over datasets, as an array [methods, thresholds]."""
    return np.asarray((scores[..., None] > thresholds).mean(axis=(0, 1)))


def improvement(scores: np.ndarray) -> np.ndarray:
    """Return the probability that a run of the first method beats one of each other method, averaged over datasets.

    A tie counts as one half.
    """
    first, others = scores[:, None, :, :1], scores[None, :, :, 1:]
    return np.asarray(((first > others) + 0.5 * (first == others)).mean(axis=(0, 1, 2)))


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Return the interquartile mean over the runs on all datasets, per method."""
    runs = scores.shape[0] * scores.shape[1]
    cut = runs // 4
    return np.asarray(np.sort(scores.reshape(runs, -1), axis=0)[cut : runs - cut].mean(axis=0))


@contextmanager
def _fixed_numpy_seed() -> Iterator[None]:
    """Seed NumPy's global generator, which rliable draws from, and restore its state afterwards."""
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(state)  # noqa: NPY002


def _import_rliable() -> Any:
    try:
        from rliable import library
    except ImportError as error:
        raise MissingExtra("A report", "report") from error
    return library
