"""Policy value estimates from the outputs of critics: intervals, warnings and a ranking."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aspc.assessment.fqe_options import FQEOptions
from aspc.assessment.returns import States, interval, resampled_means, returns_to_go
from aspc.data import Dataset
from aspc.errors import AspcError

CONVERGENCE_TOLERANCE = 0.05  # largest relative change of a converged estimate in the last quarter of the steps


@dataclass(frozen=True, eq=False)
class Estimate:
    """The estimated discounted return of one policy, in units of reward."""

    name: str
    value: float
    low: float
    """Lower end of the bootstrap interval over episodes."""
    high: float
    """Upper end of the bootstrap interval over episodes."""
    critics: list[float]
    """The value according to each critic."""
    history: list[float]
    """The values of the estimate during the fit."""
    first_in: float
    """Fraction of the bootstrap resamples in which the policy is the best."""
    warning: str | None
    """The reason not to rely on the estimate (it has diverged or has not settled), or None."""

    @property
    def has_diverged(self) -> bool:
        """True if the value is not finite, or outside what any policy can earn with the logged rewards."""
        return self.warning is not None and self.warning.startswith("diverged")


@dataclass(frozen=True, eq=False)
class Ranking:
    """Policies from best to worst (diverged ones last), with the behavior's value for comparison."""

    dataset: str
    discount: float
    states: int
    policies: list[Estimate]
    behavior: Estimate
    monte_carlo: dict[str, float] | None
    """The mean logged discounted return from the same states (no model), or None if no return is logged in full."""

    @property
    def best(self) -> Estimate:
        """The estimate of the best policy.

        Raises:
            AspcError: All estimates have diverged.
        """
        if self.policies[0].has_diverged:
            raise AspcError("The evaluation of every policy diverged, so none can be chosen. Try a smaller --discount.")
        return self.policies[0]


def rank(
    names: list[str],
    values: np.ndarray,
    history: np.ndarray,
    dataset: Dataset,
    states: States,
    options: FQEOptions,
) -> Ranking:
    """Rank policies by their values, with intervals and warnings.

    Args:
        names: The name of the behavior, then those of the policies.
        values: Values [names, critics, states] at the end of the fit.
        history: Mean values [names, time] during the fit.
        dataset: The data that the critics were fitted on.
        states: The states of `values`.
        options: The options of the fit.
    """
    bounds = value_bounds(dataset.rewards, bool(dataset.terminals.any()), options.discount)
    warnings = [find_warning(history[i], values[i].mean(1), bounds) for i in range(len(names))]
    is_valid = np.asarray([warning is None or not warning.startswith("diverged") for warning in warnings])
    means = resampled_means(np.where(is_valid[:, None], values.mean(1), 0.0), states.groups)
    contest = np.where(is_valid[1:, None], means[1:], -np.inf)
    first_in = np.bincount(contest.argmax(0), minlength=len(names) - 1) / contest.shape[1] * is_valid[1:].any()
    intervals = interval(means)
    estimates = [
        Estimate(
            name,
            float(values[i].mean()),
            float(intervals[i, 0]) if is_valid[i] else np.nan,
            float(intervals[i, 1]) if is_valid[i] else np.nan,
            values[i].mean(1).tolist(),
            history[i].tolist(),
            float(first_in[i - 1]) if i else 0.0,
            warnings[i],
        )
        for i, name in enumerate(names)
    ]
    order = sorted(estimates[1:], key=lambda e: (e.has_diverged, -e.value))
    return Ranking(
        dataset.name, options.discount, len(states.rows), order, estimates[0], monte_carlo(dataset, states, options)
    )


def value_bounds(rewards: np.ndarray, can_terminate: bool, discount: float) -> tuple[float, float]:
    """Return the lowest and highest value of any policy whose rewards stay within the logged range."""
    low, high = float(rewards.min()), float(rewards.max())
    endless = low / (1 - discount), high / (1 - discount)
    if not can_terminate:
        return endless
    return min(low, endless[0]), max(high, endless[1])


def find_warning(history: np.ndarray, critics: np.ndarray, bounds: tuple[float, float]) -> str | None:
    """Return the reason not to rely on an estimate, or None.

    Args:
        history: The estimate during the fit.
        critics: The final estimate by each critic.
        bounds: The lowest and highest possible value.
    """
    if not (np.isfinite(history).all() and np.isfinite(critics).all()):
        return "diverged: the critics became NaN or infinite"
    margin = 0.05 * (bounds[1] - bounds[0]) + 0.01 * max(map(abs, bounds)) + 1e-9  # for the critics' fitting error
    if critics.min() < bounds[0] - margin or critics.max() > bounds[1] + margin:
        return f"diverged: outside the possible range from {bounds[0]:.4g} to {bounds[1]:.4g}"
    before = history[int(0.75 * (len(history) - 1))]
    if abs(history[-1] - before) > CONVERGENCE_TOLERANCE * max(abs(history[-1]), 0.01 * (bounds[1] - bounds[0])):
        return "has not settled: increase --steps"
    return None


def monte_carlo(dataset: Dataset, states: States, options: FQEOptions) -> dict[str, float] | None:
    """Return the mean logged return, with its interval, over the states whose return is logged (nearly) in full.

    Return None if there are no such states.
    """
    returns = returns_to_go(dataset, options.discount)
    is_complete = returns.is_complete[states.rows]
    if not is_complete.any():
        return None
    values = returns.returns[states.rows[is_complete]]
    _, groups = np.unique(states.groups[is_complete], return_inverse=True)
    low, high = interval(resampled_means(values[None], groups))[0]
    return {
        "value": float(values.mean()),
        "low": float(low),
        "high": float(high),
        "states": int(is_complete.sum()),
        "of": len(is_complete),
    }
