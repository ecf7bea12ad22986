"""Training with a history: rows, configs, resuming, fleets, streams, evaluation and fine-tuning."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import aspc
from aspc import algorithms
from aspc.__main__ import main
from aspc.data.history import FrameStacker
from aspc.data.packing import pack
from aspc.data.streaming import EPISODES
from aspc.data.writers import dataset_arrays, write_hdf5
from aspc.errors import AspcError
from aspc.history import History
from aspc.policy import Policy
from aspc.training import online
from aspc.training.finetune import finetune, resume
from aspc.training.fleet import Member, train_fleet
from aspc.training.grouping import group_key
from aspc.training.hyperparameters import replace_fields
from aspc.training.normalizer import ObservationNormalizer
from aspc.training.packed_table import Layout
from aspc.training.packed_table import pack as pack_rows
from aspc.training.prepared_data import PreparedDataset, shared_tables, transitions_of
from aspc.training.rollout_worker import rollouts
from aspc.training.run_config import RunConfig, TrainOptions, from_json, to_json
from policies import policy_named
from tiny import TINY, Counting, make_dataset

SHORT: dict[str, Any] = {**TINY, "steps": 80, "log_every": 40, "eval_every": 80, "eval_episodes": 2}
SHORT |= {"quiet": True, "tensorboard": False}
LONG = {"history": 3, "history_actions": True}
HISTORY = History(3, actions=True)
ASPC = replace_fields(algorithms.default("aspc"), TINY)
REBRAC = replace_fields(
    algorithms.default("rebrac"), {"hidden_dim": 16, "batch_size": 16, "normalize_observations": True}
)


class Drifting(gym.Env[Any, Any]):
    """Episodes of 10 to 14 steps with random observations; the reward is the first action."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.limit = 0, int(self.np_random.integers(10, 15))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._observe(), float(action[0]), False, self.t == self.limit, {}

    def _observe(self) -> np.ndarray:
        return self.np_random.normal(size=4).astype(np.float32)


def reference_actions(policy: Policy, observations: list[np.ndarray], executed: list[np.ndarray]) -> np.ndarray:
    """Return a deterministic policy's action at the last observation of an episode, by a slow stack."""
    n, center = policy.history.observations, (policy.action_high + policy.action_low) / 2
    half = (policy.action_high - policy.action_low) / 2
    frames = [observations[max(len(observations) - 1 - k, 0)] for k in range(n)]
    lagged = [(executed[-k] - center) / half if k <= len(executed) else 0 * center for k in range(1, n)]
    rows = [(frame - policy.observation_mean) / policy.observation_std for frame in frames]
    x = np.concatenate([*rows, *(lagged if policy.history.actions else [])])
    i = 0
    while f"layers.{i}.weight" in policy.arrays:
        x = np.maximum(x, 0) if i else x
        x = x @ policy.arrays[f"layers.{i}.weight"] + policy.arrays[f"layers.{i}.bias"]
        i += 1
    return np.asarray(center + half * np.tanh(x))


def weights(run: Any) -> dict[str, np.ndarray]:
    return {f"{seed}/{name}": array for seed in run.seeds for name, array in run.policy_of(seed).arrays.items()}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


# -- prepared rows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [ASPC, REBRAC], ids=["aspc", "rebrac"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_rows_without_history_are_unchanged(algorithm: Any, n_step: int) -> None:
    data, options = make_dataset(), TrainOptions(n_step=n_step)
    prepared = PreparedDataset.of(data, algorithm, options)
    transitions = transitions_of(data, algorithm, options)
    layout = Layout(4, 2, algorithm.uses_next_actions)
    normalizer = ObservationNormalizer.of(transitions.observations)
    expected = pack_rows(transitions, layout, normalizer, algorithm.discount)
    np.testing.assert_array_equal(prepared.rows, expected)
    assert (prepared.layout, prepared.spec.obs_dim) == (layout, 4)


