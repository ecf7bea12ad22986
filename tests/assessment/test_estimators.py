"""Estimators of the difference from the logged controller: a task with known values, and slow references in float64."""

from __future__ import annotations

import dataclasses
from statistics import NormalDist

import numpy as np
import pytest

import aspc
from aspc.assessment.assess import Assessment, judge, unattainable_gains
from aspc.assessment.assess_options import AssessOptions
from aspc.assessment.assessment_text import describe_selection, format_assessment
from aspc.assessment.combination import IntervalCalibration, between_estimators, combine
from aspc.assessment.critic_estimators import FITTED_Q, PESSIMISTIC, CriticEstimators
from aspc.assessment.evidence import REWARD, DifferenceEstimate, Evidence
from aspc.assessment.fqe import BEHAVIOR, PackedLogs, fit_in_groups
from aspc.assessment.held_out_episodes import HeldOutEpisodes
from aspc.assessment.importance import (
    DOUBLY_ROBUST,
    IMPORTANCE_SAMPLING,
    BehaviorDensity,
    ImportanceSampling,
    PolicyWeights,
    Trajectories,
    effective_size,
    weighted_difference,
)
from aspc.assessment.model_estimator import DYNAMICS_MODEL
from aspc.assessment.trained_runs import Candidate
from aspc.data import Dataset
from aspc.policy import Policy

# ---------------------------------------------------------------------------------------------------------------
# A drifting state that actions pull to 0: x' = 0.9·x + 0.5·a + noise, r = −x² − 0.1·a²
# ---------------------------------------------------------------------------------------------------------------

DISCOUNT, STEPS, BOUND = 0.9, 30, 2.0
LOGGED_GAIN, LOGGED_NOISE = -0.4, 0.35
GAINS = {"better": -0.9, "noiseless": LOGGED_GAIN, "worse": -0.05}
SMALL = AssessOptions(
    discount=DISCOUNT, steps=1_500, hidden_dim=32, batch_size=128, model_steps=1_000, rollouts=48, critics=4
)


def simulate(act, episodes, steps, seed=0):
    """Return observations, actions and rewards [steps, episodes] of a controller."""
    rng = np.random.default_rng(seed)
    x, rows = rng.normal(0, 1, episodes), []
    for _ in range(steps):
        action = np.clip(act(x, rng), -BOUND, BOUND)
        rows.append((x, action, -np.square(x) - 0.1 * np.square(action)))
        x = 0.9 * x + 0.5 * action + rng.normal(0, 0.1, episodes)
    return (np.stack(column) for column in zip(*rows, strict=True))


def logged_controller(x, rng):
    return LOGGED_GAIN * x + LOGGED_NOISE * rng.normal(size=x.shape)


def linear_policy(gain):
    """Return a policy that takes gain·x, by the linear part of tanh."""
    arrays = {
        "layers.0.weight": np.full((1, 1), gain / BOUND * 1e-2, np.float32),
        "layers.0.bias": np.zeros(1, np.float32),
        "layers.1.weight": np.full((1, 1), 1e2, np.float32),
        "layers.1.bias": np.zeros(1, np.float32),
    }
    # ReLU would cut half of x: shift the hidden unit into its linear part.
    arrays["layers.0.bias"][:] = 1.0
    arrays["layers.1.bias"][:] = -1e2
    zero, one, bound = np.zeros(1, np.float32), np.ones(1, np.float32), np.full(1, BOUND, np.float32)
    return Policy("deterministic", arrays, {"activation": "relu"}, zero, one, -bound, bound)


def constant_policy(action):
    """Return a policy that ignores the state."""
    arrays = {
        "layers.0.weight": np.zeros((1, 1), np.float32),
        "layers.0.bias": np.full(1, np.arctanh(action / BOUND), np.float32),
    }
    zero, one, bound = np.zeros(1, np.float32), np.ones(1, np.float32), np.full(1, BOUND, np.float32)
    return Policy("deterministic", arrays, {"activation": "relu"}, zero, one, -bound, bound)


POLICIES = {**{name: linear_policy(gain) for name, gain in GAINS.items()}, "elsewhere": constant_policy(1.9)}


def make_log(episodes=150, steps=STEPS):
    observations, actions, rewards = simulate(logged_controller, episodes, steps)
    timeouts = np.tile(np.arange(steps) == steps - 1, episodes)
    columns = [array.T.reshape(-1) for array in (observations, actions, rewards)]
    return Dataset.from_arrays(
        columns[0][:, None],
        columns[1][:, None],
        columns[2],
        np.zeros(len(timeouts), bool),
        timeouts,
        action_low=-BOUND,
        action_high=BOUND,
        name="pull",
        observation_names=["position"],
        action_names=["force"],
    )


