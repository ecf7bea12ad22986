"""Numbers and choices in messages."""

from __future__ import annotations

import pytest

from aspc.text import format_interval, format_number, join_choices


@pytest.mark.parametrize(
    ("value", "digits", "sign", "expected"),
    [
        (0.123456, 4, "", "0.1235"),
        (12345.6, 4, "", "12,346"),
        (131.2, 2, "", "131"),
        (99.6, 2, "", "100"),
        (-108.74, 4, "+", "-108.7"),
        (0.2596, 3, "+", "+0.26"),
        (3e9, 4, "", "3e+09"),
        (0.0, 4, "", "0"),
    ],
)
def test_numbers_keep_their_significant_digits(value: float, digits: int, sign: str, expected: str) -> None:
    assert format_number(value, digits, sign) == expected


def test_intervals_show_their_signs() -> None:
    assert format_interval(-6.596, 12345.6) == "[-6.596, +12,346]"


def test_choices_are_joined_with_or() -> None:
    assert [join_choices(given) for given in [("mean", "min"), (1, 2, 3), ("only",)]] == [
        "'mean' or 'min'",
        "1, 2 or 3",
        "'only'",
    ]
