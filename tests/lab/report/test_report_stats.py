"""Coverage of intervals, and agreement with rliable."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("rliable", reason="the extra [report] is not installed")

from rliable import library, metrics

from aspc.lab.report import statistics


def test_mean_has_students_t_interval() -> None:
    found = statistics.mean([1.0, 2.0, 3.0, 4.0])
    assert found.value == 2.5
    assert found.high - found.value == pytest.approx(3.1824463 * math.sqrt(5 / 3) / 2)  # t(0.975; 3) · s/√n
    assert statistics.mean([2.0, 2.0, 2.0]) == (2.0, 2.0, 2.0)


def test_too_few_seeds_have_no_interval() -> None:
    one, two, three = np.array([1.0]), np.array([1.0, 2.0]), np.array([1.0, 2.0, 4.0])
    assert not statistics.mean(two).has_interval
    assert statistics.mean(two).value == 1.5
    assert statistics.mean(three).has_interval
    assert not statistics.difference({"x": three}, {"x": two}).has_interval
    assert not statistics.average({"x": two, "y": two}).has_interval  # two datasets cannot be resampled
    assert statistics.average({"x": two, "y": two, "z": two}).has_interval
    assert not statistics.average({"x": three, "y": three, "z": one}).has_interval
    assert statistics.difference({"x": one}, {"y": one}) is statistics.NO_ESTIMATE


def test_intervals_of_two_datasets_have_nominal_coverage() -> None:
    """The datasets differ in spread and number of seeds; the true difference is 5."""
    rng = np.random.default_rng(0)
    covered = {0.95: 0, 0.99: 0}
    for _ in range(1000):
        a = {"x": rng.normal(10, 1, 4), "y": rng.normal(20, 6, 3)}
        b = {"x": rng.normal(5, 2, 5), "y": rng.normal(15, 0.5, 4), "only b": rng.normal(0, 1, 3)}
        for level in covered:
            found = statistics.difference(a, b, level=level)
            covered[level] += found.low <= 5 <= found.high
    # Slightly below nominal: one dataset with three seeds has nearly all of the spread.
    assert 910 <= covered[0.95] <= 980
    assert 970 <= covered[0.99] <= 999
    assert statistics.difference(a, b) == statistics.difference(a, b, level=0.95)


def test_intervals_cover_the_population_of_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interval over seeds alone misses the population's effect about half of the time.

    The effect has mean 5 and standard deviation 10 between datasets, 3 between seeds.
    """
    monkeypatch.setattr(statistics, "REPETITIONS", 400)
    rng, trials, datasets = np.random.default_rng(0), 400, 12
    covered, covered_by_seeds_alone = 0, 0
    for _ in range(trials):
        effects, levels = rng.normal(5, 10, datasets), rng.uniform(0, 100, datasets)
        a = {str(i): rng.normal(levels[i] + effects[i], 3, 3) for i in range(datasets)}
        b = {str(i): rng.normal(levels[i], 3, 4) for i in range(datasets)}
        found = statistics.difference(a, b)
        covered += found.low <= 5 <= found.high
        half = 2.01 * math.sqrt(sum(x.var(ddof=1) / len(x) for s in (a, b) for x in s.values())) / datasets
        covered_by_seeds_alone += abs(found.value - 5) <= half  # t with about fifty degrees of freedom
    assert 0.90 <= covered / trials <= 0.97
    assert covered_by_seeds_alone / trials < 0.6


def test_averages_and_differences_agree_with_rliable(monkeypatch: pytest.MonkeyPatch) -> None:
    """With equal numbers of seeds, up to the noise of 4,000 repetitions."""
    monkeypatch.setattr(statistics, "REPETITIONS", 4000)
    rng = np.random.default_rng(3)
    levels, effects = rng.uniform(0, 100, 8), rng.normal(5, 10, 8)
    a, b = rng.normal(levels + effects, 8, (4, 8)), rng.normal(levels, 8, (4, 8))
    as_scores = [{str(i): m[:, i] for i in range(8)} for m in (a, b)]
    cases = {
        statistics.average(as_scores[0]): lambda both: both[..., 0].mean(),
        statistics.difference(*as_scores): lambda both: (both[..., 0] - both[..., 1]).mean(),
        statistics.median_difference(*as_scores): lambda both: np.median((both[..., 0] - both[..., 1]).mean(axis=0)),
    }
    for found, statistic in cases.items():
        drawn = library.StratifiedBootstrap(np.stack([a, b], axis=-1), task_bootstrap=True)
        np.random.seed(1)  # noqa: NPY002
        ends = drawn.conf_int(lambda x, f=statistic: np.array([f(x)]), reps=4000, size=0.95, method="percentile")[:, 0]
        assert (found.low, found.high) == pytest.approx(tuple(ends), abs=0.06 * (ends[1] - ends[0]))


def test_difference_is_paired_by_dataset() -> None:
    """Large differences between datasets cancel in a small effect."""
    rng = np.random.default_rng(4)
    b = {str(i): 100.0 * i + rng.normal(0, 1, 4) for i in range(10)}
    a = {name: values + 3 + rng.normal(0, 1, 4) for name, values in b.items()}
    found, average = statistics.difference(a, b), statistics.average(a)
    assert found.low > 2
    assert found.high < 4
    assert average.high - average.low > 200


