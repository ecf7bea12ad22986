"""A dataset's validation, D4RL's view of it as transitions, and its split by episodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_logs import make_log

from aspc.data.dataset import Dataset
from aspc.data.validation import timeouts_from_limit
from aspc.errors import AspcError


def arrays(n: int = 12, obs: int = 3, act: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "observations": rng.normal(size=(n, obs)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (n, act)).astype(np.float32),
        "rewards": rng.normal(size=n).astype(np.float32),
        "terminals": np.zeros(n, dtype=bool),
        "timeouts": np.zeros(n, dtype=bool),
    }


def make(**changes: object) -> Dataset:
    return Dataset.from_arrays(**{**arrays(), "action_low": -1, "action_high": 1, **changes})


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────────────────

NAN_ROW_7 = arrays()["observations"].copy()
NAN_ROW_7[7, 1] = np.nan
INF_ROW_3 = arrays()["rewards"].copy()
INF_ROW_3[3] = -np.inf
TWO_INFINITIES = arrays()["actions"].copy()
TWO_INFINITIES[2], TWO_INFINITIES[5] = np.inf, -np.inf


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"observations": np.zeros(12)}, r"'observations' must have two axes .*\(12,\)"),
        ({"observations": np.zeros((12, 4, 4))}, "two axes"),
        ({"observations": np.zeros((12, 0))}, "no columns"),
        ({"actions": np.zeros(12, dtype=np.float32)}, "'actions' must have two axes"),
        ({"rewards": np.zeros((12, 2))}, "'rewards' must have one scalar per row"),
        ({"rewards": np.zeros(11)}, "'observations' has 12 rows, but 'rewards' has 11"),
        ({"timeouts": np.zeros(13)}, "'timeouts' has 13"),
        ({"next_observations": np.zeros((12, 4))}, "'next_observations' has 4 columns"),
        ({"observations": NAN_ROW_7}, "'observations' has a NaN.* in row 8 of 12"),
        ({"rewards": INF_ROW_3}, "'rewards' has a NaN.* in row 4 of 12"),
        ({"actions": TWO_INFINITIES}, "'actions' has a NaN.* in row 3 of 12"),
        ({"observations": np.full((12, 3), 1e300)}, "too large value in row 1 of 12"),
        ({"actions": np.zeros((12, 1), dtype=np.int64)}, "discrete"),
        ({"actions": np.zeros(12, dtype=np.int64)}, "discrete"),
        ({"actions": np.zeros((12, 2), dtype=bool)}, "discrete"),
        ({"terminals": np.arange(12)}, "'terminals' must be 0 or 1, but row 3 of 12 has 2"),
        ({"terminals": np.full(12, np.nan)}, "'terminals' must be 0 or 1"),
        ({"observations": np.full((12, 3), "x")}, "must hold numbers"),
        ({"observations": [[1, 2], [3]]}, "must hold numbers"),
        ({"action_low": [-1, -1, -1]}, "action_low must be one number or 2 numbers"),
        ({"action_low": 1, "action_high": -1}, "each low bound must be below"),
        ({"action_high": np.inf}, "must be finite"),
        ({"action_high": 1e300}, "must be finite"),
        (
            {"actions": np.linspace(-3e38, 3e38, 24).reshape(12, 2), "action_low": None, "action_high": None},
            "must be finite",
        ),
        (
            {"actions": np.linspace(0, 3e38, 24).reshape(12, 2), "action_high": None, "action_margin": 1},
            "must be finite",
        ),
        ({"env": "hopper-medium-v2"}, "but hopper-medium-v2 has 11 and 3"),
        ({"env": "Pendulum-v1", "action_low": None}, "the environment Pendulum-v1 takes 1"),
        ({"timeouts": None, "max_episode_steps": 0}, "max_episode_steps must be at least 1"),
    ],
)
def test_invalid_arrays_are_rejected(changes: dict[str, object], says: str) -> None:
    with pytest.raises(AspcError, match=says) as error:
        make(**changes)
    assert "\n" not in str(error.value)


def test_empty_data_is_refused() -> None:
    with pytest.raises(AspcError, match="empty"):
        Dataset.from_arrays(np.zeros((0, 3)), np.zeros((0, 2)), np.zeros(0), np.zeros(0))


def test_integer_actions_are_noted() -> None:
    assert any("are integers" in note for note in make(actions=np.ones((12, 2), dtype=np.float32)).notes)
    assert not any("are integers" in note for note in make().notes)


def test_lost_float32_precision_is_noted() -> None:
    rows = 970

    def notes(offset: float, noise: float = 1.0, **more: object) -> list[str]:
        log = {key: array.astype(np.float64) for key, array in make_log(rows=rows).items()}
        log["observations"][:, 1] = offset + noise * np.arange(rows)
        return [note for note in Dataset.from_arrays(**log, **more).notes if "digits" in note]

    assert notes(0.0) == notes(1e6) == []
    assert notes(9.81, noise=1e-17) == []  # nothing but the rounding of float64
    says = "loses digits in float32 (970 distinct values become 9): subtract an offset first."
    assert notes(1.7e9) == [f"observation dimension 2 {says}"]
    assert notes(1.7e9, observation_names=("x", "time", "y")) == [f"column 'time' {says}"]
    whole = {**make_log(rows=rows), "rewards": 1_700_000_000 + np.arange(rows)}
    assert f"reward {says}" in Dataset.from_arrays(**whole).notes


def test_single_column_vectors_are_accepted() -> None:
    data = make(observations=np.zeros((12, 1)), rewards=np.ones((12, 1)), terminals=np.zeros((12, 1)))
    assert data.observations.shape == (12, 1)
    assert data.rewards.shape == (12,)


# ── bounds ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_actions_outside_the_bounds_are_clipped_or_rejected() -> None:
    actions = arrays()["actions"].copy()
    actions[4, 0], actions[4, 1], actions[9, 1] = 1.5, -7.0, 2.0
    data = make(actions=actions)
    assert any("2 of 12 actions" in note and "the first in row 5 of 12" in note for note in data.notes)
    assert np.abs(data.actions).max() == 1.0
    with pytest.raises(AspcError, match="2 of 12 actions"):
        make(actions=actions, strict=True)


def test_bounds_from_data_are_the_logged_range() -> None:
    """A valve logged from 0 to 100 % is never told to open by 105 %."""
    actions = np.linspace([0.0, -2.0], [100.0, 2.0], 12).astype(np.float32)
    data = make(actions=actions, action_low=None, action_high=None)
    np.testing.assert_array_equal(data.action_low, [0, -2])
    np.testing.assert_array_equal(data.action_high, [100, 2])
    assert data.bounds_source == "logged range"
    wider = make(actions=actions, action_low=None, action_high=None, action_margin=0.05)
    np.testing.assert_allclose(wider.action_high, [105, 2.2], rtol=1e-6)
    assert wider.bounds_source == "logged range with a margin of 5 %"
    assert make(actions=actions, action_low=0, action_high=200).bounds_source == "given"
    assert make(actions=actions, action_low=-9, action_high=None).bounds_source == "low: given; high: logged range"
    with pytest.raises(AspcError, match="action margin, a fraction of the logged range, must be 0 or more, not -1"):
        make(actions=actions, action_low=None, action_high=None, action_margin=-1)
    note = "the action margin is not used: no bound comes from the data."
    assert note in make(actions=actions, action_low=0, action_high=200, action_margin=0.05).notes


@pytest.mark.parametrize("constant", [0.0, 1e-40, 7.3, -250.0, 3e30])
def test_constant_actions_are_pinned(constant: float) -> None:
    """The policy returns the logged constant, exactly or up to its last digit, whatever its network says."""
    actions = np.full((12, 1), constant, np.float32)
    data = make(actions=actions, action_low=None, action_high=None)
    assert data.action_low[0] == actions[0, 0] < data.action_high[0]
    np.testing.assert_allclose(data.action_high, actions[0], rtol=2e-7, atol=2e-30)
    assert np.isfinite(data.scale_actions(actions)).all()
    assert np.abs(data.scale_actions(actions)).max() <= 1


def test_bounds_from_an_environment() -> None:
    actions = np.linspace([-2.0], [2.0], 12).astype(np.float32)
    from_env = make(actions=actions, action_low=None, action_high=None, env="Pendulum-v1")
    np.testing.assert_array_equal(from_env.action_high, [2.0])
    assert from_env.bounds_source == "environment Pendulum-v1"


def test_on_off_actions_are_noted() -> None:
    actions = make_log(rows=12)["actions"]
    actions[:, 1] = np.arange(12) % 2
    (note,) = [note for note in make(actions=actions, action_names=("speed", "pump")).notes if "two values" in note]
    assert note.startswith(
        "action dimension 2 (pump) takes only two values (0 and 1): a policy returns numbers between"
    )
    assert "Round its output (above 0.5 means on), or leave the column out with --map actions=NAMES." in note
    assert not any("two values" in note for note in make().notes)


def test_guessed_bounds_are_noted() -> None:
    actions = np.linspace([-2.0], [2.0], 12).astype(np.float32)

    def notes(**bounds: object) -> tuple[str, ...]:
        return make(**{"actions": actions, "action_low": None, "action_high": None, **bounds}).notes

    assert notes() == (
        "action bounds are guessed from the data ([-2, 2] in every dimension); "
        "set them with --action-low and --action-high.",
    )
    (half,) = notes(action_low=-3)
    assert half.startswith("high action bounds are guessed")
    assert half.endswith("set them with --action-high.")
    assert notes(action_low=-3, action_high=3) == ()
    assert notes(env="Pendulum-v1") == ()


def test_actions_are_scaled_by_their_bounds() -> None:
    actions = np.random.default_rng(0).uniform([0.0, -5.0], [10.0, -4.0], (12, 2)).astype(np.float32)
    data = make(actions=actions, action_low=[0, -5], action_high=[10, -4])
    scaled = data.scale_actions(actions)
    np.testing.assert_allclose([5.0, -4.5] + [5.0, 0.5] * scaled, actions, atol=1e-5)
    np.testing.assert_array_equal(data.transitions().actions, scaled[: len(data.transitions().actions)])


# ── transitions ─────────────────────────────────────────────────────────────────────────────────────────────────────


def slow_transitions(data: Dataset, n_step: int, discount: float) -> list[tuple[object, ...]]:
    """A slow reference for `transitions`, row by row."""
    rows = []
    size = len(data)
    for i in range(size):
        total, k, j = 0.0, 0, i
        while True:
            cut = data.timeouts[j] or j == size - 1
            if not data.terminals[j] and cut and data.next_observations is None:
                break  # nothing is known of what follows row j
            total += discount**k * float(data.rewards[j])
            k += 1
            if data.terminals[j] or cut or k == n_step:
                j += 1
                break
            j += 1
        if k == 0:
            continue
        last = i + k - 1
        over = data.terminals[last] or data.timeouts[last] or last == size - 1
        following = data.observations[last + 1] if data.next_observations is None and last + 1 < size else None
        if data.next_observations is not None:
            following = data.next_observations[last]
        next_action = data.actions[last] if over else data.actions[last + 1]
        rows.append((i, total, following, bool(data.terminals[last]), next_action, discount**k))
    return rows


@st.composite
def logs(draw: st.DrawFn) -> Dataset:
    n = draw(st.integers(1, 30))
    flags = st.lists(st.booleans(), min_size=n, max_size=n)
    values = arrays(n, obs=1, act=1, seed=draw(st.integers(0, 1000)))
    values["observations"] = np.arange(n, dtype=np.float32)[:, None]
    values["terminals"], values["timeouts"] = np.array(draw(flags)), np.array(draw(flags))
    if draw(st.booleans()):
        values["next_observations"] = values["observations"] + 1000.0
    return Dataset.from_arrays(**values, action_low=-1, action_high=1)


@settings(max_examples=300, deadline=None)
@given(data=logs(), n_step=st.integers(1, 5), discount=st.sampled_from([0.0, 0.9, 1.0]))
def test_transitions_equal_a_slow_reference(data: Dataset, n_step: int, discount: float) -> None:
    expected = slow_transitions(data, n_step, discount)
    if not expected:
        with pytest.raises(AspcError, match="there are no transitions"):
            data.transitions(n_step=n_step, discount=discount)
        return
    got = data.transitions(n_step=n_step, discount=discount)
    assert len({len(field) for field in got}) == 1
    assert len(got.rewards) == len(expected)
    for row, (i, total, following, terminal, next_action, power) in enumerate(expected):
        assert got.observations[row, 0] == i
        np.testing.assert_allclose(got.rewards[row], total, rtol=1e-5, atol=1e-6)
        assert bool(got.terminals[row]) == terminal
        if not terminal:
            np.testing.assert_array_equal(got.next_observations[row], following)
        np.testing.assert_array_equal(got.next_actions[row], next_action)
        np.testing.assert_allclose(got.discounts[row], power, rtol=1e-6)


@settings(max_examples=200, deadline=None)
@given(data=logs())
def test_no_transition_that_bootstraps_crosses_an_episode(data: Dataset) -> None:
    try:
        got = data.transitions()
    except AspcError:
        return
    episode = np.repeat(np.arange(len(data.episode_lengths)), data.episode_lengths)
    alive = got.terminals == 0
    here = got.observations[alive, 0].astype(int)
    there = got.next_observations[alive, 0].astype(int)
    if data.next_observations is not None:
        np.testing.assert_array_equal(there, here + 1000)
    else:
        np.testing.assert_array_equal(there, here + 1)
        np.testing.assert_array_equal(episode[there], episode[here])


def test_timeout_rows_are_dropped_without_next_observations_and_kept_with_them() -> None:
    flags = {"terminals": np.eye(12)[3] > 0, "timeouts": np.eye(12)[7] > 0}
    assert len(make(**flags).transitions().rewards) == 10  # less the timeout's row and the unfinished last one
    with_next = make(**flags, next_observations=np.ones((12, 3)))
    assert len(with_next.transitions().rewards) == 12


def test_rewards_are_scaled_and_shifted_before_they_are_summed() -> None:
    data = make(rewards=np.ones(12))
    got = data.transitions(n_step=2, discount=0.5, reward_scale=3.0, reward_shift=-1.0)
    np.testing.assert_allclose(got.rewards[0], 2.0 + 0.5 * 2.0)
    np.testing.assert_array_equal(data.rewards, 1.0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 7))
def test_timeouts_from_a_step_limit(terminals: list[bool], limit: int) -> None:
    expected, step = [], 0
    for terminal in terminals:
        step += 1
        timeout = step == limit and not terminal
        expected.append(timeout)
        if terminal or timeout:
            step = 0
    np.testing.assert_array_equal(timeouts_from_limit(np.array(terminals), limit), expected)


def test_missing_timeouts_use_the_step_limit_with_a_note() -> None:
    data = Dataset.from_arrays(
        np.zeros((2500, 11)), np.zeros((2500, 3)), np.zeros(2500), np.zeros(2500), env="hopper-medium-v2"
    )
    np.testing.assert_array_equal(np.flatnonzero(data.timeouts), [999, 1999])
    assert any("step limit of 1000" in note for note in data.notes)


# ── episodes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_episodes_become_one_log() -> None:
    rng = np.random.default_rng(0)

    def episode(steps: int, extra: int, **more: object) -> dict[str, object]:
        observations = rng.normal(size=(steps + extra, 3))
        return {
            "observations": observations,
            "actions": rng.uniform(-1, 1, (steps, 2)),
            "rewards": np.ones(steps),
            **more,
        }

    data = Dataset.from_episodes(iter([episode(4, 1, terminals=True), episode(3, 1)]), name="two")
    np.testing.assert_array_equal(data.episode_lengths, [4, 3])
    np.testing.assert_array_equal(data.episode_returns, [4.0, 3.0])
    assert data.terminals[3]
    assert data.timeouts[6]
    assert len(data.transitions().rewards) == 7  # T + 1 observations are real next ones

    without = Dataset.from_episodes([episode(4, 0, terminals=True), episode(3, 0)])
    assert len(without.transitions().rewards) == 6
    with pytest.raises(AspcError, match="episode 2 has no next observations, but others do"):
        Dataset.from_episodes([episode(4, 1), episode(3, 0)])
    with pytest.raises(AspcError, match="episode 1: 'rewards' is missing"):
        Dataset.from_episodes([{"observations": [[0.0]], "actions": [[0.0]]}])
    with pytest.raises(AspcError, match="there are 5 and 2"):
        Dataset.from_episodes([{"observations": np.zeros((2, 3)), "actions": np.zeros((5, 2)), "rewards": np.zeros(2)}])
    with pytest.raises(AspcError, match="no episodes"):
        Dataset.from_episodes([])


@settings(max_examples=100, deadline=None)
@given(data=logs(), share=st.floats(0.05, 0.95), seed=st.integers(0, 3))
def test_splits_keep_episodes_complete(data: Dataset, share: float, seed: int) -> None:
    if len(data) < 2:
        with pytest.raises(AspcError, match="at least two"):
            data.split(share, seed)
        return
    learn, held = data.split(share, seed)
    assert len(learn) > 0
    assert len(held) > 0
    rows = np.concatenate([learn.observations[:, 0], held.observations[:, 0]]).astype(int)
    np.testing.assert_array_equal(np.sort(rows), np.arange(len(data)))
    starts, stops = data.episode_bounds
    if len(starts) > 1:
        for part in (learn, held):
            kept = set(part.observations[:, 0].astype(int))
            for start, stop in zip(starts, stops, strict=True):
                assert len(kept & set(range(start, stop))) in (0, stop - start)
    for part in (learn, held):  # no bootstrapping over a seam
        seam = np.flatnonzero(np.diff(part.observations[:, 0]) != 1)
        assert (part.terminals | part.timeouts)[seam].all()


def test_holdout_share_must_be_between_0_and_1() -> None:
    for share in (0.0, 1.0, -1.0, 2.0):
        with pytest.raises(AspcError, match="between 0 and 1"):
            make().split(share)


def test_behavior_score_of_an_endless_log_uses_the_mean_reward() -> None:
    endless = Dataset.from_arrays(
        np.zeros((1000, 4)), np.zeros((1000, 2)), np.full(1000, 0.5), np.zeros(1000), np.zeros(1000), env="maze2d-umaze"
    )
    assert endless.behavior_return() == pytest.approx(150.0)
    assert endless.behavior_score() == pytest.approx(100 * (150 - 23.85) / (161.86 - 23.85))
    ended = make(rewards=np.ones(12), timeouts=np.arange(12) % 4 == 3)
    assert ended.behavior_return() == pytest.approx(4.0)
    assert ended.behavior_score() is None


@pytest.mark.parametrize("flag", ["terminals", "timeouts"])
def test_a_single_ended_episode_is_not_endless(flag: str) -> None:
    def log(end: int) -> Dataset:
        flags = {"terminals": np.zeros(100), "timeouts": np.zeros(100), flag: np.arange(100) == end}
        return Dataset.from_arrays(
            np.zeros((100, 11)), np.zeros((100, 3)), np.ones(100), **flags, env="hopper-medium-v2"
        )

    assert (log(99).is_endless, log(99).behavior_return()) == (False, 100.0)
    assert (log(-1).is_endless, log(-1).behavior_return()) == (True, 1000.0)


def test_returns_exclude_an_episode_cut_by_the_end_of_the_log() -> None:
    rewards = np.repeat([9.0, 10.0, 9.5], [4, 4, 3])
    ends = np.isin(np.arange(11), (3, 7))

    def log(ends: np.ndarray) -> Dataset:
        return Dataset.from_arrays(np.zeros((11, 2)), np.zeros((11, 1)), rewards, np.zeros(11), ends)

    cut = log(ends)
    np.testing.assert_array_equal(cut.episode_returns, [36, 40, 28.5])  # rows to learn from are what they were
    np.testing.assert_array_equal(cut.complete_episode_returns, [36, 40])
    assert cut.behavior_return() == 38.0
    whole = log(ends | (np.arange(11) == 10))
    np.testing.assert_array_equal(whole.complete_episode_returns, whole.episode_returns)
    np.testing.assert_array_equal(log(np.zeros(11)).complete_episode_returns, [rewards.sum()])
