"""The page in a real browser: controls work, nothing is loaded or sent, names are escaped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra [report] is not installed")
pytest.importorskip("plotly", reason="the extra [report] is not installed")
pytest.importorskip("rliable", reason="the extra [report] is not installed")

from pages import DATASETS, write_report
from synthetic import MAIN, Variant, make

from aspc.lab import results
from aspc.lab.report import statistics

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
EVIL = '</script><script>alert("1")</script><img src=x onerror=alert(2)>'
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield chromium
        chromium.close()


class WatchedPage:
    """A page that records errors, dialogs and requests."""

    def __init__(self, browser: Any, path: Path, width: int = 1400, scheme: str = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.page.on("console", lambda m: self.problems.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda r: None if r.url.startswith("file://") else self.problems.append(r.url[:100]))
        self.page.goto(path.as_uri())

    def show(self, chart: str) -> Any:
        """Scroll to a chart and wait until it is drawn."""
        place = self.page.locator(f'[data-chart="{chart}"]')
        place.scroll_into_view_if_needed()
        place.locator(".main-svg").first.wait_for()
        return place

    def traces(self, chart: str) -> list[Any]:
        """Return name and last value of each drawn line."""
        self.show(chart)
        return self.page.evaluate(
            """name => document.querySelector(`[data-chart="${name}"]`).data
               .filter(t => t.hoverinfo !== "skip").map(t => [t.name, t.y.at(-1)])""",
            chart,
        )

    def close(self) -> None:
        self.context.close()
        assert self.problems == []


@pytest.fixture(scope="module")
def one_page(browser: Any, page_path: Path) -> Iterator[WatchedPage]:
    watched = WatchedPage(browser, page_path)
    yield watched
    watched.close()


@pytest.fixture
def opened(one_page: WatchedPage) -> Iterator[WatchedPage]:
    """A page shared by tests that restore its state."""
    yield one_page
    assert one_page.problems == []


@needs_browser
def test_heading_sorts_the_table(opened: WatchedPage) -> None:
    table = opened.page.locator("table.scores").first
    values = "rows => rows.map(r => r.querySelector('td[data-l=\"0\"]')?.dataset.last).map(Number)"
    rows = table.locator("tbody tr")
    before = rows.all_inner_texts()
    assert any(text.strip() == "MUJOCO" for text in before)
    heading = table.get_by_role("button", name="ASPC")
    heading.click()
    down = rows.evaluate_all(values)
    assert len(down) == len(DATASETS)
    assert down == sorted(down, reverse=True)
    assert table.locator("th[data-label=ASPC]").get_attribute("aria-sort") == "descending"
    heading.click()
    assert rows.evaluate_all(values) == down[::-1]
    heading.click()
    assert rows.all_inner_texts() == before


@needs_browser
def test_chip_hides_an_algorithm_everywhere(opened: WatchedPage) -> None:
    page = opened.page
    assert "IQL" in [name for name, _ in opened.traces("curve-score")]
    column = page.locator("table.scores").first.locator("th[data-label=IQL]")
    assert column.is_visible()
    chip = page.locator("#chips").get_by_role("button", name="IQL", exact=True)
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"
    assert not column.is_visible()
    for chart in ("curve-score", "profiles", "radar"):
        opened.show(chart)
        names = page.evaluate(f"""document.querySelector('[data-chart="{chart}"]').data.map(t => t.name)""")
        assert "IQL" not in names
        assert "ASPC" in names
    chip.click()
    assert column.is_visible()
    assert "IQL" in [name for name, _ in opened.traces("curve-score")]


@needs_browser
def test_dataset_can_be_selected(opened: WatchedPage) -> None:
    before = dict(opened.traces("curve-score"))
    opened.page.locator("#dataset").select_option(label="hopper-expert-v2")
    assert opened.page.locator(".picked").inner_text() == "hopper-expert-v2"
    after = dict(opened.traces("curve-score"))
    assert before.keys() == after.keys()
    assert after["ASPC"] == pytest.approx(112.3, abs=5)
    assert before["ASPC"] == pytest.approx(58.7, abs=5)
    opened.page.locator("#dataset").select_option(label=DATASETS[0])


@needs_browser
def test_hovering_a_curve_shows_its_numbers(opened: WatchedPage) -> None:
    box = opened.show("curve-score").bounding_box()
    opened.page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
    label = opened.page.locator('[data-chart="curve-score"] .hoverlayer')
    label.get_by_text("ASPC").first.wait_for()
    assert "2 seeds" in label.text_content()


@needs_browser
def test_number_links_to_its_runs_and_run_opens_its_record(opened: WatchedPage) -> None:
    page = opened.page
    page.locator('tr[data-d*="hopper-medium-v2"] td[data-l="0"] a').first.click()
    assert page.locator("#count").inner_text() == "2 of 80 runs"
    assert {row.split("\t")[1] for row in page.locator("tr.run").all_inner_texts()} == {"hopper-medium-v2"}
    page.locator("tr.run").first.click()
    record = page.locator(".record").inner_text()
    for words in ("main_table: ASPC; necessity: dynamic", "dataset.name = hopper-medium-v2", "runs/aspc", "0123abc"):
        assert words in record
    page.locator("#clear").click()
    assert page.locator("#count").inner_text() == "80 of 80 runs"
    page.locator("#search").fill("rebrac pen")
    assert page.locator("#count").inner_text() == "2 of 80 runs"
    page.locator(".claim.holds a.num, .claim.fails a.num").first.evaluate("link => link.click()")
    assert page.locator("#count").inner_text() != "80 of 80 runs"
    page.locator("#clear").click()


@needs_browser
def test_claims_are_one_line_each_and_open(opened: WatchedPage) -> None:
    page = opened.page
    lines = page.locator(".claim > summary")
    assert lines.count() == 29
    heights = page.locator(".claim:not(:has(em)) > summary").evaluate_all(
        "all => all.map(x => x.getBoundingClientRect().height)"
    )
    assert max(heights) < 1.5 * min(heights)  # one line; a verdict on few datasets can take a second one
    first = page.locator(".claim.fails, .claim.holds").first
    assert not first.locator("li").first.is_visible()
    first.locator("summary").click()
    assert first.locator("li").first.is_visible()
    first.locator("summary").click()


@needs_browser
def test_best_evaluations_can_be_shown(opened: WatchedPage) -> None:
    page = opened.page
    cell = page.locator("table.scores").first.locator("td").first
    last = cell.inner_text()
    page.locator('[data-which="best"]').click()
    assert cell.inner_text() != last
    page.locator('[data-which="last"]').click()
    assert cell.inner_text() == last


@needs_browser
def test_tables_do_not_scroll_vertically(opened: WatchedPage) -> None:
    nested = """[...document.querySelectorAll("main *")].filter(e => !e.closest(".plot"))
        .filter(e => e.scrollHeight > e.clientHeight + 2 && ["auto", "scroll"].includes(getComputedStyle(e).overflowY)
                     && getComputedStyle(e).display !== "inline").map(e => e.className)"""
    assert opened.page.evaluate(nested) == []


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_is_printed(browser: Any, page_path: Path, scheme: str) -> None:
    watched = WatchedPage(browser, page_path, 1400, scheme)
    page = watched.page
    assert page.locator("tr.run").count() == 25
    printed = page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    assert page.locator(".plot:not(:has(.main-svg))").count() == 0
    assert page.locator("tr.run").count() == 80
    white = ("rgba(0, 0, 0, 0)", "rgb(251, 251, 250)")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") in white
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(22, 25, 29)"
    wide = """[...document.querySelectorAll("main *")].filter(e => e.getBoundingClientRect().width > 704)
        .map(e => e.className)"""
    assert page.evaluate(wide) == []
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("tr.run").count() == 25
    assert page.locator(".claim[open]").count() == 0
    watched.close()


@needs_browser
@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1400, "dark")])
def test_page_fits_phone_and_desktop_in_light_and_dark(
    browser: Any, page_path: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    watched = WatchedPage(browser, page_path, width, scheme)
    page = watched.page
    for chart in ("profiles", "radar", "curve-score", "ablation-0", "runtime"):
        watched.show(chart)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 19, 22)"
    assert dark == (scheme == "dark")
    page.locator("#theme").click()  # the other theme
    assert (page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 19, 22)") != dark
    # Only content of scrolling boxes exceeds the width.
    overflowing = page.evaluate(
        """width => [...document.querySelectorAll("main *, header *")].filter(e => !e.closest(".scroll, .plot"))
           .filter(e => e.getBoundingClientRect().right > width + 1).map(e => e.className)""",
        width,
    )
    assert overflowing == []
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert (tmp_path / "page.png").stat().st_size > 50_000
    watched.close()


@needs_browser
@pytest.mark.parametrize("width", [390, 1400])
def test_page_names_hidden_algorithms(
    browser: Any, tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "REPETITIONS", 20)
    many = [MAIN[0], *(Variant(f"k_alpha = {k}", "aspc", k_alpha=k) for k in range(11, 24))]
    make(tmp_path / "r", "own", many, DATASETS[:3], seeds=2, points=4)
    watched = WatchedPage(browser, write_report(tmp_path / "r", tmp_path / "out", "--no-figures"), width)
    page, last = watched.page, "ASPC, k_alpha = 23"
    notes, column = page.locator(".off"), page.locator("table.scores").first.locator(f'th[data-series="{last}"]')

    def drawn(chart: str) -> int:
        return len(watched.traces(chart))

    assert (drawn("curve-score"), drawn("profiles")) == (12, 12)
    assert not column.is_visible()
    assert notes.count() == 3  # in the summary, the scores and the curves
    hidden = f"Hidden: ASPC, k_alpha = 22; {last}. Show all"
    assert set(notes.all_inner_texts()) == {f"12 of the 14 algorithms in the first table are shown. {hidden}"}
    chips = page.locator("#chips")
    one_line = chips.bounding_box()["height"]
    page.locator("#open").click()  # not all of them fit
    assert page.locator("#open").get_attribute("aria-expanded") == "true"
    assert chips.bounding_box()["height"] > 1.5 * one_line
    chips.get_by_role("button", name=last).click()
    assert last in [name for name, _ in watched.traces("curve-score")]
    assert (
        "13 of the 14 algorithms in the first table are shown. Hidden: ASPC, k_alpha = 22." in notes.first.inner_text()
    )
    page.locator("#open").click()
    assert chips.bounding_box()["height"] == one_line
    notes.first.get_by_role("button").click()
    assert notes.locator("visible=true").count() == 0
    assert column.is_visible()
    assert (drawn("curve-score"), drawn("profiles")) == (14, 14)
    look = """document.querySelector('[data-chart="curve-score"]').data.filter(t => t.hoverinfo !== "skip")
        .map(t => t.line.color + t.line.dash)"""
    assert len(set(page.evaluate(look))) == 14
    assert watched.show("last_best").locator(".ytick").count() == 14  # one label per row
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    watched.close()


@needs_browser
def test_page_shows_no_note_if_all_algorithms_are_shown(opened: WatchedPage) -> None:
    assert opened.page.locator(".off:visible").count() == 0
    opened.page.locator("#chips").get_by_role("button", name="IQL", exact=True).click()
    assert (
        opened.page.locator(".off").first.inner_text().startswith("5 of the 6 algorithms in the first table are shown.")
    )
    opened.page.locator(".off button").first.click()
    assert opened.page.locator(".off:visible").count() == 0


@needs_browser
def test_html_and_scripts_in_names_are_escaped(browser: Any, tmp_path: Path) -> None:
    variants = [Variant(f"{EVIL} {i}", f"own{i}{EVIL}", note=EVIL) for i in range(2)]
    make(tmp_path / "r", "evil", variants, [f"a{EVIL}", f"b{EVIL}"], seeds=2, points=6)
    row = {"run_id": EVIL, "suite": EVIL, "variant": EVIL, "algo": "aspc", "dataset": EVIL, "seed": 0, "steps": 1}
    facts = {"score_last": 1.0, "folder": f"javascript:alert(3){EVIL}", "config": {EVIL: EVIL}, "device": EVIL}
    results.write_part(tmp_path / "r", "p", [{**row, **facts, "status": "done"}], [])
    watched = WatchedPage(browser, write_report(tmp_path / "r", tmp_path / "out", "--no-figures"))
    page = watched.page
    assert EVIL in page.locator("table.scores").first.inner_text()
    assert page.locator("main img, main script, header img").count() == 0
    watched.show("curve-score")
    box = page.locator('[data-chart="curve-score"]').bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
    page.locator(".hoverlayer").first.wait_for(state="attached")
    watched.show("profiles")
    page.locator("tr.run").first.click()
    assert EVIL in page.locator(".record").inner_text()
    page.wait_for_timeout(200)
    watched.close()


@needs_browser
@pytest.mark.parametrize("width", [390, 1400])
def test_charts_of_tasks_datasets_and_intervals(browser: Any, paper_page: Path, width: int) -> None:
    watched = WatchedPage(browser, paper_page, width)
    assert [name for name, _ in watched.traces("task-1")] == ["human-v1", "expert-v1"]
    colors = """name => document.querySelector(`[data-chart="${name}"]`).data.filter(t => t.hoverinfo !== "skip")
        .map(t => t.line?.color ?? t.marker.color + t.marker.pattern.shape)"""
    for chart in ("task-1", "dataset-0", "intervals"):
        watched.show(chart)
        found = watched.page.evaluate(colors, chart)
        assert len(set(found)) == len(found) > 1
    bars = watched.show("dataset-0")
    assert all(text.endswith(" %") for text in bars.locator(".annotation-text").all_text_contents())
    assert bars.locator(".annotation-text").count() == 2
    names = watched.page.evaluate("""document.querySelector('[data-chart="intervals"]').data.map(t => t.y[0])""")
    assert names == ["TD3+BC", "ASPC, k_alpha = 30", "ASPC"]  # from the bottom
    watched.close()
