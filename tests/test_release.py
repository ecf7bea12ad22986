"""What a release states: its version, its dependencies and their pins, and how to cite it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import pytest

packaging = pytest.importorskip("packaging.requirements", reason="the development tools are not installed")
yaml = pytest.importorskip("yaml", reason="the development tools are not installed")

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
NOT_IMPORTED = {"flatbuffers"}  # jax.export needs it to write a program, and does not ask for it


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").split()
    return {plain(name): number for name, _, number in (line.partition("==") for line in lines)}


def test_the_version_is_that_of_the_changelog_and_of_what_is_installed() -> None:
    newest = re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == PROJECT["version"] == version("aspc")


@pytest.mark.parametrize("extra", ["core", *EXTRAS])
def test_every_requirement_is_pinned_to_a_version_that_it_allows(extra: str) -> None:
    pinned = pins()
    for text in PROJECT["dependencies"] if extra == "core" else EXTRAS[extra]:
        wanted = packaging.Requirement(text)
        if wanted.name == "aspc":
            assert wanted.extras <= set(EXTRAS)
        else:
            assert wanted.specifier.contains(pinned[plain(wanted.name)]), text


def imported() -> Iterator[str]:
    """The packages that the library imports, wherever in a file it does so."""
    for file in (ROOT / "src" / "aspc").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module.partition(".")[0]


def test_what_is_imported_is_declared_and_the_core_is_all_imported() -> None:
    homes = packages_distributions()
    foreign = {name for name in imported() if name not in sys.stdlib_module_names and name != "aspc"}
    used = {plain(home) for name in foreign for home in homes.get(name, [name])}  # extras need not be installed
    core = {plain(packaging.Requirement(text).name) for text in PROJECT["dependencies"]}
    optional = {plain(packaging.Requirement(text).name) for texts in EXTRAS.values() for text in texts}
    assert used <= core | optional
    assert core - used == NOT_IMPORTED


def check_authors(entry: dict[str, Any]) -> None:
    """A person has names, anything else has one."""
    assert entry["authors"]
    for author in entry["authors"]:
        assert {"given-names", "family-names"} <= set(author) or "name" in author


def test_the_citation_has_what_its_format_requires() -> None:
    stated = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert stated["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(stated)
    assert stated["license"] == PROJECT["license"]
    paper = stated["preferred-citation"]
    assert {"type", "title", "authors"} <= set(paper)
    for entry in (stated, paper):
        check_authors(entry)


def test_the_container_asks_for_extras_that_exist() -> None:
    asked = re.search(r"^ARG EXTRAS=(\S+)", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert asked is not None
    assert set(asked[1].split(",")) <= set(EXTRAS)
