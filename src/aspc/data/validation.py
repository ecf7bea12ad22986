"""Checks that turn logged arrays into a valid dataset: shapes, types, flags, action bounds and episode ends.

Every check either returns the converted array (and notes for the user) or raises an `AspcError` that names the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from aspc import envs, tasks
from aspc.errors import AspcError
from aspc.text import format_number, join_limited

PRECISION_ROWS = 10_000  # rows that are checked for lost digits
ROUNDING = 1e-12  # relative differences below this are rounding errors of float64
PINNED_WIDTH = 1e-30  # minimum distance between the bounds of a constant action; half of it does not round to 0
MAX_SHOWN_BOUNDS = 8
MIN_ON_OFF_ROWS = 10
FEW_INTEGERS = 16


# ── arrays ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _row_label(index: int, array: np.ndarray) -> str:
    """Return a row's number, counted from 1: the last of ten rows is "row 10 of 10"."""
    return f"row {index + 1:,} of {len(array):,}"


def to_finite_float32(key: str, values: np.ndarray, name: str) -> np.ndarray:
    """Convert values to float32. Raises an `AspcError` that names the first row with a NaN or infinite value."""
    with np.errstate(over="ignore"):
        result = np.ascontiguousarray(values, dtype=np.float32)
    with np.errstate(invalid="ignore"):  # a cheap first test: a float64 sum of finite float32 values cannot overflow
        total = result.sum(dtype=np.float64)
    if not np.isfinite(total):
        row = int(np.flatnonzero(~np.isfinite(result.reshape(len(result), -1)).all(axis=1))[0])
        raise AspcError(
            f"{name}: {key!r} has a NaN, infinite or too large value in {_row_label(row, result)}. "
            "Fix that row, or remove it and start a new episode after it."
        )
    return result


def check_numeric(key: str, values: ArrayLike, name: str) -> np.ndarray:
    """Return values as an array of numbers or booleans."""
    try:
        array = np.asarray(values)
    except ValueError:  # ragged nested lists
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "fiub":
        raise AspcError(f"{name}: {key!r} must hold numbers, not {array.dtype}.")
    return array


def check_matrix(key: str, values: ArrayLike, name: str) -> np.ndarray:
    """Return values as an array with one vector per row."""
    array = check_numeric(key, values, name)
    if array.ndim != 2:
        remedy = "Reshape (N,) to (N, 1)." if array.ndim == 1 else "Flatten each row to one vector."
        raise AspcError(
            f"{name}: {key!r} must have two axes (rows, features), but its shape is {array.shape}. {remedy}"
        )
    if array.shape[1] == 0:
        raise AspcError(f"{name}: {key!r} has no columns; each row needs at least one number.")
    return array


def check_vector(key: str, values: ArrayLike, name: str) -> np.ndarray:
    """Return values as an array with one scalar per row."""
    array = check_numeric(key, values, name)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise AspcError(f"{name}: {key!r} must have one scalar per row, but its shape is {array.shape}.")
    return array


def check_flags(key: str, values: ArrayLike, name: str) -> np.ndarray:
    """Return flags as booleans. Raises an `AspcError` that names the first value other than 0 and 1."""
    array = check_vector(key, values, name)
    if array.dtype == bool:
        return np.ascontiguousarray(array)
    invalid = np.flatnonzero((array != 0) & (array != 1))
    if len(invalid):
        raise AspcError(f"{name}: {key!r} must be 0 or 1, but {_row_label(invalid[0], array)} has {array[invalid[0]]}.")
    return array.astype(bool)


