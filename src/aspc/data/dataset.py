"""A logged dataset: validated once, kept as NumPy arrays on the host, viewed as transitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from aspc import tasks
from aspc.errors import AspcError

LOOKED_AT = 10_000  # rows that are looked at for lost digits
ROUNDING = 1e-12  # of a number: differences below this are those of float64's arithmetic
BOUND_MARGIN = 0.05  # bounds taken from the data reach beyond it by this share of each dimension's range


class Transitions(NamedTuple):
    """Rows to learn from, all of one length M, actions rescaled to [-1, 1].

    A bootstrapped target is `rewards + discounts * (1 - terminals) * value(next_observations)`.
    With n-step returns `rewards` are discounted sums and `discounts` is discount^k for the k steps summed.
    """

    observations: np.ndarray  # [M, obs] float32
    actions: np.ndarray  # [M, act] float32 in [-1, 1]
    rewards: np.ndarray  # [M] float32
    next_observations: np.ndarray  # [M, obs] float32; of no meaning where terminals is 1
    terminals: np.ndarray  # [M] float32, 1 where nothing follows
    next_actions: np.ndarray  # [M, act] float32; the action logged next, or the row's own where none was
    discounts: np.ndarray  # [M] float32


def _row(index: int, array: np.ndarray) -> str:
    """A row as people count them, from 1: the last of ten is row 10 of 10."""
    return f"row {index + 1:,} of {len(array):,}"


def _finite_float32(key: str, values: np.ndarray, name: str) -> np.ndarray:
    """The values as float32, or an error that says where one is NaN or infinite."""
    with np.errstate(over="ignore"):
        result = np.ascontiguousarray(values, dtype=np.float32)
    with np.errstate(invalid="ignore"):  # a cheap first look: a float64 sum of finite float32 cannot overflow
        total = result.sum(dtype=np.float64)
    if not np.isfinite(total):
        row = int(np.flatnonzero(~np.isfinite(result.reshape(len(result), -1)).all(axis=1))[0])
        raise AspcError(
            f"{name}: {key!r} has a NaN, infinite or too large value in {_row(row, result)}; "
            "repair that row, or remove it and give the rows after it another episode."
        )
    return result


def _numbers(key: str, values: ArrayLike, name: str) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:  # ragged nested lists
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "fiub":
        raise AspcError(f"{name}: {key!r} must hold numbers, not {array.dtype}.")
    return array


def _matrix(key: str, values: ArrayLike, name: str) -> np.ndarray:
    array = _numbers(key, values, name)
    if array.ndim != 2:
        hint = " reshape (N,) to (N, 1)." if array.ndim == 1 else " flatten each row to one vector."
        raise AspcError(f"{name}: {key!r} must have two axes (rows, features), but its shape is {array.shape};{hint}")
    if array.shape[1] == 0:
        raise AspcError(f"{name}: {key!r} has no columns; each row needs at least one number.")
    return array


def _vector(key: str, values: ArrayLike, name: str) -> np.ndarray:
    array = _numbers(key, values, name)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise AspcError(f"{name}: {key!r} must have one number a row, but its shape is {array.shape}.")
    return array


def checked_flags(key: str, values: ArrayLike, name: str) -> np.ndarray:
    """Flags as truth values, or an error that says which is neither 0 nor 1."""
    array = _vector(key, values, name)
    if array.dtype == bool:
        return np.ascontiguousarray(array)
    wrong = np.flatnonzero((array != 0) & (array != 1))
    if len(wrong):
        raise AspcError(f"{name}: {key!r} must be 0 or 1, but {_row(wrong[0], array)} has {array[wrong[0]]}.")
    return array.astype(bool)


def bounds_from_data(actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest action in each dimension, with a margin."""
    low, high = actions.min(axis=0), actions.max(axis=0)
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused
        margin = np.maximum(BOUND_MARGIN * (high - low), 1e-3 * np.maximum(1.0, np.abs(high)))
        return low - margin, high + margin


