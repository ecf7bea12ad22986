"""Runs on logs with choices: from a CSV file with names to policies, exports, evaluations and resumed runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest

import aspc
from aspc import data
from aspc.__main__ import main
from aspc.data import Dataset
from aspc.data.collect import collect
from aspc.errors import AspcError
from aspc.export import export, load_stablehlo
from aspc.policy import Policy
from aspc.training.compiled_loop import Loop, RowRange, start_runs
from aspc.training.prepared_data import PreparedDataset
from aspc.training.run_config import TrainOptions
from aspc.training.run_folder import EVALUATIONS, read_rows

ROWS = 400
QUICK: dict[str, Any] = {"steps": 40, "batch_size": 16, "quiet": True, "tensorboard": False, "env": None}
ONLINE: dict[str, Any] = {"steps": 40, "collect": 20, "eval_every": 40, "eval_episodes": 5, "noise": 0.1}
ONLINE |= {"tensorboard": False, "quiet": True}
SMALL = {"base.actor_hidden_dim": 16, "base.critic_hidden_dim": 16}


def write_log(path: Path) -> Path:
    """Write a log with a named choice, a number and a mask."""
    rng = np.random.default_rng(0)
    lines = ["obs_temp,obs_flow,action_valve,action_dose,mask_open,reward,episode"]
    for i in range(ROWS):
        temp, flow, dose = rng.normal(size=3)
        can_open = rng.random() < 0.7
        valve = "open" if can_open and rng.random() < 0.6 else "shut"
        reward = (temp if valve == "open" else -temp) - dose**2
        lines.append(f"{temp:.4f},{flow:.4f},{valve},{dose:.4f},{int(can_open)},{reward:.4f},{i // 20}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> aspc.Run:
    folder = tmp_path_factory.mktemp("choices")
    return aspc.train(str(write_log(folder / "log.csv")), "discrete_aspc", out=folder / "run", **QUICK, **SMALL)


def observations(rows: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.concatenate([rng.normal(size=(rows, 2)), rng.integers(0, 2, (rows, 1))], 1).astype(np.float32)


def test_a_policy_names_its_choices(run: aspc.Run) -> None:
    policy = run.policy
    row = {"obs_temp": 1.0, "obs_flow": 0.0, "mask_open": 0}
    chosen = policy.choose(row)
    assert chosen["action_valve"] == "shut"
    np.testing.assert_array_equal(policy.act(row)[:2], [0, 1])
    assert chosen["action_dose"] == pytest.approx(float(policy.act(row)[2]))
    assert {choice["action_valve"] for choice in policy.choose(observations(200))} <= {"open", "shut"}
    logits = policy.logits(observations(50))
    assert logits.shape == (50, 3)
    np.testing.assert_array_equal(logits[:, :2].argmax(1), policy.act(observations(50))[:, :2].argmax(1))
    assert np.isnan(policy.act(np.full(3, np.nan), on_invalid="nan")).all()
    assert Policy.load(run.path / "policy" / "seed0").action_space == policy.action_space
    numbers = Policy("deterministic", {}, {}, *(np.zeros(1),) * 2, np.zeros(1), np.ones(1))
    for call in (numbers.choose, numbers.logits):
        with pytest.raises(AspcError, match="Call act instead"):
            call(np.zeros(1))


def test_every_export_chooses_like_the_policy(run: aspc.Run, tmp_path: Path) -> None:
    policy, seen = run.policy, observations(10_000)
    expected, logits = policy.act(seen), policy.logits(seen)
    is_clear = np.abs(logits[:, 0] - logits[:, 1]) > 1e-4
    assert is_clear.mean() > 0.9

    def check(actions: np.ndarray, scores: np.ndarray) -> None:
        np.testing.assert_allclose(actions[is_clear], expected[is_clear], atol=1e-5)
        np.testing.assert_allclose(scores, logits, rtol=1e-5, atol=1e-5)

    program = load_stablehlo(export(run.path, "stablehlo", tmp_path / "p.stablehlo"))
    check(program(seen), program.logits(seen))
    assert program.choose(seen[:20]) == [
        {**c, "action_dose": pytest.approx(c["action_dose"], abs=1e-5)} for c in policy.choose(seen[:20])
    ]
    folder = export(run.path, "numpy", tmp_path / "numpy")
    np.save(tmp_path / "seen.npy", seen)
    code = "import sys, numpy as np; sys.path.insert(0, 'numpy'); import policy; x = np.load('seen.npy')\n"
    code += "assert not any(m.startswith(('aspc', 'jax')) for m in sys.modules)\n"
    code += "np.savez('out.npz', a=policy.act(x), l=policy.logits(x)); print(policy.choose(x[0])['action_valve'])"
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == policy.choose(seen[0])["action_valve"], done.stderr
    with np.load(tmp_path / "out.npz") as file:
        check(file["a"], file["l"])
    assert folder.is_dir()
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
    session = onnxruntime.InferenceSession(str(export(run.path, "onnx", tmp_path / "p.onnx")))
    assert [output.name for output in session.get_outputs()] == ["actions", "logits", "choices"]
    actions, scores, indices = session.run(None, {"observations": seen})
    check(actions, scores)
    np.testing.assert_array_equal(indices[:, 0], actions[:, :2].argmax(1))
    actions, _, indices = session.run(None, {"observations": np.full((2, 3), np.nan, np.float32)})
    assert np.isnan(actions).all()
    assert (indices == -1).all()
    assert "open" in session.get_modelmeta().custom_metadata_map["action_space"]


def test_a_resumed_run_has_the_same_bits(run: aspc.Run, tmp_path: Path) -> None:
    source = str(run.config.dataset.source)
    half = {**QUICK, "steps": 20, "horizon": 40}
    part = aspc.train(source, "discrete_aspc", out=tmp_path / "part", **half, **SMALL)
    whole = aspc.train(source, "discrete_aspc", out=tmp_path / "whole", **{**half, "steps": 40}, **SMALL)
    aspc.train(resume=part.path, steps=40, quiet=True)
    for name, array in whole.policy.arrays.items():
        np.testing.assert_array_equal(part.policy.arrays[name], array)


@pytest.mark.parametrize("algo", ["discrete_bc", "discrete_iql+aspc", "discrete_cql+aspc"])
def test_a_resumed_run_of_every_kind_has_the_same_bits(algo: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    seen, options = rng.normal(size=(ROWS, 3)), rng.integers(0, 3, ROWS)
    path = tmp_path / "log.npz"
    np.savez(
        path, observations=seen, actions=options, rewards=rng.normal(size=ROWS), terminals=np.arange(ROWS) % 20 == 19
    )
    name = "actor_hidden_dim" if algo == "discrete_bc" else "base.hidden_dim"
    settings = {**QUICK, "horizon": 50, name: 16}
    whole = aspc.train(str(path), algo, out=tmp_path / "whole", **{**settings, "steps": 50})
    part = aspc.train(str(path), algo, out=tmp_path / "part", **{**settings, "steps": 25})
    aspc.train(resume=part.path, steps=50, quiet=True)
    for array_name, array in whole.policy.arrays.items():
        np.testing.assert_array_equal(part.policy.arrays[array_name], array)


def test_training_compiles_two_programs(tmp_path: Path) -> None:
    algorithm = aspc.algorithms.default("discrete_aspc")
    task = PreparedDataset.of(data.load(write_log(tmp_path / "log.csv")), algorithm, TrainOptions())
    loop = Loop(algorithm, task.spec, task.layout, vectorize=False)
    assert task.spec.factors == (2, 0)
    assert task.spec.masked == (0,)
    np.testing.assert_array_equal(task.normalizer.mean[2:], 0)  # masks are not normalized
    np.testing.assert_array_equal(task.normalizer.std[2:], 1)
    assert task.rows is not None
    source = RowRange(jnp.zeros(1, jnp.int32), jnp.full(1, len(task.rows), jnp.int32))
    runs = start_runs(algorithm, task.spec, jnp.asarray([0]), source)
    state, runs, rows = runs.state, runs._replace(state=None), jnp.asarray(task.rows)
    blocks, steps = Loop.run_blocks._cache_size(), Loop.run_steps._cache_size()
    for i in range(3):
        state, _ = loop.run_blocks(state, runs, rows, jnp.asarray(i), blocks=1)
    for i in range(3):
        state, *_ = loop.run_steps(state, runs, rows, jnp.asarray(60 + i), jnp.asarray(i + 1))
    assert Loop.run_blocks._cache_size() - blocks == 1
    assert Loop.run_steps._cache_size() - steps == 1


def test_algorithms_and_actions_must_match(run: aspc.Run, tmp_path: Path) -> None:
    source = str(run.config.dataset.source)
    with pytest.raises(
        AspcError, match=r"discrete \(action_valve\), but this algorithm supports only continuous.*discrete_aspc"
    ):
        aspc.train(source, "aspc", out=tmp_path / "a", **QUICK)
    with pytest.raises(
        AspcError, match="some actions are continuous, but this algorithm supports only discrete actions"
    ):
        aspc.train(source, "discrete_cql", out=tmp_path / "b", **QUICK)
    assert not list(tmp_path.iterdir())


def test_numbers_that_a_run_learned_from_stay_numbers(tmp_path: Path) -> None:
    """A run of a version that read on/off actions as numbers can be resumed."""
    rng, path = np.random.default_rng(0), tmp_path / "log.csv"
    rows = [f"{rng.normal():.3f},{i % 2},{rng.normal():.3f},{i // 20}" for i in range(ROWS)]
    path.write_text("\n".join(["obs_x,action_pump,reward,episode", *rows]))
    loaded = data.load(path, continuous="*")
    assert loaded.action_space is None
    old = aspc.training.run.start_run(
        "bc", aspc.algorithms.default("bc"), loaded, TrainOptions(steps=20, tensorboard=False), source=str(path),
        out=tmp_path / "run", env=None, quiet=True,
    )  # fmt: skip
    assert old.config.dataset.options == {}
    assert aspc.train(resume=old.path, steps=30, quiet=True).result["steps"] == 30


class Signal(gym.Env):
    """Choose the option that the observation shows, 20 times. The last entry is the mask of option 1."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def _observe(self) -> np.ndarray:
        self.seen = np.array([self.np_random.choice([-1, 1]), self.np_random.random() < 0.8], np.float32)
        return self.seen

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert action in (0, 1)
        assert self.seen[1] == 1 or action == 0
        reward, self.steps = float(action == (self.seen[0] > 0)), self.steps + 1
        return self._observe(), reward, False, self.steps == 20, {}


