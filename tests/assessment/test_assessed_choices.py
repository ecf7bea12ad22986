"""Assessment of policies with choices: exact importance ratios, fitted-Q evaluation and verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aspc
from aspc.__main__ import main
from aspc.action_space import ActionSpace, Factor
from aspc.assessment.assess_options import AssessOptions
from aspc.assessment.choice_support import compare_choices, is_far_from_log
from aspc.assessment.importance import (
    IMPORTANCE_SAMPLING,
    BehaviorDensity,
    PolicyWeights,
    Trajectories,
    option_probabilities,
)
from aspc.assessment.support import LoggedNeighbors
from aspc.data import Dataset


def test_ratios_of_choices_are_exact() -> None:
    rng = np.random.default_rng(0)
    space = ActionSpace((Factor("a", ("x", "y", "z")), Factor("n")))
    true = rng.dirichlet([2, 2, 2], 500)
    chosen = np.array([rng.choice(3, p=p) for p in true])
    logged = np.concatenate([np.eye(3)[chosen] * 2 - 1, np.zeros((500, 1))], 1)
    density = BehaviorDensity(None, np.ones(4), np.concatenate([true * 2 - 1, np.zeros((500, 1))], 1), space)  # type: ignore[arg-type]
    policy = np.concatenate([np.eye(3)[rng.integers(0, 3, 500)] * 2 - 1, np.zeros((500, 1))], 1)
    ratios = np.exp(density.log_ratios(logged, policy) + np.log(density.bandwidth()[3]))
    is_same = (policy[:, :3].argmax(1) == chosen) & (true.min(1) > 0.01)
    np.testing.assert_allclose(ratios[is_same], 1 / true[is_same, chosen[is_same]], rtol=1e-9)
    assert not ratios[policy[:, :3].argmax(1) != chosen].any()
    assert density.bandwidth()[3] == pytest.approx(500 ** (-1 / 5))  # one dimension
    np.testing.assert_allclose(option_probabilities(np.array([[-1.5, 1.0]])), [[0.01 / 1.01, 1 / 1.01]])


def test_weights_without_any_matching_episode_are_zero() -> None:
    class Options:
        discount = 0.9

    class Evidence:
        options = Options()

    trajectories = Trajectories(np.arange(6).reshape(2, 3), np.ones((2, 3), bool))
    found = PolicyWeights.of(Evidence(), trajectories, np.full(6, -np.inf))  # type: ignore[arg-type]
    assert found.silent_because is not None
    assert found.weights.shape == (2, 0)


SPACE = ActionSpace((Factor("a", ("x", "y")), Factor("n")))


def columns(options: list[int], numbers: list[float]) -> np.ndarray:
    return np.concatenate([np.eye(2)[options] * 2 - 1, np.array(numbers)[:, None]], 1)


def test_options_that_no_similar_state_has_leave_the_log() -> None:
    neighbors = np.stack([columns([0, 0, 1], [0.0, 0.5, -1.0]), columns([1, 1, 1], [0.0, 0.2, 0.4])])
    logged = columns([0, 1], [0.1, 0.3])  # 0.1 from the nearest numbers with the same option
    far = lambda actions: is_far_from_log(SPACE, actions, logged, neighbors).tolist()  # noqa: E731
    assert far(columns([0, 0], [0.05, 0.0])) == [False, True]  # no neighbor of the second state has x
    assert far(columns([1, 1], [0.0, 0.25])) == [True, False]  # y was logged at -1 only
    (choice,) = compare_choices(SPACE, columns([0, 0], [0.0, 0.0]), logged, neighbors)
    assert choice.policy == {"x": 1.0, "y": 0.0}
    assert choice.data == {"x": 0.5, "y": 0.5}
    assert (choice.agreement, choice.unlogged, choice.unlogged_data) == (0.5, 0.5, 0.0)
    assert choice.describe() == (
        "a: x 100 % (50 % in the log), y 0 % (50 % in the log); "
        "the policy takes the logged option in 50 % of the states"
    )


def test_a_policy_of_untried_options_is_outside_the_data_of_a_random_log() -> None:
    """With many options, the log's own options are often missing among few neighbors; 50 are enough."""
    rng = np.random.default_rng(0)
    rows, options = 2_000, 10
    seen, logged = rng.normal(size=(rows, 2)), rng.integers(0, options, rows)
    logged = np.where((seen[:, 0] > 0) & (logged == 9), 3, logged)  # "9" is never logged on the right
    dataset = Dataset.from_arrays(seen, logged, rng.normal(size=rows), np.arange(rows) % 10 == 9)
    neighbors = LoggedNeighbors.of(dataset)
    taken = lambda chosen: neighbors.measure(np.eye(options)[chosen] * 2.0 - 1)  # noqa: E731
    assert taken(logged[neighbors.rows]).far < 0.02
    assert taken(np.full(rows, 4)).far < 0.02
    right = taken(np.full(rows, 9))
    assert 0.3 < right.far < 0.5  # right, and far enough from the border
    assert right.actions() == []
    assert "an option that was logged in none of the 50 most similar states; action alone" in right.describe()
    everywhere = neighbors.measure(-np.ones((rows, options)))  # no option at all
    assert everywhere.is_outside


