"""Compare the options that a policy takes with those logged in similar states.

There is no distance between options: an option was logged in similar states or it was not. If it was not, estimates of
its value are extrapolated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aspc.action_space import ActionSpace
from aspc.errors import printable
from aspc.text import join_limited

CHOICE_NEIGHBORS = 50  # similar states; an option with a probability of 6 % occurs among them in 95 % of all cases
MAX_SHOWN = 6


@dataclass(frozen=True)
class ChoiceSupport:
    """The frequencies of the options of one discrete action, under the policy and in the log."""

    name: str
    policy: dict[str, float]
    """Fraction of states in which the policy takes each option."""
    data: dict[str, float]
    """Fraction of states in which each option was logged."""
    agreement: float
    """Fraction of states in which the policy takes the logged option."""
    unlogged: float
    """Fraction of states in which the policy's option was logged in none of the similar states."""
    unlogged_data: float
    """The same fraction for the logged options."""

    def describe(self) -> str:
        """Return a description in one clause."""
        options = [
            f"{printable(option)} {100 * share:.0f} % ({100 * self.data[option]:.0f} % in the log)"
            for option, share in sorted(self.policy.items(), key=lambda pair: -pair[1])
        ]
        return (
            f"{printable(self.name)}: {join_limited(options, MAX_SHOWN)}; the policy takes the logged option in "
            f"{100 * self.agreement:.0f} % of the states"
        )


def compare_choices(
    space: ActionSpace, actions: np.ndarray, logged: np.ndarray, neighbors: np.ndarray
) -> tuple[ChoiceSupport, ...]:
    """Compare each discrete action of a policy with the log.

    Args:
        space: The components of the action.
        actions: The policy's actions [Q, act] in [-1, 1].
        logged: The logged actions in the same states.
        neighbors: The actions logged in similar states [Q, k, act].
    """
    found = []
    for factor, columns in space.blocks():
        if factor.choices:
            policy, data, similar = (array[..., columns] > 0 for array in (actions, logged, neighbors))
            found.append(
                ChoiceSupport(
                    factor.name,
                    dict(zip(factor.choices, policy.mean(0).tolist(), strict=True)),
                    dict(zip(factor.choices, data.mean(0).tolist(), strict=True)),
                    float((policy == data).all(1).mean()),
                    float((~_are_equal(policy, similar).any(1)).mean()),
                    float((~_are_equal(data, similar).any(1)).mean()),
                )
            )
    return tuple(found)


def is_far_from_log(
    space: ActionSpace, actions: np.ndarray, logged: np.ndarray, neighbors: np.ndarray, quantile: float = 0.95
) -> np.ndarray:
    """Return, per state, whether the policy's action is far from the log.

    It is far if no similar logged state has the same combination of options, or if its continuous components are too
    far from the nearest ones logged with these options. The limit is a quantile of this distance for logged actions.
    """
    choice = space.is_choice
    equal = _are_equal(actions[:, choice] > 0, neighbors[..., choice] > 0)
    is_new = np.asarray(~equal.any(1))
    if choice.all():
        return is_new
    logged_equal = _are_equal(logged[:, choice] > 0, neighbors[..., choice] > 0)
    distances = _number_distances(actions[:, ~choice], neighbors[..., ~choice], equal)
    of_log = _number_distances(logged[:, ~choice], neighbors[..., ~choice], logged_equal)
    known = of_log[np.isfinite(of_log)]
    limit = np.quantile(known, quantile) if len(known) else np.inf
    return np.asarray(is_new | (distances > limit))


def _are_equal(options: np.ndarray, neighbors: np.ndarray) -> np.ndarray:
    """Return whether each neighbor [Q, k, options] has the same options as its row [Q, options]."""
    return np.asarray((neighbors == options[:, None]).all(-1))


def _number_distances(numbers: np.ndarray, neighbors: np.ndarray, is_usable: np.ndarray) -> np.ndarray:
    """Return the distance [Q] to the nearest usable neighbor [Q, k]; infinite if there is none."""
    apart = np.sqrt(np.square(numbers[:, None] - neighbors).sum(-1))
    return np.asarray(np.where(is_usable, apart, np.inf).min(1))
