"""Assessment of policies with choices: exact importance ratios, fitted-Q evaluation and verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aspc
from aspc.action_space import ActionSpace, Factor
from aspc.assessment.assess_options import AssessOptions
from aspc.assessment.importance import (
    IMPORTANCE_SAMPLING,
    BehaviorDensity,
    PolicyWeights,
    Trajectories,
    option_probabilities,
)
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
