"""What goes wrong for a user, and is said in a sentence before it costs anything; and what a stop must not cost."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aspc
from aspc import algorithms, envs, presets, ui
from aspc.__main__ import main
from aspc.adaptive_scale import AdaptiveScale
from aspc.algorithms.bc import BC
from aspc.algorithms.fields import Horizon
from aspc.algorithms.iql import IQL
from aspc.algorithms.td3_bc import TD3BC
from aspc.data import writers
from aspc.envs.make import DEFAULT_HORIZON
from aspc.errors import AspcError, DiskFailure
from aspc.interrupts import DeferredShutdown
from aspc.io import read_json, write_json
from aspc.training import evaluation, rollout_worker, run_folder, trainer
from aspc.training.checkpoints import Checkpoints
from aspc.training.evaluation import Evaluator
from aspc.training.fleet import Member, train_fleet
from aspc.training.hyperparameters import check_values, coerce_fields, replace_fields
from aspc.training.packed_table import Layout, ObservationNormalizer, pack
from aspc.training.policy_export import PolicyExporter
from aspc.training.prepared_data import prepared_rewards, score_of
from aspc.training.run import Diverged, Interrupted, default_folder
from aspc.training.run_config import TrainOptions
from policies import policy_named
from tiny import TINY, Counting, make_dataset

SHORT = {**TINY, "steps": 80, "log_every": 40, "eval_every": 40, "quiet": True, "tensorboard": False}


class Endless(Counting):
    """Its episodes never end."""

    def step(self, action):
        observation, reward, *_, info = super().step(action)
        return observation, reward, False, False, info


# -- settings ------------------------------------------------------------------------------------------------


def test_whole_numbers_come_in_many_kinds():
    options = TrainOptions(steps=1e6, eval_every=np.int64(5000), seeds=np.arange(3))  # type: ignore[arg-type]
    assert (options.steps, options.eval_every, options.seeds) == (1_000_000, 5000, (0, 1, 2))
    json.dumps([options.steps, options.eval_every, options.seeds])
    assert TrainOptions(seeds=7).seeds == (7,)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"steps": 10.5}, "--steps must be an integer, not 10.5"),
        ({"steps": "many"}, "--steps must be an integer"),
        ({"horizon": float("inf")}, "--horizon must be an integer"),
        ({"seeds": [2**31]}, "0 to 2,147,483,647"),
        ({"seeds": []}, "for example --seeds 0 1 2 3"),
        ({"seeds": [True, 2]}, "--seeds must be an integer"),
        ({"checkpoint_every": -1}, r"--checkpoint-every must be 0 \(about one per minute\) or more, not -1"),
        ({"monitor_every": -1}, r"--monitor-every must be 0 \(never\) or more"),
    ],
)
def test_options_that_cannot_be(changes, says):
    with pytest.raises(AspcError, match=says):
        TrainOptions(**changes)


@pytest.mark.parametrize(
    ("algo", "changes", "says"),
    [
        ("aspc", {"scale_mode": "learnt"}, "scale_mode is one of learned, fixed, converged, linear, not 'learnt'"),
        ("aspc", {"outer_loss": "L2"}, "outer_loss is one of L1, "),
        ("aspc", {"l3_form": 6}, "l3_form is one of 1, 2, 3, 4, 5, not 6"),
        ("aspc", {"alpha": -1.0}, "starts above 0"),
        ("td3_bc", {"reward_transform": "standardise"}, "reward_transform is one of none, return_range, standardize"),
        ("td3_bc", {"batch_size": 0}, "batch_size must be at least 1"),
        ("td3_bc", {"critic_hidden_dim": 0}, "critic_hidden_dim must be at least 1"),
        ("td3_bc", {"actor_hidden_layers": -1}, "actor_hidden_layers must be at least 0"),
        ("td3_bc", {"policy_freq": 0}, "policy_freq must be at least 1"),
        ("aspc", {"alpha": 0}, "starts above 0"),
        ("aspc", {"scale_horizon": 77}, r"scale_horizon is set to the length of the run; set it with horizon="),
        ("aspc", {"key_map": {"observations": "s"}}, r"how data are read.*aspc\.data\.load\(PATH, key_map=…\)"),
        ("aspc", {"stps": 10}, "Unknown setting 'stps'; did you mean steps"),
        ("aspc", {"zzz": 10}, r"Unknown setting 'zzz'; choose from .* and \d+ more\."),
        (3, {}, "algo must be an algorithm or a name"),
    ],
)
def test_hyperparameters_that_cannot_be(algo, changes, says, tmp_path):
    with pytest.raises(AspcError, match=says):
        aspc.train(make_dataset(), algo, out=tmp_path / "run", env=None, **{**SHORT, **changes})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("algo", "changes", "says"),
    [
        ("diffusion_ql", {"diffusion_steps": 0}, "diffusion_steps must be at least 1"),
        ("diffusion_ql", {"time_dim": 3}, "time_dim must be an even number, at least 4"),
        ("diffusion_ql", {"ema_every": 0}, "ema_every must be at least 1"),
        ("fql", {"flow_steps": 0}, "flow_steps must be at least 1"),
        ("iql", {"max_weight": 0.0}, "max_weight must be above 0"),
        ("td3_bc", {"discount": 1.5}, "discount must be between 0 and 1, not 1.5"),
        ("td3_bc", {"discount": math.nan}, "discount must be between 0 and 1, not nan"),
        ("aspc", {"tau": 7.0}, "tau must be between 0 and 1, not 7.0"),
        ("aspc_plus", {"acting_ratio": -1.0}, "acting_ratio must be at least 0, not -1.0"),
        ("aspc_plus", {"acting_tau": 2.0}, "acting_tau must be between 0 and 1, not 2.0"),
        ("mcep", {"evaluation_alpha": -1.0}, "evaluation_alpha must be at least 0, not -1.0"),
        ("aspc", {"ema": -0.1}, "ema must be between 0 and 1"),
        ("iql", {"expectile": 1.1}, "expectile must be between 0 and 1"),
        ("iql", {"actor_dropout": 1.0}, "actor_dropout must be 0 or more and below 1, not 1.0"),
        ("bc", {"actor_lr": -1.0}, "actor_lr must be at least 0, not -1.0"),
        ("fql", {"lr": -1.0}, "lr must be at least 0"),
        ("aspc", {"scale_lr": -1.0}, "scale_lr must be at least 0"),
        ("td3_bc", {"alpha": -1.0}, "alpha must be at least 0"),
        ("rebrac", {"beta2": -0.1}, "beta2 must be at least 0"),
        ("cql", {"temperature": -1.0}, "temperature must be at least 0"),
        ("a2pr", {"vae_weight": -1.0}, "vae_weight must be at least 0"),
    ],
)
def test_values_that_no_algorithm_can_have(algo, changes, says):
    with pytest.raises(AspcError, match=says):
        check_values(replace_fields(algorithms.default(algo), changes))


def test_numbers_at_the_ends_of_what_they_can_be_are_taken():
    frozen = {
        "discount": 1.0,
        "tau": 0.0,
        "actor_lr": 0.0,
        "alpha": 0.0,
        "policy_noise": 0.0,
        "critic_hidden_layers": 0,
    }
    check_values(replace_fields(algorithms.default("td3_bc"), frozen))
    check_values(replace_fields(algorithms.default("cql"), {"target_gap": -5.0, "reward_scale": -1.0}))


@pytest.mark.parametrize("algo", algorithms.names())
def test_no_preset_has_a_value_that_is_refused(algo):
    for preset, found in presets.presets_of(algo).items():
        for dataset in found.by_dataset or ("any",):
            check_values(replace_fields(algorithms.default(algo), presets.overrides(algo, dataset, preset)))


# -- algorithms as objects -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ramped(BC):
    """An algorithm of somebody's own."""

    spread: float = 0.5
    widths: tuple[int, ...] = (16, 16)
    limit: float | str = "none"
    ramp_horizon: Horizon = 1_000