def true_difference(name, discount=DISCOUNT):
    """Return the discounted difference from the controller over an endless task, by long simulation."""
    discounts = discount ** np.arange(120)[:, None]
    _, _, rewards = simulate(lambda x, rng: POLICIES[name].act(x[:, None])[:, 0], 20_000, 120, seed=5)
    _, _, logged = simulate(logged_controller, 20_000, 120, seed=5)
    return float((discounts * (rewards - logged)).sum(0).mean())


@pytest.fixture(scope="module")
def evidence():
    log = make_log()
    return Evidence.of(log, {"effort": np.square(log.actions[:, 0])}, SMALL)


@pytest.fixture(scope="module")
def assessment(evidence) -> Assessment:
    candidates = [Candidate(name, policy, name) for name, policy in POLICIES.items()]
    held_out = HeldOutEpisodes(np.arange(len(evidence.dataset)), "all", [])
    # Without the systematic error of other tasks: here the estimators are right.
    return judge(candidates, evidence, held_out, lambda *_: None, calibration=IntervalCalibration(0.0, None))


def judged(assessment, name):
    return next(p for p in assessment.policies if p.name == name)


def test_linear_policies_are_linear():
    x = np.linspace(-1.5, 1.5, 7)[:, None].astype(np.float32)
    np.testing.assert_allclose(linear_policy(-0.9).act(x), BOUND * np.tanh(-0.9 * x / BOUND), atol=1e-3)


@pytest.mark.parametrize("name", list(GAINS))
def test_intervals_contain_the_true_difference(assessment, name):
    combined, truth = judged(assessment, name).reward, true_difference(name)
    assert combined.low <= truth <= combined.high
    span = true_difference("better") - true_difference("worse")
    assert abs(combined.difference - truth) < 0.25 * span
    assert FITTED_Q in combined.used
    assert DYNAMICS_MODEL in combined.used


@pytest.mark.parametrize("estimator", [FITTED_Q, DYNAMICS_MODEL])
def test_estimators_order_policies(assessment, estimator):
    found = {p.name: e for p in assessment.policies for e in p.of_signal(REWARD) if e.estimator == estimator}
    assert found["better"].difference > found["noiseless"].difference > found["worse"].difference


def test_importance_weighting_is_silent_where_policies_do_not_overlap(assessment):
    for estimate in judged(assessment, "elsewhere").of_signal(REWARD):
        if estimate.estimator in (IMPORTANCE_SAMPLING, DOUBLY_ROBUST):
            assert "of 150 episodes" in estimate.silent_because
            assert np.isnan(estimate.difference)


@pytest.fixture(scope="module")
def short_horizon():
    """Estimates of overlapping policies with a discount of 0.5, at which two steps decide."""
    log, options = make_log(2_000, steps=5), dataclasses.replace(SMALL, discount=0.5, steps=1_000)
    evidence, policies = Evidence.of(log, {}, options), {name: POLICIES[name] for name in ("noiseless", "worse")}
    density = BehaviorDensity.fit(evidence, lambda *_: None)
    importance = ImportanceSampling.of(evidence, density, policies)
    parts = (importance, CriticEstimators(importance))
    return {(e.estimator, e.policy): e for part in parts for e in part.estimate(evidence, policies, lambda *_: None)}


@pytest.mark.parametrize("name", ["noiseless", "worse"])
@pytest.mark.parametrize("kind", [IMPORTANCE_SAMPLING, DOUBLY_ROBUST])
def test_importance_weighting_estimates_overlapping_policies(short_horizon, kind, name):
    found, truth = short_horizon[kind, name], true_difference(name, 0.5)
    assert found.silent_because is None
    assert 50 <= found.effective_episodes < 2_000
    assert abs(found.difference - truth) < 4 * found.standard_error + 0.02
    assert found.standard_error < 0.3


def test_doubly_robust_estimates_have_a_smaller_error(short_horizon):
    for name in ("noiseless", "worse"):
        plain, robust = (short_horizon[kind, name].standard_error for kind in (IMPORTANCE_SAMPLING, DOUBLY_ROBUST))
        assert robust < plain


def test_gains_above_what_the_logged_rewards_allow_give_a_warning(assessment, evidence):
    assert assessment.warnings == []
    best = judged(assessment, "better")
    limit = (evidence.dataset.rewards.max() / (1 - DISCOUNT)) - evidence.logged_returns[REWARD].mean
    assert best.reward.difference < limit
    low = dataclasses.replace(evidence.dataset, rewards=np.minimum(evidence.dataset.rewards, -1.0))
    (warning,) = unattainable_gains([best], dataclasses.replace(evidence, dataset=low))
    most = -1.0 - (1 - DISCOUNT) * evidence.logged_returns[REWARD].mean
    assert warning == f"better: the gain is overestimated: with the logged rewards, it is at most {most:+.4g} per step."


