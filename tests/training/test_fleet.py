"""Fleets: equality with single runs, sharing of programs, failures, kills and resumption."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import aspc
from aspc import algorithms
from aspc.errors import AspcError
from aspc.training import fleet as module
from aspc.training import trainer
from aspc.training.checkpoints import CheckpointStore
from aspc.training.compiled_loop import Loop
from aspc.training.fleet import Fleet, Member, train_fleet
from aspc.training.grouping import can_vary, group_key
from aspc.training.hyperparameters import replace_fields
from aspc.training.run_config import TrainOptions
from aspc.training.run_folder import read_rows
from tiny import TINY, Counting, make_dataset
from waiting import wait_until

TD3BC = replace_fields(algorithms.default("td3_bc"), TINY)
SHORT = {"steps": 80, "log_every": 40, "eval_every": 40, "eval_episodes": 2, "tensorboard": False}
OPTIONS = TrainOptions(**SHORT)
MEMBERS = [
    Member("first", make_dataset(), 0, {"alpha": 1.0}),
    Member("second", make_dataset(rows=400, seed=1), 3, {"alpha": 4.0, "discount": 0.9}),
    Member("third", make_dataset(rows=400, seed=1, name="other"), 3),
    Member("second again", make_dataset(rows=400, seed=1), 3, {"discount": 0.9, "alpha": 4.0}),
]


def arrays(fleet, name):
    return fleet.policy(name).arrays


def same(one, other, **tolerance):
    assert one.keys() == other.keys()
    for name in one:
        if tolerance:
            np.testing.assert_allclose(one[name], other[name], err_msg=name, **tolerance)
        else:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Four runs, two datasets, two hyperparameters."""
    before = Loop.run_blocks._cache_size(), Loop.run_steps._cache_size()
    out = tmp_path_factory.mktemp("fleets") / "fleet"
    fleet = train_fleet("td3_bc", TD3BC, MEMBERS, OPTIONS, out, env=Counting, quiet=True)
    fleet.programs = Loop.run_blocks._cache_size() - before[0], Loop.run_steps._cache_size() - before[1]
    return fleet


def test_no_message_about_accelerators_on_a_cpu(tmp_path, capsys):
    """On a CPU training waits for evaluations."""
    train_fleet("td3_bc", TD3BC, MEMBERS[:1], OPTIONS, tmp_path / "fleet", env=Counting, quiet=False)
    stderr = capsys.readouterr().err
    assert "hide" not in stderr
    assert "accelerator" not in stderr


# -- what a fleet leaves behind ------------------------------------------------------------------------------


def test_files_of_a_fleet(fleet):
    assert fleet.programs == (1, 0)
    assert {p.name for p in fleet.path.iterdir()} >= {"config.json", "metrics.csv", "evaluations.csv", "result.json"}
    assert {p.name for p in (fleet.path / "policy").iterdir()} == {member.name for member in MEMBERS}
    assert fleet.config.varying == ["alpha", "discount"]
    assert [(m.name, m.dataset, m.seed) for m in fleet.members] == [
        ("first", "tiny", 0),
        ("second", "tiny", 3),
        ("third", "other", 3),
        ("second again", "tiny", 3),
    ]
    np.testing.assert_array_equal(fleet.metrics("second")["step"], [40, 80])
    np.testing.assert_array_equal(fleet.metrics("second")["run"], 1)
    np.testing.assert_array_equal(fleet.evaluations("third")["step"], [40, 80])
    result = fleet.result
    assert result["evaluation_seconds"] > 0
    assert result["hidden_eval_every"] % 40 == 0
    for name, member in result["members"].items():
        assert member["status"] == "done"
        assert member["error"] is None
        assert member["last_return"] == fleet.evaluations(name)["return_mean"][-1]
        assert member["best_return"] == fleet.evaluations(name)["return_mean"].max()
        assert (member["success"], member["episodes"], member["runs_together"]) == (1.0, 2, 4)
        assert member["last_score"] is None
    with pytest.raises(AspcError, match="Unknown member 'fourth'"):
        fleet.policy("fourth")
    with pytest.raises(AspcError, match="holds a fleet"):
        aspc.Run(fleet.path)
    with pytest.raises(AspcError, match="no fleet"):
        Fleet(fleet.path.parent)


