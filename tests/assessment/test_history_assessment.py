"""Policies with a history are judged on the logged histories; critics and models see the longest one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import aspc
from aspc.__main__ import main
from aspc.assessment import fqe
from aspc.assessment.assess import assess
from aspc.assessment.assess_options import AssessOptions
from aspc.assessment.evidence import Evidence
from aspc.assessment.fqe_options import FQEOptions
from aspc.assessment.inspected_policy import InspectedPolicy
from aspc.assessment.model_estimator import fit_dynamics
from aspc.assessment.returns import choose_states
from aspc.assessment.support import LoggedNeighbors
from aspc.assessment.trust_report import assess_policy
from aspc.data import Dataset
from aspc.data.history import stack_dataset
from aspc.data.writers import dataset_arrays, write_hdf5
from aspc.history import NEWEST_ONLY, History
from aspc.policy import Policy
from aspc.training.run_folder import Run
from policies import policy_named
from tiny import TINY, make_dataset

HISTORY = History(3, actions=True)
OPTIONS = AssessOptions(steps=20, model_steps=20, hidden_dim=8, batch_size=16, rollouts=4)
QUICK = ["--steps", "20", "--model-steps", "20", "--hidden-dim", "8", "--batch-size", "16", "--rollouts", "4"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("history")
    write_hdf5(folder / "log.hdf5", dataset_arrays(make_dataset(1_000)))
    settings = {**TINY, "steps": 40, "log_every": 20, "checkpoint_every": 20, "quiet": True, "tensorboard": False}
    source = str(folder / "log.hdf5")
    return aspc.train(
        source, "aspc", out=folder / "run", env=None, holdout=0.3, history=3, history_actions=True, **settings
    )


def with_history(history: History) -> Policy:
    policy = policy_named("td3_bc", obs=history.size(4, 2), act=2)
    mean, std = policy.observation_mean[:4], policy.observation_std[:4]
    return replace(policy, observation_mean=mean, observation_std=std, history=history)


def test_critics_of_fqe_see_the_longest_history() -> None:
    data = make_dataset()
    policies = {
        "short": with_history(History(2, actions=True)),
        "long": with_history(History(4)),
        "plain": with_history(NEWEST_ONLY),
    }
    options = FQEOptions(steps=4, hidden_dim=8, critics=2, batch_size=16)
    states = choose_states(data, "auto")
    logs = fqe.PackedLogs.from_dataset(data, states, options, History(4, actions=True))
    assert logs.layout.obs_dim == History(4, actions=True).size(4, 2) == 22
    expected = stack_dataset(data, History(4, actions=True)).transitions(discount=options.discount)
    batch = logs.layout.unpack(jnp.asarray(logs.rows))
    np.testing.assert_allclose(batch.observations, logs.normalizer(expected.observations), atol=1e-6)
    np.testing.assert_allclose(batch.next_observations, logs.normalizer(expected.next_observations), atol=1e-6)
    np.testing.assert_array_equal(logs.next_observations, data.transitions().next_observations)
    for policy in policies.values():  # the next actions are those on the next row of the log
        actions = logs.actions_of(policy, 0)
        inside = ~data.terminals[logs.row_numbers] & (np.diff(logs.row_numbers, append=-1) == 1)
        on_rows = data.scale_actions(fqe.act_on_rows(policy, data, logs.row_numbers, np.random.default_rng(0)))
        np.testing.assert_allclose(actions.next[:-1][inside[:-1]], on_rows[1:][inside[:-1]], atol=1e-5)
        np.testing.assert_allclose(actions.start, on_rows[np.isin(logs.row_numbers, states.rows)], atol=1e-5)
    ranking = fqe.fitted_q_evaluation(policies, data, states, options)
    assert {e.name for e in ranking.policies} == set(policies)
    assert all(np.isfinite(e.value) for e in ranking.policies)


def hidden_switch(episodes: int = 400) -> Dataset:
    """Return episodes of two rows, whose reward at the second row is the observation of the first (±1).

    The second observation is always 0, so only a history determines the value of the second row.
    """
    first = np.random.default_rng(0).choice([-1.0, 1.0], episodes)
    rows = np.zeros((episodes, 2, 1))
    rows[:, 0, 0] = first
    rewards = np.stack([np.zeros(episodes), first], 1).reshape(-1)
    ends = np.tile([False, True], episodes)
    actions = np.random.default_rng(1).uniform(-1, 1, (2 * episodes, 1))
    return Dataset.from_arrays(rows.reshape(-1, 1), actions, rewards, ends, action_low=-1, action_high=1, name="switch")


def test_critics_learn_values_that_depend_on_the_history() -> None:
    data = hidden_switch()
    options = FQEOptions(steps=600, hidden_dim=16, critics=2, batch_size=64, learning_rate=1e-2, discount=0.9)
    values = {}
    for history in (NEWEST_ONLY, History(2)):
        logs = fqe.PackedLogs.from_dataset(data, choose_states(data, "start"), options, history)
        (group,) = fqe.fit_in_groups(logs, {}, options)
        second = logs.normalizer(logs.stacked.observations[1::2])
        found = group.fqe.values(group.state, jnp.asarray(second), jnp.asarray(logs.behavior.next[None, ::2]))
        values[history] = np.asarray(found[0].mean(0)) * logs.unit
    first = data.observations[::2, 0]
    assert np.abs(values[History(2)] - first).max() < 0.2
    assert np.abs(values[NEWEST_ONLY] - first).min() > 0.5  # the mean of both


def test_dynamics_models_use_the_history() -> None:
    """The observation alternates between the last two values, so that one of them does not determine the next."""
    steps, episodes = 20, 200
    rng = np.random.default_rng(0)
    pairs = rng.normal(size=(episodes, 2, 2)).astype(np.float32)
    observations = np.tile(pairs, (1, steps // 2, 1)).reshape(-1, 2)
    ends = np.zeros(episodes * steps, bool)
    ends[steps - 1 :: steps] = True
    actions = rng.uniform(-1, 1, (len(ends), 1))
    data = Dataset.from_arrays(
        observations, actions, np.zeros(len(ends)), np.zeros(len(ends)), ends, action_low=-1, action_high=1
    )
    options = AssessOptions(steps=20, model_steps=800, hidden_dim=32, batch_size=64, rollouts=4)
    errors = {}
    for history in (NEWEST_ONLY, History(2)):
        models, _ = fit_dynamics(Evidence.of(data, {}, options, history), lambda step, part: None)
        errors[history] = float(np.asarray(models.noise).max())
    assert errors[History(2)] < 0.6 * errors[NEWEST_ONLY]  # the second observation of an episode stays unknown


def test_neighbors_are_states_with_similar_histories() -> None:
    data = make_dataset()
    single, stacked = (LoggedNeighbors.of(data, history=h) for h in (NEWEST_ONLY, HISTORY))
    assert (stacked.state_distances > single.state_distances).all()  # more dimensions


def test_assess_judges_policies_with_different_histories(run: Run) -> None:
    policies = {"long": run.policy, "plain": with_history(NEWEST_ONLY)}
    result = assess(policies, make_dataset(400, seed=3), options=OPTIONS)
    assert {p.name for p in result.policies} == set(policies)
    held_out = assess(run, options=OPTIONS)
    assert "those that no policy was trained on" in held_out.episodes
    assert len(held_out.policies) == 1


def test_inspection_evaluates_the_runs_critics_on_histories(run: Run) -> None:
    inspected = InspectedPolicy.load(run.path / "policy" / "seed0", make_dataset(1_000), 50)
    assert inspected.trained is not None
    assert inspected.critics is not None
    assert inspected.observations.shape == (50, HISTORY.size(4, 2))
    algorithm, prepared = inspected.trained.algorithm, inspected.trained.prepared
    assert prepared.rows is not None
    kept = make_dataset(1_000).split(0.3, seed=0)[0]
    batch = prepared.layout.unpack(jnp.asarray(prepared.rows))
    expected = np.asarray(algorithm.critics(inspected.state)(batch.observations, batch.actions))
    raw = stack_dataset(kept, HISTORY).observations[kept.transition_rows()[0]]
    np.testing.assert_allclose(inspected.critics(raw, np.asarray(batch.actions)), expected, atol=1e-4)
    report = assess_policy(inspected)
    assert ("history", "3 observations and the actions between them") in report.description
    assert {check.level for check in report.checks} <= {"good", "look", "worry", "unknown"}
    unknown = {check.topic for check in report.checks if check.level == "unknown"}
    assert not unknown & {"values of the critics", "disagreement of the critics", "theory"}


def test_commands(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    folder = str(run.path)
    assert main(["assess", folder, "--quiet", *QUICK]) in (0, 1)
    assert main(["fqe", folder, "--quiet", "--steps", "20", "--hidden-dim", "8"]) == 0
    assert main(["fqe", folder, "--quiet", "--steps", "20", "--hidden-dim", "8", "--checkpoints"]) == 0
    assert main(["inspect", folder, "--quiet", "--states", "50"]) == 0
    capsys.readouterr()
