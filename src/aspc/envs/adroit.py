"""D4RL's Adroit hand tasks on Gymnasium-Robotics, with D4RL's reward, limits and termination."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from aspc.envs.packages import quiet_packages
from aspc.errors import MissingExtra
from aspc.tasks import FAMILIES

PALM_WEIGHT = 0.2  # corrects a sign: the package adds 0.1 times the palm's distance, whereas D4RL subtracts it
DROPPED_HEIGHT = 0.075


def _door_distance(env: Any) -> float:
    data = env.data
    return float(np.linalg.norm(data.site_xpos[env.grasp_site_id] - data.site_xpos[env.handle_site_id]))


def _object_distance(env: Any) -> float:
    return float(np.linalg.norm(env.data.site_xpos[env.S_grasp_site_id] - env.data.xpos[env.obj_body_id]))


PALM_DISTANCE: dict[str, Callable[[Any], float]] = {
    "door": _door_distance,
    "hammer": _object_distance,
    "relocate": _object_distance,
}


class AdroitD4RL(gym.Wrapper[Any, Any, Any, Any]):
    """Fix the sign of the palm-distance reward; end the pen's episode when the pen is dropped."""

    def __init__(self, env: gym.Env[Any, Any], task: str) -> None:
        super().__init__(env)
        self._task = task
        self._limit = FAMILIES[task].horizon
        self._steps = 0
        self.action_space = gym.spaces.Box(-1.0, 1.0, (FAMILIES[task].action_size,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self._steps = 0
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, {**info, "success": False}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, _, info = self.env.step(action)
        base: Any = self.unwrapped
        reward = float(reward)
        if self._task in PALM_DISTANCE:
            reward -= PALM_WEIGHT * PALM_DISTANCE[self._task](base)
        else:
            terminated = bool(base.data.xpos[base.obj_body_id][2] < DROPPED_HEIGHT)
        self._steps += 1
        return observation, reward, terminated, self._steps >= self._limit, {**info, "success": bool(info["success"])}


def make_adroit(task: str) -> gym.Env[Any, Any]:
    """Make the environment of a D4RL Adroit task: pen, door, hammer or relocate."""
    with quiet_packages():
        try:
            import gymnasium_robotics  # noqa: F401  (registers its environments)

            inner = gym.make(f"AdroitHand{task.capitalize()}-v1", disable_env_checker=True, max_episode_steps=-1)
        except (ImportError, gym.error.DependencyNotInstalled) as error:
            raise MissingExtra(f"The environment of {task}", "robotics", error) from error
    return AdroitD4RL(inner, task)
