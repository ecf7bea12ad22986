"""Importance weighting: per-decision ratios of policy density to behavior density, and estimators that use them.

The behavior density is Gaussian, with a fitted mean and one standard deviation σ_d per action dimension, measured on
episodes that the mean was not fitted to. A policy is smoothed by a Gaussian kernel around its action, with bandwidth
h_d = σ_d · n^(−1/(act + 4)) for n rows (Scott's rule).

The density of a discrete action is a probability per option, from a regression on the options. It needs no kernel: the
ratio is exactly 1/b(a|s) for the option that the policy chooses and 0 for the others.

The weights degenerate over the steps, so they are used only while their effective sample size is at least
`MIN_EFFECTIVE_EPISODES`. If these steps cover less than half of the discounted horizon, the estimators give no
estimate. Otherwise importance sampling extrapolates its difference to the full horizon and adds the extrapolated part
to its error, except for discrete actions if all episodes end within these steps. For the remaining steps, doubly robust
estimates rely on the critics alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from aspc.action_space import ActionSpace
from aspc.assessment.device_policy import act_on_rows
from aspc.assessment.evidence import MIN_COMPARED, DifferenceEstimate, Evidence, Show
from aspc.assessment.regression import Regression, fit_regression
from aspc.policy import Policy

IMPORTANCE_SAMPLING, DOUBLY_ROBUST = "importance sampling", "doubly robust"
MIN_EFFECTIVE_EPISODES = 50.0
NEGLIGIBLE_WEIGHT = 0.05  # rewards with a smaller discount γ^t are ignored
MAX_LOG_RATIO = 20.0  # limit per step, to prevent overflow; small ratios are meaningful and are not limited
RESAMPLES = 400
MIN_PROBABILITY = 0.01  # lower limit for the probability of an option; limits a step's ratio to about 100


class Trajectories(NamedTuple):
    """Episodes padded to equal length: the dataset row of every entry, and a mask of the entries that exist."""

    rows: np.ndarray  # [episodes, steps]
    exists: np.ndarray  # [episodes, steps]

    @classmethod
    def of(cls, evidence: Evidence) -> Trajectories:
        """Pad the episodes to equal length, without the steps whose discount is negligible."""
        starts = evidence.episode_starts
        lengths = np.diff(starts, append=len(evidence.dataset))
        steps = min(int(lengths.max()), horizon(evidence.options.discount))
        numbers = np.arange(steps)
        exists = numbers < lengths[:, None]
        return cls(np.where(exists, starts[:, None] + numbers, starts[:, None]), exists)


def horizon(discount: float) -> int:
    """Return the number of steps whose discount is not negligible."""
    return int(np.ceil(np.log(NEGLIGIBLE_WEIGHT) / np.log(discount)))


def effective_size(weights: np.ndarray) -> float:
    """Return Kish's effective sample size (Σw)² / Σw² of weights."""
    total = np.square(weights).sum()
    return float(weights.sum() ** 2 / total) if total > 0 else 0.0


@dataclass(frozen=True, eq=False)
class BehaviorDensity:
    """The fitted density of the logged actions: N(mean(s), σ²), or a probability per option of a discrete action."""

    mean: Regression
    std: np.ndarray  # [act]
    held_out_mean: np.ndarray  # [rows, act], predicted by the members not fitted to the row's episode
    space: ActionSpace | None = None

    @classmethod
    def fit(cls, evidence: Evidence, show: Show) -> BehaviorDensity:
        """Fit the density to the held-out episodes; actions are in [-1, 1]."""
        data, options = evidence.dataset, evidence.options
        actions = data.scale_actions(data.actions)
        states = evidence.stacked.observations
        mean = fit_regression(
            states,
            actions,
            evidence.row_weights(np.arange(len(data))),
            steps=options.model_steps,
            batch_size=options.batch_size,
            hidden_dim=options.hidden_dim,
            learning_rate=options.learning_rate,
            seed=options.seed,
            show=lambda step: show(step, "behavior density"),
        )
        predicted = evidence.mean_of_others(mean.predict(states))
        return cls(mean, np.sqrt(np.square(actions - predicted).mean(0)) + 1e-3, predicted, data.action_space)

    def bandwidth(self) -> np.ndarray:
        """Return the standard deviation [act] of the kernel around a policy's action."""
        rows, act = self.held_out_mean.shape
        if self.space is not None:
            act = int((~self.space.is_choice).sum())
        return np.asarray(self.std * rows ** (-1 / (act + 4)))

    def log_ratios(self, logged: np.ndarray, policy_actions: np.ndarray) -> np.ndarray:
        """Return log π_h(a|s) − log b(a|s) of logged actions, per row; −inf where the policy takes another option."""
        numbers = slice(None) if self.space is None else ~self.space.is_choice
        kernel = log_normal(logged[:, numbers], policy_actions[:, numbers], self.bandwidth()[numbers])
        found = kernel - log_normal(logged[:, numbers], self.held_out_mean[:, numbers], self.std[numbers])
        found = np.minimum(found, MAX_LOG_RATIO)
        for columns in [] if self.space is None else [c for factor, c in self.space.blocks() if factor.choices]:
            chosen = logged[:, columns].argmax(1)
            probability = option_probabilities(self.held_out_mean[:, columns])[np.arange(len(chosen)), chosen]
            is_same = policy_actions[:, columns].argmax(1) == chosen
            found = found + np.where(is_same, -np.log(probability), -np.inf)
        return np.asarray(found)