def check_arrays(
    observations: ArrayLike,
    actions: ArrayLike,
    rewards: ArrayLike,
    terminals: ArrayLike,
    timeouts: ArrayLike | None,
    next_observations: ArrayLike | None,
    name: str,
) -> dict[str, np.ndarray]:
    """Check kinds, shapes and lengths of logged arrays, without converting numbers.

    Returns:
        The arrays by name; those that were not logged are absent.
    """
    raw_actions = check_numeric("actions", actions, name)
    if raw_actions.dtype.kind in "iub":
        raise AspcError(
            f"{name}: the actions have type {raw_actions.dtype}, but continuous actions must be floats. Convert them "
            "to floats."
        )
    arrays = {
        "observations": check_matrix("observations", observations, name),
        "actions": check_matrix("actions", raw_actions, name),
        "rewards": check_vector("rewards", rewards, name),
        "terminals": check_flags("terminals", terminals, name),
    }
    if timeouts is not None:
        arrays["timeouts"] = check_flags("timeouts", timeouts, name)
    if next_observations is not None:
        arrays["next_observations"] = check_matrix("next_observations", next_observations, name)
    length = len(arrays["observations"])
    for key, array in arrays.items():
        if len(array) != length:
            raise AspcError(f"{name}: 'observations' has {length} rows, but {key!r} has {len(array)}.")
    if length == 0:
        raise AspcError(f"{name}: the dataset is empty; it needs at least one transition.")
    columns = arrays["observations"].shape[1]
    if "next_observations" in arrays and arrays["next_observations"].shape[1] != columns:
        raise AspcError(
            f"{name}: 'next_observations' has {arrays['next_observations'].shape[1]} columns, "
            f"but 'observations' has {columns}."
        )
    return arrays


def check_kpis(kpis: ArrayLike, length: int, names: Sequence[str], name: str) -> np.ndarray:
    """Return KPIs [N, kpis] in float32; missing ones stay NaN."""
    array = check_matrix("kpis", kpis, name)
    if len(array) != length:
        raise AspcError(f"{name}: 'observations' has {length} rows, but 'kpis' has {len(array)}.")
    if names and len(names) != array.shape[1]:
        raise AspcError(f"{name}: {len(names)} names are given for {array.shape[1]} columns of 'kpis'.")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)


def check_sizes(
    arrays: Mapping[str, np.ndarray], env: str | None, names: Mapping[str, Sequence[str]], name: str
) -> None:
    """Raise an `AspcError` if sizes contradict the D4RL environment or the given column names."""
    observation_size, action_size = arrays["observations"].shape[1], arrays["actions"].shape[1]
    family = None if env is None else tasks.family_facts(env)
    if family is not None and (observation_size, action_size) != (family.observation_size, family.action_size):
        raise AspcError(
            f"{name}: the data has observation size {observation_size} and action size {action_size}, but {env} has "
            f"{family.observation_size} and {family.action_size}. Choose another environment, or none."
        )
    for key, given in names.items():
        if given and len(given) != arrays[key].shape[1]:
            raise AspcError(f"{name}: {len(given)} names are given for {arrays[key].shape[1]} columns of {key!r}.")


def integer_action_notes(actions: np.ndarray) -> tuple[str, ...]:
    """Warn if all actions are a few integers, which suggests discrete actions stored as floats."""
    if len(np.unique(actions[:PRECISION_ROWS])) > FEW_INTEGERS or not (actions == np.round(actions)).all():
        return ()
    return ("all actions are integers: if they are discrete, store them as integers or pass --categorical NAMES.",)


def on_off_notes(actions: np.ndarray, names: Sequence[str]) -> tuple[str, ...]:
    """Warn about actions that take only two values, such as a pump that is on or off."""
    if len(actions) < MIN_ON_OFF_ROWS:
        return ()
    columns = [i for i in range(actions.shape[1]) if _takes_two_values(actions[:, i])]
    if not columns:
        return ()
    low, high = actions.min(axis=0), actions.max(axis=0)
    shown = join_limited([f"{i + 1} ({names[i]})" if names else str(i + 1) for i in columns], MAX_SHOWN_BOUNDS)
    first, plural = columns[0], len(columns) > 1
    middle = f"{(float(low[first]) + float(high[first])) / 2:g}"
    return (
        f"action dimension{'s' * plural} {shown} take{'s' * (not plural)} only two values "
        f"({low[first]:g} and {high[first]:g}): a policy returns numbers between them, because actions are treated as "
        f"continuous. Round its output (above {middle} means on), or leave the column out with --map actions=NAMES.",
    )


