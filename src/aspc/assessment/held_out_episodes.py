"""Held-out episodes: the episodes of a dataset that a policy was not trained on."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from aspc.assessment.trained_runs import DataSource, Trained, changed_since, data_sources, holdout_of, home_of
from aspc.data import Dataset
from aspc.errors import AspcError
from aspc.io import read_json
from aspc.training.prepared_data import load_recorded
from aspc.training.run_folder import CONFIG, Run

SEEN_ROWS = 0.5  # an episode with a larger fraction of training rows counts as training data


class HeldOutEpisodes(NamedTuple):
    """The rows of a dataset to evaluate policies on, with a description and warnings."""

    rows: np.ndarray
    description: str
    warnings: list[str]


def held_out_episodes(
    paths: list[Path], dataset: Dataset, on_training_data: bool = False, is_training_data: bool = False
) -> HeldOutEpisodes:
    """Return the episodes of a dataset that none of the policies was trained on.

    An episode counts as training data if a run was trained on most of its rows (observation, action, reward). The
    training data of a run is the recorded dataset without the episodes held out by --holdout.

    Args:
        paths: Folders of runs, fleets or policies.
        dataset: The dataset to evaluate policies on.
        on_training_data: Use all episodes, including those that were trained on.
        is_training_data: True if `dataset` is the recorded dataset of all runs, so that it need not be loaded again.

    Raises:
        AspcError: If no episode is left, or if the training data of a run has changed.
    """
    count = len(dataset.episode_lengths)
    if on_training_data:
        warning = "The policies may have been trained on this data, so their estimates can be too high."
        return HeldOutEpisodes(np.arange(len(dataset)), f"all {count:,} episodes, as requested", [warning])
    is_seen, warnings = np.zeros(len(dataset), bool), []
    hashes, known = row_hashes(dataset), dict[str, np.ndarray]()
    for path in paths:
        trained = _hashes_of_training_data(path, dataset, known, is_training_data)
        if trained is None:
            warnings.append(f"The training data of {path} is unknown; all episodes are assumed to be held out.")
        else:
            is_seen |= np.isin(hashes, trained)
    is_kept = ~_in_seen_episodes(dataset, is_seen)
    if not is_kept.any():
        raise AspcError(
            f"All {count:,} episodes of {dataset.name} were used for training, so they cannot be used here. "
            "Train with --holdout 0.2, pass new episodes with --dataset, or use --on-training-data to use them anyway."
        )
    kept = len(dataset.select(np.flatnonzero(is_kept)).episode_lengths)
    description = f"{kept:,} of {count:,} episodes: those that no policy was trained on"
    if count == 1:
        description = f"{is_kept.sum():,} of {len(dataset):,} rows: those that no policy was trained on"
    return HeldOutEpisodes(np.flatnonzero(is_kept), description, list(dict.fromkeys(warnings)))


def _in_seen_episodes(dataset: Dataset, is_seen: np.ndarray) -> np.ndarray:
    """Extend seen rows to whole episodes; in a log with a single episode, treat each row separately."""
    starts, stops = dataset.episode_bounds
    if len(starts) == 1:
        return is_seen
    fraction = np.add.reduceat(is_seen.astype(float), starts) / (stops - starts)
    return np.repeat(fraction > SEEN_ROWS, stops - starts)


def row_hashes(dataset: Dataset) -> np.ndarray:
    """Return a 64-bit hash [rows] of each row's observation, action and reward."""
    columns = np.concatenate([dataset.observations, dataset.actions, dataset.rewards[:, None]], 1, dtype=np.float32)
    factors = np.asarray(np.random.default_rng(0).integers(2**63, size=columns.shape[1]), np.uint64) | np.uint64(1)
    found = np.zeros(len(columns), np.uint64)
    bits = (columns + np.float32(0)).view(np.uint32)  # −0 becomes 0
    for i in range(columns.shape[1]):
        found = (found ^ bits[:, i]) * factors[i]
        found ^= found >> np.uint64(29)
    return found


def _hashes_of_training_data(
    path: Path, dataset: Dataset, known: dict[str, np.ndarray], is_training_data: bool
) -> np.ndarray | None:
    """Return the hashes of the rows that a run, fleet or policy was trained on; None if they are unknown.

    `known` caches the hashes from earlier calls, so that each dataset is loaded once.
    """
    home, holdout, parts = home_of(path), holdout_of(path), []
    for source in data_sources(path):
        key = str((source.source, source.options, holdout, None if home is None else _fingerprint(home)))
        if source.source is None or key not in known:
            full = dataset if is_training_data else _load(source)
            if full is None and home is not None and _is_data_of(home, dataset):
                full = dataset
            if full is None:
                return None
            if home is not None and changed_since([path], full):
                raise AspcError(
                    f"{full.name} has changed since {path} was trained on it, so its held-out episodes are unknown. "
                    "Restore the file, or use all episodes with --on-training-data."
                )
            known[key] = row_hashes(full if holdout == 0 else full.split(holdout, seed=0)[0])
        parts.append(known[key])
    return np.concatenate(parts)


def _load(source: DataSource) -> Dataset | None:
    if source.source is None:
        return None
    try:
        loaded = load_recorded(source.source, source.options)
    except AspcError:  # the file was moved, or is on another machine
        return None
    return loaded if isinstance(loaded, Dataset) else None


def _fingerprint(home: Path) -> str | None:
    """Return the recorded fingerprint of a run's data, which identifies it even if the file changes between runs."""
    facts = read_json(home / CONFIG).get("dataset")
    return str(facts.get("fingerprint")) if isinstance(facts, dict) else None


def _is_data_of(home: Path, dataset: Dataset) -> bool:
    try:
        return Trained.of(Run(home), dataset).same_data
    except AspcError:
        return False
