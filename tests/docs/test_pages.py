"""Links, tables and navigation of the pages in the repository; `make docs` checks the site."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from doc_pages import REPOSITORY, anchors_of, links_of, name_of, pages, tokens_of

# Not by sys.path: tests have modules of the same names as that folder.
_SPEC = importlib.util.spec_from_file_location("readme_table", REPOSITORY / "benchmarks" / "readme_table.py")
assert _SPEC is not None
assert _SPEC.loader is not None
readme_table = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(readme_table)

PAGES = {name_of(page): page for page in pages()}


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page: str) -> None:
    """Check links to files and headings of the repository, not to other hosts."""
    for line, link in links_of(PAGES[page].read_text()):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = PAGES[page] if not path else (PAGES[page].parent / path).resolve()
        assert target.is_relative_to(REPOSITORY), f"{page}:{line}: {link} leaves the repository"
        assert target.exists(), f"{page}:{line}: {link} does not exist"
        if anchor and target.suffix == ".md":
            assert anchor in anchors_of(target.read_text()), f"{page}:{line}: heading {link} does not exist"


@pytest.mark.parametrize("page", PAGES)
def test_lists_and_tables_follow_a_blank_line(page: str) -> None:
    """GitHub renders a list or a table at the end of a paragraph; the site needs a blank line."""
    text = PAGES[page].read_text()
    lines = text.splitlines()
    for token in tokens_of(text):
        if token.type in ("bullet_list_open", "ordered_list_open", "table_open") and token.level == 0 and token.map:
            first = token.map[0]
            assert first == 0 or not lines[first - 1].strip(), f"{page}:{first + 1}: insert a blank line before it"


def test_every_page_is_in_the_navigation() -> None:
    navigation = (REPOSITORY / "mkdocs.yml").read_text()
    docs = REPOSITORY / "docs"
    missing = [path for path in docs.rglob("*.md") if f"- {path.relative_to(docs).as_posix()}\n" not in navigation]
    assert missing == []


def test_speed_table_matches_the_measurements(tmp_path: Path) -> None:
    text = (REPOSITORY / "README.md").read_text()
    assert readme_table.replace_table(text, readme_table.make_table()) == text, "run python benchmarks/readme_table.py"
    (tmp_path / "costs_2_cores.json").write_text(
        '{"speeds": [{"algo": "aspc", "seeds": 1, "steps_per_second": 100.0}]}'
    )
    assert "| GPU | | not measured | |" in readme_table.make_table(tmp_path)
    (tmp_path / "h200.json").write_text('{"rates": [{"device": "gpu: H200", "seeds": 4, "steps_per_second": 8000.0}]}')
    *_, gpu = readme_table.make_table(tmp_path).splitlines()
    assert gpu == "| H200 | 4 | 8,000 | 8.3 min |"


def test_pictures_are_small() -> None:
    large = {path.name for path in (REPOSITORY / "docs" / "images").iterdir() if path.stat().st_size > 300_000}
    assert large == set()


def test_named_tests_exist() -> None:
    """docs/reliability.md names test files relative to tests/."""
    named = set(re.findall(r"`((?:[a-z_]+/)*test_\w+\.py)`", (REPOSITORY / "docs" / "reliability.md").read_text()))
    assert named
    assert {name for name in named if not (REPOSITORY / "tests" / name).is_file()} == set()