def test_resampled_means_draw_seeds_within_datasets() -> None:
    """With two and with five seeds, the means have the expected values and variances."""
    scores = [np.array([0.0, 2.0]), np.array([100.0, 101.0, 102.0, 103.0, 104.0])]
    draws = np.tile([0, 1, 1], (20_000, 1))
    found = statistics.resampled_means(scores, draws, np.random.default_rng(5))
    assert found.shape == draws.shape
    assert set(found[:, 0]) == {0.0, 1.0, 2.0}
    assert found.mean(axis=0) == pytest.approx([1, 102, 102], abs=0.05)
    assert found.var(axis=0) == pytest.approx([1 / 2, 2 / 5, 2 / 5], rel=0.05)
    assert abs(np.corrcoef(found[:, 1], found[:, 2])[0, 1]) < 0.03  # seeds are drawn again for each occurrence


def test_intervals_are_deterministic_and_keep_numpy_state() -> None:
    rng = np.random.default_rng(6)
    a, b = ({str(i): rng.normal(i, 1, 3 + i % 2) for i in range(5)} for _ in range(2))
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    assert statistics.difference(a, b) == statistics.difference(a, b)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_median_difference_is_robust_to_one_dataset() -> None:
    a = {str(i): np.array([1.0, 1.2, 0.8]) for i in range(10)} | {"10": np.array([190.0, 191.0, 192.0])}
    b = {name: np.zeros(3) for name in a}
    assert statistics.median_difference(a, b).value == pytest.approx(1.0)
    assert statistics.median_difference(a, b).high < 1.5
    assert statistics.difference(a, b).value > 15
    one = {"10": a["10"]}
    assert statistics.median_difference(one, b) == statistics.difference(one, b)


def test_datasets_have_equal_weight() -> None:
    scores = {"a": np.full(9, 10.0), "b": np.zeros(2)}
    assert statistics.average(scores).value == statistics.grand_mean(scores) == 5.0


def test_statistics_equal_rliables() -> None:
    rng = np.random.default_rng(1)
    x, y, z = rng.normal(60, 20, (4, 6)), rng.normal(50, 20, (4, 6)), rng.normal(40, 20, (4, 6))
    x[:, 2] = y[:, 2] = 7.0  # ties
    scores = np.stack([x, y, z], axis=-1)
    assert statistics.improvement(scores) == pytest.approx([metrics.probability_of_improvement(x, m) for m in (y, z)])
    assert statistics.interquartile_mean(scores) == pytest.approx([metrics.aggregate_iqm(m) for m in (x, y, z)])
    thresholds = np.linspace(0, 100, 11)
    expected, _ = library.create_performance_profile({"x": x, "y": y, "z": z}, thresholds, reps=2)
    assert statistics.profile(scores, thresholds) == pytest.approx(np.stack([expected[m] for m in "xyz"]))


def test_bootstrap_is_deterministic_and_keeps_numpy_state() -> None:
    x = np.random.default_rng(2).normal(60, 5, (4, 8, 2))
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    found = [statistics.bootstrap(statistics.interquartile_mean, x) for _ in range(2)]
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    assert np.array_equal(found[0], found[1])


def test_bootstrap_draws_datasets_jointly_and_seeds_per_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry encodes its seed, dataset and method."""
    monkeypatch.setattr(statistics, "REPETITIONS", 50)
    seeds, datasets, methods = np.ogrid[:4, :6, :2]
    draws: list[np.ndarray] = []

    def record(drawn: np.ndarray) -> np.ndarray:
        draws.append(drawn)
        return drawn.mean(axis=(0, 1))

    statistics.bootstrap(record, 100.0 * datasets + 10.0 * methods + seeds)
    drawn = np.array(draws[1:])  # the first is the data
    dataset, method, seed = drawn // 100, drawn % 100 // 10, drawn % 10
    assert (dataset == dataset[:, :1, :, :1]).all()  # one for all seeds and methods
    assert len(np.unique(dataset[:, 0, :, 0], axis=0)) > 40
    assert (method == np.array([0, 1])).all()
    assert (seed[..., 0] != seed[..., 1]).mean() == pytest.approx(3 / 4, abs=0.05)


def test_bootstrap_of_few_datasets_draws_only_seeds() -> None:
    """Intervals ignore the difference between datasets and need at least three seeds."""
    x = np.random.default_rng(2).normal(60, 5, (6, 2, 1)) + 1000 * np.arange(2)[:, None]
    value, low, high = (float(v[0]) for v in statistics.bootstrap(lambda m: m.mean(axis=(0, 1)), x))
    half = 1.96 * math.sqrt((x.var(axis=0) / 6).sum()) / 2
    assert value == pytest.approx(x.mean())
    assert high - low == pytest.approx(2 * half, rel=0.35)
    _, low, high = statistics.bootstrap(lambda m: m.mean(axis=(0, 1)), x[:2])
    assert np.isnan([low, high]).all()


def test_bootstrap_of_one_seed_has_no_interval() -> None:
    value, low, high = statistics.bootstrap(
        statistics.improvement, np.stack([np.ones((1, 3)), np.zeros((1, 3))], axis=-1)
    )
    assert value[0] == 1
    assert np.isnan([low[0], high[0]]).all()


def test_stack_truncates_to_the_smallest_number_of_seeds() -> None:
    scores = [{"a": np.arange(4.0), "b": np.arange(3.0)}, {"a": np.arange(10.0, 15), "b": np.arange(20.0, 25)}]
    assert statistics.stack(scores, ["b", "a"]).tolist() == [[[i, 20 + i], [i, 10 + i]] for i in range(3)]
