"""Derive the task, data quality and display order of datasets from their names."""

from __future__ import annotations

from collections.abc import Iterable

from aspc.lab.paper_tables import PaperTable, domain_of, tables
from aspc.tasks import without_version

LOCOMOTION = ("halfcheetah", "hopper", "walker2d")
TASKS = (*LOCOMOTION, "maze2d", "antmaze", "pen", "door", "hammer", "relocate")
QUALITIES = ("expert", "medium-expert", "medium", "medium-replay", "full-replay", "random")  # best data first
D4RL = ("MuJoCo", "Maze2d", "AntMaze", "Adroit")
DOMAINS = (*D4RL, "OGBench", "Other")


def task_of(dataset: str) -> str:
    """Return the task of a dataset: the first word of its name for D4RL datasets, and the whole name for all others."""
    word = without_version(dataset).split("-")[0]
    is_d4rl = word in TASKS and domain_of(dataset) not in ("OGBench", "Other")
    return word if is_d4rl else without_version(dataset)


def quality_of(dataset: str) -> str | None:
    """Return the data quality that a locomotion dataset has in its name, or None for other datasets."""
    task, _, rest = without_version(dataset).partition("-")
    return rest if task in LOCOMOTION and rest in QUALITIES else None


def sort_datasets(datasets: Iterable[str]) -> list[str]:
    """Remove duplicates and sort datasets by domain, then in the order of the paper's tables, then by name."""
    printed = [name for table in ("main_table", "ogbench") for name in tables()[table].rows]
    known = {without_version(name): i for i, name in enumerate(printed)}

    def sort_key(name: str) -> tuple[int, int, str]:
        return DOMAINS.index(domain_of(name)), known.get(without_version(name), len(known)), name

    return sorted(set(datasets), key=sort_key)


def find_paper_row(table: PaperTable, dataset: str) -> str | None:
    """Return the name of a dataset's row in a table of the paper.

    Regenerated datasets have no version in their name, so they match the paper's row for any version.
    """
    return next((row for row in table.rows if row == dataset or without_version(row) == dataset), None)
