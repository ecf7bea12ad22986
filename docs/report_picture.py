"""Render the picture of a report in docs/report.md: the top of the page, and its curves next to it.

aspc report results --out page
python docs/report_picture.py page/index.html docs/images/report.png
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

WIDTH, HEIGHT = 1100, 1120  # of each half, in CSS pixels
BAR_HEIGHT = 90  # height of the sticky bar
PICTURE_WIDTH = 1300  # width of the picture in pixels


def capture(page: Page, section: str | None) -> Image.Image:
    """Return a screenshot at a section's heading, or at the top. Charts are drawn when they scroll into view."""
    page.evaluate("window.scrollTo(0, 0)")
    if section is not None:
        heading = page.evaluate("name => document.querySelector(`#${name} h2`).getBoundingClientRect().top", section)
        page.evaluate("y => window.scrollTo(0, y)", heading - BAR_HEIGHT)
    page.wait_for_timeout(2_000)
    return Image.open(io.BytesIO(page.screenshot()))


def main(report: str, picture: str) -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(Path(report).resolve().as_uri())
        halves = [capture(page, None), capture(page, "curves")]
        browser.close()
    combined = Image.new("RGB", (2 * WIDTH, HEIGHT))
    for i, image in enumerate(halves):
        combined.paste(image, (i * WIDTH, 0))
    small = combined.resize((PICTURE_WIDTH, PICTURE_WIDTH * HEIGHT // (2 * WIDTH)), Image.Resampling.LANCZOS)
    small.quantize(256).save(picture, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