@pytest.mark.parametrize("algorithm", [ASPC, REBRAC], ids=["aspc", "rebrac"])
@pytest.mark.parametrize("options", [{}, {"n_step": 3}, {"holdout": 0.2}], ids=str)
def test_rows_hold_normalized_stacks(algorithm: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aspc.training.prepared_data.SLAB_ROWS", 70)  # several slabs
    data, chosen = make_dataset(), TrainOptions(**LONG, **options)
    prepared = PreparedDataset.of(data, algorithm, chosen)
    assert prepared.spec.obs_dim == HISTORY.size(4, 2) == 16
    parts = [data] if not chosen.holdout else data.split(chosen.holdout, seed=0)
    statistics = ObservationNormalizer.of(transitions_of(parts[0], algorithm, chosen).observations)
    np.testing.assert_array_equal(prepared.normalizer.mean, statistics.mean)  # of single observations
    for part, rows in zip(parts, [prepared.rows, prepared.held_out], strict=False):
        single = transitions_of(part, algorithm, chosen)
        stacked = FrameStacker.of(part, HISTORY).stack(single, *part.transition_rows(chosen.n_step))
        found = prepared.layout.rows.unpack(rows)
        for name in ("observations", "next_observations"):
            raw = getattr(stacked, name)
            frames = [statistics(raw[:, 4 * k : 4 * k + 4]) for k in range(3)]
            np.testing.assert_array_equal(found[name], np.concatenate([*frames, raw[:, 12:]], 1))
        np.testing.assert_array_equal(found["actions"], single.actions)
        np.testing.assert_array_equal(found["rewards"], single.rewards)


def test_streamed_windows_equal_rows_in_memory(tmp_path: Path) -> None:
    data, options = make_dataset(), TrainOptions(**LONG)
    in_memory = PreparedDataset.of(data, ASPC, options)
    streamed = PreparedDataset.of(pack(data, tmp_path / "p"), ASPC, options)
    assert streamed.layout == in_memory.layout
    with shared_tables([streamed], 0, 1024) as tables:
        window = tables.next()
    assert in_memory.rows is not None
    nearest = np.abs(window[:, None] - in_memory.rows).max(-1)
    assert nearest.min(1).max() < 1e-5  # the normalizer's statistics are rounded differently
    assert len(np.unique(nearest.argmin(1))) > 0.9 * len(in_memory.rows)


def test_streamed_training_needs_episode_starts(tmp_path: Path) -> None:
    data = make_dataset()
    pack(data, tmp_path / "p")
    run = aspc.train(tmp_path / "p", out=tmp_path / "run", env=None, **LONG, **SHORT)
    assert run.policy.history == HISTORY
    (tmp_path / "p" / EPISODES).unlink()
    with pytest.raises(AspcError, match="was packed without the starts of its episodes; pack the data again"):
        aspc.train(tmp_path / "p", out=tmp_path / "other", env=None, **LONG, **SHORT)
    assert not (tmp_path / "other").exists()


# -- configs and resuming ------------------------------------------------------------------------------------


def test_config_records_the_history(tmp_path: Path) -> None:
    run = aspc.train(make_dataset(), out=tmp_path / "run", env=None, **LONG, **SHORT)
    content = json.loads((run.path / "config.json").read_text())
    assert (content["history"], content["history_actions"]) == (3, True)
    assert content["dataset"]["observation_size"] == 4
    assert (run.policy.history, run.policy.observation_size) == (HISTORY, 4)
    del content["history"], content["history_actions"]  # as written by an older version
    old = from_json(run.path / "config.json", content, RunConfig)
    assert old.options.frames == History(1)
    assert to_json(old)["history"] == 1


def test_hashes_of_programs_without_history_are_those_of_older_versions() -> None:
    names = {field.name for field in dataclasses.fields(TrainOptions)} - {"seeds"}
    assert set(TrainOptions().program_settings()) == names - {"history", "history_actions"}
    assert set(TrainOptions(history=2).program_settings()) == names
    keys = {group_key(ASPC, (4, 2), TrainOptions(**o)) for o in ({}, {"history": 2}, LONG)}
    assert len(keys) == 3


@pytest.mark.parametrize("stream", [False, True])
def test_resuming_gives_the_same_bits(tmp_path: Path, stream: bool) -> None:
    data: Any = make_dataset()
    if stream:
        pack(data, tmp_path / "p")
        data = str(tmp_path / "p")
    options = {**SHORT, **LONG, "env": None}
    whole = aspc.train(data, out=tmp_path / "whole", **options)
    aspc.train(data, out=tmp_path / "halves", **{**options, "steps": 40, "horizon": 80})
    halves = aspc.train(data, resume=tmp_path / "halves", steps=80, quiet=True)
    same(weights(whole), weights(halves))


# -- fleets --------------------------------------------------------------------------------------------------


def test_a_fleet_equals_single_runs(tmp_path: Path) -> None:
    datasets = make_dataset(), make_dataset(rows=400, seed=1, name="other")
    options = TrainOptions(**{k: v for k, v in SHORT.items() if k not in {*TINY, "quiet"}}, **LONG)
    members = [Member(f"m{i}", data, i) for i, data in enumerate(datasets)]
    fleet = train_fleet("aspc", ASPC, members, options, tmp_path / "fleet", env=None, quiet=True)
    for i, data in enumerate(datasets):
        policy = fleet.policy(f"m{i}")
        run = aspc.train(data, out=tmp_path / f"{i}", env=None, seeds=[i], **LONG, **SHORT)
        assert policy.history == HISTORY
        same(dict(policy.arrays), dict(run.policy.arrays))
    again = train_fleet("aspc", ASPC, members, options, tmp_path / "fleet", env=None, quiet=True)
    assert again.config.options.frames == HISTORY
    with pytest.raises(AspcError, match="already contains a different fleet"):
        train_fleet("aspc", ASPC, members, dataclasses.replace(options, history=4), tmp_path / "fleet", env=None)


# -- evaluation and fine-tuning ------------------------------------------------------------------------------


@pytest.mark.parametrize("history", [History(2), HISTORY], ids=str)
def test_rollouts_stack_every_episode_from_its_start(history: History) -> None:
    policy = dataclasses.replace(policy_named("td3_bc", obs=history.size(4, 2), act=2))
    mean, std = policy.observation_mean[:4], policy.observation_std[:4]
    policy = dataclasses.replace(policy, observation_mean=mean, observation_std=std, history=history)
    seeds = [3, 4, 5]
    found = rollouts("", policy, seeds, {"": [Drifting() for _ in seeds]})
    for seed, episode in zip(seeds, found, strict=True):
        env, total, is_over = Drifting(), 0.0, False
        seen, executed = [env.reset(seed=seed)[0]], list[np.ndarray]()
        while not is_over:
            executed.append(reference_actions(policy, seen, executed))
            observation, reward, _, is_over, _ = env.step(executed[-1])
            seen.append(observation)
            total += reward
        assert episode["return"] == pytest.approx(total, abs=1e-4)
        assert episode["length"] == len(executed)


def test_evaluations_during_training_use_the_history(tmp_path: Path) -> None:
    run = aspc.train(make_dataset(), out=tmp_path / "run", env=Counting, **LONG, **SHORT)
    assert np.isfinite(run.evaluations["return_mean"]).all()


@pytest.fixture
def offline(tmp_path: Path) -> Any:
    return aspc.train(make_dataset(), out=tmp_path / "offline", env=None, n_step=2, **LONG, **SHORT)


def test_fine_tuning_stacks_executed_actions(tmp_path: Path, offline: Any) -> None:
    data = make_dataset()
    options = {"collect": 20, "eval_every": 40, "eval_episodes": 2, "tensorboard": False, "quiet": True}
    run = finetune(offline, Drifting, dataset=data, steps=80, out=tmp_path / "online", **options)
    assert (run.policy.history, run.config.options.frames) == (HISTORY, HISTORY)
    rows = np.fromfile(run.path / online.ONLINE, np.float32).reshape(80, -1)
    policy = run.policy
    fields = Layout(16, 2).rows.unpack(rows)
    frames, lagged = fields["observations"][:, :12].reshape(80, 3, 4), fields["observations"][:, 12:].reshape(80, 2, 2)
    starts = [0, *(t for t in range(1, 80) if not np.allclose(frames[t, 1], frames[t - 1, 0]))]
    assert 5 <= len(starts) <= 8  # episodes have 10 to 14 steps
    for t in range(80):
        age = t - max(s for s in starts if s <= t)
        for k in range(3):
            np.testing.assert_allclose(frames[t, k], frames[t - min(k, age), 0], atol=1e-5)
        for k in range(2):
            expected = fields["actions"][t - 1 - k] if k < age else np.zeros(2)
            np.testing.assert_allclose(lagged[t, k], expected, atol=1e-5)
    noise = fields["actions"] - policy.step(np.zeros((80, 4), np.float32), policy.initial_memory(80))[0]
    assert np.abs(noise).max() > 0.01
    longer = resume(run.path, steps=120, env=Drifting, dataset=data, quiet=True)
    assert longer.result is not None
    assert longer.result["steps"] == 120


# -- the command line and mistakes ---------------------------------------------------------------------------


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write_hdf5(tmp_path / "log.hdf5", dataset_arrays(make_dataset()))
    sizes = ["--actor-hidden-dim", "8", "--batch-size", "16", "--steps", "40", "--eval-every", "40", "--quiet"]
    options = ["--algo", "bc", "--no-tensorboard", *sizes]
    assert main(["train", "log.hdf5", "--history", "3", "--history-actions", "--out", "run", *options]) == 0
    assert aspc.load_policy("run").history == HISTORY
    assert main(["train", "--resume", "run", "--steps", "80", "--quiet"]) == 0
    assert main(["train", "--from", "run", "--out", "again", "--quiet"]) == 0
    assert aspc.load_policy("again").history == HISTORY
    assert main(["train", "log.hdf5", "--history", "99", "--out", "no", *options]) == 2
    assert "--history 99 is longer than every episode" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"history": 0}, "--history must be at least 1, not 0"),
        ({"history": 1.5}, "--history must be an integer, not 1.5"),
        ({"history_actions": True}, "--history-actions needs at least two observations; add --history 2 or higher"),
    ],
)
def test_invalid_options(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AspcError, match=message):
        TrainOptions(**changes)


def test_a_history_longer_than_every_episode_is_refused(tmp_path: Path) -> None:
    data = make_dataset(terminals=np.zeros(600))
    for source in (data, pack(data, tmp_path / "p")):
        with pytest.raises(
            AspcError, match=r"--history 51 is longer than every episode of tiny; the longest has 50 rows"
        ):
            aspc.train(source, out=tmp_path / "run", env=None, history=51, **SHORT)
    assert not (tmp_path / "run").exists()
