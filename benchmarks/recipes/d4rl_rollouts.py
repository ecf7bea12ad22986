"""Rollouts that follow D4RL's recipes. Every function returns transitions as arrays with D4RL's names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from aspc.data.readers import hdf5
from aspc.data.sources import maze2d
from aspc.envs import make_env
from aspc.envs.antmaze import CELL, GOALS, AntMazeEnv, cell_center
from aspc.envs.maze2d import MAZES, Cell
from recipes.policies import POLICIES, Arrays, ant_action, load_arrays

ANT_NOISE = 0.2
ARRIVAL_METERS = 0.5  # distance from a target at which the ant turns to the next one
# Kinds of datasets, by the possible targets of the ant: any free cell, the corners and the goal, or only the goal.
ANY_CELL, CORNERS, GOAL = "diverse", "play", ""


class Transitions:
    """A growing list of transitions that can be converted to D4RL's arrays."""

    DTYPES: Mapping[str, type] = {
        "observations": np.float32,
        "actions": np.float32,
        "rewards": np.float32,
        "next_observations": np.float32,
        "terminals": bool,
        "timeouts": bool,
    }

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def add(self, *values: Any) -> None:
        self.rows.append(values)

    def arrays(self) -> Arrays:
        columns = zip(self.DTYPES.items(), zip(*self.rows, strict=True), strict=True)
        return {name: np.asarray(column, dtype) for (name, dtype), column in columns}


def roll_out(env_name: str, policy: str, file: Path, index: int, n: int, seed: int) -> Arrays:
    """Collect `n` transitions of a stochastic policy. The last episode ends with a timeout."""
    act = POLICIES[policy](load_arrays(file), index)
    env, rng, rows = make_env(env_name), np.random.default_rng(seed), Transitions()
    observation, _ = env.reset(seed=int(rng.integers(2**31)))
    for i in range(n):
        action = np.minimum(np.maximum(act(observation.astype(np.float32), rng), -1), 1)
        following, reward, terminal, truncated, _ = env.step(action)
        timeout = (truncated or i == n - 1) and not terminal
        rows.add(observation, action, reward, following, terminal, timeout)
        observation = env.reset()[0] if terminal or timeout else following
    env.close()
    return rows.arrays()


def roll_out_clone(env_name: str, file: Path, n: int, seed: int) -> Arrays:
    """Collect `n` transitions of a cloned policy, without next observations, since demonstrations have none either."""
    arrays = roll_out(env_name, "hand", file, 0, n, seed)
    return {key: array for key, array in arrays.items() if key != "next_observations"}


def repeat_demonstrations(file: Path, n: int) -> Arrays:
    """Repeat demonstrations until there are `n` transitions.

    Actions are clipped to the action space, and the last transition is a timeout.
    """
    stored = hdf5.read_trusted_hdf5(file)
    rows = np.arange(n) % len(stored["rewards"])
    arrays: Arrays = {
        key: stored[key][rows].astype(dtype) for key, dtype in Transitions.DTYPES.items() if key in stored
    }
    arrays["actions"] = np.clip(arrays["actions"], -1, 1)
    arrays["timeouts"][-1] = not arrays["terminals"][-1]
    return arrays


def walk_maze2d(maze: str, noise: float, n: int, seed: int) -> Arrays:
    """Generate `n` transitions with this library's own Maze2d generator."""
    return maze2d.generate(maze, n, seed, noise=noise)


def walk_antmaze(maze: str, kind: str, file: Path, n: int, seed: int) -> Arrays:
    """Collect `n` transitions of an ant that follows shortest paths with action noise, as in D4RL.

    The ant walks to a random point in a target cell, then to a point in the next target cell. In `diverse` datasets, it
    starts in any cell, and any cell can be a target. Otherwise, it starts where the task starts, and the targets are
    the goal's cell and, in `play` datasets, also the corners. The ant does not know the exact position of the goal
    within the goal's cell. When it gets close to the goal, the reward is 1 and the episode ends.
    """
    p, rng, rows, env = load_arrays(file), np.random.default_rng(seed), Transitions(), AntMazeEnv(maze)
    free = MAZES[maze].free_cells
    targets = {ANY_CELL: free, CORNERS: (*corners(free), GOALS[maze]), GOAL: (GOALS[maze],)}[kind]

    def draw_target() -> tuple[Cell, np.ndarray]:
        cell = targets[rng.integers(len(targets))]
        return cell, cell_center(*cell) + rng.uniform(0, 1, 2) + rng.uniform(0, 0.5, 2)  # as D4RL draws goals

    while len(rows.rows) < n:
        observation, _ = env.reset(seed=int(rng.integers(2**31)))
        if kind == ANY_CELL:
            observation = env.place(cell_center(*free[rng.integers(len(free))]) + rng.uniform(-0.1, 0.1, 2))
        (cell, point), over = draw_target(), False
        while not over:
            if np.linalg.norm(point - observation[:2]) < ARRIVAL_METERS:
                cell, point = draw_target()
            here = (round(observation[1] / CELL) + 1, round(observation[0] / CELL) + 1)
            towards = point if here == cell else np.array(cell_center(*maze2d.next_cell(MAZES[maze], here, cell)))
            action = ant_action(p, observation, towards - observation[:2])
            action = np.clip(action + ANT_NOISE * rng.standard_normal(8, np.float32), -1, 1)
            following, reward, terminal, truncated, _ = env.step(action)
            timeout = (truncated or len(rows.rows) == n - 1) and not terminal
            rows.add(observation, action, reward, following, terminal, timeout)
            observation, over = following, terminal or timeout
    env.close()
    return rows.arrays()


def corners(cells: tuple[Cell, ...]) -> list[Cell]:
    """Return the free cells nearest to the four corners."""
    height, width = (max(cell[axis] for cell in cells) for axis in (0, 1))
    far = [(1, 1), (1, width), (height, 1), (height, width)]
    return [min(cells, key=lambda cell: abs(cell[0] - at[0]) + abs(cell[1] - at[1])) for at in far]
