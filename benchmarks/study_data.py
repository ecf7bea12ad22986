"""Make the study's datasets: D4RL's recipes with public behaviour policies, as files in D4RL's layout.

    python benchmarks/study_data.py POLICIES --out FOLDER [--only 'hopper-*' …] [--transitions 400000] [--workers N]

POLICIES is a folder with the policies as NumPy arrays, each from a public repository (docs/study.md says which, and
what the arrays are called); they are no part of this repository, nor are the files made from them. A dataset whose
policies are missing is left out and said. A file that is there already is kept.

hopper, halfcheetah, walker2d   random, medium, expert, medium-replay, medium-expert, full-replay
antmaze                         umaze, umaze-diverse, medium and large × play and diverse: waypoints, action noise 0.2
pen, door, hammer, relocate     expert
door-human                      the demonstrations, as they are
maze2d                          umaze, medium, large: the library's own, a million transitions as it makes by default

The same file comes out whatever the number of workers, and on any x86 processor with AVX2. Needs the environments:
`aspc[robotics,ogbench]`.
"""

from __future__ import annotations

import argparse
import fnmatch
import multiprocessing
import os
import shutil
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    # Sums are rounded as a processor's widest registers want it, and a rollout soon differs: all take the same ones.
    os.environ |= {"OPENBLAS_CORETYPE": "Haswell", "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR"}

import numpy as np

from aspc.data import Dataset, d4rl, files, maze2d
from aspc.envs import make_env
from aspc.envs.antmaze import CELL, GOALS, AntMazeEnv, cell_centre
from aspc.envs.maze2d import MAZES, Cell
from aspc.training.evaluation import available_cores

Arrays = dict[str, np.ndarray]
Act = Callable[[np.ndarray, np.random.Generator], np.ndarray]

WALKERS = ("hopper", "halfcheetah", "walker2d")
QUALITIES = ("random", "medium", "expert", "medium-expert", "medium-replay", "full-replay")
HANDS = ("pen", "door", "hammer", "relocate")
ANTMAZES = ("umaze", "umaze-diverse", "medium-play", "medium-diverse", "large-play", "large-diverse")
NAMES = (
    *(f"maze2d-{maze}" for maze in MAZES),  # first: a maze is one long piece
    *(f"{task}-{quality}" for task in WALKERS for quality in QUALITIES),
    *(f"antmaze-{maze}" for maze in ANTMAZES),
    *(f"{task}-expert" for task in HANDS),
)
HUMAN = "door-human"
# Of the snapshots of a training: which is the medium policy, and which the expert.
SNAPSHOTS = 26
LEVELS = {"hopper": (2, 18), "walker2d": (6, 16), "halfcheetah": (16, 25)}
PIECE = 20_000  # transitions that one job collects
ANT_NOISE = 0.2
ARRIVAL = 0.5  # metres from where the ant was led to


# ── behaviour policies ──────────────────────────────────────────────────────────────────────────────────────────────


