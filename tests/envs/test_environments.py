"""Every environment of the paper's 39 + 10 datasets: sizes, limits, rewards, seeds, D4RL's random scores."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from aspc import envs, tasks
from aspc.data.sources import pointmaze
from aspc.errors import AspcError

OGBENCH = [f"antmaze-{size}-navigate-singletask-task{task}-v0" for size in ("large", "giant") for task in range(1, 6)]


def test_d4rl_has_39_datasets() -> None:
    assert len(tasks.d4rl_datasets()) == 39


@pytest.mark.parametrize("name", [*tasks.d4rl_datasets(), *OGBENCH])
def test_every_environment_steps(name: str) -> None:
    env = envs.make_env(name)
    rng = np.random.default_rng(0)
    first, _ = env.reset(seed=7)
    assert first.ndim == 1
    assert first.dtype.kind == "f"
    low, high = envs.action_bounds(name)
    np.testing.assert_array_equal(env.action_space.low, low)
    np.testing.assert_array_equal(env.action_space.high, high)
    if name in tasks.d4rl_datasets():
        family = tasks.d4rl_datasets()[name].family
        assert first.shape == (family.observation_size,)
        assert low.shape == (family.action_size,)
        assert envs.reference_scores(name) == (tasks.d4rl_datasets()[name].ref_min, tasks.d4rl_datasets()[name].ref_max)
        assert envs.normalized_score(name, tasks.d4rl_datasets()[name].ref_max) == pytest.approx(100.0)
    for _ in range(5):
        action = rng.uniform(low, high)
        observation, reward, terminated, truncated, info = env.step(action)
        assert observation.shape == first.shape
        assert np.isfinite(observation).all()
        assert np.isfinite(float(reward))
        assert not truncated
        # Mazes, Adroit and OGBench say whether the task is solved; locomotion has nothing to solve.
        assert ("success" in info) == (tasks.family_of(name) not in ("halfcheetah", "hopper", "walker2d"))
        if terminated:
            break
    again, _ = env.reset(seed=7)
    np.testing.assert_array_equal(first, again)
    other, _ = env.reset(seed=8)
    assert not np.array_equal(first, other)
    env.close()


@pytest.mark.parametrize("family", ["antmaze-umaze", "pen", "door", "maze2d-umaze", "hopper"])
def test_step_limits_match_d4rl(family: str) -> None:
    name = next(n for n, dataset in tasks.d4rl_datasets().items() if dataset.family_name == family)
    env = envs.make_env(name)
    assert envs.horizon(name) == tasks.FAMILIES[family].horizon
    env.reset(seed=0)
    rest = np.zeros(env.action_space.shape)
    for t in range(envs.horizon(name)):
        _, _, terminated, truncated, _ = env.step(rest)
        if terminated:
            assert family in ("hopper", "pen")  # falls, drops
            break
        assert truncated == (t == envs.horizon(name) - 1)
    env.close()


def random_returns(name: str, episodes: int) -> np.ndarray:
    env, rng = envs.make_env(name), np.random.default_rng(0)
    returns = []
    for seed in range(episodes):
        env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = env.step(rng.uniform(-1, 1, env.action_space.shape))
            total, over = total + reward, terminated or truncated
        returns.append(total)
    env.close()
    return np.array(returns)


# Allowed: what the task's own spread makes likely for D4RL's figure and ours (see docs/data.md).
@pytest.mark.parametrize(
    ("name", "episodes", "allowed"),
    [
        ("door-human-v1", 12, 0.6),
        ("hammer-human-v1", 12, 5.0),
        ("relocate-human-v1", 30, 3.5),
        ("pen-human-v1", 150, 45.0),
    ],
)
def test_random_adroit_policy_scores_the_reference_minimum(name: str, episodes: int, allowed: float) -> None:
    assert abs(random_returns(name, episodes).mean() - envs.reference_scores(name)[0]) < allowed


def test_random_antmaze_policy_never_reaches_the_goal() -> None:
    assert random_returns("antmaze-umaze-v2", 2).max() == envs.reference_scores("antmaze-umaze-v2")[0] == 0.0


@pytest.mark.parametrize("maze", ["umaze", "medium", "large"])
def test_antmaze_draws_its_goal_and_ends_there(maze: str) -> None:
    from aspc.envs.antmaze import GOALS, AntMazeEnv

    env = AntMazeEnv(maze)
    row, column = GOALS[maze]
    goals = []
    for seed in range(30):
        observation, _ = env.reset(seed=seed)
        assert np.abs(observation[:2]).max() <= 0.1
        goals.append(env.goal)
    offset = np.array(goals) - (4 * (column - 1), 4 * (row - 1))
    assert offset.min() >= 0
    assert offset.max() <= 1.5
    assert offset.std() > 0.2
    env.goal = observation[:2] + 0.3
    _, reward, terminated, truncated, info = env.step(np.zeros(8))
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    env.close()


@pytest.mark.parametrize("maze", ["medium", "large"])
def test_antmaze_walls_are_ogbenchs(maze: str) -> None:
    from aspc.envs.antmaze import AntMazeEnv

    ours, theirs = AntMazeEnv(maze), envs.make_env(f"antmaze-{maze}-navigate-singletask-task1-v0")

    def boxes(env) -> np.ndarray:
        model = env.unwrapped._ant.model if hasattr(env.unwrapped, "_ant") else env.unwrapped.model
        walls = model.geom_type == 6
        return np.round(np.concatenate([model.geom_pos[walls], model.geom_size[walls]], axis=1), 9)

    np.testing.assert_array_equal(np.sort(boxes(ours), axis=0), np.sort(boxes(theirs), axis=0))
    ours.close()
    theirs.close()


def test_dropping_the_pen_terminates() -> None:
    env = envs.make_env("pen-human-v1")
    env.reset(seed=0)
    ends = []
    rng = np.random.default_rng(0)
    for _ in range(300):
        _, _, terminated, truncated, _ = env.step(rng.uniform(-1, 1, 24))
        base = env.unwrapped
        assert terminated == (base.data.xpos[base.obj_body_id][2] < 0.075)
        if terminated or truncated:
            ends.append(terminated)
            env.reset()
    assert any(ends)
    env.close()


def test_locomotion_is_the_v4_environment_and_other_gymnasium_ids_work() -> None:
    assert envs.make_env("walker2d-medium-replay-v2").spec.id == "Walker2d-v4"
    pendulum = envs.make_env("Pendulum-v1")
    assert pendulum.observation_space.shape == (3,)
    assert envs.horizon("Pendulum-v1") == 200
    assert envs.reference_scores("Pendulum-v1") is None
    assert envs.reference_scores("Hopper-v4") == envs.reference_scores("hopper-expert-v2")
    assert envs.normalized_score("Pendulum-v1", 0.0) is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hopper-meduim-v2", "Unknown environment.*hopper-medium-v2"),
        ("antmaze-colossal-navigate-singletask-v0", "Unknown OGBench dataset"),
        ("NoSuchModule:Env-v0", "Unknown environment"),
    ],
)
def test_invalid_environments_are_errors(name: str, message: str) -> None:
    with pytest.raises(AspcError, match=message):
        envs.make_env(name)


@pytest.mark.parametrize("package", ["imageio", "mujoco"])
def test_missing_packages_are_reported_with_the_extra(package: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import a_package_of_theirs")
    names = ["Hopper-v4", "hopper-medium-v2", "pen-human-v1", "antmaze-umaze-v2", OGBENCH[0], "own:Own-v0", "Hoper-v4"]
    script = (
        "import sys; sys.modules[sys.argv[1]] = None\n"
        "from aspc import envs, errors\n"
        "for name in sys.argv[2:]:\n"
        "    try: envs.make_env(name)\n"
        "    except errors.AspcError as error: print(error)"
    )
    command = [sys.executable, "-c", script, package, *names]  # in a process where it was not imported before
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.splitlines()
    extras = ["mujoco", "mujoco", "robotics", "ogbench", "ogbench"]
    for sentence, extra in zip(said[:5], extras, strict=True):
        assert sentence.endswith(f" needs {package}, which is not installed: pip install 'aspc[{extra}]'.")
    assert said[5:-1] == [
        "The environment own:Own-v0 needs a_package_of_theirs, which is not installed; install it first."
    ]
    assert said[-1].startswith("Unknown environment 'Hoper-v4'; did you mean Hopper-v4")


def test_lunar_lander_names_its_extra() -> None:
    script = "import sys; sys.modules['Box2D'] = None\nfrom aspc import envs\nenvs.make_env('LunarLander-v3')"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False).stderr
    assert "LunarLander-v3 needs Box2D, which is not installed: pip install 'aspc[box2d]'." in said


def test_lunar_lander_has_four_options() -> None:
    pytest.importorskip("Box2D", reason="the extra `box2d` is not installed")
    env = envs.make_env("LunarLander-v3")
    env.reset(seed=0)
    assert env.step(np.eye(4)[2])[0].shape == (8,)
    choices = envs.choices("LunarLander-v3")
    assert choices is not None
    assert choices.sizes == (4,)


def test_moved_environments_are_not_reported_as_unknown() -> None:
    with pytest.raises(AspcError, match=r"^The environment Hopper-v3 cannot be made: [TN]"):
        envs.make_env("Hopper-v3")


def test_ogbench_mazes_leave_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    env = envs.make_env("antmaze-medium-navigate-singletask-v0")
    env.reset(seed=0)
    pointmaze.generate("pointmaze-medium", episodes=1, steps=3, seed=0, noise=0.5)
    assert not list(tmp_path.iterdir())


def test_a_manipulation_environment_gives_no_warnings() -> None:
    env = envs.make_env("cube-single-play-singletask-task1-v0")  # warnings are errors here
    first, _ = env.reset(seed=0)
    env.step(env.action_space.sample())
    np.testing.assert_array_equal(env.reset(seed=0)[0], first)
    assert env.action_space is env.action_space


def test_ogbench_names() -> None:
    name = "antmaze-large-navigate-singletask-task3-v0"
    assert name in tasks.ogbench_names()
    assert tasks.ogbench_env_id(name) == "antmaze-large-singletask-task3-v0"
    assert tasks.ogbench_env_id("cube-double-play-singletask-v0") == "cube-double-singletask-v0"
    assert tasks.ogbench_file_stem(name) == "antmaze-large-navigate-v0"
    assert not tasks.is_ogbench_task("antmaze-large-navigate-v0")
    env = envs.make_env(name)
    env.reset(seed=0)
    _, reward, _, _, info = env.step(np.zeros(8))
    assert (reward, info["success"]) == (-1.0, 0.0)  # OGBench's single-task reward: success - 1
    env.unwrapped.set_xy(env.unwrapped.cur_goal_xy)
    _, reward, terminated, _, info = env.step(np.zeros(8))
    assert (reward, terminated, info["success"]) == (0.0, True, 1.0)
    env.close()
