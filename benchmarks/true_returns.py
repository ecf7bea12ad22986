"""True discounted returns of policies and of the logged controller, for datasets whose environment can be simulated.

The true value of a policy is the difference between its discounted return and that of the logged controller. In Maze2d
and in OGBench's navigation tasks, whose states can be set, both returns start from the first states of held-out
episodes. In other tasks, they start from the environment's own initial states, in which the logged episodes also begin.
Time limits are ignored, since the estimators ignore them too. If time limits cut off most episodes early, the discount
is lowered. Rewards that are discounted to less than 0.5 % are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from aspc import envs, tasks
from aspc.assessment.returns import returns_to_go
from aspc.data import Dataset
from aspc.policy import Policy

DISCOUNT = 0.99
CUT_WEIGHT = 0.02  # maximum weight, after discounting, of rewards beyond a time limit that cuts off an episode


def is_maze(dataset: Dataset) -> bool:
    return dataset.env is not None and dataset.env.startswith("maze2d")


def discount_of(dataset: Dataset) -> float:
    """Return the discount. If logged episodes are cut off early, it is lowered so that their returns are complete."""
    if is_maze(dataset) or not dataset.timeouts.any():
        return DISCOUNT
    starts, stops = dataset.episode_bounds
    cut = float(np.median((stops - starts)[dataset.timeouts[stops - 1]]))
    return min(DISCOUNT, round(CUT_WEIGHT ** (1 / cut), 3))


def horizon_of(discount: float) -> int:
    """Return the number of steps whose rewards are included in a return."""
    return math.ceil(math.log(0.005) / math.log(discount))


def controller_returns(dataset: Dataset, held_out: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return start rows of a dataset, and the logged controller's discounted returns from these rows.

    Rows whose return is cut off by the end of an episode are left out. In Maze2d, the log is one continuous trajectory:
    a timeout marks a reached target, after which the controller continues.
    """
    discount, starts = discount_of(dataset), dataset.episode_bounds[0]
    if is_maze(dataset):
        returns, is_complete = discounted(dataset, dataset.terminals, discount), np.ones(len(dataset), bool)
        is_complete[-horizon_of(discount) :] = False
    else:
        logged = returns_to_go(dataset, discount)
        returns, is_complete = logged.returns, logged.is_complete
    if state_setter(dataset) is not None:  # otherwise, all start states have the same distribution
        keys = set(keys_of(held_out, held_out.episode_bounds[0]))
        starts = np.asarray([row for row, key in zip(starts, keys_of(dataset, starts), strict=True) if key in keys])
    rows = starts[is_complete[starts]]
    return rows, returns[rows]


def keys_of(dataset: Dataset, rows: np.ndarray) -> list[bytes]:
    """Return a byte string for each row that identifies its content."""
    return [dataset.observations[row].tobytes() + dataset.actions[row].tobytes() for row in rows]


def discounted(dataset: Dataset, ends: np.ndarray, discount: float) -> np.ndarray:
    """Return the discounted return from every row until the next end of an episode."""
    returns, running = np.zeros(len(dataset)), 0.0
    for i in range(len(dataset) - 1, -1, -1):
        running = float(dataset.rewards[i]) + (0.0 if ends[i] else discount * running)
        returns[i] = running
    return returns


def state_setter(dataset: Dataset) -> Callable[[Any, np.ndarray], None] | None:
    """Return a function that sets an environment's state to that of an observation.

    Return None if observations do not determine the state.
    """
    assert dataset.env is not None
    if is_maze(dataset):

        def set_maze(env: Any, observation: np.ndarray) -> None:
            env.state = tuple(observation.tolist())

        return set_maze
    if tasks.is_ogbench_task(dataset.env) and dataset.env.split("-")[0] in ("pointmaze", "antmaze"):

        def set_positions(env: Any, observation: np.ndarray) -> None:
            size = env.model.nq  # a point's observation has no velocities, since the point does not coast
            velocities = observation[size:] if len(observation) > size else np.zeros(env.model.nv)
            env.set_state(observation[:size].astype(float), velocities.astype(float))

        return set_positions
    return None


def policy_returns(policy: Policy, dataset: Dataset, starts: np.ndarray, discount: float) -> np.ndarray:
    """Roll out a policy in the environment and return the discounted return of each episode.

    If the environment's state can be set, there is one episode from each of the states `starts`. Otherwise, the same
    number of episodes start from the environment's own initial states. Time limits are ignored, since the
    estimators ignore them too.
    """
    assert dataset.env is not None
    episodes = len(starts)
    instances = [envs.make_env(dataset.env) for _ in range(episodes)]
    observations = [instance.reset(seed=10_000 + i)[0] for i, instance in enumerate(instances)]
    set_state = state_setter(dataset)
    if set_state is not None:
        observations = list(starts)
        for instance, observation in zip(instances, observations, strict=True):
            set_state(instance.unwrapped, observation)
    rewards_lag = int(is_maze(dataset))  # in Maze2d's log, a reward belongs to the state before the step, not after it
    returns, running, step = np.zeros(episodes), list(range(episodes)), 0
    rng, memory = np.random.default_rng(0), policy.initial_memory(episodes)
    while running and step < horizon_of(discount):
        rows = np.stack([observations[i] for i in running]).astype(np.float32)
        actions, memory[running] = policy.step(rows, memory[running], rng)
        for i, action in zip(list(running), actions, strict=True):
            observations[i], reward, terminated, _, _ = instances[i].step(action)
            returns[i] += discount ** (step + rewards_lag) * float(reward)
            if terminated:
                running.remove(i)
        step += 1
    for instance in instances:
        instance.close()
    return returns


def standard_error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5)