def snapshot(stored: Arrays, index: int) -> Act:
    """A Gaussian policy of two tanh layers, one of the stored moments of its training."""
    p = {name: array[index] for name, array in stored.items()}
    scale, spread = 1 / (p["obs_std"] + np.float32(1e-6)), np.exp(p["logstd"])

    def act(observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        x = (observation - p["obs_mean"]) * scale
        x = np.tanh(np.tanh(x @ p["W0"] + p["b0"]) @ p["W1"] + p["b1"])
        return x @ p["Wout"] + p["bout"] + spread * rng.standard_normal(spread.size, np.float32)

    return act


def squashed(stored: Arrays, index: int) -> Act:
    """A SAC policy: tanh of a Gaussian whose mean and spread are networks of two ReLU layers."""
    p = {name: array[index] for name, array in stored.items() if name != "names"}

    def act(observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        x = np.maximum(np.maximum(observation @ p["W0"] + p["b0"], 0) @ p["W1"] + p["b1"], 0)
        spread = np.exp(np.clip(x @ p["Wls"] + p["bls"], -20, 2))
        return np.tanh(x @ p["Wmu"] + p["bmu"] + spread * rng.standard_normal(spread.size, np.float32))

    return act


def hand(p: Arrays, _: int) -> Act:
    """A Gaussian policy of two tanh layers for an Adroit hand."""
    spread = np.exp(p["log_std"]).astype(np.float32)

    def act(observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        x = (observation - p["in_shift"]) / (p["in_scale"] + np.float32(1e-8))
        x = np.tanh(p["W1"] @ np.tanh(p["W0"] @ x + p["b0"]) + p["b1"])
        mean = (p["W2"] @ x + p["b2"]) * p["out_scale"] + p["out_shift"]
        return mean + spread * rng.standard_normal(spread.size, np.float32)

    return act


def walk(p: Arrays, observation: np.ndarray, way: np.ndarray) -> np.ndarray:
    """The action that walks the ant along `way`."""
    features = np.concatenate([observation[2:], 10 * way / (np.linalg.norm(way) + 1e-9)]).astype(np.float32)
    hidden = np.maximum(p["fc0_W"] @ features + p["fc0_b"], 0)
    hidden = np.maximum(p["fc1_W"] @ hidden + p["fc1_b"], 0)
    return np.tanh(p["last_fc_W"] @ hidden + p["last_fc_b"])


def load(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as stored:
        return dict(stored)


# ── collecting ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Rows:
    """Transitions as they come, and at the end as D4RL stores them."""

    KINDS: Mapping[str, type] = {
        "observations": np.float32,
        "actions": np.float32,
        "rewards": np.float32,
        "next_observations": np.float32,
        "terminals": bool,
        "timeouts": bool,
    }

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def add(self, *values: Any) -> None:
        self.rows.append(values)

    def arrays(self) -> Arrays:
        columns = zip(self.KINDS.items(), zip(*self.rows, strict=True), strict=True)
        return {name: np.asarray(column, kind) for (name, kind), column in columns}


def roll_out(env_name: str, policy: Callable[[Arrays, int], Act], file: Path, index: int, n: int, seed: int) -> Arrays:
    """`n` transitions of a policy in its environment."""
    act = policy(load(file), index)
    env, rng, rows = make_env(env_name), np.random.default_rng(seed), Rows()
    observation, _ = env.reset(seed=int(rng.integers(2**31)))
    for i in range(n):
        action = np.minimum(np.maximum(act(observation.astype(np.float32), rng), -1), 1)
        following, reward, terminal, truncated, _ = env.step(action)
        timeout = (truncated or i == n - 1) and not terminal
        rows.add(observation, action, reward, following, terminal, timeout)
        observation = env.reset()[0] if terminal or timeout else following
    env.close()
    return rows.arrays()


def walk_about(maze: str, quality: str, file: Path, n: int, seed: int) -> Arrays:
    """`n` transitions of an ant that is led along shortest paths with noise on its actions, as in D4RL.

    It heads for a point of a cell and, once there, for another. `diverse` starts in any cell and heads for any;
    otherwise it starts where the task does and heads for few cells: the task's goal, and in `play` the corners. It is
    not told where in its cell the goal lies; where it comes near, the reward is 1 and the episode ends.
    """
    p, rng, rows, env = load(file), np.random.default_rng(seed), Rows(), AntMazeEnv(maze)
    free = MAZES[maze].free_cells
    places = {"diverse": free, "play": (*corners(free), GOALS[maze]), "": (GOALS[maze],)}[quality]

    def heading() -> tuple[Cell, np.ndarray]:
        cell = places[rng.integers(len(places))]
        return cell, cell_centre(*cell) + rng.uniform(0, 1, 2) + rng.uniform(0, 0.5, 2)  # D4RL draws goals so

    while len(rows.rows) < n:
        observation, _ = env.reset(seed=int(rng.integers(2**31)))
        if quality == "diverse":
            observation = env.place(cell_centre(*free[rng.integers(len(free))]) + rng.uniform(-0.1, 0.1, 2))
        (cell, point), over = heading(), False
        while not over:
            if np.linalg.norm(point - observation[:2]) < ARRIVAL:
                cell, point = heading()
            here = (round(observation[1] / CELL) + 1, round(observation[0] / CELL) + 1)
            towards = point if here == cell else np.array(cell_centre(*maze2d.next_cell(MAZES[maze], here, cell)))
            action = walk(p, observation, towards - observation[:2])
            action = np.clip(action + ANT_NOISE * rng.standard_normal(8, np.float32), -1, 1)
            following, reward, terminal, truncated, _ = env.step(action)
            timeout = (truncated or len(rows.rows) == n - 1) and not terminal
            rows.add(observation, action, reward, following, terminal, timeout)
            observation, over = following, terminal or timeout
    env.close()
    return rows.arrays()


def corners(cells: tuple[Cell, ...]) -> list[Cell]:
    """The free cells nearest to the four corners."""
    height, width = (max(cell[axis] for cell in cells) for axis in (0, 1))
    far = [(1, 1), (1, width), (height, 1), (height, width)]
    return [min(cells, key=lambda cell: abs(cell[0] - at[0]) + abs(cell[1] - at[1])) for at in far]


def walk_for_ever(maze: str, n: int, seed: int) -> Arrays:
    """The library's own maze data, as `aspc data make` makes it."""
    return maze2d.generate(maze, n, seed, noise=0.0)


# ── datasets ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Job(NamedTuple):
    """A piece of a dataset: `collect(*arguments, transitions, seed)` makes it. Datasets may share pieces."""

    collect: Callable[..., Arrays]
    arguments: tuple[Any, ...]
    transitions: int
    seed: int

    def done(self) -> Arrays:
        return self.collect(*self.arguments, self.transitions, self.seed)


def sources(policies: Path, name: str) -> list[tuple[Callable[..., Arrays], tuple[Any, ...]]]:
    """Who collects a dataset, each an equal share of it."""
    task, _, quality = name.partition("-")
    if task == "antmaze":
        maze, _, kind = quality.partition("-")
        return [(walk_about, (maze, kind, policies / "antmaze" / "ant_goal_policy.npz"))]
    if task in HANDS:
        return [(roll_out, (f"{name}-v1", hand, policies / "adroit" / f"dapg_{task}-v0.npz", 0))]
    env, folder, (medium, expert) = f"{task}-medium-v2", policies / "locomotion", LEVELS[task]
    indices = {
        "random": [0],
        "medium": [medium],
        "expert": [expert],
        "medium-expert": [medium, expert],
        "medium-replay": list(range(medium + 1)),
        "full-replay": list(range(SNAPSHOTS)),
    }[quality]
    if task == "halfcheetah" and quality in ("medium", "expert", "medium-expert"):
        sac = {medium: 0, expert: 1}
        return [(roll_out, (env, squashed, folder / "halfcheetah_sac.npz", sac[index])) for index in indices]
    return [(roll_out, (env, snapshot, folder / f"{task}.npz", index)) for index in indices]


def jobs(policies: Path, name: str, transitions: int) -> list[Job]:
    """The pieces of a dataset, in order. A piece's seed is its own, so that medium-expert has pieces of both."""
    if name.startswith("maze2d-"):
        return [Job(walk_for_ever, (name.removeprefix("maze2d-"),), maze2d.DEFAULT_STEPS, 0)]
    found, of = [], sources(policies, name)
    for collect, arguments in of:
        share = transitions // len(of)
        for start in range(0, share, PIECE):
            known = [a.name if isinstance(a, Path) else getattr(a, "__name__", a) for a in arguments]
            seed = zlib.crc32(repr((known, start)).encode())
            found.append(Job(collect, arguments, min(PIECE, share - start), seed))
    return found


def made(wanted: Mapping[str, list[Job]], pool: Any) -> Iterator[tuple[str, Arrays]]:
    """The datasets one after the other, while the pieces of later ones are being collected."""
    uses = Counter(job for pieces in wanted.values() for job in pieces)
    coming = zip(uses, pool.imap(Job.done, uses), strict=True)
    ready: dict[Job, Arrays] = {}
    for name, pieces in wanted.items():
        while not ready.keys() >= set(pieces):
            job, arrays = next(coming)
            ready[job] = arrays
        yield name, {key: np.concatenate([ready[job][key] for job in pieces]) for key in ready[pieces[0]]}
        uses.subtract(pieces)
        ready = {job: arrays for job, arrays in ready.items() if uses[job] > 0}


def left_out(policies: Path, name: str) -> str | None:
    """Why a dataset cannot be made."""
    needed = set() if name.startswith("maze2d-") else {arguments[2] for _, arguments in sources(policies, name)}
    missing = sorted(str(file) for file in needed if not file.is_file())
    return f"{name}: left out, there is no {missing[0]}" if missing else None


def described(name: str, arrays: Arrays) -> str:
    task = next(full for full in d4rl.datasets() if full.startswith(f"{name}-v"))
    data = Dataset.from_arrays(**arrays, env=task, name=name)
    episodes = "" if data.never_ends else f"{len(data.episode_lengths):,} episodes, "
    score = f"mean return {data.behaviour_return():.1f}, score {data.behaviour_score():.1f}"
    return f"{name}: {len(data):,} transitions, {episodes}{score}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns of names")
    parser.add_argument("--transitions", type=int, default=400_000, help="of each dataset, mazes excepted")
    parser.add_argument("--workers", type=int, default=available_cores())
    asked = parser.parse_args(argv)
    asked.out.mkdir(parents=True, exist_ok=True)
    names = [name for name in (*NAMES, HUMAN) if any(fnmatch.fnmatch(name, pattern) for pattern in asked.only)]
    names = [name for name in names if not (asked.out / f"{name}.hdf5").exists()]
    began = time.monotonic()
    if HUMAN in names:
        names.remove(HUMAN)
        copy_demonstrations(asked.policies / "real" / "door_human_demos.hdf5", asked.out / f"{HUMAN}.hdf5")
    for reason in filter(None, (left_out(asked.policies, name) for name in names)):
        print(reason, file=sys.stderr)
    possible = [name for name in names if left_out(asked.policies, name) is None]
    wanted = {name: jobs(asked.policies, name, asked.transitions) for name in possible}
    # The processes inherit this: each has one core, and its products are small.
    os.environ |= {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    with multiprocessing.get_context("spawn").Pool(asked.workers) as pool:
        for name, arrays in made(wanted, pool):
            files.write_hdf5(asked.out / f"{name}.hdf5", arrays)
            print(f"[{time.monotonic() - began:5.0f} s] {described(name, arrays)}", flush=True)
    return 0


def copy_demonstrations(source: Path, target: Path) -> None:
    if not source.is_file():
        print(f"{HUMAN}: left out, there is no {source}", file=sys.stderr)
        return
    shutil.copyfile(source, target)
    print(f"{HUMAN}: copied", flush=True)


if __name__ == "__main__":
    sys.exit(main())
