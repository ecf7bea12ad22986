"""The numbers of the paper's tables: completeness and consistency."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest

from aspc import tasks
from aspc.errors import AspcError
from aspc.lab.paper_tables import DOMAINS, TOTAL, domain_of, number, tables
from aspc.lab.works import works

ROOT = Path(__file__).parents[2]

# Printed averages that differ from the mean of the printed rows: (table, average, variant).
NOT_REPRODUCED = {
    ("main_table", "MuJoCo", "TD3+BC"),
    ("main_table", "MuJoCo", "wPC"),
    ("main_table", "Maze2d", "IQL"),
    ("main_table", "Adroit", "wPC"),
    ("main_table", TOTAL, "TD3+BC"),
    ("main_table", TOTAL, "IQL"),
    ("main_table", TOTAL, "wPC"),
}
AVERAGES = [(t.name, *key) for t in tables().values() for key in t.averages]


def test_sizes_and_sample_numbers() -> None:
    sizes = {t.name: (len(t.rows), len(t.variants)) for t in tables().values()}
    assert sizes == {
        "main_table": (39, 6),
        "necessity": (4, 4),
        "integrations": (9, 6),
        "ogbench": (10, 6),
        "l3_forms": (4, 5),
    }
    assert number("main_table", "maze2d-umaze-v1", "IQL")[3:5] == (-8.9, 6.1)
    assert number("main_table", "relocate-expert-v1", "ASPC")[3:5] == (111.2, 2.4)
    assert number("necessity", "Adroit", "converged")[3:6] == (49.1, None, -1.6)
    assert number("integrations", "walker2d-medium-v2", "Diffusion-QL+ASPC")[3:6] == (80.3, None, -7.7)
    assert number("ogbench", "antmaze-giant-navigate-singletask-task2-v0", "ASPC")[3:5] == (74.0, 19.0)
    assert number("l3_forms", "AntMaze", "(1)")[3:6] == (31.7, None, -57.4)
    assert tables()["ogbench"].average("Average", "FQL+ASPC").mean == 49.5


def test_the_main_table_is_complete() -> None:
    table = tables()["main_table"]
    assert set(table.rows) == set(tasks.d4rl_datasets())
    assert all(n.std is not None and n.std >= 0 for n in table.numbers.values())
    assert {d: sum(domain_of(row) == d for row in table.rows) for d in DOMAINS} == DOMAINS


@pytest.mark.parametrize(("table", "domain", "variant"), AVERAGES, ids=map("-".join, AVERAGES))
def test_averages_match_rows_or_are_marked(table: str, domain: str, variant: str) -> None:
    printed, from_rows = tables()[table].average(domain, variant), tables()[table].recompute_average(domain, variant)
    if (table, domain, variant) in NOT_REPRODUCED:
        assert abs(from_rows - printed.mean) > 0.1
        assert f"the average of the rows is {from_rows:.1f}" in printed.doubt  # rounded as on the page: 69.05 is 69.0
    else:  # the paper rounds or truncates
        assert from_rows == pytest.approx(printed.mean, abs=0.1)


@pytest.mark.parametrize(("table", "base"), [("necessity", "naive"), ("l3_forms", "(4)")])
def test_percentages_match_the_numbers(table: str, base: str) -> None:
    all_numbers = {**tables()[table].numbers, **tables()[table].averages}
    for (row, variant), entry in all_numbers.items():
        if entry.percent is None:
            assert variant == base
        elif "percentage" not in entry.doubt:
            assert entry.percent == pytest.approx(100 * (entry.mean / all_numbers[row, base].mean - 1), abs=0.1)


def test_percentages_of_integrations_match() -> None:
    for table in ("integrations", "ogbench"):
        for (row, variant), entry in tables()[table].numbers.items():
            base = number(table, row, variant.removesuffix("+ASPC")).mean
            if entry.percent is not None and base:
                assert entry.percent == pytest.approx(100 * (entry.mean / base - 1), abs=0.1)


def test_every_doubt_belongs_to_a_number() -> None:
    content = json.loads(resources.files("aspc.lab").joinpath("paper_tables.json").read_text("utf-8"))
    numbers = [n for t in tables().values() for n in (*t.numbers.values(), *t.averages.values())]
    assert sum(n.doubt != "" for n in numbers) == sum(len(t["doubts"]) for t in content.values()) == 18
    assert number("main_table", "walker2d-medium-v2", "TD3+BC").doubt.startswith("repeats Hopper's")


def test_unknown_names_suggest_similar_ones() -> None:
    with pytest.raises(AspcError, match="hopper-medium-v2, ASPC"):
        number("main_table", "hopper-medium", "ASPC")
    with pytest.raises(AspcError, match="main_table"):
        number("main", "hopper-medium-v2", "ASPC")


# ── sources ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_cited_number_has_a_source_with_a_title() -> None:
    published = json.loads((ROOT / "benchmarks" / "published_scores.json").read_text("utf-8"))
    keys = {table["work"] for table in published.values()}
    keys |= {key for table in tables().values() for copied in table.copied.values() for key in copied}
    assert keys <= set(works())
    assert all(table["source"] for table in published.values())
    for work in works().values():
        assert min(len(work.title), len(work.authors), len(work.venue)) > 8
        assert work.venue[-4:].isdigit()
    assert works()["aspc"].title in (ROOT / "CITATION.cff").read_text("utf-8")
    assert works()["corl"].title.startswith("CORL: ")


def test_copied_columns_are_those_of_the_paper() -> None:
    """Section 5.1: the authors ran TD3+BC, wPC, A2PR and ASPC, and took IQL and ReBRAC from CORL and ReBRAC."""
    assert {name: dict(table.copied) for name, table in tables().items() if table.copied} == {
        "main_table": {"IQL": ("corl", "rebrac"), "ReBRAC": ("corl", "rebrac")}
    }


def test_columns_can_be_renamed() -> None:
    table = tables()["integrations"].with_labels({"CQL": "CQL, as printed", "IQL": "IQL"})
    assert table.variants == ("IQL", "CQL, as printed")
    row = "hopper-medium-v2"
    assert table.numbers[row, "CQL, as printed"] == number("integrations", row, "CQL")
    assert not any(variant == "CQL" for _, variant in table.numbers)
