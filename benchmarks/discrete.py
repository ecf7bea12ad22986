"""Compare the discrete algorithms, each with one configuration, on generated logs of four qualities.

    python benchmarks/discrete.py --out benchmarks/results/discrete.json      train, evaluate and write the results
    python benchmarks/discrete.py --table benchmarks/results/discrete.json    print them as a table

The tasks are CartPole, the clinic of `examples/dosing_logs.py` (with masks), and a maze whose options are moves of one
or two cells (moves into walls are masked). A log mixes a scripted expert with random allowed options: random (0 %
expert), medium (50 %), expert (95 %) and replay (episodes with 0 to 100 %). A score is 0 for random options and 100 for
the expert.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from aspc import algorithms
from aspc.data import Dataset
from aspc.policy import Policy
from aspc.training.fleet import Member, train_fleet
from aspc.training.hyperparameters import all_field_names, replace_fields
from aspc.training.run_config import TrainOptions

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import dosing_logs

ALGORITHMS = ("discrete_bc", "discrete_iql", "discrete_cql", "discrete_td3_bc", "discrete_aspc")
QUALITIES = {"random": (0.0, 0.0), "medium": (0.5, 0.5), "expert": (0.95, 0.95), "replay": (0.0, 1.0)}
EPISODES, TEST_EPISODES = 200, 100
MAZE = np.array([list(row) for row in ("S.#....", ".##.##.", "...#...", "#.#..#.", "...#..G")])
MOVES = {f"{name}{cells}": (dy * cells, dx * cells) for cells in (1, 2)
         for name, dy, dx in (("up", -1, 0), ("down", 1, 0), ("left", 0, -1), ("right", 0, 1))}  # fmt: skip

Choose = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (observations, masks) → indices of options


class Rows:
    """The rows of one log, and the return of each episode."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.returns: list[float] = []


def cartpole(choose: Choose, episodes: int, rng: np.random.Generator) -> Rows:
    """Balance a pole for at most 200 steps; all options are allowed."""
    env, log = gym.make("CartPole-v1", max_episode_steps=200), Rows()
    for _ in range(episodes):
        seen, total, ended = env.reset(seed=int(rng.integers(2**31)))[0], 0.0, False
        while not ended:
            action = int(choose(seen[None], np.ones((1, 2)))[0])
            following, reward, terminal, cut, _ = env.step(action)
            ended, total = terminal or cut, total + float(reward)
            log.rows.append((seen, np.ones(2), action, float(reward), terminal, cut and not terminal))
            seen = following
        log.returns.append(total)
    return log