@dataclass
class Thawed:
    batch_size: int = 16


@pytest.mark.parametrize(
    ("algo", "changes", "says"),
    [
        (Ramped, {}, r"algo is an algorithm, not its class: give Ramped\(\)"),
        (Thawed(), {}, r"algo must be a frozen dataclass: write @dataclass\(frozen=True\) above Thawed"),
        (AdaptiveScale(base=TD3BC), {}, r"base is an algorithm, not its class: give TD3BC\(\)"),
        (Ramped(spread="a"), {}, "spread must be of type float, not 'a'"),
        (AdaptiveScale(base=TD3BC(batch_size=0.5)), {}, "batch_size must be of type int, not 0.5"),
        (TD3BC(discount=1.5), {}, "discount must be between 0 and 1"),
        (Ramped(ramp_horizon=77), {}, r"ramp_horizon is set to the length of the run; set it with horizon="),
        (AdaptiveScale(base=IQL(lr_horizon=77)), {}, "lr_horizon is set to the length of the run"),
        ("td3_bc", {"bc": "advantage_weighted"}, "bc= was replaced by names of algorithms.*td3_bc_aw"),
        (TD3BC(), {"preset": "corl"}, "preset needs the name of an algorithm"),
    ],
)
def test_algorithms_that_cannot_be(algo, changes, says, tmp_path):
    with pytest.raises(AspcError, match=says):
        aspc.train(make_dataset(), algo, out=tmp_path / "run", env=None, steps=80, quiet=True, **changes)
    assert not (tmp_path / "run").exists()


