"""Off-policy evaluation: known values, parallel and sequential evaluation, the command and its errors."""

from __future__ import annotations

import dataclasses
import json
import shutil

import h5py
import msgspec
import numpy as np
import pytest

import aspc
from aspc.__main__ import main
from aspc.algorithms.bc import BC
from aspc.assessment import device_policy, fqe, trained_runs
from aspc.assessment.device_policy import check_fits, step_on_device
from aspc.assessment.fqe import BEHAVIOR, FQEOptions, fitted_q_evaluation
from aspc.assessment.ranking import find_warning, monte_carlo, rank
from aspc.assessment.returns import (
    States,
    all_states,
    choose_states,
    interval,
    resampled_means,
    returns_to_go,
    start_states,
)
from aspc.cli import fqe as commands
from aspc.data import Dataset
from aspc.policy import Policy, load_policy
from policies import policy_named, policy_of
from tiny import make_dataset

# ---------------------------------------------------------------------------------------------------------------
# A chain with known values: forward with probability (1 + a)/2, else stay; leaving the last state ends the episode
# ---------------------------------------------------------------------------------------------------------------

STATES, GAMMA = 4, 0.9
BEST = np.asarray([0.5, -0.5, 0.0, 0.8])  # the best action in each state


def reward(state, action):
    return state / 3 - np.square(action - BEST[state])


def chain_value(mean_reward, forward):
    """V of a policy with these mean rewards and probabilities of moving forward, by linear algebra."""
    p = np.diag(1 - forward) + np.diag(forward[:-1], 1)  # moving forward from the last state ends the episode
    return np.linalg.solve(np.eye(STATES) - GAMMA * p, mean_reward)


def chain_dataset(rows=4_000):
    rng = np.random.default_rng(0)
    observations, actions, rewards, following, terminals = [], [], [], [], []
    state = 0
    for _ in range(rows):
        action = rng.uniform(-1, 1)
        ahead = rng.random() < (1 + action) / 2
        observations.append(state)
        actions.append([action])
        rewards.append(reward(state, action))
        terminals.append(ahead and state == STATES - 1)
        following.append(min(state + ahead, STATES - 1))
        state = 0 if terminals[-1] else following[-1]
    eye = np.eye(STATES)
    arrays = (eye[observations], np.asarray(actions), rewards, terminals, np.zeros(rows, bool), eye[following])
    return Dataset.from_arrays(*arrays, action_low=-1, action_high=1, name="chain")


def chain_policy(actions):
    """Return a policy that takes actions[s]."""
    arrays = {
        "layers.0.weight": np.arctanh(np.asarray(actions, np.float32))[:, None],
        "layers.0.bias": np.zeros(1, np.float32),
    }
    zero, one = np.zeros(STATES, np.float32), np.ones(STATES, np.float32)
    bound = np.ones(1, np.float32)
    return Policy("deterministic", arrays, {"activation": "relu"}, zero, one, -bound, bound)


CHAIN_POLICIES = {"best": BEST, "middling": BEST - 0.4, "bad": np.asarray([-0.6, 0.4, 0.7, -0.3])}
CHAIN_OPTIONS = FQEOptions(discount=GAMMA, steps=4_000, batch_size=128, hidden_dim=32, hidden_layers=2)


@pytest.fixture(scope="module")
def chain():
    return chain_dataset()


@pytest.fixture(scope="module")
def ranking(chain):
    policies = {name: chain_policy(actions) for name, actions in CHAIN_POLICIES.items()}
    return fitted_q_evaluation(policies, chain, start_states(chain), CHAIN_OPTIONS)


def test_estimates_match_known_values_within_3_percent_of_their_range(ranking):
    truth = {
        name: chain_value(reward(np.arange(STATES), actions), (1 + actions) / 2)[0]
        for name, actions in CHAIN_POLICIES.items()
    }
    # E r over a ~ U(−1, 1): −E(a − b)² = −(1/3 + b²).
    truth[BEHAVIOR] = chain_value(np.arange(STATES) / 3 - 1 / 3 - BEST**2, np.full(STATES, 0.5))[0]
    span = max(truth.values()) - min(truth.values())
    for estimate in (*ranking.policies, ranking.behavior):
        assert abs(estimate.value - truth[estimate.name]) < 0.03 * span, (estimate.name, estimate.value, truth)
        assert estimate.warning is None
        assert len(estimate.critics) == 2
    assert abs(ranking.monte_carlo["value"] - truth[BEHAVIOR]) < 0.03 * span


