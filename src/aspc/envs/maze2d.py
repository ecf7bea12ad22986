"""D4RL's Maze2d in plain Python: a force-driven point mass among walls.

The dynamics are those of MuJoCo, specialized to a sphere on two slide joints in frictionless soft contact with
axis-aligned boxes. The built-in mazes therefore need no simulator and run at over 100,000 steps per second.
`tests/envs/test_maze2d.py` compares the dynamics with MuJoCo over thousands of random steps, to 1e-9.

Coordinates follow D4RL: row indices increase with x, column indices with y, and cell (i, j) has its center at
(i - 0.2, j - 0.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np

Point = tuple[float, float]
Cell = tuple[int, int]

# The point mass: a sphere of radius 0.1 m and density 1000 kg/m³ on two damped slide joints, with motors of gear 100.
RADIUS = 0.1
MASS = 1000.0 * 4.0 / 3.0 * math.pi * RADIUS**3
DAMPING = 1.0
GEAR = 100.0
TIMESTEP = 0.01
SPEED_LIMIT = 5.0

# MuJoCo's soft contact at its default solref (0.02 s, critically damped) and solimp (0.9, 0.95, 1 mm).
MARGIN = 0.004  # 2 mm for the sphere plus 2 mm for the wall
IMPEDANCE_MIN, IMPEDANCE_MAX, IMPEDANCE_WIDTH = 0.9, 0.95, 0.001
STIFFNESS = 1.0 / (IMPEDANCE_MAX * 0.02) ** 2
CONTACT_DAMPING = 2.0 / (IMPEDANCE_MAX * 0.02)

CENTER_OFFSET = 0.2  # D4RL's joints start at world (1.2, 1.2); cell (i, j) is centered at world (i + 1, j + 1)
GOAL_RADIUS = 0.5


@dataclass(frozen=True)
class Maze:
    """A maze's walls ('#'), its fixed goal and its step limit."""

    rows: tuple[str, ...]
    goal: Cell
    limit: int

    @cached_property
    def free_cells(self) -> tuple[Cell, ...]:
        return tuple((i, j) for i, row in enumerate(self.rows) for j, c in enumerate(row) if c != "#")

    def is_wall(self, i: int, j: int) -> bool:
        return not (0 <= i < len(self.rows) and 0 <= j < len(self.rows[0])) or self.rows[i][j] == "#"

    @cached_property
    def walls_near(self) -> dict[Cell, tuple[Point, ...]]:
        """For each cell, the centers (in joint coordinates) of all walls among the cell and its eight neighbors."""
        near = {}
        for i in range(len(self.rows)):
            for j in range(len(self.rows[0])):
                near[i, j] = tuple(
                    (a - CENTER_OFFSET, b - CENTER_OFFSET)
                    for a in range(max(i - 1, 0), min(i + 2, len(self.rows)))
                    for b in range(max(j - 1, 0), min(j + 2, len(self.rows[0])))
                    if self.is_wall(a, b)
                )
        return near


MAZES = {
    "umaze": Maze(("#####", "#...#", "###.#", "#...#", "#####"), goal=(1, 1), limit=300),
    "medium": Maze(
        (
            "########",
            "#..##..#",
            "#..#...#",
            "##...###",
            "#..#...#",
            "#.#..#.#",
            "#...#..#",
            "########",
        ),
        goal=(6, 6),
        limit=600,
    ),
    "large": Maze(
        (
            "############",
            "#....#.....#",
            "#.##.#.#.#.#",
            "#......#...#",
            "#.####.###.#",
            "#..#.#.....#",
            "##.#.#.#.###",
            "#..#...#...#",
            "############",
        ),
        goal=(7, 9),
        limit=800,
    ),
}


def _impedance(depth: float) -> float:
    """Return the impedance at this depth inside the margin (MuJoCo's solimp with midpoint 0.5, power 2)."""
    x = depth / IMPEDANCE_WIDTH
    if x >= 1.0:
        return IMPEDANCE_MAX
    y = 2.0 * x * x if x <= 0.5 else 1.0 - 2.0 * (1.0 - x) * (1.0 - x)
    return IMPEDANCE_MIN + y * (IMPEDANCE_MAX - IMPEDANCE_MIN)


def _contacts(walls: tuple[Point, ...], x: float, y: float) -> list[tuple[float, float, float]]:
    """Return the sphere's contacts with the walls: the unit normal (away from the wall) and the signed distance."""
    found = []
    for wall_x, wall_y in walls:
        dx, dy = x - wall_x, y - wall_y
        out_x = dx - max(-0.5, min(0.5, dx))
        out_y = dy - max(-0.5, min(0.5, dy))
        gap = math.hypot(out_x, out_y)
        if gap > 1e-15:
            if gap - RADIUS <= MARGIN:
                found.append((out_x / gap, out_y / gap, gap - RADIUS))
        elif abs(dx) >= abs(dy):  # the center is inside the wall: push it out through the nearest face
            found.append((math.copysign(1.0, dx), 0.0, abs(dx) - 0.5 - RADIUS))
        else:
            found.append((0.0, math.copysign(1.0, dy), abs(dy) - 0.5 - RADIUS))
    return found


