"""Stack the most recent observations of the episode at each row of a log (see `aspc.history`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from aspc.data.dataset import Dataset, Transitions
from aspc.history import History


@dataclass(frozen=True, eq=False)
class FrameStacker:
    """Consecutive rows of a log, from which stacked observations are gathered. No stack crosses an episode's start."""

    history: History
    observations: np.ndarray  # [rows, obs]
    actions: np.ndarray  # [rows, act] in [-1, 1]
    first: np.ndarray  # [rows]: the first row of each row's episode

    @classmethod
    def of(cls, data: Dataset, history: History) -> FrameStacker:
        """Return a stacker for the rows of a dataset."""
        starts, stops = data.episode_bounds
        actions = data.scale_actions(data.actions) if history.actions else data.actions
        return cls(history, data.observations, actions, np.repeat(starts, stops - starts))

    def at(self, rows: np.ndarray) -> np.ndarray:
        """Return the stacked observations [M, size] at rows [M]."""
        return self._join(self._frames(rows, self.history.observations), self._actions(rows - 1, self.first[rows]))

    def after(self, rows: np.ndarray, following: np.ndarray) -> np.ndarray:
        """Return the stacked observations [M, size] after rows [M], where `following` [M, obs] was observed next."""
        frames = np.concatenate([following[:, None], self._frames(rows, self.history.lags)], 1)
        return self._join(frames, self._actions(rows, self.first[rows]))

    def _frames(self, rows: np.ndarray, count: int) -> np.ndarray:
        """Return the observations [M, count, obs] at rows and before them."""
        return np.asarray(self.observations[np.maximum(rows[:, None] - np.arange(count), self.first[rows][:, None])])

    def _actions(self, rows: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Return the actions [M, lags, act] at rows and before them; 0 before the rows `first`."""
        lagged = rows[:, None] - np.arange(self.history.lags if self.history.actions else 0)
        exists = lagged >= first[:, None]
        return np.where(exists[..., None], self.actions[np.where(exists, lagged, 0)], np.float32(0))

    @staticmethod
    def _join(frames: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return np.concatenate([part.reshape(len(part), -1) for part in (frames, actions)], 1)

    def stack(self, transitions: Transitions, rows: np.ndarray, final: np.ndarray) -> Transitions:
        """Return transitions with stacked observations.

        Args:
            transitions: The transitions, with single observations.
            rows: The row where each transition begins.
            final: The last row of its n-step return.
        """
        return transitions._replace(
            observations=self.at(rows), next_observations=self.after(final, transitions.next_observations)
        )


@dataclass(frozen=True, eq=False)
class BlockStacker:
    """A stacker for blocks of consecutive transitions that were read together with the rows before and after them.

    Args:
        history: The history.
        starts: The first row of each episode in the file.
        rows: Rows in the file. Blocks wrap around at its end.
        n_step: Number of steps in the n-step returns.
        block_rows: Rows per block.
    """

    history: History
    starts: np.ndarray
    rows: int
    n_step: int
    block_rows: int

    @property
    def before(self) -> int:
        """Number of rows to read before each block."""
        return self.history.lags

    @property
    def read_rows(self) -> int:
        """Number of rows to read per block."""
        return self.before + self.block_rows + self.n_step - 1

    def stack(self, read: Transitions, blocks: np.ndarray) -> Transitions:
        """Return the transitions of blocks with stacked observations.

        Args:
            read: `read_rows` transitions per block, beginning `before` rows before its first row.
            blocks: The first row of each block.
        """
        numbers = ((blocks[:, None] + np.arange(self.read_rows) - self.before) % self.rows).reshape(-1)
        episodes = np.searchsorted(self.starts, numbers, side="right") - 1
        last = np.append(self.starts[1:], self.rows)[episodes] - 1
        positions = np.arange(len(numbers))
        final = positions + np.minimum(self.n_step - 1, last - numbers)
        own = slice(self.before, self.before + self.block_rows)
        kept = positions.reshape(len(blocks), -1)[:, own].reshape(-1)
        first = positions - (numbers - self.starts[episodes])
        stacker = FrameStacker(self.history, read.observations, read.actions, first)
        return stacker.stack(Transitions(*(field[kept] for field in read)), kept, final[kept])


def push_frame(stacked: np.ndarray, history: History, following: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Return the stacked observations [M, size] after actions [M, act] in [-1, 1].

    `following` [M, obs] holds the observations after these actions.
    """
    frames = history.observations * following.shape[1]
    parts = [following, stacked[:, : frames - following.shape[1]]]
    if history.actions and history.lags:
        parts += [actions, stacked[:, frames : stacked.shape[1] - actions.shape[1]]]
    return np.concatenate(parts, 1)


def stack_dataset(data: Dataset, history: History) -> Dataset:
    """Return a dataset with stacked, unnamed observations, or the same dataset if the history is one observation."""
    if history.observations == 1:
        return data
    stacker, rows = FrameStacker.of(data, history), np.arange(len(data))
    following = data.next_observations
    return replace(
        data,
        observations=stacker.at(rows),
        next_observations=None if following is None else stacker.after(rows, following),
        observation_names=(),
    )
