"""Release metadata: the version, the dependencies and their pins, and the citation."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import pytest

import aspc

packaging = pytest.importorskip("packaging.requirements", reason="the development tools are not installed")
yaml = pytest.importorskip("yaml", reason="the development tools are not installed")

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
NOT_IMPORTED = {"flatbuffers"}  # jax.export needs it to serialize a program, but does not require it


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").split()
    return {normalize(name): number for name, _, number in (line.partition("==") for line in lines)}


def test_version_matches_the_changelog_and_the_installation() -> None:
    newest = re.search(r"^## (\d\S*) \((\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == aspc.__version__ == version("aspc")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert (cited["version"], str(cited["date-released"])) == newest.groups()


def test_version_is_printed_without_package_metadata() -> None:
    script = "import sys; sys.path.insert(0, sys.argv[1]); from aspc.__main__ import main; main(['--version'])"
    # -I -S: without site-packages, where the metadata is
    words = [sys.executable, "-I", "-S", "-c", script, str(ROOT / "src")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"aspc {aspc.__version__}\n", "")


@pytest.mark.parametrize("extra", ["core", *EXTRAS])
def test_every_requirement_has_a_valid_pin(extra: str) -> None:
    pinned = pins()
    for text in PROJECT["dependencies"] if extra == "core" else EXTRAS[extra]:
        wanted = packaging.Requirement(text)
        if wanted.name == "aspc":
            assert wanted.extras <= set(EXTRAS)
        else:
            assert wanted.specifier.contains(pinned[normalize(wanted.name)]), text


def imported() -> Iterator[str]:
    """Yield the packages that the library imports, at any level of its files."""
    for file in (ROOT / "src" / "aspc").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module.partition(".")[0]


def test_imports_are_declared_and_core_dependencies_are_imported() -> None:
    homes = packages_distributions()
    own = {"aspc", "_typeshed"}  # the latter exists for type checkers only
    foreign = {name for name in imported() if name not in {*sys.stdlib_module_names, *own}}
    used = {normalize(home) for name in foreign for home in homes.get(name, [name])}  # extras may be missing
    core = {normalize(packaging.Requirement(text).name) for text in PROJECT["dependencies"]}
    optional = {normalize(packaging.Requirement(text).name) for texts in EXTRAS.values() for text in texts}
    assert used <= core | optional
    assert core - used == NOT_IMPORTED


def check_authors(entry: dict[str, Any]) -> None:
    """Check that a person has two names, and any other author one."""
    assert entry["authors"]
    for author in entry["authors"]:
        assert {"given-names", "family-names"} <= set(author) or "name" in author


def test_citation_has_the_required_fields() -> None:
    stated = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert stated["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(stated)
    assert stated["license"] == PROJECT["license"]
    paper = stated["preferred-citation"]
    assert {"type", "title", "authors"} <= set(paper)
    assert {"https://arxiv.org/abs/2306.03680", "https://arxiv.org/abs/2609.40149"} == {
        entry["url"] for entry in stated["references"]
    }
    for entry in (stated, paper, *stated["references"]):
        assert entry["title"]
        check_authors(entry)


def test_container_installs_existing_extras() -> None:
    asked = re.search(r"^ARG EXTRAS=(\S+)", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert asked is not None
    assert set(asked[1].split(",")) <= set(EXTRAS)
