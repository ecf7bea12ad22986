"""Fit a policy's guards to a dataset, and look up guard values by action name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from aspc.data import Dataset
from aspc.errors import AspcError, printable
from aspc.policy import Policy
from aspc.policy_guards import OODScore, ood_scores

__all__ = ["fit_ood_score", "named_actions"]

# Shrinking the correlations towards 0 bounds the weight of directions in which the log has no variance.
SHRINKAGE = 0.05
QUANTILE, MARGIN = 0.999, 1.1
MAX_ROWS = 1_000_000
ROWS_AT_ONCE = 65_536


def fit_ood_score(
    dataset: Dataset, held_out: Dataset | None = None, quantile: float = QUANTILE, margin: float = MARGIN
) -> OODScore:
    """Fit an out-of-distribution score to logged observations.

    The score of an observation is its Mahalanobis distance to the log, divided by √(number of dimensions). Correlations
    are shrunk by 5 %, so that the correlation matrix is invertible even if columns are duplicates. The standard
    deviation of a constant column is taken as 0.1 % of its value, or 0.001 if that is larger.

    Args:
        dataset: The observations that determine mean, standard deviation and correlations.
        held_out: The observations that determine the threshold. Default: those of `dataset`.
        quantile: The quantile of the scores of these observations from which the threshold is computed.
        margin: The factor by which the threshold exceeds this quantile.

    Raises:
        AspcError: An argument is invalid, or the datasets have observations of different sizes.
    """
    if not 0 < quantile <= 1:
        raise AspcError(f"The quantile of the score must be above 0 and at most 1, not {quantile}.")
    if not 1 <= margin < 1000:
        raise AspcError(f"The margin of the threshold must be at least 1 and below 1000, not {margin}.")
    if held_out is not None and held_out.observation_size != dataset.observation_size:
        raise AspcError(
            f"The held-out observations have {held_out.observation_size} dimensions, but the others have "
            f"{dataset.observation_size}. Pass data with the same columns."
        )
    judged = dataset if held_out is None else held_out
    rows = _sample(dataset.observations).astype(np.float64)
    mean, std = rows.mean(0), _standard_deviations(rows)
    standardized = (rows - mean) / std
    correlations = (1 - SHRINKAGE) * (standardized.T @ standardized) / len(rows)
    np.fill_diagonal(correlations, 1.0)
    values, vectors = np.linalg.eigh(correlations)
    whitening = vectors / np.sqrt(np.maximum(values, SHRINKAGE))
    mean, std, whitening = (array.astype(np.float32) for array in (mean, std, whitening))
    score = OODScore(mean, std, whitening, np.float32(np.inf))
    chosen = _sample(judged.observations)
    scores = np.concatenate([ood_scores(score, part)[:, 0] for part in _parts(chosen)])
    threshold = margin * float(np.quantile(scores, quantile, method="higher"))
    info = {
        "dataset": judged.name,
        "fingerprint": _fingerprint(chosen),
        "rows": len(chosen),
        "quantile": quantile,
        "margin": margin,
    }
    return score._replace(threshold=np.float32(max(threshold, margin)), info=info)


def named_actions(policy: Policy, values: Mapping[str, float], what: str, default: np.ndarray | None) -> np.ndarray:
    """Return a vector [act] for values that are given by action name.

    If the log had no names, an action's name is its number, counted from 1.

    Args:
        policy: The policy; `info["action_names"]` are the names of its log's columns.
        values: The values by name.
        what: A description of the values for messages.
        default: Values of the other actions, [act]; None if every action needs a value.

    Raises:
        AspcError: A name is unknown, or a value is missing.
    """
    names = action_labels(policy)
    for name in values:
        if name not in names:
            raise AspcError(f"Unknown action {name!r} in {what}. Choose from {printable(', '.join(names))}.")
    missing = [name for name in names if name not in values]
    if default is None and missing:
        raise AspcError(f"{what} needs a value for every action. Add {printable(', '.join(missing))}.")
    known = np.zeros(len(names)) if default is None else default
    return np.asarray([values.get(name, known[i]) for i, name in enumerate(names)], np.float64)


def action_labels(policy: Policy) -> list[str]:
    """Return the names of a policy's actions or, if the log had no names, their numbers, counted from 1."""
    return list(policy.action_names) or [str(i + 1) for i in range(policy.action_size)]


def _standard_deviations(rows: np.ndarray) -> np.ndarray:
    """Return standard deviations, with a positive floor for constant columns and for float32 rounding."""
    size = np.abs(rows).max(0)
    is_constant = rows.max(0) == rows.min(0)
    return np.asarray(np.where(is_constant, 1e-3 * np.maximum(size, 1.0), np.maximum(rows.std(0), 1e-6 * size)))


def _sample(rows: np.ndarray) -> np.ndarray:
    if len(rows) <= MAX_ROWS:
        return rows
    return np.asarray(rows[np.sort(np.random.default_rng(0).choice(len(rows), MAX_ROWS, replace=False))])


def _parts(rows: np.ndarray) -> Sequence[np.ndarray]:
    return np.array_split(rows, -(-len(rows) // ROWS_AT_ONCE))


def _fingerprint(rows: np.ndarray) -> str:
    from aspc.training.run_config import fingerprint

    return fingerprint(rows)
