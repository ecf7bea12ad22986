"""Published policies score the same in this library's environments as in D4RL's.

The policies are not part of the repository; without them the tests are skipped.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from aspc import envs
from aspc.data.sources.maze2d import next_cell
from aspc.envs.antmaze import CELL, GOALS, AntMazeEnv
from aspc.envs.maze2d import MAZES


def policy_arrays(*parts: str) -> dict[str, np.ndarray]:
    chosen = os.environ.get("ASPC_SHARED")
    root = Path(chosen) if chosen else Path(__file__).resolve().parents[2].parent / "shared"
    path = root.joinpath(*parts)
    if not path.exists():
        pytest.skip("the policies are not here (set ASPC_SHARED to their folder)")
    with np.load(path) as stored:
        return dict(stored)


# One failure in eight episodes changes the mean a lot, so the bounds around D4RL's reference maxima are wide.
@pytest.mark.parametrize(
    ("task", "least", "most"),
    [("door", 2_700, 3_200), ("hammer", 12_000, 18_000), ("relocate", 3_600, 4_700), ("pen", 1_800, 4_500)],
)
def test_experts_score_about_the_reference_maximum(task: str, least: float, most: float) -> None:
    p = policy_arrays("adroit", f"dapg_{task}-v0.npz")
    env, returns, solved = envs.make_env(f"{task}-expert-v1"), [], []
    for seed in range(8):
        observation, _ = env.reset(seed=seed)
        total, over, success = 0.0, False, False
        while not over:
            x = (observation - p["in_shift"]) / (p["in_scale"] + 1e-8)
            x = np.tanh(p["W1"] @ np.tanh(p["W0"] @ x + p["b0"]) + p["b1"])
            action = (p["W2"] @ x + p["b2"]) * p["out_scale"] + p["out_shift"]
            observation, reward, terminated, truncated, info = env.step(action)
            total, over, success = total + reward, terminated or truncated, success or info["success"]
        returns.append(total)
        solved.append(success)
    env.close()
    assert least < np.mean(returns) < most
    assert np.mean(solved) >= 0.5


@pytest.mark.parametrize("maze", ["umaze", "medium"])
def test_the_walking_ant_reaches_the_goal(maze: str) -> None:
    """The goal-reaching policy behind D4RL's data, led along a shortest path, reaches the goal in time."""
    p = policy_arrays("antmaze", "ant_goal_policy.npz")
    env, arrived = AntMazeEnv(maze), []
    for seed in range(4):
        observation, _ = env.reset(seed=seed)
        over, terminated = False, False
        while not over:
            x, y = observation[:2]
            cell = (round(y / CELL) + 1, round(x / CELL) + 1)
            target = next_cell(MAZES[maze], cell, GOALS[maze])
            place = env.goal if cell == GOALS[maze] else np.array([CELL * (target[1] - 1), CELL * (target[0] - 1)])
            way = place - (x, y)
            features = np.concatenate([observation[2:], 10 * way / (np.linalg.norm(way) + 1e-9)])
            hidden = np.maximum(p["fc0_W"] @ features + p["fc0_b"], 0)
            hidden = np.maximum(p["fc1_W"] @ hidden + p["fc1_b"], 0)
            observation, _, terminated, truncated, _ = env.step(np.tanh(p["last_fc_W"] @ hidden + p["last_fc_b"]))
            over = terminated or truncated
        arrived.append(terminated)
    env.close()
    assert sum(arrived) >= 2