def test_policies_are_ranked_from_best_to_worst(ranking):
    assert [e.name for e in ranking.policies] == ["best", "middling", "bad"]
    assert ranking.best.name == "best"
    assert [e.first_in for e in ranking.policies] == [1.0, 0.0, 0.0]


def test_parallel_evaluation_matches_sequential(tiny):
    rng = np.random.default_rng(0)
    options = FQEOptions(steps=40, batch_size=16, hidden_dim=8, hidden_layers=1)
    actions = [
        fqe.PolicyActions(*(rng.uniform(-1, 1, (n, 2)).astype(np.float32) for n in (len(tiny), 5))) for _ in range(3)
    ]
    logs = fqe.PackedLogs.from_dataset(tiny, States(np.arange(5), np.arange(5)), options)

    def values(actions, vectorize):
        program = fqe.FQE(options, fqe.Spec(4, 2), logs.layout, vectorize)
        state, _ = program.fit(logs, actions, lambda step, means: None)
        return program.start_values(logs, actions, state)

    alone = np.concatenate([values([one], vectorize=False) for one in actions])
    assert alone.shape == (3, 2, 5)
    together = values(actions, vectorize=True)
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-4 * np.abs(alone).max())
    assert np.abs(alone[0] - alone[1]).max() > 1e-2 * np.abs(alone).max()  # the policies differ


def act_in_batches(policy, observations, rng):
    """Return the actions of a policy without memory, computed on the device."""
    actions, memory = step_on_device(policy, observations, policy.initial_memory(len(observations)), rng)
    assert memory.shape == (len(observations), 0)
    return actions


@pytest.mark.parametrize("algo", ["td3_bc", "fql", "diffusion_ql"])
def test_acting_on_the_device_matches_numpy(algo):
    policy = policy_named(algo)
    observations = np.random.default_rng(0).normal(size=(7, policy.observation_size)).astype(np.float32)
    expected = policy.act(observations, np.random.default_rng(5))
    np.testing.assert_allclose(act_in_batches(policy, observations, np.random.default_rng(5)), expected, atol=2e-5)


def test_acting_in_batches_matches_numpy(monkeypatch):
    policy = policy_named("fql")
    observations = np.random.default_rng(0).normal(size=(8, policy.observation_size)).astype(np.float32)
    noise = np.random.default_rng(5)
    expected = np.concatenate([policy.act(part, noise) for part in np.split(observations, 4)])
    monkeypatch.setattr(device_policy, "MAX_NUMBERS", 2 * policy.action_size)  # two rows at a time
    np.testing.assert_allclose(act_in_batches(policy, observations, np.random.default_rng(5)), expected, atol=2e-5)


# ---------------------------------------------------------------------------------------------------------------
# Returns of the data
# ---------------------------------------------------------------------------------------------------------------


def small(terminals, timeouts, rewards):
    n = len(rewards)
    return Dataset.from_arrays(
        np.zeros((n, 1)), np.zeros((n, 1)), rewards, terminals, timeouts, action_low=-1, action_high=1
    )


def test_returns_of_a_log_with_a_timeout_in_the_middle():
    #          truncated by a timeout    ends     truncated by the end of the data
    data = small([0, 0, 0, 1, 0], [0, 1, 0, 0, 0], [1.0, 2.0, 4.0, 8.0, 16.0])
    found = returns_to_go(data, 0.5)
    np.testing.assert_allclose(found.returns, [1 + 0.5 * 2, 2, 4 + 0.5 * 8, 8, 16])
    np.testing.assert_allclose(found.missing, [0.25, 0.5, 0, 0, 0.5])
    np.testing.assert_array_equal(found.is_complete, [False, False, True, True, False])
    # With other rewards (as an algorithm prepares them), the same rule.
    np.testing.assert_allclose(returns_to_go(data, 0.5, np.ones(5)).returns, [1.5, 1, 1.5, 1, 1])


