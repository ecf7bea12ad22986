"""Estimates from fitted critics: fitted-Q evaluation, its pessimistic variant, and doubly robust estimates.

The critics of a policy and of the logged behavior share their initial weights, minibatches and halves of the episodes.
Errors common to both cancel in the difference Q_k^π(s₀, π(s₀)) − Q_k^b(s₀, a₀).

The pessimistic variant subtracts, per start state, the standard deviation of that difference over the critics. Each
critic learns from its own targets, so the standard deviation includes the uncertainty about later states. The standard
error includes the change of the difference over the last quarter of the fit, and the error for the logged controller.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from aspc.assessment.device_policy import act_on_rows
from aspc.assessment.evidence import REWARD, DifferenceEstimate, Evidence, Show
from aspc.assessment.fqe import BEHAVIOR, FQE, FittedGroup, FQEState, PackedLogs, fit_in_groups
from aspc.assessment.importance import DOUBLY_ROBUST, ImportanceSampling, RowValues
from aspc.assessment.ranking import find_warning, value_bounds
from aspc.policy import Policy

FITTED_Q, PESSIMISTIC = "FQE", "pessimistic FQE"
ROWS_AT_ONCE = 65_536


class PolicyCritics(NamedTuple):
    """The fitted critics of one policy or of the behavior."""

    name: str
    fqe: FQE
    state: FQEState
    start_values: np.ndarray  # [critics, states]
    history: np.ndarray  # [time]

    @classmethod
    def all_of(cls, group: FittedGroup, logs: PackedLogs) -> list[PolicyCritics]:
        """Return the critics of every policy in a group."""
        values = group.fqe.start_values(logs, group.actions, group.state)
        states = [jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], group.state) for i in range(len(group.names))]
        parts = zip(group.names, states, values, group.history, strict=True)
        return [cls(name, group.fqe, state, start, history) for name, state, start, history in parts]

    def row_values(self, evidence: Evidence, logs: PackedLogs, policy: Policy | None) -> RowValues:
        """Return Q(s, a) and Q(s, π(s)) per row, from critics not fitted on that row; without a policy, π(s) = a."""
        data = evidence.dataset
        logged = data.scale_actions(data.actions)
        actions = logged
        if policy is not None:
            rng = np.random.default_rng(evidence.options.seed)
            actions = data.scale_actions(act_on_rows(policy, data, np.arange(len(data)), rng))
        observations, parts = logs.normalizer(evidence.stacked.observations), []
        for first in range(0, len(data), ROWS_AT_ONCE):
            rows = slice(first, first + ROWS_AT_ONCE)
            at = (jnp.asarray(a[None, rows]) for a in (logged, actions))
            parts.append([self.fqe.values(self.state, jnp.asarray(observations[rows]), a)[0] for a in at])
        q, v = (np.concatenate([np.asarray(p, np.float64) for p in kind], 1) for kind in zip(*parts, strict=True))
        return RowValues(*(evidence.mean_of_others(values) * logs.unit for values in (q, v)))


@dataclass(frozen=True, eq=False)
class CriticEstimators:
    """Fitted-Q evaluation of all policies, and the estimators that use its critics."""

    importance: ImportanceSampling
    vectorize: bool | None = None
    """See `fit_in_groups`."""

    def estimate(self, evidence: Evidence, policies: dict[str, Policy], show: Show) -> list[DifferenceEstimate]:
        """Fit the critics once per signal. Return three estimates per policy for the reward, and two for each KPI."""
        found: list[DifferenceEstimate] = []
        for i, signal in enumerate(evidence.signals):
            progress = _FitProgress(show, i * evidence.options.steps, signal)
            found += self._estimate_signal(evidence, policies, signal, progress)
        return found

    def _estimate_signal(
        self, evidence: Evidence, policies: dict[str, Policy], signal: str, progress: _FitProgress
    ) -> list[DifferenceEstimate]:
        logs = PackedLogs.from_dataset(evidence.dataset_of(signal), evidence.states, evidence.options, evidence.history)
        weights, found = evidence.row_weights(logs.row_numbers), list[DifferenceEstimate]()
        behavior: PolicyCritics | None = None
        cut_values: RowValues | None = None
        for group in fit_in_groups(logs, policies, evidence.options, progress, self.vectorize, weights):
            for critics in PolicyCritics.all_of(group, logs):
                if behavior is None:
                    assert critics.name == BEHAVIOR
                    behavior = critics
                    continue
                reason = _find_problem(evidence, logs, signal, critics, behavior)
                found += _fitted_q(evidence, signal, critics, behavior, reason)
                reason = reason or self.importance.weights[critics.name].silent_because
                if reason is not None:
                    found.append(DifferenceEstimate.silent(DOUBLY_ROBUST, critics.name, signal, reason))
                    continue
                cut_values = cut_values or behavior.row_values(evidence, logs, None)
                values = critics.row_values(evidence, logs, policies[critics.name])
                found.append(self.importance.doubly_robust(evidence, critics.name, signal, values, cut_values))
        return found


def _find_problem(
    evidence: Evidence, logs: PackedLogs, signal: str, critics: PolicyCritics, behavior: PolicyCritics
) -> str | None:
    """Return the reason not to use a policy's critics, or None."""
    bounds = value_bounds(logs.dataset.rewards, bool(logs.dataset.terminals.any()), evidence.options.discount)
    warning = find_warning(critics.history, critics.start_values.mean(1), bounds)
    if warning is not None and warning.startswith("diverged"):
        return f"its critics {warning}"
    return evidence.reason_to_distrust(signal, float(behavior.start_values.mean()))


def _fitted_q(
    evidence: Evidence, signal: str, critics: PolicyCritics, behavior: PolicyCritics, reason: str | None
) -> list[DifferenceEstimate]:
    """Return the plain estimate and, for the reward, the pessimistic one.

    For a KPI, neither direction is pessimistic.
    """
    kinds = (FITTED_Q, PESSIMISTIC) if signal == REWARD else (FITTED_Q,)
    if reason is not None:
        return [DifferenceEstimate.silent(kind, critics.name, signal, reason) for kind in kinds]
    differences = critics.start_values - behavior.start_values
    history = critics.history - behavior.history
    unsettled = abs(float(history[-1] - history[int(0.75 * (len(history) - 1))]))
    error = float(np.hypot(unsettled, evidence.controller_error(signal, float(behavior.start_values.mean()))))
    groups = evidence.states.groups
    plain = DifferenceEstimate.from_members(FITTED_Q, critics.name, signal, differences, groups, error)
    lowered = float((differences.mean(0) - differences.std(0, ddof=1)).mean())
    return [plain, replace(plain, estimator=PESSIMISTIC, difference=lowered, members=())][: len(kinds)]


class _FitProgress:
    """An adapter from the progress reports of fitted-Q evaluation to `Show`."""

    def __init__(self, show: Show, first_step: int, signal: str) -> None:
        self._show, self._first_step, self._part = show, first_step, f"critics of {signal}"

    def show(self, step: int, **fields: Any) -> None:
        self._show(self._first_step + step, self._part)
