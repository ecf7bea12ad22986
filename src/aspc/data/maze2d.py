"""The embedded default data: D4RL's Maze2d recipe, generated here and cached on disk.

A proportional-derivative controller walks from target to target through the maze, never reset, so a dataset is one
long trajectory; its rewards are relabelled with the maze's fixed goal. The noisy variant disturbs every action.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from aspc.data.dataset import Dataset
from aspc.envs.maze2d import CENTRE_OFFSET, MAZES, Cell, Maze, Point, inside_goal, step_point
from aspc.errors import AspcError

GENERATOR_VERSION = 1  # part of the cache's file names: raise it when the same seed gives other data
DEFAULT_STEPS = 1_000_000  # as D4RL; some five seconds
NOISE = 0.5  # of the noisy variant, standard deviation before clipping
ARRIVAL = 0.1
GAIN = 10.0
WAYPOINT_JITTER = 0.2

NAMES = tuple(f"maze2d-{maze}{suffix}" for maze in MAZES for suffix in ("", "-noisy"))


@cache
def _distances(maze: Maze, target: Cell) -> dict[Cell, int]:
    """Steps from each free cell to the target's, by breadth-first search."""
    distance = {target: 0}
    queue = deque([target])
    while queue:
        i, j = queue.popleft()
        for cell in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)):
            if cell not in distance and not maze.is_wall(*cell):
                distance[cell] = distance[i, j] + 1
                queue.append(cell)
    return distance


def next_cell(maze: Maze, cell: Cell, target: Cell) -> Cell:
    """The cell after this one on a shortest way to the target's; the target's own at the end."""
    if cell == target:
        return target
    distance, (i, j) = _distances(maze, target), cell
    return min(((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)), key=lambda c: distance.get(c, 10**9))


def _path(maze: Maze, start: Cell, target: Cell) -> list[Cell]:
    """The cells after `start` on a shortest way to the target's cell."""
    path = [start]
    while path[-1] != target:
        path.append(next_cell(maze, path[-1], target))
    return path[1:]


class Controller:
    """Steers the point mass through the cells of a shortest path to a target."""

    def __init__(self, maze: Maze, rng: np.random.Generator) -> None:
        self._maze = maze
        self._rng = rng
        self._waypoints: deque[Point] = deque()
        self._previous: Point = (0.0, 0.0)

    def aim(self, x: float, y: float, target: Point) -> None:
        """Plan the way from (x, y) to a target."""
        start = (round(x + CENTRE_OFFSET), round(y + CENTRE_OFFSET))
        cells = _path(self._maze, start, (round(target[0]), round(target[1])))
        jitter = self._rng.uniform(0.0, WAYPOINT_JITTER, (len(cells), 2)).tolist()
        between = [(i - a, j - b) for (i, j), (a, b) in zip(cells[:-1], jitter[:-1], strict=True)] if cells else []
        self._waypoints = deque([*between, target])
        self._previous = (x, y)

    def act(self, x: float, y: float, vx: float, vy: float) -> tuple[float, float, bool]:
        """The action (not yet clipped) and whether the target is reached."""
        goal_x, goal_y = self._waypoints[0]
        near = math.hypot(x - goal_x, y - goal_y) < ARRIVAL
        slow = math.hypot(x - self._previous[0], y - self._previous[1]) < ARRIVAL
        arrived = near and slow and len(self._waypoints) == 1
        if near and slow and len(self._waypoints) > 1:
            self._waypoints.popleft()
        self._previous = (x, y)
        return GAIN * (goal_x - x) - vx, GAIN * (goal_y - y) - vy, arrived


def _clip(value: float) -> float:
    return -1.0 if value < -1.0 else 1.0 if value > 1.0 else value


def generate(
    maze_name: str, steps: int, seed: int, noise: float, on_progress: Callable[[int], None] | None = None
) -> dict[str, np.ndarray]:
    """Walk `steps` steps through a maze; arrays in D4RL's layout, without a single episode end."""
    maze, rng = MAZES[maze_name], np.random.default_rng(seed)
    controller = Controller(maze, rng)
    disturbances = (noise * rng.standard_normal((steps, 2))).tolist() if noise else None

    def new_target() -> Point:
        i, j = maze.free_cells[rng.integers(len(maze.free_cells))]
        dx, dy = rng.uniform(-0.1, 0.1, 2).tolist()
        return i + dx, j + dy

    x, y = new_target()
    vx, vy = (0.1 * rng.standard_normal(2)).tolist()
    controller.aim(x, y, new_target())
    observations = np.empty((steps, 4), dtype=np.float32)
    actions = np.empty((steps, 2), dtype=np.float32)
    rewards = np.empty(steps, dtype=np.float32)
    for t in range(steps):
        ax, ay, arrived = controller.act(x, y, vx, vy)
        if disturbances is not None:
            ax, ay = ax + disturbances[t][0], ay + disturbances[t][1]
        ax, ay = _clip(ax), _clip(ay)
        observations[t] = x, y, vx, vy
        actions[t] = ax, ay
        rewards[t] = inside_goal(maze, x, y)
        x, y, vx, vy = step_point(maze, x, y, vx, vy, ax, ay)
        if arrived:
            controller.aim(x, y, new_target())
        if on_progress is not None and t % 10_000 == 9_999:
            on_progress(t + 1)
    flags = np.zeros(steps, dtype=bool)
    return {
        "observations": observations,
        "actions": actions,
        "rewards": rewards,
        "terminals": flags,
        "timeouts": flags.copy(),
    }


def parse_name(name: str) -> tuple[str, float]:
    """The maze and the action noise of a generated dataset's name."""
    maze = name.removeprefix("maze2d-")
    return (maze.removesuffix("-noisy"), NOISE) if maze.endswith("-noisy") else (maze, 0.0)


def load(name: str, *, steps: int | None = None, seed: int = 0, **options: Any) -> Dataset:
    """A generated maze dataset, from the cache or made now."""
    from aspc.data import cache, files

    steps = DEFAULT_STEPS if steps is None else steps
    if steps < 2 or seed < 0:
        raise AspcError(f"A generated dataset needs at least 2 steps and a seed of 0 or more, not {steps} and {seed}.")
    maze, noise = parse_name(name)
    path = cache.root() / "generated" / f"{name}-{steps}-seed{seed}-g{GENERATOR_VERSION}.hdf5"
    with cache.lock(path):
        if not path.exists():
            with cache.progress(f"Generating {name}", steps) as advance:
                arrays: dict[str, Any] = generate(maze, steps, seed, noise, advance)
            files.write_hdf5(path, arrays)
        else:
            arrays = files.read_trusted_hdf5(path)
    return Dataset.from_arrays(**arrays, **{"name": name, "env": name, **options})
