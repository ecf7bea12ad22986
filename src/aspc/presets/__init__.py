"""Presets: tuned settings per algorithm and dataset, stored as data files that name their sources.

    paper     the tables of the ASPC paper, completed with settings from CORL
    corl      CORL's public configurations
    authors   settings published by the algorithm's authors

Each preset has a `source`, an optional `note`, `common` settings for all datasets and settings `by_dataset`. A preset
without `by_dataset` applies to all datasets. Settings are named after the fields of the algorithm's dataclass.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any, NamedTuple

from aspc import algorithms
from aspc.errors import AspcError, unknown_name


class Preset(NamedTuple):
    """The settings of one preset."""

    source: str
    note: str
    common: dict[str, Any]
    by_dataset: dict[str, dict[str, Any]] | None


def presets_of(algo: str) -> dict[str, Preset]:
    """Return an algorithm's presets by name. A wrapped algorithm such as `iql+aspc` uses the presets of its base."""
    file = resources.files(__package__) / f"{algo.removesuffix('+aspc').removesuffix('_aw')}.json"
    if not file.is_file():
        return {}
    return {
        name: Preset(entry["source"], entry.get("note", ""), entry["common"], entry.get("by_dataset"))
        for name, entry in json.loads(file.read_text("utf-8")).items()
    }


def preset_of(algo: str, preset: str) -> Preset:
    """Return one preset.

    Raises:
        AspcError: The algorithm has no preset of this name.
    """
    known = presets_of(algo)
    if preset not in known:
        if not known:
            raise AspcError(f"{algo} has no presets; omit the preset to use its defaults.")
        raise AspcError(f"{algo} has no preset {preset!r}; choose from {', '.join(sorted(known))}.")
    return known[preset]


def overrides(algo: str, dataset: str, preset: str) -> dict[str, Any]:
    """Return the settings of a preset for an algorithm on a dataset, by field.

    For a wrapped algorithm, these are fields of its base (`base.FIELD`). The scale is omitted, because it is learned,
    starting from the base's default.
    """
    chosen = preset_of(algo, preset)
    settings = dict(chosen.common)
    if chosen.by_dataset is not None:
        if dataset not in chosen.by_dataset:
            raise unknown_name("dataset", dataset, chosen.by_dataset, f"in the preset {preset!r} of {algo}")
        settings |= chosen.by_dataset[dataset]
    if not algo.endswith("+aspc"):
        return settings
    scale = algorithms.default(algo).scale_name
    return {f"base.{field}": value for field, value in settings.items() if field != scale}
