"""Runs from start to end: the folder, resuming, stopping, evaluation."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import aspc
import registries
from aspc import algorithms
from aspc.algorithms.bc import BC
from aspc.errors import AspcError
from aspc.training.prepared_data import load_source
from aspc.training.rollout_worker import rollouts
from aspc.training.run import Diverged
from aspc.training.run_config import RunConfig, from_json, to_json
from aspc.training.run_folder import RowFile, read_rows
from policies import policy_named
from tiny import TINY, Counting, make_dataset
from waiting import DEADLINE_SECONDS, wait_until

SHORT = {**TINY, "steps": 120, "log_every": 40, "quiet": True, "tensorboard": False}


def weights(run):
    return {f"{seed}/{name}": array for seed in run.seeds for name, array in run.policy_of(seed).arrays.items()}


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_files_of_a_run(tiny, tmp_path):
    run = aspc.train(tiny, out=tmp_path / "run", seeds=[0, 1], **{**SHORT, "tensorboard": True})
    assert {p.name for p in run.path.iterdir()} >= {
        "config.json",
        "metrics.csv",
        "evaluations.csv",
        "result.json",
        "curves.png",
        "policy",
        "checkpoints",
        "tensorboard",
    }
    metrics = run.metrics
    np.testing.assert_array_equal(metrics["step"], [40, 40, 80, 80, 120, 120])
    np.testing.assert_array_equal(metrics["seed"], [0, 1] * 3)
    for name in ("critic_loss", "q_mean", "bc_loss", "scale", "delta_q", "bc_sup", "l1", "l2", "l3"):
        assert np.isfinite(metrics[name]).all(), name
    for name in ("dl1_dscale", "dl2_dscale", "dl3_dscale"):
        assert np.isfinite(metrics[name]).all(), name
    config = json.loads((run.path / "config.json").read_text())
    assert config["hyperparameters"]["base"]["actor_hidden_dim"] == 16
    assert config["hyperparameters"]["scale_horizon"] == 120
    assert (run.path / "curves.png").read_bytes().startswith(b"\x89PNG")
    action = run.policy.act(tiny.observations[0])
    assert action.shape == (2,)
    assert (np.abs(action) <= 1).all()


def test_metrics_are_readable_with_pandas_and_tensorboard(tiny, tmp_path):
    pandas = pytest.importorskip("pandas", reason="the extra `tables` is not installed")
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no TensorBoard")
    run = aspc.train(tiny, out=tmp_path / "run", **{**SHORT, "tensorboard": True})
    frame = pandas.read_csv(run.path / "metrics.csv")
    assert list(frame["step"]) == [40, 80, 120]
    events = loader.EventAccumulator(str(run.path / "tensorboard" / "seed0"))
    events.Reload()
    scale = [e.value for e in events.Scalars("train/scale")]
    np.testing.assert_allclose(scale, frame["scale"], rtol=1e-6)
    aspc.train(tiny, resume=run.path, steps=160, quiet=True)
    events = loader.EventAccumulator(str(run.path / "tensorboard" / "seed0"))
    events.Reload()
    assert [e.step for e in events.Scalars("train/scale")] == [40, 80, 120, 160]  # including the point of resumption


def test_policy_matches_the_network(tiny, tmp_path):
    """Compare the NumPy policy with the JAX actor for action bounds other than ±1."""
    data = make_dataset(action_low=np.array([-3.0, 0.0]), action_high=np.array([5.0, 1.0]))
    run = aspc.train(data, out=tmp_path / "run", **SHORT)
    policy = run.policy
    import jax.numpy as jnp

    x = jnp.asarray((data.observations[:100] - policy.observation_mean) / policy.observation_std)
    layers = [(policy.arrays[f"layers.{i}.weight"], policy.arrays[f"layers.{i}.bias"]) for i in range(3)]
    for w, b in layers[:-1]:
        x = jnp.maximum(x @ w + b, 0)
    unit = jnp.tanh(x @ layers[-1][0] + layers[-1][1])
    expected = np.array([-3.0, 0.0]) + (np.asarray(unit) + 1) / 2 * np.array([8.0, 1.0])
    np.testing.assert_allclose(policy.act(data.observations[:100]), expected, atol=1e-5)


def test_seeds_are_bit_exact_alone_and_repeated(tiny, tmp_path):
    first = aspc.train(tiny, out=tmp_path / "a", seeds=[3, 4], **SHORT)
    again = aspc.train(tiny, out=tmp_path / "b", seeds=[3, 4], **SHORT)
    same(weights(first), weights(again))
    alone = aspc.train(tiny, out=tmp_path / "c", seeds=[4], **SHORT)
    same(weights(alone), {k: v for k, v in weights(first).items() if k.startswith("4/")})


def test_extending_a_run_keeps_the_horizon_and_reports_it(tiny, tmp_path, capsys):
    aspc.train(tiny, out=tmp_path / "run", **SHORT)
    longer = aspc.train(tiny, resume=tmp_path / "run", steps=200)
    assert "keep the original horizon of 120 steps" in capsys.readouterr().err
    assert longer.config.hyperparameters["scale_horizon"] == 120
    np.testing.assert_array_equal(longer.metrics["step"], [40, 80, 120, 160, 200])
    assert longer.result["steps"] == 200


def test_resuming_with_other_data_or_settings_fails(tiny, tmp_path):
    aspc.train(tiny, out=tmp_path / "run", **SHORT)
    with pytest.raises(AspcError, match="differs from the data that"):
        aspc.train(make_dataset(seed=1), resume=tmp_path / "run", steps=200)
    with pytest.raises(AspcError, match="keeps its settings"):
        aspc.train(tiny, resume=tmp_path / "run", alpha=1.0)
    with pytest.raises(AspcError, match="pass the dataset again"):
        aspc.train(resume=tmp_path / "run", steps=200)


@dataclass(frozen=True)
class Mine(BC):
    """A user-defined algorithm."""

    spread: float = 0.5


SHORT_BC = {"env": None, "steps": 40, "log_every": 20, "quiet": True, "tensorboard": False}
MINE = Mine(spread=0.25, batch_size=16, actor_hidden_dim=16)


def test_algorithm_object_gets_its_registered_name(tiny, tmp_path):
    with registries.restored():
        algorithms.register("mine")(Mine)
        run = aspc.train(tiny, MINE, out=tmp_path / "run", **SHORT_BC)
        assert run.config.algo == "mine"
        for longer, algo in ((60, None), (80, "mine"), (100, MINE)):
            run = aspc.train(tiny, algo, resume=run, steps=longer, quiet=True)
            assert run.result["steps"] == longer
        assert run.config.hyperparameters["spread"] == 0.25


def test_unregistered_algorithm_resumes_when_passed_again(tiny, tmp_path):
    run = aspc.train(tiny, MINE, out=tmp_path / "run", **SHORT_BC)
    assert run.config.algo == "Mine"
    with pytest.raises(AspcError, match=r"Pass it again as algo=… from Python, or register it as 'Mine'.*--plugin"):
        aspc.train(tiny, resume=run, steps=80)
    assert aspc.train(tiny, Mine(), resume=run, steps=80, quiet=True).result["steps"] == 80


def test_resuming_with_another_algorithm_fails(tiny, tmp_path):
    run = aspc.train(tiny, BC(batch_size=16, actor_hidden_dim=16), out=tmp_path / "run", **SHORT_BC)
    assert run.config.algo == "bc"
    for other, called in (("td3_bc", "td3_bc"), ("aspc", "aspc"), (MINE, "Mine")):
        with pytest.raises(AspcError, match=f"is a run of bc, not of {called}; a resumed run keeps its algorithm"):
            aspc.train(tiny, other, resume=tmp_path / "run", steps=80)


def test_run_is_path_like(tiny, tmp_path):
    run = aspc.train(tiny, BC(batch_size=16, actor_hidden_dim=16), out=tmp_path / "run", **SHORT_BC)
    assert os.fspath(run) == str(tmp_path / "run")
    for same in (run, run.path, str(run.path)):
        with pytest.raises(AspcError, match=r"No environment is recorded in .*run; pass one with --env"):
            aspc.evaluate(same)
    with pytest.raises(AspcError, match="evaluate takes a run or the path of its folder, not Policy"):
        aspc.evaluate(run.policy)


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import aspc
from tiny import TINY, Counting, make_dataset
settings = dict(TINY, steps=1600, log_every=40, checkpoint_every=200, tensorboard=False, quiet=True)
if {never_ends}:
    import time
    from aspc.training import launch
    launch._summarize_run = lambda *result: time.sleep(600)
if {resume}:
    aspc.train(make_dataset(), resume={out!r}, quiet=True)
else:
    aspc.train(make_dataset(), out={out!r}, **settings)
"""


