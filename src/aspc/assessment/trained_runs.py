"""Runs as they lie on disk: their policies, the data they were trained on, and the states in their checkpoints."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aspc.data import Dataset
from aspc.errors import AspcError
from aspc.policy import WEIGHTS, Policy
from aspc.training.run_folder import CONFIG, Run, read_json, safe_env

CHECKPOINTS = "checkpoints"


class Candidate(NamedTuple):
    """A policy to be judged: what it is called here, and where it comes from."""

    name: str
    policy: Policy
    source: str


# ---------------------------------------------------------------------------------------------------------------
# Policies and data
# ---------------------------------------------------------------------------------------------------------------


def policy_folders(path: Path) -> list[Path]:
    """The policies at a path: a policy's own folder, or all below `policy/` of a run or a fleet."""
    if (path / WEIGHTS).is_file():
        return [path]
    found = sorted(file.parent for file in (path / "policy").rglob(WEIGHTS)) if (path / "policy").is_dir() else []
    if not found:
        raise AspcError(f"There is no policy in {path}; give a run's folder or a policy's own folder.")
    return found


def saved_policies(paths: Iterable[Path]) -> list[Candidate]:
    """The saved policies of runs, fleets and policy folders, each once."""
    folders = list(dict.fromkeys(folder for path in paths for folder in policy_folders(path)))
    names = unique_names([_parts(folder) for folder in folders])
    return [Candidate(name, Policy.load(f), str(f)) for name, f in zip(names, folders, strict=True)]


def _parts(folder: Path) -> list[str]:
    """A policy's path without the folder `policy`, which says nothing."""
    return [part for part in folder.absolute().parts if part != "policy"]


def unique_names(paths: list[list[str]]) -> list[str]:
    """The shortest ends of paths, of two parts or more, that tell them all apart."""
    for length in range(2, max(len(p) for p in paths) + 1):
        names = ["/".join(p[-length:]) for p in paths]
        if len(set(names)) == len(names):
            return names
    return ["/".join(p) for p in paths]


def home_of(path: Path) -> Path | None:
    """The folder of the run or fleet that a path is, or that a policy's folder lies in."""
    if (path / CONFIG).is_file():
        return path
    return next((folder for folder in path.absolute().parents[:3] if _has_config(folder)), None)


def _has_config(folder: Path) -> bool:
    try:
        return _is_config(read_json(folder / CONFIG, None))
    except AspcError:
        return False


def _is_config(config: Any) -> bool:
    """Whether a config is a run's or a fleet's: other programs have files of that name too."""
    if not isinstance(config, dict):
        return False
    return isinstance(config.get("dataset"), dict) or isinstance(config.get("members"), list)


def _data_facts(path: Path) -> list[dict[str, Any]]:
    """What a run says of its data; a fleet may have several, a policy of a fleet has its own."""
    home = home_of(path)
    if home is None:
        return [_noted_data(path)]
    config = read_json(home / CONFIG)
    if not _is_config(config):
        raise AspcError(f"{home / CONFIG} is no run's; give the data with --dataset.")
    if "members" not in config:
        return [config.get("dataset", {})]
    own = [m["dataset"] for m in config["members"] if m["name"] == path.name]
    return [config["datasets"][i] for i in own] or config["datasets"]


def data_of(source: str) -> dict[str, Any]:
    """What is to be noted of a candidate's data, so that its policy says it without its run: nothing if unknown."""
    facts = _data_facts(Path(source))[0]
    return {key: facts[key] for key in ("name", "source", "options") if key in facts}


def _noted_data(path: Path) -> dict[str, Any]:
    """What a policy that was copied out of its run says of its data."""
    chosen = Policy.load(path).info.get("chosen") if (path / WEIGHTS).is_file() else None
    data = chosen.get("data") if isinstance(chosen, dict) else None
    if not isinstance(data, dict) or not {"name", "source"} <= data.keys():
        return {}
    return data if isinstance(data.get("options", {}), dict) else {}


def dataset_of(paths: Iterable[Path], dataset: str | None, options: Mapping[str, Any]) -> Dataset:
    """The dataset named, or else the one that all the runs were trained on."""
    from aspc.training.prepared_data import load_recorded, load_source

    if dataset is not None:
        loaded = load_source(dataset, options)
    else:
        if options:
            given = ", ".join(f"--{name.replace('_', '-')}" for name in options)
            raise AspcError(f"{given} says how to read other data: give them with --dataset.")
        dataset, recorded = _trained_on(list(paths))
        loaded = load_recorded(dataset, recorded)
    if not isinstance(loaded, Dataset):
        raise AspcError(f"{dataset} is packed for streaming; give the data that it was packed from with --dataset.")
    return loaded


def with_bounds_of(dataset: Dataset, policies: Iterable[Policy], options: Mapping[str, Any]) -> Dataset:
    """The dataset with bounds of actions that hold those of the policies too, unless they were given: bounds that are
    guessed from other data would cut what the policies do."""
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
        for facts in _data_facts(path):
            if facts.get("source") is None:
                raise AspcError(f"{path} does not say what data it was trained on; give it with --dataset.")
            safe_env(path, facts.get("options", {}).get("env"))
            sources[json.dumps([facts["source"], facts.get("options", {})], sort_keys=True)] = facts["name"]
    if len(sources) > 1:
        names = ", ".join(sorted(set(sources.values())))
        raise AspcError(
            f"The runs were trained on different data, or on data read in different ways ({names}); "
            "choose with --dataset, and how to read it."
        )
    source, options = json.loads(next(iter(sources)))
    return source, options


