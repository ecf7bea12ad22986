"""Rollouts in an ensemble of learned dynamics models, truncated where the models disagree.

From a state and an action, each model predicts the state change, the signals (reward and KPIs) and the probability of
termination. The policy and the logged controller (its fitted density) start in the same logged states and use the same
model and noise. A pair of rollouts is compared until the ensemble disagreement of either one exceeds its 99.9th
percentile on the logged rows, so no prediction outside the data is used. The difference is divided by c, the compared
fraction of the discounted horizon, to scale it to the full horizon. The uncompared part, (1 − c) of the scaled
difference, is added to the uncertainty, as is the models' error for the logged controller. A state is an observation,
with its history if a policy uses one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from aspc.assessment.device_policy import logged_memory, step_on_device
from aspc.assessment.evidence import MIN_COMPARED, DifferenceEstimate, Evidence, Show
from aspc.assessment.importance import BehaviorDensity, horizon
from aspc.assessment.regression import Regression, apply, fit_regression
from aspc.data.history import push_frame
from aspc.networks import Ensemble
from aspc.policy import Policy

DYNAMICS_MODEL = "dynamics models"
TRUSTED_QUANTILE = 0.999  # quantile of the disagreement at logged rows up to which predictions are trusted
RANGE_MARGIN = 0.1  # maximum distance of simulated states from the logged range, as a fraction of the range


class Dynamics(NamedTuple):
    """Fitted dynamics models as arrays, for use in compiled code."""

    networks: Ensemble
    inputs: tuple[Array, Array]  # mean and standard deviation [state + act]
    targets: tuple[Array, Array]  # mean and standard deviation [obs + signals + 1]
    noise: Float[Array, "obs"]  # standard deviation of the one-step prediction error
    low: Float[Array, "obs"]  # range of simulated states
    high: Float[Array, "obs"]


class Simulated(NamedTuple):
    """The result of one simulated step."""

    next_observations: Float[Array, "rows obs"]
    signals: Float[Array, "rows signals"]
    survival: Float[Array, "rows"]  # probability that the episode does not end
    disagreement: Float[Array, "rows"]


@partial(jax.jit, static_argnames="signals")
def simulate_step(
    dynamics: Dynamics,
    members: Int[Array, "rows"],
    states: Float[Array, "rows state"],
    actions: Float[Array, "rows act"],
    noise: Float[Array, "rows obs"],
    *,
    signals: int,
) -> Simulated:
    """Advance each row with the model that `members` selects; the disagreement is measured over all models.

    A state begins with its newest observation.
    """
    inputs = (jnp.concatenate([states, actions], 1) - dynamics.inputs[0]) / dynamics.inputs[1]
    standardized = apply(dynamics.networks, inputs)  # [members, rows, out]
    own = standardized[members, jnp.arange(len(members))] * dynamics.targets[1] + dynamics.targets[0]
    size = noise.shape[1]
    moved = jnp.clip(states[:, :size] + own[:, :size] + dynamics.noise * noise, dynamics.low, dynamics.high)
    survival = 1 - jnp.clip(own[:, size + signals], 0, 1)
    spread = jnp.sqrt(jnp.square(standardized.std(0)).mean(1))
    return Simulated(moved, own[:, size : size + signals], survival, spread)


@dataclass(frozen=True, eq=False)
class ModelEstimator:
    """An estimator of differences between policies and the logged controller that simulates both in learned models."""

    density: BehaviorDensity

    def estimate(self, evidence: Evidence, policies: dict[str, Policy], show: Show) -> list[DifferenceEstimate]:
        """Fit the models, simulate all policies, and return one estimate per policy and signal."""
        models, trusted = fit_dynamics(evidence, show)
        rollouts = self._simulate(evidence, models, trusted, policies, show)
        found = []
        for i, signal in enumerate(evidence.signals):
            reason = evidence.reason_to_distrust(signal, float(rollouts.controller[i]))
            bias = evidence.controller_error(signal, float(rollouts.controller[i]))
            for p, name in enumerate(policies):
                if reason is None and rollouts.compared[p] < MIN_COMPARED:
                    shown = f"{100 * rollouts.compared[p]:.0f} % of the discounted horizon"
                    found.append(
                        DifferenceEstimate.silent(
                            DYNAMICS_MODEL, name, signal, f"its models agree over only {shown}, less than half"
                        )
                    )
                elif reason is not None:
                    found.append(DifferenceEstimate.silent(DYNAMICS_MODEL, name, signal, reason))
                else:
                    fraction = rollouts.compared[p]
                    values = rollouts.differences[p, i] / fraction
                    missing = (1 - fraction) * abs(float(values.mean()))
                    error = float(np.hypot(missing, bias))
                    groups = rollouts.groups
                    found.append(DifferenceEstimate.from_members(DYNAMICS_MODEL, name, signal, values, groups, error))
        return found

    def _simulate(
        self, evidence: Evidence, models: Dynamics, trusted: float, policies: dict[str, Policy], show: Show
    ) -> Rollouts:
        """Roll out the controller and all policies from the same states with the same noise."""
        options, data = evidence.options, evidence.dataset
        rng = np.random.default_rng(options.seed)
        chosen = np.unique(np.linspace(0, len(evidence.states.rows) - 1, options.rollouts).astype(int))
        start_rows = evidence.states.rows[chosen]
        starts = evidence.stacked.observations[start_rows]
        members, copies = len(evidence.halves), 1 + len(policies)
        memories = [np.tile(logged_memory(p, data, start_rows), (members, 1)) for p in policies.values()]
        shape, size = (copies, members, len(chosen)), data.observation_size
        states = np.broadcast_to(starts, (*shape, starts.shape[1])).reshape(-1, starts.shape[1])
        member_of_row = jnp.asarray(np.broadcast_to(np.arange(members)[:, None], shape).reshape(-1))
        survival, agreed = np.ones(shape), np.ones(shape, bool)
        sums = np.zeros((len(evidence.signals), *shape))
        controller = np.zeros(len(evidence.signals))
        compared, steps = np.zeros(shape), horizon(options.discount)
        for step in range(steps):
            actions = self._act(evidence, policies, states.reshape(copies, -1, starts.shape[1]), memories, rng)
            actions = actions.reshape(-1, data.action_size)
            noise = np.broadcast_to(rng.standard_normal((1, *shape[1:], size)), (*shape, size))
            result = simulate_step(
                models,
                member_of_row,
                jnp.asarray(states),
                jnp.asarray(actions),
                jnp.asarray(noise.reshape(-1, size), jnp.float32),
                signals=len(evidence.signals),
            )
            agreed &= (np.asarray(result.disagreement) <= trusted).reshape(shape)
            both = agreed & agreed[:1]
            weight = options.discount**step
            signals = np.moveaxis(np.asarray(result.signals, np.float64).reshape(*shape, -1), -1, 0) * survival
            controller += weight * signals[:, 0].mean((1, 2))
            sums += weight * both * (signals - signals[:, :1])
            compared += weight * both
            survival = survival * np.asarray(result.survival).reshape(shape)
            states = push_frame(states, evidence.history, np.asarray(result.next_observations), actions)
            show(options.model_steps + step * options.model_steps // steps, "simulated rollouts")
        fraction = compared[1:].mean((1, 2)) * (1 - options.discount)
        groups = np.unique(evidence.states.groups[chosen], return_inverse=True)[1]
        return Rollouts(np.moveaxis(sums[:, 1:], 0, 1), fraction, controller, groups)

    def _act(
        self,
        evidence: Evidence,
        policies: dict[str, Policy],
        states: np.ndarray,
        memories: list[np.ndarray],
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Return actions [copies, rows, act] in [-1, 1]: samples of the controller's density, then policies' actions.

        The policies' `memories` are updated in place.
        """
        mean = self.density.mean.predict(states[0]).mean(0)
        drawn = np.clip(mean + self.density.std * rng.standard_normal(mean.shape), -1, 1)
        found = [drawn.astype(np.float32)]
        newest = states[1:, :, : evidence.dataset.observation_size]
        for i, (policy, seen) in enumerate(zip(policies.values(), newest, strict=True)):
            actions, memories[i] = step_on_device(policy, seen, memories[i], rng)
            found.append(evidence.dataset.scale_actions(actions))
        return np.stack(found)


