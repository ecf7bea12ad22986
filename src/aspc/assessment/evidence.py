"""The evidence that all estimators share: held-out episodes, split into halves, and the signals to estimate.

Every fitted ensemble (critics, dynamics models, the behavior density) has an even number of members. Members 2j and
2j + 1 are fitted on complementary random halves of the episodes. The variance of an estimate over half-samples equals
the variance of the estimate from all episodes, so the spread of the members measures how precisely the data determines
the estimate. Every episode also has members that were not fitted on it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from aspc.assessment.assess_options import AssessOptions
from aspc.assessment.returns import States, choose_states, returns_to_go
from aspc.data import Dataset
from aspc.data.history import stack_dataset
from aspc.errors import AspcError
from aspc.history import NEWEST_ONLY, History
from aspc.policy import Policy
from aspc.text import format_number

REWARD = "reward"
MIN_EPISODES = 4  # two in each half
MIN_COMPARED = 0.5  # fraction of the discounted horizon that an estimator must cover to give an estimate
MAX_MISSING = 0.5  # largest truncated part of a return-to-go that is extrapolated
MISJUDGED_STDS = 1.0  # largest accepted error for the logged controller, in standard deviations of returns


class LoggedReturns(NamedTuple):
    """The logged discounted sums of a signal from the start states."""

    mean: float
    std: float  # standard deviation over episodes
    is_complete: bool  # true if most of the sums are logged in full
    spread: float  # standard deviation of the sums from all logged states, the scale of values


@dataclass(frozen=True)
class DifferenceEstimate:
    """One estimator's result: the difference between a policy and the logged controller in one signal."""

    estimator: str
    policy: str
    signal: str
    difference: float
    """Discounted sum of the policy minus that of the logged controller, from the same start states."""
    standard_error: float
    members: tuple[float, ...] = ()
    """The difference estimated by each ensemble member."""
    effective_episodes: float | None = None
    """Effective sample size of an importance-weighted estimate."""
    silent_because: str | None = None
    """The reason why the estimator gives no estimate; None if it gives one."""

    @classmethod
    def silent(cls, estimator: str, policy: str, signal: str, reason: str) -> DifferenceEstimate:
        """Return the result of an estimator that gives no estimate, with the reason."""
        return cls(estimator, policy, signal, np.nan, np.nan, silent_because=reason)

    @classmethod
    def from_members(
        cls, estimator: str, policy: str, signal: str, values: np.ndarray, groups: np.ndarray, extra_error: float = 0.0
    ) -> DifferenceEstimate:
        """Summarize differences [members, states].

        The variance has three terms: the variance between members, which are fitted on different data, the variance of
        the mean over episodes, and `extra_error` squared.
        """
        members = values.mean(1)
        variance = members.var(ddof=1) + _variance_of_mean(values.mean(0), groups) + extra_error**2
        return cls(estimator, policy, signal, float(members.mean()), float(variance**0.5), tuple(members.tolist()))


def _variance_of_mean(values: np.ndarray, groups: np.ndarray) -> float:
    """Return the variance of the mean of values [states], where only states in different groups are independent."""
    count = len(np.unique(groups))
    centered = np.bincount(groups, weights=values - values.mean(), minlength=int(groups.max()) + 1)
    return float(np.square(centered).sum() / len(values) ** 2 * count / max(count - 1, 1))


Show = Callable[[int, str], None]  # called with an estimator's completed steps and the name of the current stage


class Estimator(Protocol):
    """A method of off-policy evaluation. It can return several estimates per policy that share a fit."""

    def estimate(self, evidence: Evidence, policies: dict[str, Policy], show: Show) -> list[DifferenceEstimate]:
        """Return estimates for every policy and every signal; call `show` with the completed steps."""
        ...


