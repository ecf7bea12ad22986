"""What docs/api.md shows is there, and says what it is."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

import pytest
from doc_pages import REPOSITORY

import aspc

SHOWN = re.findall(r"^::: (\S+)$", (REPOSITORY / "docs" / "api.md").read_text(), re.MULTILINE)
PACKAGES = ("aspc", "aspc.data", "aspc.envs", "aspc.assessment", "aspc.export")  # those that state what is public


def find(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def undocumented(name: str) -> list[str]:
    """The object, or those of its public methods and properties, that have no docstring of their own."""
    found = find(name)
    parts = {name: found}
    if inspect.isclass(found):
        own = {key: value for key, value in vars(found).items() if not key.startswith("_")}
        parts |= {
            f"{name}.{key}": value
            for key, value in own.items()
            if isinstance(value, property | classmethod | staticmethod) or inspect.isfunction(value)
        }
    return [part for part, value in parts.items() if not (getattr(value, "__doc__", None) or "").strip()]


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown_says_what_it_is(name: str) -> None:
    assert undocumented(name) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_what_is_public_is_shown(package: str) -> None:
    public = {find(f"{package}.{name}") for name in import_module(package).__all__ if name != "main"}
    assert {thing.__name__ for thing in public - {find(name) for name in SHOWN}} == set()


def test_the_top_of_the_package_is_public() -> None:
    assert sorted(aspc.__all__) == dir(aspc)
