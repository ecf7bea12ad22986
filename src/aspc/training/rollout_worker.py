"""A rollout worker: `python -m aspc.training.rollout_worker`, with messages on its standard input and output.

It is a separate program, because JAX does not support forking, and a spawned child would import the user's script
again. It never imports JAX. It exits when its parent exits, because its input is then closed.
"""

from __future__ import annotations

import math
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from aspc.envs.choices import with_choice_columns
from aspc.envs.facts import check_sizes
from aspc.envs.make import make_env
from aspc.errors import AspcError
from aspc.policy import Policy
from aspc.policy_inputs import to_float32
from aspc.policy_kinds import sample_noise
from aspc.policy_memory import step

Episode = dict[str, float]  # return, length and success

# Paired with the episode's seed, so that action noise is independent of the environment's random numbers.
ACTION_STREAM = 1
MAX_EPISODE_STEPS = 100_000


def rollouts(
    env_name: str,
    policy: Policy,
    seeds: list[int],
    envs: dict[str, list[Any]],
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Episode]:
    """Roll out one episode per seed in lockstep, so that the policy acts on all of them at once.

    An episode's random numbers depend on its seed alone, not on the other episodes.

    Args:
        env_name: The environment's name, also the key in `envs`.
        policy: The policy to roll out.
        seeds: The seed of each episode.
        envs: Environments to reuse, by name; missing ones are added.
        should_stop: Polled before every step; if true, the episodes end early.

    Raises:
        AspcError: The sizes of the environment and the policy differ, an episode does not end, or an observation is not
            finite.
    """
    pool = envs.setdefault(env_name, [])
    while len(pool) < len(seeds):
        pool.append(make_env(env_name))
    # Environments that the user supplies may not be wrapped yet.
    pool[:] = [with_choice_columns(env, env_name or "The environment") for env in pool]
    rngs = [np.random.default_rng((seed, ACTION_STREAM)) for seed in seeds] if policy.noise() else []
    observations = [env.reset(seed=seed)[0] for env, seed in zip(pool, seeds, strict=False)]
    episodes: list[Episode] = [{"return": 0.0, "length": 0, "success": np.nan} for _ in seeds]
    env_sizes = np.size(observations[0]), math.prod(pool[0].action_space.shape)
    check_sizes(env_name or "The environment", env_sizes, (policy.observation_size, policy.action_size))
    running, memory = list(range(len(seeds))), policy.initial_memory(len(seeds))
    while running and not should_stop():
        if episodes[running[0]]["length"] >= MAX_EPISODE_STEPS:
            raise AspcError(
                f"An episode has not ended after {MAX_EPISODE_STEPS:,} steps; give the environment a step limit "
                f"(gymnasium.wrappers.TimeLimit)."
            )
        current = to_float32(np.stack([observations[i] for i in running]))
        _check_observations(env_name, current, [(seeds[i], episodes[i]["length"]) for i in running])
        if rngs:
            actions, following = _step_with_noise(policy, current, memory[running], [rngs[i] for i in running])
        else:
            actions, following = policy.step(current, memory[running])
        policy.check_actions(actions)
        memory[running] = following
        still_running = []
        for i, action in zip(running, actions, strict=True):
            observation, reward, terminated, truncated, info = pool[i].step(action)
            observations[i], episode = observation, episodes[i]
            episode["return"] += float(reward)
            episode["length"] += 1
            if "success" in info:
                episode["success"] = np.fmax(episode["success"], float(info["success"]))
            if not (terminated or truncated):
                still_running.append(i)
        running = still_running
    return episodes


def _check_observations(env_name: str, observations: np.ndarray, episodes: list[tuple[int, float]]) -> None:
    """Raise an `AspcError` for a non-finite observation; `episodes` holds each row's (seed, length)."""
    is_finite = np.isfinite(observations)
    if np.count_nonzero(is_finite) == observations.size:
        return
    row, entry = np.argwhere(~is_finite.reshape(len(observations), -1))[0]
    value, (seed, step) = observations[row].flat[entry], episodes[row]
    raise AspcError(
        f"{env_name or 'The environment'} returned {value} as entry {entry} of an observation (episode seed {seed}, "
        f"after {step:.0f} steps). Policies need finite observations. Fix the environment, or make it end the episode "
        "earlier."
    )


def _step_with_noise(
    policy: Policy, observations: np.ndarray, memory: np.ndarray, rngs: list[np.random.Generator]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the actions and the next memory of a stochastic policy, with one generator per row."""
    draws = policy.noise()
    noise_per_row = [sample_noise(draws, 1, rng) for rng in rngs]
    batch_axes = [draw.shape.index(None) for draw in draws.values()]
    noise = [np.concatenate([row[k] for row in noise_per_row], axis) for k, axis in enumerate(batch_axes)]
    return step(policy, observations, memory, noise)


def send(stream: IO[bytes], message: Any) -> None:
    """Write one message."""
    # Pickle is safe between a parent and the child that it started; nothing here comes from a file.
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Read the next message.

    Raises:
        EOFError: The other process has ended.
    """
    head = stream.read(8)
    size = int.from_bytes(head, "little")
    data = stream.read(size) if len(head) == 8 else b""
    if not data or len(data) < size:  # perhaps the sender was killed in the middle of a message
        raise EOFError
    return pickle.loads(data)


def main() -> None:
    """Process jobs until stdin is closed."""
    # Redirect stdout to stderr, so that an environment's prints cannot corrupt the message stream.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    envs: dict[str, list[Any]] = {}
    while True:
        try:
            env_name, policy, seeds = receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: tuple[str, Any] = ("episodes", rollouts(env_name, policy, seeds, envs))
        except AspcError as error:
            answer = ("user error", str(error))
        except Exception as error:
            traceback.print_exc()
            answer = ("error", f"{type(error).__name__}: {error}")
        send(answers, answer)


if __name__ == "__main__":
    main()
