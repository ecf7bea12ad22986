"""Links, tables and navigation of the pages in the repository; `make docs` checks the site."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from doc_pages import REPOSITORY, anchors_of, links_of, name_of, pages, tokens_of


def load_module(name: str, path: Path) -> ModuleType:
    """Import a file, not by sys.path: tests have modules of the same names as its folder."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


readme_table = load_module("readme_table", REPOSITORY / "benchmarks" / "readme_table.py")

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


GROUPS = ("Start", "Guides", "Reference", "Research")
MUST_READ = ("Start", "Guides")
MOST_WORDS = 799
GENERATED = re.compile(r"<!-- (?:help|settings): |^::: ", re.MULTILINE)  # what docs/hooks.py and mkdocstrings replace


def navigation() -> dict[str, list[str]]:
    """Return the pages of each group of the site's navigation."""
    yaml = pytest.importorskip("yaml", reason="the development tools are not installed")
    text = (REPOSITORY / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("\n\n")[0]
    (groups,) = [{key: list(leaves(value)) for entry in yaml.safe_load(text) for key, value in entry.items()}]
    return groups


def leaves(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from leaves(part)


def text_of(page: str) -> str:
    """Return what a reader of a page of the site sees: its text with code and outputs, without comments."""
    outside = {"index.md": "README.md", "notebook.md": "examples/first_policy.ipynb"}
    path = REPOSITORY / outside.get(page, f"docs/{page}")
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        printed = [line for cell in cells for output in cell.get("outputs", ()) for line in output.get("text", ())]
        text = "\n".join(["".join(cell["source"]) for cell in cells] + printed)
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def count_words(text: str) -> int:
    return len(re.findall(r"\S*\w\S*", text))


def test_the_site_has_four_groups() -> None:
    assert tuple(navigation()) == GROUPS


def test_pages_that_a_user_must_read_are_short() -> None:
    words = {page: count_words(text_of(page)) for group in MUST_READ for page in navigation()[group]}
    assert len(words) > 10
    assert {page: number for page, number in words.items() if number > MOST_WORDS} == {}


def test_readme_fits_on_one_screen() -> None:
    assert 300 < count_words(text_of("index.md")) <= 450
    text = (REPOSITORY / "README.md").read_text("utf-8")
    assert len(re.findall(r"^```\w", text, re.MULTILINE)) == 3
    assert len(re.findall(r"^!\[", text, re.MULTILINE)) == 1
    assert len([token for token in tokens_of(text) if token.type == "table_open"]) == 1
    (next_pages,) = re.findall(r"^\*\*Next:\*\*.*?(?=\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(re.findall(r"\]\(", next_pages)) <= 8


def test_words_are_counted_in_text_tables_and_code() -> None:
    assert count_words("Two words\n\n| a | 1.5 |\n|---|---|\n\n```sh\naspc train\n```\n") == 7


def test_generated_text_is_marked() -> None:
    """A page that the site fills in says so, next to what it fills in."""
    generated = [page for page, path in PAGES.items() if GENERATED.search(path.read_text())]
    assert {"docs/commands.md", "docs/configuration.md", "docs/api.md"} <= set(generated)
    unmarked = [p for p in generated if not re.search(r"\bgenerated\b|replaces each", PAGES[p].read_text())]
    assert unmarked == []


def test_tables_of_settings_are_complete() -> None:
    pytest.importorskip("mkdocs", reason="the documents' tools are not installed")
    from aspc import algorithms
    from aspc.training.run_config import TrainOptions

    hooks = load_module("docs_hooks", REPOSITORY / "docs" / "hooks.py")
    run, table = hooks.run_settings(), hooks.algorithm_settings()
    assert len(run.splitlines()) == 2 + len(fields(TrainOptions))
    assert "| `--eval-every` | Steps between evaluations in the environment. | 5000 |" in run
    listed = set(re.findall(r"^\| `--([\w-]+)` \| \S", table, re.MULTILINE))
    for name in algorithms.names():
        algorithm = algorithms.default(name)
        options = {field.name for field in fields(algorithm)}
        if "base" in options:
            options = options - {"base"} | {field.name for field in fields(algorithm.base)}  # type: ignore[attr-defined]
        assert {option.replace("_", "-") for option in options} <= listed, name


def test_comparison_matches_the_measurements(tmp_path: Path) -> None:
    text = (REPOSITORY / "README.md").read_text()
    assert readme_table.make_text() in text
    assert readme_table.replace_table(text, readme_table.make_text()) == text, "run python benchmarks/readme_table.py"
    assert readme_table.replace_table(text.replace("(JAX) |", "|"), readme_table.make_text()) == text
    (tmp_path / "costs_2_cores.json").write_text(
        '{"speeds": [{"algo": "aspc", "seeds": 1, "steps_per_second": 100.0}]}'
    )
    assert readme_table.make_sentence(tmp_path) == "A million steps of ASPC take 2.8 hours on two CPU cores.\n"
    assert all(row.endswith("| – |") for row in readme_table.make_table(tmp_path).splitlines()[2:])
    rates = [{"device": "gpu: NVIDIA H200", "seeds": n, "steps_per_second": 8000.0} for n in (1, 2, 4)]
    (tmp_path / "h200.json").write_text(json.dumps({"rates": rates}))
    (tmp_path / "side_by_side_h200.json").write_text('{"side_by_side": {"CORL": {"1": 1000, "64": 2000.4}}}')
    assert readme_table.make_sentence(tmp_path) == (
        "A million steps of ASPC take 2.8 hours on two CPU cores or 2.1 minutes on an H200, where 4 runs together take "
        "8.3 minutes.\n"
    )
    assert "| 1,000 and 2,000 |" in readme_table.make_table(tmp_path).splitlines()[3]


def test_side_by_side_speeds_are_those_of_the_page() -> None:
    page = (REPOSITORY / "benchmarks" / "README.md").read_text()
    measured = json.loads((REPOSITORY / "benchmarks" / "results" / "side_by_side_h200.json").read_text())
    for library, rates in measured["side_by_side"].items():
        assert f"| {library} | {rates['1']:,} | {rates['64']:,} |" in page


def test_pictures_are_small() -> None:
    large = {path.name for path in (REPOSITORY / "docs" / "images").iterdir() if path.stat().st_size > 300_000}
    assert large == set()


def test_named_tests_exist() -> None:
    """docs/reliability.md names test files relative to tests/."""
    named = set(re.findall(r"`((?:[a-z_]+/)*test_\w+\.py)`", (REPOSITORY / "docs" / "reliability.md").read_text()))
    assert named
    assert {name for name in named if not (REPOSITORY / "tests" / name).is_file()} == set()
