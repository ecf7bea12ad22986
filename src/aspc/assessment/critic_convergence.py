"""Convergence of critics, judged by their Bellman residuals and by the logged training metrics.

    δ_k = E[r + γ·(1 − done)·min_j Q_j(s', π(s')) − Q_k(s, a)],      distance_k = δ_k / (1 − γ·E[1 − done])

δ_k is the mean residual of critic k over logged transitions. If every Q moves by x, its target moves by
γ·E[1 − done]·x, so the residual vanishes after a move of distance_k: the mean of Q_k is that far from its fixed point.

Some algorithms have a different fixed point, at which δ_k is not 0 (because of CQL's penalty or IQL's expectile, for
example). The logged mean of Q therefore takes precedence: if it no longer changes, the critics have converged. In very
short runs, the logged mean is not conclusive, because Q changes slowly until the target networks catch up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from aspc.assessment.device_policy import act_after_rows
from aspc.assessment.inspected_policy import InspectedPolicy, NumpyCritics
from aspc.data.history import FrameStacker

LARGE_DISTANCE = 0.5  # relative distance of a critic that has not converged, if the change of Q is unknown
CHANGE_TOLERANCE = 0.05  # relative change of a converged Q over a quarter of training
MIN_STEPS = 1_000  # steps after which the change of Q is conclusive: target networks catch up within about 200
MIN_LOGGED = 2  # logged values needed in each of the last two quarters
MIN_WIDTH = 0.01  # fraction of the possible range below which differences of Q do not matter


class Convergence(NamedTuple):
    """The state of convergence of the critics of one run."""

    mean_q: np.ndarray
    """Mean Q [critics] of logged actions."""
    distances: np.ndarray
    """Change [critics] of each critic's mean Q after which its Bellman residual would vanish."""
    change: float | None
    """Relative change of the logged mean of Q from the third to the last quarter of training; None if unknown."""
    unconverged: list[int]
    """Indices of the critics that have not converged."""

    @property
    def is_falling(self) -> bool:
        """True if Q is above its fixed point in every critic that has not converged."""
        return bool((self.distances[self.unconverged] < 0).all())

    def numbers(self, seed: int) -> dict[str, Any]:
        """Return JSON values; critics are counted from 1, as in messages."""
        critics = [
            {
                "critic": k + 1,
                "mean_q": float(q),
                "fixed_point": float(q + distance),
                "converged": k not in self.unconverged,
            }
            for k, (q, distance) in enumerate(zip(self.mean_q, self.distances, strict=True))
        ]
        return {"seed": seed, "critics": critics, "change_of_q": self.change}


def measure_convergence(
    inspected: InspectedPolicy, critics: NumpyCritics, rewards: np.ndarray, discount: float, unit: float
) -> Convergence | None:
    """Determine which critics have converged; None if no sampled row has a transition.

    Args:
        inspected: The policy and its run.
        critics: The policy's critics.
        rewards: The rewards of all rows of the dataset, as in training.
        discount: Discount factor of the critics.
        unit: Smallest relevant scale of Q, for example the standard deviation of the returns.
    """
    data = inspected.dataset
    usable, _ = data.transition_rows()
    rows = inspected.rows[np.isin(inspected.rows, usable)]
    if len(rows) == 0:
        return None
    following = data.observations[np.minimum(rows + 1, len(data) - 1)]
    if data.next_observations is not None:
        following = data.next_observations[rows]
    actions = act_after_rows(inspected.policy, data, rows, following, np.random.default_rng(0))
    stacker = FrameStacker.of(data, inspected.policy.history)
    masks = 1.0 - data.terminals[rows]
    q = critics(stacker.at(rows), data.scale_actions(data.actions[rows]))
    next_q = critics(stacker.after(rows, following), data.scale_actions(actions))
    distances = distances_to_fixed_point(q, next_q, rewards[rows], masks, discount)
    mean_q = q.mean(1)
    change = _logged_change(inspected)
    return Convergence(mean_q, distances, change, find_unconverged(mean_q, distances, change, unit))


