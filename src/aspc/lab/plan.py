"""Plans: the runs of suites, each with an id and its resolved settings.

A run's id is a hash of its algorithm, settings, dataset name, seed and number of steps. It does not depend on the
suite, the machine or the other runs in its group, so a finished run is never repeated. The contents of dataset files
are not part of the id. Instead, the results record a fingerprint of the data, and
`recorded_runs.check_data_unchanged` compares it with the current files.
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
from aspc.algorithms.interface import Algorithm
from aspc.data import known_names
from aspc.data.sources import maze2d
from aspc.errors import AspcError, unknown_name
from aspc.lab.suites import Block, Suite, Variant
from aspc.presets import overrides
from aspc.training.hyperparameters import flat_values, replace_fields
from aspc.training.run_config import TrainOptions

# Options that affect a run's results. They are part of its id if they differ from the defaults.
IDENTITY_OPTIONS = (
    *("eval_every", "eval_episodes", "final_episodes", "holdout", "n_step", "horizon", "matmul_precision"),
    *("history", "history_actions"),
)
MIN_EVALUATIONS = 10  # for runs shortened by --steps


@dataclass(frozen=True)
class PlannedRun:
    """One run: an algorithm with its settings, a dataset and a seed."""

    algo: str
    dataset: str
    seed: int
    steps: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings (by dotted name) that differ from the algorithm's defaults after presets have been applied."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Training options that differ from the defaults."""
    alone: bool = False
    """Train this run alone, because it is timed."""
    scale_of: str | None = None
    """Id of the run whose final scale is used as this run's `scale_target`, if any."""

    @cached_property
    def run_id(self) -> str:
        """A hash that identifies the run."""
        facts = {key: value for key, value in dataclasses.asdict(self).items() if value not in ({}, None, False)}
        facts["algo"], facts["bc"] = algorithms.split_bc_term(self.algo)  # as in the ids of published results
        facts["options"] = {key: value for key, value in self.options.items() if key in IDENTITY_OPTIONS}
        return short_hash(facts)

    def algorithm(self) -> Algorithm[Any]:
        """Return the algorithm with this run's settings. A `scale_target` that is not known yet is set to 1."""
        settings = dict(self.settings)
        if self.scale_of is not None and "scale_target" not in settings:
            settings["scale_target"] = 1.0
        return replace_fields(algorithms.default(self.algo), settings)

    def train_options(self) -> TrainOptions:
        """Return the training options of this run."""
        return TrainOptions(steps=self.steps, tensorboard=False, **self.options)


class SuiteEntry(NamedTuple):
    """A suite that contains a run, and the run's label in that suite. A run can have several entries."""

    suite: str
    variant: str
    run_id: str


@dataclass(frozen=True)
class BenchPlan:
    """The runs of one or more suites by id, in order and without duplicates."""

    runs: Mapping[str, PlannedRun]
    entries: tuple[SuiteEntry, ...]
    missing_datasets: tuple[str, ...] = ()
    """Datasets that are neither known by name nor among the given files."""

    def first_entry(self, run_id: str) -> SuiteEntry:
        """Return the first entry of a run, which is the one named in the run's row of results."""
        return self._first_entries[run_id]

    @cached_property
    def _first_entries(self) -> dict[str, SuiteEntry]:
        return {entry.run_id: entry for entry in reversed(self.entries)}


