"""From suites to runs: which there are, what each is called, which of them can train together.

A run's name is a hash of what it is (algorithm, settings, dataset, seed, steps): it does not depend on the suite that
asks for it, on the machine, or on what it is trained together with. So a finished run is known for ever. What a
dataset's file holds is no part of it either: that is in the run's row, and `engine.refuse_other_data` compares.
"""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from aspc import algorithms, tasks
from aspc.data import files, known_names
from aspc.data.sources import maze2d, ogbench
from aspc.errors import AspcError, unknown_name
from aspc.lab.suites import Block, Suite, Variant
from aspc.presets import overrides
from aspc.training.run_config import TrainOptions, flat_values, replace_fields

# Options that change what a run gives, and so are part of its name where they are not the defaults.
NAMING_OPTIONS = ("eval_every", "eval_episodes", "final_episodes", "holdout", "n_step", "horizon", "matmul_precision")
FEWEST_EVALUATIONS = 10  # of a run that --steps makes shorter


@dataclass(frozen=True)
class PlannedRun:
    """One run: an algorithm with settings on a dataset with a seed."""

    algo: str
    dataset: str
    seed: int
    steps: int
    bc: algorithms.BCTerm = "plain"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the algorithm's defaults, presets resolved; dotted names."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the training that are not the defaults."""
    alone: bool = False
    """It is timed, so it trains alone."""
    scale_of: str | None = None
    """The run whose final scale is this one's scale_target."""

    @cached_property
    def run_id(self) -> str:
        facts = {key: value for key, value in dataclasses.asdict(self).items() if value not in ({}, None, False)}
        facts["options"] = {key: value for key, value in self.options.items() if key in NAMING_OPTIONS}
        return short_hash(facts)

    def algorithm(self) -> Any:
        """The algorithm with this run's settings; a scale that is not known yet is left out."""
        settings = dict(self.settings)
        if self.scale_of is not None and "scale_target" not in settings:
            settings["scale_target"] = 1.0
        return replace_fields(algorithms.default(self.algo, self.bc), settings)

    def train_options(self) -> TrainOptions:
        return TrainOptions(steps=self.steps, tensorboard=False, **self.options)


class Entry(NamedTuple):
    """A run's place in a suite: the same run may have several."""

    suite: str
    variant: str
    run_id: str


@dataclass(frozen=True)
class Plan:
    """All runs of some suites, each once, in the order in which they are wanted."""

    runs: Mapping[str, PlannedRun]
    entries: tuple[Entry, ...]
    left_out: tuple[str, ...] = ()
    """Datasets that are neither known by name nor in the folder."""

    def entry_of(self, run_id: str) -> Entry:
        """The first place of a run: what its row in the results says."""
        return self._first[run_id]

    @cached_property
    def _first(self) -> dict[str, Entry]:
        return {entry.run_id: entry for entry in reversed(self.entries)}


def short_hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


# ── settings ────────────────────────────────────────────────────────────────────────────────────────────────────────


def resolved_settings(variant: Variant, dataset: str) -> dict[str, Any]:
    """What a variant's algorithm on a dataset has other than its defaults: the preset's settings, then its own."""
    default = algorithms.default(variant.algo, variant.bc)
    settings = dict(variant.settings)
    if variant.preset is not None:
        settings = {**overrides(variant.algo, name_in_presets(dataset), variant.preset), **settings}
    if variant.scale_of is not None:
        settings["scale_target"] = 1.0
    changed = _differences(flat_values(replace_fields(default, settings)), flat_values(default))
    if variant.scale_of is not None:
        changed.pop("scale_target")
    return changed