# ---------------------------------------------------------------------------------------------------------------
# Checkpoints
# ---------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """A run's algorithm and data, made ready, and what its checkpoints hold."""

    run: Run
    algorithm: Any
    dataset: Dataset
    prepared: Any  # aspc.training.prepared_data.PreparedDataset

    @classmethod
    def of(cls, run: Run, dataset: Dataset) -> Trained:
        from aspc.training.prepared_data import PreparedDataset
        from aspc.training.run import recorded_algorithm, recorded_options

        config = run.config
        try:
            algorithm, options = recorded_algorithm(config), recorded_options(config)
        except (KeyError, TypeError) as error:
            raise AspcError(f"{run.path / CONFIG} is damaged: {error} is missing or wrong.") from error
        sizes = config["dataset"]["observation_size"], config["dataset"]["action_size"]
        if sizes != (dataset.observation_size, dataset.action_size):
            raise AspcError(
                f"{run.path} was trained on {sizes[0]} observation and {sizes[1]} action numbers, but {dataset.name} "
                f"has {dataset.observation_size} and {dataset.action_size}; choose the dataset with --dataset."
            )
        return cls(run, algorithm, dataset, PreparedDataset.of(dataset, algorithm, options))

    @property
    def same_data(self) -> bool:
        """Whether the dataset is, row by row, the one that the run was trained on."""
        return self.prepared.fingerprint == self.run.config["dataset"]["fingerprint"]

    def runs(self) -> Any:
        """The runs as training starts them (`aspc.training.compiled_loop.Runs`), one for each seed."""
        import jax.numpy as jnp

        from aspc.training.compiled_loop import Source, start_runs

        seeds = self.run.seeds
        source = Source(jnp.zeros(len(seeds), jnp.int32), jnp.full(len(seeds), self.prepared.transitions, jnp.int32))
        return start_runs(self.algorithm, self.prepared.spec, jnp.asarray(seeds), source)

    def checkpoint_steps(self) -> list[int]:
        """The steps whose state is kept, in order."""
        folder = self.run.path / CHECKPOINTS
        if not folder.is_dir():
            return []
        return sorted(int(p.name) for p in folder.iterdir() if p.is_dir() and p.name.isdigit())

    def states(self, steps: list[int]) -> dict[int, Any]:
        """The states of all seeds at these steps."""
        from aspc.training.checkpoints import Checkpoints

        like = self.runs().state
        checkpoints = Checkpoints(self.run.path / CHECKPOINTS, read_only=True)
        try:
            return {step: checkpoints.restore(step, like) for step in steps}
        finally:
            checkpoints.close()

    def policies(self, step: int, state: Any) -> dict[int, Policy]:
        """The policy of each seed in a state."""
        from aspc.training.compiled_loop import at

        found = {}
        for i, seed in enumerate(self.run.seeds):
            export = self.algorithm.policy(at(state, i))
            export = export._replace(arrays={name: _host(array) for name, array in export.arrays.items()})
            info = {"algo": self.run.config["algo"], "dataset": self.dataset.name, "step": step, "seed": seed}
            info["versions"] = self.run.config.get("versions", {})
            found[seed] = self.prepared.policy(export, self.dataset, info)
        return found


def _host(array: Any) -> Any:
    import numpy as np

    return np.asarray(array, np.float32)


def changed_since(paths: Iterable[Path], dataset: Dataset) -> list[Path]:
    """The runs among these that were trained on other rows than the dataset has by now."""
    alike: dict[Any, list[Path]] = {}  # by the fingerprint of their rows, so that one of them speaks for all
    for home in dict.fromkeys(home for home in map(home_of, paths) if home is not None):
        facts = read_json(home / CONFIG).get("dataset")
        if isinstance(facts, dict):  # a fleet's runs may have several
            alike.setdefault(str(facts.get("fingerprint")), []).append(home)
    return [home for homes in alike.values() if _trained_on_other_rows(homes[0], dataset) for home in homes]


def _trained_on_other_rows(home: Path, dataset: Dataset) -> bool:
    try:
        return not Trained.of(Run(home), dataset).same_data
    except AspcError:  # its algorithm is a plugin's that is not here: its policies can be judged all the same
        return False


def checkpoint_policies(paths: Iterable[Path], dataset: Dataset) -> list[Candidate]:
    """The policies in all checkpoints that the runs keep."""
    found = []
    for path in paths:
        trained = Trained.of(Run(path), dataset)
        steps = trained.checkpoint_steps()
        if not steps:
            raise AspcError(f"{path} keeps no checkpoint; leave out --checkpoints to judge its saved policies.")
        if not trained.same_data:
            raise AspcError(f"{dataset.name} is not the data that {path} was trained on; its checkpoints need that.")
        for step, state in trained.states(steps).items():
            for seed, policy in trained.policies(step, state).items():
                parts = [*path.absolute().parts, f"seed{seed}@{step}"]
                found.append((parts, policy, f"{path / CHECKPOINTS / str(step)}, seed {seed}"))
    names = unique_names([parts for parts, _, _ in found])
    return [Candidate(name, policy, source) for name, (_, policy, source) in zip(names, found, strict=True)]
