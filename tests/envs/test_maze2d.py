"""Maze2d: the plain-Python dynamics against MuJoCo's, the controller and the random policy against D4RL's scores."""

from __future__ import annotations

import numpy as np
import pytest

from aspc import envs
from aspc.data.sources import maze2d as generator
from aspc.envs.maze2d import MAZES, Maze2dEnv, step_point
from aspc.envs.packages import quiet_packages


@pytest.fixture(scope="module")
def point_maze():
    """Gymnasium-Robotics' PointMaze for each maze, and D4RL's frame of its state."""
    pytest.importorskip("gymnasium_robotics")
    with quiet_packages():
        from gymnasium_robotics.envs.maze import maps
        from gymnasium_robotics.envs.maze.point_maze import PointMazeEnv

        made = {
            name: PointMazeEnv(layout)
            for name, layout in (("umaze", maps.U_MAZE), ("medium", maps.MEDIUM_MAZE), ("large", maps.LARGE_MAZE))
        }
    yield made
    for env in made.values():
        env.close()


class ReferencePoint:
    """PointMaze's point in D4RL's frame: q = (H/2 - 0.7 - Y, X + W/2 - 0.7), v = (-vY, vX)."""

    def __init__(self, env) -> None:
        self.env = env
        self.height, self.width = env.maze.map_length, env.maze.map_width

    def put(self, x: float, y: float, vx: float, vy: float) -> None:
        position = np.array([y - self.width / 2 + 0.7, self.height / 2 - 0.7 - x])
        self.env.point_env.set_state(position, np.array([vy, -vx]))

    def step(self, action: np.ndarray) -> tuple[float, ...]:
        self.env.point_env.step(np.array([action[1], -action[0]]))
        (x, y), (vx, vy) = self.env.data.qpos, self.env.data.qvel
        return float(self.height / 2 - 0.7 - y), float(x + self.width / 2 - 0.7), float(-vy), float(vx)


@pytest.mark.parametrize("name", MAZES)
def test_walls_match_pointmaze(point_maze, name: str) -> None:
    rows = [[int(symbol == "#") for symbol in row] for row in MAZES[name].rows]
    assert rows == point_maze[name].maze.maze_map


@pytest.mark.parametrize("name", MAZES)
@pytest.mark.parametrize(
    "hold", [1, 10]
)  # steps that a random action is kept: longer means faster collisions with walls
def test_single_steps_match_mujoco(point_maze, name: str, hold: int) -> None:
    """2,000 random steps, each from the same state: positions and contacts agree to 1e-9."""
    theirs, rng = ReferencePoint(point_maze[name]), np.random.default_rng(1)
    state = (*(np.array(MAZES[name].free_cells[0]) + 0.05).tolist(), 0.0, 0.0)
    theirs.put(*state)
    worst, collisions = 0.0, 0
    for t in range(2_000):
        if t % hold == 0:
            action = rng.uniform(-1.2, 1.2, 2)
        ours = step_point(MAZES[name], *state, *action.tolist())
        state = theirs.step(action)
        worst = max(worst, *np.abs(np.subtract(ours, state)))
        collisions += theirs.env.data.ncon > 1
    assert collisions > 50  # otherwise nothing was tested
    assert worst < 1e-9


@pytest.mark.parametrize("name", MAZES)
def test_episodes_match_mujoco(point_maze, name: str) -> None:
    """2,000 random steps in episodes of 250, without resetting to the same state.

    Collisions with corners multiply rounding errors by about ten per 100 steps, also within MuJoCo.
    """
    theirs, env = ReferencePoint(point_maze[name]), Maze2dEnv(name)
    rng = np.random.default_rng(0)
    for seed in range(8):
        env.reset(seed=seed)
        theirs.put(*env.state)
        for _ in range(250):
            action = rng.uniform(-1, 1, 2)
            observation, *_ = env.step(action)
            np.testing.assert_allclose(observation, theirs.step(action), rtol=0, atol=1e-9)


def test_episodes_follow_d4rl() -> None:
    for name, maze in MAZES.items():
        env = Maze2dEnv(name)
        starts = []
        for seed in range(600):
            observation, info = env.reset(seed=seed)
            cell = np.round(observation[:2])
            assert tuple(cell.astype(int)) in maze.free_cells
            assert np.abs(observation[:2] - cell).max() <= 0.1
            assert info["success"] == (np.linalg.norm(observation[:2] - maze.goal) <= 0.5)
            starts.append(tuple(cell))
        assert len(set(starts)) == len(maze.free_cells)  # the goal's cell too
    env.reset(seed=0)
    for t in range(maze.limit):
        observation, reward, terminated, truncated, info = env.step(np.array([0.3, -0.3]))
        assert reward == float(info["success"]) == float(np.linalg.norm(observation[:2] - maze.goal) <= 0.5)
        assert not terminated
        assert truncated == (t == maze.limit - 1)


