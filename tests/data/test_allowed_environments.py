"""Environments that a dataset or a run names: made only if a known package registered them, and never downloaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec, WrapperSpec
from small_logs import make_log

import aspc
from aspc import data, envs
from aspc.__main__ import main
from aspc.data import packing, streaming, writers
from aspc.data.dataset import Dataset
from aspc.data.sources import minari
from aspc.envs.allowed import problem_with_name, problem_with_spec
from aspc.errors import AspcError
from aspc.training.prepared_data import load_recorded
from aspc.training.run_folder import safe_env
from tiny import TINY

package = pytest.importorskip("minari")

PENDULUM = "gymnasium.envs.classic_control.pendulum:PendulumEnv"
SHORT = {"steps": 20, "log_every": 20, "tensorboard": False, "quiet": True}


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that exists once an attack has run code, by a shell command or by importing `hostile_module`."""
    mark = tmp_path / "mark"
    (tmp_path / "hostile_module.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(package, "download_dataset", lambda *_, **__: pytest.fail("a file caused a download"))
    return mark


def pendulum_log(**facts: Any) -> Dataset:
    return Dataset.from_arrays(**make_log(action=1), action_low=-2, action_high=2, name="pendulum", **facts)


def hostile_dataset(change: Callable[[dict[str, Any], str], None], mark: Path) -> None:
    """Write the Minari dataset hostile-v0, with changed metadata."""
    minari.write(pendulum_log(env="Pendulum-v1"), "hostile-v0")
    (path,) = (mark.parent / "minari" / "hostile-v0").rglob("metadata.json")
    metadata = json.loads(path.read_text())
    change(metadata, f"touch {mark}")
    path.write_text(json.dumps(metadata))


def change_spec(key: str = "env_spec", **values: Any) -> Callable[[dict[str, Any], str], None]:
    def change(metadata: dict[str, Any], command: str) -> None:
        spec = {**json.loads(metadata["env_spec"]), **values}
        metadata[key] = json.dumps(spec).replace("COMMAND", command)

    return change


def without_spaces(metadata: dict[str, Any], command: str) -> None:
    change_spec(entry_point="os:system", kwargs={"command": "COMMAND"})(metadata, command)
    del metadata["observation_space"], metadata["action_space"]


SHELL = {"entry_point": "os:system", "kwargs": {"command": "COMMAND"}}
MODULE = {"name": "hostile", "entry_point": "hostile_module:Wrapper", "kwargs": {}}
VIDEO = {
    "name": "video",
    "entry_point": "gymnasium.wrappers.rendering:RecordVideo",
    "kwargs": {"video_folder": "videos"},
}
ATTACKS = {
    "shell command": change_spec(**SHELL),
    "shell command, evaluation environment": change_spec("eval_env_spec", **SHELL),
    "module": change_spec(entry_point="hostile_module:Env"),
    "wrapper": change_spec(additional_wrappers=[MODULE]),
    "wrapper that writes files": change_spec(additional_wrappers=[VIDEO]),
    "function of a known package": change_spec(
        entry_point="gymnasium.envs.registration:make", kwargs={"id": "hostile_module:Env-v0"}
    ),
    "file of the attacker's": change_spec(kwargs={"xml_file": "/tmp/model.xml"}),
    "no string": change_spec(entry_point=["os", "system"]),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_minari_dataset_cannot_run_code(attack: str, mark: Path) -> None:
    hostile_dataset(ATTACKS[attack], mark)
    dataset = data.load("minari:hostile-v0")
    assert dataset.env is None
    assert any("the environment of hostile-v0 is not used" in note for note in dataset.notes)
    with pytest.raises(
        AspcError, match=r"Refusing to create the environment of .*: its .* pass one that you trust with --env"
    ):
        envs.make_env("minari:hostile-v0")
    assert not mark.exists()
    assert not Path("videos").exists()


def test_a_minari_dataset_without_spaces_is_refused(mark: Path) -> None:
    """Minari makes the environment of such a dataset while it loads it."""
    hostile_dataset(without_spaces, mark)
    with pytest.raises(AspcError, match="cannot be read: its metadata has no observation_space"):
        data.load("minari:hostile-v0")
    assert not mark.exists()


def test_invalid_environment_arguments_are_an_error(mark: Path) -> None:
    hostile_dataset(change_spec(kwargs={"gravity": [1, 2]}, max_episode_steps="many"), mark)
    with pytest.raises(AspcError, match="The environment of hostile-v0 cannot be made"):
        envs.make_env("minari:hostile-v0")


def test_training_on_a_hostile_minari_dataset_runs_nothing(mark: Path) -> None:
    hostile_dataset(ATTACKS["shell command"], mark)
    run = aspc.train("minari:hostile-v0", "bc", out="run", **SHORT, actor_hidden_dim=4, batch_size=4)
    assert run.env is None
    assert not mark.exists()


@pytest.mark.parametrize("suffix", ["hdf5", "npz", "folder"])
def test_a_file_cannot_name_a_minari_dataset(suffix: str, mark: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither one on this machine, whose environment is hostile, nor one to download."""
    hostile_dataset(ATTACKS["shell command"], mark)
    for name in ("hostile_module:Env-v0", "minari:not/here-v0", "minari:hostile-v0"):
        log = pendulum_log()
        facts = {**writers.dataset_metadata(log), "env": name}
        if suffix == "folder":
            path = Path(f"packed-{name.replace(':', '-').replace('/', '-')}")
            packing.pack(log, path)
            meta = json.loads((path / streaming.META).read_text())
            (path / streaming.META).write_text(json.dumps({**meta, "env": name}))
        else:
            path = Path(f"log.{suffix}")
            (writers.write_hdf5 if suffix == "hdf5" else writers.write_npz)(path, writers.dataset_arrays(log), facts)
        assert main(["data", "info", str(path)]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert f"the environment '{name}' named in the file is not used" in told
        if suffix == "hdf5":
            target = f"copy-{name.replace(':', '-').replace('/', '-')}"
            assert main(["data", "convert", str(path), f"{target}.npz"]) == 0
            assert main(["data", "convert", str(path), f"packed-{target}"]) == 0
    words = ["--algo", "bc", "--steps", "20", "--no-tensorboard", "--quiet", "--out", "run", "--actor-hidden-dim", "4"]
    assert main(["train", str(path), *words]) == 0
    assert json.loads(Path("run/config.json").read_text())["env"] is None
    assert not mark.exists()


def test_a_run_cannot_name_a_minari_dataset(mark: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile_dataset(ATTACKS["shell command"], mark)
    writers.write_npz(Path("log.npz"), writers.dataset_arrays(pendulum_log()), None)
    aspc.train("log.npz", "td3_bc", out="run", **SHORT, **TINY)
    config = json.loads(Path("run/config.json").read_text())
    repeated = [["train", "--from", "run", "--out", "again"], ["train", "--resume", "run", "--steps", "40"]]
    named = {"env": "minari:hostile-v0"}
    for change, commands in (
        (named, [*repeated, ["eval", "run"], ["finetune", "run"]]),
        ({"dataset": {**config["dataset"], "options": named}}, [*repeated, ["fqe", "run"], ["inspect", "run"]]),
    ):
        Path("run/config.json").write_text(json.dumps({**config, **change}))
        for command in commands:
            assert main(command) == 2, command
            told = capsys.readouterr().err
            assert "specifies the environment 'minari:hostile-v0', which is not loaded for safety" in told, command
    # What the run was trained on is loaded again only if it is on this machine.
    recorded = {**config["dataset"], "source": "minari:not/here-v0", "options": {}}
    Path("run/config.json").write_text(json.dumps({**config, "dataset": recorded}))
    for command in (["train", "--from", "run", "--out", "b"], ["train", "--resume", "run", "--steps", "40"]):
        assert main(command) == 2
        assert "is not on this machine; if you trust it, download it first" in capsys.readouterr().err
    for command in (["fqe", "run"], ["inspect", "run"]):
        assert main(command) == 2
        assert "aspc data download minari:not/here-v0" in capsys.readouterr().err
    assert not mark.exists()


def test_refusals_have_no_control_characters(tmp_path: Path) -> None:
    with pytest.raises(AspcError) as refusal:
        safe_env(tmp_path, "minari:\x1b[2J" + "x" * 10_000)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 600
    for source in ("minari:\x1b[2J-v0", "minari:" + "x" * 10_000 + "-v0"):
        with pytest.raises(AspcError, match="is not on this machine") as refusal:
            load_recorded(source, {})
        assert str(refusal.value).isprintable()


def test_files_cannot_name_environments_of_other_packages(mark: Path) -> None:
    gym.register("AspcTestForeign-v0", entry_point="hostile_module:Env")
    try:
        writers.write_npz(Path("log.npz"), writers.dataset_arrays(pendulum_log()), {"env": "AspcTestForeign-v0"})
        dataset = data.load("log.npz")
        assert problem_with_name("AspcTestForeign") is not None  # Gymnasium would take the newest version
    finally:
        del gym.registry["AspcTestForeign-v0"]
    assert dataset.env is None
    assert any("'hostile_module:Env' belongs to none of aspc, gymnasium" in note for note in dataset.notes)
    assert not mark.exists()


def test_files_can_name_known_environments(mark: Path) -> None:
    writers.write_npz(Path("log.npz"), writers.dataset_arrays(pendulum_log()), {"env": "Pendulum-v1"})
    assert data.load("log.npz").env == "Pendulum-v1"
    for name in (
        "hopper-medium-v2",
        "maze2d-umaze?steps=100",
        "antmaze-large-navigate-singletask-task1-v0",
        "Nothing-v3",
    ):
        assert problem_with_name(name) is None
    spec = EnvSpec(
        "Mine-v0",
        entry_point=PENDULUM,
        kwargs={"g": 9.0, "render_mode": None},
        additional_wrappers=(
            WrapperSpec("TimeLimit", "gymnasium.wrappers.common:TimeLimit", {"max_episode_steps": 10}),
            WrapperSpec("Flatten", "gymnasium.wrappers.transform_observation:FlattenObservation", {}),
        ),
    )
    assert problem_with_spec(spec) is None


@pytest.mark.parametrize("module", ["gymnasium_robotics", "ogbench"])
def test_every_registered_environment_of_a_known_package_is_allowed(module: str) -> None:
    pytest.importorskip(module)
    from aspc.envs.packages import register_environments

    register_environments(module)
    specs = [spec for spec in gym.registry.values() if str(spec.entry_point).startswith(f"{module}.")]
    assert specs
    assert [spec.id for spec in specs if problem_with_spec(spec) is not None] == []


def test_a_minari_environment_that_the_user_names_is_used_again(mark: Path) -> None:
    """A run in the environment of a Minari dataset is evaluated and continued where the user names it."""
    minari.write(pendulum_log(env="Pendulum-v1"), "mine-v0")
    small = {"actor_hidden_dim": 4, "batch_size": 4, "eval_every": 20, "eval_episodes": 1}
    run = aspc.train("minari:mine-v0", "bc", out="run", **SHORT, **small)
    assert run.config.env == "minari:mine-v0"
    with pytest.raises(AspcError, match=r"pass it explicitly: --env minari:mine-v0"):
        aspc.evaluate(run, episodes=1)
    (row,) = aspc.evaluate(run, episodes=1, env="minari:mine-v0")
    assert np.isfinite(row["return_mean"])
    assert aspc.train(resume="run", steps=40, env="minari:mine-v0", quiet=True).result["steps"] == 40
    assert main(["train", "--from", "run", "--env", "minari:mine-v0", "--out", "again", "--quiet"]) == 0