def test_late_truncation_hardly_counts():
    data = small(np.zeros(100), np.arange(100) == 99, np.ones(100))
    found = returns_to_go(data, 0.9)
    # 0.9²⁹ ≤ 0.05 < 0.9²⁸: all rows but the last 28 are complete enough.
    assert found.is_complete.sum() == 72
    assert found.returns[0] == pytest.approx(10, rel=1e-4)


def test_monte_carlo_uses_only_complete_returns():
    data = small([0, 0, 0, 1], [0, 1, 0, 0], [100.0, 100.0, 1.0, 1.0])
    found = monte_carlo(data, start_states(data), FQEOptions(discount=0.5))
    assert found["value"] == pytest.approx(1.5)
    assert (found["states"], found["of"]) == (1, 2)
    cut = small([0, 0, 0, 0], [0, 1, 0, 1], [1.0, 1.0, 1.0, 1.0])
    assert monte_carlo(cut, start_states(cut), FQEOptions(discount=0.5)) is None


def test_intervals_cover_the_mean():
    rng, hits, trials = np.random.default_rng(0), 0, 300
    for trial in range(trials):
        groups = np.repeat(np.arange(100), 3)
        values = rng.normal(size=100)[groups] + 0.1 * rng.normal(size=300)  # rows of an episode are correlated
        low, high = interval(resampled_means(values[None], groups, 200, seed=trial))[0]
        hits += low <= 0 <= high
    assert 0.92 <= hits / trials <= 0.97


def test_resamples_draw_complete_episodes_and_are_shared():
    values, groups = np.asarray([[0.0, 0.0, 3.0], [1.0, 1.0, 4.0]]), np.asarray([0, 0, 1])
    means = resampled_means(values, groups, 200)
    assert set(np.round(means[0], 6)) == {0.0, 1.0, 3.0}
    np.testing.assert_allclose(means[1] - means[0], 1.0)


def test_unbroken_log_is_evaluated_everywhere():
    data = make_dataset(100, terminals=np.zeros(100), timeouts=np.zeros(100))
    states = choose_states(data, "auto")
    np.testing.assert_array_equal(states.rows, np.arange(100))
    np.testing.assert_array_equal(np.bincount(states.groups), np.full(20, 5))
    assert len(all_states(make_dataset(100)).rows) == 100
    with pytest.raises(aspc.AspcError, match="no episodes"):
        choose_states(data, "start")


def test_single_episode_is_evaluated_everywhere():
    data = make_dataset(100, terminals=np.arange(100) == 99, timeouts=np.zeros(100))
    np.testing.assert_array_equal(choose_states(data, "start").rows, [0])
    assert len(choose_states(data, "auto").rows) == 100


def test_find_warning():
    steady = np.full(20, 3.0)
    assert find_warning(steady, np.asarray([3.0, 3.0]), (0.0, 10.0)) is None
    assert "NaN" in find_warning(np.append(steady, np.nan), np.asarray([3.0, np.nan]), (0.0, 10.0))
    assert "from 0 to 10" in find_warning(steady, np.asarray([3.0, 11.0]), (0.0, 10.0))
    assert "settled" in find_warning(np.linspace(0, 3, 20), np.asarray([3.0, 3.0]), (0.0, 10.0))
    assert "diverged" in find_warning(steady, np.asarray([3.0, 3.0]), (400.0, 500.0))
    assert "diverged" in find_warning(-steady, np.asarray([-3.0, -3.0]), (-500.0, -400.0))


@pytest.mark.parametrize("reward", [-5.0, 3.0])
@pytest.mark.parametrize("ends", [False, True])
def test_critics_start_at_the_value_of_the_data(reward, ends):
    """That is reward / (1 − γ·0.9) if every tenth row is terminal, and reward / (1 − γ) otherwise."""
    last = np.arange(200) % 10 == 9
    terminals, timeouts = (last, np.zeros(200)) if ends else (np.zeros(200), last)
    data = make_dataset(200, rewards=np.full(200, reward), terminals=terminals, timeouts=timeouts)
    options = FQEOptions(steps=1, hidden_dim=8, batch_size=16, discount=0.9)
    policy = policy_of(BC(), data.observation_size, data.action_size)
    ranking = fitted_q_evaluation({"any": policy}, data, start_states(data), options)
    value = reward / (1 - 0.9 * (0.9 if ends else 1.0))
    assert ranking.behavior.value == pytest.approx(value, rel=0.02)
    assert ranking.best.value == pytest.approx(value, rel=0.02)


