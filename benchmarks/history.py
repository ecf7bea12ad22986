"""Measure the benefit of `--history` on tasks whose velocities are hidden.

    python benchmarks/history.py
    python benchmarks/history.py --tasks pendulum --history 2 4 8 --seeds 20
    python benchmarks/history.py --speed

For each task, ASPC is trained on a log without velocities, both with a single observation and with longer histories.
For comparison, it is also trained on the full log. Every policy is evaluated in an environment that hides the same
entries as its log. Differences between a history and a single observation are paired by seed, with Student's t
intervals.

With `--speed`, the script instead measures the time of a training step relative to a step without history. Observations
have 17 dimensions and actions have 6. The different histories are timed in alternating rounds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from scipy.special import stdtrit

import aspc
from aspc import data
from aspc.data import Dataset
from aspc.envs import make_env
from aspc.history import History
from aspc.lab.speed.measure import SpeedBenchmark

SMALL = {"actor_hidden_dim": 64, "critic_hidden_dim": 64, "batch_size": 128}
ONE, FULL = "history 1", "full observation"


class HiddenTask(NamedTuple):
    """A task and the entries of its observation that remain visible."""

    env: str
    visible: tuple[int, ...]
    make_log: Callable[[], Dataset]


def swing_up_log(episodes: int = 200, noise: float = 0.5) -> Dataset:
    """Return a log of a noisy energy-shaping controller that observes the full state of Gymnasium's pendulum."""
    env, rng, rows = make_env("Pendulum-v1"), np.random.default_rng(0), list[tuple[Any, ...]]()
    for episode in range(episodes):
        observation, is_over = env.reset(seed=episode)[0], False
        while not is_over:
            cos, sin, speed = (float(x) for x in observation)
            lacking = 5.0 - (speed**2 / 6 + 5 * cos)  # energy needed to reach the top
            torque = -10 * sin - 2 * speed if cos > 0.9 else 2 * lacking * np.sign(speed)
            action = np.clip([torque + noise * rng.standard_normal()], -2, 2)
            following, reward, _, is_over, _ = env.step(action)
            rows.append((observation, action, reward, False, is_over, following))
            observation = following
    arrays = [np.asarray(column, np.float32) for column in zip(*rows, strict=True)]
    return Dataset.from_arrays(*arrays, name="pendulum", action_low=-2, action_high=2)


TASKS = {
    "pendulum": HiddenTask("Pendulum-v1", (0, 1), swing_up_log),
    "maze2d": HiddenTask("maze2d-umaze", (0, 1), lambda: data.load("maze2d-umaze?steps=50000")),
}


def select_entries(log: Dataset, visible: Sequence[int], name: str) -> Dataset:
    """Return a copy of a log with only the visible entries of its observations, and without an environment."""
    following = log.next_observations
    return dataclasses.replace(
        log,
        observations=log.observations[:, visible],
        next_observations=None if following is None else following[:, visible],
        observation_names=(),
        name=name,
        env=None,
    )


def train_seeds(task: HiddenTask, log: Dataset, visible: Sequence[int], history: int, args: Any) -> np.ndarray:
    """Train one policy per seed and return the mean return of each seed's last evaluation."""

    def make() -> gym.Env[Any, Any]:
        env = make_env(task.env)
        entries = np.asarray(visible)
        space = gym.spaces.Box(-np.inf, np.inf, (len(visible),), np.float32)
        return gym.wrappers.TransformObservation(env, lambda observation: observation[entries], space)

    with tempfile.TemporaryDirectory() as folder:
        run = aspc.train(
            log,
            "aspc",
            out=Path(folder) / "run",
            env=make,
            steps=args.steps,
            seeds=range(args.seeds),
            history=history,
            history_actions=args.history_actions and history > 1,
            eval_every=args.steps,
            eval_episodes=args.episodes,
            tensorboard=False,
            quiet=True,
            **SMALL,
        )
        return np.asarray(run.evaluations["return_mean"])


def paired_difference(values: np.ndarray, baseline: np.ndarray) -> dict[str, float]:
    """Return the mean difference, paired by seed, and its 95 % interval."""
    differences = values - baseline
    half = stdtrit(len(differences) - 1, 0.975) * differences.std(ddof=1) / np.sqrt(len(differences))
    mean = float(differences.mean())
    return {"difference": mean, "low": mean - float(half), "high": mean + float(half)}


def relative_times(histories: Sequence[int], rounds: int = 21, steps: int = 40) -> dict[str, float]:
    """Return the median time of a step with each history, relative to a step with one observation."""
    sizes = {f"history {n}": History(n).size(17, 6) for n in (1, *histories)}
    sizes |= {f"history {n} with actions": History(n, actions=True).size(17, 6) for n in histories}
    benchmarks = [SpeedBenchmark("aspc", size, 6, None, 1, steps) for size in sizes.values()]
    seconds = np.asarray([[benchmark.time_chunk() for benchmark in benchmarks] for _ in range(rounds)])
    return dict(zip(sizes, np.median(seconds / seconds[:, :1], axis=0).round(3).tolist(), strict=True))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--history", type=int, nargs="+", default=[4])
    parser.add_argument("--history-actions", action="store_true")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--episodes", type=int, default=20, help="episodes per evaluation")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "history.json")
    parser.add_argument("--speed", action="store_true", help="measure the time of a training step instead")
    args = parser.parse_args(argv)
    if args.speed:
        for label, time_of_step in relative_times(args.history).items():
            print(f"{label:26s} {time_of_step:.3f}")
        return 0
    found: dict[str, Any] = {"steps": args.steps, "seeds": args.seeds, "episodes": args.episodes}
    found["history_actions"] = args.history_actions
    for name in args.tasks:
        task, started = TASKS[name], time.monotonic()
        log = task.make_log()
        hidden = select_entries(log, task.visible, f"{name} without velocities")
        everything = range(log.observation_size)
        returns = {ONE: train_seeds(task, hidden, task.visible, 1, args)}
        for n in args.history:
            returns[f"history {n}"] = train_seeds(task, hidden, task.visible, n, args)
        full = select_entries(log, everything, name)
        returns[FULL] = train_seeds(task, full, everything, 1, args)
        found[name] = {"return_of_the_log": log.behavior_return(), "seconds": round(time.monotonic() - started)}
        print(f"{name}: return of the log {log.behavior_return():.1f}", flush=True)
        for label, values in returns.items():
            row = {"returns": values.tolist(), "mean": float(values.mean())}
            text = f"  {label:18s} mean return {row['mean']:8.1f}"
            if label != ONE:
                row |= paired_difference(values, returns[ONE])
                text += f", {row['difference']:+.1f} over {ONE} (95 % interval {row['low']:+.1f} to {row['high']:+.1f})"
            found[name][label] = row
            print(text, flush=True)
    args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
