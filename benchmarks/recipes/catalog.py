"""The names and sizes of the study's datasets, and the pieces from which they are assembled."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from recipes import d4rl_rollouts, ogbench_rollouts
from recipes.pieces import Piece
from recipes.policies import Arrays

MILLION = 1_000_000
WALKERS = ("hopper", "halfcheetah", "walker2d")
HANDS = ("pen", "door", "hammer", "relocate")
ANTMAZES = ("umaze", "umaze-diverse", "medium-play", "medium-diverse", "large-play", "large-diverse")
MAZE_SIZES = {"umaze": MILLION, "medium": 2 * MILLION, "large": 4 * MILLION}
REPLAY_SIZES = {"hopper": 402_000, "halfcheetah": 202_000, "walker2d": 302_000}
MAZE_NOISE = 0.5  # standard deviation of D4RL's noisy Maze2d actions
CLONED, HUMAN = "door-cloned", "door-human"


@dataclass(frozen=True)
class Trajectories:
    """The size of an OGBench dataset: the number of training episodes, and the number of steps of each.

    The validation file has a tenth as many episodes.
    """

    episodes: int
    steps: int

    @property
    def rows(self) -> int:
        return self.episodes * self.steps

    def scaled(self, scale: float) -> Trajectories:
        return Trajectories(max(round(scale * self.episodes), 1), self.steps)

    def splits(self) -> Mapping[str, range]:
        """Return the indices of each file's episodes, by the suffix of the file's name."""
        validation = max(self.episodes // 10, 1)
        return {"": range(self.episodes), "-val": range(self.episodes, self.episodes + validation)}


# Number of transitions of the files in D4RL's layout. Mazes come first, since each of them is a single long piece.
TRANSITIONS: Mapping[str, int] = {
    **{f"maze2d-{maze}{kind}": size for maze, size in MAZE_SIZES.items() for kind in ("", "-clean")},
    **{
        f"{task}-{quality}": size
        for task in WALKERS
        for quality, size in {
            "random": MILLION,
            "medium": MILLION,
            "expert": MILLION,
            "medium-expert": 2 * MILLION,
            "medium-replay": REPLAY_SIZES[task],
            "full-replay": MILLION,
        }.items()
    },
    **{f"antmaze-{maze}": MILLION for maze in ANTMAZES},
    **{f"{task}-expert": 500_000 if task == "pen" else MILLION for task in HANDS},
    CLONED: MILLION,
}

# OGBench's own sizes. The names of the files end in -v0.
TRAJECTORIES: Mapping[str, Trajectories] = {
    "pointmaze-medium-navigate": Trajectories(1_000, 1_001),
    "pointmaze-large-navigate": Trajectories(1_000, 1_001),
    "pointmaze-giant-navigate": Trajectories(500, 2_001),
    "antmaze-large-navigate": Trajectories(1_000, 1_001),
    "antmaze-giant-navigate": Trajectories(500, 2_001),
    "cube-single-play": Trajectories(1_000, 1_001),
    "scene-play": Trajectories(1_000, 1_001),
    "puzzle-3x3-play": Trajectories(1_000, 1_001),
}
NAMES = (HUMAN, *TRANSITIONS, *TRAJECTORIES)

# Indices of the medium and the expert policy among the snapshots of a training run. No halfcheetah snapshot is an
# expert (the last one scores 31). The halfcheetah expert is therefore a SAC policy from another run, with index 1 in
# that run's file.
SNAPSHOTS = 26
MEDIUM = {"hopper": 2, "walker2d": 6, "halfcheetah": 16}
EXPERT = {"hopper": 18, "walker2d": 16}
SAC_EXPERT = 1
NAVIGATION_NOISE = {"pointmaze": 0.5, "antmaze": 0.2}

PIECE_ROWS = 20_000  # per piece of D4RL's datasets
EPISODE_PIECE_ROWS = 10_000  # per piece of OGBench's datasets, whose scripted oracles are slow


def sources_of(name: str, policies: Path) -> list[Path]:
    """Return the files that are needed to generate a dataset."""
    task, _, quality = name.partition("-")
    if name in (HUMAN, CLONED):
        return [policies / "real" / "door_human_demos.hdf5"]
    if task == "antmaze":
        return [policies / "antmaze" / "ant_goal_policy.npz"]
    if task in HANDS:
        return [policies / "adroit" / f"dapg_{task}-v0.npz"]
    if task in WALKERS:
        needed = [] if name == "halfcheetah-expert" else [policies / "locomotion" / f"{task}.npz"]
        has_sac = task == "halfcheetah" and quality.endswith("expert")
        return [*needed, *([policies / "locomotion" / "halfcheetah_sac.npz"] if has_sac else [])]
    return []


def pieces_of(name: str, policies: Path, clone: Path, scale: float = 1.0) -> dict[str, list[Piece]]:
    """Return the pieces of each of a dataset's files, by file name.

    Args:
        name: Name of a dataset in `TRANSITIONS` or `TRAJECTORIES`.
        policies: Folder with the behavior policies.
        clone: File with the cloned policy, which `door-cloned` needs.
        scale: Fraction of the full size to generate.
    """
    if name in TRAJECTORIES:
        return _trajectory_pieces(name, policies, TRAJECTORIES[name].scaled(scale))
    rows = max(round(scale * TRANSITIONS[name]), 2)
    if name.startswith("maze2d-"):
        maze, _, kind = name.removeprefix("maze2d-").partition("-")
        arguments = (maze, 0.0 if kind == "clean" else MAZE_NOISE, rows, 0)
        return {f"{name}.hdf5": [Piece(d4rl_rollouts.walk_maze2d, arguments, rows)]}
    if name == CLONED:
        (demonstrations,) = sources_of(name, policies)
        half = rows // 2
        rollouts = _split(d4rl_rollouts.roll_out_clone, (f"{name}-v1", clone), rows - half)
        repeated = Piece(d4rl_rollouts.repeat_demonstrations, (demonstrations, half), half)
        return {f"{name}.hdf5": [*rollouts, repeated]}
    collectors = _collectors(name, policies)
    cuts = [i * rows // len(collectors) for i in range(len(collectors) + 1)]
    shares = zip(collectors, pairwise(cuts), strict=True)
    return {f"{name}.hdf5": [piece for (f, a), (start, end) in shares for piece in _split(f, a, end - start)]}


def _collectors(name: str, policies: Path) -> list[tuple[Callable[..., Arrays], tuple[Any, ...]]]:
    """Return the functions (with their arguments) whose rollouts contribute equal shares to a dataset."""
    task, _, quality = name.partition("-")
    first_source = sources_of(name, policies)[0]
    if task == "antmaze":
        maze, _, kind = quality.partition("-")
        return [(d4rl_rollouts.walk_antmaze, (maze, kind, first_source))]
    if task in HANDS:
        return [(d4rl_rollouts.roll_out, (f"{name}-v1", "hand", first_source, 0))]
    env = f"{task}-medium-v2"

    def snapshot(index: int) -> tuple[Callable[..., Arrays], tuple[Any, ...]]:
        return d4rl_rollouts.roll_out, (env, "snapshot", policies / "locomotion" / f"{task}.npz", index)

    def expert() -> tuple[Callable[..., Arrays], tuple[Any, ...]]:
        if task != "halfcheetah":
            return snapshot(EXPERT[task])
        file = policies / "locomotion" / "halfcheetah_sac.npz"
        return d4rl_rollouts.roll_out, (env, "squashed", file, SAC_EXPERT)

    medium = MEDIUM[task]
    return {
        "random": lambda: [snapshot(0)],
        "medium": lambda: [snapshot(medium)],
        "expert": lambda: [expert()],
        "medium-expert": lambda: [snapshot(medium), expert()],
        "medium-replay": lambda: [snapshot(index) for index in range(medium + 1)],
        "full-replay": lambda: [snapshot(index) for index in range(SNAPSHOTS)],
    }[quality]()


def _split(collect: Callable[..., Arrays], arguments: tuple[Any, ...], rows: int) -> list[Piece]:
    """Split rollouts into pieces. The seed of a piece depends on its policy and position but not on the dataset."""
    known = [a.name if isinstance(a, Path) else a for a in arguments]
    pieces = []
    for start in range(0, rows, PIECE_ROWS):
        seed, n = zlib.crc32(repr((known, start)).encode()), min(PIECE_ROWS, rows - start)
        pieces.append(Piece(collect, (*arguments, n, seed), n))
    return pieces


def _trajectory_pieces(name: str, policies: Path, size: Trajectories) -> dict[str, list[Piece]]:
    together = max(EPISODE_PIECE_ROWS // size.steps, 1)
    agent = name.partition("-")[0]
    policy = next(iter(sources_of(name, policies)), None)

    def piece(first: int, episodes: int) -> Piece:
        rows = episodes * size.steps
        if agent in NAVIGATION_NOISE:
            arguments = (name, policy, NAVIGATION_NOISE[agent], size.steps, first, episodes)
            return Piece(ogbench_rollouts.navigate, arguments, rows)
        return Piece(ogbench_rollouts.play, (name, size.steps, first, episodes), rows)

    return {
        f"{name}-v0{suffix}.npz": [
            piece(first, min(together, episodes.stop - first))
            for first in range(episodes.start, episodes.stop, together)
        ]
        for suffix, episodes in size.splits().items()
    }
