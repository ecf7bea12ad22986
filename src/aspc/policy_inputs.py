"""Convert observations (arrays, tables, dictionaries), handle invalid entries, and keep state between calls of `act`.
This module needs only NumPy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# ---------------------------------------------------------------------------------------------------------------
# Observations by name
# ---------------------------------------------------------------------------------------------------------------


def by_column_order(names: Sequence[str], observations: Any, error: type[Exception] = ValueError) -> Any:
    """Reorder named observations to match a policy's columns.

    Args:
        names: The policy's columns; empty if its log had no names.
        observations: A table, one of its rows, a dictionary, or a list of such rows. Unnamed values are unchanged.
        error: The exception to raise.

    Raises:
        error: If a column is missing or duplicated.
    """
    if isinstance(observations, np.ndarray):  # the common case, kept fast
        return observations
    if isinstance(observations, list | tuple) and not hasattr(observations, "_fields"):
        return [
            row if isinstance(row, float | int | np.generic) else to_float32(_select_columns(names, row, error))
            for row in observations
        ]
    return _select_columns(names, observations, error)


def _select_columns(names: Sequence[str], observations: Any, error: type[Exception]) -> Any:
    labels = _labels(observations)
    if not names and isinstance(observations, Mapping):
        raise error("This policy's log had no column names. Pass an array instead of a dictionary.")
    if not names or labels is None:
        return observations
    for name in names:
        if (found := labels.count(name)) != 1:
            problem = f"contains {name!r} {found} times" if found else f"is missing {name!r}"
            raise error(f"The observation {problem}. This policy takes {', '.join(names)}, or an array in this order.")
    values = observations._asdict() if hasattr(type(observations), "_fields") else observations
    return np.stack([to_float32(values[name]) for name in names], axis=-1)


def _labels(observations: Any) -> list[Any] | None:
    """Return the names of a table's columns or of a row's values, or None if they have no names.

    A tuple is a multi-level name.
    """
    if isinstance(observations, Mapping):
        return list(observations)
    # Look these names up on the class, because a column can have the same name. A list's `index` is a method.
    kinds = ("_fields", "column_names", "columns", "index")
    candidates = (getattr(observations, kind) for kind in kinds if hasattr(type(observations), kind))
    labels = list(next((labels for labels in candidates if not callable(labels)), ()))
    return labels if any(isinstance(label, str | tuple) for label in labels) else None


# ---------------------------------------------------------------------------------------------------------------
# Invalid observations
# ---------------------------------------------------------------------------------------------------------------

ON_INVALID = ("raise", "hold", "nan")


def to_float32(values: Any) -> np.ndarray:
    """Return values as float32. None and masked entries become NaN; overflowing numbers become infinite."""
    if type(values) is np.ndarray and values.dtype == np.float32:  # the common case, kept fast
        return values
    with np.errstate(over="ignore"):
        if isinstance(values, np.ma.MaskedArray):
            return np.ma.filled(values.astype(np.float32), np.nan)
        return np.asarray(values, np.float32)


class LoggedRange(NamedTuple):
    """The limits [obs] beyond which `act` warns, and the statistics of the log that the warning quotes."""

    low: np.ndarray
    high: np.ndarray
    first: np.ndarray
    second: np.ndarray
    text: str
    """A format string that describes the logged values of a column; it takes `first` and `second`."""

    @classmethod
    def of(
        cls, low: np.ndarray | None, high: np.ndarray | None, mean: np.ndarray, std: np.ndarray, has_score: bool
    ) -> LoggedRange:
        """Return the limits of a policy.

        The limits exceed the logged range by ten times its width on both sides. For a column that never changed, ten
        times its value (at least 10) is used instead of the width. Older policies did not record the range; if they
        have a normalizer, the limits are the mean ± 100 standard deviations. Guards with a score replace the warning.

        Args:
            low: The lowest logged observation, [obs]; None if it was not recorded.
            high: The highest logged observation.
            mean: The mean of the normalizer.
            std: The standard deviation of the normalizer.
            has_score: True if the policy has guards with an out-of-distribution score.
        """
        largest = np.full(len(mean), np.finfo(np.float32).max, np.float64)
        if has_score:
            reach, text = (-largest, largest), ""
        elif low is not None and high is not None:
            size = high.astype(np.float64) - low
            margin = 10 * np.where(size > 0, size, np.maximum(np.abs(high), 1))
            reach, mean, std, text = (low - margin, high + margin), low, high, "the logged range {:g} to {:g}"
        elif (mean != 0).any() or (std != 1).any():
            margin = 100 * std.astype(np.float64)
            reach, text = (mean - margin, mean + margin), "the logged values, {:g} ± {:g}"
        else:
            reach, text = (-largest, largest), ""
        limits = np.clip(reach, -largest, largest).astype(np.float32)
        return cls(limits[0], limits[1], mean, std, text)


class Stream:
    """The state that `act` keeps between calls, for each row of a batch."""

    def __init__(self) -> None:
        self.memory: np.ndarray | None = None
        """The policy's memory [batch, size]; None before the first step and for a policy without memory."""
        self.actions: np.ndarray | None = None
        """The last actions, kept by "hold"."""
        self.has_warned = False
        """True after the one warning per stream about an observation far outside the logged range."""

    def reset(self) -> None:
        """Clear the memory and the last actions. Call this at the start of an episode."""
        self.memory = self.actions = None


