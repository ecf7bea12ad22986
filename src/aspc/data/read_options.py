"""Options for reading a log: roles of columns, missing values and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from aspc.data.columns import KeyMap, check_key_map
from aspc.data.formula import Formula
from aspc.errors import AspcError

MissingPolicy = Literal["error", "split", "ffill", "interpolate", "drop"]
ResampleMethod = Literal["hold", "interpolate"]
COLUMN_LISTS = ("kpis", "one_hot", "categorical", "continuous")


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading a log, passed from the parent to the child process that parses files."""

    key_map: KeyMap = field(default_factory=dict)
    reward: str | None = None
    """Formula over columns that replaces the reward column."""
    kpis: tuple[str, ...] = ()
    """Columns to load but not to use for training."""
    one_hot: tuple[str, ...] = ()
    """Categorical observation columns to one-hot encode."""
    categorical: tuple[str, ...] = ()
    """Action columns (names or patterns) that are categorical."""
    continuous: tuple[str, ...] = ()
    """Action columns (names or patterns) that are continuous."""
    missing: MissingPolicy = "error"
    max_gap: float | None = None
    """Longest interval inside an episode, as a multiple of the median interval; None selects a default."""
    resample: ResampleMethod | None = None
    interval: float | None = None
    """Seconds per row after resampling; None uses the median interval."""
    has_step_limit: bool = False
    """True if a step limit ends episodes, so that no column needs to mark their ends."""
    single_episode: bool = False
    """True if the file is a single episode."""

    @classmethod
    def of(cls, key_map: Mapping[str, Any] | None = None, **options: Any) -> ReadOptions:
        """Validate user-supplied options and return them.

        Args:
            key_map: Stored names by array.
            options: The other fields; lists of columns can be a single name.

        Raises:
            AspcError: An option is invalid, or two of them contradict each other.
        """
        columns: dict[str, Any] = {key: _names(key, options.pop(key, ())) for key in COLUMN_LISTS}
        found = cls(check_key_map(key_map or {}), **columns, **options)
        if found.reward is not None and not isinstance(found.reward, str):
            raise AspcError(f"--reward must be a formula over columns, not {found.reward!r}.")
        _check_choice("missing", found.missing, get_args(MissingPolicy))
        if found.resample is not None:
            _check_choice("resample", found.resample, get_args(ResampleMethod))
        for name, value in (("max_gap", found.max_gap), ("interval", found.interval)):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and 0 < value < float("inf")):
                raise AspcError(f"{_flag(name)} must be a number above 0, not {value}.")
        if found.interval is not None and found.resample is None:
            raise AspcError("--interval needs --resample hold or --resample interpolate.")
        if found.reward is not None:
            Formula.parse(found.reward)
        sources = [key for key in ("rewards", "costs") if key in found.key_map]
        if len(sources) + (found.reward is not None) > 1:
            raise AspcError(
                "Rewards must have one source: a column (--map rewards=NAME), a negated column (--map costs=NAME) or a "
                "formula (--reward). Choose one."
            )
        return found

    @property
    def needs_no_ends(self) -> bool:
        """True if the file can be read without marked episode ends."""
        return self.single_episode or self.has_step_limit

    def to_json(self) -> dict[str, Any]:
        """Return the options as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ReadOptions:
        """Return options from the values of `to_json`."""
        return cls(**{**values, **{key: tuple(values[key]) for key in COLUMN_LISTS}})


def check_array_options(options: ReadOptions, name: str) -> None:
    """Raise an `AspcError` for options that name columns, since a file of arrays has none."""
    for flag, value in (("--reward", options.reward), ("--kpi", options.kpis), ("--one-hot", options.one_hot)):
        if value:
            raise AspcError(
                f"{name}: {flag} names columns, but this file holds arrays. Write it as a table, such as CSV."
            )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise AspcError(f"{_flag(name)} must be {', '.join(choices[:-1])} or {choices[-1]}, not {value!r}.")


def _names(key: str, columns: str | Sequence[str]) -> tuple[str, ...]:
    listed = [columns] if isinstance(columns, str) else columns
    if not isinstance(listed, list | tuple) or not all(isinstance(column, str) for column in listed):
        raise AspcError(f"{_flag('kpi' if key == 'kpis' else key)} must be column names, not {columns!r}.")
    return tuple(listed)