def short_hash(content: Any) -> str:
    """Return 16 hexadecimal digits that identify JSON-serializable content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def resolve_settings(variant: Variant, dataset: str) -> dict[str, Any]:
    """Return the settings of a variant on a dataset that differ from the algorithm's defaults.

    The variant's own settings take precedence over those of its preset.
    """
    default = algorithms.default(variant.algo)
    settings = dict(variant.settings)
    if variant.preset is not None:
        settings = {**overrides(variant.algo, preset_name(dataset), variant.preset), **settings}
    if variant.scale_of is not None:
        settings["scale_target"] = 1.0
    changed = _differences(flat_values(replace_fields(default, settings)), flat_values(default))
    if variant.scale_of is not None:
        changed.pop("scale_target")
    return changed


def _differences(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: new[name] for name in sorted(new) if repr(new[name]) != repr(old[name])
    }  # compare by repr, so that NaN equals NaN


@cache
def _preset_names() -> dict[str, str]:
    return {tasks.without_version(name): name for name in tasks.d4rl_datasets()}


def preset_name(dataset: str) -> str:
    """Return the name under which the presets list a dataset: `hopper-medium-v2` for `hopper-medium`."""
    return _preset_names().get(tasks.without_query(dataset).removesuffix(maze2d.CLEAN), dataset)


def _suggest_names(names: Iterable[str]) -> str:
    """Return a sentence that suggests known datasets with similar names, or an empty string."""
    similar = dict.fromkeys(
        match for name in names for match in difflib.get_close_matches(name, _known_names(), 1, 0.8)
    )
    return f" Similar known names: {', '.join(list(similar)[:6])}." if similar else ""


def _is_known(dataset: str) -> bool:
    return tasks.without_query(dataset) in _known_names() or "/" in dataset


@cache
def _known_names() -> frozenset[str]:
    return frozenset(known_names())


def make_plan(
    suites: Sequence[Suite],
    *,
    steps: int | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    data: Mapping[str, Path] | None = None,
    options: Mapping[str, Any] | None = None,
) -> BenchPlan:
    """Plan the runs of suites.

    Args:
        suites: The suites, in order.
        steps: Steps per run. By default, each suite sets its own.
        seeds: Number of seeds. By default, each suite sets its own.
        only: Keep only runs that match these words; see `RunFilter`.
        data: Dataset files by name. They take precedence over datasets known by name.
        options: Training options. They take precedence over the suites' options.

    Raises:
        AspcError: No dataset is available, or a word of `only` matches nothing.
    """
    data = data or {}
    blocks = [(suite, block) for suite in suites for block in _blocks(suite, data)]
    run_filter = RunFilter.parse(only, blocks)
    runs: dict[str, PlannedRun] = {}
    entries: dict[SuiteEntry, None] = {}
    needed: dict[SuiteEntry, None] = {}
    missing: dict[str, None] = {}
    for suite, block in blocks:
        for variant in block.variants:
            for dataset in block.datasets:
                if not run_filter.matches(variant, dataset):
                    continue
                if dataset not in data and not _is_known(dataset):
                    missing[dataset] = None
                    continue
                for seed in range(seeds or block.seeds):
                    chain = _make_runs(variant, dataset, seed, block, steps, options or {})
                    runs |= {run.run_id: run for run in chain if run.run_id not in runs}
                    if variant.scale_of is not None:
                        needed[SuiteEntry(suite.name, _find_label(variant.scale_of, suite), chain[0].run_id)] = None
                    entries[SuiteEntry(suite.name, variant.label, chain[-1].run_id)] = None
    if not runs and missing:
        raise AspcError(
            f"No dataset of {', '.join(s.name for s in suites)} was found. Pass a folder of dataset files with --data. "
            f"Expected files (.hdf5) include {', '.join(list(missing)[:6])}.{_suggest_names(missing)}"
        )
    in_suites = {(entry.suite, entry.run_id) for entry in entries}
    extra = [entry for entry in needed if (entry.suite, entry.run_id) not in in_suites]
    return BenchPlan(runs, (*entries, *extra), tuple(missing))


def _find_label(wanted: Variant, suite: Suite) -> str:
    """Return the suite's label for a required variant, or the variant's own label if the suite does not contain it."""
    variants = [variant for block in suite.blocks for variant in block.variants]
    same = [v.label for v in variants if dataclasses.replace(v, label=wanted.label) == wanted]
    return wanted.label if wanted.label in same or not same else same[0]


def _blocks(suite: Suite, data: Mapping[str, Path]) -> list[Block]:
    if not suite.every_file:
        return list(suite.blocks)
    if not data:
        raise AspcError(f"Suite {suite.name} trains on every file in a folder. Pass the folder with --data.")
    # An OGBench name without a task number is an alias for one of the five numbered tasks.
    datasets = tuple(name for name in data if not name.endswith("-singletask-v0"))
    return [dataclasses.replace(block, datasets=datasets) for block in suite.blocks]


def _make_runs(
    variant: Variant, dataset: str, seed: int, block: Block, steps: int | None, changes: Mapping[str, Any]
) -> list[PlannedRun]:
    """Return a list with the run, preceded by the run that it depends on, if any."""
    needed = [] if variant.scale_of is None else _make_runs(variant.scale_of, dataset, seed, block, steps, changes)
    length = steps or block.steps
    options = {**block.options, **changes}
    if length < block.steps and "eval_every" not in changes:
        declared = options.get("eval_every", TrainOptions.eval_every)
        # A suite can declare fewer evaluations than the minimum, for example one at the end.
        evaluations = min(MIN_EVALUATIONS, max(block.steps // declared, 1))
        options["eval_every"] = min(declared, max(length // evaluations, 1))
    defaults = {f.name: f.default for f in dataclasses.fields(TrainOptions)}
    run = PlannedRun(
        variant.algo,
        dataset,
        seed,
        length,
        resolve_settings(variant, dataset),
        {key: value for key, value in sorted(options.items()) if value != defaults[key]},
        block.alone,
        needed[-1].run_id if needed else None,
    )
    return [*needed, run]


class RunFilter(NamedTuple):
    """The words of --only, grouped into words for datasets and words for algorithms or variants.

    If a group has words, a run must match at least one of them.
    """

    datasets: tuple[str, ...]
    variants: tuple[str, ...]

    @classmethod
    def parse(cls, words: Iterable[str], blocks: Sequence[tuple[Suite, Block]]) -> RunFilter:
        """Separate words for datasets from words for algorithms and variants.

        Raises:
            AspcError: A word matches nothing.
        """
        names = {dataset for _, block in blocks for dataset in block.datasets}
        variants = {name for _, block in blocks for v in block.variants for name in (v.label, v.algo)}
        dataset_words, variant_words = [], []
        for word in words:
            if any(_matches(word, name) for name in names):
                dataset_words.append(word)
            elif any(_matches(word, name) for name in variants):
                variant_words.append(word)
            else:
                patterns = {f"{name.split('-')[0]}-*" for name in names if "-" in name}
                raise unknown_name("dataset, algorithm or variant of this suite", word, names | variants | patterns)
        return cls(tuple(dataset_words), tuple(variant_words))

    def matches(self, variant: Variant, dataset: str) -> bool:
        """Return whether to keep the runs of a variant on a dataset."""
        is_dataset = not self.datasets or any(_matches(word, dataset) for word in self.datasets)
        is_variant = not self.variants or any(
            _matches(word, name) for word in self.variants for name in (variant.label, variant.algo)
        )
        return is_dataset and is_variant


def _matches(word: str, name: str) -> bool:
    return word.lower() == name.lower() or fnmatch.fnmatchcase(name.lower(), word.lower())