gym.register("AspcTestSignal-v0", entry_point="test_choice_runs:Signal")


def test_policies_act_in_environments_with_choices(tmp_path: Path) -> None:
    env, rng = Signal(), np.random.default_rng(0)
    rows: list[tuple[Any, ...]] = []
    for episode in range(50):
        seen, _ = env.reset(seed=episode)
        for i in range(20):
            action = int(rng.random() < 0.7 if seen[0] > 0 else rng.random() < 0.3) * int(seen[1])
            following, reward, *_ = env.step(action)
            rows.append((seen[:1], action, reward, i == 19, seen[1:]))
            seen = following
    s, a, r, ends, masks = (np.array(column) for column in zip(*rows, strict=True))
    dataset = Dataset.from_arrays(
        s, a, r, np.zeros(len(r), bool), ends, masks=np.concatenate([np.ones_like(masks), masks], 1)[:, 1:],
        mask_names=("mask_1",), observation_names=("signal",),
    )  # fmt: skip
    settings = {**QUICK, "env": Signal, "steps": 400, "eval_every": 400, "eval_episodes": 5}
    run = aspc.train(dataset, "discrete_iql", out=tmp_path / "run", hidden_dim=16, actor_lr=3e-3, **settings)
    assert run.result is not None
    assert run.policy.choose(np.array([[1, 1], [-1, 1], [1, 0]])) == ["1", "0", "0"]
    row = read_rows(run.path / EVALUATIONS)[-1]
    assert row["return_mean"] > 16
    assert row["episodes"] == 5
    finetuned = aspc.finetune(run, Signal, dataset=dataset, out=tmp_path / "online", **ONLINE)
    assert finetuned.policy.action_space == run.policy.action_space
    assert read_rows(finetuned.path / EVALUATIONS)[-1]["return_mean"] > 16
    folder = str(run.path / "policy" / "seed0")
    rolled = collect("test_choice_runs:AspcTestSignal-v0", folder, 1_000, noise=0.8)  # the environment checks masks
    assert rolled.action_space == run.policy.action_space
    assert not np.array_equal(rolled.actions, run.policy.act(rolled.observations))


def test_four_commands_from_named_choices_to_onnx(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
    log, out = str(write_log(tmp_path / "log.csv")), str(tmp_path / "run")
    assert main(["data", "info", log]) == 0
    assert "options of action_valve" in capsys.readouterr().out
    words = ["--algo", "discrete_aspc", "--steps", "20", "--batch-size", "16", "--no-tensorboard", "--quiet"]
    assert main(["train", log, "--out", out, *words]) == 0
    assert main(["export", out, "--format", "onnx"]) == 0
    assert (tmp_path / "run" / "policy" / "seed0" / "policy.onnx").is_file()
