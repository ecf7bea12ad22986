"""Data generated with OGBench's PointMaze recipe: a noisy agent follows shortest paths to goals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from aspc.data.sources.maze2d import next_cell
from aspc.envs.maze2d import Cell, Maze
from aspc.envs.packages import quiet_packages, remove_model_file
from aspc.errors import MissingExtra

NAMES = tuple(f"pointmaze-{size}" for size in ("medium", "large", "giant"))
EPISODES, EPISODE_STEPS = 1_000, 1_001
NOISE = 0.5


def _make(name: str) -> Any:
    with quiet_packages():
        try:
            import ogbench  # noqa: F401  (registers its environments)

            # Reaching a goal must not end the episode.
            env = gym.make(f"{name}-v0", terminate_at_goal=False, disable_env_checker=True, max_episode_steps=-1)
        except (ImportError, gym.error.DependencyNotInstalled) as error:
            raise MissingExtra(f"Generating {name}", "ogbench", error) from error
    remove_model_file(env)
    return env


def generate(
    name: str, episodes: int, steps: int, seed: int, noise: float, on_progress: Callable[[int], None] | None = None
) -> dict[str, np.ndarray]:
    """Collect `episodes` episodes of `steps` rows each, in OGBench's file layout. Reached goals are redrawn."""
    env = _make(name)
    base, rng = env.unwrapped, np.random.default_rng(seed)
    maze = Maze(tuple("".join("#" if cell else "." for cell in row) for row in base.maze_map), goal=(0, 0), limit=0)
    rows: dict[str, list[Any]] = {key: [] for key in ("observations", "actions", "qpos", "qvel", "terminals")}

    def draw_cell() -> Cell:
        return maze.free_cells[rng.integers(len(maze.free_cells))]

    def draw_position(cell: Cell) -> np.ndarray:
        return np.array(base.ij_to_xy(cell)) + rng.uniform(-1.0, 1.0, 2)

    env.reset(seed=seed)
    for episode in range(episodes):
        base.set_xy(draw_position(draw_cell()))
        base.set_goal(goal_xy=draw_position(draw_cell()))
        for step in range(steps):
            here = base.get_xy()
            target = next_cell(maze, base.xy_to_ij(here), base.xy_to_ij(base.cur_goal_xy))
            direction = np.array(base.ij_to_xy(target)) - here
            action = np.clip(direction / (np.linalg.norm(direction) + 1e-6) + noise * rng.standard_normal(2), -1.0, 1.0)
            rows["observations"].append(base.get_ob())
            rows["qpos"].append(base.data.qpos.copy())
            rows["qvel"].append(base.data.qvel.copy())
            rows["actions"].append(action)
            rows["terminals"].append(step == steps - 1)
            info = env.step(action)[4]
            if info["success"]:
                base.set_goal(goal_xy=draw_position(draw_cell()))
        if on_progress is not None:
            on_progress((episode + 1) * steps)
    env.close()
    return {key: np.array(values, dtype=np.float32) for key, values in rows.items()}
