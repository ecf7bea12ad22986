"""Read, merge and export the results in folders as pandas tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aspc.errors import AspcError
from aspc.io import write_atomically
from aspc.lab.results.folders import find_parts
from aspc.lab.results.parquet import read_table, write_table
from aspc.lab.results.schema import ENTRIES, TABLES, Column, arrow_type, import_pyarrow
from aspc.text import count_noun, join_limited

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


@dataclass(frozen=True)
class Results:
    """The result tables, sorted and without duplicates.

    The tables are runs (one row per run), curves (one row per run and step) and entries (one row per run and suite).
    """

    runs: pd.DataFrame
    curves: pd.DataFrame
    entries: pd.DataFrame

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the tables by name."""
        return {"curves": self.curves, "entries": self.entries, "runs": self.runs}


@lru_cache(maxsize=10_000)
def _parse_text(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def parse_json(text: Any) -> dict[str, Any]:
    """Parse the JSON object in a cell. Return an empty dictionary if the cell contains no JSON object."""
    return _parse_text(text) if isinstance(text, str) else {}


def merge(folders: Iterable[str | Path], out: str | Path) -> Results:
    """Read result folders, write their results to `out` with one file per table, and return the results.

    Raises:
        AspcError: `out` already contains other runs, which would be lost.
    """
    results = read(*folders)
    pa = import_pyarrow()
    existing = Path(out) / "runs.parquet"
    previous = set(read_table(existing, "runs")["run_id"].to_pylist()) if existing.is_file() else set()
    if lost := previous - set(results.runs["run_id"]):
        raise AspcError(
            f"{count_noun(len(lost), 'run')} in {existing} would be lost. To keep them, also pass {out} "
            "as a result folder, or choose another --out."
        )
    for kind, frame in results.tables().items():
        fields = [(key, arrow_type(column.kind)) for key, column in TABLES[kind].items()]
        table = pa.Table.from_pandas(frame, pa.schema(fields), preserve_index=False).replace_schema_metadata(None)
        write_table(Path(out) / f"{kind}.parquet", table)
    return results


def export_csv(results: Results, out: str | Path) -> list[Path]:
    """Write `runs.csv`, `curves.csv` and `entries.csv`, with an empty cell for null.

    Text that a spreadsheet would evaluate is escaped, since results can contain names chosen by other people.

    Returns:
        The paths of the written files.
    """
    paths = []
    for kind, frame in results.tables().items():
        texts = [key for key, column in TABLES[kind].items() if column.kind in ("text", "json")]
        frame = frame.assign(**{key: frame[key].map(escape_formula, na_action="ignore") for key in texts})
        paths.append(Path(out) / f"{kind}.csv")
        try:
            paths[-1].parent.mkdir(parents=True, exist_ok=True)
            write_atomically(paths[-1], frame.to_csv(index=False).encode())
        except OSError as error:
            raise AspcError(f"{paths[-1]} cannot be written: {error.strerror or error}.") from error
    return paths


def escape_formula(cell: str) -> str:
    """Add an apostrophe before text that a spreadsheet would evaluate as a formula; leave numbers unchanged.

    Carriage returns become newlines, because pandas does not quote them: the text after one would start a new row.
    """
    cell = cell.replace("\r\n", "\n").replace("\r", "\n")
    if not cell.startswith(("=", "+", "-", "@", "\t", "\n")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def read(*folders: str | Path) -> Results:
    """Read result folders, whether merged or in parts.

    Duplicate runs are kept only once: "done" takes precedence over "failed", then newer over older runs. The curve
    comes from the same part as the run. Warnings on stderr report runs whose data have the same name but different
    content, and duplicates with different scores.

    Raises:
        AspcError: A folder contains no results, or a file is damaged.
    """
    parts = [part for folder in folders for part in find_parts(Path(folder))]
    if not parts:
        raise AspcError("Pass at least one result folder.")
    if not any("runs" in part for part in parts):  # only entries
        names = abbreviate_list([str(folder) for folder in folders])
        raise AspcError(f"No run in {names} has ended yet. Wait for `aspc bench`, or run it again.")
    tables: dict[str, list[pa.Table]] = {kind: [] for kind in TABLES}
    for i, part in enumerate(parts):
        for kind, path in part.items():
            table = read_table(path, kind)
            numbers = import_pyarrow().repeat(import_pyarrow().scalar(i, "int64"), len(table))
            tables[kind].append(table.append_column("source", numbers))
    frames = {kind: _frame(tables[kind], columns) for kind, columns in TABLES.items()}
    for warning in filter(None, (describe_data_mismatch(frames["runs"]), describe_score_mismatch(frames["runs"]))):
        print(f"warning: {warning}", file=sys.stderr)
    return _remove_duplicates(**frames)


def describe_data_mismatch(runs: pd.DataFrame) -> str:
    """Return a warning if finished runs used different data under the same name, else an empty string."""
    done = runs[runs["status"] == "done"]

    def find_ambiguous(column: str) -> list[str]:
        contents = done.groupby(column)["data_fingerprint"].nunique()  # ignores missing fingerprints
        return sorted(contents[contents > 1].index)

    datasets, repeated = find_ambiguous("dataset"), len(find_ambiguous("run_id"))
    if not datasets:
        return ""
    exists = count_noun(repeated, "run", ("exists", "exist"))
    duplicates = f" ({exists} with different data; the newest is used)" if repeated else ""
    return (
        f"not all runs on {abbreviate_list(datasets)} used the same data (see data_fingerprint){duplicates}. "
        "Read their results separately, or rename one of the files and train again."
    )


def describe_score_mismatch(runs: pd.DataFrame) -> str:
    """Return a warning if duplicate runs on the same data have different scores, else an empty string."""
    done = runs[runs["status"] == "done"]
    scores = done.groupby(["run_id", "data_fingerprint"], dropna=False)["score_last"].nunique()
    count = int((scores > 1).sum())
    if not count:
        return ""
    exists = count_noun(count, "run", ("exists", "exist"))
    return f"{exists} more than once with different scores; the newest is used."


def abbreviate_list(names: Sequence[str]) -> str:
    """Join names with commas. If there are more than three, list two of them and count the rest."""
    return join_limited(names, 3 if len(names) <= 3 else 2)


def _frame(tables: list[pa.Table], columns: Mapping[str, Column]) -> pd.DataFrame:
    pa = import_pyarrow()
    fields = [(key, arrow_type(column.kind)) for key, column in columns.items()] + [("source", pa.int64())]
    table = pa.concat_tables([pa.schema(fields).empty_table(), *tables])
    return table.to_pandas(ignore_metadata=True)


def _remove_duplicates(runs: pd.DataFrame, curves: pd.DataFrame, entries: pd.DataFrame) -> Results:
    """Keep each run once, with the curve from the same part."""
    import pandas as pd

    done = runs["status"] == "done"
    newest = runs["finished"].fillna(runs["started"]).fillna("")
    order = runs.assign(_done=done, _newest=newest).sort_values(["_done", "_newest", "source"], kind="stable")
    kept = order.drop_duplicates("run_id", keep="last").drop(columns=["_done", "_newest"])
    kept = kept.sort_values(["suite", "dataset", "variant", "seed", "run_id"], kind="stable")
    kept_curves = curves.merge(kept[["run_id", "source"]], on=["run_id", "source"], how="inner")
    kept_curves = kept_curves.drop_duplicates(["run_id", "step"], keep="last").sort_values(
        ["run_id", "step"], kind="stable"
    )
    suites = pd.concat([entries[entries["run_id"].isin(kept["run_id"])], kept], join="inner")
    suites = suites[list(ENTRIES)].drop_duplicates().sort_values(["suite", "variant", "run_id"], kind="stable")
    return Results(
        *(f[list(c)].reset_index(drop=True) for f, c in zip((kept, kept_curves, suites), TABLES.values(), strict=True))
    )
