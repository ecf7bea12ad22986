"""Trained runs on disk: their policies, their data, and the states in their checkpoints."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from aspc.data import Dataset
from aspc.errors import AspcError
from aspc.io import read_json
from aspc.policy import WEIGHTS, Policy
from aspc.training.run_config import DatasetFacts, FleetConfig, RunConfig, from_json
from aspc.training.run_folder import CONFIG, Run, safe_env

if TYPE_CHECKING:
    from aspc.algorithms.interface import Algorithm
    from aspc.training.compiled_loop import Runs
    from aspc.training.prepared_data import PreparedDataset

CHECKPOINTS = "checkpoints"


class Candidate(NamedTuple):
    """A policy to assess, with a short name and its origin."""

    name: str
    policy: Policy
    source: str


# ---------------------------------------------------------------------------------------------------------------
# Policies and data
# ---------------------------------------------------------------------------------------------------------------


def policy_folders(path: Path) -> list[Path]:
    """Return the policy folders at a path: the path itself, or all folders below `policy/` of a run or fleet."""
    if (path / WEIGHTS).is_file():
        return [path]
    found = sorted(file.parent for file in (path / "policy").rglob(WEIGHTS)) if (path / "policy").is_dir() else []
    if not found:
        raise AspcError(f"No policy found in {path}; pass the folder of a run or of a policy.")
    return found


def saved_policies(paths: Iterable[Path]) -> list[Candidate]:
    """Return the saved policies of runs, fleets and policy folders, without duplicates."""
    folders = list(dict.fromkeys(folder for path in paths for folder in policy_folders(path)))
    # Every path contains the folder "policy", so names omit it.
    names = unique_names([[part for part in folder.absolute().parts if part != "policy"] for folder in folders])
    return [Candidate(name, Policy.load(f), str(f)) for name, f in zip(names, folders, strict=True)]


def unique_names(paths: list[list[str]]) -> list[str]:
    """Return the shortest suffixes (at least two parts) that distinguish all paths."""
    for length in range(2, max(len(p) for p in paths) + 1):
        names = ["/".join(p[-length:]) for p in paths]
        if len(set(names)) == len(names):
            return names
    return ["/".join(p) for p in paths]


def home_of(path: Path) -> Path | None:
    """Return the run or fleet folder at a path or up to three levels above it; None if there is no such folder."""
    if (path / CONFIG).is_file():
        return path
    return next((folder for folder in path.absolute().parents[:3] if _has_config(folder)), None)


def _has_config(folder: Path) -> bool:
    try:
        return _is_config(read_json(folder / CONFIG, None))
    except AspcError:
        return False


def _is_config(config: Any) -> bool:
    """Return whether a config.json belongs to a run or a fleet, since other programs use the same file name."""
    if not isinstance(config, dict):
        return False
    return isinstance(config.get("dataset"), dict) or isinstance(config.get("members"), list)


class DataSource(msgspec.Struct, frozen=True):
    """A recorded dataset and how to load it again; `source` is None if it is unknown."""

    name: str
    source: str | None
    options: dict[str, Any] = {}

    @classmethod
    def of(cls, facts: DatasetFacts) -> DataSource:
        return cls(facts.name, facts.source, facts.reading_options())


def data_sources(path: Path) -> list[DataSource]:
    """Return the data sources of a run, a policy or a fleet. Only a fleet can have several."""
    home = home_of(path)
    if home is None:
        return [_recorded_source(path)]
    file = home / CONFIG
    content = read_json(file)
    if not _is_config(content):
        raise AspcError(f"{file} does not belong to a run; pass the data with --dataset.")
    if "members" not in content:
        return [DataSource.of(from_json(file, content, RunConfig).dataset)]
    fleet = from_json(file, content, FleetConfig)
    own = [member.dataset for member in fleet.members if member.name == path.name]
    return [DataSource.of(fleet.datasets[i]) for i in own or range(len(fleet.datasets))]


def save_selected(chosen: Candidate, note: Mapping[str, Any], folder: Path) -> Path:
    """Save a policy unchanged in a folder, with a record of how it was chosen and of its training data."""
    return with_origin(chosen.policy, chosen.source, note).save(folder)


def with_origin(policy: Policy, source: str, note: Mapping[str, Any]) -> Policy:
    """Return a policy that records its origin and its training data, so that it can be used outside its run's folder.

    Args:
        policy: The policy.
        source: Its folder, or its checkpoint and seed.
        note: Further values to record.
    """
    path = Path(source.partition(", seed ")[0])
    home = home_of(Path(source.partition(f"/{CHECKPOINTS}/")[0]))
    found = data_sources(path)[0]
    record = {
        **note,
        "from": source,
        "run": None if home is None else str(home.absolute()),
        "data": msgspec.structs.asdict(found) if found.name else {},
        "holdout": holdout_of(path),
    }
    return dataclasses.replace(policy, info={**policy.info, "chosen": record})


def holdout_of(path: Path) -> float:
    """Return the fraction of episodes that were held out when a policy was trained."""
    home = home_of(path)
    if home is not None:
        found = read_json(home / CONFIG).get("holdout", 0.0)
    else:
        chosen = Policy.load(path).info.get("chosen") if (path / WEIGHTS).is_file() else None
        found = chosen.get("holdout", 0.0) if isinstance(chosen, dict) else 0.0
    return float(found) if isinstance(found, int | float) and 0 <= found < 1 else 0.0


def _recorded_source(path: Path) -> DataSource:
    """Return the data source recorded in a policy that was copied out of its run."""
    chosen = Policy.load(path).info.get("chosen") if (path / WEIGHTS).is_file() else None
    data = chosen.get("data") if isinstance(chosen, dict) else None
    try:
        return msgspec.convert(data, DataSource)
    except msgspec.ValidationError:
        return DataSource("", None, {})


def dataset_of(paths: Iterable[Path], dataset: str | None, options: Mapping[str, Any]) -> Dataset:
    """Load the named dataset; by default, load the dataset that all runs were trained on."""
    from aspc.training.prepared_data import load_recorded, load_source

    if dataset is not None:
        loaded = load_source(dataset, {**recorded_options(list(paths), dataset), **options})
    else:
        if options:
            given = ", ".join(f"--{name.replace('_', '-')}" for name in options)
            raise AspcError(f"{given} only applies to data passed with --dataset.")
        dataset, recorded = _trained_on(list(paths))
        loaded = load_recorded(dataset, recorded)
    if not isinstance(loaded, Dataset):
        raise AspcError(f"{dataset} is packed for streaming; pass the original data with --dataset.")
    return loaded


READ_AS_RECORDED = (
    *("key_map", "reward", "kpis", "one_hot", "missing", "max_gap", "resample", "interval"),
    *("categorical", "continuous"),
)


def recorded_options(paths: list[Path], dataset: str) -> dict[str, Any]:
    """Return the options with which the runs read the columns of a file, if all runs used the same options.

    Bounds and environments are not included, because they can differ between logs of the same plant. For named and
    packed datasets, no options are returned.
    """
    from aspc.data.file_loader import is_pattern
    from aspc.data.streaming import is_packed

    if is_packed(dataset) or not (Path(dataset).exists() or is_pattern(dataset)):
        return {}
    found = [
        {key: source.options[key] for key in READ_AS_RECORDED if key in source.options}
        for path in paths
        for source in data_sources(path)
    ]
    return found[0] if found and all(options == found[0] for options in found) else {}


def with_bounds_of(dataset: Dataset, policies: Iterable[Policy], options: Mapping[str, Any]) -> Dataset:
    """Widen the action bounds of a dataset to those of the policies, unless `options` sets them.

    Bounds inferred from other data could clip the actions of the policies.
    """
    if not {"action_low", "action_high"}.isdisjoint(options):
        return dataset
    low, high = dataset.action_low, dataset.action_high
    for policy in policies:
        if policy.action_size == dataset.action_size:
            low, high = np.minimum(low, policy.action_low), np.maximum(high, policy.action_high)
    return dataclasses.replace(dataset, action_low=low, action_high=high)


def _trained_on(paths: list[Path]) -> tuple[str, dict[str, Any]]:
    sources = {}
    for path in paths:
        for data in data_sources(path):
            if data.source is None:
                raise AspcError(f"{path} does not record the data it was trained on; pass it with --dataset.")
            safe_env(path, data.options.get("env"))
            sources[json.dumps([data.source, data.options], sort_keys=True)] = data.name
    if len(sources) > 1:
        names = ", ".join(sorted(set(sources.values())))
        raise AspcError(
            f"The runs were trained on different data, or on data read with different options ({names}); "
            "pass one with --dataset, together with the options for reading it (such as --map)."
        )
    source, options = json.loads(next(iter(sources)))
    return source, options


# ---------------------------------------------------------------------------------------------------------------
# Checkpoints
# ---------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """A run with its algorithm, its prepared data and access to its checkpoints."""

    run: Run
    algorithm: Algorithm[Any]
    dataset: Dataset
    prepared: PreparedDataset

    @classmethod
    def of(cls, run: Run, dataset: Dataset) -> Trained:
        """Prepare a dataset as a run did.

        Raises:
            AspcError: If the sizes of the dataset differ from those of the run.
        """
        from aspc.training.prepared_data import PreparedDataset
        from aspc.training.run import recorded_algorithm

        config, facts = run.config, run.config.dataset
        algorithm = recorded_algorithm(config)
        if (facts.observation_size, facts.action_size) != (dataset.observation_size, dataset.action_size):
            raise AspcError(
                f"{run.path} was trained on {facts.observation_size} observation and {facts.action_size} action "
                f"dimensions, but {dataset.name} has {dataset.observation_size} and {dataset.action_size}; choose "
                "the dataset with --dataset."
            )
        return cls(run, algorithm, dataset, PreparedDataset.of(dataset, algorithm, config.options))

    @property
    def same_data(self) -> bool:
        """True if the dataset has exactly the rows that the run was trained on."""
        return self.prepared.fingerprint == self.run.config.dataset.fingerprint

    def initial_runs(self) -> Runs:
        """Return the runs in their initial state, one per seed."""
        import jax.numpy as jnp

        from aspc.training.compiled_loop import RowRange, start_runs

        seeds = self.run.seeds
        source = RowRange(jnp.zeros(len(seeds), jnp.int32), jnp.full(len(seeds), self.prepared.transitions, jnp.int32))
        return start_runs(self.algorithm, self.prepared.spec, jnp.asarray(seeds), source)

    def checkpoint_steps(self) -> list[int]:
        """Return the steps that have a checkpoint, in order."""
        folder = self.run.path / CHECKPOINTS
        if not folder.is_dir():
            return []
        return sorted(int(p.name) for p in folder.iterdir() if p.is_dir() and p.name.isdigit())

    def states(self, steps: list[int]) -> dict[int, Any]:
        """Return the states of all seeds at these steps."""
        from aspc.training.checkpoints import CheckpointStore

        like = self.initial_runs().state
        checkpoints = CheckpointStore(self.run.path / CHECKPOINTS, read_only=True)
        try:
            return {step: checkpoints.restore(step, like) for step in steps}
        finally:
            checkpoints.close()

    def policies(self, step: int, state: Any) -> dict[int, Policy]:
        """Return the policy of each seed in a state."""
        from aspc.algorithms.policy_tracing import export_policy
        from aspc.training.compiled_loop import tree_index

        found = {}
        for i, seed in enumerate(self.run.seeds):
            export = export_policy(self.algorithm, tree_index(state, i), self.prepared.spec.obs_dim)
            info = {"algo": self.run.config.algo, "dataset": self.dataset.name, "step": step, "seed": seed}
            info["versions"] = self.run.config.software.versions
            found[seed] = self.prepared.policy(export, self.dataset, info)
        return found


def changed_since(paths: Iterable[Path], dataset: Dataset) -> list[Path]:
    """Return the runs whose training rows differ from the dataset's current rows."""
    alike: dict[str, list[Path]] = {}  # runs by the fingerprint of their rows; one run per fingerprint is compared
    for home in dict.fromkeys(home for home in map(home_of, paths) if home is not None):
        facts = read_json(home / CONFIG).get("dataset")
        if isinstance(facts, dict):  # fleets have no such entry
            alike.setdefault(str(facts.get("fingerprint")), []).append(home)
    return [home for homes in alike.values() if _has_other_rows(homes[0], dataset) for home in homes]


def _has_other_rows(home: Path, dataset: Dataset) -> bool:
    try:
        return not Trained.of(Run(home), dataset).same_data
    except AspcError:  # the algorithm's plugin is not loaded, but the policies can still be assessed
        return False


def checkpoint_policies(paths: Iterable[Path], dataset: Dataset) -> list[Candidate]:
    """Return the policies in all checkpoints of the runs."""
    found = []
    for path in paths:
        trained = Trained.of(Run(path), dataset)
        steps = trained.checkpoint_steps()
        if not steps:
            raise AspcError(f"{path} has no checkpoint; omit --checkpoints to assess its saved policies.")
        if not trained.same_data:
            raise AspcError(
                f"{dataset.name} is not the data that {path} was trained on; --checkpoints requires that data."
            )
        for step, state in trained.states(steps).items():
            for seed, policy in trained.policies(step, state).items():
                parts = [*path.absolute().parts, f"seed{seed}@{step}"]
                found.append((parts, policy, f"{path / CHECKPOINTS / str(step)}, seed {seed}"))
    names = unique_names([parts for parts, _, _ in found])
    return [Candidate(name, policy, source) for name, (_, policy, source) in zip(names, found, strict=True)]
