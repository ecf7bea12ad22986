"""A dataset as one packed table of float32 rows on the device, so that a minibatch is a single gather."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Array

from aspc.algorithms.interface import Batch
from aspc.data.dataset import Transitions
from aspc.data.row_layout import RowLayout
from aspc.training.normalizer import ObservationNormalizer


class Layout(NamedTuple):
    """The columns of a packed row: [observation | action | reward | mask | next observation | next action].

    Next actions are included only for algorithms that use them, such as ReBRAC.
    """

    obs_dim: int
    act_dim: int
    next_actions: bool = False

    @property
    def rows(self) -> RowLayout:
        """The fields of a packed row, in order."""
        fields: tuple[tuple[str, int | None], ...] = (
            ("observations", self.obs_dim),
            ("actions", self.act_dim),
            ("rewards", None),
            ("masks", None),
            ("next_observations", self.obs_dim),
        )
        return RowLayout((*fields, ("next_actions", self.act_dim)) if self.next_actions else fields)

    @property
    def width(self) -> int:
        return self.rows.width

    def unpack(self, rows: Array) -> Batch:
        """Return packed rows [..., width] as a batch with the same leading axes."""
        fields = self.rows.unpack(rows)
        return Batch(**fields) if self.next_actions else Batch(**fields, next_actions=None)


def pack(transitions: Transitions, layout: Layout, normalizer: ObservationNormalizer, discount: float) -> np.ndarray:
    """Return transitions as packed rows [N, width]."""
    # Algorithms multiply by γ themselves, and n-step rows bootstrap with γ^k, so masks include γ^k / γ.
    relative_discounts = (
        transitions.discounts / np.float32(discount) if discount else np.ones_like(transitions.discounts)
    )
    masks = (1 - transitions.terminals) * relative_discounts
    return layout.rows.pack(
        {
            "observations": normalizer(transitions.observations),
            "actions": transitions.actions,
            "rewards": transitions.rewards,
            "masks": masks,
            "next_observations": normalizer(transitions.next_observations),
            "next_actions": transitions.next_actions,
        }
    )