def episode_return(env: Maze2dEnv, seed: int, act) -> float:
    observation, _ = env.reset(seed=seed)
    total, truncated = 0.0, False
    while not truncated:
        observation, reward, _, truncated, _ = env.step(act(observation))
        total += reward
    return total


@pytest.mark.parametrize("name", MAZES)
def test_a_random_policy_scores_the_reference_minimum(name: str) -> None:
    env, rng = Maze2dEnv(name), np.random.default_rng(0)
    returns = [episode_return(env, seed, lambda _: rng.uniform(-1, 1, 2)) for seed in range(300)]
    low, _ = envs.reference_scores(f"maze2d-{name}-v1")
    spread = np.std(returns) * np.sqrt(1 / 300 + 1 / 100)  # D4RL's figure is a mean of some 100 episodes itself
    assert abs(np.mean(returns) - low) < 2.5 * spread


@pytest.mark.parametrize("name", MAZES)
def test_the_controller_scores_the_reference_maximum(name: str) -> None:
    """D4RL's reference is its controller's mean return over 100 episodes, with one controller for all of them: it plans
    a path for a new target only, so after the first episode it drives straight at the goal and stays behind some
    walls."""
    env = Maze2dEnv(name)
    controller = generator.WaypointController(env.maze, np.random.default_rng(0))
    returns = [
        episode_return(env, seed, lambda o: np.array(controller.act(*o.tolist(), env.maze.goal)[:2]))
        for seed in range(500)
    ]
    _, high = envs.reference_scores(f"maze2d-{name}-v1")
    standard_error = np.std(returns) * np.sqrt(1 / 500 + 1 / 100)
    assert abs(np.mean(returns) - high) < 2.5 * standard_error


@pytest.mark.parametrize("name", MAZES)
def test_planning_controller_reaches_the_goal_from_every_start(name: str) -> None:
    env, rng = Maze2dEnv(name), np.random.default_rng(0)
    for seed in range(60):
        controller = generator.WaypointController(env.maze, rng)
        total = episode_return(env, seed, lambda o, c=controller: np.array(c.act(*o.tolist(), env.maze.goal)[:2]))
        assert total > 50
        assert np.linalg.norm(np.array(env.state[:2]) - env.maze.goal) < 0.1


def test_generated_data_follow_d4rls_recipe() -> None:
    """One walk without resets; timeouts mark reached targets, and the row after each repeats its observation."""
    data = generator.generate("medium", 6_000, seed=3, noise=0.5)
    states, actions = data["observations"].astype(np.float64), data["actions"].astype(np.float64)
    assert data["observations"].dtype == np.float32
    assert not data["terminals"].any()
    reached = np.flatnonzero(data["timeouts"])
    assert 20 < len(reached) < 60
    assert np.abs(states[reached, :2] - np.round(states[reached, :2])).max() < 0.1
    hidden = states[0]  # where the point really is
    for t in range(5_999):
        hidden = np.array(step_point(MAZES["medium"], *hidden.tolist(), *actions[t].tolist()))
        if data["timeouts"][t]:
            np.testing.assert_array_equal(states[t + 1], states[t])
        else:
            np.testing.assert_allclose(states[t + 1], hidden, atol=3e-4)  # states and actions are rounded to float32
            hidden = states[t + 1]
    distance = np.linalg.norm(states[:, :2] - (6, 6), axis=1)
    sure = np.abs(distance - 0.5) > 1e-5
    np.testing.assert_array_equal(data["rewards"][sure], (distance <= 0.5)[sure])


def test_noise_is_added_to_the_clipped_action() -> None:
    """Half of the saturated actions stay saturated: noise added before clipping would leave nearly all of them."""
    clean, noisy = (generator.generate("large", 20_000, seed=0, noise=noise)["actions"] for noise in (0.0, 0.5))
    saturated = [float((np.abs(actions) == 1).mean()) for actions in (clean, noisy)]
    assert saturated[0] > 0.4
    assert 0.5 < saturated[1] / saturated[0] < 0.8


def test_default_sizes_are_d4rls() -> None:
    assert generator.DEFAULT_STEPS == {"umaze": 1_000_000, "medium": 2_000_000, "large": 4_000_000}
    assert generator.parse_name("maze2d-large") == ("large", 0.5)
    assert generator.parse_name("maze2d-large-clean") == ("large", 0.0)


def test_noise_and_seed_change_the_data() -> None:
    plain = generator.generate("umaze", 500, seed=0, noise=0.0)
    again = generator.generate("umaze", 500, seed=0, noise=0.0)
    np.testing.assert_array_equal(plain["observations"], again["observations"])
    for other in (generator.generate("umaze", 500, 1, 0.0), generator.generate("umaze", 500, 0, 0.5)):
        assert not np.array_equal(plain["observations"], other["observations"])