def balance(seen: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Push to the side that the pole falls to."""
    return (seen @ np.array([0.1, 0.5, 2.0, 1.0]) > 0).astype(int)


def dosing(choose: Choose, episodes: int, rng: np.random.Generator) -> Rows:
    """Treat patients; options are none, low and high."""
    with_none = lambda masks: np.concatenate([np.ones((len(masks), 1)), masks], axis=1)  # noqa: E731
    visits = dosing_logs.treat(lambda seen, masks: choose(seen, with_none(masks)), episodes, rng)
    log, stacked = Rows(), np.stack(visits, axis=1)
    for patient in stacked:
        for i, row in enumerate(patient):
            log.rows.append((row[:2], with_none(row[None, 2:4])[0], int(row[4]), row[5], False, i == len(patient) - 1))
        log.returns.append(float(patient[:, 5].sum()))
    return log


def careful(seen: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Give the highest allowed dose that symptoms call for."""
    wanted = (seen[:, 0] > 0.25).astype(int) + (seen[:, 0] > 0.9)
    return np.minimum(wanted, masks.sum(axis=1).astype(int) - 1)


def is_free(y: int, x: int) -> bool:
    return 0 <= y < MAZE.shape[0] and 0 <= x < MAZE.shape[1] and MAZE[y, x] != "#"


def allowed_moves(y: int, x: int) -> np.ndarray:
    """Return whether each move ends on a free cell without crossing a wall."""
    return np.array([
        is_free(y + dy, x + dx) and is_free(y + int(np.sign(dy)), x + int(np.sign(dx))) for dy, dx in MOVES.values()
    ], float)  # fmt: skip


def distances() -> np.ndarray:
    """Return the number of moves to the goal from each cell."""
    found, frontier = np.full(MAZE.shape, 1_000), [tuple(np.argwhere(MAZE == "G")[0])]
    found[frontier[0]] = 0
    while frontier:
        y, x = frontier.pop(0)
        for dy, dx in MOVES.values():
            at = int(y - dy), int(x - dx)
            if is_free(*at) and is_free(int(y - np.sign(dy)), int(x - np.sign(dx))) and found[at] == 1_000:
                found[at] = found[y, x] + 1
                frontier.append(at)
    return found


DISTANCES = distances()


def maze(choose: Choose, episodes: int, rng: np.random.Generator) -> Rows:
    """Reach the goal in at most 30 moves, each of which slips and stays in place with probability 0.1."""
    log, free = Rows(), np.argwhere(MAZE == ".")
    for _ in range(episodes):
        y, x = free[rng.integers(len(free))]
        total = 0.0
        for t in range(30):
            seen, masks = np.array([y / 2 - 1, x / 3 - 1]), allowed_moves(y, x)
            action = int(choose(seen[None], masks[None])[0])
            assert masks[action] == 1
            if rng.random() >= 0.1:
                dy, dx = list(MOVES.values())[action]
                y, x = y + dy, x + dx
            terminal = bool(MAZE[y, x] == "G")
            reward, total = float(terminal), total + 0.95**t * terminal
            log.rows.append((seen, masks, action, reward, terminal, t == 29 and not terminal))
            if terminal:
                break
        log.returns.append(total)
    return log


def shortest(seen: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Take the allowed move that ends nearest to the goal."""
    found = []
    for (y, x), allowed in zip(np.rint((seen + 1) * [2, 3]).astype(int), masks, strict=True):
        ends = [
            DISTANCES[y + dy, x + dx] if ok else 10_000 for (dy, dx), ok in zip(MOVES.values(), allowed, strict=True)
        ]
        found.append(int(np.argmin(ends)))
    return np.array(found)


TASKS = {"cartpole": (cartpole, balance, 2), "dosing": (dosing, careful, 3), "maze": (maze, shortest, len(MOVES))}


def mixed(expert: Choose, share: tuple[float, float], rng: np.random.Generator) -> Callable[[], Choose]:
    """Return a function that creates policies, which follow the expert with a probability drawn from a range.

    Otherwise, a policy takes random allowed options.
    """

    def make() -> Choose:
        skill = rng.uniform(*share)

        def choose(seen: np.ndarray, masks: np.ndarray) -> np.ndarray:
            random = np.argmax(masks * rng.uniform(0.5, 1, masks.shape), axis=1)
            return np.where(rng.random(len(seen)) < skill, expert(seen, masks), random)

        return choose

    return make


def make_log(task: str, quality: str, seed: int) -> tuple[Dataset, float]:
    """Return a log and the mean return of its episodes."""
    roll, expert, options = TASKS[task]
    rng = np.random.default_rng(seed)
    make, rows, returns = mixed(expert, QUALITIES[quality], rng), [], []
    per_policy = 10
    for _ in range(EPISODES // per_policy):
        log = roll(make(), per_policy, rng)
        rows, returns = rows + log.rows, returns + log.returns
    seen, masks, actions, rewards, terminals, cut = (np.array(column) for column in zip(*rows, strict=True))
    names = list(map(str, range(options)))
    codes = {"action_categories": {"option": names}, "action_names": ["option"]}
    dataset = Dataset.from_arrays(
        seen, actions[:, None].astype(float), rewards, terminals, cut, masks=masks,
        mask_names=[f"mask_{name}" for name in names], name=f"{task}-{quality}", **codes,
        observation_names=[f"x{i}" for i in range(seen.shape[1])],
    )  # fmt: skip
    return dataset, float(np.mean(returns))


def score_of(task: str, policy: Policy | None, choose: Choose | None = None) -> float:
    """Return the mean return of a policy, or of a function, in new episodes."""

    def act(seen: np.ndarray, masks: np.ndarray) -> np.ndarray:
        assert policy is not None
        return np.asarray(policy.act(np.concatenate([seen, masks], axis=1)).argmax(axis=1))

    return float(np.mean(TASKS[task][0](choose or act, TEST_EPISODES, np.random.default_rng(12_345)).returns))


def run(tasks: list[str], steps: int, seeds: int) -> dict[str, Any]:
    """Train all algorithms; return the score of every run."""
    results: list[dict[str, Any]] = []
    for task in tasks:
        logs = {quality: make_log(task, quality, seed=7) for quality in QUALITIES}
        rng = np.random.default_rng(1)
        low = score_of(task, None, mixed(TASKS[task][1], (0.0, 0.0), rng)())
        high = score_of(task, None, TASKS[task][1])
        for name in ALGORITHMS:
            algorithm = algorithms.default(name)
            widths = {field: 64 for field in all_field_names(algorithm) if field.endswith("hidden_dim")}
            algorithm = replace_fields(algorithm, {**widths, "batch_size": 128})
            members = [Member(f"{q}-{s}", logs[q][0], s) for q in QUALITIES for s in range(seeds)]
            options = TrainOptions(steps=steps, tensorboard=False, log_every=max(steps // 20, 20))
            with tempfile.TemporaryDirectory() as folder:
                fleet = train_fleet(name, algorithm, members, options, Path(folder) / "fleet", env=None, quiet=True)
                for quality, (_, logged) in logs.items():
                    for seed in range(seeds):
                        value = score_of(task, fleet.policy(f"{quality}-{seed}"))
                        found = {"task": task, "quality": quality, "algo": name, "seed": seed, "return": value}
                        results.append({**found, "score": 100 * (value - low) / (high - low),
                                        "logged": 100 * (logged - low) / (high - low)})  # fmt: skip
            print(task, name, [round(r["score"]) for r in results[-4 * seeds :]], flush=True)
    return {"steps": steps, "seeds": seeds, "episodes": EPISODES, "results": results}


def interval(scores: np.ndarray) -> tuple[float, float]:
    """Return a 95 % bootstrap interval of the mean score, resampling the seeds of each log."""
    rng = np.random.default_rng(0)
    picked = rng.integers(0, scores.shape[1], (10_000, *scores.shape))
    means = np.take_along_axis(np.broadcast_to(scores, picked.shape), picked, 2).mean((1, 2))
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def table(content: dict[str, Any]) -> str:
    """Return the results as a Markdown table: mean over seeds per log, and the mean of all with its interval."""
    rows = content["results"]
    logs = list(dict.fromkeys((row["task"], row["quality"]) for row in rows))
    lines = [f"| log | logged | {' | '.join(ALGORITHMS)} |", "|---|---" + "|---" * len(ALGORITHMS) + "|"]
    scores = {
        name: np.array(
            [[r["score"] for r in rows if (r["task"], r["quality"], r["algo"]) == (*log, name)] for log in logs]
        )
        for name in ALGORITHMS
    }
    for i, log in enumerate(logs):
        logged = next(row["logged"] for row in rows if (row["task"], row["quality"]) == log)
        cells = [f"{scores[name][i].mean():.0f}" for name in ALGORITHMS]
        lines.append(f"| {log[0]}, {log[1]} | {logged:.0f} | {' | '.join(cells)} |")
    means = []
    for name in ALGORITHMS:
        low, high = interval(scores[name])
        means.append(f"{scores[name].mean():.1f} [{low:.1f}, {high:.1f}]")
    return "\n".join([*lines, f"| mean | | {' | '.join(means)} |"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    parser.add_argument("--table", type=Path, help="print the table of this JSON file")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--seeds", type=int, default=4)
    given = parser.parse_args()
    if given.table:
        print(table(json.loads(given.table.read_text())))
    else:
        content = run(given.tasks, given.steps, given.seeds)
        if given.out:
            given.out.write_text(json.dumps(content, indent=1) + "\n")
        print(table(content))