def _takes_two_values(column: np.ndarray) -> bool:
    if len(np.unique(column[:MIN_ON_OFF_ROWS])) > 2:  # usually enough to rule a column out
        return False
    low, high = column.min(), column.max()
    return bool(low < high and ((column == low) | (column == high)).all())


def precision_notes(values: np.ndarray, label: str, names: Sequence[str]) -> tuple[str, ...]:
    """Warn about columns of large numbers with small differences, such as timestamps, that become equal in float32."""
    if values.dtype.itemsize < 4 or values.dtype == np.float32:
        return ()
    first = values.reshape(len(values), -1)[:PRECISION_ROWS]  # neighboring rows differ the least
    notes = []
    for i, column in enumerate(first.T):
        with np.errstate(over="ignore"):  # `to_finite_float32` reports values that are too large
            before, after = len(np.unique(column)), len(np.unique(column.astype(np.float32)))
        spread = float(column.max()) - float(column.min())
        if after < before / 2 and spread > ROUNDING * abs(float(column.max())):
            column_label = (
                f"column {names[i]!r}" if names else label if values.ndim == 1 else f"{label} dimension {i + 1}"
            )
            notes.append(
                f"{column_label} loses digits in float32 ({before:,} distinct values become {after:,}): "
                "subtract an offset first."
            )
    return tuple(notes)


# ── actions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def bounds_from_data(actions: np.ndarray, margin: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return the range of the actions per dimension, widened by `margin` times its width on either side.

    The bounds of a constant action differ only in their last digit, because a policy needs each low bound below its
    high bound.
    """
    low, high = actions.min(axis=0), actions.max(axis=0)
    with np.errstate(over="ignore"):  # an overflow becomes infinite and is reported by `action_bounds`
        extra = margin * (high.astype(np.float64) - low)
        low, high = (low - extra).astype(np.float32), (high + extra).astype(np.float32)
        pinned = high + np.maximum(np.spacing(np.abs(high)), np.float32(PINNED_WIDTH))
    return low, np.where(low == high, pinned, high)


def is_pinned(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return whether bounds differ in their last digit only, as those of a constant action do."""
    return np.asarray(high - low <= 2 * np.maximum(np.spacing(np.abs(high)), np.float32(PINNED_WIDTH)))


def _to_bound(key: str, value: ArrayLike, size: int, name: str) -> np.ndarray:
    try:
        with np.errstate(over="ignore"):  # see `bounds_from_data`
            return np.broadcast_to(np.asarray(value, dtype=np.float32), (size,)).copy()
    except (ValueError, TypeError) as error:
        raise AspcError(f"{name}: {key} must be one number or {size} numbers, one per action dimension.") from error


def format_bounds(low: np.ndarray, high: np.ndarray) -> str:
    """Return bounds as text; bounds that all dimensions share appear once."""
    pairs = [f"[{format_number(below)}, {format_number(above)}]" for below, above in zip(low, high, strict=True)]
    if len(set(pairs)) == 1:
        return f"{pairs[0]} in every dimension"
    return join_limited(pairs, MAX_SHOWN_BOUNDS, " ")


class ActionBounds(NamedTuple):
    """Bounds per action dimension, the source of each side as text, and notes."""

    low: np.ndarray
    high: np.ndarray
    source: str
    notes: tuple[str, ...]


