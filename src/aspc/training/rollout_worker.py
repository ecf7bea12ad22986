"""A rollout worker: `python -m aspc.training.rollout_worker`, spoken to over its standard input and output.

It is a program of its own, not a forked child: JAX does not survive a fork, and a spawned child would import the
user's script again. It never imports JAX. It ends when its parent does (its input closes).
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

from aspc.envs import check_sizes, make_env
from aspc.errors import AspcError
from aspc.policy import Policy
from aspc.policy_kinds import sample, whole_act

ACTING = 1  # beside an episode's seed: an environment that is reset with the seed draws from that alone
LONGEST_EPISODE = 100_000  # steps; an environment that never ends an episode would be waited for in vain


def rollouts(
    env_name: str,
    policy: Policy,
    seeds: list[int],
    envs: dict[str, list[Any]],
    stopped: Callable[[], bool] = lambda: False,
) -> list[dict[str, float]]:
    """One episode for each seed, stepped side by side so that the policy acts on all of them at once.

    An episode's draws depend on its seed alone, so it does not matter which others are rolled out beside it. Where
    `stopped` says so, the episodes end where they are.
    """
    pool = envs.setdefault(env_name, [])
    while len(pool) < len(seeds):
        pool.append(make_env(env_name))
    rngs = [np.random.default_rng((seed, ACTING)) for seed in seeds] if policy.noise() else []
    observations = [env.reset(seed=seed)[0] for env, seed in zip(pool, seeds, strict=False)]
    episodes = [{"return": 0.0, "length": 0, "success": np.nan} for _ in seeds]
    here = np.size(observations[0]), math.prod(pool[0].action_space.shape)
    check_sizes(env_name or "The environment", here, (policy.observation_size, policy.action_size))
    running = list(range(len(seeds)))
    while running and not stopped():
        if episodes[running[0]]["length"] >= LONGEST_EPISODE:
            raise AspcError(
                f"An episode has not ended in {LONGEST_EPISODE:,} steps; give the environment a step limit "
                f"(gymnasium.wrappers.TimeLimit)."
            )
        now = np.stack([observations[i] for i in running])
        _check_observations(env_name, now, [(seeds[i], episodes[i]["length"]) for i in running])
        actions = _act_with(policy, now, [rngs[i] for i in running]) if rngs else policy.act(now)
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
    """Refuse observations that are not finite: no policy can act on them, and the episode's return means nothing."""
    is_number = np.isfinite(observations)
    if np.count_nonzero(is_number) == observations.size:
        return
    row, entry = np.argwhere(~is_number.reshape(len(observations), -1))[0]
    value, (seed, step) = observations[row].flat[entry], episodes[row]
    raise AspcError(
        f"{env_name or 'The environment'} returned {value} as entry {entry} of an observation (episode of seed {seed}, "
        f"after {step:.0f} steps), and no policy can act on that; correct the environment, or end episodes before it."
    )


def _act_with(policy: Policy, observations: np.ndarray, rngs: list[np.random.Generator]) -> np.ndarray:
    """Actions of a policy that samples, each from a generator of its own."""
    draws = policy.noise()
    of_each = [sample(draws, 1, rng) for rng in rngs]
    batch_axes = [draw.shape.index(None) for draw in draws.values()]
    noise = [np.concatenate([own[k] for own in of_each], axis) for k, axis in enumerate(batch_axes)]
    return whole_act(policy, observations.astype(np.float32, copy=False), noise)


def send(stream: IO[bytes], message: Any) -> None:
    # Pickle between a parent and the child it has just started itself; nothing here comes from a file.
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """The next message; EOFError where the other side is gone."""
    head = stream.read(8)
    size = int.from_bytes(head, "little")
    data = stream.read(size) if len(head) == 8 else b""
    if not data or len(data) < size:  # also where it was killed in the middle of a message
        raise EOFError
    return pickle.loads(data)


def main() -> None:
    # Whatever an environment prints must not get between the messages.
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
