"""Helpers for message texts and for sorting names."""

from __future__ import annotations

import re
from collections.abc import Sequence


def join_limited(items: Sequence[str], limit: int, separator: str = ", ") -> str:
    """Join the first `limit` items, followed by "and N more" if there are more."""
    shown = separator.join(items[:limit])
    return f"{shown} and {len(items) - limit} more" if len(items) > limit else shown


def join_choices(choices: Sequence[object]) -> str:
    """Return "'a', 'b' or 'c'", with the `repr` of each choice."""
    return " or ".join(filter(None, (", ".join(map(repr, choices[:-1])), repr(choices[-1]))))


def count_noun(count: int, noun: str, verbs: tuple[str, str] | None = None) -> str:
    """Return "1 row" or "2 rows". With verbs, such as ("is", "are"), append the form that agrees."""
    text = f"{count:,} {noun}{'s' * (count != 1)}"
    return text if verbs is None else f"{text} {verbs[count != 1]}"


def format_number(value: float, digits: int = 4, sign: str = "") -> str:
    """Format a number with `digits` significant digits; longer ones below ten million are rounded to an integer.

    Args:
        value: The number.
        digits: The number of significant digits.
        sign: "+" to show the sign of positive numbers too.
    """
    rounded = f"{value:{sign}.{digits}g}"
    return f"{value:{sign},.0f}" if 10**digits <= abs(float(rounded)) < 1e7 else rounded


def format_interval(low: float, high: float, digits: int = 4) -> str:
    """Return "[+1.5, +20]", with signs."""
    return f"[{format_number(low, digits, '+')}, {format_number(high, digits, '+')}]"


def natural_sort_key(text: str, *, decimals: bool = False) -> list[str | int | float]:
    """Return a sort key that compares numbers by value: obs_2 comes before obs_10.

    Args:
        text: The name to sort.
        decimals: Read "0.5" and "1e-3" as one number each instead of two.
    """
    parts = re.split(r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)" if decimals else r"(\d+)", text)
    number = float if decimals else int
    return [number(part) if i % 2 else part for i, part in enumerate(parts)]