def action_bounds(
    actions: np.ndarray,
    action_low: ArrayLike | None,
    action_high: ArrayLike | None,
    env: str | None,
    name: str,
    margin: float | None = None,
) -> ActionBounds:
    """Return bounds per action dimension: the given bounds, else the environment's, else the range of the data.

    Args:
        actions: The logged actions.
        action_low: Given lower bounds.
        action_high: Given upper bounds.
        env: The environment, or None.
        name: The dataset, for messages.
        margin: Fraction of the data's range to add on either side if bounds come from the data.
    """
    size = actions.shape[1]
    if margin is not None and not 0 <= margin < np.inf:
        raise AspcError(f"{name}: the action margin, a fraction of the logged range, must be 0 or more, not {margin}.")
    notes: tuple[str, ...] = ()
    known: tuple[np.ndarray, np.ndarray] | None = None
    if env is not None and (action_low is None or action_high is None):
        try:
            known = envs.action_bounds(env)
        except AspcError as error:
            notes = (f"no action bounds from the environment {env}: {error}",)
        if known is not None and len(known[0]) != size:
            raise AspcError(f"{name}: actions have {size} dimensions, but the environment {env} takes {len(known[0])}.")
    low, high = known if known is not None else bounds_from_data(actions, margin or 0.0)
    low = _to_bound("action_low", low if action_low is None else action_low, size, name)
    high = _to_bound("action_high", high if action_high is None else action_high, size, name)
    with np.errstate(over="ignore", invalid="ignore"):
        is_finite = np.isfinite(high - low).all()  # false for an infinite bound, and for a range that overflows
    if not (is_finite and (low < high).all()):
        raise AspcError(f"{name}: action bounds must be finite, and each low bound must be below its high bound.")
    missing = [side for side, given in (("low", action_low), ("high", action_high)) if given is None]
    if known is None and missing:
        label = "action bounds" if len(missing) == 2 else f"{missing[0]} action bounds"
        options = " and ".join(f"--action-{side}" for side in missing)
        notes += (f"{label} are guessed from the data ({format_bounds(low, high)}); set them with {options}.",)
    elif margin:
        notes += ("the action margin is not used: no bound comes from the data.",)
    from_data = f"logged range with a margin of {100 * margin:g} %" if margin else "logged range"
    fallback = from_data if known is None else f"environment {env}"
    low_source, high_source = (fallback if value is None else "given" for value in (action_low, action_high))
    source = low_source if low_source == high_source else f"low: {low_source}; high: {high_source}"
    return ActionBounds(low, high, source, notes)


def clip_actions(
    actions: np.ndarray, low: np.ndarray, high: np.ndarray, strict: bool, name: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Clip actions to their bounds and note the number clipped; with `strict`, raise an `AspcError` instead."""
    is_outside = ((actions < low) | (actions > high)).any(axis=1)
    count = int(is_outside.sum())
    if count == 0:
        return actions, ()
    first = _row_label(int(is_outside.argmax()), actions)
    problem = f"{count:,} of {len(actions):,} actions are outside the bounds (the first in {first})"
    if strict:
        raise AspcError(
            f"{name}: {problem}. Fix them, set other bounds, or omit --strict (strict=True in Python) to clip them."
        )
    return np.clip(actions, low, high), (f"{problem} and were clipped.",)


# ── episodes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def timeouts_from_limit(terminals: np.ndarray, limit: int) -> np.ndarray:
    """Return the episode ends that a step limit implies: every `limit` rows since the start or the last terminal."""
    timeouts = np.zeros(len(terminals), dtype=bool)
    start = 0
    for stop in (*(np.flatnonzero(terminals) + 1).tolist(), len(terminals)):
        timeouts[start + limit - 1 : stop : limit] = True
        start = stop
    return np.asarray(timeouts & ~terminals)


def episode_ends(
    terminals: np.ndarray, timeouts: np.ndarray | None, max_episode_steps: int | None, env: str | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the non-terminal episode ends, which are logged or implied by the step limit, and notes."""
    limit = max_episode_steps
    if timeouts is not None and (limit is None or timeouts[:-1].any()):
        notes = () if limit is None else (f"the step limit of {limit} is not used: the log contains timeouts.",)
        return timeouts & ~terminals, notes
    if limit is None and env is not None and not envs.is_continuing(env):
        limit = envs.horizon(env)
    if limit is not None:
        if limit < 1:
            raise AspcError(f"max_episode_steps must be at least 1, not {limit}.")
        ends = timeouts_from_limit(terminals, limit)
        if timeouts is not None:  # only the last row can be marked
            ends |= timeouts & ~terminals
        return ends, (f"no timeouts were logged: a step limit of {limit} is assumed.",)
    return np.zeros(len(terminals), dtype=bool), (
        "no timeouts were logged and no step limit is known: episodes end only at terminals.",
    )
