"""Facts about benchmark tasks: names, sizes, step limits and reference scores of D4RL, and OGBench's names."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

# ── D4RL ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Family:
    """The facts that all D4RL datasets of one environment share."""

    observation_size: int
    action_size: int
    horizon: int
    continuing: bool = False  # the dataset's segments are not episodes of the environment


FAMILIES = {
    "halfcheetah": Family(17, 6, 1000),
    "hopper": Family(11, 3, 1000),
    "walker2d": Family(17, 6, 1000),
    "maze2d-umaze": Family(4, 2, 300, continuing=True),
    "maze2d-medium": Family(4, 2, 600, continuing=True),
    "maze2d-large": Family(4, 2, 800, continuing=True),
    "antmaze-umaze": Family(29, 8, 700),
    "antmaze-medium": Family(29, 8, 1000),
    "antmaze-large": Family(29, 8, 1000),
    "pen": Family(45, 24, 100),
    "door": Family(39, 28, 200),
    "hammer": Family(46, 26, 200),
    "relocate": Family(39, 30, 200),
}
LOCOMOTION_IDS = {"halfcheetah": "HalfCheetah-v4", "hopper": "Hopper-v4", "walker2d": "Walker2d-v4"}


@dataclass(frozen=True)
class D4RLDataset:
    """One D4RL dataset: its URL and the returns that correspond to the scores 0 and 100."""

    name: str
    url: str
    ref_min: float
    ref_max: float
    size: int | None = None
    """Size of the published file in bytes, if TensorFlow Datasets' checksums of D4RL list the file (not for Maze2d)."""
    sha256: str | None = None
    """SHA-256 of the published file, from the same list."""

    @property
    def family_name(self) -> str:
        return next(key for key in FAMILIES if self.name.startswith(f"{key}-"))

    @property
    def family(self) -> Family:
        return FAMILIES[self.family_name]


@cache
def d4rl_datasets() -> dict[str, D4RLDataset]:
    """Return the 39 D4RL datasets by name."""
    table = json.loads(resources.files("aspc").joinpath("d4rl.json").read_text("utf-8"))
    return {
        name: D4RLDataset(
            name, facts["url"], facts["ref_min_score"], facts["ref_max_score"], facts.get("size"), facts.get("sha256")
        )
        for name, facts in table.items()
    }


def without_version(name: str) -> str:
    """Return a name without its version: `hopper-medium` for `hopper-medium-v2`."""
    return re.sub(r"-v\d+$", "", name)


def without_query(name: str) -> str:
    """Return a name without its options: `maze2d-umaze` for `maze2d-umaze?steps=1000`."""
    return name.partition("?")[0]


def family_of(name: str) -> str | None:
    """Return the environment family of a D4RL dataset or a generated maze, or None for any other name."""
    name = without_query(name)
    if name in d4rl_datasets():
        return d4rl_datasets()[name].family_name
    maze = re.sub(r"-(clean|noisy)$", "", name)  # run folders of version 0.1 contain `-noisy`
    return maze if maze in FAMILIES and maze.startswith("maze2d") else None


def family_facts(name: str) -> Family | None:
    """Return the facts about a name's environment family, or None if the name belongs to no family."""
    family = family_of(name)
    return None if family is None else FAMILIES[family]


def name_from_stem(stem: str, observation_size: int, action_size: int) -> str | None:
    """Return the D4RL dataset that a file's stem refers to, if the observation and action sizes match.

    `hopper_medium_replay`, `hopper-medium-v2` and `my_hopper_expert_400k` all name a dataset; the longest match wins.
    A stem that names only an environment (`walker2d_run3`) yields the environment's `medium` dataset, or else its first
    dataset. All datasets of an environment have the same reference scores.
    """
    words = f"-{re.sub(r'[^a-z0-9]+', '-', stem.lower())}-"
    matches = [
        (key, name)
        for name, dataset in d4rl_datasets().items()
        if (dataset.family.observation_size, dataset.family.action_size) == (observation_size, action_size)
        for key in (without_version(name), dataset.family_name)
        if f"-{key}-" in words
    ]
    return max(matches, key=lambda match: (len(match[0]), "-medium-v" in match[1]))[1] if matches else None


