"""Offline-to-online fine-tuning on the built-in maze."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aspc
from aspc import algorithms
from aspc.__main__ import main
from aspc.algorithms.interface import Spec
from aspc.data import load
from aspc.data.writers import dataset_arrays, write_hdf5
from aspc.errors import AspcError
from aspc.interrupts import Interrupted
from aspc.training import online
from aspc.training.compiled_loop import Loop, RowRange
from aspc.training.evaluation import Evaluator, episode_seeds
from aspc.training.finetune import finetune, resume
from aspc.training.hyperparameters import replace_fields
from aspc.training.packed_table import Layout
from aspc.training.run_config import OnlineOptions, Origin
from aspc.training.run_folder import Run
from policies import narrow, policy_named
from registries import number_names
from tiny import TINY, make_dataset

MAZE = "maze2d-umaze?steps=2000"
OFFLINE = {**TINY, "steps": 80, "log_every": 40, "tensorboard": False, "quiet": True}
# BC has no critic.
OFFLINE_BC = {name: value for name, value in OFFLINE.items() if name != "critic_hidden_dim"}
ONLINE: dict[str, Any] = {
    "collect": 40,
    "eval_every": 80,
    "eval_episodes": 2,
    "tensorboard": False,
    "quiet": True,
}


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two seeds; the second is fine-tuned. k_alpha is 1, which makes the program smaller."""
    folder = tmp_path_factory.mktemp("offline")
    os.environ["ASPC_DATA"] = str(folder / "cache")
    return aspc.train(MAZE, out=folder / "run", env=None, seeds=[0, 5], k_alpha=1, **OFFLINE)


@pytest.fixture(scope="module")
def finetuned(offline: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    before = Loop.run_blocks._cache_size(), Loop.run_steps._cache_size(), online.put_rows._cache_size()
    out = tmp_path_factory.mktemp("online") / "run"
    run = finetune(offline, "maze2d-umaze", seed=5, steps=200, out=out, **ONLINE)
    after = Loop.run_blocks._cache_size(), Loop.run_steps._cache_size(), online.put_rows._cache_size()
    # Five collections of 40 steps, two blocks of 20 each: one program, and one that writes rows into the table.
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 0, 1]
    return run


def test_files_and_config_of_a_fine_tuned_run(offline: Run, finetuned: Run) -> None:
    assert {p.name for p in finetuned.path.iterdir()} >= {
        "config.json",
        "metrics.csv",
        "evaluations.csv",
        "result.json",
        "curves.png",
        "policy",
        "checkpoints",
        "online.f32",
    }
    config = finetuned.config
    assert config.finetuned_from == Origin(run=str(offline.path.absolute()), seed=5, step=80)
    assert config.env == "maze2d-umaze"
    assert config.online.collect == 40
    assert config.hyperparameters["scale_horizon"] == 280
    assert finetuned.seeds == [5]
    assert finetuned.result is not None
    assert (finetuned.result["steps"], finetuned.result["updates"], finetuned.result["offline_steps"]) == (200, 200, 80)
    assert finetuned.policy.info["step"] == 200
    assert finetuned.policy.info["seed"] == 5


def test_first_evaluation_is_of_the_offline_policy(offline: Run, finetuned: Run) -> None:
    np.testing.assert_array_equal(finetuned.evaluations["step"], [0, 80, 160, 200])
    with Evaluator("maze2d-umaze", workers=1) as evaluator:
        expected = evaluator.evaluate(offline.policy_of(5), episode_seeds(5, 0, 2)).result()
    assert finetuned.evaluations["return_mean"][0] == expected.returns.mean()
    assert finetuned.evaluations["length_mean"][0] == expected.lengths.mean()


