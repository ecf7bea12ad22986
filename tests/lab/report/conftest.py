"""Fixtures of the report's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from aspc.lab.report import statistics


@pytest.fixture(autouse=True)
def few_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few bootstrap repetitions to keep the tests fast."""
    monkeypatch.setattr(statistics, "REPETITIONS", 100)


# The pages need the extra [report], so they are imported only by tests that use them.


@pytest.fixture(scope="session")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pages import write_main_page

    return write_main_page(tmp_path_factory.mktemp("main_page"))


@pytest.fixture(scope="session")
def paper_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pages import write_paper_page

    return write_paper_page(tmp_path_factory.mktemp("paper_page"))
