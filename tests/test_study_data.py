"""The study's datasets: files of every family, made from policies of a few numbers, are read by the library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import h5py
import numpy as np
import pytest

from aspc.data import Dataset, maze2d
from aspc.experiments import suites
from aspc.experiments.groups import load_dataset
from aspc.experiments.plan import files_of, make_plan

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
MADE = (
    *("hopper-random", "hopper-medium", "hopper-expert", "hopper-medium-expert", "hopper-medium-replay"),
    *("hopper-full-replay", "halfcheetah-expert", "halfcheetah-medium-expert"),
    *("antmaze-umaze", "antmaze-medium-play", "antmaze-large-diverse", "pen-expert", "door-human", "maze2d-umaze"),
)
TRANSITIONS, PIECE = 78, 30


@pytest.fixture(scope="module")
def study_data() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))  # worker processes import it by name too
    try:
        import study_data
    finally:
        sys.path.remove(str(BENCHMARKS))
    return study_data


def draw(rng: np.random.Generator, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {name: (0.1 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def write_policies(folder: Path) -> None:
    rng, n = np.random.default_rng(0), 26
    for name in ("locomotion", "adroit", "antmaze", "real"):
        (folder / name).mkdir()
    layers = {"W0": (n, 11, 4), "b0": (n, 4), "W1": (n, 4, 4), "b1": (n, 4), "Wout": (n, 4, 3), "bout": (n, 3)}
    moments = {"obs_mean": np.zeros((n, 11), np.float32), "obs_std": np.ones((n, 11), np.float32)}
    snapshots = {**draw(rng, **layers, logstd=(n, 3)), **moments, "iterations": np.arange(n)}
    np.savez(folder / "locomotion" / "hopper.npz", **snapshots)
    layers = {"W0": (2, 17, 4), "b0": (2, 4), "W1": (2, 4, 4), "b1": (2, 4)}
    heads = {"Wmu": (2, 4, 6), "bmu": (2, 6), "Wls": (2, 4, 6), "bls": (2, 6)}
    sac = {**draw(rng, **layers, **heads), "names": np.array(["medium", "expert"])}
    np.savez(folder / "locomotion" / "halfcheetah_sac.npz", **sac)
    ant = {"fc0_W": (4, 29), "fc0_b": (4,), "fc1_W": (4, 4), "fc1_b": (4,), "last_fc_W": (8, 4), "last_fc_b": (8,)}
    np.savez(folder / "antmaze" / "ant_goal_policy.npz", **draw(rng, **ant))
    pen = {"W0": (4, 45), "b0": (4,), "W1": (4, 4), "b1": (4,), "W2": (24, 4), "b2": (24,), "log_std": (24,)}
    around = {"in_shift": np.zeros(45), "in_scale": np.ones(45), "out_shift": np.zeros(24), "out_scale": np.ones(24)}
    np.savez(folder / "adroit" / "dapg_pen-v0.npz", **draw(rng, **pen), **around)
    human = {**draw(rng, observations=(60, 39), actions=(60, 28), rewards=(60,)), "terminals": np.zeros(60, bool)}
    with h5py.File(folder / "real" / "door_human_demos.hdf5", "w") as file:
        for key, array in human.items():
            file[key] = array


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policies")
    write_policies(folder)
    return folder


@pytest.fixture(scope="module")
def made(study_data: ModuleType, policies: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    """Every kind of dataset at its smallest, by name, as a bench reads it."""
    out = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_data, "PIECE", PIECE)
        patch.setattr(maze2d, "DEFAULT_STEPS", 500)
        patch.syspath_prepend(str(BENCHMARKS))
        small = ["--transitions", str(TRANSITIONS), "--workers", "2", "--only", *MADE]
        assert study_data.main([str(policies), "--out", str(out), *small]) == 0
    found = files_of(out)
    assert set(found) == set(MADE)
    return {name: load_dataset(name, str(path)) for name, path in found.items()}


def test_every_file_is_the_dataset_that_its_name_says(made: dict[str, Dataset]) -> None:
    sizes = {"hopper": (11, 3), "halfcheetah": (17, 6), "antmaze": (29, 8), "pen": (45, 24), "door": (39, 28)}
    for name, data in made.items():
        assert (data.observation_size, data.action_size) == sizes.get(name.partition("-")[0], (4, 2))
        assert data.env is not None
        assert data.env.startswith(f"{name}-v")
        assert data.behaviour_score() is not None
        if name not in ("door-human", "maze2d-umaze"):
            assert len(data) == TRANSITIONS
            assert data.next_observations is not None
            assert np.abs(data.actions).max() <= 1
            # Within an episode the next observation is the next row's; pieces end as timeouts do.
            goes_on = ~(data.terminals | data.timeouts)[:-1]
            np.testing.assert_array_equal(data.next_observations[:-1][goes_on], data.observations[1:][goes_on])
            assert (data.terminals | data.timeouts)[-1]


def test_mixtures_share_their_pieces(made: dict[str, Dataset]) -> None:
    half = TRANSITIONS // 2
    mixed = made["hopper-medium-expert"].observations
    for name, rows in (("hopper-medium", mixed[:PIECE]), ("hopper-expert", mixed[half : half + PIECE])):
        np.testing.assert_array_equal(rows, made[name].observations[:PIECE])
    assert not np.array_equal(made["hopper-medium"].actions, made["hopper-expert"].actions)
    assert not np.array_equal(made["hopper-medium"].actions[:PIECE], made["hopper-medium"].actions[PIECE : 2 * PIECE])


def test_an_ant_starts_where_its_dataset_says(made: dict[str, Dataset]) -> None:
    starts = {name: made[name].observations[::PIECE, :2] for name in made if name.startswith("antmaze")}
    assert np.abs(starts["antmaze-umaze"]).max() <= 0.1
    assert np.abs(starts["antmaze-medium-play"]).max() <= 0.1
    assert np.abs(starts["antmaze-large-diverse"]).max() > 1


def test_the_maze_is_the_librarys_own(made: dict[str, Dataset]) -> None:
    again = maze2d.generate("umaze", 500, 0, 0.0)
    np.testing.assert_array_equal(made["maze2d-umaze"].observations, again["observations"])


def test_the_study_finds_all_its_datasets(study_data: ModuleType, tmp_path: Path) -> None:
    for name in (*study_data.NAMES, study_data.HUMAN):
        (tmp_path / f"{name}.hdf5").touch()
    found = files_of(tmp_path)
    plan = make_plan(suites.expanded(["study"]), data=found)
    assert plan.left_out == ()
    assert {run.dataset for run in plan.runs.values()} == set(found)


def test_what_cannot_be_made_is_said(study_data: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    asked = [str(tmp_path), "--out", str(tmp_path / "out"), "--only", "door-human", "walker2d-random", "--workers", "1"]
    assert study_data.main(asked) == 0
    said = capsys.readouterr().err
    assert "door-human: left out" in said
    assert "walker2d-random: left out, there is no" in said


def test_the_processor_plays_no_part(policies: Path, tmp_path: Path) -> None:
    """Products of matrices of this size are rounded otherwise with wider registers."""
    wide = tmp_path / "policies"
    (wide / "locomotion").mkdir(parents=True)
    with np.load(policies / "locomotion" / "hopper.npz") as small:
        arrays = dict(small)
    rng, n = np.random.default_rng(0), 26
    arrays |= draw(rng, W0=(n, 11, 64), b0=(n, 64), W1=(n, 64, 64), b1=(n, 64), Wout=(n, 64, 3))
    np.savez(wide / "locomotion" / "hopper.npz", **arrays)
    made = []
    for core in ("Sandybridge", "Haswell"):
        out = tmp_path / core
        options = ["--out", str(out), "--only", "hopper-medium", "--transitions", "200", "--workers", "1"]
        command = [sys.executable, str(BENCHMARKS / "study_data.py"), str(wide), *options]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OPENBLAS_CORETYPE": core})
        with h5py.File(out / "hopper-medium.hdf5") as file:
            made.append(file["observations"][:])
    np.testing.assert_array_equal(*made)