def test_diverged_policies_come_last(tiny):
    states = start_states(tiny)
    values = np.full((3, 2, len(states.rows)), -0.1)
    values[1] = 1e9
    ranking = rank(
        ["data", "wild", "tame"], values, np.repeat(values.mean((1, 2))[:, None], 5, 1), tiny, states, FQEOptions()
    )
    assert [e.name for e in ranking.policies] == ["tame", "wild"]
    assert ranking.policies[1].has_diverged
    assert ranking.best.first_in == 1.0
    assert "wild" in commands.format_ranking(ranking, {"figure": "f"})
    everything = rank(["data", "wild"], values[:2], values.mean((1, 2))[:2, None], tiny, states, FQEOptions())
    with pytest.raises(aspc.AspcError, match="diverged"):
        _ = everything.best


# ---------------------------------------------------------------------------------------------------------------
# The command
# ---------------------------------------------------------------------------------------------------------------

QUICK = ["--steps", "40", "--hidden-dim", "8", "--batch-size", "16", "--quiet"]
HOSTILE = "run$x_{<script>"


def write_log(path, data):
    with h5py.File(path, "w") as file:
        for name in ("observations", "actions", "rewards", "terminals", "timeouts"):
            file[name] = getattr(data, name)
    return str(path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train two seeds with two checkpoints on a file, in a folder with a hostile name."""
    home = tmp_path_factory.mktemp("ope")
    log = write_log(home / "log.hdf5", make_dataset())
    options = {"log_every": 20, "checkpoint_every": 20, "quiet": True, "tensorboard": False, "env": None}
    small = {"actor_hidden_dim": 16, "batch_size": 16}
    return aspc.train(log, "bc", out=home / HOSTILE, steps=40, seeds=[0, 1], **options, **small)


def refused(capsys, argv):
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith("aspc: ")
    assert said.count("\n") == 1
    return said


def test_ranking_with_selection(trained, tmp_path, capsys):
    figure, chosen = tmp_path / "new" / "ranking.png", tmp_path / "chosen"
    assert main(["fqe", str(trained.path), *QUICK, "--json", "--figure", str(figure), "--select", str(chosen)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {p["name"] for p in result["policies"]} == {f"{HOSTILE}/seed0", f"{HOSTILE}/seed1"}
    assert result["dataset"] == "log"
    assert figure.read_bytes().startswith(b"\x89PNG")
    best = result["policies"][0]
    policy, original = load_policy(chosen), load_policy(best["source"])
    observations = make_dataset().observations
    np.testing.assert_array_equal(policy.act(observations), original.act(observations))
    assert policy.info["chosen"]["from"] == best["source"]
    assert policy.info["chosen"]["among"] == 2
    assert "already exists" in refused(capsys, ["fqe", str(trained.path), "--select", str(chosen)])
    page = tmp_path / "trust.html"
    assert main(["inspect", str(chosen), "--out", str(page)]) == 0  # it records the data of its run
    assert page.is_file()


def test_selected_checkpoint_records_its_data(trained, tmp_path, capsys):
    chosen = tmp_path / "chosen"
    figure = ["--figure", str(tmp_path / "f.png")]
    assert main(["fqe", str(trained.path), "--checkpoints", *QUICK, *figure, "--select", str(chosen)]) == 0
    assert load_policy(chosen).info["chosen"]["data"]["source"].endswith("log.hdf5")
    assert main(["fqe", str(chosen), *QUICK, *figure]) == 0


@pytest.mark.parametrize("chosen", ["best", {"data": "log.hdf5"}, {"data": {"source": "x", "name": "x", "options": 1}}])
def test_invalid_selection_note_is_ignored(trained, tmp_path, capsys, chosen):
    dataclasses.replace(load_policy(trained.path / "policy" / "seed0"), info={"chosen": chosen}).save(tmp_path / "p")
    assert "does not record the data" in refused(capsys, ["fqe", str(tmp_path / "p"), *QUICK])


def test_selection_that_has_not_settled_is_marked(tiny):
    states = start_states(tiny)
    values = np.full((2, 2, len(states.rows)), -0.1)
    moving = np.repeat(np.linspace(-0.9, -0.1, 20)[None], 2, 0)
    ranking = rank(["data", "mine"], values, moving, tiny, states, FQEOptions())
    last = commands.format_ranking(ranking, {"figure": "f", "selected": "best"}).splitlines()[-1]
    assert last == "selected  mine → best (its estimate has not settled: increase --steps)"


def test_changed_data_is_noted(trained, tmp_path, capsys):
    home = shutil.copytree(trained.path, tmp_path / "run")
    data = make_dataset()
    config = json.loads((home / "config.json").read_text())
    config["dataset"]["source"] = write_log(tmp_path / "log.hdf5", data)
    (home / "config.json").write_text(json.dumps(config))
    ask = ["fqe", str(home), *QUICK, "--figure", str(tmp_path / "f.png")]
    assert main(ask) == 0
    assert "note" not in capsys.readouterr().err
    write_log(tmp_path / "log.hdf5", dataclasses.replace(data, rewards=data.rewards + 1))
    assert main(ask) == 0
    assert f"note: the rows of log differ from those that {home} was trained on\n" in capsys.readouterr().err


def test_checkpoints_are_ranked_and_the_last_is_the_saved_policy(trained, tmp_path, capsys):
    figure = str(tmp_path / "f.png")
    assert main(["fqe", str(trained.path), *QUICK, "--checkpoints", "--figure", figure]) == 0
    shown = capsys.readouterr().out
    for name in ("seed0@20", "seed0@40", "seed1@20", "seed1@40", BEHAVIOR):
        assert name in shown
    found = {
        c.name.split("/")[-1]: c.policy
        for c in trained_runs.checkpoint_policies([trained.path], trained_runs.dataset_of([trained.path], None, {}))
    }
    observations = make_dataset().observations
    saved = trained.policy_of(1).act(observations)
    np.testing.assert_allclose(found["seed1@40"].act(observations), saved, atol=1e-6)
    assert np.abs(found["seed1@20"].act(observations) - saved).max() > 1e-3


def test_fleet_policies_record_their_data(trained, tmp_path):
    fleet = tmp_path / "fleet"
    for name, seed in (("a", 0), ("b", 1)):
        trained.policy_of(seed).save(fleet / "policy" / name)
    facts = msgspec.to_builtins(trained.config.dataset)
    members = [{"name": name, "seed": i, "dataset": i, "settings": {}} for i, name in enumerate("ab")]
    config = {"algo": "bc", "asked": "", "members": members, "datasets": [facts, facts]}
    (fleet / "config.json").write_text(json.dumps(config))
    assert [c.name for c in trained_runs.saved_policies([fleet])] == ["fleet/a", "fleet/b"]
    assert len(trained_runs.dataset_of([fleet], None, {})) == len(make_dataset())
    config["datasets"][1] = {**facts, "source": "elsewhere.csv", "name": "elsewhere"}
    (fleet / "config.json").write_text(json.dumps(config))
    assert len(trained_runs.dataset_of([fleet / "policy" / "a"], None, {})) == len(make_dataset())
    with pytest.raises(aspc.AspcError, match="different data"):
        trained_runs.dataset_of([fleet], None, {})
    with pytest.raises(aspc.AspcError, match=r"file elsewhere\.csv no longer exists; pass its new path with --dataset"):
        trained_runs.dataset_of([fleet / "policy" / "b"], None, {})


def test_mistakes_give_one_sentence(trained, tmp_path, capsys):
    run = str(trained.path)
    assert "at least one" in refused(capsys, ["fqe"])
    assert "No policy found" in refused(capsys, ["fqe", str(tmp_path)])
    other = write_log(tmp_path / "other.hdf5", make_dataset(obs=3))
    assert "4 observation" in refused(capsys, ["fqe", run, "--dataset", other, *QUICK])
    assert "4 observation" in refused(capsys, ["fqe", run, "--dataset", other, "--checkpoints", *QUICK])
    unlike = write_log(tmp_path / "unlike.hdf5", make_dataset(seed=1))
    assert "not the data" in refused(capsys, ["fqe", run, "--dataset", unlike, "--checkpoints", *QUICK])
    endless = write_log(tmp_path / "endless.hdf5", make_dataset(terminals=np.zeros(600), timeouts=np.zeros(600)))
    assert "no episodes" in refused(capsys, ["fqe", run, "--dataset", endless, "--states", "start", *QUICK])
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "checkpoints")
    assert "no checkpoint" in refused(capsys, ["fqe", str(copy), "--checkpoints", *QUICK])
    config = json.loads((copy / "config.json").read_text())
    config["dataset"]["source"] = None
    (copy / "config.json").write_text(json.dumps(config))
    assert "--dataset" in refused(capsys, ["fqe", str(copy), *QUICK])
    assert "discount" in refused(capsys, ["fqe", run, "--discount", "1"])
    assert "cannot be written" in refused(capsys, ["fqe", run, "--figure", f"{endless}/f.png"])
    (tmp_path / "folder.png").mkdir()
    assert "is a folder" in refused(capsys, ["fqe", run, "--figure", str(tmp_path / "folder.png")])
    before = (tmp_path / "other.hdf5").read_bytes()
    assert "ends in .png" in refused(capsys, ["fqe", run, "--figure", other])
    assert "ends in .html" in refused(capsys, ["inspect", run, "--out", other])
    assert (tmp_path / "other.hdf5").read_bytes() == before
    assert "only applies to data passed with --dataset" in refused(capsys, ["fqe", run, "--action-high", "3", *QUICK])


def test_reordered_columns_are_rejected(trained, tmp_path, capsys):
    policy = trained.policy_of(0)
    named = dataclasses.replace(policy, info={**policy.info, "observation_names": ["a", "b", "c", "d"]})
    named.save(tmp_path / "named")
    data = dataclasses.replace(make_dataset(), observation_names=("a", "c", "b", "d"))
    with pytest.raises(aspc.AspcError, match=r"trained on observations a, b, c, d, but tiny has a, c, b, d\. .*--map"):
        check_fits("named", Policy.load(tmp_path / "named"), data)
    check_fits("named", named, dataclasses.replace(data, observation_names=("a", "b", "c", "d")))
    check_fits("named", named, make_dataset())  # without column names


def test_bounds_of_other_data_do_not_clip_a_policy(trained):
    policy, data = trained.policy_of(0), make_dataset()
    narrow = dataclasses.replace(data, action_low=data.action_low / 4, action_high=data.action_high / 4)
    wide = trained_runs.with_bounds_of(narrow, [policy], {})
    np.testing.assert_array_equal(wide.action_high, policy.action_high)
    np.testing.assert_array_equal(wide.action_low, policy.action_low)
    given = {"action_low": narrow.action_low, "action_high": narrow.action_high}
    assert trained_runs.with_bounds_of(narrow, [policy], given) is narrow
    wider = dataclasses.replace(data, action_low=2 * policy.action_low, action_high=2 * policy.action_high)
    np.testing.assert_array_equal(trained_runs.with_bounds_of(wider, [policy], {}).action_high, wider.action_high)


@pytest.mark.parametrize("content", ["[1, 2]", '{"dataset": "foo"}', "{", '{"members": 3}'])
def test_config_of_another_program_is_ignored(trained, tmp_path, content):
    trained.policy_of(0).save(tmp_path / "project" / "best")
    (tmp_path / "project" / "config.json").write_text(content)
    assert trained_runs.home_of(tmp_path / "project" / "best") is None
    with pytest.raises(aspc.AspcError, match="pass it with --dataset"):
        trained_runs.dataset_of([tmp_path / "project" / "best"], None, {})
    with pytest.raises(aspc.AspcError):
        trained_runs.dataset_of([tmp_path / "project"], None, {})


def test_names_are_printable_and_unique():
    assert commands.printable("a\x1b[31mb\n") == "a?[31mb?"
    assert trained_runs.unique_names([["x", "a", "seed0"], ["y", "a", "seed0"]]) == ["x/a/seed0", "y/a/seed0"]


def test_missed_behavior_value_gives_a_warning(ranking):
    assert commands.behavior_warning(ranking) is None
    behavior = dataclasses.replace(ranking.behavior, value=ranking.behavior.value + 100)
    assert "Do not rely on the other estimates" in commands.behavior_warning(
        dataclasses.replace(ranking, behavior=behavior)
    )
