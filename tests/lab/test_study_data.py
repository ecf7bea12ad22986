"""The study's datasets: declared sizes, and small files of every kind from tiny policies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from aspc import data
from aspc.data import Dataset
from aspc.data.sources import maze2d
from aspc.lab import suites
from aspc.lab.dataset_files import find_dataset_files, load_dataset
from aspc.lab.plan import make_plan

pytest.importorskip("ogbench")
pytest.importorskip("gymnasium_robotics")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
QUICK = (
    *("hopper-random", "hopper-medium", "hopper-expert", "hopper-medium-expert", "hopper-medium-replay"),
    *("hopper-full-replay", "halfcheetah-expert", "halfcheetah-medium-expert"),
    *("antmaze-umaze", "antmaze-medium-play", "antmaze-large-diverse", "pen-expert", "door-human", "door-cloned"),
    *("maze2d-umaze", "maze2d-umaze-clean"),
)
SCALE, PIECE_ROWS = 1e-4, 30
SIZES = {"hopper": (11, 3), "halfcheetah": (17, 6), "walker2d": (17, 6), "antmaze": (29, 8), "maze2d": (4, 2)}
SIZES |= {"pen": (45, 24), "door": (39, 28), "hammer": (46, 26), "relocate": (39, 30)}


@pytest.fixture(scope="module")
def recipes() -> Iterator[SimpleNamespace]:
    """The command and its modules; worker processes import them by name too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import study_data
        from recipes import catalogue, d4rl_rollouts, ogbench_rollouts, pieces, policies

        yield SimpleNamespace(
            command=study_data,
            catalogue=catalogue,
            d4rl=d4rl_rollouts,
            ogbench=ogbench_rollouts,
            pieces=pieces,
            policies=policies,
        )


