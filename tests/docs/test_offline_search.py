"""The site's search works in pages opened from disk, where browsers do not start workers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from doc_pages import REPOSITORY

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SHIM = REPOSITORY / "docs" / "assets" / "iframe-worker.js"
PAGE = """
<script src="iframe-worker.js"></script>
<body><script>
  window.answers = []
  const worker = new Worker("worker.js")
  worker.addEventListener("message", event => answers.push(event.data))
  worker.postMessage(2)
  worker.postMessage(3)
</script></body>
"""
WORKER = """
let factor = 1
const ready = importScripts("factor.js")
addEventListener("message", async event => { await ready; postMessage(event.data * factor) })
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_worker_answers_in_a_page_opened_from_disk(tmp_path: Path) -> None:
    shutil.copy(SHIM, tmp_path)
    for name, text in (("page.html", PAGE), ("worker.js", WORKER), ("factor.js", "factor = 10")):
        (tmp_path / name).write_text(text)
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        page = browser.new_page()
        page.goto((tmp_path / "page.html").as_uri())
        page.wait_for_function("answers.length == 2")
        assert page.evaluate("answers") == [20, 30]
        browser.close()


def test_the_site_uses_this_worker() -> None:
    configuration = (REPOSITORY / "mkdocs.yml").read_text()
    assert f"polyfills: [{SHIM.relative_to(REPOSITORY / 'docs').as_posix()}]" in configuration
    assert "\n  - offline" in configuration