@dataclass(frozen=True, eq=False)
class Evidence:
    """Held-out episodes, prepared for all estimators."""

    dataset: Dataset
    states: States
    """The states where the returns start, each with its resampling unit (episode)."""
    signals: dict[str, np.ndarray]
    """Columns [rows] whose discounted sums are estimated; the first is the reward."""
    halves: np.ndarray
    """[members, episodes]: true if the member is fitted on the episode."""
    options: AssessOptions
    history: History = NEWEST_ONLY
    """The history that forms a state."""

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        kpis: dict[str, np.ndarray],
        options: AssessOptions,
        history: History = NEWEST_ONLY,
    ) -> Evidence:
        """Choose start states and split the episodes of a held-out dataset.

        Args:
            dataset: The held-out episodes.
            kpis: Additional columns to estimate, by name.
            options: Options of the estimators.
            history: The history that forms a state.

        Raises:
            AspcError: The dataset has too few episodes.
        """
        states = choose_states(dataset, "auto")
        count = int(states.groups.max()) + 1
        if count < MIN_EPISODES:
            raise AspcError(
                f"{dataset.name} has {count} episodes for assessing policies; at least {MIN_EPISODES} are required. "
                "Hold out more episodes (aspc train --holdout), or pass more data with --dataset."
            )
        rng, halves = np.random.default_rng(options.seed), np.zeros((options.critics, count), bool)
        for member in range(0, options.critics, 2):
            halves[member, rng.permutation(count)[: count // 2]] = True
            halves[member + 1] = ~halves[member]
        return cls(dataset, states, {REWARD: dataset.rewards, **kpis}, halves, options, history)

    @cached_property
    def stacked(self) -> Dataset:
        """The dataset with stacked observations, on which critics, models and densities are fitted."""
        return stack_dataset(self.dataset, self.history)

    @cached_property
    def row_groups(self) -> np.ndarray:
        """The episode of every row."""
        following = np.searchsorted(self.states.rows, np.arange(len(self.dataset)), side="right") - 1
        groups: np.ndarray = self.states.groups[np.maximum(following, 0)]
        return groups

    @property
    def episode_starts(self) -> np.ndarray:
        """The first row of every episode."""
        return np.flatnonzero(np.diff(self.row_groups, prepend=-1))

    def row_weights(self, rows: np.ndarray) -> np.ndarray:
        """Return the loss weights [rows, members] of rows: 2 for rows in a member's half, else 0."""
        return 2.0 * self.halves[:, self.row_groups[rows]].T.astype(np.float32)

    def mean_of_others(self, values: np.ndarray) -> np.ndarray:
        """Average values [members, rows, …] per row over the members that were not fitted on the row's episode."""
        is_other = ~self.halves[:, self.row_groups].reshape(values.shape[:2] + (1,) * (values.ndim - 2))
        return np.asarray((values * is_other).sum(0) / is_other.sum(0))

    def dataset_of(self, signal: str) -> Dataset:
        """Return the held-out episodes with a signal in place of the reward."""
        return dataclasses.replace(self.dataset, rewards=self.signals[signal].astype(np.float32))

    @cached_property
    def logged_returns(self) -> dict[str, LoggedReturns]:
        """The discounted sums of every signal from the start states.

        Only sums that are logged in full are used. If timeouts truncate most of the sums, all are used, and each is
        extrapolated as if the signal continued as in the logged part.
        """
        return {signal: self._logged_returns(values) for signal, values in self.signals.items()}

    def _logged_returns(self, values: np.ndarray) -> LoggedReturns:
        returns = returns_to_go(self.dataset, self.options.discount, values)
        is_known = returns.missing <= MAX_MISSING
        all_values = returns.returns[is_known] / (1 - returns.missing[is_known])
        rows = self.states.rows[returns.is_complete[self.states.rows]]
        is_complete = len(rows) >= max(2, len(self.states.rows) / 2)
        rows = rows if is_complete else self.states.rows
        start_values = returns.returns[rows] / (1 - (0 if is_complete else returns.missing[rows]))
        std = float(start_values.std())
        spread = float(all_values.std()) if len(all_values) > 1 else std
        return LoggedReturns(float(start_values.mean()), std, is_complete, spread)

    def controller_error(self, signal: str, controller: float) -> float:
        """Return the error of a method whose estimate for the logged controller is `controller`; 0 if unknown.

        The logged controller is the only policy whose value is known. The method's error for other policies is unlikely
        to be smaller, so the estimators add this error to the standard errors of their differences.
        """
        logged = self.logged_returns[signal]
        return abs(controller - logged.mean) if logged.is_complete else 0.0

    def reason_to_distrust(self, signal: str, controller: float) -> str | None:
        """Return the reason to distrust a method whose estimate for the controller is `controller`, or None."""
        if not np.isfinite(controller):
            return "its estimate of the logged controller is not finite"
        logged = self.logged_returns[signal]
        if self.controller_error(signal, controller) <= max(MISJUDGED_STDS * logged.std, 0.1 * abs(logged.mean)):
            return None
        estimate, mean = format_number(controller), format_number(logged.mean)
        return f"its estimate of the logged controller is {estimate}, but the logged mean is {mean}"