def reference_scores(name: str) -> tuple[float, float] | None:
    """Return the returns that D4RL scores as 0 and 100, or None for a name unknown to D4RL.

    All datasets of an environment, including generated mazes, share its scores.
    """
    locomotion = (key for key, env_id in LOCOMOTION_IDS.items() if env_id == without_query(name))
    family = family_of(name) or next(locomotion, None)
    for dataset in d4rl_datasets().values():
        if dataset.family_name == family:
            return dataset.ref_min, dataset.ref_max
    return None


def normalize_score(value: float, ref_min: float, ref_max: float) -> float:
    """Convert a return to D4RL's normalized score: 0 for the reference minimum, 100 for the maximum."""
    return 100.0 * (value - ref_min) / (ref_max - ref_min)


# ── OGBench ─────────────────────────────────────────────────────────────────────────────────────────────────────────

OGBENCH_URL = "https://rail.eecs.berkeley.edu/datasets/ogbench"
_NAVIGATION = {  # sizes and kinds of data per agent
    "pointmaze": (("medium", "large", "giant", "teleport"), ("navigate", "stitch")),
    "antmaze": (("medium", "large", "giant", "teleport"), ("navigate", "stitch", "explore")),
    "humanoidmaze": (("medium", "large", "giant"), ("navigate", "stitch")),
    "antsoccer": (("arena", "medium"), ("navigate", "stitch")),
}
OGBENCH_AGENTS = tuple(_NAVIGATION)
_MANIPULATION = (
    "cube-single",
    "cube-double",
    "cube-triple",
    "cube-quadruple",
    "scene",
    "puzzle-3x3",
    "puzzle-4x4",
    "puzzle-4x5",
    "puzzle-4x6",
)
_TASK_SUFFIXES = ("", *(f"-task{i}" for i in range(1, 6)))


def ogbench_names() -> list[str]:
    """Return the names of all single tasks with state observations. A name without `-taskN` is the default task."""
    stems = [
        f"{agent}-{size}-{kind}" for agent, (sizes, kinds) in _NAVIGATION.items() for size in sizes for kind in kinds
    ]
    stems += [f"{task}-{kind}" for task in _MANIPULATION for kind in ("play", "noisy")]
    return [f"{stem}-singletask{task}-v0" for stem in stems for task in _TASK_SUFFIXES]


def is_ogbench_task(name: str) -> bool:
    """Return whether a name has the form of OGBench's single tasks: `antmaze-large-navigate-singletask-task1-v0`."""
    return re.fullmatch(r"[\w-]+-singletask(-task[1-5])?-v0", name) is not None


def ogbench_env_id(name: str) -> str:
    """Return the Gymnasium id of a single task: its name without the kind of data."""
    return re.sub(r"-[a-z]+(-singletask)", r"\1", name)


def ogbench_file_stem(name: str) -> str:
    """Return the stem of the file that the tasks of one environment share."""
    return re.sub(r"-singletask(-task[1-5])?", "", name)


def ogbench_tasks_of_file(stem: str) -> list[str] | None:
    """Return the single tasks that share a file (`antmaze-large-navigate-v0`), or None for an unknown stem.

    A validation file (`…-v0-val`) has no tasks, because tasks train on the file without `-val`.
    """
    tasks = _ogbench_tasks_by_file().get(stem.removesuffix("-val"))
    return [] if tasks and stem.endswith("-val") else tasks


@cache
def _ogbench_tasks_by_file() -> dict[str, list[str]]:
    tasks: dict[str, list[str]] = {}
    for name in ogbench_names():
        tasks.setdefault(ogbench_file_stem(name), []).append(name)
    return tasks
