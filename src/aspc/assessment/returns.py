"""Model-free estimates from the data: discounted returns of logged episodes, and bootstrap intervals."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from aspc.data import Dataset
from aspc.errors import AspcError

MISSING_TOLERANCE = 0.05  # a return is complete if its truncated part has at most this weight
SEGMENTS = 20  # number of resampling units made from a single unbroken trajectory
MAX_STATES = 10_000  # maximum number of states for averages over the entire log


class ReturnsToGo(NamedTuple):
    """Σ γᵏ·r from each row to the end of its logged episode, and the weight of the part after the end of the log."""

    returns: np.ndarray  # [N] float64
    missing: np.ndarray  # [N] float64: 0 if the episode terminates, else γ^(rows left)

    @property
    def is_complete(self) -> np.ndarray:
        """True for rows whose return is complete, or truncated so late that the remainder is negligible."""
        return self.missing <= MISSING_TOLERANCE


def returns_to_go(dataset: Dataset, discount: float, rewards: np.ndarray | None = None) -> ReturnsToGo:
    """Return the logged return of every row. A timeout truncates a return.

    The true return of a row is `returns + missing · V(state after the timeout)`, but the log does not contain V.

    Args:
        dataset: The logs.
        discount: Discount factor.
        rewards: Rewards to use instead of the dataset's own, for example preprocessed ones.
    """
    rewards = dataset.rewards if rewards is None else rewards
    starts, stops = dataset.episode_bounds
    last = np.repeat(stops - 1, stops - starts)
    is_last = last == np.arange(len(dataset))
    sums, running = np.empty(len(dataset)), 0.0
    for i, (reward, ends) in enumerate(zip(rewards[::-1].tolist(), is_last[::-1].tolist(), strict=True)):
        running = reward if ends else reward + discount * running
        sums[i] = running
    missing = np.where(dataset.terminals[last], 0.0, discount ** (last - np.arange(len(dataset)) + 1.0))
    return ReturnsToGo(sums[::-1].copy(), missing)


class States(NamedTuple):
    """The rows over which a policy's value is averaged, and the episode of each row."""

    rows: np.ndarray  # [S]
    groups: np.ndarray  # [S], 0, 1, …: the units of resampling


def start_states(dataset: Dataset) -> States:
    """Return the first row of every logged episode.

    Raises:
        AspcError: If the log has no episodes.
    """
    if dataset.is_endless:
        raise AspcError(
            f"{dataset.name} has no episodes, so the start states of a policy are unknown. "
            "Use --states all to evaluate policies over all logged states."
        )
    starts, _ = dataset.episode_bounds
    return States(starts, np.arange(len(starts)))


def choose_states(dataset: Dataset, which: Literal["auto", "start", "all"]) -> States:
    """Choose the states at which policies are evaluated.

    Args:
        dataset: The logs.
        which: "start" for the first states of episodes, "all" for states from the entire log. "auto" means
            "start", or "all" for a single episode, because a single start state gives no interval.
    """
    if which not in ("auto", "start", "all"):
        raise AspcError(f"The states must be 'start', 'all' or 'auto', not {which!r}.")
    if which == "all" or (which == "auto" and len(dataset.episode_lengths) == 1):
        return all_states(dataset)
    return start_states(dataset)


def all_states(dataset: Dataset) -> States:
    """Return evenly spaced rows of the entire log, grouped by episode; an unbroken log is split into segments."""
    rows = np.linspace(0, len(dataset) - 1, min(len(dataset), MAX_STATES)).astype(int)
    starts, _ = dataset.episode_bounds
    if len(starts) == 1:
        starts = np.unique(np.linspace(0, len(dataset), SEGMENTS + 1).astype(int)[:-1])
    _, groups = np.unique(np.searchsorted(starts, rows, side="right"), return_inverse=True)
    return States(rows, groups)


def resampled_means(values: np.ndarray, groups: np.ndarray, resamples: int = 2_000, seed: int = 0) -> np.ndarray:
    """Return means [policies, resamples] of values [policies, states] over episodes drawn with replacement.

    All policies share the same draws, so that they can be compared draw by draw.
    """
    count = int(groups.max()) + 1
    sums = np.stack([np.bincount(groups, weights=row, minlength=count) for row in values])
    sizes = np.bincount(groups, minlength=count)
    rng, means = np.random.default_rng(seed), np.empty((len(values), resamples))
    chunk = max(1, 2_000_000 // count)  # limits memory if there are many episodes
    for first in range(0, resamples, chunk):
        size = min(chunk, resamples - first)
        times = rng.multinomial(count, np.full(count, 1 / count), size=size).astype(float)
        means[:, first : first + size] = (times @ sums.T / (times @ sizes)[:, None]).T
    return means


def interval(means: np.ndarray, level: float = 0.95) -> np.ndarray:
    """Return the central interval [..., 2] of resampled means [..., resamples]."""
    tail = (1 - level) / 2
    return np.moveaxis(np.quantile(means, [tail, 1 - tail], axis=-1), 0, -1)
