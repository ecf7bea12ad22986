"""Options for reading user-supplied data, shared by several commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from aspc import data
from aspc.cli.parsing import Several, Unset
from aspc.data.dataset import Dataset
from aspc.data.read_options import MissingPolicy, ResampleMethod
from aspc.errors import AspcError

LISTS = {"kpi": "kpis", "one_hot": "one_hot", "categorical": "categorical", "continuous": "continuous"}
"""Fields of `DataOptions` that are lists, with the keyword argument of `aspc.data.load` for each."""
SCALARS = ("reward", "max_gap", "resample", "interval", "env", "action_margin", "max_episode_steps")
"""Fields that are keyword arguments of the same name."""


@dataclass(frozen=True)
class DataOptions:
    """Options for reading your own data."""

    map: Several[str] = ()
    """Map each array to its key or columns in the file, as in observations=obs actions=u_*,v time=stamp.
    costs=NAME uses the negated column as the reward; time=none ignores times."""
    reward: Unset[str] = None
    """Compute rewards from columns with a formula, as in "0.3*energy + 0.7*comfort"."""
    kpi: Annotated[Several[str], tyro.conf.UseAppendAction] = ()
    """Keep this column as a KPI that training ignores; `aspc assess` estimates how a policy changes it. Repeat the
    option for more columns."""
    one_hot: Several[str] = ()
    """One-hot encode these categorical observation columns (one 0/1 column per category)."""
    categorical: Several[str] = ()
    """Treat these action columns (names or patterns) as categorical. By default, action columns with text, Booleans or
    few distinct integers are categorical."""
    continuous: Several[str] = ()
    """Treat these action columns (names or patterns) as continuous. Use "*" for all actions."""
    missing: MissingPolicy = "error"
    """Handle empty cells: reject them, split the episode there, repeat the last value (ffill), interpolate, or drop
    their rows."""
    max_gap: Unset[float] = None
    """Split episodes at time intervals longer than this multiple of the median interval. Default: 1.5, or 10 with
    irregular sampling or --resample."""
    resample: Unset[ResampleMethod] = None
    """Resample the rows at equal time intervals, holding or interpolating the observations."""
    interval: Unset[float] = None
    """Seconds per row after resampling. Default: the median interval."""
    env: Unset[str] = None
    """Environment in which the data was collected, used for evaluation and reference scores; "none" disables both.
    Default: the environment stated in the dataset."""
    action_low: Several[float] = ()
    """Lower action bound: one number, or one per dimension."""
    action_high: Several[float] = ()
    """Upper action bound: one number, or one per dimension."""
    action_margin: Unset[float] = None
    """Widen bounds taken from the data by this fraction of the logged range on either side. Default: 0."""
    max_episode_steps: Unset[int] = None
    """Split episodes after this many steps if the data has no timeouts."""
    strict: bool = False
    """Reject actions outside the bounds instead of clipping them."""

    def load(self, name: str) -> Dataset:
        """Load a dataset with these options."""
        return data.load(name, **self.options())

    def options(self) -> dict[str, Any]:
        """Return the given options as keyword arguments of `aspc.data.load`."""
        values: dict[str, Any] = {
            "key_map": self.key_map() or None,
            "missing": None if self.missing == "error" else self.missing,
            "action_low": _bound(self.action_low),
            "action_high": _bound(self.action_high),
            "strict": self.strict or None,
        }
        values |= {key: list(getattr(self, name)) or None for name, key in LISTS.items()}
        values |= {name: getattr(self, name) for name in SCALARS}
        return {key: value for key, value in values.items() if value is not None}

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> DataOptions:
        """Return the options that correspond to these keyword arguments of `aspc.data.load`."""
        same: dict[str, Any] = {name: options.get(name) for name in SCALARS}
        same |= {name: tuple(options.get(key, ())) for name, key in LISTS.items()}
        return cls(
            map=tuple(f"{key}={_join(names)}" for key, names in options.get("key_map", {}).items()),
            missing=options.get("missing", "error"),
            action_low=_numbers(options.get("action_low", [])),
            action_high=_numbers(options.get("action_high", [])),
            strict=options.get("strict", False),
            **same,
        )

    def key_map(self) -> dict[str, str]:
        """Parse `--map`.

        Raises:
            AspcError: If an entry is not KEY=NAME, or if a key is duplicated.
        """
        pairs = {entry: entry.partition("=") for entry in self.map}
        for entry, parts in pairs.items():
            if not all(parts):
                raise AspcError(f"--map takes KEY=NAME or KEY=NAME,NAME, as in observations=level,flow, not {entry!r}.")
        for key, count in Counter(entry.partition("=")[0] for entry in self.map).items():
            if count > 1:
                raise AspcError(f"--map specifies {key!r} twice. Join its names with commas: {key}=NAME,NAME.")
        return {key: value for key, _, value in pairs.values()}


def _bound(values: tuple[float, ...]) -> float | list[float] | None:
    if not values:
        return None
    return values[0] if len(values) == 1 else list(values)


def _join(names: Any) -> str:
    return ",".join(map(str, names)) if isinstance(names, list | tuple) else str(names)


def _numbers(value: float | list[float]) -> tuple[float, ...]:
    return tuple(value) if isinstance(value, list) else (value,)