def distances_to_fixed_point(
    q: np.ndarray, next_q: np.ndarray, rewards: np.ndarray, masks: np.ndarray, discount: float
) -> np.ndarray:
    """Return the distance [critics] of the mean of each critic from its fixed point (see the module's docstring).

    Args:
        q: Q [critics, rows] of logged actions.
        next_q: Q [critics, rows] of the policy's actions in the next states.
        rewards: Rewards [rows].
        masks: 0 for terminal rows, else 1.
        discount: Discount factor.
    """
    residuals = (rewards + discount * masks * next_q.min(0) - q).mean(1)
    return np.asarray(residuals / (1 - discount * masks.mean()))


def find_unconverged(mean_q: np.ndarray, distances: np.ndarray, change: float | None, unit: float) -> list[int]:
    """Return the indices of the critics that have not converged.

    Args:
        mean_q: Mean Q [critics].
        distances: Their distances [critics] from the fixed point.
        change: Relative change of the logged mean of Q, if known.
        unit: Smallest relevant scale of Q.
    """
    relative = distances / np.maximum(np.abs(mean_q + distances), unit)
    if change is None:
        return [int(k) for k in np.flatnonzero(~(np.abs(relative) <= LARGE_DISTANCE))]  # NaN has not converged
    if abs(change) <= CHANGE_TOLERANCE:
        return [int(k) for k in np.flatnonzero(~np.isfinite(relative))]
    return [int(k) for k in np.flatnonzero(~(relative * np.sign(change) <= CHANGE_TOLERANCE))]


def relative_change(steps: np.ndarray, values: np.ndarray) -> float | None:
    """Return the change of logged values from the third to the last quarter of the steps; None if unknown.

    It is relative to the largest value of the run, so that slow growth from 0 counts.
    """
    if len(steps) == 0 or steps[-1] < MIN_STEPS:
        return None
    last = values[steps > 0.75 * steps[-1]]
    before = values[(steps > 0.5 * steps[-1]) & (steps <= 0.75 * steps[-1])]
    if min(len(last), len(before)) < MIN_LOGGED:
        return None
    return float((last.mean() - before.mean()) / (np.abs(values).max() or 1.0))


def _logged_change(inspected: InspectedPolicy) -> float | None:
    """Return the relative change of the mean of Q that training logged up to the policy's step."""
    metrics = {} if inspected.trained is None else inspected.trained.run.metrics
    step = inspected.policy.info.get("step")
    if "q_mean" not in metrics or not isinstance(step, int):
        return None
    logged = (metrics["seed"] == inspected.seed) & (metrics["step"] <= step) & np.isfinite(metrics["q_mean"])
    return relative_change(metrics["step"][logged], metrics["q_mean"][logged])


def describe_unconverged(found: Convergence, seed: int) -> str:
    """Return a sentence that names the critics that have not converged and the evidence, or "" if there are none."""
    if not found.unconverged:
        return ""
    numbers = [str(k + 1) for k in found.unconverged]
    names = f"Critic {numbers[0]}" if len(numbers) == 1 else f"Critics {', '.join(numbers[:-1])} and {numbers[-1]}"
    verb = "has" if len(numbers) == 1 else "have"
    now = ", ".join(f"{found.mean_q[k]:.4g}" for k in found.unconverged)
    goal = ", ".join(f"{found.mean_q[k] + found.distances[k]:.4g}" for k in found.unconverged)
    change = (
        "" if found.change is None else f"; Q changed by {100 * found.change:+.0f} % in the last quarter of training"
    )
    return (
        f"{names} of seed {seed} {verb} not converged: Q of logged actions is {now} on average, but the Bellman "
        f"residuals indicate about {goal}{change}. Train longer."
    )
