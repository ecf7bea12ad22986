"""Sixty ways in which logs are messy, each as a file with the outcome that it must have.

A variant is made from the same clean log. It is accepted (with this reading), warned about (with this text) or refused
(with this remedy).
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ROWS = 40
START = np.datetime64("2026-01-01T06:00:00")
NAMES = ["obs_temp", "obs_flow", "action_valve", "reward", "episode"]

Table = dict[str, list[str]]
Change = Callable[[Table], Table]


def clean() -> Table:
    """Return four episodes of ten rows as text; no two values are equal."""
    rng = np.random.default_rng(0)
    return {
        "obs_temp": [f"{20 + 0.25 * i + 0.01 * (i % 3):.2f}" for i in range(ROWS)],
        "obs_flow": [f"{value:.3f}" for value in rng.normal(5, 1, ROWS)],
        "action_valve": [f"{value:.1f}" for value in rng.uniform(0, 100, ROWS)],
        "reward": [f"{value:.3f}" for value in rng.uniform(0, 1, ROWS)],
        "episode": [str(i // 10) for i in range(ROWS)],
    }


def text_of(table: Table, separator: str = ",", end: str = "\n") -> str:
    rows = [separator.join(table), *(separator.join(row) for row in zip(*table.values(), strict=True))]
    return end.join(rows) + end


# ── changes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def rename(**names: str) -> Change:
    return lambda table: {names.get(name, name): cells for name, cells in table.items()}


def without(*names: str) -> Change:
    return lambda table: {name: cells for name, cells in table.items() if name not in names}


def having(**columns: list[str]) -> Change:
    return lambda table: {**table, **columns}


def cell(column: str, row: int, text: str) -> Change:
    return lambda table: {**table, column: [text if i == row else c for i, c in enumerate(table[column])]}


def each(column: str, change: Callable[[str], str]) -> Change:
    return lambda table: {**table, column: [change(c) for c in table[column]]}


def rows(order: Any) -> Change:
    return lambda table: {name: [cells[i] for i in order] for name, cells in table.items()}


def chain(*changes: Change) -> Change:
    def change(table: Table) -> Table:
        for each_change in changes:
            table = each_change(table)
        return table

    return change


def stamps(step_minutes: int = 1, offset: Callable[[int], int] = lambda i: 0) -> list[str]:
    minutes = [step_minutes * i + offset(i) for i in range(ROWS)]
    return [str(START + np.timedelta64(m, "m")).replace("T", " ") for m in minutes]


timed = chain(without("episode"), having(time=stamps()))
BACKWARDS = range(ROWS - 1, -1, -1)
END_FLAGS = [str(int(i % 10 == 9)) for i in range(ROWS)]


# ── variants ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Variant:
    """A messy log and its outcome."""

    name: str
    change: Change = lambda table: table
    write: Callable[[Table], str | bytes] = text_of
    suffix: str = ".csv"
    options: dict[str, Any] = field(default_factory=dict)
    refused: str = ""
    """A pattern of the error; "" if the log is accepted."""
    warned: str = ""
    """A pattern of a note or a warning; "" if none is expected."""
    lengths: tuple[int, ...] = (10, 10, 10, 10)
    """Lengths of the episodes as they are read."""
    source_rows: tuple[int, ...] = tuple(range(ROWS))
    """The clean rows that the dataset holds, in order."""
    checks: tuple[str, ...] = ("observations", "actions", "rewards")
    """Arrays that equal the clean ones at these rows."""


def mapped(**key_map: str) -> dict[str, Any]:
    return {"key_map": key_map}


ACCEPTED = [
    Variant("clean"),
    Variant("semicolons", write=lambda t: text_of(t, ";")),
    Variant("tabs", write=lambda t: text_of(t, "\t")),
    Variant("windows line ends", write=lambda t: text_of(t, end="\r\n")),
    Variant("byte order mark", write=lambda t: b"\xef\xbb\xbf" + text_of(t).encode()),
    Variant("compressed", write=lambda t: gzip.compress(text_of(t).encode()), suffix=".csv.gz"),
    Variant("empty lines", write=lambda t: text_of(t).replace("\n", "\n\n", 5)),
    Variant("quoted cells", write=lambda t: text_of({f'"{n}"': [f'"{c}"' for c in cs] for n, cs in t.items()})),
    Variant("spaces around names", write=lambda t: text_of(t, " , ")),
    Variant("upper case names", chain(*(rename(**{n: n.upper()}) for n in NAMES))),
    Variant("a trailing separator", write=lambda t: text_of(t).replace("\n", ",\n")),
    Variant("aligned by spaces", write=lambda t: text_of(t, "   "), suffix=".dat"),
    Variant("unit of the reward", rename(reward="Reward [EUR]")),
    Variant(
        "terminal as words", chain(without("episode"), having(done=["yes" if f == "1" else "no" for f in END_FLAGS]))
    ),
    Variant("truncated only", chain(without("episode"), having(truncated=END_FLAGS))),
    Variant("text ids", each("episode", lambda c: f"shift-{c}")),
    Variant("ids like numbers", each("episode", lambda c: ["1e5", "100000", "1e6", "1000000"][int(c)])),
    Variant("ids with zeros", each("episode", lambda c: ["7", "07", "007", "0007"][int(c)])),
    Variant(
        "negated costs", chain(rename(reward="price"), each("price", lambda c: f"-{c}")), options=mapped(costs="price")
    ),
    Variant("a formula", rename(reward="gain"), options={"reward": "2*gain - gain"}),
    Variant(
        "mapped names",
        rename(obs_temp="T", obs_flow="F", action_valve="u"),
        options=mapped(observations="T,F", actions="u"),
    ),
    Variant("a step limit", without("episode"), options={"max_episode_steps": 10}),
    Variant("times", timed, lengths=(40,)),
    Variant(
        "times with breaks",
        chain(timed, having(time=stamps(1, lambda i: i // 10 * 300))),
        warned="3 gaps of more than 1.5",
    ),
    Variant(
        "seconds since 1970",
        chain(timed, having(time=[str(1_700_000_000 + 60 * i) for i in range(ROWS)])),
        lengths=(40,),
    ),
    Variant(
        "last action empty",
        cell("action_valve", 39, ""),
        checks=("observations",),
        warned="1 episode has no action or no reward in the last row",
    ),
    Variant("kpi", having(kwh=["1"] * ROWS), options={"kpis": "kwh"}),
    Variant("an unnamed index", lambda t: {"": [str(i) for i in range(ROWS)], **t}),
]

WARNED = [
    Variant("newest first", chain(timed, rows(BACKWARDS)), warned="so they were sorted", lengths=(40,)),
    Variant(
        "shuffled",
        chain(timed, rows(np.random.default_rng(1).permutation(ROWS))),
        warned="so they were sorted",
        lengths=(40,),
    ),
    Variant(
        "duplicated rows",
        chain(timed, rows(np.repeat(range(ROWS), 2))),
        warned="40 rows are exact duplicates",
        lengths=(40,),
    ),
    Variant(
        "rows missing",
        chain(timed, rows([*range(15), *range(20, 40)])),
        warned="1 gap of more than 1.5 intervals",
        lengths=(15, 20),
        source_rows=(*range(15), *range(20, 40)),
    ),
    Variant(
        "irregular sampling",
        chain(timed, having(time=stamps(10, lambda i: i * i % 7))),
        warned="sampling is irregular",
        lengths=(40,),
    ),
    Variant(
        "day first",
        chain(timed, each("time", lambda c: f"{c[8:10]}.{c[5:7]}.{c[:4]} {c[11:]}"), rows(BACKWARDS)),
        warned="so they were sorted",
        lengths=(40,),
    ),
    Variant(
        "decimal commas", write=lambda t: text_of(t, ";").replace(".", ","), warned="decimals are written with a comma"
    ),
    Variant("header behind a hash", write=lambda t: "# " + text_of(t), warned="begins with '#'"),
    Variant("comments first", write=lambda t: "# plant 7\n#\n" + text_of(t), warned="2 comment lines were skipped"),
    Variant("costs as rewards", rename(reward="cost"), options=mapped(rewards="cost"), warned="--map costs=cost"),
    Variant("done", chain(without("episode"), having(done=END_FLAGS)), warned="'done' was read as terminals"),
    Variant(
        "dates of another notation",
        having(timestamp=[f"01/{1 + i // 24:02}/2026 {i % 12 + 1}:00 PM" for i in range(ROWS)]),
        warned="the order of the rows is not checked: .*'timestamp'.*--map time=timestamp",
    ),
    Variant("a misspelt column", having(ob_pressure=["1"] * ROWS), warned="unused columns: 'ob_pressure'"),
    Variant("interleaved ids", each("episode", lambda c: str(int(c) % 2)), warned="episode numbers reappear"),
    Variant(
        "on or off",
        each("action_valve", lambda c: str(int(float(c) > 50))),
        checks=("observations",),
        warned=r"has only 2 distinct values \(0, 1\) and is treated as categorical",
    ),
    Variant(
        "huge rewards",
        each("reward", lambda c: f"{float(c) * 1e8:.0f}"),
        checks=("observations",),
        warned="--reward-scale 1e-08",
    ),
    Variant(
        "negative rewards",
        each("reward", lambda c: f"-{c}"),
        checks=("observations",),
        warned="--algo iql, or.*--reward-shift",
    ),
    Variant(
        "a constant sensor",
        each("obs_flow", lambda c: "5"),
        checks=("actions",),
        warned=r"dimension 2 \(obs_flow\) never changes",
    ),
    Variant(
        "limit next to timeouts",
        chain(without("episode"), having(truncated=END_FLAGS)),
        options={"max_episode_steps": 5},
        warned="step limit of 5 is not used",
    ),
    Variant(
        "empty cells, split",
        cell("obs_flow", 14, ""),
        options={"missing": "split"},
        lengths=(10, 4, 5, 10, 10),
        source_rows=(*range(14), *range(15, 40)),
        warned="1 cell is empty, in 1 of 40 rows",
    ),
    Variant(
        "empty cells, filled",
        cell("obs_flow", 14, "NA"),
        options={"missing": "ffill"},
        checks=("actions", "rewards"),
        warned="1 row was filled with the last value",
    ),
    Variant(
        "no ends",
        chain(timed, without("time"), having(terminal=["0"] * ROWS)),
        lengths=(40,),
        warned="episodes end only at terminals",
    ),
]

REFUSED = [
    Variant("no header", write=lambda t: text_of(t).split("\n", 1)[1], refused="has no header.* Add a first line"),
    Variant(
        "no ends at all", without("episode"), refused="nothing marks the ends.*--map time=NAME.*--max-episode-steps"
    ),
    Variant(
        "no reward, but a cost",
        rename(reward="cost"),
        refused="'rewards' not found.*pass --map costs=cost, which negates",
    ),
    Variant(
        "empty cell",
        cell("obs_flow", 14, ""),
        refused="line 16: the cell of column 'obs_flow' is empty.*--missing split",
    ),
    Variant("not a number", cell("obs_flow", 14, "n.m."), refused="line 16.*holds 'n.m.', not a number; fix it"),
    Variant("text column", each("obs_flow", lambda c: "high"), refused="holds text, not numbers.*--one-hot"),
    Variant(
        "a comma too many",
        cell("obs_flow", 14, "1,5"),
        refused="line 16 has 6 cells.*write decimals with a point",
    ),
    Variant(
        "mixed decimals",
        chain(cell("obs_flow", 14, "1,5")),
        lambda t: text_of(t, ";"),
        refused="'1,5', not a number; write decimals with a point",
    ),
    Variant(
        "two machines",
        chain(timed, having(time=stamps(1, lambda i: -(i % 2)))),
        refused="--map episode=NAME.*--map time=none",
    ),
    Variant(
        "a cell that is not a time", chain(timed, cell("time", 20, "noon")), refused="holds 'noon', not a time such as"
    ),
    Variant("infinite", cell("reward", 3, "inf"), refused="line 5.*'inf', which is NaN, infinite or too large"),
    Variant(
        "twice the same name",
        write=lambda t: text_of(t).replace("obs_flow", "obs_temp"),
        refused="duplicate column 'obs_temp'",
    ),
    Variant(
        "latin-1", rename(obs_temp="obs_°C"), write=lambda t: text_of(t).encode("latin-1"), refused="not UTF-8. Save it"
    ),
    Variant("only a header", write=lambda t: text_of(t).split("\n")[0], refused="the dataset is empty; no row follows"),
    Variant("formula with a typo", options={"reward": "0.5*rewrd"}, refused="column 'rewrd' does not exist. Available"),
]

VARIANTS = [*ACCEPTED, *WARNED, *REFUSED]
