"""Measure how far a policy's actions are from the actions logged in similar states."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from aspc.assessment.choice_support import CHOICE_NEIGHBORS, ChoiceSupport, compare_choices, is_far_from_log
from aspc.assessment.device_policy import act_on_rows
from aspc.assessment.trust_measures import ActionDistances, fraction_beyond, nearest_action_distances, nearest_neighbors
from aspc.data import Dataset
from aspc.data.history import stack_dataset
from aspc.errors import AspcError, printable
from aspc.history import NEWEST_ONLY, History
from aspc.policy import Policy
from aspc.text import format_number

NEIGHBORS = 10
SUPPORT_STATES = 2_000  # states at which a policy's actions are compared with the log
MAX_REFERENCES = 50_000  # logged states among which neighbors are searched
# Thresholds on the fraction of states where the policy is farther from the data than 95 % of the logged actions: up to
# the first, the policy stays inside the data; beyond the second, it is outside. Both are rules of thumb; docs/trust.md
# explains the quantity.
FAR_STATES = (0.20, 0.50)


@dataclass(frozen=True, eq=False)
class Support:
    """Distances of a policy's actions and of the logged actions to the nearest action logged in similar states."""

    policy: ActionDistances
    data: ActionDistances
    state_distances: np.ndarray
    """Distance from each state to the farthest of its neighbors."""
    unit: np.ndarray
    """[act]: the distance in units of the logged actions that equals a scaled distance of 1."""
    action_names: tuple[str, ...]
    choices: tuple[ChoiceSupport, ...] = ()
    """The support of each discrete action."""
    is_choice: np.ndarray | None = None
    """[act]: true for the columns of discrete actions; None if all actions are continuous."""
    is_far: np.ndarray | None = None
    """With discrete actions, the states where the policy is far from the log (see `is_far_from_log`)."""

    @property
    def far(self) -> float:
        """Fraction of states where the policy is farther from the data than 95 % of the logged actions.

        With discrete actions, it is the fraction of states where the policy takes options that were logged in no
        similar state, or continuous actions far from those logged with these options.
        """
        if self.is_far is not None:
            return float(self.is_far.mean())
        return fraction_beyond(self.policy.total, self.data.total)

    @property
    def ratio(self) -> float:
        """Median distance of the policy's actions, divided by that of the logged actions; NaN with discrete actions."""
        if self.choices:
            return float("nan")
        return float(np.median(self.policy.total) / max(np.median(self.data.total), 1e-9))

    @property
    def is_outside(self) -> bool:
        """True if the policy acts outside the data in most states."""
        return self.far > FAR_STATES[1]

    def actions(self) -> list[ActionSupport]:
        """Return the distance of each continuous action, in its logged unit, with the farthest from the data first."""
        numbers = np.arange(len(self.unit)) if self.is_choice is None else np.flatnonzero(~self.is_choice)
        rows = [
            ActionSupport(
                self.action_names[d] if self.action_names else f"action {d + 1}",
                float(self.policy.by_dimension[:, d].mean() * self.unit[d]),
                float(self.data.by_dimension[:, d].mean() * self.unit[d]),
                fraction_beyond(self.policy.by_dimension[:, d], self.data.by_dimension[:, d]),
            )
            for d in numbers
        ]
        return sorted(rows, key=lambda row: -row.far)

    def describe(self) -> str:
        """Describe the distance from the data in one sentence, with the action dimension where it is largest."""
        if self.choices:
            return self._describe_choices()
        worst = self.actions()[0]
        return (
            f"in {100 * self.far:.0f} % of the states the policy is farther from the log than 95 % of the logged "
            f"actions; on average, {printable(worst.name)} is {format_number(worst.policy, 3)} away from the nearest "
            f"logged action, compared with {format_number(worst.data, 3)} for the logged actions"
        )

    def _describe_choices(self) -> str:
        worst = max(self.choices, key=lambda choice: choice.unlogged)
        and_numbers = " or continuous actions far from those logged with it" if self.actions() else ""
        return (
            f"in {100 * self.far:.0f} % of the states the policy takes an option that was logged in none of the "
            f"{CHOICE_NEIGHBORS} most similar states{and_numbers}; {printable(worst.name)} alone does so in "
            f"{100 * worst.unlogged:.0f} %, compared with {100 * worst.unlogged_data:.0f} % for the logged options"
        )


@dataclass(frozen=True)
class ActionSupport:
    """The mean distance to the nearest logged action in one action dimension, in the logged actions' units."""

    name: str
    policy: float
    data: float
    far: float
    """Fraction of states where the policy is farther away than 95 % of the logged actions, in this dimension."""


@dataclass(frozen=True, eq=False)
class LoggedNeighbors:
    """Rows of a log with the actions logged in similar states, as a reference for any policy."""

    dataset: Dataset
    rows: np.ndarray
    neighbors: np.ndarray
    """[rows, neighbors, act]: actions scaled to [-1, 1]."""
    state_distances: np.ndarray

    @classmethod
    def of(
        cls, data: Dataset, rows: np.ndarray | None = None, seed: int = 0, history: History = NEWEST_ONLY
    ) -> LoggedNeighbors:
        """Find the neighbors of the given rows, or of random rows by default.

        Args:
            data: The log.
            rows: The rows.
            seed: Seed of the random rows.
            history: The history that forms a state.

        Raises:
            AspcError: If the dataset has a single row.
        """
        if len(data) < 2:
            raise AspcError("Finding similar states requires at least two rows of data; pass more data.")
        if rows is None:
            rng = np.random.default_rng(seed)
            rows = np.sort(rng.choice(len(data), min(SUPPORT_STATES, len(data)), replace=False))
        rng = np.random.default_rng(1)
        references = np.sort(rng.choice(len(data), min(MAX_REFERENCES, len(data)), replace=False))
        states = stack_dataset(data, history).observations
        scale = states.std(0, dtype=np.float64) + 1e-6
        queries, points = (states[chosen] / scale for chosen in (rows, references))
        count = NEIGHBORS if data.action_space is None else CHOICE_NEIGHBORS
        found, distances = nearest_neighbors(queries, points, count, ids=(rows, references))
        return cls(data, rows, data.scale_actions(data.actions[references])[found], distances[:, -1])

    def measure(self, actions: np.ndarray) -> Support:
        """Return the support of a policy that takes these actions [rows, act], scaled to [-1, 1]."""
        data = self.dataset
        logged, space = data.scale_actions(data.actions[self.rows]), data.action_space
        support = Support(
            nearest_action_distances(actions, self.neighbors),
            nearest_action_distances(logged, self.neighbors),
            self.state_distances,
            (data.action_high - data.action_low) / 2,
            data.action_names,
        )
        if space is None:
            return support
        return replace(
            support,
            choices=compare_choices(space, actions, logged, self.neighbors),
            is_choice=space.is_choice,
            is_far=is_far_from_log(space, actions, logged, self.neighbors),
        )

    def measure_policy(self, policy: Policy, seed: int = 0) -> Support:
        """Return the support of a policy; a stochastic policy samples its actions with this seed."""
        actions = act_on_rows(policy, self.dataset, self.rows, np.random.default_rng(seed))
        return self.measure(self.dataset.scale_actions(actions))
