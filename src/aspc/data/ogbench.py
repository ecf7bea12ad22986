"""OGBench's single-task datasets: names, files, rewards and masks."""

from __future__ import annotations

import re

SIZES = {
    "pointmaze": ("medium", "large", "giant", "teleport"),
    "antmaze": ("medium", "large", "giant", "teleport"),
    "humanoidmaze": ("medium", "large", "giant"),
    "antsoccer": ("arena", "medium"),
}
KINDS = {
    "pointmaze": ("navigate", "stitch"),
    "antmaze": ("navigate", "stitch", "explore"),
    "humanoidmaze": ("navigate", "stitch"),
    "antsoccer": ("navigate", "stitch"),
}
MANIPULATION = ("cube-single", "cube-double", "cube-triple", "cube-quadruple", "scene", "puzzle-3x3", "puzzle-4x4")
MANIPULATION_LARGE = ("puzzle-4x5", "puzzle-4x6")
TASKS = ("", *(f"-task{i}" for i in range(1, 6)))


def known_names() -> list[str]:
    """All single-task names with state observations; without `-taskN` the default task is meant."""
    stems = [f"{agent}-{size}-{kind}" for agent in SIZES for size in SIZES[agent] for kind in KINDS[agent]]
    stems += [f"{task}-{kind}" for task in (*MANIPULATION, *MANIPULATION_LARGE) for kind in ("play", "noisy")]
    return [f"{stem}-singletask{task}-v0" for stem in stems for task in TASKS]


def is_single_task(name: str) -> bool:
    """Whether a name is one of OGBench's single-task names (`antmaze-large-navigate-singletask-task1-v0`)."""
    return re.fullmatch(r"[\w-]+-singletask(-task[1-5])?-v0", name) is not None


def environment_id(name: str) -> str:
    """The Gymnasium id of a single-task name: the name less the kind of data."""
    return re.sub(r"-[a-z]+(-singletask)", r"\1", name)


def file_stem(name: str) -> str:
    """The name of the data that the tasks of one environment share."""
    return re.sub(r"-singletask(-task[1-5])?", "", name)


def reference_scores(name: str) -> tuple[float, float] | None:
    """OGBench states no reference scores: its tables are success rates in per cent."""
    return None
