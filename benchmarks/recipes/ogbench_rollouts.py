"""Rollouts that follow OGBench's recipes, in the layout of its files: trajectories of equal length without rewards.

The seed of an episode is a hash of the dataset's name and the episode's index. Its rows therefore do not depend on the
other episodes that the same process collects.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from aspc.envs.packages import quiet_packages, remove_model_file
from recipes.policies import Arrays, ant_action, load_arrays

ORACLE_NOISE = 0.1
ORACLE_SMOOTHING = 0.5
# The stored ant policy is less agile than OGBench's: the ant gets stuck at corners and turns over.
WEDGED_METERS, WEDGED_STEPS = 0.5, 50  # an ant that moves less than this distance in this many steps is stuck
FREEING_STEPS = 25  # length of the random walk with which the ant frees itself
STACKING_PROBABILITY = {"cube-single": 0.0, "scene": 0.5, "puzzle-3x3": 0.5}

Cell = tuple[int, int]


class Trajectory:
    """The rows of one episode."""

    DTYPES: Mapping[str, type] = {
        "observations": np.float32,
        "actions": np.float32,
        "terminals": bool,
        "qpos": np.float32,
        "qvel": np.float32,
        "button_states": np.int64,
    }

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {}

    def add(self, observation: np.ndarray, action: np.ndarray, done: bool, info: dict[str, Any]) -> None:
        """Add a row with the observation, the action, and the simulator's state before the step."""
        row = {"observations": observation, "actions": action, "terminals": done}
        row |= {key: info[f"prev_{key}"] for key in ("qpos", "qvel", "button_states") if f"prev_{key}" in info}
        for key, value in row.items():
            self.columns.setdefault(key, []).append(value)

    def arrays(self) -> Arrays:
        return {key: np.asarray(column, self.DTYPES[key]) for key, column in self.columns.items()}


