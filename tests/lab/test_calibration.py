"""benchmarks/calibration.py: its measures by hand, and the order of its work."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from aspc.data import Dataset, writers
from aspc.data.sources import ogbench, pointmaze

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def calibration() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("calibration")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def measures(calibration) -> ModuleType:
    return sys.modules["calibration_summary"]


@pytest.fixture(scope="module")
def true_returns(calibration) -> ModuleType:
    return sys.modules["true_returns"]


def policy(name, truth, estimate, error, verdict="better", silent=None):
    return {
        "name": name,
        "truth": truth,
        "truth_error": 0.0,
        "verdict": verdict,
        "estimates": {"FQE": {"difference": estimate, "error": error, "silent": silent}},
    }


def result(**changes):
    policies = [
        policy("a", 2.0, 3.0, 1.0),
        policy("b", 4.0, 1.0, 1.0),
        policy("c", -1.0, 9.0, 1.0, "outside the data"),
        policy("d", 0.0, -2.0, 5.0),
    ]
    return {"dataset": "x", "controller": 0.0, "spread": 2.0, "policies": policies, **changes}


def measure(measures, found, kind, systematic=0.0):
    return measures.measures_of(found, kind, measures.needed_errors(found, kind), systematic)


def test_measures_by_hand(measures):
    plain = measure(measures, result(), "FQE")
    assert plain["coverage"] == 0.5  # a and d are within 1.6449 standard errors
    assert plain["regret@1"] == 1.0  # c is ranked first and is the worst
    assert plain["worse"] == 1.0
    assert plain["Spearman"] == pytest.approx(np.corrcoef([3, 4, 1, 2], [3, 2, 4, 1])[0, 1])
    assert plain["SharpeRatio@3"] == pytest.approx(4 / np.std([-1, 2, 4]))
    combined = measure(measures, result(), "combination")
    assert combined["estimates"] == 0.75
    assert combined["regret@1"] == pytest.approx((4 - 2) / 5)  # c is outside the data, and a has the best bound
    assert combined["worse"] == 0.0


def test_needed_errors_just_cover(measures):
    needed = measures.needed_errors(result(), "FQE")
    # b: √(1 + (2b)²)·1.6449 = 3
    assert needed[1] == pytest.approx(((3 / 1.6449) ** 2 - 1) ** 0.5 / 2, abs=2e-3)
    assert (needed[0], needed[3]) == (0.0, 0.0)
    assert measures.needed_errors(result(), "combination") == [needed[0], needed[1], needed[3]]
    assert measure(measures, result(), "FQE", needed[1])["cross-val."] == 0.75
    assert measure(measures, result(), "FQE", needed[1] - 0.01)["cross-val."] == 0.5


def test_selection_needs_a_bound_above_0(measures):
    assert measures.select(result(), 0.0, is_corrected=True)["name"] == "a"
    assert measures.select(result(), 1.0, is_corrected=True) is None  # 3 < 1.6449·√(1 + 2²)
    # With two further policies, a's bound needs 0.95^(1/5), 2.32 instead of 1.64 standard errors; 0.6 is added to 1.
    several = result(policies=[*result()["policies"], *result()["policies"][1:2] * 2])
    assert measures.select(several, 0.6, is_corrected=False)["name"] == "a"
    assert measures.select(several, 0.6, is_corrected=True) is None


def test_silent_estimates_do_not_count(measures):
    silent = result(policies=[policy(n, 1.0, None, None, silent="too little data") for n in "abc"])
    assert measure(measures, silent, "FQE") == {"estimates": 0.0}
    summary = measures.summarize([result(), silent])
    assert summary["estimators"]["FQE"]["estimates"]["mean"] == 0.5
    assert summary["estimators"]["FQE"]["coverage"]["datasets"] == 1
    assert summary["policies"] == 7


def test_systematic_error_would_have_covered_90_percent(measures):
    rng = np.random.default_rng(0)
    policies = [policy(str(i), float(2 * rng.normal()), 0.0, 1.0) for i in range(4_000)]
    needed = measures.needed_errors(result(policies=policies), "FQE")
    assert measures.systematic_error([needed]) == pytest.approx(3**0.5 / 2, rel=0.07)  # √(1 + (2b)²) = 2


def test_every_dataset_is_covered_by_the_error_of_the_others(measures):
    """Two datasets need errors of about 0 and 1; each is judged with the other's."""
    good, bad = (result(policies=[policy(n, 0.0, d, 1.0) for n in "abcd"]) for d in (0.5, 4.0))
    found = measures.summarize([good, bad])["estimators"]["FQE"]
    assert (found["cross-val."]["mean"], found["coverage"]["mean"]) == (0.5, 0.5)
    assert found["systematic error"] == pytest.approx(measures.needed_errors(bad, "FQE")[0])


