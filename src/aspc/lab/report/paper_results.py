"""Convert the paper's printed numbers to runs, so that claims can be checked against the paper's own tables.

The tables contain means, not runs. Each printed mean becomes one run, and checks treat its value as exact. A row for a
domain becomes one run per dataset of that domain, each with the domain's mean, so that the averages match the table's.
"""

from __future__ import annotations

import json
from functools import cache

import pandas as pd

from aspc.lab import results, suites
from aspc.lab.paper_tables import DOMAINS, PaperTable, domain_of, tables
from aspc.lab.plan import resolve_settings
from aspc.lab.report.view import View, build_view


def find_source_tables(source: str) -> list[PaperTable]:
    """Return the tables that a claim's source names, directly or through figures that show a table's numbers."""
    named = _split_source(source)
    return [table for table in tables().values() if named & _split_source(suites.get(table.name).source)]


def _split_source(source: str) -> set[str]:
    return {part.strip().lower() for part in source.split(",")}


def paper_table_of(suite: str) -> PaperTable | None:
    """Return the paper's numbers for a suite under the suite's labels, or None if the paper prints none.

    If a suite repeats a table with other settings, its variants name the corresponding columns of the table.
    """
    if suite in tables() or suite not in suites.names():
        return tables().get(suite)
    declared = suites.get(suite)
    if not any(variant.column for variant in declared.variants):
        return None
    labels = {variant.column or variant.label: variant.label for variant in declared.variants}
    sources = _split_source(declared.source)
    found = (table for table in tables().values() if _split_source(table.source) & sources)
    return next((table.with_labels(labels) for table in found), None)


@cache
def view_of_table(name: str) -> View:
    """Return a view in which the numbers of a table are runs of the suite that reproduces the table."""
    table, suite = tables()[name], suites.get(name)
    variants = {variant.label: variant for variant in suite.variants}
    runs = [
        {
            "run_id": f"{label}, {dataset}",
            "suite": name,
            "variant": label,
            "algo": variants[label].algo,
            "dataset": dataset,
            "seed": 0,
            "steps": suite.blocks[0].steps,
            "settings": json.dumps(resolve_settings(variants[label], dataset)),
            "status": "done",
            "score_last": number.mean,
        }
        for (row, label), number in table.numbers.items()
        for dataset in _row_datasets(row)
    ]
    entries = [{key: run[key] for key in ("suite", "variant", "run_id")} for run in runs]
    no_curves = pd.DataFrame(columns=list(results.CURVES), dtype=float).astype({"run_id": str})
    return build_view(
        results.Results(pd.DataFrame(runs).reindex(columns=list(results.RUNS)), no_curves, pd.DataFrame(entries))
    )


def _row_datasets(row: str) -> list[str]:
    """Return the datasets of a row: either the dataset that it names, or all datasets of the domain that it names."""
    return [name for name in tables()["main_table"].rows if domain_of(name) == row] if row in DOMAINS else [row]
