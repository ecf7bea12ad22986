"""Per-dataset settings of algorithms that were tuned for each dataset, as data files with their sources.

    paper     the tables of the ASPC paper; what they omit comes from CORL
    corl      CORL's public configurations
    authors   what an algorithm's own authors published

A file holds, for each preset: `source`, perhaps a `note`, `common` (for every dataset) and `by_dataset`. A preset
without `by_dataset` is one setting for all. Names of settings are those of the algorithm's dataclass.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any, NamedTuple

from aspc import algorithms
from aspc.errors import AspcError, unknown_name


class Preset(NamedTuple):
    source: str
    note: str
    common: dict[str, Any]
    by_dataset: dict[str, dict[str, Any]] | None


def presets_of(algo: str) -> dict[str, Preset]:
    """The presets that exist for an algorithm, by name. `iql+aspc` has those of its base."""
    file = resources.files(__package__) / f"{algo.removesuffix('+aspc').removesuffix('_aw')}.json"
    if not file.is_file():
        return {}
    return {
        name: Preset(entry["source"], entry.get("note", ""), entry["common"], entry.get("by_dataset"))
        for name, entry in json.loads(file.read_text("utf-8")).items()
    }


def preset_of(algo: str, preset: str) -> Preset:
    """One preset, or an error that says which there are."""
    known = presets_of(algo)
    if preset not in known:
        if not known:
            raise AspcError(f"There are no presets for {algo}; leave out the preset to use its defaults.")
        raise AspcError(f"There is no preset {preset!r} for {algo}; it has {', '.join(sorted(known))}.")
    return known[preset]


def overrides(algo: str, dataset: str, preset: str) -> dict[str, Any]:
    """What the preset sets for the algorithm on that dataset, by field.

    For a wrapped algorithm these are the fields of its base (`base.FIELD`), less the scale: that one is learned, from
    the base's own default.
    """
    chosen = preset_of(algo, preset)
    settings = dict(chosen.common)
    if chosen.by_dataset is not None:
        if dataset not in chosen.by_dataset:
            raise unknown_name(f"dataset in the preset {preset!r} of {algo}", dataset, chosen.by_dataset)
        settings |= chosen.by_dataset[dataset]
    if not algo.endswith("+aspc"):
        return settings
    scale = algorithms.default(algo).scale_name
    return {f"base.{field}": value for field, value in settings.items() if field != scale}