def test_equal_rows_are_stored_once(fleet):
    from aspc.training.prepared_data import PreparedDataset, shared_tables

    problems = [PreparedDataset.of(member.dataset, TD3BC, OPTIONS) for member in MEMBERS]
    with shared_tables(problems, 0, 1) as tables:
        assert len(tables.next()) == problems[0].transitions + problems[1].transitions
        assert tables.offsets == [0, *[problems[0].transitions] * 3]


# -- a member is the run alone -------------------------------------------------------------------------------


def test_equal_members_have_equal_results(fleet):
    same(arrays(fleet, "second"), arrays(fleet, "second again"))
    assert any((arrays(fleet, "second")[n] != arrays(fleet, "third")[n]).any() for n in arrays(fleet, "second"))


def test_member_is_bit_exact_in_a_separate_fleet(fleet, tmp_path):
    """Bit-exact if the same hyperparameters vary."""
    alone = Member("second", MEMBERS[1].dataset, 3, {"discount": 0.9, "alpha": 4.0})
    alone = train_fleet("td3_bc", TD3BC, [alone], OPTIONS, tmp_path / "alone", env=Counting, quiet=True)
    same(arrays(fleet, "second"), arrays(alone, "second"))
    same({**fleet.metrics("second"), "run": 0}, {**alone.metrics("second"), "run": 0})
    same({**fleet.evaluations("second"), "run": 0}, {**alone.evaluations("second"), "run": 0})


def test_member_matches_a_run(tmp_path):
    """Bit-exact without settings, also on held-out rows."""
    settings = {**TINY, **SHORT, "quiet": True, "seeds": [3]}
    data = MEMBERS[1].dataset
    members, options = [Member("a", MEMBERS[0].dataset, 1), Member("b", data, 3)], TrainOptions(**SHORT, holdout=0.25)
    plain = train_fleet("td3_bc", TD3BC, members, options, tmp_path / "plain", env=Counting, quiet=True)
    run = aspc.train(data, "td3_bc", out=tmp_path / "run", env=Counting, holdout=0.25, **settings)
    same(run.policy.arrays, arrays(plain, "b"))
    same(run.metrics, {k: v for k, v in plain.metrics("b").items() if k != "run"})
    same(run.evaluations, {k: v for k, v in plain.evaluations("b").items() if k != "run"})
    assert np.isfinite(run.metrics["valid_critic_loss"]).all()


def test_varying_settings_match_fixed_ones_and_vmap_matches_a_loop(fleet, tmp_path):
    """Equal up to rounding: constants of a program are rounded differently from inputs (1 − γ, for example)."""
    algorithm = replace_fields(TD3BC, {"alpha": 4.0, "discount": 0.9})
    alone = [Member("alone", MEMBERS[1].dataset, 3)]
    alone = train_fleet("td3_bc", algorithm, alone, OPTIONS, tmp_path / "f", env=None, quiet=True, vectorize=True)
    assert alone.config.varying == []
    same(arrays(alone, "alone"), arrays(fleet, "second"), atol=1e-5, rtol=1e-5)


def test_members_can_differ_in_numbered_choices(tmp_path):
    """Equal up to rounding to a program with a constant choice, and different from each other."""
    plain = replace_fields(algorithms.default("aspc"), {**TINY, "k_alpha": 1, "scale_lr": 0.05})
    chosen = [{"outer_loss": "L1", "l3_form": 1}, {"outer_loss": "L1+L3", "l3_form": 1}, {"l3_form": 2}]
    members = [Member(f"{i}", MEMBERS[0].dataset, 0, settings) for i, settings in enumerate(chosen)]
    together = train_fleet("aspc", plain, members, OPTIONS, tmp_path / "all", env=None, quiet=True)
    assert together.config.varying == ["l3_form", "outer_loss"]
    scales = [together.metrics(member.name)["scale"] for member in members]
    assert len({scale[-1] for scale in scales}) == len(scales)
    written = replace_fields(plain, chosen[1])
    alone = [Member("a", MEMBERS[0].dataset, 0)]
    alone = train_fleet("aspc", written, alone, OPTIONS, tmp_path / "alone", env=None, quiet=True)
    np.testing.assert_allclose(alone.metrics("a")["scale"], scales[1], rtol=1e-5)
    same(arrays(alone, "a"), arrays(together, members[1].name), atol=1e-4, rtol=1e-4)