class PointAgent:
    """OGBench's point agent, whose action is the direction of its movement."""

    def reset(self) -> None:
        """Start an episode."""

    def act(self, observation: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """Return the action (without noise) that moves the agent in the direction of a unit vector."""
        return direction

    def has_turned_over(self, observation: np.ndarray) -> bool:
        """Return whether the agent has turned over, so that the episode must be discarded."""
        return False


class AntAgent(PointAgent):
    """An ant with the stored policy. When it is stuck, it walks in a random direction for a while."""

    def __init__(self, policy: Path) -> None:
        self._policy = load_arrays(policy)

    def reset(self) -> None:
        self._positions: list[np.ndarray] = []
        self._freeing = 0
        self._detour = np.zeros(2)

    def act(self, observation: np.ndarray, direction: np.ndarray) -> np.ndarray:
        self._positions.append(observation[:2].copy())
        if self._freeing == 0 and self._is_wedged():
            self._freeing, self._detour = FREEING_STEPS, np.random.normal(size=2)  # noqa: NPY002
            self._positions.clear()
        if self._freeing > 0:
            self._freeing -= 1
            direction = self._detour
        return ant_action(self._policy, observation, direction)

    def _is_wedged(self) -> bool:
        if len(self._positions) <= WEDGED_STEPS:
            return False
        moved = self._positions[-1] - self._positions[-1 - WEDGED_STEPS]
        return bool(np.linalg.norm(moved) < WEDGED_METERS)

    def has_turned_over(self, observation: np.ndarray) -> bool:
        x, y = observation[4:6]  # x and y of the torso's quaternion
        return bool(x**2 + y**2 > 0.5)


def navigate(name: str, policy: Path | None, noise: float, steps: int, first: int, episodes: int) -> Arrays:
    """Collect episodes of an agent that walks through a maze from goal to goal.

    In each episode, the agent starts in a random free cell and follows a shortest path to a goal in a random cell that
    is not part of a straight corridor. When it reaches the goal, another one is drawn. `policy` is the file of the
    ant's policy; without it, the agent is the point. An episode in which the ant turns over is discarded and repeated.
    """
    env = _make(_environment(name), steps)
    agent = PointAgent() if policy is None else AntAgent(policy)

    def episode() -> Arrays:
        while (arrays := _navigate(env, agent, noise)) is None:
            pass
        return arrays

    return _collect(name, env, range(first, first + episodes), episode)


def play(name: str, steps: int, first: int, episodes: int) -> Arrays:
    """Collect episodes of OGBench's plan oracles. Whenever an oracle reaches its target, a new target is set."""
    env = _make(_environment(name), steps, mode="data_collection")
    with quiet_packages():
        oracles = _make_oracles(env, name)
    stacking = STACKING_PROBABILITY[name.removesuffix("-play")]

    def episode() -> Arrays:
        while True:
            arrays = _play(env, oracles, stacking)
            if not name.startswith("scene") or cube_stays_visible(arrays["qpos"]):
                return arrays

    return _collect(name, env, range(first, first + episodes), episode)


def cube_stays_visible(qpos: np.ndarray) -> bool:
    """Return whether the cube of the scene never leaves the camera's view, except inside the drawer."""
    y, z = qpos[:, 15], qpos[:, 16]
    hidden = (y <= -0.3) & ((z < 0.06) | (z > 0.08))
    return not ((y >= 0.29) | hidden).any()


def decision_cells(maze_map: np.ndarray) -> tuple[list[Cell], list[Cell]]:
    """Return all free cells, and the free cells that are not part of a straight corridor."""
    free = [(int(i), int(j)) for i, j in np.argwhere(maze_map == 0)]

    def is_corridor(i: int, j: int) -> bool:
        vertical = maze_map[i - 1, j], maze_map[i + 1, j]
        horizontal = maze_map[i, j - 1], maze_map[i, j + 1]
        return (not any(vertical) and all(horizontal)) or (not any(horizontal) and all(vertical))

    return free, [cell for cell in free if not is_corridor(*cell)]


def _environment(name: str) -> str:
    return f"{name.rpartition('-')[0]}-v0"


def _make(env_id: str, steps: int, **options: Any) -> gym.Env[Any, Any]:
    with quiet_packages():
        import ogbench  # noqa: F401  (registers its environments)

        env = gym.make(env_id, terminate_at_goal=False, max_episode_steps=steps, disable_env_checker=True, **options)
    remove_model_file(env)
    return env


def _make_oracles(env: gym.Env[Any, Any], name: str) -> dict[str, Any]:
    from ogbench.manipspace.oracles.plan.button_plan import ButtonPlanOracle
    from ogbench.manipspace.oracles.plan.cube_plan import CubePlanOracle
    from ogbench.manipspace.oracles.plan.drawer_plan import DrawerPlanOracle
    from ogbench.manipspace.oracles.plan.window_plan import WindowPlanOracle

    shared = {"env": env, "noise": ORACLE_NOISE, "noise_smoothing": ORACLE_SMOOTHING}
    if name.startswith("puzzle"):
        return {"button": ButtonPlanOracle(gripper_always_closed=True, **shared)}
    if name.startswith("cube"):
        return {"cube": CubePlanOracle(**shared)}
    kinds = {"cube": CubePlanOracle, "button": ButtonPlanOracle, "drawer": DrawerPlanOracle, "window": WindowPlanOracle}
    return {task: oracle(**shared) for task, oracle in kinds.items()}


def _collect(name: str, env: gym.Env[Any, Any], indices: range, episode: Callable[[], Arrays]) -> Arrays:
    """Run one seeded episode per index and join their rows."""
    parts = []
    for index in indices:
        seed = zlib.crc32(f"{name} {index}".encode())
        with _global_seed(seed):
            with quiet_packages():
                env.reset(seed=seed)
                env.action_space.seed(seed)
            parts.append(episode())
    env.close()
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


@contextlib.contextmanager
def _global_seed(seed: int) -> Iterator[None]:
    """Seed NumPy's global generator, from which OGBench draws, and restore its state afterwards."""
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(state)  # noqa: NPY002


def _navigate(env: gym.Env[Any, Any], agent: PointAgent, noise: float) -> Arrays | None:
    """Return the rows of an episode, or None if the agent turned over."""
    base: Any = env.unwrapped
    free, decisions = decision_cells(base.maze_map)
    waypoints: dict[tuple[Cell, Cell], np.ndarray] = {}
    rows, done = Trajectory(), False

    def draw(cells: list[Cell]) -> Cell:
        return cells[np.random.randint(len(cells))]  # noqa: NPY002

    def direction() -> np.ndarray:
        """Return the direction to OGBench's next waypoint. Finding a waypoint is slow, so waypoints are cached."""
        position, goal = base.get_xy(), base.cur_goal_xy
        cells = base.xy_to_ij(position), base.xy_to_ij(goal)
        if cells not in waypoints:
            waypoints[cells] = base.get_oracle_subgoal(position, goal)[0]
        way = waypoints[cells] - position
        unit: np.ndarray = way / (np.linalg.norm(way) + 1e-6)
        return unit

    agent.reset()
    observation, _ = env.reset(options={"task_info": {"init_ij": draw(free), "goal_ij": draw(decisions)}})
    while not done:
        action = agent.act(observation, direction())
        action = np.clip(action + np.random.normal(0, noise, action.shape), -1, 1)  # noqa: NPY002
        following, _, terminated, truncated, info = env.step(action)
        done = terminated or truncated
        if info["success"]:
            base.set_goal(goal_xy=base.add_noise(base.ij_to_xy(draw(decisions))))
        rows.add(observation, action, done, info)
        observation = following
        if agent.has_turned_over(observation):
            return None
    return rows.arrays()


def _play(env: gym.Env[Any, Any], oracles: dict[str, Any], stacking: float) -> Arrays:
    base: Any = env.unwrapped
    observation, info = env.reset()
    oracle = oracles[info["privileged/target_task"]]
    oracle.reset(observation, info)
    rows, done = Trajectory(), False
    while not done:
        action = np.clip(oracle.select_action(observation, info), -1, 1)
        following, _, terminated, truncated, info = env.step(action)
        done = terminated or truncated
        rows.add(observation, action, done, info)
        if oracle.done:
            seen, target = base.set_new_target(p_stack=stacking)
            oracle = oracles[target["privileged/target_task"]]
            oracle.reset(seen, target)
        observation = following
    return rows.arrays()