def act_in_stream(
    step: Callable[[np.ndarray, Any], tuple[Any, Any]],
    memory_start: np.ndarray,
    logged: LoggedRange,
    observations: Any,
    names: Sequence[str],
    size: int,
    on_invalid: str,
    stream: Stream,
    error: type[Exception] = ValueError,
) -> np.ndarray:
    """Check one observation [obs] or a batch [batch, obs], and return its actions.

    Args:
        step: Maps rows of observations [batch, obs] and the memory to actions [batch, act] and the next memory.
        memory_start: The memory before the first step, [memory]; empty for a policy without memory.
        logged: The range of the logged observations. The first observation far outside it causes a warning.
        observations: An array, or a table, a row or a dictionary with the `names` of the log's columns.
        names: The log's columns, in the order of the observation's dimensions; may be empty.
        size: The dimension of an observation.
        on_invalid: The behavior for NaN, infinite, None or masked entries: "raise" an error, "hold" the last action of
            the same row, or return a "nan" action. An invalid row does not change the memory.
        stream: The memory and the last actions, kept between calls.
        error: The exception to raise.

    Raises:
        error: An observation has the wrong size or is invalid, there is no action to hold yet, or the batch size
            differs from that of the memory.
    """
    if on_invalid not in ON_INVALID:
        raise error(f"on_invalid must be 'raise', 'hold' or 'nan', not {on_invalid!r}.")
    # The first case is the common case, kept fast.
    is_plain = type(observations) is np.ndarray and observations.dtype == np.float32
    x = observations if is_plain and observations.shape == (size,) else _as_array(observations, names, size, error)
    rows = x if x.ndim == 2 else x[None]
    memory = _current_memory(stream, memory_start, len(rows), error) if len(memory_start) else None
    invalid = None
    is_near = np.logical_and(np.less_equal(logged.low, rows), np.less_equal(rows, logged.high))
    if not np.logical_and.reduce(is_near, axis=None):
        is_finite = np.isfinite(rows)
        if not is_finite.all():
            if on_invalid == "raise":
                raise error(f"{_first_invalid(x, names)}. Correct it, or choose on_invalid='hold' or 'nan'.")
            invalid, rows = ~is_finite.all(axis=1), np.where(is_finite, rows, np.float32(0))
        if not stream.has_warned and (is_finite & ~is_near).any():
            stream.has_warned = True
            warnings.warn(_far_text(x, names, is_finite & ~is_near, logged), RuntimeWarning, stacklevel=3)
    actions: np.ndarray
    actions, following = step(rows, memory)
    if invalid is not None:
        actions = np.array(actions)
        if on_invalid == "nan":
            actions[invalid] = np.nan
        else:
            actions[invalid] = _held_actions(x, names, actions, invalid, stream.actions, error)
        if memory is not None:
            following = np.where(invalid[:, None], memory, following)
    stream.memory = following
    if on_invalid == "hold":
        stream.actions = np.array(actions)
    return actions if x.ndim == 2 else np.asarray(actions[0])


