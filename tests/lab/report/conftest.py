"""Shared by the tests of the report."""

from __future__ import annotations

import pytest

from aspc.lab.report import statistics


@pytest.fixture(autouse=True)
def few_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short bootstrap; what is tested is what it is of, and its ends against rliable's own."""
    monkeypatch.setattr(statistics, "REPETITIONS", 100)