def test_report_on_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings: dict[str, Any] = {"steps": 20, "env": None, "quiet": True, "tensorboard": False, "batch_size": 16}
    log = tmp_path / "log.csv"
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal():.3f},{rng.choice(['<b>', 'shut'])},{rng.normal():.3f},{i // 20}" for i in range(300)]
    log.write_text("\n".join(["obs_x,action_valve,reward,episode", *rows]))
    run = aspc.train(
        str(log), "discrete_td3_bc", out=tmp_path / "run", actor_hidden_dim=16, critic_hidden_dim=16, **settings
    )
    page = tmp_path / "trust.html"
    assert main(["inspect", str(run.path), "--json", "--quiet", "--out", str(page)]) == 0
    result = json.loads(capsys.readouterr().out)
    found = result["numbers"]["distance"]["choices"]["action_valve"]
    assert sum(found["policy"].values()) == pytest.approx(1)
    assert found["data"]["shut"] == pytest.approx(np.mean([",shut," in row for row in rows]))
    distance, saturation = result["findings"][:2]
    assert "action_valve: " in distance["text"]
    assert "% in the log" in distance["text"]
    assert saturation["text"] == "Does not apply: all actions are discrete."
    shown = page.read_text()
    assert "Options of the policy and of the data" in shown
    assert "<td>&lt;b&gt;</td>" in shown
    assert "<b></td>" not in shown


def decisions(episodes: int, seed: int) -> Dataset:
    """Return a log of decisions with four steps each; the better option follows the sign of the observation."""
    rng = np.random.default_rng(seed)
    seen = rng.normal(size=(episodes * 4, 2))
    right = np.where(rng.random(len(seen)) < 0.6, seen[:, 0] > 0, seen[:, 0] <= 0)
    rewards = np.where(right == (seen[:, 0] > 0), 1.0, 0.0) + 0.1 * rng.normal(size=len(seen))
    ends = np.arange(len(seen)) % 4 == 3  # terminal
    return Dataset.from_arrays(seen, np.where(right, "right", "left"), rewards, ends, name="decisions")


@pytest.mark.slow
def test_a_better_policy_of_choices_is_found(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"steps": 600, "env": None, "quiet": True, "tensorboard": False, "batch_size": 64}
    run = aspc.train(decisions(400, 0), "discrete_iql", out=tmp_path / "run", hidden_dim=32, actor_lr=3e-3, **settings)
    held_out = decisions(800, 1)
    options = AssessOptions(discount=0.9, steps=500, model_steps=500, hidden_dim=32, rollouts=16)
    (policy,) = aspc.assess({"iql": run.policy}, held_out, options=options).policies
    assert policy.verdict.kind == "better"
    (sampled,) = [found for found in policy.estimates if found.estimator == IMPORTANCE_SAMPLING]
    assert sampled.silent_because is None
    truth = 0.4 * sum(0.9**t for t in range(4))
    assert sampled.difference == pytest.approx(truth, abs=0.3)
