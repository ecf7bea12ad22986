"""OGBench's PointMaze recipe: a noisy walker that follows shortest paths to goals, in OGBench's file layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aspc.data.sources.maze2d import next_cell
from aspc.envs.maze2d import Cell, Maze
from aspc.errors import MissingExtra

NAMES = tuple(f"pointmaze-{size}" for size in ("medium", "large", "giant"))
EPISODES, EPISODE_STEPS = 1_000, 1_001
NOISE = 0.5


def _make(name: str) -> Any:
    from aspc.envs import quiet_packages, remove_model_file

    with quiet_packages():
        try:
            import gymnasium as gym
            import ogbench  # noqa: F401  (registers its environments)

            # The goal is only a place to walk to: reaching it must not end the episode.
            env = gym.make(f"{name}-v0", terminate_at_goal=False, disable_env_checker=True, max_episode_steps=-1)
        except (ImportError, gym.error.DependencyNotInstalled) as error:
            raise MissingExtra(f"Making {name}", "ogbench", error) from error
    remove_model_file(env)
    return env


def generate(
    name: str, episodes: int, steps: int, seed: int, noise: float, on_progress: Callable[[int], None] | None = None
) -> dict[str, np.ndarray]:
    """Walk `episodes` episodes of `steps` rows each; a new goal is drawn whenever one is reached."""
    env = _make(name)
    base, rng = env.unwrapped, np.random.default_rng(seed)
    maze = Maze(tuple("".join("#" if cell else "." for cell in row) for row in base.maze_map), goal=(0, 0), limit=0)
    kept: dict[str, list[Any]] = {key: [] for key in ("observations", "actions", "qpos", "qvel", "terminals")}

    def random_cell() -> Cell:
        return maze.free_cells[rng.integers(len(maze.free_cells))]

    def spot_in(cell: Cell) -> np.ndarray:
        return np.array(base.ij_to_xy(cell)) + rng.uniform(-1.0, 1.0, 2)

    env.reset(seed=seed)
    for episode in range(episodes):
        base.set_xy(spot_in(random_cell()))
        base.set_goal(goal_xy=spot_in(random_cell()))
        for step in range(steps):
            here = base.get_xy()
            target = next_cell(maze, base.xy_to_ij(here), base.xy_to_ij(base.cur_goal_xy))
            way = np.array(base.ij_to_xy(target)) - here
            action = np.clip(way / (np.linalg.norm(way) + 1e-6) + noise * rng.standard_normal(2), -1.0, 1.0)
            kept["observations"].append(base.get_ob())
            kept["qpos"].append(base.data.qpos.copy())
            kept["qvel"].append(base.data.qvel.copy())
            kept["actions"].append(action)
            kept["terminals"].append(step == steps - 1)
            info = env.step(action)[4]
            if info["success"]:
                base.set_goal(goal_xy=spot_in(random_cell()))
        if on_progress is not None:
            on_progress((episode + 1) * steps)
    env.close()
    return {key: np.array(rows, dtype=np.float32) for key, rows in kept.items()}
