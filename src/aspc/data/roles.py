"""Guess the roles of columns from their names: the time column, and rewards that are costs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

TIME_NAMES = ("timestamp", "time", "datetime", "date_time", "time_stamp", "timestamps", "times", "date", "ts", "utc")
NO_TIME = "none"  # as in --map time=none
COST_WORDS = frozenset(
    [
        "cost",
        "costs",
        "kosten",
        "loss",
        "losses",
        "penalty",
        "penalties",
        "expense",
        "expenses",
        "error",
        "errors",
        "regret",
        "fee",
        "fees",
        "price",
        "prices",
    ]
)
GAIN_WORDS = frozenset(
    ["reward", "rewards", "neg", "negative", "minus", "reduction", "saving", "savings", "gain", "profit", "bonus"]
)
UNIT = re.compile(r"\s*[\[(]([^\[\]()]*)[\])]\s*$")


def find_time_column(
    columns: Sequence[str], is_time: Callable[[str], bool], is_date: Callable[[str], bool]
) -> str | None:
    """Return the time column, or None if there is no clear candidate.

    Args:
        columns: The columns that have no other role.
        is_time: Returns whether a column with a common time name holds dates or seconds since 1970.
        is_date: Returns whether a column holds dates.
    """
    by_name = {strip_unit(column).lower(): column for column in reversed(columns)}
    named = [by_name[name] for name in TIME_NAMES if name in by_name]
    found = next((column for column in named if is_time(column)), None)
    if found is not None:
        return found
    dates = [column for column in columns if is_date(column)]
    return dates[0] if len(dates) == 1 else None


def cost_note(column: str, *, is_mapped: bool) -> list[str]:
    """Return a warning if a reward column is named like a cost."""
    words = set(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", column).lower()))
    if not words & COST_WORDS or words & GAIN_WORDS:
        return []
    instead = " instead of --map rewards" if is_mapped else ""
    return [
        f"rewards are maximized, but {column!r} is named like a cost: if lower is better, pass "
        f"--map costs={column}{instead}; costs are negated."
    ]


def strip_unit(column: str) -> str:
    """Return a column's name without its unit: "temp" for "temp [°C]"."""
    return UNIT.sub("", column) or column


def unit_of(column: str) -> str:
    """Return the unit in a column's name: "°C" for "temp [°C]", "" if there is none."""
    match = UNIT.search(column)
    return match[1].strip() if match and UNIT.sub("", column) else ""
