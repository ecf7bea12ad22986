"""Format numbers as text."""

from __future__ import annotations

import math

import numpy as np

from aspc.lab.report.statistics import IntervalEstimate


def format_number(value: float, digits: int = 1) -> str:
    """Format a number with a true minus sign. NaN and infinity become a dash."""
    if not math.isfinite(value):
        return "–"
    rounded = f"{value:,.{digits}f}"
    return (rounded.lstrip("-") if float(rounded.replace(",", "")) == 0 else rounded).replace("-", "−")


def format_interval(estimate: IntervalEstimate, digits: int = 1) -> str:
    """Format an interval as "low to high", or as an empty string if there is none."""
    if not estimate.has_interval:
        return ""
    return f"{format_number(estimate.low, digits)} to {format_number(estimate.high, digits)}"


def choose_digits(value: float) -> int:
    """Return the number of decimals for about three significant digits."""
    if not math.isfinite(value) or value == 0:
        return 1
    return int(np.clip(2 - math.floor(math.log10(abs(value))), 1, 4)) if abs(value) < 10 else 1


def pluralize(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"