def test_verdicts(assessment):
    kinds = {p.name: p.verdict.kind for p in assessment.policies}
    assert kinds["better"] == "better"
    assert kinds["worse"] == "worse"
    assert kinds["noiseless"] == "better"  # it saves the logged noise
    assert kinds["elsewhere"] == "outside the data"
    assert "force is" in judged(assessment, "elsewhere").verdict.reason
    assert assessment.policies[-1].name == "elsewhere"
    shown = format_assessment(assessment)
    assert "unknown" in shown[shown.index("elsewhere: OUTSIDE THE DATA") :].split("support")[0]
    assert "unknown" not in shown[: shown.index("elsewhere")]


def test_a_policy_that_leaves_the_data_is_never_selected(assessment):
    assert assessment.select().name == "better"
    flattered = dataclasses.replace(
        judged(assessment, "elsewhere"), differences=judged(assessment, "better").differences
    )
    others = [p for p in assessment.policies if p.name in ("worse", "elsewhere")]
    alone = dataclasses.replace(assessment, policies=[flattered, *(p for p in others if p.name == "worse")])
    assert alone.select() is None
    assert alone.select(anyway=True).name == "elsewhere"


def test_choosing_among_many_policies_needs_more_evidence(assessment):
    better = judged(assessment, "better")
    alone = dataclasses.replace(assessment, policies=[better])
    assert alone.selection_bound(better) == better.reward.low
    # One-sided bounds at 0.95^(1/3), so that all three hold with probability 0.95.
    sigma = better.reward.standard_error
    quantile = NormalDist().inv_cdf(0.95 ** (1 / 3))
    assert [p.name for p in assessment.comparable] == [p.name for p in assessment.policies[:-1]]
    assert assessment.selection_bound(better) == pytest.approx(better.reward.difference - quantile * sigma)
    barely = dataclasses.replace(better.reward, difference=sigma * (quantile - 0.05), low=0.01)
    doubtful = dataclasses.replace(better, differences={REWARD: barely})
    among = [doubtful, *(p for p in assessment.policies if p.verdict.kind != "better"), judged(assessment, "worse")]
    assert dataclasses.replace(assessment, policies=[doubtful]).select() is doubtful
    several = dataclasses.replace(assessment, policies=[*among, judged(assessment, "worse")])
    assert several.select() is None
    assert "1 policy is better, but the best of" in describe_selection(several)


def test_kpi_differences_follow_the_actions(assessment):
    # The squared action is larger where the gain is larger; the logged noise adds to the controller's.
    found = {name: judged(assessment, name).differences["effort"].difference for name in GAINS}
    assert found["better"] > found["noiseless"]
    assert judged(assessment, "worse").differences["effort"].probability_higher < 0.05


def test_distances_are_in_the_users_units(assessment):
    (action,) = judged(assessment, "elsewhere").support.actions()
    assert action.name == "force"
    assert 0.8 < action.policy < 1.9  # the log's actions reach about 1.2 and the policy takes 1.9
    assert action.far > 0.99


# ---------------------------------------------------------------------------------------------------------------
# Halves of the episodes
# ---------------------------------------------------------------------------------------------------------------


def test_halves_are_complementary(evidence):
    np.testing.assert_array_equal(evidence.halves[0], ~evidence.halves[1])
    np.testing.assert_array_equal(evidence.halves[2], ~evidence.halves[3])
    assert (evidence.halves.sum(1) == 75).all()
    weights = evidence.row_weights(np.arange(STEPS))  # the first episode
    np.testing.assert_array_equal(weights, np.repeat(2.0 * evidence.halves[None, :, 0], STEPS, 0))
    values = np.arange(4.0)[:, None] * np.ones(len(evidence.dataset))
    expected = np.arange(4)[~evidence.halves[:, 0]].mean()
    assert evidence.mean_of_others(values)[0] == pytest.approx(expected)


def test_spread_of_half_samples_is_the_error_of_the_mean():
    rng = np.random.default_rng(0)
    values = rng.normal(size=400)
    means = []
    for _ in range(500):
        half = rng.permutation(400)[:200]
        means += [values[half].mean(), np.delete(values, half).mean()]
    assert np.std(means) == pytest.approx(values.std() / 400**0.5, rel=0.1)


