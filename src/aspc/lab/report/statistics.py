"""95 % intervals that cover datasets and seeds.

Over three datasets or more, an interval is the percentile interval of a two-level bootstrap: datasets are drawn with
replacement (the same draw for all methods that are compared), and seeds within each drawn dataset and method. Fewer
datasets cannot be resampled: there the interval covers the seeds of these datasets only, by Student's t.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from aspc.errors import MissingExtra

LEVEL = 0.95
REPETITIONS = 1000  # of the bootstrap
MIN_DATASETS = 3  # to resample datasets
MIN_SEEDS = 2  # in each dataset, where datasets are resampled
MIN_SEEDS_ALONE = 3  # in each dataset, where seeds alone are

Scores = Mapping[str, np.ndarray]  # dataset → one number for each seed


class Estimate(NamedTuple):
    """A number with its 95 % interval; the ends are NaN where there are too few seeds for one."""

    value: float
    low: float
    high: float

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    def times(self, factor: float) -> Estimate:
        ends = sorted((self.low * factor, self.high * factor)) if self.has_interval else (math.nan, math.nan)
        return Estimate(self.value * factor, *ends)

    def exact(self) -> Estimate:
        """The same number, taken as exactly known."""
        return Estimate(self.value, self.value, self.value)

    def complement(self) -> Estimate:
        """Of a probability: that of the opposite."""
        return Estimate(1 - self.value, 1 - self.high, 1 - self.low)


NONE = Estimate(math.nan, math.nan, math.nan)


def mean(values: Sequence[float] | np.ndarray) -> Estimate:
    """Mean over the seeds of one dataset, with Student's t interval from at least three seeds."""
    return average({"": np.asarray(values, float)})


def average(scores: Scores) -> Estimate:
    """Mean over datasets of the means over seeds. Each dataset weighs the same, whatever its number of seeds."""
    return _estimate([(1.0, list(scores.values()))], np.mean) if scores else NONE


def grand_mean(scores: Scores) -> float:
    """The value of `average`, without its interval."""
    return float(np.mean([values.mean() for values in scores.values()])) if scores else math.nan


def difference(a: Scores, b: Scores, *, level: float = LEVEL) -> Estimate:
    """Mean over the datasets that both have of the difference of their means over seeds, paired by dataset."""
    return _compare(a, b, np.mean, level)


def median_difference(a: Scores, b: Scores) -> Estimate:
    """Median over the datasets that both have of the difference of their means over seeds, paired by dataset."""
    return _compare(a, b, np.median)


def _compare(a: Scores, b: Scores, center: Callable[..., Any], level: float = LEVEL) -> Estimate:
    common = [name for name in a if name in b]
    if not common:
        return NONE
    return _estimate([(1.0, [a[name] for name in common]), (-1.0, [b[name] for name in common])], center, level)


Side = tuple[float, Sequence[np.ndarray]]  # a sign, and the seeds' scores on each dataset


def _estimate(sides: Sequence[Side], center: Callable[..., Any], level: float = LEVEL) -> Estimate:
    """Return the center (mean or median) over datasets of Σ sign·(mean over seeds), with its interval."""
    value = float(center(sum(sign * np.array([x.mean() for x in scores]) for sign, scores in sides)))
    datasets, seeds = len(sides[0][1]), min(len(x) for _, scores in sides for x in scores)
    if not can_resample(datasets, seeds):
        return Estimate(value, math.nan, math.nan)
    if datasets < MIN_DATASETS:  # of one or two, mean and median are the same
        return _student(value, [(sign / datasets, x) for sign, scores in sides for x in scores], level)
    rng = np.random.default_rng(0)
    draws = rng.integers(datasets, size=(REPETITIONS, datasets))
    drawn = center(sum(sign * resampled_means(scores, draws, rng) for sign, scores in sides), axis=1)
    return Estimate(value, *percentile_interval(drawn, level))


def can_resample(datasets: int, fewest_seeds: int) -> bool:
    """Whether there are enough seeds for an interval: two seeds of a single dataset say too little about spread."""
    return fewest_seeds >= (MIN_SEEDS if datasets >= MIN_DATASETS else MIN_SEEDS_ALONE)


def resampled_means(scores: Sequence[np.ndarray], draws: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw seeds within the drawn datasets and return their means.

    Args:
        scores: the seeds' scores on each dataset; numbers of seeds may differ.
        draws: drawn datasets, as positions in `scores`, of any shape. A dataset that is drawn twice has its seeds drawn
            twice.
        rng: source of the seeds' draws.

    Returns:
        An array of the shape of `draws`.
    """
    counts = np.array([len(x) for x in scores])
    most = counts.max()
    padded = np.stack([np.pad(x, (0, most - len(x))) for x in scores])
    seeds = counts[draws][..., None]
    chosen = (rng.random((*draws.shape, most)) * seeds).astype(np.intp)
    values = padded[draws[..., None], chosen]
    return (values * (np.arange(most) < seeds)).sum(axis=-1) / seeds[..., 0]


def percentile_interval(draws: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _student(value: float, parts: Sequence[tuple[float, np.ndarray]], level: float) -> Estimate:
    """Σ wᵢ·meanᵢ with a t interval over seeds whose degrees of freedom are Satterthwaite's."""
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


def stack(methods: Sequence[Scores], datasets: Sequence[str]) -> np.ndarray:
    """Return [seeds, datasets, methods] for rliable, with as many seeds as the smallest number of any entry."""
    seeds = min(len(scores[name]) for scores in methods for name in datasets)
    return np.stack([[scores[name][:seeds] for name in datasets] for scores in methods]).transpose(2, 1, 0)


def bootstrap(
    statistic: Callable[[np.ndarray], np.ndarray], scores: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a statistic of [seeds, datasets, methods] and the ends of its percentile interval, by rliable.

    rliable draws datasets jointly for all methods on the trailing axis, and seeds for each drawn dataset and method by
    themselves. Fewer than three datasets are not drawn: there the interval covers seeds only. The ends are NaN where
    `can_resample` says that there are too few seeds.
    """
    library = _rliable()
    value = np.asarray(statistic(scores), float)
    seeds, datasets, _ = scores.shape
    if not can_resample(datasets, seeds):
        return value, np.full_like(value, np.nan), np.full_like(value, np.nan)
    with _seeded():
        _, ends = library.get_interval_estimates(
            {"": scores},
            lambda drawn: np.ravel(statistic(drawn)),
            task_bootstrap=datasets >= MIN_DATASETS,
            reps=REPETITIONS,
            confidence_interval_size=LEVEL,
        )
    low, high = (end.reshape(value.shape) for end in ends[""])
    return value, low, high


def profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Share of runs that score more than each threshold, averaged over datasets: [methods, thresholds]."""
    return (scores[..., None] > thresholds).mean(axis=(0, 1))


def improvement(scores: np.ndarray) -> np.ndarray:
    """Probability that a run of the first method beats one of each other method on a dataset, averaged over datasets; a
    tie counts one half."""
    first, others = scores[:, None, :, :1], scores[None, :, :, 1:]
    return ((first > others) + 0.5 * (first == others)).mean(axis=(0, 1, 2))


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Mean of the middle half of all runs of each method."""
    runs = scores.shape[0] * scores.shape[1]
    cut = runs // 4
    return np.sort(scores.reshape(runs, -1), axis=0)[cut : runs - cut].mean(axis=0)


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
