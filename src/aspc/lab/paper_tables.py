"""The numbers printed in the paper's result tables.

The paper's tables of hyperparameters are available as the presets named "paper" (`aspc.presets`). Examples:

    number("main_table", "hopper-medium-v2", "ASPC").mean            92.7
    tables()["main_table"].average("MuJoCo", "TD3+BC").doubt         "the average of the rows is 69.0"

`doubt` explains why a number may be wrong. Each table has the name of the suite that reproduces it, and its variants
have the labels used in that suite.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from aspc.errors import unknown_name

DOMAINS = {"MuJoCo": 18, "Maze2d": 3, "AntMaze": 6, "Adroit": 12}  # number of D4RL datasets per domain
TOTAL = "Total"  # the average over all D4RL datasets
_DOMAIN_OF_TASK = {
    **dict.fromkeys(("halfcheetah", "hopper", "walker2d"), "MuJoCo"),
    **dict.fromkeys(("pen", "door", "hammer", "relocate"), "Adroit"),
    "maze2d": "Maze2d",
    "antmaze": "AntMaze",
}


def domain_of(dataset: str) -> str:
    """Return the domain under which the paper averages a dataset, "OGBench", or "Other" if no benchmark contains it."""
    if "singletask" in dataset:
        return "OGBench"
    if dataset.endswith("-clean"):  # Maze2d without action noise: not a D4RL dataset
        return "Other"
    return _DOMAIN_OF_TASK.get(dataset.split("-")[0], "Other")


class PaperNumber(NamedTuple):
    """One printed number.

    In tables with one row per domain, `dataset` is the domain. `percent` is the printed change, if there is one.
    """

    table: str
    dataset: str
    variant: str
    mean: float
    std: float | None
    percent: float | None
    source: str
    doubt: str


class PaperTable(NamedTuple):
    """A table of results: the scores by row and variant, and the printed averages.

    Attributes:
        copied: variant → the works (`aspc.lab.works`) from which the authors copied the numbers. The authors ran all
            other variants themselves.
    """

    name: str
    source: str
    title: str
    note: str
    variants: tuple[str, ...]
    numbers: Mapping[tuple[str, str], PaperNumber]
    averages: Mapping[tuple[str, str], PaperNumber]
    copied: Mapping[str, tuple[str, ...]]

    @property
    def rows(self) -> list[str]:
        """The datasets (or domains), in the table's order."""
        return list(dict.fromkeys(row for row, _ in self.numbers))

    def average(self, domain: str, variant: str) -> PaperNumber:
        """Return a printed average."""
        return _look_up(self.averages, domain, variant, f"average in {self.source}")

    def with_labels(self, labels: Mapping[str, str]) -> PaperTable:
        """Return the table with only these columns, renamed.

        Args:
            labels: The new name of each column to keep.
        """

        def rename(numbers: Mapping[tuple[str, str], PaperNumber]) -> dict[tuple[str, str], PaperNumber]:
            return {(row, labels[name]): number for (row, name), number in numbers.items() if name in labels}

        return self._replace(
            variants=tuple(labels[name] for name in self.variants if name in labels),
            numbers=rename(self.numbers),
            averages=rename(self.averages),
        )

    def recompute_average(self, domain: str, variant: str) -> float:
        """Compute an average from the table's rows, in which a domain is weighted by its number of datasets."""
        cells = [
            (self.numbers[row, variant].mean, DOMAINS.get(row, 1))
            for row in self.rows
            if domain not in DOMAINS or domain_of(row) == domain
        ]
        return sum(mean * weight for mean, weight in cells) / sum(weight for _, weight in cells)


@cache
def tables() -> Mapping[str, PaperTable]:
    """Return the paper's tables of results, by name."""
    text = resources.files(__package__).joinpath("paper_tables.json").read_text("utf-8")
    return {name: _parse_table(name, content) for name, content in json.loads(text).items()}


def number(table: str, dataset: str, variant: str) -> PaperNumber:
    """Return one number of a table.

    Raises:
        AspcError: The table, row or variant is unknown.
    """
    if table not in tables():
        raise unknown_name("table of the paper", table, tables())
    return _look_up(tables()[table].numbers, dataset, variant, f"row of {tables()[table].source}")


def _parse_table(name: str, content: dict[str, Any]) -> PaperTable:
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
    copied = {variant: tuple(keys) for variant, keys in content.get("copied", {}).items()}
    table = PaperTable(*facts, numbers(content["rows"]), averages, copied)
    for (row, variant), printed in averages.items():
        rows = f"{table.recompute_average(row, variant):.1f}"
        averages[row, variant] = printed._replace(doubt=printed.doubt.replace("{rows}", rows))
    return table


def _look_up(numbers: Mapping[tuple[str, str], PaperNumber], row: str, variant: str, kind: str) -> PaperNumber:
    if (row, variant) not in numbers:
        raise unknown_name(kind, f"{row}, {variant}", (f"{r}, {v}" for r, v in numbers))
    return numbers[row, variant]