TWO_DEVICES = """
import gc, sys, weakref
sys.path[:0] = {paths!r}
import jax
from aspc.training.devices import Devices
from test_fleet import MEMBERS, OPTIONS, TD3BC, train_fleet
shard, seen = Devices.shard, []
def record_sharding(self, tree):
    seen.append(weakref.ref(self))
    tree = shard(self, tree)
    print([len(x.sharding.device_set) for x in jax.tree.leaves(tree)][:1], len(jax.tree.leaves(tree)[0]))
    return tree
Devices.shard = record_sharding
train_fleet("td3_bc", TD3BC, MEMBERS[:3], OPTIONS, {out!r}, env=None, quiet=True, vectorize=True)
gc.collect()
print("kept", sum(devices() is not None for devices in seen))
"""


def test_two_devices_share_three_runs(fleet, tmp_path):
    here = Path(__file__).parent
    script = TWO_DEVICES.format(paths=[str(here), str(here.parent)], out=str(tmp_path / "fleet"))
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Two devices with equally many runs, one of them padding that is dropped at the end.
    assert done.stdout.split() == ["[2]", "4", "kept", "0"]
    two = Fleet(tmp_path / "fleet")
    for member in MEMBERS[:3]:
        same(arrays(two, member.name), arrays(fleet, member.name), atol=1e-5, rtol=1e-5)
        same(two.metrics(member.name), fleet.metrics(member.name), atol=1e-4, rtol=1e-4)


# -- what can share a program --------------------------------------------------------------------------------


def test_hyperparameters_that_can_vary():
    aspc_ = algorithms.default("aspc")
    for name in ("alpha", "base.alpha", "scale_lr", "discount", "tau", "ema", "outer_loss", "l3_form"):
        assert can_vary(aspc_, name), name
    for name in ("actor_hidden_dim", "critic_hidden_layers", "k_alpha", "batch_size", "critic_layer_norm", "l2"):
        assert not can_vary(aspc_, name), name
    assert can_vary(algorithms.default("iql"), "beta")
    assert not can_vary(algorithms.default("iql"), "actor_dropout")
    with pytest.raises(AspcError, match="did you mean alpha"):
        can_vary(aspc_, "alhpa")


def test_group_key():
    aspc_ = algorithms.default("aspc")
    key = group_key(aspc_, (4, 2), OPTIONS)
    assert group_key(replace_fields(aspc_, {"alpha": 1.0, "ema": 0.9}), (4, 2), OPTIONS) == key
    assert group_key(replace_fields(aspc_, {"outer_loss": "L1", "l3_form": 2}), (4, 2), OPTIONS) == key
    assert group_key(aspc_, (4, 2), TrainOptions(**SHORT, seeds=(7,))) == key
    others = [
        (replace_fields(aspc_, {"k_alpha": 5}), (4, 2), OPTIONS),
        (replace_fields(aspc_, {"normalize_observations": False}), (4, 2), OPTIONS),
        (aspc_, (4, 3), OPTIONS),
        (aspc_, (4, 2), TrainOptions(**{**SHORT, "steps": 120})),
        (aspc_.base, (4, 2), OPTIONS),
    ]
    assert len({key, *(group_key(*other) for other in others)}) == 6


def test_members_that_cannot_share_a_program_are_refused(tmp_path):
    data = make_dataset()

    def refused(*members):
        with pytest.raises(AspcError) as error:
            train_fleet("td3_bc", TD3BC, members, OPTIONS, tmp_path / "fleet", env=None, quiet=True)
        assert not (tmp_path / "fleet").exists()
        return str(error.value)

    assert "policy_freq" in refused(Member("a", data, 0), Member("b", data, 0, {"policy_freq": 3}))
    assert "different sizes" in refused(Member("a", data, 0), Member("b", make_dataset(obs=5), 0))
    assert "Duplicate member name 'a'" in refused(Member("a", data, 0), Member("a", data, 1))
    assert "'../a'" in refused(Member("../a", data, 0))
    assert "at least one" in refused()


