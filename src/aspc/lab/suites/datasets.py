"""Names of the datasets that the suites train on."""

from __future__ import annotations

from collections.abc import Iterable

from aspc import tasks

D4RL = tuple(tasks.d4rl_datasets())
QUALITIES = ("random", "medium", "expert", "medium-expert", "medium-replay", "full-replay")
WALKERS = ("halfcheetah", "hopper", "walker2d")
HANDS = ("pen", "door", "hammer", "relocate")
MAZES = ("maze2d-umaze", "maze2d-medium", "maze2d-large")
CLEAN_MAZES = tuple(f"{name}-clean" for name in MAZES)


def dataset_names(tasks: Iterable[str], qualities: Iterable[str], version: str = "") -> tuple[str, ...]:
    """Return the names of all combinations of task and quality, such as `hopper-medium-v2`."""
    return tuple(f"{task}-{quality}{version}" for task in tasks for quality in qualities)


ANTMAZE = tuple(name for name in D4RL if name.startswith("antmaze"))
ADROIT = dataset_names(HANDS, ("human", "cloned", "expert"), "-v1")
NINE = ("medium", "medium-expert", "medium-replay")  # qualities of the nine most widely used locomotion datasets
OGBENCH = tuple(
    f"antmaze-{size}-navigate-singletask-task{task}-v0" for size in ("large", "giant") for task in range(1, 6)
)

# Datasets of the study, generated with D4RL's and OGBench's recipes at the benchmarks' sizes
# (benchmarks/study_data.py). Their names have no version, because their behavior policies differ from D4RL's: scores on
# these datasets must not be mixed with scores on D4RL's.
STUDY_WALKERS = dataset_names(WALKERS, QUALITIES)
STUDY_NINE = dataset_names(WALKERS, NINE)
STUDY_ANTMAZE = tuple(name.removesuffix("-v2") for name in ANTMAZE)
STUDY_HANDS = (*dataset_names(HANDS, ("expert",)), "door-human", "door-cloned")
STUDIED = (*STUDY_WALKERS, *MAZES, *STUDY_ANTMAZE, *STUDY_HANDS)
# Algorithm variants are selected on TUNED_ON and reported on REPORTED_ON.
TUNED_ON = (
    *("hopper-random", "hopper-medium-expert", "hopper-medium-replay"),
    *("halfcheetah-medium", "halfcheetah-expert", "halfcheetah-full-replay"),
    *("walker2d-medium", "walker2d-expert", "walker2d-medium-replay"),
    "maze2d-medium",
)
REPORTED_ON = tuple(name for name in (*STUDY_WALKERS, *MAZES) if name not in TUNED_ON)
