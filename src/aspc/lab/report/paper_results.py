"""The numbers that the paper prints as runs, so that its claims can be checked on its own tables.

A table has means and no runs. Here a printed mean is one run, and a check takes its value as exactly known; what the
check then says, it says of means over seeds. A table of domains stands on their datasets, each with its domain's
mean, so that averages come out as those of the table.
"""

from __future__ import annotations

import json
from functools import cache

import pandas as pd

from aspc.lab import results, suites
from aspc.lab.paper_tables import DOMAINS, PaperTable, domain_of, tables
from aspc.lab.plan import resolved_settings
from aspc.lab.report.view import View, prepare


def named_in(source: str) -> list[PaperTable]:
    """The tables that a claim's source names, or whose numbers the figure is drawn from that it names."""
    named = _parts(source)
    return [table for table in tables().values() if named & _parts(suites.get(table.name).source)]


def _parts(source: str) -> set[str]:
    return {part.strip().lower() for part in source.split(",")}


@cache
def view_of(name: str) -> View:
    """A table of the paper as runs of the suite that reproduces it."""
    table, suite = tables()[name], suites.get(name)
    variants = {variant.label: variant for block in suite.blocks for variant in block.variants}
    runs = [
        {
            "run_id": f"{label}, {dataset}",
            "suite": name,
            "variant": label,
            "algo": variants[label].algo,
            "dataset": dataset,
            "seed": 0,
            "steps": suite.blocks[0].steps,
            "settings": json.dumps(resolved_settings(variants[label], dataset)),
            "status": "done",
            "score_last": number.mean,
        }
        for (row, label), number in table.numbers.items()
        for dataset in _datasets(row)
    ]
    entries = [{key: run[key] for key in ("suite", "variant", "run_id")} for run in runs]
    no_curves = pd.DataFrame(columns=list(results.CURVES), dtype=float).astype({"run_id": str})
    return prepare(
        results.Results(pd.DataFrame(runs).reindex(columns=list(results.RUNS)), no_curves, pd.DataFrame(entries))
    )


def _datasets(row: str) -> list[str]:
    """What a row is about: a dataset, or all of a domain."""
    return [name for name in tables()["main_table"].rows if domain_of(name) == row] if row in DOMAINS else [row]