def check_rows(observations: Any, names: Sequence[str], size: int, error: type[Exception] = ValueError) -> np.ndarray:
    """Return one observation [obs] or a batch [batch, obs] as float32.

    Args:
        observations: As for `act_in_stream`.
        names: The log's columns; may be empty.
        size: The dimension of an observation.
        error: The exception to raise.

    Raises:
        error: If an observation has the wrong size or is invalid.
    """
    x = _as_array(observations, names, size, error)
    if not np.isfinite(x).all():
        raise error(f"{_first_invalid(x, names)}. Correct it.")
    return x


def _as_array(observations: Any, names: Sequence[str], size: int, error: type[Exception]) -> np.ndarray:
    try:
        x = to_float32(by_column_order(names, observations, error))
    except (TypeError, ValueError) as reason:
        if isinstance(reason, error):
            raise
        raise error(f"The observation is not numeric ({reason}). Pass {size} numbers, or rows of them.") from reason
    if x.ndim not in (1, 2) or x.shape[-1] != size:
        raise error(f"This policy takes observations of shape [{size}] or [batch, {size}], not {list(x.shape)}.")
    return x


def _current_memory(stream: Stream, memory_start: np.ndarray, batch: int, error: type[Exception]) -> np.ndarray:
    """Return the memory of a batch, or raise `error` if it belongs to a batch of another size."""
    if stream.memory is None:
        return np.tile(memory_start, (batch, 1))
    if len(stream.memory) != batch:
        raise error(
            f"This policy keeps state for each row, but the batch had {len(stream.memory)} rows before and has {batch} "
            "now. Call reset() when a new episode starts, or use a separate policy object for each batch."
        )
    return stream.memory


def _held_actions(
    x: np.ndarray,
    names: Sequence[str],
    actions: np.ndarray,
    invalid: np.ndarray,
    last: np.ndarray | None,
    error: type[Exception],
) -> np.ndarray:
    """Return the last actions of the invalid rows, or raise `error` if they are unknown."""
    if last is None:
        raise error(f"{_first_invalid(x, names)}, and there is no action to hold yet. Start with a valid observation.")
    if last.shape != actions.shape:
        raise error(
            f"{_first_invalid(x, names)}, and its last action is unknown: the batch had {len(last)} rows before and "
            f"has {len(actions)} now. Pass the same rows in every batch, or use a separate policy object per row."
        )
    return np.asarray(last[invalid])


def _first_invalid(x: np.ndarray, names: Sequence[str]) -> str:
    """Describe the first entry of an observation, or of a batch, that is not finite."""
    return _describe_entry(x, names, [int(i) for i in np.argwhere(~np.isfinite(x))[0]])


def _far_text(x: np.ndarray, names: Sequence[str], is_far: np.ndarray, logged: LoggedRange) -> str:
    """Return a warning about the first entry of an observation or batch that is far outside the logged range."""
    at = [int(i) for i in np.argwhere(is_far.reshape(x.shape))[0]]
    known = logged.text.format(logged.first[at[-1]], logged.second[at[-1]])
    return (
        f"{_describe_entry(x, names, at)}, far outside {known}, so the action is an extrapolation. Check the "
        "observation, or export the policy with a guard (aspc export --ood hold)."
    )


def _describe_entry(x: np.ndarray, names: Sequence[str], at: list[int]) -> str:
    named = f" ({names[at[-1]]!r})" if at[-1] < len(names) else ""
    return f"{'observations' if x.ndim == 2 else 'observation'}{at}{named} is {x[tuple(at)]}"
