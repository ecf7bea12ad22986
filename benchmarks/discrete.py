"""Compare the algorithms for discrete actions, each with one configuration, on generated logs of four qualities.

    python benchmarks/discrete.py --out benchmarks/results/discrete.json      train, evaluate and add to the results
    python benchmarks/discrete.py --table benchmarks/results/discrete.json    print the results as a table
    python benchmarks/discrete.py --table … --figure docs/images/discrete_scale.png    also plot the learned scales

The tasks are CartPole, Acrobot, LunarLander (needs the `box2d` extra), the clinic of `examples/dosing_logs.py` (with
masks), and a maze whose options are moves of one or two cells (moves into walls are masked). Each log mixes a scripted
expert with random allowed options. The qualities are random (0 % expert), medium (50 %), expert (95 %) and replay (0 to
100 %, varying between episodes). Random options score 0, and the expert scores 100.

Runs are short, so the scale hardly changes at its default learning rate. `discrete_aspc` is therefore also trained with
a learning rate 25 times as high. This rate is the same for all logs and was not tuned.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

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
FASTER = {"discrete_aspc": ("discrete_aspc, fast scale", {"scale_lr": 0.05})}  # trained together
COLUMNS = (*ALGORITHMS, *(label for label, _ in FASTER.values()))
QUALITIES = {"random": (0.0, 0.0), "medium": (0.5, 0.5), "expert": (0.95, 0.95), "replay": (0.0, 1.0)}
EPISODES = 200
MAZE = np.array([list(row) for row in ("S.#....", ".##.##.", "...#...", "#.#..#.", "...#..G")])
MOVES = {f"{name}{cells}": (dy * cells, dx * cells) for cells in (1, 2)
         for name, dy, dx in (("up", -1, 0), ("down", 1, 0), ("left", 0, -1), ("right", 0, 1))}  # fmt: skip

Result = dict[str, Any]
Choose = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (observations, masks) → indices of the chosen options


class Rows:
    """The rows of one log, and the return of each episode."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.returns: list[float] = []


Roll = Callable[[Choose, int, np.random.Generator], Rows]


class Task(NamedTuple):
    """A task: a function that rolls out episodes, a scripted expert, and the numbers of options and test episodes."""

    roll: Roll
    expert: Choose
    options: int
    test_episodes: int = 100


def gym_task(env_id: str, max_steps: int, together: int = 100) -> Roll:
    """Return a function that rolls out episodes of an environment, several in lockstep. All options are allowed."""

    def roll(choose: Choose, episodes: int, rng: np.random.Generator) -> Rows:
        log = Rows()
        for first in range(0, episodes, together):
            part = roll_together(choose, min(together, episodes - first), rng)
            log.rows, log.returns = log.rows + part.rows, log.returns + part.returns
        return log

    def roll_together(choose: Choose, episodes: int, rng: np.random.Generator) -> Rows:
        envs = [gym.make(env_id, max_episode_steps=max_steps) for _ in range(episodes)]
        options = int(envs[0].action_space.n)  # type: ignore[attr-defined]
        seen = np.stack([env.reset(seed=int(rng.integers(2**31)))[0] for env in envs])
        rows: list[list[tuple[Any, ...]]] = [[] for _ in envs]
        running = list(range(episodes))
        while running:
            actions, still_running = choose(seen[running], np.ones((len(running), options))), []
            for i, action in zip(running, actions.tolist(), strict=True):
                following, reward, terminal, cut, _ = envs[i].step(action)
                rows[i].append(
                    (seen[i].copy(), np.ones(options), action, float(reward), terminal, cut and not terminal)
                )
                seen[i] = following
                still_running += [] if terminal or cut else [i]
            running = still_running
        log = Rows()
        log.rows = [row for episode in rows for row in episode]
        log.returns = [sum(row[3] for row in episode) for episode in rows]
        return log

    return roll


