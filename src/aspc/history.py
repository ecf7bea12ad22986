"""The history that a network sees: the newest observations and optionally the actions between them.

A stacked observation is a row [o_t, o_t−1, …, o_t−N+1] of N frames, newest first, followed by the actions [a_t−1, …,
a_t−N+1] if they are part of the history. Before an episode's start, frames repeat its first observation, and actions
are at the middle of their range (0 after rescaling to [-1, 1]).
"""

from __future__ import annotations

from typing import NamedTuple


class History(NamedTuple):
    """The number of observations that a network sees, and whether it also sees the actions between them."""

    observations: int = 1
    actions: bool = False

    def is_valid(self) -> bool:
        """Return whether the fields have valid types and values."""
        is_count = type(self.observations) is int and self.observations >= 1
        return is_count and type(self.actions) is bool and (self.observations > 1 or not self.actions)

    def describe(self) -> str:
        """Describe the history in words."""
        return f"{self.observations} observations{' and the actions between them' * self.actions}"

    @property
    def lags(self) -> int:
        """Number of earlier observations."""
        return self.observations - 1

    def size(self, observation_size: int, action_size: int) -> int:
        """Return the size of a stacked observation."""
        return self.observations * observation_size + self.lags * action_size * self.actions


NEWEST_ONLY = History()