def run_script(out, resume, never_ends=False):
    script = SCRIPT.format(tests=str(Path(__file__).parents[1]), out=str(out), resume=resume, never_ends=never_ends)
    return subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)


def has_checkpoint(folder):
    return any(p.name.isdigit() for p in folder.glob("checkpoints/*"))


def test_killed_run_resumes_bit_exactly(tmp_path):
    whole = run_script(tmp_path / "whole", resume=False)
    cut = run_script(tmp_path / "cut", resume=False, never_ends=True)
    assert wait_until(lambda: has_checkpoint(tmp_path / "cut"), cut)
    time.sleep(random.uniform(0, 0.5))
    cut.send_signal(signal.SIGKILL)
    cut.communicate()
    resumed = run_script(tmp_path / "cut", resume=True)
    for process in (resumed, whole):
        _, stderr = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == 0, stderr
    one, other = aspc.Run(tmp_path / "whole"), aspc.Run(tmp_path / "cut")
    same(weights(one), weights(other))
    assert (one.path / "metrics.csv").read_text() == (other.path / "metrics.csv").read_text()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_finishes_the_chunk_and_saves(tmp_path, number, code):
    np.savez(tmp_path / "logs.npz", **logs())
    command = [sys.executable, "-m", "aspc", "train", str(tmp_path / "logs.npz"), "--out", str(tmp_path / "run")]
    command += ["--actor-hidden-dim", "16", "--critic-hidden-dim", "16", "--log-every", "40", "--env", "none"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert wait_until(lambda: read_rows(tmp_path / "run" / "metrics.csv"), process)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == code
    assert "--resume" in stderr.splitlines()[-1]
    assert "Traceback" not in stderr
    assert has_checkpoint(tmp_path / "run")


def logs():
    data = make_dataset()
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    return {name: getattr(data, name) for name in names}


def test_two_processes_cannot_train_in_one_folder(tiny, tmp_path):
    from aspc.training.run_folder import run_lock

    aspc.train(tiny, out=tmp_path / "run", **SHORT)
    with run_lock(tmp_path / "run"), pytest.raises(AspcError, match="Another process"):
        aspc.train(tiny, resume=tmp_path / "run", steps=200)


def test_nonempty_folder_is_refused(tiny, tmp_path):
    aspc.train(tiny, out=tmp_path / "run", **SHORT)
    before = (tmp_path / "run" / "metrics.csv").read_text()
    with pytest.raises(AspcError, match="already holds a run"):
        aspc.train(tiny, out=tmp_path / "run", **SHORT)
    assert (tmp_path / "run" / "metrics.csv").read_text() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("do not touch")
    with pytest.raises(AspcError, match="not empty"):
        aspc.train(tiny, out=tmp_path / "mine", **SHORT)


def test_nan_stops_the_run_and_keeps_the_checkpoint(tiny, tmp_path, monkeypatch):
    """The data becomes NaN during the run, as after a hardware fault."""
    from aspc.training import prepared_data as module

    aspc.train(tiny, out=tmp_path / "run", **SHORT)
    monkeypatch.setattr(module, "pack", lambda *a, **k: np.full_like(pack(*a, **k), np.nan))
    monkeypatch.setattr(module, "fingerprint", lambda *a: aspc.Run(tmp_path / "run").config.dataset.fingerprint)
    with pytest.raises(Diverged, match=r"became nan at step 1[246]0 \(seed 0\).*step 120, is kept"):
        aspc.train(tiny, resume=tmp_path / "run", steps=240)
    assert (tmp_path / "run" / "checkpoints" / "120").is_dir()


from aspc.training.packed_table import pack  # noqa: E402


def test_held_out_episodes_are_evaluated_and_not_trained_on(tiny, tmp_path):
    run = aspc.train(tiny, out=tmp_path / "run", holdout=0.25, **SHORT)
    assert run.config.dataset.transitions < len(tiny.transitions().rewards)
    assert np.isfinite(run.metrics["valid_critic_loss"]).all()
    assert np.isfinite(run.metrics["valid_bc_loss"]).all()


def test_n_step_returns_train(tiny, tmp_path):
    run = aspc.train(tiny, out=tmp_path / "run", n_step=3, **SHORT)
    assert np.isfinite(run.metrics["critic_loss"]).all()


def test_unknown_hyperparameter_suggests_the_nearest(tiny, tmp_path):
    with pytest.raises(AspcError, match="did you mean alpha"):
        aspc.train(tiny, out=tmp_path / "run", alhpa=3.0, **SHORT)
    assert not (tmp_path / "run").exists()


# -- evaluation ----------------------------------------------------------------------------------------------


def test_environment_made_by_a_function(tiny, tmp_path):
    run = aspc.train(tiny, out=tmp_path / "run", env=Counting, eval_every=80, eval_episodes=3, **SHORT)
    np.testing.assert_array_equal(run.evaluations["step"], [80, 120])
    np.testing.assert_array_equal(run.evaluations["length_mean"], 10)
    np.testing.assert_array_equal(run.evaluations["success_rate"], 1)
    assert run.result["best_return"] >= run.result["last_return"]


def test_rollouts_are_reproducible_and_workers_restart():
    pytest.importorskip("mujoco", reason="the extra `mujoco` is not installed")
    from aspc.policy import Policy
    from aspc.training.evaluation import Evaluator

    rng = np.random.default_rng(0)
    arrays = {"layers.0.weight": rng.normal(size=(4, 2)).astype(np.float32), "layers.0.bias": np.zeros(2, np.float32)}
    settings = {"activation": "relu", "output": "tanh"}
    one, zero = np.ones(4, np.float32), np.zeros(4, np.float32)
    policy = Policy("deterministic", arrays, settings, zero, one, -np.ones(2, np.float32), np.ones(2, np.float32))
    with Evaluator("maze2d-umaze", workers=2) as evaluator:
        first = evaluator.evaluate(policy, [1, 2, 3]).result()
        assert list(first.lengths) == [300] * 3
        evaluator._workers[0].process.kill()
        evaluator._workers[0].process.wait()
        again = evaluator.evaluate(policy, [1, 2, 3]).result()
    np.testing.assert_array_equal(np.sort(first.returns), np.sort(again.returns))


def test_hanging_worker_is_replaced_then_reported():
    from aspc.training.evaluation import Evaluator, WorkerFailed

    with Evaluator("maze2d-umaze", workers=1, timeout_seconds=0.5) as evaluator:
        os.kill(evaluator._workers[0].process.pid, signal.SIGSTOP)
        before = evaluator._workers[0].process.pid
        pending = evaluator.evaluate(object(), [0])  # type: ignore[arg-type]
        with pytest.raises(WorkerFailed):
            pending.result()
        assert evaluator._workers[0].process.pid != before


# -- rows ----------------------------------------------------------------------------------------------------


def test_truncated_line_is_dropped(tmp_path):
    path = tmp_path / "rows.csv"
    rows = RowFile(path)
    rows.append([{"step": 1, "x": 0.1}, {"step": 2, "x": float("nan")}])
    with open(path, "a") as file:
        file.write("3,0.")
    assert [r["step"] for r in read_rows(path)] == [1, 2]
    RowFile(path, up_to_step=1).append([{"step": 2, "x": 7.0}])
    assert read_rows(path) == [{"step": 1, "x": 0.1}, {"step": 2, "x": 7.0}]


# -- more ways in --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ["td3_bc", "fql", "diffusion_ql"])
def test_episode_is_independent_of_its_batch(algo):
    policy, seeds = policy_named(algo, obs=4, act=2), [7, 8, 9, 10, 11]

    def returns(*shares):
        episodes = [e for share in shares for e in rollouts("", policy, share, {"": [Counting() for _ in share]})]
        return [episode["return"] for episode in episodes]

    together = returns(seeds)
    for shares in ((seeds[:2], seeds[2:]), [[seed] for seed in seeds]):
        np.testing.assert_allclose(returns(*shares), together, rtol=1e-4)  # batches of other sizes round differently


def test_workers_use_the_import_path_of_their_parent(tmp_path, monkeypatch):
    from aspc.training.evaluation import Evaluator

    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "my_envs.py").write_text(
        "import gymnasium as gym\nfrom tiny import Counting\n"
        "gym.register('Mine-v0', entry_point=Counting, max_episode_steps=10)\n"
    )
    for module in ("json", "gymnasium", "my_envs"):
        (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(mine)
    monkeypatch.chdir(tmp_path)
    with Evaluator("my_envs:Mine-v0", workers=1) as evaluator:
        assert evaluator.evaluate(policy_named("td3_bc", obs=4, act=2), [0]).result().lengths.tolist() == [10]
    assert not (tmp_path / "mark").exists()


def test_reference_scores_of_the_data_apply_to_later_evaluations(tmp_path):
    from aspc.training.run import evaluate

    rng, rows = np.random.default_rng(0), 200
    data = aspc.data.Dataset.from_arrays(
        rng.normal(size=(rows, 3)), rng.uniform(-2, 2, (rows, 1)), rng.normal(size=rows), np.zeros(rows),
        np.arange(rows) % 100 == 99, env="Pendulum-v1", ref_min=-1500, ref_max=-100,
    )  # fmt: skip
    options = {"steps": 20, "log_every": 20, "eval_episodes": 1, "actor_hidden_dim": 8, "tensorboard": False}
    run = aspc.train(data, algo="bc", out=tmp_path / "run", quiet=True, **options)
    (row,) = evaluate(run, episodes=2)
    assert row["score_mean"] == pytest.approx(100 * (row["return_mean"] + 1500) / 1400)
    config = json.loads((run.path / "config.json").read_text())
    for key in ("ref_env", "ref_min", "ref_max"):  # a run of an older version
        del config["dataset"][key]
    (run.path / "config.json").write_text(json.dumps(config))
    (run.path / "checksums.json").unlink()
    assert np.isnan(evaluate(run.path, episodes=1)[0]["score_mean"])


def test_nonfinite_state_is_not_saved(tiny, tmp_path):
    """The last update breaks the state, which the losses before it do not show."""
    options = {"algo": "bc", "env": None, "quiet": True, "tensorboard": False, "actor_hidden_dim": 8}
    options |= {"actor_lr": np.inf, "steps": 1, "log_every": 1, "eval_every": 1, "checkpoint_every": 1}
    with pytest.raises(
        Diverged, match=r"actor\S* became NaN or infinite at step 1 \(seed 0\); there is no checkpoint yet"
    ):
        aspc.train(tiny, out=tmp_path / "run", **options)
    assert not (tmp_path / "run" / "policy").exists()
    assert not [path for path in (tmp_path / "run").glob("checkpoints/*") if path.name.isdigit()]


def test_streamed_run_refuses_other_rows(tmp_path):
    from aspc.data.packing import pack as pack_folder
    from aspc.data.streaming import META

    packed, options = tmp_path / "packed", {"env": None, "quiet": True}
    data = make_dataset()
    pack_folder(data, packed)
    start = {**options, "algo": "bc", "steps": 20, "log_every": 20, "tensorboard": False, "actor_hidden_dim": 8}
    aspc.train(packed, out=tmp_path / "run", **start)
    # A folder of an older version has no hash; its statistics identify it.
    meta = {key: value for key, value in json.loads((packed / META).read_text()).items() if key != "sha256"}
    (packed / META).write_text(json.dumps(meta))
    aspc.train(packed, out=tmp_path / "old", **start)
    assert aspc.train(resume=tmp_path / "old", steps=40, **options).result["steps"] == 40
    shutil.rmtree(packed)
    pack_folder(replace(data, actions=-data.actions), packed)  # the same observations and rewards
    with pytest.raises(AspcError, match=r"differs from the data that .* was trained on"):
        aspc.train(resume=tmp_path / "run", steps=40, **options)


def test_streamed_run_resumes_with_the_same_windows(tiny, tmp_path):
    from aspc.data.packing import pack as pack_folder

    pack_folder(tiny, tmp_path / "packed")
    options = {**SHORT, "memory_budget_mb": 1}
    whole = aspc.train(tmp_path / "packed", out=tmp_path / "whole", **options)
    assert np.isfinite(whole.metrics["critic_loss"]).all()
    aspc.train(tmp_path / "packed", out=tmp_path / "cut", **{**options, "steps": 80, "horizon": 120})
    resumed = aspc.train(resume=tmp_path / "cut", steps=120, quiet=True)
    same(weights(whole), weights(resumed))
    with pytest.raises(AspcError, match="held-out"):
        aspc.train(tmp_path / "packed", out=tmp_path / "no", holdout=0.5, **options)
    # The environment is only used for evaluation; all other options were fixed when the data was packed.
    assert load_source(tmp_path / "packed", {"env": "none"}).rows == whole.config.dataset.transitions
    with pytest.raises(AspcError, match="already packed; pass key_map"):
        load_source(tmp_path / "packed", {"env": "none", "key_map": {"rewards": "r"}})


def test_presets_and_bc_variants_are_in_the_config(tiny, tmp_path):
    import dataclasses

    named = dataclasses.replace(tiny, name="hopper-medium-v2")
    small = {"hidden_dim": 16, "batch_size": 16, "steps": 40, "log_every": 40, "quiet": True, "tensorboard": False}
    run = aspc.train(named, algo="iql", preset="paper", out=tmp_path / "iql", **small)
    assert run.config.hyperparameters["beta"] == 3.0
    assert run.config.hyperparameters["deterministic"] is True
    assert run.config.preset == "paper"
    run = aspc.train(tiny, "td3_bc_aw", value_hidden_dim=16, out=tmp_path / "aw", **SHORT)
    assert run.config.algo == "td3_bc_aw"
    assert np.isfinite(run.metrics["value_loss"]).all()
    longer = aspc.train(tiny, resume=tmp_path / "aw", steps=160, quiet=True)
    assert longer.result["steps"] == 160
    content = json.loads((run.path / "config.json").read_text())
    old = {**content, "algo": "td3_bc", "bc": "advantage_weighted"}  # as older versions recorded it
    assert from_json(run.path, old, RunConfig).algo == "td3_bc_aw"


def test_device_out_of_memory_gives_one_sentence(tiny, tmp_path, monkeypatch):
    import jax

    from aspc.training.compiled_loop import Loop

    def full(*inputs, **options):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 99 bytes.")

    monkeypatch.setattr(Loop, "run_blocks", full)
    with pytest.raises(AspcError, match=r"data takes 0\.0 MiB and the networks 2 × 0\.\d MiB.*aspc data convert"):
        aspc.train(tiny, out=tmp_path / "run", seeds=[0, 1], **SHORT)
    monkeypatch.setattr(Loop, "run_blocks", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        aspc.train(tiny, out=tmp_path / "other", seeds=[0, 1], **SHORT)


def test_recorded_run_repeats_bit_exactly(tmp_path, capsys):
    """`--from` restores data options, preset, hyperparameters and seeds; explicit options take precedence."""
    from aspc.__main__ import main

    arrays = logs()
    np.savez(tmp_path / "logs.npz", **{"obs" if k == "observations" else k: v for k, v in arrays.items()})
    small = ["--actor-hidden-dim", "16", "--critic-hidden-dim", "16", "--batch-size", "16", "--log-every", "40"]
    small += ["--no-tensorboard", "--quiet", "--env", "none"]
    first = [
        "--map",
        "observations=obs",
        "--action-low=-2",
        "--action-high",
        "2",
        "2",
        "--alpha",
        "1.3",
        "--ema",
        "0.9",
    ]
    first += ["--steps", "80", "--seeds", "3", "5", "--out", str(tmp_path / "first")]
    assert main(["train", str(tmp_path / "logs.npz"), *first, *small]) == 0
    assert main(["train", "--from", str(tmp_path / "first"), "--out", str(tmp_path / "again"), "--quiet"]) == 0
    one, other = aspc.Run(tmp_path / "first"), aspc.Run(tmp_path / "again")
    assert (one.path / "metrics.csv").read_text() == (other.path / "metrics.csv").read_text()
    same(weights(one), weights(other))
    one_config, other_config = to_json(one.config), to_json(other.config)
    assert {name for name in one_config if one_config[name] != other_config[name]} <= {"started", "command"}
    assert one_config.keys() == other_config.keys()
    changed = ["--seeds", "5", "3", "--steps", "40", "--horizon", "80", "--out", str(tmp_path / "changed"), "--quiet"]
    assert main(["train", "--from", str(tmp_path / "first"), *changed]) == 0
    config = aspc.Run(tmp_path / "changed").config
    assert (config.options.seeds, config.options.steps, config.hyperparameters["ema"]) == ((5, 3), 40, 0.9)
    capsys.readouterr()
    np.savez(tmp_path / "logs.npz", **{**arrays, "obs": arrays["observations"] + 1})
    assert main(["train", "--from", str(tmp_path / "first"), "--out", str(tmp_path / "no"), "--quiet"]) == 2
    assert "differs from the data that" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_run_made_by_a_program_cannot_be_repeated_by_a_command(tiny, tmp_path, capsys):
    from aspc.__main__ import main

    run = aspc.train(tiny, out=tmp_path / "run", **SHORT)
    assert main(["train", "--from", str(run.path), "--out", str(tmp_path / "no")]) == 2
    assert "was trained from Python" in capsys.readouterr().err