# -- failing, killing, continuing ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [-1, 2**31, 0.5, True])
def test_invalid_seed_of_a_member(seed, tmp_path):
    with pytest.raises(AspcError, match=r"The seed of a must be an integer from 0 to 2,147,483,647, not "):
        train_fleet("td3_bc", TD3BC, [Member("a", make_dataset(), seed)], OPTIONS, tmp_path / "fleet")
    assert not (tmp_path / "fleet").exists()


def test_diverged_member_is_isolated(tmp_path, fleet):
    """Failures before a checkpoint are kept across an interruption."""
    sick = [*MEMBERS[:3], MEMBERS[3]._replace(name="sick", settings={"alpha": float("inf"), "discount": 0.99})]
    options = TrainOptions(**SHORT, checkpoint_every=40)

    def stop(step, total):
        if step == 80:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        train_fleet("td3_bc", TD3BC, sick, options, tmp_path / "fleet", env=Counting, quiet=True, on_progress=stop)
    assert json.loads((tmp_path / "fleet" / "status.json").read_text())["failures"]["sick"]["step"] == 20
    cut = train_fleet("td3_bc", TD3BC, sick, options, tmp_path / "fleet", env=Counting, quiet=True)
    result = cut.result["members"]
    assert (result["sick"]["status"], result["sick"]["steps"]) == ("failed", 20)
    assert re.search(r"became (nan|-?inf) at step 20 \(sick\)", result["sick"]["error"])
    assert not cut.evaluations("sick")
    assert not (cut.path / "policy" / "sick").exists()
    assert result["second"]["status"] == "done"
    same(arrays(cut, "second"), arrays(fleet, "second"))
    same(cut.evaluations("second"), fleet.evaluations("second"))


def test_member_that_diverges_in_the_last_update_is_isolated(tmp_path):
    rates = {"well": 3e-4, "sick": np.inf}
    members = [Member(name, MEMBERS[0].dataset, 0, {"actor_lr": rate}) for name, rate in rates.items()]
    options = TrainOptions(**{**SHORT, "steps": 2, "log_every": 1, "eval_every": 1})
    fleet = train_fleet("td3_bc", TD3BC, members, options, tmp_path / "fleet", env=Counting, quiet=True)
    result = fleet.result["members"]
    assert (result["well"]["status"], result["sick"]["status"], result["sick"]["steps"]) == ("done", "failed", 2)
    assert "became NaN or infinite at step 2 (sick)" in result["sick"]["error"]
    assert [path.name for path in (fleet.path / "policy").iterdir()] == ["well"]


def test_fleet_stops_when_all_members_have_failed(tmp_path):
    sick = [member._replace(settings={"alpha": float("inf"), "discount": 0.9}) for member in MEMBERS]
    options = TrainOptions(**{**SHORT, "steps": 4000})
    fleet = train_fleet("td3_bc", TD3BC, sick, options, tmp_path / "fleet", env=None, quiet=True)
    assert fleet.result["steps"] < 200
    assert {member["status"] for member in fleet.result["members"].values()} == {"failed"}


KILLED = """
import sys
sys.path[:0] = {paths!r}
from test_fleet import LONG, MEMBERS, TD3BC, Counting, train_fleet
train_fleet("td3_bc", TD3BC, MEMBERS, LONG, {out!r}, env=Counting, quiet=True)
"""
LONG = TrainOptions(**{**SHORT, "steps": 1200}, checkpoint_every=120)


def test_killed_fleet_resumes_bit_exactly(tmp_path):
    here = Path(__file__).parent
    script = KILLED.format(paths=[str(here), str(here.parent)], out=str(tmp_path / "cut"))
    process = subprocess.Popen([sys.executable, "-c", script])
    whole = train_fleet("td3_bc", TD3BC, MEMBERS, LONG, tmp_path / "whole", env=Counting, quiet=True)
    wait_until(lambda: any(p.name.isdigit() for p in tmp_path.glob("cut/checkpoints/*")), process)
    time.sleep(random.uniform(0, 0.3))
    process.send_signal(signal.SIGKILL)
    process.wait()
    cut = train_fleet("td3_bc", TD3BC, MEMBERS, LONG, tmp_path / "cut", env=Counting, quiet=True)
    for member in MEMBERS:
        same(arrays(whole, member.name), arrays(cut, member.name))
    for file in ("metrics.csv", "evaluations.csv"):
        assert (whole.path / file).read_text() == (cut.path / file).read_text()


