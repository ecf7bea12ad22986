"""The numbers that the paper prints, as data: every table of results (its tables of settings are the "paper" presets).

    number("main_table", "hopper-medium-v2", "ASPC").mean            92.7
    tables()["main_table"].average("MuJoCo", "TD3+BC").doubt         "the rows give 69.0"

A number that there is reason to doubt says so. Each table is named after the suite that reproduces it, and its
variants have the suite's labels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

from aspc.errors import unknown_name

DOMAINS = {"MuJoCo": 18, "Maze2d": 3, "AntMaze": 6, "Adroit": 12}  # datasets of D4RL in each
TOTAL = "Total"  # the average over all of D4RL's datasets
_DOMAIN_OF_TASK = {
    **dict.fromkeys(("halfcheetah", "hopper", "walker2d"), "MuJoCo"),
    **dict.fromkeys(("pen", "door", "hammer", "relocate"), "Adroit"),
    "maze2d": "Maze2d",
    "antmaze": "AntMaze",
}


def domain_of(dataset: str) -> str:
    """Return the domain under which the paper averages a dataset, "OGBench", or "Other" if no benchmark has it."""
    if "singletask" in dataset:
        return "OGBench"
    if dataset.endswith("-clean"):  # Maze2d without action noise, which D4RL does not have
        return "Other"
    return _DOMAIN_OF_TASK.get(dataset.split("-")[0], "Other")


class PaperNumber(NamedTuple):
    """One printed number. `dataset` is a domain in tables of domains; `percent` is the change printed beside it."""

    table: str
    dataset: str
    variant: str
    mean: float
    std: float | None
    percent: float | None
    source: str
    doubt: str


class PaperTable(NamedTuple):
    """A table of results: what each row and variant scored, and the averages printed below."""

    name: str
    source: str
    title: str
    note: str
    variants: tuple[str, ...]
    numbers: Mapping[tuple[str, str], PaperNumber]
    averages: Mapping[tuple[str, str], PaperNumber]

    @property
    def rows(self) -> list[str]:
        """The datasets (or domains), in the table's order."""
        return list(dict.fromkeys(row for row, _ in self.numbers))

    def average(self, domain: str, variant: str) -> PaperNumber:
        """An average as it is printed."""
        return _at(self.averages, domain, variant, f"average in {self.source}")

    def recomputed(self, domain: str, variant: str) -> float:
        """The same average, computed from the table's own rows; a row that is a domain weighs as its datasets."""
        cells = [
            (self.numbers[row, variant].mean, DOMAINS.get(row, 1))
            for row in self.rows
            if domain not in DOMAINS or domain_of(row) == domain
        ]
        return sum(mean * weight for mean, weight in cells) / sum(weight for _, weight in cells)


@cache
def tables() -> Mapping[str, PaperTable]:
    """The paper's tables of results, by name."""
    text = resources.files(__package__).joinpath("paper_tables.json").read_text("utf-8")
    return {name: _table(name, content) for name, content in json.loads(text).items()}


def number(table: str, dataset: str, variant: str) -> PaperNumber:
    """One number of one table."""
    if table not in tables():
        raise unknown_name("table of the paper", table, tables())
    return _at(tables()[table].numbers, dataset, variant, f"row of {tables()[table].source}")


def _table(name: str, content: dict) -> PaperTable:
    doubts = {(d["row"], d["variant"]): d["why"] for d in content["doubts"]}

    def numbers(rows: dict[str, list[list[float | None]]]) -> dict[tuple[str, str], PaperNumber]:
        out = {}
        for row, cells in rows.items():
            for variant, cell in zip(content["variants"], cells, strict=True):
                mean, std, percent = (*cell, None, None)[:3]
                assert mean is not None
                doubt = doubts.get((row, variant), "")
                out[row, variant] = PaperNumber(name, row, variant, mean, std, percent, content["source"], doubt)
        return out

    averages = numbers(content["averages"])
    facts = (name, content["source"], content["title"], content["note"], tuple(content["variants"]))
    table = PaperTable(*facts, numbers(content["rows"]), averages)
    for (row, variant), printed in averages.items():  # as the page rounds what it computes from the rows
        rows = f"{table.recomputed(row, variant):.1f}"
        averages[row, variant] = printed._replace(doubt=printed.doubt.replace("{rows}", rows))
    return table


def _at(numbers: Mapping[tuple[str, str], PaperNumber], row: str, variant: str, what: str) -> PaperNumber:
    if (row, variant) not in numbers:
        raise unknown_name(what, f"{row}, {variant}", (f"{r}, {v}" for r, v in numbers))
    return numbers[row, variant]