def test_an_object_is_taken_as_settings_by_name_are():
    assert coerce_fields(Ramped(spread=1, widths=[8], limit=0.5)) == Ramped(spread=1.0, widths=(8,), limit=0.5)
    assert isinstance(coerce_fields(AdaptiveScale(base=TD3BC(alpha=3))).base.alpha, float)


def test_the_option_for_the_horizon_goes_before_an_objects_own(tmp_path):
    made = Ramped(ramp_horizon=77, batch_size=16, actor_hidden_dim=16)
    short = {"env": None, "steps": 40, "log_every": 40, "quiet": True, "tensorboard": False}
    run = aspc.train(make_dataset(), made, out=tmp_path / "run", horizon=50, **short)
    assert run.config.hyperparameters["ramp_horizon"] == 50
    same = dataclasses.replace(made, ramp_horizon=40)  # what it would be set to anyway
    assert aspc.train(make_dataset(), same, out=tmp_path / "same", **short).result["steps"] == 40


def test_settings_are_taken_together_in_whatever_order_they_stand():
    given = {"scale_mode": "linear", "base": {"alpha": 3.0}, "scale_target": 5.0, "base.tau": 0.1, "discount": 0.9}
    for settings in (given, dict(reversed(given.items()))):
        algorithm = replace_fields(algorithms.default("aspc"), settings)
        assert (algorithm.scale_mode, algorithm.scale_target) == ("linear", 5.0)
        assert (algorithm.base.alpha, algorithm.base.tau, algorithm.base.discount) == (3.0, 0.1, 0.9)


def test_data_of_another_kind_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(AspcError, match=r"a Dataset \(aspc\.data\.Dataset\.from_arrays.*, not dict"):
        aspc.train({"observations": np.zeros((4, 2))}, out=tmp_path / "run", **SHORT)


def test_every_algorithm_is_what_it_can_be():
    for name in algorithms.names():
        check_values(algorithms.default(name))


def test_a_config_is_json_and_says_what_it_means(tmp_path):
    content = {"a": float("nan"), "b": [float("-inf"), np.float32("inf"), 1.5], "c": {"d": (2, None)}}
    write_json(tmp_path / "x.json", content)
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": "nan",
        "b": ["-inf", "inf", 1.5],
        "c": {"d": [2, None]},
    }
    back = replace_fields(algorithms.default("aspc"), {"scale_target": "nan", "ema": "inf"})
    assert back.scale_target is algorithms.default("aspc").scale_target  # NaN, so that only the same one is equal
    assert back.ema == np.inf
    with pytest.raises(AspcError, match="ema must be of type float"):
        replace_fields(back, {"ema": "0.5"})


# -- data ----------------------------------------------------------------------------------------------------


def test_rewards_are_not_divided_by_no_range():
    one = make_dataset(rows=50, terminals=np.zeros(50, bool))
    with pytest.raises(AspcError, match=r'all episodes have the same return.*"standardize"'):
        prepared_rewards(one, BC(reward_transform="return_range"))


