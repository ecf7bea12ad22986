"""Suites, which are declared sets of runs, and the registry of their names.

A suite is a list of blocks, and a block is the product of variants, datasets and seeds. A run's id does not depend on
the suite that requests it (`aspc.lab.plan`), so suites that request the same runs share them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from aspc.errors import AspcError, unknown_name
from aspc.training.run_config import TrainOptions


@dataclass(frozen=True)
class Variant:
    """One column of a table: an algorithm with its settings, and a display label."""

    label: str
    algo: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Hyperparameters that differ from the algorithm's defaults. They take precedence over the preset."""
    preset: str | None = None
    """Name of a preset with per-dataset settings (`aspc.presets`)."""
    scale_of: Variant | None = None
    """Variant whose final scale, with the same dataset and seed, is used as this run's `scale_target`."""
    title: str = field(default="", compare=False)
    """Descriptive name for readers, if the label is too short."""
    column: str = field(default="", compare=False)
    """Name of the column in the paper's table with this variant's numbers, if it differs from the label."""


@dataclass(frozen=True)
class Block:
    """The product of variants, datasets and seeds.

    `options` are fields of `TrainOptions`. If `alone` is true, the runs are timed and do not share a device.
    """

    variants: tuple[Variant, ...]
    datasets: tuple[str, ...]
    steps: int = 1_000_000
    seeds: int = 4
    options: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = False

    def __post_init__(self) -> None:
        """Raise `AspcError` for invalid fields."""
        for name, items, kind in (("variants", self.variants, Variant), ("datasets", self.datasets, str)):
            if not isinstance(items, tuple | list) or not all(isinstance(item, kind) for item in items):
                raise AspcError(
                    f"A block's {name} must be a tuple of {kind.__name__}, not {items!r}. Write a tuple with "
                    "one item as (item,)."
                )
        for name, value in (("steps", self.steps), ("seeds", self.seeds)):
            if not isinstance(value, int) or value < 1:
                raise AspcError(f"A block's {name} must be a whole number of at least 1, not {value!r}.")
        known = {field.name for field in dataclasses.fields(TrainOptions)}
        for name in self.options:
            if name not in known:
                raise unknown_name("option of a block", name, known)


@dataclass(frozen=True)
class Suite:
    """A declared set of runs.

    `source` is the part of the paper that the suite reproduces. `note` describes details that the paper leaves open.
    """

    name: str
    title: str
    source: str
    blocks: tuple[Block, ...] = ()
    note: str = ""
    parts: tuple[str, ...] = ()
    """Names of the suites that this one combines, in order."""
    every_file: bool = False
    """Train on every file in the --data folder."""
    candidates: tuple[str, ...] = ()
    """Labels of variants that a report can recommend. Each uses one configuration for all datasets."""
    rivals: tuple[str, ...] = ()
    """Labels of variants that must not beat a recommended variant (`aspc.lab.report.recommendation`)."""

    def __post_init__(self) -> None:
        labeled: dict[tuple[str, str], Variant] = {}
        for block in self.blocks:
            for variant, dataset in product(block.variants, block.datasets or ("",)):
                if labeled.setdefault((variant.label, dataset), variant) != variant:
                    raise AspcError(
                        f"Duplicate label {variant.label!r} in suite {self.name}; rename one of the variants."
                    )
        if unknown := {*self.candidates, *self.rivals} - {variant.label for variant in self.variants}:
            raise AspcError(
                f"Suite {self.name} lists {min(unknown)!r} as a candidate or rival, but has no such variant."
            )

    @property
    def variants(self) -> list[Variant]:
        """The variants in the order of the blocks, one per label."""
        return list({variant.label: variant for block in self.blocks for variant in block.variants}.values())

    def title_of(self, label: str) -> str:
        """Return the descriptive name of the variant with this label."""
        return next((variant.title for variant in self.variants if variant.label == label and variant.title), label)


_SUITES: dict[str, Suite] = {}


def register(suite: Suite) -> Suite:
    """Make a suite available as `aspc bench NAME`.

    Raises:
        AspcError: If the name is already registered.
    """
    if suite.name in _SUITES:
        raise AspcError(f"A suite named {suite.name!r} is already registered; choose another name.")
    _SUITES[suite.name] = suite
    return suite


def names() -> list[str]:
    """Return the names of all suites, starting with the paper's suites in the paper's order."""
    return list(_SUITES)


def get(name: str) -> Suite:
    """Return the registered suite with this name."""
    if name not in _SUITES:
        raise unknown_name("suite", name, _SUITES)
    return _SUITES[name]


def expand(names: Iterable[str]) -> list[Suite]:
    """Return the named suites, with combined suites replaced by their parts, in order and without duplicates."""
    found: dict[str, Suite] = {}
    for name in names:
        suite = get(name)
        for part in expand(suite.parts) if suite.parts else [suite]:
            found.setdefault(part.name, part)
    return list(found.values())
