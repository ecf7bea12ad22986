"""Facts about the 39 D4RL datasets: names, addresses, reference scores, sizes, environments."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class Family:
    """What the D4RL datasets of one environment share."""

    observation_size: int
    action_size: int
    horizon: int
    continuing: bool = False  # the log's pieces are not the environment's episodes


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


@dataclass(frozen=True)
class D4RLDataset:
    """One D4RL dataset: its published address and the returns that score 0 and 100."""

    name: str
    url: str
    ref_min: float
    ref_max: float
    size: int | None = None
    """Bytes of the published file, where they are publicly known: from TensorFlow Datasets' checksums of D4RL."""
    sha256: str | None = None
    """SHA-256 of the published file, from the same source; Maze2d's three files are not listed there."""

    @property
    def family_name(self) -> str:
        return next(key for key in FAMILIES if self.name.startswith(f"{key}-"))

    @property
    def family(self) -> Family:
        return FAMILIES[self.family_name]


@cache
def datasets() -> dict[str, D4RLDataset]:
    """The 39 datasets by name."""
    table = json.loads(resources.files("aspc").joinpath("d4rl.json").read_text("utf-8"))
    return {
        name: D4RLDataset(
            name, facts["url"], facts["ref_min_score"], facts["ref_max_score"], facts.get("size"), facts.get("sha256")
        )
        for name, facts in table.items()
    }


def without_version(name: str) -> str:
    """`hopper-medium` of `hopper-medium-v2`."""
    return re.sub(r"-v\d+$", "", name)


def family_of(name: str) -> str | None:
    """Return the environment family of a D4RL name or of a generated maze's name, or None."""
    if name in datasets():
        return datasets()[name].family_name
    maze = re.sub(r"-(clean|noisy)$", "", name)  # `-noisy` is in run folders of version 0.1
    return maze if maze in FAMILIES and maze.startswith("maze2d") else None


def name_from_stem(stem: str, observation_size: int, action_size: int) -> str | None:
    """The D4RL dataset that a file's stem names, if the sizes are that dataset's too.

    `hopper_medium_replay`, `hopper-medium-v2` and `my_hopper_expert_400k` name one; the longest that fits is meant.
    A stem that names only the environment (`walker2d_run3`) gives that environment's `medium` or first dataset, whose
    environment and reference scores are the same.
    """
    words = f"-{re.sub(r'[^a-z0-9]+', '-', stem.lower())}-"
    fitting = [
        (key, name)
        for name, dataset in datasets().items()
        if (dataset.family.observation_size, dataset.family.action_size) == (observation_size, action_size)
        for key in (without_version(name), dataset.family_name)
        if f"-{key}-" in words
    ]
    return max(fitting, key=lambda pair: (len(pair[0]), "-medium-v" in pair[1]))[1] if fitting else None