def draw(rng: np.random.Generator, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {name: (0.1 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def write_policies(folder: Path) -> None:
    rng, n = np.random.default_rng(0), 26
    for name in ("locomotion", "adroit", "antmaze", "real"):
        (folder / name).mkdir()
    for name in ("hopper", "halfcheetah", "walker2d"):
        obs, act = SIZES[name]
        layers = {"W0": (n, obs, 4), "b0": (n, 4), "W1": (n, 4, 4), "b1": (n, 4), "Wout": (n, 4, act), "bout": (n, act)}
        moments = {"obs_mean": np.zeros((n, obs), np.float32), "obs_std": np.ones((n, obs), np.float32)}
        snapshots = {**draw(rng, **layers, logstd=(n, act)), **moments, "iterations": np.arange(n)}
        np.savez(folder / "locomotion" / f"{name}.npz", **snapshots)
    layers = {"W0": (2, 17, 4), "b0": (2, 4), "W1": (2, 4, 4), "b1": (2, 4)}
    heads = {"Wmu": (2, 4, 6), "bmu": (2, 6), "Wls": (2, 4, 6), "bls": (2, 6)}
    sac = {**draw(rng, **layers, **heads), "names": np.array(["medium", "expert"])}
    np.savez(folder / "locomotion" / "halfcheetah_sac.npz", **sac)
    ant = {"fc0_W": (4, 29), "fc0_b": (4,), "fc1_W": (4, 4), "fc1_b": (4,), "last_fc_W": (8, 4), "last_fc_b": (8,)}
    np.savez(folder / "antmaze" / "ant_goal_policy.npz", **draw(rng, **ant))
    for name in ("pen", "door", "hammer", "relocate"):
        obs, act = SIZES[name]
        layers = {"W0": (4, obs), "b0": (4,), "W1": (4, 4), "b1": (4,), "W2": (act, 4), "b2": (act,), "log_std": (act,)}
        around = {"in_shift": np.zeros(obs), "in_scale": np.ones(obs)}
        around |= {"out_shift": np.zeros(act), "out_scale": np.ones(act)}
        np.savez(folder / "adroit" / f"dapg_{name}-v0.npz", **draw(rng, **layers), **around)
    human = {**draw(rng, observations=(60, 39), rewards=(60,)), "actions": rng.normal(0, 1, (60, 28))}
    ends = np.arange(60) % 20 == 19
    with h5py.File(folder / "real" / "door_human_demos.hdf5", "w") as file:
        for key, array in {**human, "terminals": np.zeros(60, bool), "timeouts": ends}.items():
            file[key] = array.astype(np.float32) if array.dtype == float else array


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policies")
    write_policies(folder)
    return folder


@pytest.fixture(scope="module")
def out(recipes: SimpleNamespace, policies: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with quick datasets, made by two processes."""
    folder = tmp_path_factory.mktemp("data")
    words = ["--scale", str(SCALE), "--workers", "2", "--only", *QUICK]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes.catalogue, "PIECE_ROWS", PIECE_ROWS)
        assert recipes.command.main([str(policies), "--out", str(folder), *words]) == 0
    return folder


@pytest.fixture(scope="module")
def made(out: Path) -> dict[str, Dataset]:
    """The quick datasets by name, as a bench reads them."""
    found = find_dataset_files(out)
    assert set(found) == set(QUICK)
    return {name: load_dataset(name, str(path)) for name, path in found.items()}


# ── sizes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_declared_sizes_are_the_benchmarks(recipes: SimpleNamespace) -> None:
    million = 1_000_000
    expected = {
        f"{task}-{quality}": (2 if quality == "medium-expert" else 1) * million
        for task in ("hopper", "halfcheetah", "walker2d")
        for quality in ("random", "medium", "expert", "medium-expert", "full-replay")
    }
    expected |= {"hopper-medium-replay": 402_000, "halfcheetah-medium-replay": 202_000}
    expected |= {"walker2d-medium-replay": 302_000, "pen-expert": 500_000, "door-cloned": million}
    expected |= {f"{task}-expert": million for task in ("door", "hammer", "relocate")}
    mazes = ("umaze", "umaze-diverse", "medium-play", "medium-diverse", "large-play", "large-diverse")
    expected |= {f"antmaze-{maze}": million for maze in mazes}
    for i, maze in zip((1, 2, 4), ("umaze", "medium", "large"), strict=True):
        expected |= {f"maze2d-{maze}": i * million, f"maze2d-{maze}-clean": i * million}
    assert expected == recipes.catalogue.TRANSITIONS
    long = dict.fromkeys(("pointmaze-giant-navigate", "antmaze-giant-navigate"), (500, 2_001))
    short = ("pointmaze-medium-navigate", "pointmaze-large-navigate", "antmaze-large-navigate")
    usual = dict.fromkeys((*short, "cube-single-play", "scene-play", "puzzle-3x3-play"), (1_000, 1_001))
    found = {name: (size.episodes, size.steps) for name, size in recipes.catalogue.TRAJECTORIES.items()}
    assert found == {**long, **usual}


def test_pieces_add_up_to_the_declared_sizes(recipes: SimpleNamespace) -> None:
    folder = Path("policies")
    for name, rows in recipes.catalogue.TRANSITIONS.items():
        outputs = recipes.catalogue.pieces_of(name, folder, folder / "clone.npz")
        assert {file: sum(p.rows for p in pieces) for file, pieces in outputs.items()} == {f"{name}.hdf5": rows}
    for name, size in recipes.catalogue.TRAJECTORIES.items():
        outputs = recipes.catalogue.pieces_of(name, folder, folder / "clone.npz")
        found = {file: sum(p.rows for p in pieces) for file, pieces in outputs.items()}
        assert found == {f"{name}-v0.npz": size.rows, f"{name}-v0-val.npz": size.rows // 10}


def test_medium_and_replay_data_have_one_lineage(recipes: SimpleNamespace) -> None:
    def files_of_policies(name: str) -> set[str]:
        outputs = recipes.catalogue.pieces_of(name, Path("policies"), Path("clone.npz"))
        (pieces,) = outputs.values()
        return {argument.name for piece in pieces for argument in piece.arguments if isinstance(argument, Path)}

    for task in ("hopper", "halfcheetah", "walker2d"):
        for quality in ("random", "medium", "medium-replay", "full-replay"):
            assert files_of_policies(f"{task}-{quality}") == {f"{task}.npz"}
    assert files_of_policies("halfcheetah-medium-expert") == {"halfcheetah.npz", "halfcheetah_sac.npz"}


def test_the_study_finds_all_its_datasets(recipes: SimpleNamespace, tmp_path: Path) -> None:
    files = [f"{name}.hdf5" for name in (*recipes.catalogue.TRANSITIONS, recipes.catalogue.HUMAN)]
    for file in (*files, *(f"{name}-v0.npz" for name in recipes.catalogue.TRAJECTORIES)):
        (tmp_path / file).touch()
    found = find_dataset_files(tmp_path)
    plan = make_plan(suites.expand(["study", "ogbench"]), data=found)
    assert plan.missing_datasets == ()
    assert {run.dataset for run in plan.runs.values()} <= set(found)


# ── D4RL's layout ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_file_is_the_dataset_that_its_name_says(recipes: SimpleNamespace, made: dict[str, Dataset]) -> None:
    for name, dataset in made.items():
        assert (dataset.observation_size, dataset.action_size) == SIZES[name.partition("-")[0]]
        assert dataset.env is not None
        assert dataset.env.startswith(f"{name.removesuffix('-clean')}-v")
        assert dataset.behaviour_score() is not None
        if name == "door-human":
            continue
        assert len(dataset) == round(SCALE * recipes.catalogue.TRANSITIONS[name])
        assert np.abs(dataset.actions).max() <= 1
        if name.startswith("maze2d") or name == "door-cloned":
            continue
        assert dataset.next_observations is not None
        # Within an episode the next observation is the next row's; pieces end as timeouts do.
        goes_on = ~(dataset.terminals | dataset.timeouts)[:-1]
        np.testing.assert_array_equal(dataset.next_observations[:-1][goes_on], dataset.observations[1:][goes_on])
        assert (dataset.terminals | dataset.timeouts)[-1]


def test_mixtures_contain_the_rows_of_their_parts(made: dict[str, Dataset]) -> None:
    mixed, half = made["hopper-medium-expert"], len(made["hopper-medium"])
    np.testing.assert_array_equal(mixed.observations[:half], made["hopper-medium"].observations)
    np.testing.assert_array_equal(mixed.observations[half:], made["hopper-expert"].observations)
    assert not np.array_equal(made["hopper-medium"].actions, made["hopper-expert"].actions)
    first, second = made["hopper-medium"].actions[:PIECE_ROWS], made["hopper-medium"].actions[PIECE_ROWS:]
    assert not np.array_equal(first, second[:PIECE_ROWS])


def test_an_ant_starts_where_its_dataset_says(made: dict[str, Dataset]) -> None:
    starts = {name: made[name].observations[::PIECE_ROWS, :2] for name in made if name.startswith("antmaze")}
    assert np.abs(starts["antmaze-umaze"]).max() <= 0.1
    assert np.abs(starts["antmaze-medium-play"]).max() <= 0.1
    assert np.abs(starts["antmaze-large-diverse"]).max() > 1


@pytest.mark.parametrize(("name", "noise"), [("maze2d-umaze", 0.5), ("maze2d-umaze-clean", 0.0)])
def test_mazes_come_from_the_librarys_generator(made: dict[str, Dataset], name: str, noise: float) -> None:
    again = maze2d.generate("umaze", len(made[name]), 0, noise=noise)
    np.testing.assert_array_equal(made[name].observations, again["observations"])


def test_half_of_cloned_data_are_demonstrations(made: dict[str, Dataset], policies: Path) -> None:
    cloned = made["door-cloned"]
    half = len(cloned) // 2
    with h5py.File(policies / "real" / "door_human_demos.hdf5") as file:
        rows = np.arange(half) % 60
        np.testing.assert_array_equal(cloned.observations[half:], file["observations"][:][rows])
        np.testing.assert_array_equal(cloned.actions[half:], file["actions"][:][rows].clip(-1, 1))
    assert cloned.next_observations is None
    assert cloned.timeouts[[half - 1, half + 19, -1]].all()  # of the clone's rollouts, a demonstration, the file


def test_a_clone_fits_its_demonstrations(recipes: SimpleNamespace) -> None:
    rng = np.random.default_rng(0)
    observations = rng.normal(3, 2, (2_000, 5)).astype(np.float32)
    noise = 0.1 * rng.standard_normal((2_000, 2))
    actions = (np.tanh(observations @ rng.normal(size=(5, 2)) / 4) + noise).astype(np.float32)
    clone = recipes.policies.fit_clone(observations, actions)
    np.testing.assert_allclose(np.exp(clone["log_std"]), 0.1, atol=0.02)
    act = recipes.policies.hand_policy({**clone, "log_std": np.full(2, -20.0)}, 0)
    predicted = np.stack([act(row, rng) for row in observations[:200]])
    assert np.abs(predicted - actions[:200]).mean() < 0.12
    again = recipes.policies.fit_clone(observations, actions)
    assert all(np.array_equal(again[key], array) for key, array in clone.items())


# ── OGBench's layout ────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_episode_does_not_depend_on_others(recipes: SimpleNamespace) -> None:
    def walk(first: int, episodes: int) -> dict[str, np.ndarray]:
        return recipes.ogbench.navigate("pointmaze-medium-navigate", None, 0.5, 20, first, episodes)

    state = np.random.get_state()[1].copy()  # noqa: NPY002
    both, second = walk(0, 2), walk(1, 1)
    for key, array in second.items():
        np.testing.assert_array_equal(both[key][20:], array)
    np.testing.assert_array_equal(np.flatnonzero(both["terminals"]), [19, 39])
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


def test_goals_are_in_no_corridor(recipes: SimpleNamespace) -> None:
    walls = np.array([[1, 1, 1, 1, 1], [1, 0, 0, 0, 1], [1, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    free, decisions = recipes.ogbench.decision_cells(walls)
    assert free == [(1, 1), (1, 2), (1, 3), (2, 1)]
    assert decisions == [(1, 1), (1, 3), (2, 1)]


def test_a_cube_is_visible_on_the_table_and_in_the_drawer(recipes: SimpleNamespace) -> None:
    qpos = np.zeros((3, 20))
    assert recipes.ogbench.cube_stays_visible(qpos)
    qpos[1, 15:17] = -0.31, 0.07
    assert recipes.ogbench.cube_stays_visible(qpos)
    qpos[1, 16] = 0.02
    assert not recipes.ogbench.cube_stays_visible(qpos)
    qpos[1, 15] = 0.3
    assert not recipes.ogbench.cube_stays_visible(qpos)


def test_a_wedged_ant_tries_another_direction(recipes: SimpleNamespace, policies: Path) -> None:
    file = policies / "antmaze" / "ant_goal_policy.npz"
    agent, ahead, observation = recipes.ogbench.AntAgent(file), np.array([1.0, 0.0]), np.zeros(29)
    observation[3] = 1.0
    agent.reset()
    usual = recipes.policies.ant_action(recipes.policies.load_arrays(file), observation, ahead)
    steps, freeing = recipes.ogbench.WEDGED_STEPS, recipes.ogbench.FREEING_STEPS
    same = [np.array_equal(agent.act(observation, ahead), usual) for _ in range(steps + freeing + 1)]
    assert same == [True] * steps + [False] * freeing + [True]
    assert not agent.has_turned_over(observation)
    observation[3:7] = 0, 1, 0, 0
    assert agent.has_turned_over(observation)


# ── the command ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_finished_pieces_and_files_are_kept(
    recipes: SimpleNamespace, policies: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert not (out / "pieces").exists()
    before = {path: path.stat().st_mtime_ns for path in out.glob("*.hdf5")}
    words = ["--scale", str(SCALE), "--workers", "1", "--only", *QUICK]
    assert recipes.command.main([str(policies), "--out", str(out), *words]) == 0
    assert capsys.readouterr().out == ""
    assert {path: path.stat().st_mtime_ns for path in out.glob("*.hdf5")} == before
    (piece, *_) = recipes.catalogue.pieces_of("hopper-random", policies, tmp_path, SCALE)["hopper-random.hdf5"]
    piece.path(tmp_path).write_bytes(b"kept")
    recipes.pieces.collect_piece(piece, tmp_path)
    assert piece.path(tmp_path).read_bytes() == b"kept"


def test_datasets_that_cannot_be_made_are_named(
    recipes: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = [str(tmp_path), "--out", str(tmp_path / "out"), "--workers", "1", "--only"]
    assert recipes.command.main([*words, "door-human", "walker2d-random"]) == 0
    errors = capsys.readouterr().err
    assert "door-human: skipped, because" in errors
    assert "walker2d-random: skipped, because" in errors
    with pytest.raises(SystemExit, match="2"):
        recipes.command.main([*words, "hoper-*"])
    assert "No dataset matches 'hoper-*'. The names are" in capsys.readouterr().err


def run_command(policies: Path, out: Path, *words: str, **env: str) -> None:
    command = [sys.executable, str(BENCHMARKS / "study_data.py"), str(policies), "--out", str(out), *words]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **env})


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
        words = ("--only", "hopper-medium", "--scale", "2e-4", "--workers", "1")
        run_command(wide, tmp_path / core, *words, OPENBLAS_CORETYPE=core)
        with h5py.File(tmp_path / core / "hopper-medium.hdf5") as file:
            made.append(file["observations"][:])
    np.testing.assert_array_equal(*made)


@pytest.mark.slow
def test_small_datasets_of_every_kind(recipes: SimpleNamespace, policies: Path, tmp_path: Path) -> None:
    run_command(policies, tmp_path, "--scale", "0.001", "--workers", "2")
    found = find_dataset_files(tmp_path)
    trajectories = recipes.catalogue.TRAJECTORIES
    assert set(found) > {*recipes.catalogue.TRANSITIONS, recipes.catalogue.HUMAN}
    assert len(list(tmp_path.glob("*.npz"))) == 2 * len(trajectories)
    for name, rows in recipes.catalogue.TRANSITIONS.items():
        dataset = load_dataset(name, str(found[name]))
        assert len(dataset) == round(rows / 1000)
        assert (dataset.observation_size, dataset.action_size) == SIZES[name.partition("-")[0]]
    for stem, size in trajectories.items():
        tasks = [f"{stem}-singletask-task{i}-v0" for i in range(1, 6)]
        loaded = [load_dataset(task, str(found[task])) for task in tasks]
        # The last row of a trajectory is no transition.
        assert {len(dataset) for dataset in loaded} == {max(size.episodes // 1000, 1) * (size.steps - 1)}
        validation = data.load(tasks[0], path=tmp_path / f"{stem}-v0-val.npz")
        assert len(validation) == size.steps - 1
        assert not np.array_equal(validation.observations, loaded[0].observations)


@pytest.mark.slow
def test_a_killed_command_continues(policies: Path, tmp_path: Path) -> None:
    words = ("--only", "pointmaze-medium-navigate", "--scale", "0.04", "--workers", "2")
    command = [sys.executable, str(BENCHMARKS / "study_data.py"), str(policies), "--out", str(tmp_path / "a"), *words]
    process = subprocess.Popen(command, start_new_session=True)
    while not (kept := list((tmp_path / "a" / "pieces").glob("*.npz"))):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not list((tmp_path / "a").glob("*.npz"))
    with np.load(kept[0]) as piece:
        changed = {**piece, "actions": np.full_like(piece["actions"], 7.0)}  # to see whether it is used
    np.savez(kept[0], **changed)
    run_command(policies, tmp_path / "a", *words)
    run_command(policies, tmp_path / "b", *words, "--workers", "1")
    for file in ("pointmaze-medium-navigate-v0.npz", "pointmaze-medium-navigate-v0-val.npz"):
        with np.load(tmp_path / "a" / file) as continued, np.load(tmp_path / "b" / file) as uninterrupted:
            same = (continued["actions"] != 7.0).all(axis=1)
            for key in uninterrupted.files:
                rows = same if key == "actions" else slice(None)
                np.testing.assert_array_equal(continued[key][rows], uninterrupted[key][rows])
            if file.endswith("e-v0.npz"):
                assert not same.all()
    assert not (tmp_path / "a" / "pieces").exists()