def test_interrupted_command_measures_only_what_is_missing(calibration, tmp_path, capsys, monkeypatch):
    started = []

    def run(words, on_cpu):
        started.append((*words[-2:], on_cpu))
        file = calibration.truth_file if on_cpu else calibration.file_of
        file(tmp_path, words[-1]).write_text(json.dumps(result(dataset=words[-1])))
        return 0

    monkeypatch.setattr(calibration, "start_process", run)
    (tmp_path / "runs").mkdir()
    calibration.file_of(tmp_path, "one").write_text(json.dumps(result(dataset="one")))
    calibration.truth_file(tmp_path, "two").write_text("{}")
    assert calibration.main(["one", "two", "three", "--out", str(tmp_path), "--workers", "1"]) == 0
    assert sorted(started) == [("--only", "three", False), ("--only", "two", False), ("--truth", "three", True)]
    summary = json.loads((tmp_path / "calibration.json").read_text())
    assert summary["datasets"] == 3
    assert "12 policies on 3 datasets" in capsys.readouterr().out
    # The summary alone is enough to continue on another machine.
    started.clear()
    for file in (tmp_path / "one.json", tmp_path / "two.json", tmp_path / "three.json"):
        file.unlink()
    assert calibration.main(["one", "two", "three", "four", "--out", str(tmp_path)]) == 0
    assert {name for _, name, _ in started} == {"four"}
    with pytest.raises(SystemExit, match="was written with other settings"):
        calibration.main(["one", "--out", str(tmp_path), "--steps", "7"])


def test_failed_training_is_not_assessed(calibration, tmp_path, capsys, monkeypatch):
    started = []
    monkeypatch.setattr(calibration, "start_process", lambda words, on_cpu: started.append(words[-2]) or 1)
    assert calibration.main(["one", "--out", str(tmp_path)]) == 1
    assert started == ["--truth"]
    assert "one failed with exit code 1" in capsys.readouterr().err


class Replay:
    """The logged actions of the first episode, as a policy."""

    def __init__(self, actions):
        self.actions, self.step_number = actions, -1

    def initial_memory(self, count):
        return np.zeros((count, 0), np.float32)

    def step(self, observations, memory, rng):
        self.step_number += 1
        return np.tile(self.actions[self.step_number], (len(observations), 1)), memory


def test_replayed_actions_earn_the_logged_return(true_returns, tmp_path):
    """Rollouts and logged returns have the same start state, rewards and discount."""
    name = "pointmaze-medium-navigate-singletask-task1-v0"
    file = tmp_path / "p.npz"
    steps = true_returns.horizon_of(true_returns.DISCOUNT) + 2
    writers.write_npz(file, pointmaze.generate("pointmaze-medium", 2, steps, 0, noise=0.5))
    log = ogbench.load(name, path=file)
    first = log.select(np.arange(log.episode_lengths[0]))
    rows, logged = true_returns.controller_returns(log, first)
    starts = np.tile(log.observations[rows], (2, 1))
    replayed = true_returns.policy_returns(Replay(log.actions), log, starts, true_returns.DISCOUNT)
    assert len(logged) == 1
    assert replayed == pytest.approx([logged[0]] * 2, rel=1e-4)
    assert -100 < logged[0] < -50


def test_discount_is_lower_where_time_limits_cut_episodes(true_returns):
    columns = np.zeros((400, 45)), np.zeros((400, 24)), np.ones(400)
    facts = {"action_low": -1, "action_high": 1, "env": "pen-expert-v1"}
    for steps, expected in ((100, 0.962), (400, 0.99)):
        is_last = np.arange(400) % steps == steps - 1
        cut, ended = ((np.zeros(400, bool), is_last), (is_last, np.zeros(400, bool)))
        assert true_returns.discount_of(Dataset.from_arrays(*columns, *cut, **facts)) == expected
        assert true_returns.discount_of(Dataset.from_arrays(*columns, *ended, **facts)) == 0.99
