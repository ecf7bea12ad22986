"""A small dataset, small networks and a small environment."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from aspc.data import Dataset

TINY = {"actor_hidden_dim": 16, "critic_hidden_dim": 16, "batch_size": 16}


def make_dataset(rows: int = 600, obs: int = 4, act: int = 2, seed: int = 0, **changes: object) -> Dataset:
    """Return episodes of 50 random rows whose reward is highest for the actions of a linear policy."""
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(rows, obs)).astype(np.float32)
    best = np.tanh(observations @ rng.normal(size=(obs, act)))
    actions = np.clip(best + 0.3 * rng.normal(size=(rows, act)), -1, 1)
    timeouts = np.zeros(rows, bool)
    timeouts[49::50] = True
    arrays = {
        "observations": observations,
        "actions": actions,
        "rewards": -np.square(actions - best).sum(1),
        "terminals": rng.random(rows) < 0.02,
        "timeouts": timeouts,
        "action_low": -np.ones(act),
        "action_high": np.ones(act),
        "name": "tiny",
    }
    return Dataset.from_arrays(**{**arrays, **changes})


class Counting(gym.Env):
    """Episodes of ten steps with the first action as the reward."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.normal(size=4).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        return (
            self.np_random.normal(size=4).astype(np.float32),
            float(action[0]),
            False,
            self.t == 10,
            {"success": True},
        )
