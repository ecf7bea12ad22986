"""D4RL's AntMaze with OGBench's ant, whose time step, gear and masses match D4RL's."""

from __future__ import annotations

import os
import tempfile
import xml.etree.ElementTree as ET
from typing import Any

import gymnasium as gym
import numpy as np

from aspc.envs.maze2d import MAZES
from aspc.envs.packages import quiet_packages
from aspc.errors import MissingExtra
from aspc.tasks import FAMILIES

CELL = 4.0  # meters; the ant starts at the center of cell (1, 1), which is the origin
WALL_HEIGHT = 2.0
GOAL_RADIUS = 0.5
GOALS = {"umaze": (3, 1), "medium": (6, 6), "large": (7, 9)}


def cell_center(row: int, column: int) -> tuple[float, float]:
    """Return the position of a cell's center, in meters."""
    return CELL * (column - 1), CELL * (row - 1)


def _add_walls(tree: ET.ElementTree[Any], rows: tuple[str, ...]) -> None:
    world = tree.find(".//worldbody")
    floor = tree.find(".//geom[@name='floor']")
    assert world is not None
    assert floor is not None
    for i, row in enumerate(rows):
        for j, symbol in enumerate(row):
            if symbol == "#":
                x, y = cell_center(i, j)
                ET.SubElement(
                    world,
                    "geom",
                    type="box",
                    pos=f"{x} {y} {WALL_HEIGHT / 2}",
                    size=f"{CELL / 2} {CELL / 2} {WALL_HEIGHT / 2}",
                    contype="1",
                    conaffinity="1",
                    material="wall",
                )
    floor.set("size", f"{CELL * len(rows[0])} {CELL * len(rows)} 0.2")


class AntMazeEnv(gym.Env[np.ndarray, np.ndarray]):
    """An ant that walks to a goal: reward 1 and termination within 0.5 m of the goal, and D4RL's step limit.

    Observations are qpos (15) and qvel (14). Each reset draws a new goal near the goal cell.
    """

    def __init__(self, maze: str) -> None:
        with quiet_packages():
            try:
                from ogbench.locomaze.ant import AntEnv

                self._ant = _make_ant(AntEnv, MAZES[maze].rows)
            except (ImportError, gym.error.DependencyNotInstalled) as error:
                raise MissingExtra(f"The environment of antmaze-{maze}", "ogbench", error) from error
        self._goal_cell = GOALS[maze]
        self._limit = FAMILIES[f"antmaze-{maze}"].horizon
        self._steps = 0
        self.goal = np.zeros(2)
        self.observation_space = self._ant.observation_space
        self.action_space = gym.spaces.Box(-1.0, 1.0, (8,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        observation, _ = self._ant.reset(seed=seed)
        noise = self.np_random.uniform(0.0, 1.0, 2) + self.np_random.uniform(0.0, 0.5, 2)
        self.goal = np.array(cell_center(*self._goal_cell)) + noise
        self._steps = 0
        return observation, {"success": False}

    def place(self, xy: np.ndarray) -> np.ndarray:
        """Move the ant to `xy` to start an episode there, keeping orientation and joints; return the observation."""
        self._ant.set_xy(xy)
        return np.asarray(self._ant.get_ob())

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation = self._ant.step(np.clip(action, -1.0, 1.0))[0]
        self._steps += 1
        success = bool(np.linalg.norm(observation[:2] - self.goal) <= GOAL_RADIUS)
        return observation, float(success), success, self._steps >= self._limit, {"success": success}

    def close(self) -> None:
        self._ant.close()


def _make_ant(ant_class: Any, rows: tuple[str, ...]) -> Any:
    """Return OGBench's ant in a maze, loaded from a temporary file, since Gymnasium's base class requires a file."""
    tree = ET.parse(ant_class.xml_file)
    _add_walls(tree, rows)
    handle, path = tempfile.mkstemp(suffix=".xml")
    os.close(handle)
    try:
        tree.write(path)
        return ant_class(xml_file=path, render_mode=None)
    finally:
        os.unlink(path)
