"""Logged datasets: validated, kept as NumPy arrays on the host, and paired into transitions for training. This module
has more than 400 lines because it documents all fields and options of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from aspc import envs, tasks
from aspc.action_space import ActionSpace
from aspc.data import action_choices, validation
from aspc.data.action_choices import ChoiceOptions
from aspc.data.episode_arrays import episode_arrays
from aspc.data.frames import frame_names
from aspc.errors import AspcError

SPLIT_SEGMENTS = 20  # `Dataset.split` cuts a log of a single episode into this many segments


class Transitions(NamedTuple):
    """Arrays of M transitions for training, with actions rescaled to [-1, 1].

    A bootstrapped target is `rewards + discounts * (1 - terminals) * value(next_observations)`.
    With n-step returns, `rewards` are discounted sums over k steps and `discounts` is discount^k.
    """

    observations: np.ndarray  # [M, obs] float32
    actions: np.ndarray  # [M, act] float32 in [-1, 1]
    rewards: np.ndarray  # [M] float32
    next_observations: np.ndarray  # [M, obs] float32; undefined where terminals is 1
    terminals: np.ndarray  # [M] float32, 1 where no bootstrapping is allowed
    next_actions: np.ndarray  # [M, act] float32; the next logged action, or the row's action if there is none
    discounts: np.ndarray  # [M] float32


@dataclass(frozen=True, eq=False)
class Dataset:
    """A validated log: rows in time order, one episode after another.

    ```
    row                   0    1    2    3    4    5 ...
    observations          s0   s1   s2   s0'  s1'  s0''     what the agent observed
    actions               a0   a1   a2   a0'  a1'  a0''     what it did, in the user's units
    rewards               r0   r1   r2   r0'  r1'  r0''     what it received
    terminals             .    .    1    .    .    .        the task has ended: no bootstrapping
    timeouts              .    .    .    .    1    .        the episode was cut: bootstrapping continues
    ```
    """

    observations: np.ndarray  # [N, obs] float32
    actions: np.ndarray  # [N, act] float32, in the user's units, clipped into the bounds; one column per option
    rewards: np.ndarray  # [N] float32
    terminals: np.ndarray  # [N] bool
    timeouts: np.ndarray  # [N] bool: episode ends that are not terminals
    next_observations: np.ndarray | None  # [N, obs] float32 if they were logged
    action_low: np.ndarray  # [act] float32
    action_high: np.ndarray  # [act] float32
    name: str
    env: str | None = None  # a name for `aspc.envs.make_env`, if there is an environment
    ref_min: float | None = None  # the returns that score 0 and 100
    ref_max: float | None = None
    notes: tuple[str, ...] = ()  # warnings and notes from validation
    observation_names: tuple[str, ...] = ()  # column names of the log
    action_names: tuple[str, ...] = ()
    bounds_source: str = ""  # source of the action bounds, as text
    time: str = ""  # the time column, its span and interval, as text
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)  # one-hot categories by log column
    kpis: np.ndarray | None = None  # [N, kpis] float32: columns that are kept, but not used for training
    kpi_names: tuple[str, ...] = ()
    action_space: ActionSpace | None = None  # the options of categorical actions; None if all actions are continuous

    @classmethod
    def from_arrays(
        cls,
        observations: ArrayLike,
        actions: ArrayLike,
        rewards: ArrayLike,
        terminals: ArrayLike,
        timeouts: ArrayLike | None = None,
        next_observations: ArrayLike | None = None,
        *,
        action_low: ArrayLike | None = None,
        action_high: ArrayLike | None = None,
        name: str = "arrays",
        env: str | None = None,
        ref_min: float | None = None,
        ref_max: float | None = None,
        max_episode_steps: int | None = None,
        strict: bool = False,
        action_margin: float | None = None,
        observation_names: Sequence[str] = (),
        action_names: Sequence[str] = (),
        kpis: ArrayLike | None = None,
        kpi_names: Sequence[str] = (),
        time: str = "",
        categories: Mapping[str, Sequence[str]] | None = None,
        categorical: str | Sequence[str] = (),
        continuous: str | Sequence[str] = (),
        masks: ArrayLike | None = None,
        mask_names: Sequence[str] = (),
        action_categories: Mapping[str, Sequence[str]] | None = None,
        action_space: ActionSpace | None = None,
    ) -> Dataset:
        """Validate arrays and create a dataset from them.

        Args:
            observations: [N, obs].
            actions: [N, act] continuous actions as floats, or discrete actions as integers, Booleans or text. A
                single discrete action can also have shape [N].
            rewards: [N].
            terminals: [N] flags of rows after which the task has ended.
            timeouts: [N] flags of other episode ends. Without them, episodes also end after `max_episode_steps`.
            next_observations: [N, obs], if they were logged.
            action_low: Lowest action, a scalar or one value per dimension (default: the environment's, else the lowest
                in the data).
            action_high: Highest action, likewise.
            name: Name of the dataset in messages.
            env: Name of the environment; None or "none" for no environment.
            ref_min: The return that scores 0 (default: the environment's).
            ref_max: The return that scores 100.
            max_episode_steps: Step limit of an episode (default: the environment's).
            strict: Raise an error for actions outside the bounds instead of clipping them.
            action_margin: Fraction of the logged range by which bounds from the data are widened on either side
                (default: 0).
            observation_names: Column names of the observations.
            action_names: Column names of the actions.
            kpis: [N, kpis] columns that are kept, but not used for training.
            kpi_names: Column names of the KPIs.
            time: Description of the time column.
            categories: Categories of one-hot observations, by log column.
            categorical: Names or patterns of action columns that are categorical although they hold numbers.
            continuous: Names or patterns of action columns that are continuous although they look categorical.
            masks: [N, masks] flags of the options that are allowed in each row.
            mask_names: Names of the masks, "mask_OPTION" or "mask_ACTION_OPTION" (default: one per option, in order).
            action_categories: For the text columns of a table, the strings that their codes stand for; None for arrays.
            action_space: The space of actions that are already encoded, with one column per option.

        Raises:
            AspcError: The arrays are not a valid dataset.
        """
        env = None if env == "none" else env
        observation_names = observation_names or frame_names(observations)
        action_names = action_names or frame_names(actions)
        options = ChoiceOptions.of(categorical, continuous)
        encoded = (
            action_choices.check_encoded(np.asarray(actions), np.asarray(observations), action_space, name)
            if action_space is not None
            else action_choices.encode_actions(
                actions,
                action_names,
                options=options,
                name=name,
                categories=action_categories,
                env=env,
                masks=masks,
                mask_names=mask_names,
            )
        )
        actions = actions if encoded is None else encoded.actions
        arrays = validation.check_arrays(observations, actions, rewards, terminals, timeouts, next_observations, name)
        if encoded is not None:
            arrays, observation_names = action_choices.add_masks(encoded, arrays, observation_names)
            action_names, action_space = encoded.space.columns, encoded.space
        precision_notes = (
            *validation.precision_notes(arrays["observations"], "observation", observation_names),
            *validation.precision_notes(arrays["actions"], "action", action_names),
            *validation.precision_notes(arrays["rewards"], "reward", ()),
        )
        for key in ("observations", "actions", "rewards", "next_observations"):
            if key in arrays:
                arrays[key] = validation.to_finite_float32(key, arrays[key], name)
        validation.check_sizes(arrays, env, {"observations": observation_names, "actions": action_names}, name)
        bounds = action_choices.bounds_of(
            action_space, arrays["actions"], action_low, action_high, env, name, action_margin
        )
        clipped, clip_notes = validation.clip_actions(arrays["actions"], bounds.low, bounds.high, strict, name)
        ends, end_notes = validation.episode_ends(arrays["terminals"], arrays.get("timeouts"), max_episode_steps, env)
        if env is not None and ref_min is None and ref_max is None:
            ref_min, ref_max = envs.reference_scores(env) or (None, None)
        kind_notes = (
            (
                *validation.integer_action_notes(arrays["actions"]),
                *validation.on_off_notes(arrays["actions"], action_names),
            )
            if encoded is None
            else encoded.notes
        )
        return cls(
            observations=arrays["observations"],
            actions=clipped,
            rewards=arrays["rewards"],
            terminals=arrays["terminals"],
            timeouts=ends,
            next_observations=arrays.get("next_observations"),
            action_low=bounds.low,
            action_high=bounds.high,
            name=name,
            env=env,
            ref_min=ref_min,
            ref_max=ref_max,
            notes=(*bounds.notes, *precision_notes, *kind_notes, *clip_notes, *end_notes),
            observation_names=tuple(observation_names),
            action_names=tuple(action_names),
            bounds_source=bounds.source,
            time=time,
            categories=dict(categories or {}),
            kpis=None if kpis is None else validation.check_kpis(kpis, len(clipped), kpi_names, name),
            kpi_names=tuple(kpi_names),
            action_space=action_space,
        )

    @classmethod
    def from_episodes(cls, episodes: Iterable[Mapping[str, Any]], **options: Any) -> Dataset:
        """Create a dataset from episodes.

        Args:
            episodes: Mappings with `observations`, `actions` and `rewards` (T rows) or common aliases (`obs`, `action`,
                `reward`, …), or data frames with columns as in a file. Next observations can be given as an additional
                row of `observations` (T + 1 rows) or as `next_observations`. `terminals` holds T flags, or one flag for
                the end; without it, episodes end by timeout. If a data frame has a time column, its rows are sorted by
                time, and a gap ends the episode.
            options: Options of `from_arrays`.
        """
        arrays, settings, notes = episode_arrays(episodes, name := options.pop("name", "episodes"))
        return cls.from_arrays(**arrays, **{"name": name, **settings, **options}).with_notes(notes)

    def __len__(self) -> int:
        return len(self.observations)

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}, {len(self):,} rows, observation {self.observation_size}, "
            f"action {self.action_size}, env={self.env!r})"
        )

    @property
    def observation_size(self) -> int:
        """The dimension of an observation."""
        return int(self.observations.shape[1])

    @property
    def action_size(self) -> int:
        """The dimension of an action."""
        return int(self.actions.shape[1])

    @property
    def nbytes(self) -> int:
        """Total size of all arrays in bytes."""
        arrays = (
            *(self.observations, self.actions, self.rewards, self.terminals, self.timeouts),
            *(self.next_observations, self.kpis),
        )
        return sum(array.nbytes for array in arrays if array is not None)

    @property
    def episode_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Start and stop (exclusive) of each episode's rows; the last episode ends with the data."""
        stops = np.flatnonzero(self.terminals | self.timeouts) + 1
        if len(stops) == 0 or stops[-1] != len(self):
            stops = np.append(stops, len(self))
        return np.concatenate([[0], stops[:-1]]), stops

    @property
    def episode_lengths(self) -> np.ndarray:
        """Number of rows per episode."""
        starts, stops = self.episode_bounds
        return np.asarray(stops - starts)

    @property
    def episode_returns(self) -> np.ndarray:
        """Sum of rewards per episode, in float64."""
        return np.add.reduceat(self.rewards.astype(np.float64), self.episode_bounds[0])

    @property
    def complete_episode_returns(self) -> np.ndarray:
        """`episode_returns`, excluding the last episode if it is incomplete and not the only one."""
        returns = self.episode_returns
        is_cut = len(returns) > 1 and not (self.terminals[-1] or self.timeouts[-1])
        return returns[:-1] if is_cut else returns

    @property
    def is_endless(self) -> bool:
        """True if the log is one trajectory without any episode end."""
        return not (self.terminals | self.timeouts).any()

    def normalized_score(self, value: float) -> float | None:
        """Convert a return to D4RL's normalized score, or return None without reference scores."""
        if self.ref_min is None or self.ref_max is None:
            return None
        return tasks.normalize_score(value, self.ref_min, self.ref_max)

    def behavior_return(self) -> float:
        """Return the mean return of the policy that collected the data, over its complete episodes.

        If the log's segments are not episodes of the environment, as in Maze2d, return the mean reward times the
        environment's step limit.
        """
        if self.env is not None and (self.is_endless or envs.is_continuing(self.env)):
            return float(self.rewards.mean(dtype=np.float64)) * envs.horizon(self.env)
        return float(self.complete_episode_returns.mean())

    def behavior_score(self) -> float | None:
        """Return `behavior_return` as D4RL's normalized score, or None without reference scores."""
        return self.normalized_score(self.behavior_return())

    def scale_actions(self, actions: np.ndarray) -> np.ndarray:
        """Rescale actions from the user's units to [-1, 1]."""
        center, half = (self.action_high + self.action_low) / 2, (self.action_high - self.action_low) / 2
        return np.asarray(np.clip((actions - center) / half, -1.0, 1.0), dtype=np.float32)

    def transitions(
        self,
        *,
        n_step: int = 1,
        discount: float = 0.99,
        reward_scale: float = 1.0,
        reward_shift: float = 0.0,
    ) -> Transitions:
        """Pair row i with row i + 1 of the same episode, as in D4RL's Q-learning dataset.

        If an episode ends by timeout or with the data, its last row is dropped unless `next_observations` were logged.
        Terminal rows are always kept. Rewards become `reward * reward_scale + reward_shift`; n-step returns are then
        computed from these rewards and stop at the end of the episode.
        """
        if n_step < 1:
            raise AspcError(f"n_step must be at least 1, not {n_step}.")
        starts, stops = self.episode_bounds
        last = np.repeat(stops - 1, stops - starts)  # the last row of each row's episode
        rows, final = self.transition_rows(n_step)
        if len(rows) == 0:
            raise AspcError(
                f"{self.name}: there are no transitions; an episode needs at least two rows, or next observations."
            )
        rewards = self.rewards.astype(np.float64) * reward_scale + reward_shift
        summed = rewards[rows]
        for k in range(1, n_step):
            inside = rows + k <= final
            if not inside.any():
                break
            summed[inside] += discount**k * rewards[rows[inside] + k]
        following = np.minimum(final + 1, len(self) - 1)
        next_observations = (
            self.observations[following] if self.next_observations is None else self.next_observations[final]
        )
        scaled = self.scale_actions(self.actions)
        return Transitions(
            observations=self.observations[rows],
            actions=scaled[rows],
            rewards=summed.astype(np.float32),
            next_observations=next_observations,
            terminals=self.terminals[final].astype(np.float32),
            next_actions=scaled[np.where(final < last[rows], following, final)],
            discounts=(discount ** (final - rows + 1).astype(np.float64)).astype(np.float32),
        )

    def transition_rows(self, n_step: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return the first row of each transition, and the last row of its n-step return."""
        starts, stops = self.episode_bounds
        last = np.repeat(stops - 1, stops - starts)
        usable_last = last if self.next_observations is not None else last - ~self.terminals[last]
        rows = np.flatnonzero(np.arange(len(self)) <= usable_last)
        return rows, np.minimum(rows + (n_step - 1), usable_last[rows])

    def with_notes(self, notes: Iterable[str]) -> Dataset:
        """Return the dataset with additional notes."""
        return replace(self, notes=(*self.notes, *notes))

    def select(self, rows: np.ndarray, *, name: str | None = None) -> Dataset:
        """Return the dataset restricted to the given rows, in order; a gap between rows ends the episode by timeout."""
        rows = np.asarray(rows)
        gap = np.append(np.diff(rows) != 1, rows[-1] != len(self) - 1)
        return replace(
            self,
            observations=self.observations[rows],
            actions=self.actions[rows],
            rewards=self.rewards[rows],
            terminals=self.terminals[rows],
            timeouts=self.timeouts[rows] | (gap & ~self.terminals[rows]),
            next_observations=None if self.next_observations is None else self.next_observations[rows],
            kpis=None if self.kpis is None else self.kpis[rows],
            name=self.name if name is None else name,
        )

    def split(self, holdout: float, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Split the episodes into a training set and a held-out set.

        A log of a single episode is first cut into `SPLIT_SEGMENTS` segments.

        Args:
            holdout: Fraction of the episodes in the held-out set.
            seed: Seed of the random choice of episodes.
        """
        if not 0.0 < holdout < 1.0:
            raise AspcError(f"The fraction of episodes to hold out must be between 0 and 1, not {holdout}.")
        starts, stops = self.episode_bounds
        if len(starts) == 1:
            cuts = np.unique(np.linspace(0, len(self), SPLIT_SEGMENTS + 1).astype(int))
            starts, stops = cuts[:-1], cuts[1:]
        if len(starts) < 2:
            raise AspcError(
                f"{self.name}: a dataset with a single row cannot be split. A held-out set requires at least two rows."
            )
        order = np.random.default_rng(seed).permutation(len(starts))
        count = min(max(1, round(holdout * len(starts))), len(starts) - 1)
        is_held_out = np.zeros(len(starts), dtype=bool)
        is_held_out[order[:count]] = True
        mask = np.repeat(is_held_out, stops - starts)
        return (
            self.select(np.flatnonzero(~mask)),
            self.select(np.flatnonzero(mask), name=f"{self.name} (held out)"),
        )