def balance(seen: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Push the cart toward the side to which the pole is falling."""
    return (seen @ np.array([0.1, 0.5, 2.0, 1.0]) > 0).astype(int)


def swing(seen: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Push the second link in the direction in which it is turning."""
    return np.where(seen[:, 5] > 0, 2, 0)


def land(seen: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Follow Gymnasium's own heuristic for LunarLander."""
    from gymnasium.envs.box2d.lunar_lander import heuristic

    env: Any = SimpleNamespace(unwrapped=SimpleNamespace(continuous=False))
    return np.array([heuristic(env, state) for state in seen])


def dosing(choose: Choose, episodes: int, rng: np.random.Generator) -> Rows:
    """Treat patients. The options are none, low and high."""
    with_none = lambda masks: np.concatenate([np.ones((len(masks), 1)), masks], axis=1)  # noqa: E731
    visits = dosing_logs.treat(lambda seen, masks: choose(seen, with_none(masks)), episodes, rng)
    log, stacked = Rows(), np.stack(visits, axis=1)
    for patient in stacked:
        for i, row in enumerate(patient):
            log.rows.append((row[:2], with_none(row[None, 2:4])[0], int(row[4]), row[5], False, i == len(patient) - 1))
        log.returns.append(float(patient[:, 5].sum()))
    return log


def careful(seen: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Give the dose that the symptoms call for, or the highest allowed dose if it is lower."""
    wanted = (seen[:, 0] > 0.25).astype(int) + (seen[:, 0] > 0.9)
    return np.minimum(wanted, masks.sum(axis=1).astype(int) - 1)


def is_free(y: int, x: int) -> bool:
    return 0 <= y < MAZE.shape[0] and 0 <= x < MAZE.shape[1] and MAZE[y, x] != "#"


def allowed_moves(y: int, x: int) -> np.ndarray:
    """Return for each move whether it ends in a free cell without crossing a wall."""
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
    """Roll out episodes of at most 30 moves toward the goal. Each move fails with probability 0.1."""
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


TASKS = {
    "maze": Task(maze, shortest, len(MOVES)),
    "dosing": Task(dosing, careful, 3),
    "cartpole": Task(gym_task("CartPole-v1", 200, together=1), balance, 2),
    "acrobot": Task(gym_task("Acrobot-v1", 500), swing, 3, test_episodes=50),
    "lunarlander": Task(gym_task("LunarLander-v3", 500), land, 4, test_episodes=50),
}


def mixed(expert: Choose, share: tuple[float, float], rng: np.random.Generator) -> Callable[[], Choose]:
    """Return a function that creates policies that mix the expert with random allowed options.

    Each policy follows the expert with a probability that is drawn from the range `share`.
    """

    def make() -> Choose:
        skill = rng.uniform(*share)

        def choose(seen: np.ndarray, masks: np.ndarray) -> np.ndarray:
            random = np.argmax(masks * rng.uniform(0.5, 1, masks.shape), axis=1)
            return np.where(rng.random(len(seen)) < skill, expert(seen, masks), random)

        return choose

    return make


def make_log(task: str, quality: str, seed: int) -> tuple[Dataset, float]:
    """Return a generated log and the mean return of its episodes."""
    roll, expert, options, _ = TASKS[task]
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
    """Return the mean return of a policy, or of the function `choose`, over new episodes."""

    def act(seen: np.ndarray, masks: np.ndarray) -> np.ndarray:
        assert policy is not None
        return np.asarray(policy.act(np.concatenate([seen, masks], axis=1)).argmax(axis=1))

    episodes = TASKS[task].roll(choose or act, TASKS[task].test_episodes, np.random.default_rng(12_345))
    return float(np.mean(episodes.returns))


def run(tasks: list[str], names: list[str], steps: int, seeds: int, save: Callable[[list[Result]], None]) -> None:
    """Train algorithms on the logs of tasks. The results of each task and algorithm are passed to `save`."""
    for task in tasks:
        logs = {quality: make_log(task, quality, seed=7) for quality in QUALITIES}
        expert = TASKS[task].expert
        low = score_of(task, None, mixed(expert, (0.0, 0.0), np.random.default_rng(1))())
        high = score_of(task, None, expert)
        for name in names:
            algorithm = algorithms.default(name)
            widths = {field: 64 for field in all_field_names(algorithm) if field.endswith("hidden_dim")}
            algorithm = replace_fields(algorithm, {**widths, "batch_size": 128})
            variants: list[tuple[str, dict[str, Any]]] = [(name, {})]
            if name in FASTER:
                variants.append(FASTER[name])
            runs = [(i, q, s) for i in range(len(variants)) for q in QUALITIES for s in range(seeds)]
            members = [Member(f"{i}-{q}-{s}", logs[q][0], s, variants[i][1]) for i, q, s in runs]
            options = TrainOptions(steps=steps, tensorboard=False, log_every=max(steps // 20, 20))
            found: list[Result] = []
            with tempfile.TemporaryDirectory() as folder:
                fleet = train_fleet(name, algorithm, members, options, Path(folder) / "fleet", env=None, quiet=True)
                for (i, quality, seed), member in zip(runs, members, strict=True):
                    value, metrics = score_of(task, fleet.policy(member.name)), fleet.metrics(member.name)
                    result: Result = {"task": task, "quality": quality, "algo": variants[i][0], "seed": seed}
                    result |= {"steps": steps, "return": value, "score": 100 * (value - low) / (high - low)}
                    result["logged"] = 100 * (logs[quality][1] - low) / (high - low)
                    if "scale" in metrics:
                        result["scale"] = np.round(metrics["scale"], 4).tolist()
                        result["scale_steps"] = metrics["step"].astype(int).tolist()
                    found.append(result)
            print(task, name, [round(result["score"]) for result in found], flush=True)
            save(found)


def merged(old: list[Result], new: list[Result]) -> list[Result]:
    """Combine results, in the order of the table. New results replace old ones of the same tasks and algorithms."""
    replaced = {(r["task"], r["algo"]) for r in new}
    rows = [r for r in old if (r["task"], r["algo"]) not in replaced] + new
    order = list(TASKS), list(QUALITIES), list(COLUMNS)
    return sorted(
        rows,
        key=lambda r: (order[0].index(r["task"]), order[1].index(r["quality"]), order[2].index(r["algo"]), r["seed"]),
    )


def interval(scores: np.ndarray, tasks: list[str]) -> tuple[float, float]:
    """Return a 95 % bootstrap interval for the mean of scores [logs, seeds], over tasks and the seeds of each log."""
    rng, names = np.random.default_rng(0), sorted(set(tasks))
    logs_of = [np.flatnonzero([task == name for task in tasks]) for name in names]
    means = []
    for _ in range(10_000):
        logs = np.concatenate([logs_of[i] for i in rng.integers(0, len(names), len(names))])
        seeds = rng.integers(0, scores.shape[1], (len(logs), scores.shape[1]))
        means.append(np.take_along_axis(scores[logs], seeds, 1).mean())
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def logs_of(rows: list[Result]) -> list[tuple[str, str]]:
    """Return the task and the quality of each log, in order."""
    return list(dict.fromkeys((row["task"], row["quality"]) for row in rows))


def table(rows: list[Result]) -> str:
    """Return the results as a Markdown table: means over seeds per log, and means over all logs with intervals."""
    logs = logs_of(rows)
    measured = {name: {(row["task"], row["quality"]) for row in rows if row["algo"] == name} for name in COLUMNS}
    columns = [name for name in COLUMNS if measured[name] == set(logs)]
    lines = [f"| log | logged | {' | '.join(columns)} |", "|---|---" + "|---" * len(columns) + "|"]
    scores = {
        name: np.array(
            [[r["score"] for r in rows if (r["task"], r["quality"], r["algo"]) == (*log, name)] for log in logs]
        )
        for name in columns
    }
    for i, log in enumerate(logs):
        logged = next(row["logged"] for row in rows if (row["task"], row["quality"]) == log)
        cells = [f"{scores[name][i].mean():.0f}" for name in columns]
        lines.append(f"| {log[0]}, {log[1]} | {logged:.0f} | {' | '.join(cells)} |")
    tasks, means, gaps = [task for task, _ in logs], [], []
    for name in columns:
        low, high = interval(scores[name], tasks)
        means.append(f"{scores[name].mean():.1f} [{low:.1f}, {high:.1f}]")
        gap = scores[name] - scores["discrete_td3_bc"]
        low, high = interval(gap, tasks)
        gaps.append(f"{gap.mean():+.1f} [{low:+.1f}, {high:+.1f}]")
    lines.append(f"| mean | | {' | '.join(means)} |")
    return "\n".join([*lines, f"| minus discrete_td3_bc | | {' | '.join(gaps)} |"])


def draw_scales(rows: list[Result], path: Path) -> None:
    """Plot the learned scale of the fast variant over steps, with one panel per task and one color per quality."""
    from matplotlib.figure import Figure

    label = FASTER["discrete_aspc"][0]
    rows = [row for row in rows if row["algo"] == label]
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure = Figure(figsize=(2.3 * len(tasks), 2.6), layout="constrained")
    panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    colors = dict(zip(QUALITIES, ("#d55e00", "#e69f00", "#0072b2", "#009e73"), strict=True))
    for axes, task in zip(panels, tasks, strict=True):
        for quality, color in colors.items():
            runs = [row for row in rows if (row["task"], row["quality"]) == (task, quality)]
            curves, steps = np.array([row["scale"] for row in runs]), runs[0]["scale_steps"]
            axes.plot(steps, curves.mean(0), color=color, label=quality)
            axes.fill_between(steps, curves.min(0), curves.max(0), color=color, alpha=0.2, linewidth=0)
        axes.set_title(task, fontsize=10)
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("scale α")
    panels[-1].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="add the results to this JSON file")
    parser.add_argument("--table", type=Path, help="print the table of this JSON file")
    parser.add_argument(
        "--figure", type=Path, help="plot the learned scales in the --table file to this file (PNG or SVG)"
    )
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--seeds", type=int, default=4)
    given = parser.parse_args()
    if given.table:
        rows = json.loads(given.table.read_text())["results"]
        print(table(rows))
        if given.figure:
            draw_scales(rows, given.figure)
        return
    results: list[Result] = json.loads(given.out.read_text())["results"] if given.out and given.out.exists() else []

    def save(found: list[Result]) -> None:
        results[:] = merged(results, found)
        if given.out:
            lines = ",\n".join(json.dumps(row) for row in results)
            given.out.write_text(f'{{"results": [\n{lines}\n]}}\n')

    run(given.tasks, given.algorithms, given.steps, given.seeds, save)


if __name__ == "__main__":
    main()
