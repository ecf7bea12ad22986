"""The page of a dataset in a real browser."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from small_logs import make_log

from aspc.data import dataset_page
from aspc.data.dataset import Dataset


@pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is not installed (apt-get install chromium)")
def test_pages_with_long_names_fit_a_phone(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    names = tuple(f"the_flow_of_the_{'very_' * 12}large_pump_{i} [m³/h]" for i in range(3))
    dataset = Dataset.from_arrays(**make_log(rows=200), observation_names=names)
    dataset_page.write_page(dataset, tmp_path / "page.html")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 900})
        page.goto((tmp_path / "page.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert page.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
        browser.close()
