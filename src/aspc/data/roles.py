"""Guess the roles of columns from their names: the time column, and rewards that are costs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from aspc.text import join_limited

TIME_NAMES = ("timestamp", "time", "datetime", "date_time", "time_stamp", "timestamps", "times", "date", "ts", "utc")
OTHER_TIME_NAMES = (
    "t",
    "elapsed",
    "elapsed_time",
    "sim_time",
    "created_at",
    "recorded_at",
    "datum",
    "zeit",
    "zeitstempel",
)
NO_TIME = "none"  # as in --map time=none
COST_WORD = re.compile("costs?|kosten|loss(es)?|penalt(y|ies)|expenses?|errors?|regret|fees?|prices?")
GAIN_WORD = re.compile("rewards?|neg(ative)?|minus|reduction|savings?|gain|profit|bonus")
EXAMPLE_TIME = "2024-12-31 23:59:59"
MAX_SHOWN_TIMES = 3
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


def is_named_like_time(column: str) -> bool:
    """Return whether a column has a common name for times."""
    return strip_unit(column).lower() in (*TIME_NAMES, *OTHER_TIME_NAMES)


def unchecked_order_note(columns: Sequence[str]) -> list[str]:
    """Return a warning about columns that seem to hold times, but are not used."""
    if not columns:
        return []
    shown = join_limited(list(map(repr, columns)), MAX_SHOWN_TIMES)
    return [
        f"the order of the rows is not checked: a time column seems to be unused ({shown}). Pass --map "
        f"time={columns[0]} if it holds numbers or dates such as {EXAMPLE_TIME}; convert dates in other formats to "
        "this one. If the rows are in order, pass --map time=none."
    ]


def is_named_like_cost(column: str) -> bool:
    """Return whether a column's name indicates a cost."""
    words = set(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", column).lower()))
    return any(map(COST_WORD.fullmatch, words)) and not any(map(GAIN_WORD.fullmatch, words))


def cost_notes(columns: Sequence[str], remedy: str) -> list[str]:
    """Return a warning for each column of rewards that is named like a cost."""
    return [
        f"rewards are maximized, but {column!r} is named like a cost: if lower is better, {remedy.format(column)}."
        for column in columns
        if is_named_like_cost(column)
    ]


def strip_unit(column: str) -> str:
    """Return a column's name without its unit: "temp" for "temp [°C]"."""
    return UNIT.sub("", column) or column


def unit_of(column: str) -> str:
    """Return the unit in a column's name: "°C" for "temp [°C]", "" if there is none."""
    match = UNIT.search(column)
    return match[1].strip() if match and UNIT.sub("", column) else ""
