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
    """Columns to load without learning from them."""
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
    """Whether a step limit ends episodes, so that no column needs to mark their ends."""
    single_episode: bool = False
    """Whether the file is one episode."""

    @classmethod
    def of(
        cls,
        key_map: Mapping[str, Any] | None = None,
        *,
        reward: str | None = None,
        kpis: str | Sequence[str] = (),
        one_hot: str | Sequence[str] = (),
        categorical: str | Sequence[str] = (),
        continuous: str | Sequence[str] = (),
        missing: str = "error",
        max_gap: float | None = None,
        resample: str | None = None,
        interval: float | None = None,
        has_step_limit: bool = False,
        single_episode: bool = False,
    ) -> ReadOptions:
        """Validate user-supplied options and return them.

        Raises:
            AspcError: An option is invalid, or two of them contradict each other.
        """
        if reward is not None and not isinstance(reward, str):
            raise AspcError(f"--reward must be a formula over columns, not {reward!r}.")
        _check_choice("missing", missing, get_args(MissingPolicy))
        if resample is not None:
            _check_choice("resample", resample, get_args(ResampleMethod))
        for name, value in (("max_gap", max_gap), ("interval", interval)):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and 0 < value < float("inf")):
                raise AspcError(f"{_flag(name)} must be a number above 0, not {value}.")
        if interval is not None and resample is None:
            raise AspcError("--interval needs --resample hold or --resample interpolate.")
        checked = check_key_map(key_map or {})
        if reward is not None:
            Formula.parse(reward)
        sources = [key for key in ("rewards", "costs") if key in checked] + ["reward"] * (reward is not None)
        if len(sources) > 1:
            raise AspcError(
                "Rewards come from one source: a column (--map rewards=NAME), a negated column (--map costs=NAME) or a "
                "formula (--reward). Choose one."
            )
        return cls(
            checked,
            reward,
            _names("kpi", kpis),
            _names("one_hot", one_hot),
            _names("categorical", categorical),
            _names("continuous", continuous),
            missing,  # type: ignore[arg-type]
            max_gap,
            resample,  # type: ignore[arg-type]
            interval,
            has_step_limit,
            single_episode,
        )

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
        raise AspcError(f"{_flag(name)} must be one of {', '.join(choices)}, not {value!r}.")


def _names(name: str, columns: str | Sequence[str]) -> tuple[str, ...]:
    listed = [columns] if isinstance(columns, str) else columns
    if not isinstance(listed, list | tuple) or not all(isinstance(column, str) for column in listed):
        raise AspcError(f"{_flag(name)} must be the names of columns, not {columns!r}.")
    return tuple(listed)