def _contact_force(contacts: list[tuple[float, float, float]], vx: float, vy: float, ax: float, ay: float) -> Point:
    """Return the total contact force, given the velocity and the contact-free acceleration (ax, ay).

    This solves MuJoCo's convex problem: minimize m/2 |a - a_free|² + Σ max(0, aref - n·a)² / 2R over the acceleration
    a. The cost is piecewise quadratic in two unknowns, so Newton's method on the set of active contacts reaches the
    exact minimum after a few iterations.
    """
    rows = []
    for nx, ny, distance in contacts:
        depth = MARGIN - distance
        impedance = _impedance(depth)
        softness = (1.0 - impedance) / (impedance * MASS)
        reference = -CONTACT_DAMPING * (nx * vx + ny * vy) + STIFFNESS * impedance * depth
        rows.append((nx, ny, reference, 1.0 / softness))
    pushing = [reference > nx * ax + ny * ay for nx, ny, reference, _ in rows]
    for _ in range(20):
        hxx, hxy, hyy, gx, gy = MASS, 0.0, MASS, MASS * ax, MASS * ay
        for (nx, ny, reference, weight), on in zip(rows, pushing, strict=True):
            if on:
                hxx += weight * nx * nx
                hxy += weight * nx * ny
                hyy += weight * ny * ny
                gx += weight * nx * reference
                gy += weight * ny * reference
        determinant = hxx * hyy - hxy * hxy
        bx, by = (hyy * gx - hxy * gy) / determinant, (hxx * gy - hxy * gx) / determinant
        now = [reference > nx * bx + ny * by for nx, ny, reference, _ in rows]
        if now == pushing:
            break
        pushing = now
    return MASS * (bx - ax), MASS * (by - ay)


def _clip(value: float, limit: float) -> float:
    return -limit if value < -limit else limit if value > limit else value


def step_point(
    maze: Maze, x: float, y: float, vx: float, vy: float, action_x: float, action_y: float
) -> tuple[float, float, float, float]:
    """Return (x, y, vx, vy) after one time step."""
    vx, vy = _clip(vx, SPEED_LIMIT), _clip(vy, SPEED_LIMIT)
    fx = GEAR * _clip(action_x, 1.0) - DAMPING * vx
    fy = GEAR * _clip(action_y, 1.0) - DAMPING * vy
    row, column = round(x + CENTER_OFFSET), round(y + CENTER_OFFSET)
    from_center = max(abs(x + CENTER_OFFSET - row), abs(y + CENTER_OFFSET - column))
    if from_center + RADIUS + MARGIN >= 0.5 and (contacts := _contacts(maze.walls_near.get((row, column), ()), x, y)):
        push_x, push_y = _contact_force(contacts, vx, vy, fx / MASS, fy / MASS)
        fx += push_x
        fy += push_y
    inertia = MASS + TIMESTEP * DAMPING  # joint damping is integrated implicitly
    vx += TIMESTEP * fx / inertia
    vy += TIMESTEP * fy / inertia
    return x + TIMESTEP * vx, y + TIMESTEP * vy, vx, vy


def inside_goal(maze: Maze, x: float, y: float) -> bool:
    """Return whether a position is within the goal's radius."""
    return math.hypot(x - maze.goal[0], y - maze.goal[1]) <= GOAL_RADIUS


class Maze2dEnv(gym.Env[np.ndarray, np.ndarray]):
    """Reach a fixed goal and stay there: reward 1 within 0.5 of the goal, no termination, D4RL's step limit.

    `info["success"]` is true while the point is within the goal's radius.
    """

    def __init__(self, maze: str) -> None:
        self.maze = MAZES[maze]
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float64)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.state = (0.0, 0.0, 0.0, 0.0)
        self._steps = 0

    def _observation(self) -> np.ndarray:
        return np.array(self.state)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        cell = self.maze.free_cells[self.np_random.integers(len(self.maze.free_cells))]
        position = np.array(cell) + self.np_random.uniform(-0.1, 0.1, 2)
        velocity = 0.1 * self.np_random.standard_normal(2)
        self.state = (*position.tolist(), *velocity.tolist())
        self._steps = 0
        return self._observation(), {"success": inside_goal(self.maze, *self.state[:2])}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.state = step_point(self.maze, *self.state, float(action[0]), float(action[1]))
        self._steps += 1
        success = inside_goal(self.maze, *self.state[:2])
        return self._observation(), float(success), False, self._steps >= self.maze.limit, {"success": success}
