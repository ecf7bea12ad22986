"""benchmarks/calibration.py: its measures by hand, and the order of its work."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from aspc.data import writers
from aspc.data.sources import ogbench, pointmaze

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def calibration() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("calibration")
    finally:
        sys.path.remove(str(BENCHMARKS))


def policy(name, truth, estimate, error, verdict="better", silent=None):
    answer = {"difference": estimate, "error": error, "silent": silent}
    return {
        "name": name,
        "truth": truth,
        "truth_error": 0.0,
        "verdict": verdict,
        "low": estimate - 1.6449 * error,
        "estimates": {"FQE": answer, "combination": answer},
    }


def result(selected="a", **changes):
    policies = [
        policy("a", 2.0, 3.0, 1.0),
        policy("b", 4.0, 1.0, 1.0),
        policy("c", -1.0, 9.0, 1.0, "outside the data"),
        policy("d", 0.0, -2.0, 5.0),
    ]
    return {"dataset": "x", "controller": 0.0, "selected": selected, "policies": policies, **changes}


def test_measures_by_hand(calibration):
    plain = calibration.measures_of(result(), "FQE")
    assert plain["coverage"] == 0.5  # a and d are within 1.6449 standard errors
    assert plain["regret@1"] == 1.0  # c is ranked first and is the worst
    assert plain["worse"] == 1.0
    assert plain["Spearman"] == pytest.approx(np.corrcoef([3, 4, 1, 2], [3, 2, 4, 1])[0, 1])
    assert plain["SharpeRatio@3"] == pytest.approx(4 / np.std([-1, 2, 4]))
    combined = calibration.measures_of(result(), "combination")
    assert combined["regret@1"] == pytest.approx((4 - 2) / 5)  # c is outside the data, and a has the best bound
    assert combined["worse"] == 0.0


def test_selection_is_worse_only_if_a_worse_policy_is_selected(calibration):
    found = [calibration.selection_is_worse(result(selected)) for selected in ("a", "c", None)]
    assert found == [0.0, 1.0, 0.0]


def test_silent_estimates_do_not_count(calibration):
    silent = result(policies=[policy(n, 1.0, np.nan, np.nan, silent="too little data") for n in "abc"])
    assert calibration.measures_of(silent, "FQE") == {"estimates": 0.0}
    summary = calibration.summarize([result(), silent])
    assert summary["estimators"]["FQE"]["estimates"]["mean"] == 0.5
    assert summary["estimators"]["FQE"]["coverage"]["datasets"] == 1
    assert summary["policies"] == 7


def test_factor_would_have_covered_90_percent(calibration):
    rng = np.random.default_rng(0)
    policies = [policy(str(i), float(2 * rng.normal()), 0.0, 1.0) for i in range(4_000)]
    assert calibration.width_factor([result(policies=policies)], "FQE") == pytest.approx(2, rel=0.05)


def test_interrupted_command_measures_only_what_is_missing(calibration, tmp_path, capsys, monkeypatch):
    started = []

    def run(words, on_cpu):
        started.append((*words[-2:], on_cpu))
        file = calibration.truth_file if on_cpu else calibration.file_of
        file(tmp_path, words[-1]).write_text(json.dumps(result(dataset=words[-1])))
        return 0

    monkeypatch.setattr(calibration, "start_process", run)
    (tmp_path / "runs").mkdir()
    calibration.file_of(tmp_path, "one").write_text(json.dumps(result()))
    calibration.truth_file(tmp_path, "two").write_text("{}")
    assert calibration.main(["one", "two", "three", "--out", str(tmp_path), "--workers", "1"]) == 0
    assert sorted(started) == [("--only", "three", False), ("--only", "two", False), ("--truth", "three", True)]
    summary = json.loads((tmp_path / "calibration.json").read_text())
    assert summary["datasets"] == 3
    assert "12 policies on 3 datasets" in capsys.readouterr().out


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


def test_replayed_actions_earn_the_logged_return(calibration, tmp_path, monkeypatch):
    """Rollouts and logged returns have the same start state, rewards and discount."""
    name = "pointmaze-medium-navigate-singletask-task1-v0"
    file = tmp_path / "p.npz"
    writers.write_npz(file, pointmaze.generate("pointmaze-medium", 2, calibration.HORIZON + 2, 0, noise=0.5))
    log = ogbench.load(name, path=file)
    first = log.select(np.arange(log.episode_lengths[0]))
    logged = calibration.controller_returns(log, first)
    replayed = calibration.policy_returns(Replay(log.actions), first, episodes=2)
    assert len(logged) == 1
    assert replayed == pytest.approx([logged[0]] * 2, rel=1e-4)
    assert -100 < logged[0] < -50