def _bound(key: str, value: ArrayLike, size: int, name: str) -> np.ndarray:
    try:
        with np.errstate(over="ignore"):  # as above
            return np.broadcast_to(np.asarray(value, dtype=np.float32), (size,)).copy()
    except (ValueError, TypeError) as error:
        raise AspcError(f"{name}: {key} must be one number or {size} numbers, one an action dimension.") from error


def shown_bounds(low: np.ndarray, high: np.ndarray) -> str:
    """Bounds as people read them, the first few where they differ."""
    pairs = [f"[{below:.4g}, {above:.4g}]" for below, above in zip(low, high, strict=True)]
    if len(set(pairs)) == 1:
        return f"{pairs[0]} in every dimension"
    return " ".join(pairs[:8]) + (f" and {len(pairs) - 8} more" if len(pairs) > 8 else "")


def action_bounds(
    actions: np.ndarray, action_low: ArrayLike | None, action_high: ArrayLike | None, env: str | None, name: str
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Per-dimension bounds: the given ones, else the environment's, else the data's with a margin; and notes."""
    size = actions.shape[1]
    notes: tuple[str, ...] = ()
    known: tuple[np.ndarray, np.ndarray] | None = None
    if env is not None and (action_low is None or action_high is None):
        from aspc import envs

        try:
            known = envs.action_bounds(env)
        except AspcError as error:
            notes = (f"the environment {env} could not give action bounds: {error}",)
        if known is not None and len(known[0]) != size:
            raise AspcError(f"{name}: actions have {size} dimensions, but the environment {env} takes {len(known[0])}.")
    low, high = known if known is not None else bounds_from_data(actions)
    low = _bound("action_low", low if action_low is None else action_low, size, name)
    high = _bound("action_high", high if action_high is None else action_high, size, name)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise AspcError(f"{name}: action bounds must be finite, and each low bound below its high bound.")
    missing = [side for side, given in (("low", action_low), ("high", action_high)) if given is None]
    if known is None and missing:
        which = "action bounds" if len(missing) == 2 else f"{missing[0]} action bounds"
        options = " and ".join(f"--action-{side}" for side in missing)
        notes += (f"{which} are guessed from the data ({shown_bounds(low, high)}); state yours with {options}.",)
    return low, high, notes


def _check_sizes(observation: int, action: int, env: str | None, name: str) -> None:
    """An error where the data cannot be of the D4RL environment that it is said to be of."""
    family = None if env is None else tasks.family_of(env.split("?")[0])
    if family is not None:
        facts = tasks.FAMILIES[family]
        if (observation, action) != (facts.observation_size, facts.action_size):
            raise AspcError(
                f"{name}: observations have {observation} and actions {action} numbers, but those of {env} have "
                f"{facts.observation_size} and {facts.action_size}; name another environment, or none."
            )


def _whole_number_note(actions: np.ndarray) -> tuple[str, ...]:
    """Choices that were stored as floats look like this."""
    if not (actions == np.round(actions)).all():
        return ()
    return ("all actions are whole numbers: if they are choices, they are discrete, and this library is not for them.",)


def _lost_digits(values: np.ndarray, what: str, names: Sequence[str]) -> tuple[str, ...]:
    """Large numbers that differ by little, as times do, are one and the same in float32."""
    if values.dtype.itemsize < 4 or values.dtype == np.float32:
        return ()
    first = values.reshape(len(values), -1)[:LOOKED_AT]  # neighbours, which differ the least
    notes = []
    for i, column in enumerate(first.T):
        with np.errstate(over="ignore"):  # what is too large is refused elsewhere
            distinct, left = len(np.unique(column)), len(np.unique(column.astype(np.float32)))
        spread = float(column.max()) - float(column.min())
        if left < distinct / 2 and spread > ROUNDING * abs(float(column.max())):
            which = f"column {names[i]!r}" if names else what if values.ndim == 1 else f"{what} dimension {i}"
            notes.append(
                f"{which} loses its last digits in float32 ({distinct:,} distinct values become {left:,}): "
                "subtract an offset first."
            )
    return tuple(notes)


def _clip_actions(
    actions: np.ndarray, low: np.ndarray, high: np.ndarray, strict: bool, name: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    beyond = ((actions < low) | (actions > high)).any(axis=1)
    count = int(beyond.sum())
    if count == 0:
        return actions, ()
    first = _row(int(beyond.argmax()), actions)
    found = f"{count:,} of {len(actions):,} actions reach beyond the bounds (the first in {first})"
    if strict:
        raise AspcError(f"{name}: {found}; mend them, state other bounds, or leave out strict to clip them.")
    return np.clip(actions, low, high), (f"{found} and were clipped.",)


def timeouts_from_limit(terminals: np.ndarray, limit: int) -> np.ndarray:
    """Episode ends that a step limit implies: the limit-th row after each start that no terminal ended before."""
    timeouts = np.zeros(len(terminals), dtype=bool)
    start = 0
    for stop in (*(np.flatnonzero(terminals) + 1).tolist(), len(terminals)):
        timeouts[start + limit - 1 : stop : limit] = True
        start = stop
    return timeouts & ~terminals


@dataclass(frozen=True, eq=False)
class Dataset:
    """What was logged, checked: rows in time order, episodes one after another.

    ```
    row                   0    1    2    3    4    5 ...
    observations          s0   s1   s2   s0'  s1'  s0''     what the agent saw
    actions               a0   a1   a2   a0'  a1'  a0''     what it did then, in the user's units
    rewards               r0   r1   r2   r0'  r1'  r0''     what it got for it
    terminals             .    .    1    .    .    .        nothing follows: no bootstrapping
    timeouts              .    .    .    .    1    .        the log stops, the world goes on
    ```
    """

    observations: np.ndarray  # [N, obs] float32
    actions: np.ndarray  # [N, act] float32, in the user's units, clipped into the bounds
    rewards: np.ndarray  # [N] float32
    terminals: np.ndarray  # [N] bool
    timeouts: np.ndarray  # [N] bool: episode ends that are not terminals
    next_observations: np.ndarray | None  # [N, obs] float32 if they were logged
    action_low: np.ndarray  # [act] float32
    action_high: np.ndarray  # [act] float32
    name: str
    env: str | None = None  # what `aspc.envs.make_env` takes; own logs have none
    ref_min: float | None = None  # the returns that score 0 and 100
    ref_max: float | None = None
    notes: tuple[str, ...] = ()  # what validation found worth saying
    observation_names: tuple[str, ...] = ()  # the log's columns, in the order of the numbers
    action_names: tuple[str, ...] = ()

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
        observation_names: Sequence[str] = (),
        action_names: Sequence[str] = (),
    ) -> Dataset:
        """Check arrays and make a dataset of them.

        Without `timeouts`, episodes end at terminals and at `max_episode_steps` (by default the environment's).
        Actions beyond the bounds are clipped and counted in `notes`; with `strict` they are an error.
        """
        env = None if env == "none" else env
        raw_actions = _numbers("actions", actions, name)
        if raw_actions.dtype.kind in "iub":
            raise AspcError(
                f"{name}: the actions are {raw_actions.dtype}, so discrete; this library is for continuous actions "
                "(if yours are continuous, store them as floats)."
            )
        arrays: dict[str, np.ndarray] = {
            "observations": _matrix("observations", observations, name),
            "actions": _matrix("actions", raw_actions, name),
            "rewards": _vector("rewards", rewards, name),
            "terminals": checked_flags("terminals", terminals, name),
        }
        if timeouts is not None:
            arrays["timeouts"] = checked_flags("timeouts", timeouts, name)
        if next_observations is not None:
            arrays["next_observations"] = _matrix("next_observations", next_observations, name)
        length = len(arrays["observations"])
        for key, array in arrays.items():
            if len(array) != length:
                raise AspcError(f"{name}: 'observations' has {length} rows, but {key!r} has {len(array)}.")
        if length == 0:
            raise AspcError(f"{name}: the dataset is empty; it needs at least one transition.")
        lost = (
            *_lost_digits(arrays["observations"], "observation", observation_names),
            *_lost_digits(arrays["actions"], "action", action_names),
            *_lost_digits(arrays["rewards"], "reward", ()),
        )
        for key in ("observations", "actions", "rewards", "next_observations"):
            if key in arrays:
                arrays[key] = _finite_float32(key, arrays[key], name)
        next_obs = arrays.get("next_observations")
        if next_obs is not None and next_obs.shape != arrays["observations"].shape:
            raise AspcError(
                f"{name}: 'next_observations' has {next_obs.shape[1]} columns, "
                f"but 'observations' has {arrays['observations'].shape[1]}."
            )
        _check_sizes(arrays["observations"].shape[1], arrays["actions"].shape[1], env, name)
        for key, names in (("observations", observation_names), ("actions", action_names)):
            if names and len(names) != arrays[key].shape[1]:
                raise AspcError(f"{name}: {len(names)} names are given for {arrays[key].shape[1]} columns of {key!r}.")
        low, high, notes = action_bounds(arrays["actions"], action_low, action_high, env, name)
        clipped, clip_notes = _clip_actions(arrays["actions"], low, high, strict, name)
        ends, end_notes = episode_ends(arrays["terminals"], arrays.get("timeouts"), max_episode_steps, env)
        if env is not None and ref_min is None and ref_max is None:
            from aspc import envs

            ref_min, ref_max = envs.reference_scores(env) or (None, None)
        return cls(
            observations=arrays["observations"],
            actions=clipped,
            rewards=arrays["rewards"],
            terminals=arrays["terminals"],
            timeouts=ends,
            next_observations=next_obs,
            action_low=low,
            action_high=high,
            name=name,
            env=env,
            ref_min=ref_min,
            ref_max=ref_max,
            notes=(*notes, *lost, *_whole_number_note(arrays["actions"]), *clip_notes, *end_notes),
            observation_names=tuple(observation_names),
            action_names=tuple(action_names),
        )

    @classmethod
    def from_episodes(cls, episodes: Iterable[Mapping[str, Any]], **options: Any) -> Dataset:
        """Make a dataset of episodes, each a mapping with `observations`, `actions` and `rewards` (T rows).

        `observations` may have T + 1 rows (the last is then the real next observation), or there may be
        `next_observations`. `terminals` is T flags or one for the end; without it the episode ended by timeout.
        Options are those of `from_arrays`.
        """
        name = options.get("name", "episodes")
        parts = [_episode(episode, f"{name}, episode {i}") for i, episode in enumerate(episodes)]
        if not parts:
            raise AspcError(f"{name}: there are no episodes; at least one is needed.")
        with_next = ["next_observations" in part for part in parts]
        if any(with_next) and not all(with_next):
            raise AspcError(f"{name}: episode {with_next.index(False)} lacks the next observations that others have.")
        try:
            arrays: dict[str, Any] = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        except ValueError as error:
            raise AspcError(f"{name}: episodes differ in observation or action size.") from error
        return cls.from_arrays(**arrays, **{"name": "episodes", **options})

    def __len__(self) -> int:
        return len(self.observations)

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}, {len(self):,} rows, observation {self.observation_size}, "
            f"action {self.action_size}, env={self.env!r})"
        )

    @property
    def observation_size(self) -> int:
        """How many numbers an observation has."""
        return self.observations.shape[1]

    @property
    def action_size(self) -> int:
        """How many numbers an action has."""
        return self.actions.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that the rows take."""
        arrays = (self.observations, self.actions, self.rewards, self.terminals, self.timeouts, self.next_observations)
        return sum(array.nbytes for array in arrays if array is not None)

    @property
    def episode_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """First row and last row + 1 of each episode; the end of the data ends the last one."""
        stops = np.flatnonzero(self.terminals | self.timeouts) + 1
        if len(stops) == 0 or stops[-1] != len(self):
            stops = np.append(stops, len(self))
        return np.concatenate([[0], stops[:-1]]), stops

    @property
    def episode_lengths(self) -> np.ndarray:
        """The rows of each episode."""
        starts, stops = self.episode_bounds
        return stops - starts

    @property
    def episode_returns(self) -> np.ndarray:
        """The sum of rewards of each episode, in float64."""
        return np.add.reduceat(self.rewards.astype(np.float64), self.episode_bounds[0])

    @property
    def whole_episode_returns(self) -> np.ndarray:
        """`episode_returns` without that of a last piece which neither a terminal nor a timeout ends, where there are
        others: the log stopped in the middle of an episode, so its return is none."""
        returns = self.episode_returns
        cut = len(returns) > 1 and not (self.terminals[-1] or self.timeouts[-1])
        return returns[:-1] if cut else returns

    @property
    def never_ends(self) -> bool:
        """Whether the log is one unbroken trajectory that no flag ever ends."""
        return not (self.terminals | self.timeouts).any()

    def normalise(self, value: float) -> float | None:
        """D4RL's score of a return, or None where no reference scores are known."""
        if self.ref_min is None or self.ref_max is None:
            return None
        return 100.0 * (value - self.ref_min) / (self.ref_max - self.ref_min)

    def behaviour_return(self) -> float:
        """The mean return of the policy that made the data, over its whole episodes.

        Where the log's pieces are not the environment's episodes (Maze2d: the point walks on from target to
        target), it is the mean reward times the environment's step limit.
        """
        if self.env is not None:
            from aspc import envs

            if self.never_ends or envs.is_continuing(self.env):
                return float(self.rewards.mean(dtype=np.float64)) * envs.horizon(self.env)
        return float(self.whole_episode_returns.mean())

    def behaviour_score(self) -> float | None:
        """`behaviour_return` as a D4RL-normalised score, or None where no reference scores are known."""
        return self.normalise(self.behaviour_return())

    def scale_actions(self, actions: np.ndarray) -> np.ndarray:
        """Actions in the user's units as numbers in [-1, 1]."""
        centre, half = (self.action_high + self.action_low) / 2, (self.action_high - self.action_low) / 2
        return np.clip((actions - centre) / half, -1.0, 1.0).astype(np.float32)

    def transitions(
        self,
        *,
        n_step: int = 1,
        discount: float = 0.99,
        reward_scale: float = 1.0,
        reward_shift: float = 0.0,
    ) -> Transitions:
        """D4RL's Q-learning view: row i with row i + 1 of the same episode.

        The last row of an episode that a timeout or the end of the data cut has no next observation and is
        dropped, unless real `next_observations` were logged. Terminal rows are always kept. Rewards become
        `reward * reward_scale + reward_shift` before n-step returns are summed, over min(n_step, what is left).
        """
        if n_step < 1:
            raise AspcError(f"n_step must be at least 1, not {n_step}.")
        starts, stops = self.episode_bounds
        last = np.repeat(stops - 1, stops - starts)  # of each row's episode
        rows, final = self.transition_rows(n_step)
        if len(rows) == 0:
            raise AspcError(
                f"{self.name}: no transition is left; episodes need at least two rows or next observations."
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
        """The row where each transition begins, and the last row that its n-step return sums."""
        starts, stops = self.episode_bounds
        last = np.repeat(stops - 1, stops - starts)
        usable_last = last if self.next_observations is not None else last - ~self.terminals[last]
        rows = np.flatnonzero(np.arange(len(self)) <= usable_last)
        return rows, np.minimum(rows + (n_step - 1), usable_last[rows])

    def with_notes(self, notes: Iterable[str]) -> Dataset:
        """The same dataset with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def select(self, rows: np.ndarray, *, name: str | None = None) -> Dataset:
        """The dataset of some rows, in order; where rows between two were left out, an episode ends by timeout."""
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
            name=self.name if name is None else name,
        )

    def split(self, holdout: float, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Two datasets, to learn from and to validate on: a share `holdout` of the episodes goes to the second.

        A log of one unbroken trajectory is first cut into twenty pieces.
        """
        if not 0.0 < holdout < 1.0:
            raise AspcError(f"The share of episodes to hold out must be between 0 and 1, not {holdout}.")
        starts, stops = self.episode_bounds
        if len(starts) == 1:
            cuts = np.unique(np.linspace(0, len(self), 21).astype(int))
            starts, stops = cuts[:-1], cuts[1:]
        if len(starts) < 2:
            raise AspcError(f"{self.name}: holding out episodes needs at least two rows or episodes.")
        order = np.random.default_rng(seed).permutation(len(starts))
        count = min(max(1, round(holdout * len(starts))), len(starts) - 1)
        held = np.zeros(len(starts), dtype=bool)
        held[order[:count]] = True
        mask = np.repeat(held, stops - starts)
        return (
            self.select(np.flatnonzero(~mask)),
            self.select(np.flatnonzero(mask), name=f"{self.name} (held out)"),
        )


def episode_ends(
    terminals: np.ndarray, timeouts: np.ndarray | None, max_episode_steps: int | None, env: str | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Episode ends that are not terminals, logged or implied by the step limit; and notes."""
    if timeouts is not None:
        return timeouts & ~terminals, ()
    limit = max_episode_steps
    if limit is None and env is not None:
        from aspc import envs

        limit = None if envs.is_continuing(env) else envs.horizon(env)
    if limit is not None:
        if limit < 1:
            raise AspcError(f"max_episode_steps must be at least 1, not {limit}.")
        return timeouts_from_limit(terminals, limit), (f"no timeouts were logged: a step limit of {limit} is assumed.",)
    return np.zeros(len(terminals), dtype=bool), (
        "no timeouts were logged and no step limit is known: episodes are taken to end at terminals alone.",
    )


def _episode(episode: Mapping[str, Any], name: str) -> dict[str, np.ndarray]:
    """One episode's arrays, with flags a row and, where they are known, next observations."""
    missing = [key for key in ("observations", "actions", "rewards") if key not in episode]
    if missing:
        raise AspcError(f"{name}: {missing[0]!r} is missing; there are {', '.join(map(repr, episode)) or 'no keys'}.")
    actions = _numbers("actions", episode["actions"], name)
    observations = _matrix("observations", episode["observations"], name)
    rewards = _vector("rewards", episode["rewards"], name)
    steps = len(rewards)
    if steps == 0:
        raise AspcError(f"{name}: the episode is empty.")
    if len(actions) != steps or len(observations) not in (steps, steps + 1):
        raise AspcError(
            f"{name}: {steps} rewards go with {steps} actions and {steps} or {steps + 1} observations, "
            f"but there are {len(actions)} and {len(observations)}."
        )
    terminals = np.asarray(episode.get("terminals", False))
    if terminals.ndim == 0:
        terminals = np.arange(steps) == (steps - 1 if terminals else steps)
    flags = checked_flags("terminals", terminals, name)
    if len(flags) != steps:
        raise AspcError(f"{name}: there are {steps} rewards but {len(flags)} terminals.")
    timeouts = np.zeros(steps, dtype=bool)
    timeouts[-1] = not flags[-1]
    result = {
        "observations": observations[:steps],
        "actions": actions,
        "rewards": rewards,
        "terminals": flags,
        "timeouts": timeouts,
    }
    if len(observations) == steps + 1:
        result["next_observations"] = observations[1:]
    elif "next_observations" in episode:
        result["next_observations"] = _matrix("next_observations", episode["next_observations"], name)
    return result