def option_probabilities(predicted: np.ndarray) -> np.ndarray:
    """Convert predicted option codes in [-1, 1] to probabilities of at least `MIN_PROBABILITY`."""
    clipped = np.clip((predicted + 1) / 2, MIN_PROBABILITY, 1.0)
    return np.asarray(clipped / clipped.sum(1, keepdims=True))


def log_normal(values: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Return log N(values; mean, std²) without the constant term, summed over the last axis."""
    return np.asarray((-0.5 * np.square((values - mean) / std) - np.log(std)).sum(-1))


@dataclass(frozen=True, eq=False)
class PolicyWeights:
    """The cumulative importance weights of one policy, up to the last step with enough effective episodes."""

    weights: np.ndarray  # [episodes, steps]: Π of the ratios up to each step; constant after an episode's end
    effective_episodes: float  # effective sample size at the last step
    compared: float  # fraction of the discounted horizon that the steps cover
    silent_because: str | None

    @classmethod
    def of(cls, evidence: Evidence, trajectories: Trajectories, log_ratios: np.ndarray) -> PolicyWeights:
        """Accumulate the ratios, and keep the steps with enough effective episodes."""
        cumulative = np.where(trajectories.exists, log_ratios[trajectories.rows], 0.0).cumsum(1)
        largest = cumulative.max(0)  # a factor per step does not change normalized weights
        weights = np.exp(cumulative - np.where(np.isfinite(largest), largest, 0.0))
        effective = [effective_size(column) for column in weights.T]
        is_enough = np.logical_and.accumulate(np.asarray(effective) >= MIN_EFFECTIVE_EPISODES)
        used = int(is_enough.sum())
        compared, reason = 1 - evidence.options.discount**used, None
        if used and _covers_choices(evidence, used):
            compared = 1.0
        if compared < MIN_COMPARED:
            steps = "step" if used == 0 else "steps"
            reason = (
                f"after {used + 1} {steps}, its effective sample size is below {MIN_EFFECTIVE_EPISODES:.0f} "
                f"(of {len(weights)} episodes)"
            )
        return cls(weights[:, :used], effective[max(used - 1, 0)], compared, reason)


def _covers_choices(evidence: Evidence, steps: int) -> bool:
    """Return whether actions are discrete and every episode ends with a terminal within this number of steps.

    Nothing is then left to extrapolate. A log of one decision per episode is the most common case.
    """
    data, starts = evidence.dataset, evidence.episode_starts
    stops = np.append(starts[1:], len(data))
    is_covered = int((stops - starts).max()) <= steps and bool(data.terminals[stops - 1].all())
    return data.action_space is not None and is_covered


class WeightedDifference(NamedTuple):
    """A self-normalized estimate and its bootstrap error."""

    difference: float
    standard_error: float


def weighted_difference(
    weights: np.ndarray, increments: np.ndarray, base: np.ndarray, seed: int = 0
) -> WeightedDifference:
    """Return mean(base) + Σ_t (Σ_i w_it·x_it) / Σ_i w_it and its bootstrap standard error over episodes.

    Args:
        weights: Cumulative weights [episodes, steps].
        increments: The weighted terms x [episodes, steps].
        base: The unweighted terms [episodes].
        seed: Seed of the bootstrap.
    """
    weighted, count = weights * increments, len(weights)

    def estimate(counts: np.ndarray) -> np.ndarray:
        sums = (counts @ weighted) / np.maximum(counts @ weights, 1e-300)
        return np.asarray(sums.sum(1) + counts @ base / count)

    rng, found = np.random.default_rng(seed), list[np.ndarray]()
    for _ in range(RESAMPLES // 20):
        found.append(estimate(rng.multinomial(count, np.full(count, 1 / count), size=20).astype(float)))
    return WeightedDifference(float(estimate(np.ones((1, count)))[0]), float(np.concatenate(found).std()))


@dataclass(frozen=True, eq=False)
class ImportanceSampling:
    """Weighted per-decision importance sampling, minus the logged return of the same episodes."""

    trajectories: Trajectories
    weights: dict[str, PolicyWeights]

    @classmethod
    def of(cls, evidence: Evidence, density: BehaviorDensity, policies: dict[str, Policy]) -> ImportanceSampling:
        """Compute the weights of all policies."""
        data, trajectories = evidence.dataset, Trajectories.of(evidence)
        logged, found = data.scale_actions(data.actions), {}
        for name, policy in policies.items():
            rng = np.random.default_rng(evidence.options.seed)
            actions = data.scale_actions(act_on_rows(policy, data, np.arange(len(data)), rng))
            found[name] = PolicyWeights.of(evidence, trajectories, density.log_ratios(logged, actions))
        return cls(trajectories, found)

    def estimate(self, evidence: Evidence, policies: dict[str, Policy], show: Show) -> list[DifferenceEstimate]:
        """Return one estimate per policy and signal."""
        return [self._estimate(evidence, name, signal) for name in policies for signal in evidence.signals]

    def _estimate(self, evidence: Evidence, name: str, signal: str) -> DifferenceEstimate:
        found = self.weights[name]
        if found.silent_because is not None:
            return DifferenceEstimate.silent(IMPORTANCE_SAMPLING, name, signal, found.silent_because)
        sums = self.discounted(evidence, evidence.signals[signal])[:, : found.weights.shape[1]]
        difference, error = weighted_difference(found.weights, sums, -sums.sum(1))
        difference, error = difference / found.compared, error / found.compared
        error = float(np.hypot(error, (1 - found.compared) * difference))
        effective = found.effective_episodes
        return DifferenceEstimate(IMPORTANCE_SAMPLING, name, signal, difference, error, effective_episodes=effective)

    def discounted(self, evidence: Evidence, values: np.ndarray) -> np.ndarray:
        """Return γ^t·values [episodes, steps], given values per row; 0 after an episode's end."""
        discounts = evidence.options.discount ** np.arange(self.trajectories.rows.shape[1])
        picked = values[self.trajectories.rows].astype(np.float64)
        return np.asarray(np.where(self.trajectories.exists, picked, 0.0) * discounts)

    def doubly_robust(
        self, evidence: Evidence, name: str, signal: str, values: RowValues, controller: RowValues
    ) -> DifferenceEstimate:
        """Return the weighted doubly robust estimate: V(s₀), corrected by weighted errors of Q along the log.

        The controller's return is the logged return, except that at the last row of a truncated episode, V of the
        controller's critics replaces the signal.
        """
        found, data, discount = self.weights[name], evidence.dataset, evidence.options.discount
        if found.silent_because is not None:
            return DifferenceEstimate.silent(DOUBLY_ROBUST, name, signal, found.silent_because)
        signal_values, last = evidence.signals[signal].astype(np.float64), np.zeros(len(data), bool)
        last[np.append(evidence.episode_starts[1:], len(data)) - 1] = True
        is_cut = last & ~data.terminals  # the next state is unknown, so Q is not corrected there
        next_v = np.where(data.terminals | last, 0.0, np.append(values.v[1:], 0.0))
        errors = np.where(is_cut, 0.0, signal_values + discount * next_v - values.q)
        logged = self.discounted(evidence, np.where(is_cut, controller.v, signal_values)).sum(1)
        starts = self.trajectories.rows[:, 0]
        corrections = self.discounted(evidence, errors)[:, : found.weights.shape[1]]
        result = weighted_difference(found.weights, corrections, values.v[starts] - logged)
        return DifferenceEstimate(DOUBLY_ROBUST, name, signal, *result, effective_episodes=found.effective_episodes)


class RowValues(NamedTuple):
    """Values at every row, predicted by critics that were not fitted to it."""

    q: np.ndarray  # [rows]: Q(s, a) of the logged action
    v: np.ndarray  # [rows]: Q(s, π(s))