def test_the_buffer_grows_and_the_scale_moves(offline: Run, finetuned: Run) -> None:
    metrics = finetuned.metrics
    np.testing.assert_array_equal(metrics["step"], [40, 80, 120, 160, 200])
    np.testing.assert_array_equal(metrics["online_rows"], [40, 80, 120, 160, 200])
    before = offline.metrics["scale"][-1]
    assert abs(metrics["scale"][0] - before) < 0.1  # continues from the offline value
    assert len(np.unique(metrics["scale"])) == 5
    for name in ("critic_loss", "bc_loss", "q_mean"):
        assert np.isfinite(metrics[name]).all()
    rows = np.fromfile(finetuned.path / online.ONLINE, np.float32).reshape(200, -1)
    policy = finetuned.policy
    observations = rows[:, :4] * policy.observation_std + policy.observation_mean
    following = rows[:, -4:] * policy.observation_std + policy.observation_mean
    # Each step starts where the previous one ended; no episode ended here.
    np.testing.assert_allclose(observations[1:], following[:-1], atol=1e-5)
    assert (rows[:, 7] == 1).all()
    assert len(np.unique(rows[:, 4])) > 150  # actions, with noise


@pytest.mark.parametrize("where", ["collecting", "evaluating"])
def test_resuming_restores_everything_but_the_episode(
    where: str,
    finetuned: Run,
    offline: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A signal stops it in the second chunk; ring buffer, state and rows are restored."""
    owner, name = {
        "collecting": (online.Collector, "collect"),
        "evaluating": (
            online.OnlineTrainer,
            "_submit_evaluations",
        ),  # of the offline policy, then of the second chunk's
    }[where]
    calls: list[int] = []
    original = getattr(owner, name)

    def stopping(self: Any, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return original(self, *arguments)

    with monkeypatch.context() as changed:
        changed.setattr(owner, name, stopping)
        with pytest.raises(Interrupted, match=r"Stopped at step 80; continue with: aspc finetune --resume"):
            finetune(offline, "maze2d-umaze", seed=5, steps=200, out=tmp_path / "run", **ONLINE)
    run = Run(tmp_path / "run")
    assert run.result is None
    half = np.fromfile(run.path / online.ONLINE, np.float32)
    with open(run.path / online.ONLINE, "ab") as file:  # rows after the checkpoint, as left by a killed process
        file.write(b"\0" * 400)
    before = Loop.run_blocks._cache_size()
    run = resume(tmp_path / "run", quiet=True)
    assert Loop.run_blocks._cache_size() == before  # the same program
    np.testing.assert_array_equal(run.metrics["step"], [40, 80, 120, 160, 200])
    np.testing.assert_array_equal(run.evaluations["step"], [0, 80, 160, 200])
    rows = np.fromfile(run.path / online.ONLINE, np.float32)
    np.testing.assert_array_equal(rows[: len(half)], half)
    assert len(rows) == 2.5 * len(half)
    # Up to the signal it equals the uninterrupted run.
    for name in ("scale", "critic_loss"):
        np.testing.assert_array_equal(run.metrics[name][:2], finetuned.metrics[name][:2])
    result = run.result
    assert resume(run.path).result == result
    assert "already finished its 200 steps" in capsys.readouterr().err


def test_ring_buffer_keeps_the_newest_rows(tmp_path: Path) -> None:
    """Row i is at i modulo the capacity, when written online and when read back from the file."""
    capacity, width, offline_rows = 6, 3, 4
    options = OnlineOptions(steps=10, collect=2, eval_every=2, buffer=5)
    assert options.capacity(10) == capacity
    offline_part = np.full((offline_rows, width), -1, np.float32)
    log = online.RowLog(tmp_path / "rows", width, 0)
    table = jnp.concatenate([offline_part, jnp.zeros((capacity, width))])
    for step in range(0, 9, 2):
        rows = np.repeat(np.arange(step, min(step + 2, 9), dtype=np.float32)[:, None], width, 1)
        log.append(rows)
        table = online.with_new_rows(table, rows, step, capacity, options.collect)
    np.testing.assert_array_equal(table[:, 0], [-1] * 4 + [6, 7, 8, 3, 4, 5])

    again = online.filled_table(offline_part, online.RowLog(tmp_path / "rows", width, 9), 9, capacity)
    np.testing.assert_array_equal(again, table)
    with pytest.raises(AspcError, match="fewer rows"):
        online.RowLog(tmp_path / "rows", width, 10)


def test_minibatches_mix_offline_and_online_rows() -> None:
    algorithm = replace_fields(algorithms.default("td3_bc"), TINY)
    loop = online.MixedLoop(algorithm, Spec(4, 2), Layout(4, 2), vectorize=False, offline_rows=100, offline_share=0.25)
    source = RowRange(jnp.asarray(100), jnp.asarray(7))
    rows = np.asarray(loop.sample_minibatch_indices(jax.random.key(0), source, (50, 400)))
    assert rows.min() == 0
    assert rows.max() == 106
    assert abs((rows < 100).mean() - 0.25) < 0.02
    assert len(np.unique(rows[rows >= 100])) == 7


class Line(gym.Env[np.ndarray, np.ndarray]):
    """A point on a line that terminates after three steps or is truncated after five."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,))
    action_space = gym.spaces.Box(-1, 1, (2,))

    def __init__(self, ends: bool = True) -> None:
        self.ends, self.t = ends, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.position = 0, self.np_random.normal(size=4).astype(np.float32)
        return self.position, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.position += 0.1 * np.concatenate([action, action]).astype(np.float32)  # reuses the returned array
        return self.position, 1.0, self.ends and self.t == 3, self.t == 5, {}


@pytest.mark.parametrize("ends", [True, False])
def test_terminals_stop_bootstrapping_and_timeouts_do_not(ends: bool) -> None:
    data, policy = make_dataset(), policy_named("td3_bc", obs=4, act=2)
    with online.collecting(lambda: Line(ends), data, 0, 0.1) as collector:
        log, returns = collector.collect(policy, 0, 11)
    length = 3 if ends else 5
    assert returns == [float(length)] * (11 // length)
    masks = 1 - log.transitions().terminals
    np.testing.assert_array_equal(masks, [0.0 if ends and t % 3 == 2 else 1.0 for t in range(11)])
    assert log.next_observations is not None
    np.testing.assert_array_equal(log.next_observations[0], log.observations[1])
    assert not np.array_equal(log.next_observations[length - 1], log.observations[length])


def test_environment_of_other_sizes_is_refused() -> None:
    with (
        pytest.raises(AspcError, match="4 observation and 2 action dimensions, but the policy has 6 and 2"),
        online.collecting("maze2d-umaze", make_dataset(obs=6), 0, None),
    ):
        pass


def test_early_failure_of_fine_tuning_empties_the_folder(tmp_path: Path) -> None:
    data = make_dataset()
    aspc.train(data, algo="bc", out=tmp_path / "offline", env=None, **OFFLINE_BC)
    for _ in range(2):
        with pytest.raises(AspcError, match="Pendulum-v1 has observation size 3"):
            finetune(tmp_path / "offline", "Pendulum-v1", dataset=data, out=tmp_path / "online", steps=40, **ONLINE)
    assert {path.name for path in (tmp_path / "online").iterdir()} <= {".lock"}


@pytest.mark.parametrize(("name", "noisy"), [("td3_bc", True), ("fql", False), ("diffusion_ql", False)])
def test_only_deterministic_policies_explore_with_noise(name: str, noisy: bool) -> None:
    data, policy = (
        make_dataset(action_low=np.full(2, -9.0), action_high=np.full(2, 9.0)),
        policy_named(name, obs=4, act=2),
    )
    with online.collecting(Line, data, 0, None) as collector:
        log, _ = collector.collect(policy, 0, 30)
    rng = np.random.default_rng((0, 0))
    own = np.stack([policy.act(observation, rng) for observation in log.observations])
    differences = log.actions - own
    if noisy:
        half = (policy.action_high - policy.action_low) / 2
        inside = (log.actions > policy.action_low) & (log.actions < policy.action_high)
        assert 0.05 < (differences / half)[inside].std() < 0.15
    else:
        np.testing.assert_array_equal(differences, 0)
    assert (log.actions >= policy.action_low).all()
    assert (log.actions <= policy.action_high).all()


def test_user_environment_and_offline_reward_statistics(tmp_path: Path) -> None:
    data = make_dataset()
    run = aspc.train(data, "bc", out=tmp_path / "off", env=None, reward_transform="standardize", **OFFLINE_BC)
    settings = {**ONLINE, "steps": 40, "eval_every": 40, "updates": 2}
    finetuned = finetune(run, Line, dataset=data, out=tmp_path / "on", **settings)
    assert finetuned.config.env == "a Python function"
    longer = resume(finetuned.path, 90, Line, dataset=data, quiet=True)  # not a multiple of a block: single steps
    assert longer.result is not None
    assert (longer.result["steps"], longer.result["updates"]) == (90, 180)
    np.testing.assert_array_equal(longer.metrics["online_rows"], [40, 80, 90])
    np.testing.assert_array_equal(longer.evaluations["step"], [0, 40, 80, 90])
    rows = np.fromfile(finetuned.path / online.ONLINE, np.float32).reshape(90, -1)
    rewards = data.rewards.astype(np.float64)
    np.testing.assert_allclose(rows[:, 6], (1 - rewards.mean()) / (rewards.std() + 1e-6), rtol=1e-5)
    with pytest.raises(AspcError, match="No environment is recorded in"):
        finetune(run, dataset=data, out=tmp_path / "x")
    with pytest.raises(AspcError, match="trained on arrays"):
        finetune(run, Line, out=tmp_path / "x")
    with pytest.raises(AspcError, match=r"The data differs from the data that .* was trained on"):
        finetune(run, Line, dataset=make_dataset(seed=1), out=tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", number_names())
def test_every_algorithm_can_be_fine_tuned(name: str, tmp_path: Path) -> None:
    data, algorithm = make_dataset(), replace_fields(narrow(algorithms.default(name), 16), {"batch_size": 16})
    options = {"steps": 20, "log_every": 20, "tensorboard": False, "quiet": True}
    run = aspc.train(data, algorithm, out=tmp_path / "off", env=None, **options)
    settings = {**ONLINE, "steps": 40, "collect": 20, "eval_every": 40}
    finetuned = finetune(run, Line, dataset=data, out=tmp_path / "on", **settings)
    first = "noise.layers.0.weight" if run.policy.kind == "diffusion" else "layers.0.weight"
    assert not np.array_equal(run.policy.arrays[first], finetuned.policy.arrays[first])


def test_fine_tuning_with_moved_data(tmp_path: Path, capsys: Any) -> None:
    there, here, on = tmp_path / "there.hdf5", tmp_path / "here.hdf5", tmp_path / "on"
    write_hdf5(there, dataset_arrays(load(MAZE)))
    run = aspc.train(there, "bc", out=tmp_path / "off", env=None, **OFFLINE_BC)
    there.rename(here)
    words = ["finetune", str(run.path), "--env", "maze2d-umaze", "--out", str(on), "--steps", "40", "--collect", "40"]
    words += ["--eval-every", "40", "--eval-episodes", "1", "--final-episodes", "1", "--quiet"]
    assert main(words) == 2
    assert "pass its new path with --dataset" in capsys.readouterr().err
    assert main([*words, "--dataset", str(here)]) == 0
    longer = ["finetune", "--resume", str(on), "--steps", "80", "--quiet"]
    assert main(longer) == 2
    assert main([*longer, "--dataset", str(here)]) == 0
    assert json.loads((on / "result.json").read_text())["steps"] == 80


def test_errors_of_the_command(finetuned: Run, offline: Run, capsys: Any) -> None:
    def complaint(*words: str) -> str:
        assert main(["finetune", *words]) == 2
        stderr = capsys.readouterr().err
        assert stderr.count("\n") == 1
        return stderr

    run, done = str(offline.path), str(finetuned.path)
    assert "--resume" in complaint()
    assert "No environment is recorded in" in complaint(run)
    assert "has no seed 1; choose from 0, 5" in complaint(run, "--env", "maze2d-umaze", "--seed", "1")
    assert "is already fine-tuned" in complaint(done)
    assert "was trained offline" in complaint("--resume", run)
    assert "keeps its settings" in complaint("--resume", done, "--noise", "0.3")
    assert "multiple of --collect" in complaint(run, "--collect", "300")
    assert "must be between 0 and 1" in complaint(run, "--offline-share", "1.5")
    assert json.loads((finetuned.path / "result.json").read_text())["steps"] == 200
