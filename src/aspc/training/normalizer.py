"""Observation normalization, fitted to a dataset."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aspc.history import History


class ObservationNormalizer(NamedTuple):
    """The map x ↦ (x − mean) / std, where std is never 0."""

    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def identity(cls, dim: int) -> ObservationNormalizer:
        return cls(np.zeros(dim, np.float32), np.ones(dim, np.float32))

    @classmethod
    def of(cls, observations: np.ndarray) -> ObservationNormalizer:
        """Fit a normalizer to observations: their mean, and their standard deviation plus 1e-3, as in TD3+BC."""
        return cls.from_statistics(observations.mean(0, dtype=np.float64), observations.std(0, dtype=np.float64))

    @classmethod
    def from_statistics(cls, mean: np.ndarray, std: np.ndarray) -> ObservationNormalizer:
        return cls(mean.astype(np.float32), (std + 1e-3).astype(np.float32))

    def stacked(self, history: History, action_size: int) -> ObservationNormalizer:
        """Return the normalizer of stacked observations: this one for every frame, the identity for actions."""
        actions = self.identity(history.size(0, action_size))
        repeated = (np.tile(values, history.observations) for values in self)
        mean, std = (np.concatenate(parts) for parts in zip(repeated, actions, strict=True))
        return ObservationNormalizer(mean, std)

    def without_masks(self, count: int) -> ObservationNormalizer:
        """Return the normalizer with the identity for the last `count` columns, which are action masks."""
        if count == 0:
            return self
        mean, std = self.mean.copy(), self.std.copy()
        mean[-count:], std[-count:] = 0, 1
        return ObservationNormalizer(mean, std)

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        normalized: np.ndarray = ((observations - self.mean) / self.std).astype(np.float32)
        return normalized
