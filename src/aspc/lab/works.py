"""The publications (listed in works.json) from which published numbers are taken."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple


class Work(NamedTuple):
    """A publication."""

    authors: str
    title: str
    venue: str

    def __str__(self) -> str:
        return f"{self.authors}: {self.title}, {self.venue}"


@cache
def works() -> Mapping[str, Work]:
    """Return the publications by key."""
    text = resources.files(__package__).joinpath("works.json").read_text("utf-8")
    return {key: Work(**facts) for key, facts in json.loads(text).items()}