def test_finished_fleet_returns_at_once_and_another_is_refused(fleet, monkeypatch):
    def call(members=MEMBERS, options=OPTIONS):
        return train_fleet("td3_bc", TD3BC, members, options, fleet.path, env=Counting, quiet=True)

    monkeypatch.setattr(module, "Trainer", None)  # nothing is trained
    assert call().result == fleet.result
    assert call(options=TrainOptions(**SHORT, checkpoint_every=7)).result == fleet.result
    with pytest.raises(AspcError, match="a different fleet"):
        call(MEMBERS[:2])
    with pytest.raises(AspcError, match="a different fleet"):
        call([*MEMBERS[:2], MEMBERS[2]._replace(settings={"alpha": 2.0})])
    with pytest.raises(AspcError, match="a different fleet"):
        call(options=TrainOptions(**{**SHORT, "steps": 120}))
    with pytest.raises(AspcError, match=r"differs from the data that .* was trained on"):
        call([MEMBERS[0]._replace(dataset=make_dataset(seed=5)), *MEMBERS[1:]])


# -- evaluation ----------------------------------------------------------------------------------------------


def test_members_have_separate_environments_and_scores(tmp_path, monkeypatch):
    """A finished fleet whose data has a name does not load it again."""
    pytest.importorskip("mujoco", reason="the extra `mujoco` is not installed")
    members = [Member(name, f"maze2d-{name}?steps=500", 0) for name in ("umaze", "medium")]
    fleet = train_fleet("td3_bc", TD3BC, members, OPTIONS, tmp_path / "fleet", quiet=True)
    for name, length in (("umaze", 300), ("medium", 600)):
        seen = fleet.evaluations(name)
        np.testing.assert_array_equal(seen["length_mean"], length)
        score = aspc.envs.normalized_score(f"maze2d-{name}", seen["return_mean"][-1])
        np.testing.assert_allclose(fleet.result["members"][name]["last_score"], score)
    monkeypatch.setattr(module, "load_source", None)
    assert train_fleet("td3_bc", TD3BC, members, OPTIONS, fleet.path, quiet=True).result == fleet.result


class Patient(Counting):
    """Its first episode waits until training has continued."""

    training_went_on = threading.Event()
    waited_in_vain = False

    def reset(self, **options):
        if not self.training_went_on.wait(timeout=600):
            type(self).waited_in_vain = True
        return super().reset(**options)


def test_training_continues_during_evaluation_on_an_accelerator(tmp_path, monkeypatch):
    """A checkpoint is saved only after all evaluations up to its step."""
    monkeypatch.setattr(trainer, "on_accelerator", lambda: True)
    evaluated_when_saved = []
    save = CheckpointStore.save

    def noted(self, step, state):
        rows = read_rows(tmp_path / "fleet" / "evaluations.csv")
        evaluated_when_saved.append((step, {row["step"] for row in rows}))
        save(self, step, state)

    monkeypatch.setattr(CheckpointStore, "save", noted)

    def progress(step, total):
        if step == 200:
            assert not read_rows(tmp_path / "fleet" / "evaluations.csv")
            assert not evaluated_when_saved
            Patient.training_went_on.set()

    options = TrainOptions(**{**SHORT, "steps": 240}, checkpoint_every=160)
    how = {"quiet": True, "vectorize": False}
    done = train_fleet("td3_bc", TD3BC, MEMBERS, options, tmp_path / "fleet", env=Patient, on_progress=progress, **how)
    assert not Patient.waited_in_vain
    assert [step for step, _ in evaluated_when_saved] == [160, 240]
    for step, evaluated in evaluated_when_saved:
        assert evaluated >= set(range(40, step + 1, 40))
    monkeypatch.undo()
    plain = train_fleet("td3_bc", TD3BC, MEMBERS, options, tmp_path / "plain", env=Counting, **how)
    assert (done.path / "metrics.csv").read_text() == (plain.path / "metrics.csv").read_text()
    assert (done.path / "evaluations.csv").read_text() == (plain.path / "evaluations.csv").read_text()
