"""Intervals: they cover what they should, and rliable agrees."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("rliable", reason="the extra [report] is not installed")

from rliable import library, metrics

from aspc.report import stats


def test_mean_is_students() -> None:
    found = stats.mean([1.0, 2.0, 3.0, 4.0])
    assert found.value == 2.5
    assert found.high - found.value == pytest.approx(3.1824463 * math.sqrt(5 / 3) / 2)  # t(0.975; 3) · s/√n
    assert not stats.mean([1.0]).has_interval
    assert stats.mean([2.0, 2.0]) == (2.0, 2.0, 2.0)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """Datasets of different spread and numbers of seeds; the true difference is 5."""
    rng = np.random.default_rng(0)
    covered = {0.95: 0, 0.99: 0}
    for _ in range(1000):
        a = {"x": rng.normal(10, 1, 4), "y": rng.normal(20, 6, 3)}
        b = {"x": rng.normal(5, 2, 5), "y": rng.normal(15, 0.5, 4), "only b": rng.normal(0, 1, 3)}
        for level in covered:
            found = stats.difference(a, b, level=level)
            covered[level] += found.low <= 5 <= found.high
    # A little less than that: one dataset with three seeds has nearly all the spread.
    assert 910 <= covered[0.95] <= 980
    assert 970 <= covered[0.99] <= 999
    assert stats.difference(a, b) == stats.difference(a, b, level=0.95)


def test_datasets_weigh_alike() -> None:
    found = stats.average({"a": np.full(9, 10.0), "b": np.zeros(2)})
    assert found.value == 5.0


def test_the_statistics_are_rliables() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(60, 20, (4, 6)), rng.normal(50, 20, (5, 6))
    x[:, 2] = y[:4, 2] = 7.0  # ties
    y[4, 2] = 7.0
    assert stats.improvement(x, y) == pytest.approx(metrics.probability_of_improvement(x, y))
    thresholds = np.linspace(0, 100, 11)
    expected, _ = library.create_performance_profile({"x": x}, thresholds, reps=2)
    assert stats.profile(x, thresholds) == pytest.approx(expected["x"])


def test_the_bootstrap_is_stratified_seeded_and_leaves_numpy_alone() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(60, 5, (4, 8)) + 100 * np.arange(8)  # datasets far apart: only seeds may be drawn anew
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    found = [stats.bootstrap(lambda m: np.asarray(m.mean()), x, repetitions=500) for _ in range(2)]
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    assert found[0] == found[1]
    value, low, high = (float(v[0]) for v in found[0])
    half = 1.96 * math.sqrt((x.var(axis=0) / 4).sum()) / 8
    assert value == pytest.approx(x.mean())
    assert high - low == pytest.approx(2 * half, rel=0.25)


def test_one_seed_has_no_interval() -> None:
    value, low, high = stats.bootstrap(stats.improvement, np.ones((1, 3)), np.zeros((4, 3)))
    assert value[0] == 1
    assert np.isnan([low[0], high[0]]).all()


def test_rectangle_takes_what_all_datasets_have() -> None:
    scores = {"a": np.arange(4.0), "b": np.arange(3.0)}
    assert stats.rectangle(scores, ["b", "a"]).tolist() == [[0, 0], [1, 1], [2, 2]]