def test_critics_do_not_learn_from_the_other_half():
    log, options = make_log(8), dataclasses.replace(SMALL, steps=30, critics=2, hidden_dim=8)
    evidence = Evidence.of(log, {}, options)
    is_other = ~evidence.halves[0][evidence.row_groups]
    changed = np.where(is_other, log.rewards - 100, log.rewards).astype(np.float32)

    def fitted(rewards):
        logs = PackedLogs.from_dataset(log, evidence.states, options)
        replaced = logs.rows.copy()
        replaced[:, 2] = rewards[logs.row_numbers]
        logs = dataclasses.replace(logs, rows=replaced, unit=1.0, initial_value=0.0)
        weights = evidence.row_weights(logs.row_numbers)
        (group,) = fit_in_groups(logs, {}, options, weights=weights)
        assert group.names == [BEHAVIOR]
        return group.fqe.start_values(logs, group.actions, group.state)[0]

    before, after = fitted(log.rewards), fitted(changed)
    np.testing.assert_array_equal(before[0], after[0])
    assert np.abs(before[1] - after[1]).max() > 1e-3


def test_too_few_episodes_are_refused():
    with pytest.raises(aspc.AspcError, match="3 episodes for assessing policies; at least 4 are required"):
        Evidence.of(make_log(3), {}, SMALL)


# ---------------------------------------------------------------------------------------------------------------
# Slow references
# ---------------------------------------------------------------------------------------------------------------


def test_weighted_difference_matches_a_loop():
    rng = np.random.default_rng(0)
    weights, increments, base = rng.exponential(size=(5, 3)), rng.normal(size=(5, 3)), rng.normal(size=5)
    expected = sum(base[i] for i in range(5)) / 5
    for t in range(3):
        total = sum(weights[i, t] for i in range(5))
        expected += sum(weights[i, t] * increments[i, t] for i in range(5)) / total
    found = weighted_difference(weights, increments, base)
    assert found.difference == pytest.approx(expected, rel=1e-12)
    assert found.standard_error > 0


def test_equal_weights_give_the_logged_return():
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=(200, 4))
    found = weighted_difference(np.ones((200, 4)), rewards, -rewards.sum(1))
    assert found.difference == pytest.approx(0, abs=1e-12)
    only = weighted_difference(np.ones((200, 4)), rewards, np.zeros(200))
    assert only.standard_error == pytest.approx(rewards.sum(1).std() / 200**0.5, rel=0.15)


def test_effective_size():
    assert effective_size(np.ones(7)) == pytest.approx(7)
    assert effective_size(np.asarray([1.0, 0.0, 0.0])) == pytest.approx(1)
    assert effective_size(np.zeros(3)) == 0


def test_cumulative_weights_match_products(evidence):
    trajectories = Trajectories.of(evidence)
    assert trajectories.rows.shape == (150, 29)  # 0.9²⁹ ≤ 0.05
    ratios = np.random.default_rng(0).normal(0, 0.1, len(evidence.dataset))
    weights = PolicyWeights.of(evidence, trajectories, ratios)
    product = np.exp(ratios[STEPS : STEPS + 3].sum()) / np.exp(ratios[:3].sum())
    assert weights.weights[1, 2] / weights.weights[0, 2] == pytest.approx(product, rel=1e-9)
    assert weights.silent_because is None
    wild = PolicyWeights.of(evidence, trajectories, 20 * ratios)
    assert wild.silent_because.startswith("after 1 step, its effective sample size is below 50 (of 150")
    assert (wild.compared, wild.weights.shape) == (0, (150, 0))


def test_policies_far_from_the_log_have_no_effective_episodes(evidence):
    """The actions of a policy can be so far away that all ratios are tiny; they must not count as equal weights."""
    density = BehaviorDensity(None, np.full(1, 1e-2), evidence.dataset.scale_actions(evidence.dataset.actions))
    importance = ImportanceSampling.of(evidence, density, {"elsewhere": POLICIES["elsewhere"]})
    logged = evidence.dataset.scale_actions(evidence.dataset.actions)
    assert density.log_ratios(logged, np.full_like(logged, 0.95)).max() < -20  # all of them
    assert importance.weights["elsewhere"].silent_because.startswith("after 1 step, its effective sample size is below")


# ---------------------------------------------------------------------------------------------------------------
# Logged returns
# ---------------------------------------------------------------------------------------------------------------


