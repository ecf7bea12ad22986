"""The dataset as one packed table of float32 rows on the device: a minibatch is a single gather."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array

from aspc.algorithms.interface import Batch


class Layout(NamedTuple):
    """Which columns of a packed row are which: [observation | action | reward | mask | next observation | next action].

    Only ReBRAC-like algorithms need next actions; the others leave them out.
    """

    obs_dim: int
    act_dim: int
    next_actions: bool = False

    @property
    def width(self) -> int:
        return 2 * self.obs_dim + self.act_dim * (2 if self.next_actions else 1) + 2

    def unpack(self, rows: Array) -> Batch:
        """Packed rows [..., width] → a batch with the same leading axes."""
        obs, act = self.obs_dim, self.act_dim
        ends = [obs, obs + act, obs + act + 1, obs + act + 2, 2 * obs + act + 2, self.width]
        return Batch(
            observations=rows[..., : ends[0]],
            actions=rows[..., ends[0] : ends[1]],
            rewards=rows[..., ends[1]],
            masks=rows[..., ends[2]],
            next_observations=rows[..., ends[3] : ends[4]],
            next_actions=rows[..., ends[4] : ends[5]] if self.next_actions else None,
        )


class Normaliser(NamedTuple):
    """x ↦ (x − mean) / std, with std already made safe."""

    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def identity(cls, dim: int) -> Normaliser:
        return cls(np.zeros(dim, np.float32), np.ones(dim, np.float32))

    @classmethod
    def of(cls, observations: np.ndarray) -> Normaliser:
        """The dataset's mean and standard deviation + 1e-3, as TD3+BC has it."""
        return cls.from_statistics(observations.mean(0, dtype=np.float64), observations.std(0, dtype=np.float64))

    @classmethod
    def from_statistics(cls, mean: np.ndarray, std: np.ndarray) -> Normaliser:
        return cls(mean.astype(np.float32), (std + 1e-3).astype(np.float32))

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        return ((observations - self.mean) / self.std).astype(np.float32)


def pack(transitions: Any, layout: Layout, normaliser: Normaliser, discount: float) -> np.ndarray:
    """Transitions (as `Dataset.transitions` gives them) → packed rows [N, width]."""
    # One-step rows bootstrap with γ, which algorithms multiply by themselves; n-step rows with γ^k.
    shares = transitions.discounts / np.float32(discount) if discount else np.ones_like(transitions.discounts)
    masks = (1 - transitions.terminals) * shares
    columns = [
        normaliser(transitions.observations),
        transitions.actions,
        transitions.rewards[:, None],
        masks[:, None],
        normaliser(transitions.next_observations),
    ]
    if layout.next_actions:
        columns.append(transitions.next_actions)
    return np.concatenate(columns, 1, dtype=np.float32)
