"""Commands on a user's own logs: how a file was read is recorded, and stated in the policy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from aspc.__main__ import main
from aspc.policy import Policy

TRAIN = ["--steps", "20", "--log-every", "20", "--batch-size", "16", "--actor-hidden-dim", "16"]
QUIET = ["--quiet", "--no-tensorboard"]


def write_log(path: Path, **columns: np.ndarray) -> Path:
    """Write a table of 60 rows in six episodes; `columns` replaces some of its columns or adds others."""
    rng = np.random.default_rng(0)
    table: dict[str, np.ndarray] = {
        "obs_heat": rng.normal(size=60).round(3),
        "obs_flow": rng.normal(size=60).round(3),
        "action_valve": rng.uniform(0, 100, 60).round(1),
        "reward": rng.uniform(0, 1, 60).round(3),
        "episode": np.arange(60) // 10,
        **columns,
    }
    lines = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_policies_state_their_bounds_and_keep_constant_actions(tmp_path: Path) -> None:
    path = write_log(tmp_path / "plant.csv", action_lamp=np.full(60, 7.3))
    assert main(["train", str(path), "--algo", "bc", "--out", str(tmp_path / "run"), *TRAIN, *QUIET]) == 0
    policy = Policy.load(tmp_path / "run" / "policy" / "seed0")
    assert policy.info["action_bounds"] == "logged range"
    with pytest.warns(RuntimeWarning, match=r"\('obs_heat'\) is 64\..*, far outside the logged range -2\.325 to 1\.96"):
        actions = policy.act(np.random.default_rng(0).normal(size=(200, 2)) * 100)
    valve = np.loadtxt(path, delimiter=",", skiprows=1)[:, 2].astype(np.float32)
    assert actions[:, 0].min() >= valve.min()
    assert actions[:, 0].max() <= valve.max()
    np.testing.assert_allclose(actions[:, 1], 7.3, rtol=2e-7)


RENAMED = ["--map", "observations=obs_heat", "actions=action_valve", "costs=spent", "time=stamp"]
FQE = ["--steps", "20", "--hidden-dim", "8", "--batch-size", "16", "--quiet", "--json"]


def trained_on_renamed_columns(folder: Path) -> Path:
    """Train on logs whose columns need options, and write other logs of the same plant."""
    rng = np.random.default_rng(1)
    more = {"spent": rng.uniform(1, 2, 60).round(3), "stamp": np.arange(60)[::-1], "reward": np.full(60, 9.0)}
    path = write_log(folder / "plant.csv", **more)
    write_log(folder / "later.csv", **more | {"spent": rng.uniform(1, 2, 60).round(3)})
    words = ["train", str(path), "--algo", "td3_bc", "--out", str(folder / "run"), *TRAIN, *QUIET, *RENAMED]
    assert main([*words, "--critic-hidden-dim", "16", "--env", "none"]) == 0
    return folder / "run"


def test_fqe_reads_other_logs_as_the_run_read_its_own(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = trained_on_renamed_columns(tmp_path)
    capsys.readouterr()
    assert main(["fqe", str(run), "--dataset", "later.csv", *FQE]) == 0
    assert json.loads(capsys.readouterr().out)["dataset"] == "later"
    # With the default roles there are two observations, and the policy takes one.
    assert main(["fqe", str(run), "--dataset", "later.csv", "--map", "actions=action_valve", *FQE]) == 2
    assert main(["train", "--resume", str(run), "--steps", "40", "--quiet"]) == 0


def test_inspect_finds_the_critics_of_a_selected_policy(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = trained_on_renamed_columns(tmp_path)
    assert main(["fqe", run.name, "--select", "best", *FQE]) == 0
    monkeypatch.chdir("/")
    capsys.readouterr()
    words = ["inspect", str(tmp_path / "best"), "--states", "30", "--json", "--quiet"]
    assert main([*words, "--out", str(tmp_path / "trust.html")]) == 0
    result = json.loads(capsys.readouterr().out)
    assert "disagreeing" in result["numbers"]  # of the critics
    assert result["facts"]["policy"] == str(tmp_path / "best")
