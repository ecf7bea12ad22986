"""The quantities of the trust report, each a pure function of arrays.

Actions are in ±1, each dimension scaled by its bounds, so that distances mean the same in all of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from aspc.data.diagnostics import SATURATED

# ---------------------------------------------------------------------------------------------------------------
# How far the policy moves from the data
# ---------------------------------------------------------------------------------------------------------------


def nearest(
    queries: np.ndarray, references: np.ndarray, k: int, same: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest references [Q, k] of each query, nearest first, and their (Euclidean) distances.

    `same` numbers queries and references: a reference with the query's own number does not count.
    """
    k = min(k, len(references) - (same is not None))
    squares = np.square(references, dtype=np.float64).sum(1)
    indices, distances = np.empty((len(queries), k), int), np.empty((len(queries), k))
    for first in range(0, len(queries), 256):
        rows = slice(first, first + 256)
        block = queries[rows].astype(np.float64)
        d = np.square(block).sum(1)[:, None] + squares - 2 * block @ references.T.astype(np.float64)
        if same is not None:
            d[same[0][rows, None] == same[1]] = np.inf
        found = np.argpartition(d, k - 1, axis=1)[:, :k]
        order = np.argsort(np.take_along_axis(d, found, 1), axis=1)
        indices[rows] = np.take_along_axis(found, order, 1)
        distances[rows] = np.sqrt(np.maximum(np.take_along_axis(d, indices[rows], 1), 0))
    return indices, distances


class ActionDistances(NamedTuple):
    """How far an action in each state lies from the nearest action that was logged in similar states."""

    total: np.ndarray  # [Q], Euclidean
    by_dimension: np.ndarray  # [Q, act], to that same action


def distance_to_actions(actions: np.ndarray, neighbours: np.ndarray) -> ActionDistances:
    """`actions` [Q, act] against the actions [Q, k, act] of each state's neighbours."""
    apart = np.abs(actions[:, None] - neighbours)
    total = np.sqrt(np.square(apart).sum(-1))
    closest = total.argmin(1)
    rows = np.arange(len(actions))
    return ActionDistances(total[rows, closest], apart[rows, closest])


def share_beyond(policy: np.ndarray, data: np.ndarray, quantile: float = 0.95) -> float:
    """The share of states where the policy is farther away than 95 % of the logged actions are from each other.

    A policy that acts as the data does has 0.05.
    """
    return float((policy > np.quantile(data, quantile)).mean())


def saturation(actions: np.ndarray) -> np.ndarray:
    """The share of actions at a bound, for each dimension."""
    return (np.abs(actions) >= SATURATED).mean(0)


# ---------------------------------------------------------------------------------------------------------------
# What the critics say
# ---------------------------------------------------------------------------------------------------------------


class Calibration(NamedTuple):
    """Q at logged states and actions against the returns that were logged from there."""

    mean_q: float
    mean_return: float
    bias: float  # mean of Q − return
    bias_in_stds: float  # the same, in standard deviations of the returns
    correlation: float  # NaN where either does not vary
    above_best: float  # share of Q above the highest logged return


def calibration(q: np.ndarray, returns: np.ndarray) -> Calibration:
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


def shares_outside(q: np.ndarray, limits: tuple[float, float]) -> tuple[float, float]:
    """The shares of values below and above all that a policy can have (with a margin of 1 % of their range)."""
    margin = 0.01 * (limits[1] - limits[0])
    return float((q < limits[0] - margin).mean()), float((q > limits[1] + margin).mean())


def disagreement(q: np.ndarray) -> np.ndarray:
    """The standard deviation over critics of Q [critics, states]: half the distance of two."""
    return q.std(0)


def worst(values: np.ndarray, count: int = 10) -> np.ndarray:
    """Where the largest values are, largest first."""
    return np.argsort(-values, kind="stable")[:count]


def summary(values: np.ndarray) -> dict[str, float]:
    """A few numbers for many."""
    quantiles = {f"p{q}": float(np.quantile(values, q / 100)) for q in (5, 50, 95)}
    return {"mean": float(values.mean()), **quantiles, "max": float(values.max())}


def as_numbers(measures: NamedTuple) -> dict[str, Any]:
    return {name: float(value) for name, value in measures._asdict().items()}
