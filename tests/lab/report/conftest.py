"""Fixtures of the report's tests."""

from __future__ import annotations

import pytest

from aspc.lab.report import statistics


@pytest.fixture(autouse=True)
def few_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few bootstrap repetitions to keep the tests fast."""
    monkeypatch.setattr(statistics, "REPETITIONS", 100)
