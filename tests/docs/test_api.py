"""docs/api.md lists every public name, and each has a docstring."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

import pytest
from doc_pages import REPOSITORY

import aspc

LISTED = re.findall(r"^::: (\S+)$", (REPOSITORY / "docs" / "api.md").read_text(), re.MULTILINE)
PACKAGES = ("aspc", "aspc.data", "aspc.envs", "aspc.assessment", "aspc.export")  # those with __all__


def resolve(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def undocumented(name: str) -> list[str]:
    """Return those of an object and its public methods and properties that have no docstring."""
    found = resolve(name)
    parts = {name: found}
    if inspect.isclass(found):
        own = {key: value for key, value in vars(found).items() if not key.startswith("_")}
        parts |= {
            f"{name}.{key}": value
            for key, value in own.items()
            if isinstance(value, property | classmethod | staticmethod) or inspect.isfunction(value)
        }
    return [part for part, value in parts.items() if not (getattr(value, "__doc__", None) or "").strip()]


@pytest.mark.parametrize("name", LISTED)
def test_listed_names_have_docstrings(name: str) -> None:
    assert undocumented(name) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_are_listed(package: str) -> None:
    public = {resolve(f"{package}.{name}") for name in import_module(package).__all__ if name != "main"}
    assert {found.__name__ for found in public - {resolve(name) for name in LISTED}} == set()


def test_top_level_names_are_public() -> None:
    assert sorted(aspc.__all__) == dir(aspc)