def test_rewards_are_divided_by_the_range_of_whole_episodes():
    ends = np.isin(np.arange(603), np.arange(49, 600, 50))
    cut = make_dataset(rows=603, timeouts=ends, terminals=np.zeros(603), rewards=np.arange(603) // 50 + 1.0)
    how = BC(reward_transform="return_range")  # episodes of 50 to 600, and three rows more
    np.testing.assert_allclose(prepared_rewards(cut, how)[0], 1000 / (600 - 50), rtol=1e-6)


def test_a_discount_of_nothing_packs_rows_that_are_numbers():
    transitions = make_dataset().transitions(discount=0.0)
    rows = pack(transitions, Layout(4, 2, False), ObservationNormalizer.identity(4), 0.0)
    assert np.isfinite(rows).all()
    np.testing.assert_array_equal(rows[:, 7], 1 - transitions.terminals)


def test_a_score_is_that_of_the_environment_it_was_earned_in():
    data = make_dataset(env="maze2d-umaze", ref_min=0.0, ref_max=10.0)
    assert score_of(data, "maze2d-umaze")(5.0) == score_of(data, Counting)(5.0) == 50.0
    assert score_of(data, "maze2d-large")(5.0) == envs.normalized_score("maze2d-large", 5.0) != 50.0
    assert score_of(data, "Pendulum-v1")(5.0) is None


# -- environments --------------------------------------------------------------------------------------------


def test_an_environment_of_another_size_is_refused_before_training(tmp_path):
    for env in ("Pendulum-v1", "hopper-medium-v2"):
        with pytest.raises(AspcError, match=r"but the data have 4 and 2; evaluate in another environment \(--env\)"):
            aspc.train(make_dataset(), "td3_bc", out=tmp_path / "run", env=env, **SHORT)
    assert not (tmp_path / "run").exists()
    wide = policy_named("td3_bc")  # five numbers
    with pytest.raises(AspcError, match="The environment has observations of 4"):
        rollout_worker.rollouts("", wide, [0], {"": [Counting()]})


def test_an_environment_that_never_ends_an_episode_is_not_waited_for(monkeypatch):
    class Idle:
        observation_size, action_size = 4, 2

        def noise(self):
            return {}

        def act(self, observations):
            return np.zeros((len(observations), 2))

    monkeypatch.setattr(rollout_worker, "MAX_EPISODE_STEPS", 50)
    with pytest.raises(AspcError, match=r"not ended in 50 steps.*TimeLimit"):
        rollout_worker.rollouts("", Idle(), [0, 1], {"": [Endless(), Endless()]})
    gym.register("NeverEnding-v0", entry_point=Endless)
    env = envs.make_env("NeverEnding-v0")
    env.reset(seed=0)
    ends = [env.step(np.zeros(2))[3] for _ in range(DEFAULT_HORIZON)]
    assert ends.index(True) == DEFAULT_HORIZON - 1
    monkeypatch.setattr(rollout_worker, "MAX_EPISODE_STEPS", 10**12)
    with Evaluator(Endless) as evaluator:  # leaving it ends the episodes where they are
        pending = evaluator.evaluate(Idle(), [0])  # type: ignore[arg-type]
    assert pending.done()


@pytest.mark.parametrize("ended", ["while it waits for the worker", "before the worker has the job"])
def test_an_evaluation_that_is_not_waited_for_is_not_begun_again(monkeypatch, ended):
    started, calling, ending = [], threading.Event(), threading.Event()
    start, call, sends = evaluation.WorkerProcess._start, evaluation.WorkerProcess.call, evaluation.send
    monkeypatch.setattr(evaluation.WorkerProcess, "_start", lambda self: (started.append(self), start(self))[1])
    if ended == "while it waits for the worker":
        monkeypatch.setattr(evaluation, "send", lambda *args: (sends(*args), calling.set())[0])
    else:

        def slow_call(self, job, timeout):
            calling.set()
            assert ending.wait(600)
            return call(self, job, timeout)

        monkeypatch.setattr(evaluation.WorkerProcess, "call", slow_call)

    with Evaluator("maze2d-umaze", workers=1) as evaluator:
        worker = evaluator._workers[0]
        end = worker.end
        monkeypatch.setattr(worker, "end", lambda: (end(), ending.set())[0])
        os.kill(worker.process.pid, signal.SIGSTOP)
        pending = evaluator.evaluate(Counting, [0], env="maze2d-umaze")  # type: ignore[arg-type]
        assert calling.wait(600)
    assert len(started) == 1
    with pytest.raises(evaluation.WorkerFailed):
        pending.result()


# -- folders -------------------------------------------------------------------------------------------------


def test_runs_of_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = [default_folder("data", "aspc") for _ in range(5)]
    assert len(set(made)) == 5
    for path in made:
        run_folder.create(path, {})


@pytest.mark.parametrize("name", ["../../elsewhere", "/tmp/elsewhere", "D4RL/pen/human-v2", "a\\b\0c\nd", "..", "é 1"])
def test_a_name_from_a_file_does_not_leave_the_folder_of_runs(name, tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    made = default_folder(name, "aspc")
    run_folder.create(made, {})
    assert made.resolve().parent == tmp_path / "work" / "runs"
    assert [path.name for path in tmp_path.iterdir()] == ["work"]


def test_of_two_that_make_the_same_run_one_is_refused(tmp_path):
    for i in range(20):
        barrier, outcomes = threading.Barrier(2), []

        def make(number: int, i: int = i, barrier: threading.Barrier = barrier, outcomes: list = outcomes) -> None:
            barrier.wait(600)
            try:
                run_folder.create(tmp_path / f"{i}", {"number": number})
                outcomes.append(number)
            except AspcError:
                pass

        threads = [threading.Thread(target=make, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(outcomes) == 1
        assert read_json(tmp_path / f"{i}" / run_folder.CONFIG) == {"number": outcomes[0]}


@dataclass(frozen=True)
class Faulty(BC):
    """Its code is wrong until it is mended."""

    faulty: ClassVar[bool] = True

    def update(self, state, batch, noise, parts):
        if Faulty.faulty:
            raise ValueError("shapes do not fit")
        return super().update(state, batch, noise, parts)


FAULTY = {"env": None, "steps": 40, "log_every": 20, "quiet": True, "batch_size": 16, "actor_hidden_dim": 16}


def test_a_start_that_fails_before_its_first_number_leaves_the_folder_free(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="shapes do not fit"):
        aspc.train(make_dataset(), Faulty(), out=tmp_path / "run", **FAULTY)
    assert {file.name for file in (tmp_path / "run").iterdir()} <= {run_folder.LOCK}
    monkeypatch.setattr(Faulty, "faulty", False)
    assert aspc.train(make_dataset(), Faulty(), out=tmp_path / "run", **FAULTY).result["steps"] == 40


@pytest.mark.parametrize("left", [run_folder.METRICS, run_folder.EVALUATIONS, "checkpoints/40", "notes.txt"])
def test_a_start_that_fails_removes_nothing_where_there_is_anything_to_lose(left, tmp_path):
    run = tmp_path / "run"
    run_folder.create(run, {"some": "config"})
    for name in (run_folder.METRICS, run_folder.EVALUATIONS):
        run_folder.RowFile(run / name)
    (run / left).parent.mkdir(exist_ok=True)
    (run / left).write_text("step\n40\n")
    before = {file.name for file in run.rglob("*")}
    with pytest.raises(ZeroDivisionError), run_folder.rollback_on_early_failure(run):
        raise ZeroDivisionError
    assert {file.name for file in run.rglob("*")} == before
    with pytest.raises(AspcError, match="already holds a run"):
        run_folder.create(run, {})


def test_a_run_that_a_disk_in_trouble_has_stopped_can_be_continued(tmp_path):
    """The message says so."""
    run_folder.create(tmp_path / "run", {})
    with pytest.raises(DiskFailure), run_folder.rollback_on_early_failure(tmp_path / "run"):
        raise DiskFailure
    assert (tmp_path / "run" / run_folder.CONFIG).exists()


def test_columns_that_come_later_are_added(tmp_path):
    rows = run_folder.RowFile(tmp_path / "rows.csv")
    rows.append([{"step": 1, "a": 0.5}])
    rows.append([{"step": 2, "a": 1.5, "b": 2.5}])
    rows.append([{"step": 3, "b": 3.5}])
    seen = run_folder.columns(run_folder.read_rows(tmp_path / "rows.csv"))
    np.testing.assert_array_equal(seen["a"], [0.5, 1.5, np.nan])
    np.testing.assert_array_equal(seen["b"], [np.nan, 2.5, 3.5])


# -- stopping ------------------------------------------------------------------------------------------------


class Interrupting(Counting):
    """A signal comes in the middle of the first evaluation."""

    pending = True

    def reset(self, **options):
        if Interrupting.pending:
            Interrupting.pending = False
            os.kill(os.getpid(), signal.SIGTERM)
        return super().reset(**options)


def test_a_signal_during_an_evaluation_costs_nothing(tmp_path, capsys):
    data = make_dataset()
    whole = aspc.train(data, "td3_bc", out=tmp_path / "whole", env=Counting, **SHORT)
    Interrupting.pending = True
    with pytest.raises(Interrupted, match="Stopped at step 40"):
        aspc.train(data, "td3_bc", out=tmp_path / "run", env=Interrupting, **SHORT)
    assert Checkpoints(tmp_path / "run" / "checkpoints", read_only=True).latest_step() == 40
    before = read_json(tmp_path / "run" / run_folder.STATUS)["seconds"]
    status = (tmp_path / "run" / run_folder.STATUS).read_bytes()
    for damage in ("[]", '{"seconds": "x", "failures": {}}', '{"seconds": 1, "failures": {"nobody": {}}}'):
        (tmp_path / "run" / run_folder.STATUS).write_text(damage)
        with pytest.raises(AspcError, match=r"status\.json is damaged; remove it"):
            aspc.train(data, resume=tmp_path / "run", env=Counting, quiet=True)
    (tmp_path / "run" / run_folder.STATUS).write_bytes(status)
    with pytest.raises(AspcError, match="trained 40 steps already"):
        aspc.train(data, resume=tmp_path / "run", steps=20, env=Counting, quiet=True)
    run = aspc.train(data, resume=tmp_path / "run", env=Counting, quiet=True)
    assert run.result is not None
    assert run.result["seconds"] > before > 0
    for name, array in whole.policy.arrays.items():
        np.testing.assert_array_equal(run.policy.arrays[name], array)
    for name, column in whole.evaluations.items():
        np.testing.assert_array_equal(run.evaluations[name], column)
    capsys.readouterr()


def test_a_signal_during_the_evaluation_of_a_chunk_that_is_saved_anyway(tmp_path):
    """It is saved once."""
    Interrupting.pending = True
    with pytest.raises(Interrupted, match="Stopped at step 40"):
        aspc.train(make_dataset(), "td3_bc", out=tmp_path / "run", env=Interrupting, checkpoint_every=40, **SHORT)
    assert Checkpoints(tmp_path / "run" / "checkpoints", read_only=True).latest_step() == 40


def test_a_signal_while_a_chunk_that_is_saved_is_given_to_the_device(tmp_path, monkeypatch):
    """There its checkpoint waits for the evaluations that go on meanwhile, which are waited for."""

    class Slow(Counting):
        def step(self, action):
            time.sleep(0.02)
            return super().step(action)

    export = PolicyExporter.export_arrays

    def interrupted(self, state, overrides):
        os.kill(os.getpid(), signal.SIGTERM)
        return export(self, state, overrides)

    monkeypatch.setattr(trainer, "on_accelerator", lambda: True)
    monkeypatch.setattr(PolicyExporter, "export_arrays", interrupted)
    with pytest.raises(Interrupted, match="Stopped at step 40"):
        aspc.train(make_dataset(), "td3_bc", out=tmp_path / "run", env=Slow, checkpoint_every=40, **SHORT)
    assert Checkpoints(tmp_path / "run" / "checkpoints", read_only=True).latest_step() == 40
    assert list(aspc.Run(tmp_path / "run").evaluations["step"]) == [40]


class Late(Counting):
    """Its episodes begin when the training has failed."""

    training_failed = threading.Event()
    breaks = False

    def reset(self, **options):
        assert self.training_failed.wait(timeout=600)
        if self.breaks:
            raise RuntimeError("the simulator is broken as well")
        return super().reset(**options)


@pytest.fixture
def fails_late(monkeypatch):
    """On what is taken for an accelerator, the chunk from step 120 on fails in a way of the test's choosing, while the
    checkpoint of step 80 waits for its evaluations."""
    monkeypatch.setattr(trainer, "on_accelerator", lambda: True)
    monkeypatch.setattr(Late, "training_failed", threading.Event())
    run_chunk, handle = trainer.run_chunk, trainer.Trainer._handle_divergence

    def noted(self, failure):
        Late.training_failed.set()
        handle(self, failure)

    monkeypatch.setattr(trainer.Trainer, "_handle_divergence", noted)

    def choose(how):
        def failing(devices, state, runs, table, pieces, block_steps):
            here = pieces[0].first_step == 120
            if here and how == "raises":
                Late.training_failed.set()
                raise RuntimeError("the device is gone")
            if here and how == "losses":
                state = not_finite(state)
            state, results = run_chunk(devices, state, runs, table, pieces, block_steps)
            return not_finite(state) if here and how == "state" else state, results

        monkeypatch.setattr(trainer, "run_chunk", failing)

    return choose


def not_finite(state):
    return jax.tree.map(lambda x: x * math.nan if jnp.issubdtype(x.dtype, jnp.floating) else x, state)


FAILING = {**SHORT, "steps": 240, "checkpoint_every": 80}


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("losses", r"became nan at step 1[246]0 \(seed 0\); the last good checkpoint, step 80, is kept"),
        ("state", r"became NaN or infinite at step 160 \(seed 0\); the last good checkpoint, step 80, is kept"),
        ("raises", "the device is gone"),
    ],
)
def test_a_failure_first_saves_what_waits_for_its_evaluations(how, says, tmp_path, monkeypatch, fails_late):
    """Where evaluations run beside the training, as on an accelerator: the older state is good."""
    fails_late(how)
    data = make_dataset()
    with pytest.raises((Diverged, RuntimeError), match=says):
        aspc.train(data, "td3_bc", out=tmp_path / "run", env=Late, **FAILING)
    assert Checkpoints(tmp_path / "run" / "checkpoints", read_only=True).latest_step() == 80
    assert list(aspc.Run(tmp_path / "run").evaluations["step"]) == [40, 80]
    monkeypatch.undo()
    whole = aspc.train(data, "td3_bc", out=tmp_path / "whole", env=Counting, **FAILING)
    run = aspc.train(data, resume=tmp_path / "run", env=Counting, quiet=True)
    assert list(run.evaluations["step"]) == list(whole.evaluations["step"])
    for name in ("return_mean", "length_mean"):
        np.testing.assert_allclose(run.evaluations[name], whole.evaluations[name], rtol=1e-4)


def test_a_failure_is_told_where_what_waits_cannot_be_evaluated_either(tmp_path, monkeypatch, fails_late):
    """And the checkpoint is not saved, since evaluations before a checkpoint are never made again."""
    fails_late("losses")
    monkeypatch.setattr(Late, "breaks", True)
    with pytest.raises(Diverged, match="there is no checkpoint yet"):
        aspc.train(make_dataset(), "td3_bc", out=tmp_path / "run", env=Late, **FAILING)
    assert Checkpoints(tmp_path / "run" / "checkpoints", read_only=True).latest_step() is None


def test_runs_that_have_all_failed_keep_the_evaluations_of_what_they_were(tmp_path, fails_late):
    fails_late("losses")

    class Slow(Late):
        def step(self, action):
            time.sleep(0.005)
            return super().step(action)

    without_a_pause = {**FAILING, "checkpoint_every": 120}
    options = TrainOptions(**{name: value for name, value in without_a_pause.items() if name not in (*TINY, "quiet")})
    algorithm = replace_fields(TD3BC(), TINY)
    members = [Member(f"seed {seed}", make_dataset(), seed) for seed in range(2)]
    fleet = train_fleet("td3_bc", algorithm, members, options, tmp_path / "fleet", env=Slow, quiet=True)
    assert {member["status"] for member in fleet.result["members"].values()} == {"failed"}
    for member in members:
        assert list(fleet.evaluations(member.name)["step"]) == [40, 80, 120]


def test_the_command_to_go_on_can_be_pasted():
    assert run_folder.resume_command("train", Path("rün 2"), None) == "aspc train --resume 'rün 2'"
    assert run_folder.resume_command("train", Path("a"), "Hopper-v4", 20_000) == "aspc train --resume a --steps 20000"
    own = run_folder.resume_command("finetune", Path("a"), "plant:Env")
    assert own == "aspc finetune --resume a --env plant:Env"
    theirs = run_folder.resume_command("train", Path("a"), "minari:D/x-v0")
    assert theirs == "aspc train --resume a --env minari:D/x-v0"


def test_a_stopped_extension_is_continued_to_its_own_end(tmp_path):
    data = make_dataset()
    aspc.train(data, "td3_bc", out=tmp_path / "run", env=Counting, **SHORT)
    steps = 2 * SHORT["steps"]
    Interrupting.pending = True
    with pytest.raises(Interrupted, match=rf"continue with: aspc train --resume \S+ --steps {steps}"):
        aspc.train(data, resume=tmp_path / "run", steps=steps, env=Interrupting, quiet=True)


def test_a_run_goes_on_where_its_data_were_moved(tmp_path, capsys):
    made = make_dataset()
    log = tmp_path / "log.npz"
    writers.write_npz(log, writers.dataset_arrays(made), writers.dataset_metadata(made))
    aspc.train(str(log), "td3_bc", out=tmp_path / "run", env=None, **SHORT)
    log.rename(tmp_path / "moved.npz")
    further = ["train", "--resume", str(tmp_path / "run"), "--steps", "120", "--quiet"]
    assert main(further) == 2
    assert "no longer exists; pass its new path with --dataset" in capsys.readouterr().err
    assert main([*further, "--dataset", str(tmp_path / "moved.npz")]) == 0
    assert run_folder.Run(tmp_path / "run").result["steps"] == 120
    other = make_dataset(seed=1)
    writers.write_npz(log, writers.dataset_arrays(other), writers.dataset_metadata(other))
    assert main([*further[:-2], "160", "--quiet", "--dataset", str(log)]) == 2
    assert "a run cannot change data" in capsys.readouterr().err


def test_ctrl_c_is_answered_at_once(capfd):
    with DeferredShutdown() as shutdown:
        os.kill(os.getpid(), signal.SIGINT)
        assert shutdown.signal_number == signal.SIGINT
        assert "Stopping after this chunk is saved" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_is_obeyed_where_nobody_reads_the_answer():
    """In `aspc train … 2>&1 | tee log` Ctrl-C ends the reader first: the chunk is saved all the same."""
    reader, writer = os.pipe()
    os.close(reader)
    before = os.dup(2)
    os.dup2(writer, 2)
    try:
        with DeferredShutdown() as shutdown:
            os.kill(os.getpid(), signal.SIGINT)
            assert shutdown.signal_number == signal.SIGINT
    finally:
        os.dup2(before, 2)
        for descriptor in (before, writer):
            os.close(descriptor)


def test_what_can_be_said_when_a_run_is_resumed(tmp_path, capsys):
    run = Path("maze2d-umaze?steps=300")
    words = ["--steps", "40", "--log-every", "20", "--batch-size", "16", "--actor-hidden-dim", "16", "--env", "none"]
    assert main(["train", str(run), "--algo", "bc", *words, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    resume = ["train", "--resume", str(tmp_path / "run")]
    for more, says in (
        (["--alpha", "3"], "keeps its settings"),
        (["another"], "no place for 'another'"),
        (["--steps"], "needs a whole number behind it"),
        (["--steps", "0"], "at least 1"),
    ):
        capsys.readouterr()
        assert main([*resume, *more]) == 2
        assert says in capsys.readouterr().err
    before = (tmp_path / "run" / "result.json").read_bytes()
    for more in ([], ["--steps", "40"], ["--steps", "30"]):  # "resume until it exits 0" ends
        assert main([*resume, *more]) == 0
        assert "already finished its 40 steps; to train longer, pass more with --steps" in capsys.readouterr().err
    assert (tmp_path / "run" / "result.json").read_bytes() == before
    assert main([*resume, "--steps", "60", "--env", "none", "--quiet"]) == 0
    assert "60 steps" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main([*resume, "--help"])
    assert ended.value.code == 0
    assert "last checkpoint" in capsys.readouterr().out


# -- more than one evaluation --------------------------------------------------------------------------------


class Closing(Counting):
    """Says when it is made and closed."""

    made, closed = 0, 0

    def __init__(self):
        type(self).made += 1

    def close(self):
        type(self).closed += 1


def test_environments_of_a_function_are_kept_and_closed():
    policy = policy_named("td3_bc", obs=4, act=2)
    with Evaluator(Closing) as evaluator:
        first = [evaluator.evaluate(policy, [1, 2, 3]).result() for _ in range(2)]
        assert (Closing.made, Closing.closed) == (3, 0)
    assert Closing.closed == 3
    assert first[0].to_row(lambda value: value) == first[1].to_row(lambda value: value)


def test_a_message_that_is_cut_is_the_end_of_a_worker():
    stream = io.BytesIO()
    rollout_worker.send(stream, ("episodes", [1.0] * 100))
    whole = stream.getvalue()
    assert rollout_worker.receive(io.BytesIO(whole))[0] == "episodes"
    for length in (0, 4, 8, len(whole) - 1):
        with pytest.raises(EOFError):
            rollout_worker.receive(io.BytesIO(whole[:length]))


def test_the_time_left_is_not_told_by_the_time_that_compiling_took(monkeypatch, capsys):
    clock = iter([0.0, 30.0, 41.0, 52.0])
    monkeypatch.setattr(ui.time, "monotonic", lambda: next(clock))
    seen = ui.Progress(4_000)
    seen.show(1_000)
    seen.show(2_000)
    seen.show(3_000, score="7.0")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "1,000/4,000 steps",
        "2,000/4,000 steps  91 steps/s  0:22 left",
        "3,000/4,000 steps  91 steps/s  0:11 left  score 7.0",
    ]


def test_a_training_on_costs_is_warned_of_it_unless_it_can_cope(tmp_path, capsys):
    """The tiny dataset's rewards are all below 0."""
    said = "warning: no reward is above 0: actions that nobody tried"
    for algo, changes, warned in (
        ("td3_bc", {}, True),
        ("td3_bc", {"reward_shift": 100.0}, False),
        ("bc", {}, False),
    ):
        settings = {k: v for k, v in {**SHORT, **changes}.items() if algo != "bc" or "critic" not in k}
        aspc.train(make_dataset(), algo, out=tmp_path / f"{algo}{warned}", env=None, **{**settings, "quiet": False})
        assert (said in capsys.readouterr().err) == warned