class Rollouts(NamedTuple):
    """The results of simulated rollouts."""

    differences: np.ndarray  # [policies, signals, members, states]: policy minus controller, over the compared steps
    compared: np.ndarray  # [policies]: compared fraction of the discounted horizon
    controller: np.ndarray  # [signals]: the controller's mean discounted sum over the full horizon
    groups: np.ndarray  # [states]: the episode of each start state


def fit_dynamics(evidence: Evidence, show: Show) -> tuple[Dynamics, float]:
    """Fit one model per half of the episodes; return the models and the largest trusted disagreement."""
    data, options = evidence.dataset, evidence.options
    transitions, rows = evidence.stacked.transitions(discount=options.discount), data.transition_rows()[0]
    inputs = np.concatenate([transitions.observations, transitions.actions], 1)
    ends, size = transitions.terminals[:, None], data.observation_size
    moves = np.where(ends > 0, 0.0, transitions.next_observations[:, :size] - transitions.observations[:, :size])
    columns = [moves, *(column[rows, None] for column in evidence.signals.values()), ends]
    targets = np.concatenate(columns, 1).astype(np.float32)
    fitted: Regression = fit_regression(
        inputs,
        targets,
        evidence.row_weights(rows),
        steps=options.model_steps,
        batch_size=options.batch_size,
        hidden_dim=options.hidden_dim,
        learning_rate=options.learning_rate,
        seed=options.seed + 1,
        show=lambda step: show(step, "dynamics models"),
    )
    checked = np.unique(np.linspace(0, len(inputs) - 1, 50_000).astype(int))
    predicted = fitted.predict(inputs[checked])
    is_other = ~evidence.halves[:, evidence.row_groups[rows[checked]]]
    errors = np.where(is_other[..., None], np.square(predicted - targets[checked]), 0).sum(0) / is_other.sum(0)[:, None]
    spread = np.sqrt(np.square(predicted.std(0) / fitted.targets[1]).mean(1))
    low, high = data.observations.min(0), data.observations.max(0)
    slack = RANGE_MARGIN * (high - low)
    float32 = partial(jnp.asarray, dtype=jnp.float32)
    models = Dynamics(
        fitted.networks,
        (float32(fitted.inputs[0]), float32(fitted.inputs[1])),
        (float32(fitted.targets[0]), float32(fitted.targets[1])),
        float32(np.sqrt(errors.mean(0))[:size]),
        float32(low - slack),
        float32(high + slack),
    )
    return models, float(np.quantile(spread, TRUSTED_QUANTILE))