def _differences(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    return {name: new[name] for name in sorted(new) if repr(new[name]) != repr(old[name])}  # NaN is NaN


@cache
def _preset_names() -> dict[str, str]:
    return {tasks.without_version(name): name for name in tasks.datasets()}


def name_in_presets(dataset: str) -> str:
    """The benchmark's name under which presets have a dataset: `hopper-medium` is set up as `hopper-medium-v2`."""
    return _preset_names().get(dataset.partition("?")[0].removesuffix(maze2d.CLEAN), dataset)


# ── datasets ────────────────────────────────────────────────────────────────────────────────────────────────────────


def files_of(folder: Path) -> dict[str, Path]:
    """Return the datasets of a folder by name.

    A file's name is its dataset's (`hopper_medium-v2.hdf5`: hopper-medium-v2). An NPZ file with the name of an OGBench
    file (`antmaze-large-navigate-v0.npz`) has all its single tasks; its validation file has none.
    """
    if not folder.is_dir():
        raise AspcError(f"There is no folder {folder}; --data takes a folder of files in D4RL's or OGBench's layout.")
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        suffix = next((s for s in files.SUFFIXES if path.name.lower().endswith(s)), None)
        if suffix is None or not path.is_file():
            continue
        stem = path.name[: -len(suffix)].lower().replace("_", "-")
        tasks = ogbench.tasks_of_file(stem) if suffix == ".npz" else None
        for name in [stem] if tasks is None else tasks:
            if name in found:
                raise AspcError(f"{found[name].name} and {path.name} in {folder} are both named {stem}; remove one.")
            found[name] = path.absolute()
    if not found:
        raise AspcError(f"{folder} holds no datasets: it has no file that ends in {', '.join(files.SUFFIXES)}.")
    return found


def _near(names: Iterable[str]) -> str:
    """Names of known datasets that these may be meant to be."""
    near = dict.fromkeys(match for name in names for match in difflib.get_close_matches(name, _known(), 1, 0.8))
    return f" If they are known by name: the nearest are {', '.join(list(near)[:6])}." if near else ""


def _is_known(dataset: str) -> bool:
    return dataset.partition("?")[0] in _known() or "/" in dataset


@cache
def _known() -> frozenset[str]:
    return frozenset(known_names())


# ── the plan ────────────────────────────────────────────────────────────────────────────────────────────────────────


def make_plan(
    suites: Sequence[Suite],
    *,
    steps: int | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    data: Mapping[str, Path] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Plan:
    """All runs of some suites. `steps`, `seeds` and `options` replace what the suites declare; `only` keeps what
    matches (see `Filter`); `data` are datasets by file, which go before those known by name."""
    data = data or {}
    blocks = [(suite, block) for suite in suites for block in _blocks(suite, data)]
    wanted = Filter.of(only, blocks)
    runs: dict[str, PlannedRun] = {}
    entries: dict[Entry, None] = {}
    needed: dict[Entry, None] = {}
    left_out: dict[str, None] = {}
    for suite, block in blocks:
        for variant in block.variants:
            for dataset in block.datasets:
                if not wanted.keeps(variant, dataset):
                    continue
                if dataset not in data and not _is_known(dataset):
                    left_out[dataset] = None
                    continue
                for seed in range(seeds or block.seeds):
                    chain = _runs_of(variant, dataset, seed, block, steps, options or {})
                    runs |= {run.run_id: run for run in chain if run.run_id not in runs}
                    if variant.scale_of is not None:
                        needed[Entry(suite.name, _label_of(variant.scale_of, suite), chain[0].run_id)] = None
                    entries[Entry(suite.name, variant.label, chain[-1].run_id)] = None
    if not runs and left_out:
        raise AspcError(
            f"The datasets of {', '.join(s.name for s in suites)} come from a folder of files: give it with --data. "
            f"It may have {', '.join(list(left_out)[:6])} and so on (.hdf5).{_near(left_out)}"
        )
    in_suites = {(entry.suite, entry.run_id) for entry in entries}
    extra = [entry for entry in needed if (entry.suite, entry.run_id) not in in_suites]
    return Plan(runs, (*entries, *extra), tuple(left_out))


def _label_of(wanted: Variant, suite: Suite) -> str:
    """What a suite calls a variant that others of it need: its own label, if it has the same under another one."""
    variants = [variant for block in suite.blocks for variant in block.variants]
    same = [v.label for v in variants if dataclasses.replace(v, label=wanted.label) == wanted]
    return wanted.label if wanted.label in same or not same else same[0]


def _blocks(suite: Suite, data: Mapping[str, Path]) -> list[Block]:
    if not suite.every_file:
        return list(suite.blocks)
    if not data:
        raise AspcError(f"The suite {suite.name} trains on every file of a folder; give one with --data FOLDER.")
    # Without a number an OGBench name is one of the five numbered tasks again.
    datasets = tuple(name for name in data if not name.endswith("-singletask-v0"))
    return [dataclasses.replace(block, datasets=datasets) for block in suite.blocks]


def _runs_of(
    variant: Variant, dataset: str, seed: int, block: Block, steps: int | None, changes: Mapping[str, Any]
) -> list[PlannedRun]:
    """A run, after the one that it needs."""
    before = [] if variant.scale_of is None else _runs_of(variant.scale_of, dataset, seed, block, steps, changes)
    length = steps or block.steps
    options = {**block.options, **changes}
    if length < block.steps and "eval_every" not in changes:
        usual = options.get("eval_every", TrainOptions.eval_every)
        fewest = min(FEWEST_EVALUATIONS, max(block.steps // usual, 1))  # a suite may want one alone, at the end
        options["eval_every"] = min(usual, max(length // fewest, 1))
    defaults = {f.name: f.default for f in dataclasses.fields(TrainOptions)}
    run = PlannedRun(
        variant.algo,
        dataset,
        seed,
        length,
        variant.bc,
        resolved_settings(variant, dataset),
        {key: value for key, value in sorted(options.items()) if value != defaults[key]},
        block.alone,
        before[-1].run_id if before else None,
    )
    return [*before, run]


class Filter(NamedTuple):
    """Words that a run must match: one of those about datasets, and one of those about algorithms or variants."""

    datasets: tuple[str, ...]
    variants: tuple[str, ...]

    @classmethod
    def of(cls, words: Iterable[str], blocks: Iterable[tuple[Suite, Block]]) -> Filter:
        blocks = list(blocks)
        names = {dataset for _, block in blocks for dataset in block.datasets}
        variants = {name for _, block in blocks for v in block.variants for name in (v.label, v.algo)}
        about_data, about_variants = [], []
        for word in words:
            if any(_matches(word, name) for name in names):
                about_data.append(word)
            elif any(_matches(word, name) for name in variants):
                about_variants.append(word)
            else:
                kinds = {f"{name.split('-')[0]}-*" for name in names if "-" in name}
                raise unknown_name("dataset, algorithm or variant of this suite", word, names | variants | kinds)
        return cls(tuple(about_data), tuple(about_variants))

    def keeps(self, variant: Variant, dataset: str) -> bool:
        by_data = not self.datasets or any(_matches(word, dataset) for word in self.datasets)
        by_variant = not self.variants or any(
            _matches(word, name) for word in self.variants for name in (variant.label, variant.algo)
        )
        return by_data and by_variant


def _matches(word: str, name: str) -> bool:
    return word.lower() == name.lower() or fnmatch.fnmatchcase(name.lower(), word.lower())