def test_the_error_for_the_logged_controller_counts(evidence):
    mean, std, is_complete, _ = evidence.logged_returns[REWARD]
    assert is_complete
    assert evidence.controller_error(REWARD, mean - 1.5) == pytest.approx(1.5)
    assert evidence.reason_to_distrust(REWARD, mean + 0.9 * std) is None
    # With a discount of 0.99, most of every return is after the end of the log, and unknown.
    cut = Evidence.of(evidence.dataset, {}, dataclasses.replace(SMALL, discount=0.99))
    assert cut.controller_error(REWARD, mean - 1.5) == 0


def test_spread_is_that_of_the_returns_from_all_states():
    log = make_log(100)
    found = Evidence.of(log, {}, SMALL).logged_returns[REWARD]
    rewards = log.rewards.reshape(100, STEPS).astype(float)
    values = []
    for t in range(STEPS):
        left = STEPS - t
        if DISCOUNT**left <= 0.5:  # else most of the return is after the end of the log
            sums = (rewards[:, t:] * DISCOUNT ** np.arange(left)).sum(1)
            values.append(sums / (1 - DISCOUNT**left))
    assert found.spread == pytest.approx(np.concatenate(values).std(), rel=1e-5)
    shifted = dataclasses.replace(log, rewards=log.rewards + 7)
    assert Evidence.of(shifted, {}, SMALL).logged_returns[REWARD].spread == pytest.approx(found.spread, rel=1e-5)


# ---------------------------------------------------------------------------------------------------------------
# Combination
# ---------------------------------------------------------------------------------------------------------------


def answer(difference, error, estimator="model"):
    return DifferenceEstimate(estimator, "p", REWARD, difference, error)


def test_agreeing_estimators_do_not_narrow_the_interval():
    one, two = combine(REWARD, [answer(1.0, 0.5)], 0.9), combine(REWARD, [answer(1.0, 0.5), answer(1.0, 0.5)], 0.9)
    assert (one.low, one.high) == pytest.approx((two.low, two.high))
    assert one.low == pytest.approx(1 - 1.6449 * 0.5, abs=1e-3)
    assert one.probability_higher == pytest.approx(0.97725, abs=1e-4)


def test_disagreement_widens_the_interval():
    found = combine(REWARD, [answer(0.0, 0.5), answer(4.0, 0.5)], 0.9)
    # Q = 2·2²/0.25 = 32 with one degree of freedom; Σv − Σv²/Σv = 8 − 4 = 4.
    assert found.disagreement == pytest.approx((31 / 4) ** 0.5)
    assert found.difference == pytest.approx(2.0)
    assert found.high - found.low == pytest.approx(2 * 1.6449 * (0.25 + 31 / 4) ** 0.5, rel=1e-3)
    assert between_estimators(np.asarray([1.0, 1.1]), np.asarray([1.0, 1.0])) == 0


def test_systematic_error_widens_estimates_that_extrapolate():
    calibration = IntervalCalibration(0.5, None)

    def width(*estimates):
        combined = combine(REWARD, estimates, 0.9, calibration, spread=4.0)
        return (combined.high - combined.low) / (2 * 1.6449)

    for kind in (FITTED_Q, DYNAMICS_MODEL):
        assert width(answer(1.0, 0.5, kind)) == pytest.approx((0.5**2 + (0.5 * 4) ** 2) ** 0.5, rel=1e-3)
    assert width(answer(1.0, 0.5, IMPORTANCE_SAMPLING)) == pytest.approx(0.5, rel=1e-3)
    # An estimate without a systematic error has more weight.
    both = combine(REWARD, [answer(1.0, 0.5, FITTED_Q), answer(2.0, 0.5, IMPORTANCE_SAMPLING)], 0.9, calibration, 4.0)
    assert both.difference > 1.9
    plain = combine(REWARD, [answer(1.0, 0.5, FITTED_Q)], 0.9, IntervalCalibration(0.0, None), 4.0)
    assert plain.standard_error == pytest.approx(0.5)
    assert combine(REWARD, [answer(1.0, 0.5, FITTED_Q)], 0.9, calibration, 4.0).probability_higher < (
        plain.probability_higher
    )


def test_pessimistic_estimate_bounds_critics_that_speak_alone():
    critics = [answer(5.0, 1.0, FITTED_Q), answer(-2.0, 1.0, PESSIMISTIC)]
    assert combine(REWARD, critics, 0.9).low == -2.0
    assert combine(REWARD, [*critics, answer(5.0, 1.0)], 0.9).low == pytest.approx(5 - 1.6449, abs=1e-3)


def test_silent_estimators_are_left_out():
    silent = DifferenceEstimate.silent("model", "p", REWARD, "too little data")
    assert combine(REWARD, [silent, answer(1.0, 0.5, FITTED_Q)], 0.9).used == (FITTED_Q,)
    assert not combine(REWARD, [silent], 0.9).is_known
