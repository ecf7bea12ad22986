"""Quantities in the trust report, computed by pure functions of arrays.

Each action dimension is scaled to [-1, 1] by its bounds, so that distances are comparable between dimensions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# ---------------------------------------------------------------------------------------------------------------
# Distance from the data
# ---------------------------------------------------------------------------------------------------------------


def nearest_neighbors(
    queries: np.ndarray, references: np.ndarray, k: int, ids: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Find the k nearest references of each query.

    Args:
        queries: Points [Q, dim].
        references: Points [R, dim].
        k: Number of neighbors.
        ids: Row numbers of the queries and of the references, so that no row is its own neighbor.

    Returns:
        Indices [Q, k], nearest first, and Euclidean distances [Q, k].
    """
    k = min(k, len(references) - (ids is not None))
    squares = np.square(references, dtype=np.float64).sum(1)
    indices, distances = np.empty((len(queries), k), int), np.empty((len(queries), k))
    for first in range(0, len(queries), 256):
        rows = slice(first, first + 256)
        block = queries[rows].astype(np.float64)
        d = np.square(block).sum(1)[:, None] + squares - 2 * block @ references.T.astype(np.float64)
        if ids is not None:
            d[ids[0][rows, None] == ids[1]] = np.inf
        found = np.argpartition(d, k - 1, axis=1)[:, :k]
        order = np.argsort(np.take_along_axis(d, found, 1), axis=1)
        indices[rows] = np.take_along_axis(found, order, 1)
        distances[rows] = np.sqrt(np.maximum(np.take_along_axis(d, indices[rows], 1), 0))
    return indices, distances


class ActionDistances(NamedTuple):
    """The distance, per state, from an action to the nearest action logged in similar states."""

    total: np.ndarray  # [Q], Euclidean
    by_dimension: np.ndarray  # [Q, act], to the same logged action


def nearest_action_distances(actions: np.ndarray, neighbors: np.ndarray) -> ActionDistances:
    """Compute the distance from each action [Q, act] to the nearest of its neighbors' actions [Q, k, act]."""
    apart = np.abs(actions[:, None] - neighbors)
    total = np.sqrt(np.square(apart).sum(-1))
    closest = total.argmin(1)
    rows = np.arange(len(actions))
    return ActionDistances(total[rows, closest], apart[rows, closest])


def fraction_beyond(policy: np.ndarray, data: np.ndarray, quantile: float = 0.95) -> float:
    """Return the fraction of states where the policy's distance exceeds a quantile of the data's distances.

    For a policy that acts like the data, this is `1 - quantile`.
    """
    return float((policy > np.quantile(data, quantile)).mean())


# ---------------------------------------------------------------------------------------------------------------
# Critics
# ---------------------------------------------------------------------------------------------------------------


class Calibration(NamedTuple):
    """Comparison of Q with the logged returns, at logged states and actions."""

    mean_q: float
    mean_return: float
    bias: float  # mean of Q − return
    bias_in_stds: float  # bias in standard deviations of the returns
    correlation: float  # NaN if either is constant
    above_best: float  # fraction of Q above the highest logged return


def measure_calibration(q: np.ndarray, returns: np.ndarray) -> Calibration:
    """Compare Q with the returns of the same rows."""
    bias, spread = float((q - returns).mean()), float(returns.std())
    varies = spread > 0 and q.std() > 0
    return Calibration(
        float(q.mean()),
        float(returns.mean()),
        bias,
        bias / spread if spread > 0 else np.nan,
        float(np.corrcoef(q, returns)[0, 1]) if varies else np.nan,
        float((q > returns.max()).mean()),
    )


def fractions_outside(q: np.ndarray, limits: tuple[float, float]) -> tuple[float, float]:
    """Return the fractions of values below and above the possible range, widened by 1 % of its width on each side."""
    margin = 0.01 * (limits[1] - limits[0])
    return float((q < limits[0] - margin).mean()), float((q > limits[1] + margin).mean())


def critic_std(q: np.ndarray) -> np.ndarray:
    """Return the standard deviation of Q [critics, states] over the critics."""
    return np.asarray(q.std(0))


def largest_indices(values: np.ndarray, count: int = 10) -> np.ndarray:
    """Return the indices of the largest values, largest first."""
    return np.argsort(-values, kind="stable")[:count]


def summarize(values: np.ndarray) -> dict[str, float]:
    """Return the mean, quantiles and maximum."""
    quantiles = {f"p{q}": float(np.quantile(values, q / 100)) for q in (5, 50, 95)}
    return {"mean": float(values.mean()), **quantiles, "max": float(values.max())}
