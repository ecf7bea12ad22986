"""Results of many runs in one open format: Parquet tables `runs`, `curves` and `entries` (see docs/report.md).

RESULTS/
  runs/NAME.parquet  curves/NAME.parquet  entries/NAME.parquet     parts, as they are written while a suite runs
  runs.parquet       curves.parquet       entries.parquet          the merged form

Any mix of folders of both kinds can be read together. Nothing in a file is executed: values are numbers and text.
"""

from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from aspc.errors import DISK_ERRORS, AspcError, DiskFailure, MissingExtra, first_line
from aspc.io import write_atomically
from aspc.policy import without_nan

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

SCHEMA_VERSION = 1
MOST_ROWS = 100_000_000  # of one file: 5,000 runs with 20,000 evaluations each
LONGEST_TEXT = 4_000_000  # characters of one cell
MOST_TEXT = 4_000_000_000  # characters of one column

Kind = Literal["text", "json", "int", "float"]
Row = Mapping[str, Any]


class Column(NamedTuple):
    """One column of a table: its kind, whether every row must have it, what it says, and whether every file has it
    (older ones lack a column that came later: its values are null)."""

    kind: Kind
    required: bool
    what: str
    in_every_file: bool = True


RUNS: dict[str, Column] = {
    "schema_version": Column("int", True, "version of this format"),
    "run_id": Column("text", True, "unique name of the run; a run that is repeated keeps it"),
    "suite": Column("text", True, "the suite it belongs to"),
    "variant": Column("text", True, "label as shown"),
    "algo": Column("text", True, "name of the algorithm"),
    "dataset": Column("text", True, "name of the dataset"),
    "data_fingerprint": Column("text", False, "hash of what the dataset held; older files have none", False),
    "seed": Column("int", True, "seed"),
    "steps": Column("int", True, "steps trained"),
    "settings": Column("json", False, "what differs from the algorithm's defaults"),
    "config": Column("json", False, "everything that defines the run"),
    "config_hash": Column("text", False, "hash of the config"),
    "status": Column("text", True, '"done" or "failed"'),
    "error": Column("text", False, "why it failed"),
    "score_last": Column("float", False, "normalised score of the last evaluation"),
    "score_best": Column("float", False, "best normalised score of any evaluation"),
    "return_last": Column("float", False, "return of the last evaluation"),
    "return_best": Column("float", False, "best return of any evaluation"),
    "success_last": Column("float", False, "share of episodes that succeeded, last evaluation"),
    "episodes": Column("int", False, "episodes of the last evaluation"),
    "scale_name": Column("text", False, "symbol of the scale (alpha, beta, eta)"),
    "scale_initial": Column("float", False, "scale at the start"),
    "scale_last": Column("float", False, "scale at the end"),
    "behaviour_score": Column("float", False, "normalised score of the logged data"),
    "seconds": Column("float", False, "wall-clock seconds of training"),
    "steps_per_second": Column("float", False, "steps per second of this run, compilation left out"),
    "runs_together": Column("int", False, "runs that trained side by side on the device"),
    "group_id": Column("text", False, "name of the group that trained together"),
    "device": Column("text", False, "device"),
    "machine": Column("text", False, "machine"),
    "git_revision": Column("text", False, "revision of the code"),
    "command": Column("text", False, "the command that asked for it"),
    "versions": Column("json", False, "versions of the packages"),
    "matmul_precision": Column("text", False, "precision of matrix products"),
    "started": Column("text", False, "start, ISO 8601, UTC"),
    "finished": Column("text", False, "end, ISO 8601, UTC"),
    "folder": Column("text", False, "the run's folder"),
}
CURVES: dict[str, Column] = {
    "schema_version": Column("int", True, "version of this format"),
    "run_id": Column("text", True, "the run"),
    "step": Column("int", True, "step"),
    "score": Column("float", False, "normalised score"),
    "return": Column("float", False, "return"),
    "success_rate": Column("float", False, "share of episodes that succeeded"),
    "scale": Column("float", False, "scale"),
    "q": Column("float", False, "mean Q of the policy's actions, or of the logged ones (IQL, CQL)"),
    "bc_loss": Column("float", False, "mean BC loss"),
    "critic_loss": Column("float", False, "critic loss"),
    "l1": Column("float", False, "L1"),
    "l2": Column("float", False, "L2"),
    "l3": Column("float", False, "L3"),
}
ENTRIES: dict[str, Column] = {
    "schema_version": Column("int", True, "version of this format"),
    "suite": Column("text", True, "a suite that looks at the run"),
    "variant": Column("text", True, "the run's label in that suite"),
    "run_id": Column("text", True, "the run"),
}
TABLES: dict[str, dict[str, Column]] = {"runs": RUNS, "curves": CURVES, "entries": ENTRIES}


@dataclass(frozen=True)
class Results:
    """Runs (one row a run), their curves (one row a run and step) and their places in suites (several for a run that
    suites share), sorted, each once."""

    runs: pd.DataFrame
    curves: pd.DataFrame
    entries: pd.DataFrame

    def tables(self) -> dict[str, pd.DataFrame]:
        return {"curves": self.curves, "entries": self.entries, "runs": self.runs}


@lru_cache(maxsize=10_000)
def _parsed(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def parse_json(text: Any) -> dict[str, Any]:
    """A JSON object in a cell; empty where it is none."""
    return _parsed(text) if isinstance(text, str) else {}


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_part(folder: str | Path, name: str, runs: Sequence[Row], curves: Sequence[Row]) -> None:
    """Write some runs with their curves as one part of a folder of results; one of the same name is replaced.

    Absent keys are null, `schema_version` is filled in, dictionaries become JSON. The curves are written first: a part
    exists once its runs do, so a kill in between leaves nothing half.
    """
    _check_name(name)
    strangers = {row["run_id"] for row in curves} - {row["run_id"] for row in runs}
    if strangers:
        raise AspcError(f"The curves of part {name} name the run {min(strangers)!r}, which is not among its runs.")
    for kind, rows in (("curves", curves), ("runs", runs)):
        _write(Path(folder) / kind / f"{name}.parquet", _table(rows, TABLES[kind], name))


def write_entries(folder: str | Path, name: str, entries: Iterable[tuple[str, str, str]]) -> None:
    """Write which suites look at which runs: (suite, variant, run_id). A run's own row says its first suite only."""
    _check_name(name)
    rows = [dict(zip(("suite", "variant", "run_id"), entry, strict=True)) for entry in entries]
    _write(Path(folder) / "entries" / f"{name}.parquet", _table(rows, ENTRIES, name))


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[\w.+=@-]{1,200}", name) or name.startswith("."):
        raise AspcError(f"{name!r} cannot name a part of results; use letters, digits and . _ + = @ - only.")


def _write(path: Path, table: pa.Table) -> None:
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    # Checksums: a page that a disk or a copy has damaged is noticed before it is decoded.
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, buffer.getvalue())
    except OSError as error:
        kind = DiskFailure if error.errno in DISK_ERRORS else AspcError
        raise kind(f"Results cannot be written to {path}: {error.strerror or error}.") from error


def _table(rows: Sequence[Row], columns: Mapping[str, Column], name: str) -> pa.Table:
    pa = _pyarrow()
    for row in rows:
        unknown = sorted(set(row) - set(columns))
        if unknown:
            raise AspcError(f"Part {name} has the unknown column {unknown[0]!r}; it can have {', '.join(columns)}.")
    values: dict[str, list[Any]] = {}
    for key, column in columns.items():
        values[key] = [_cell(row.get(key), column.kind) for row in rows]
        if key == "schema_version":
            values[key] = [SCHEMA_VERSION] * len(rows)
        if column.required and None in values[key]:
            raise AspcError(f"Part {name} has a row without {key!r}, which every row must have.")
    try:
        return pa.table({key: pa.array(values[key], _arrow_type(column.kind)) for key, column in columns.items()})
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise AspcError(f"Part {name} has a value of the wrong type: {first_line(error)}.") from error


def _cell(value: Any, kind: Kind) -> Any:
    """A value as it is stored: NaN is null, dictionaries are JSON, which has no NaN (there it is the text "nan")."""
    if kind == "json" and value is not None and not isinstance(value, str):
        return json.dumps(without_nan(value, str), sort_keys=True, default=str)
    if kind in ("int", "float") and hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and math.isnan(value) else value


def _arrow_type(kind: Kind) -> pa.DataType:
    pa = _pyarrow()
    return {"text": pa.string(), "json": pa.string(), "int": pa.int64(), "float": pa.float64()}[kind]


def merge(folders: Iterable[str | Path], out: str | Path) -> Results:
    """Read folders and write them as one file for each table (`runs.parquet`, …) in `out`, which must not hold other
    runs already."""
    results = read(*folders)
    pa = _pyarrow()
    written = Path(out) / "runs.parquet"
    before = set(read_table(written, "runs")["run_id"].to_pylist()) if written.is_file() else set()
    if lost := before - set(results.runs["run_id"]):
        raise AspcError(
            f"{written} has {len(lost):,} runs that would be lost; name {out} among the folders to keep them, "
            "or choose another --out."
        )
    for kind, frame in results.tables().items():
        fields = [(key, _arrow_type(column.kind)) for key, column in TABLES[kind].items()]
        table = pa.Table.from_pandas(frame, pa.schema(fields), preserve_index=False).replace_schema_metadata(None)
        _write(Path(out) / f"{kind}.parquet", table)
    return results


def export_csv(results: Results, out: str | Path) -> list[Path]:
    """Write `runs.csv`, `curves.csv` and `entries.csv`; null is an empty cell.

    Text that a spreadsheet would evaluate gets an apostrophe in front, since names in results can come from others.
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
    """Put an apostrophe before text that a spreadsheet would evaluate as a formula; numbers stay as they are.

    Carriage returns become newlines: pandas does not quote them, so what follows would begin a row of its own.
    """
    cell = cell.replace("\r\n", "\n").replace("\r", "\n")
    if not cell.startswith(("=", "+", "-", "@", "\t", "\n")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def read(*folders: str | Path) -> Results:
    """Read folders of results, parts and merged ones. Of a run that is there twice, "done" beats "failed", then the
    newest counts; its curve comes from the same part. Warnings on stderr say where runs on different data, or runs with
    different scores, meet."""
    sources = [source for folder in folders for source in _sources(Path(folder))]
    if not sources:
        raise AspcError("Give at least one folder of results.")
    if not any("runs" in source for source in sources):  # only which runs suites look at
        raise AspcError(
            f"No run in {a_few([str(folder) for folder in folders])} has ended yet; let `aspc bench` go on."
        )
    tables: dict[str, list[pa.Table]] = {kind: [] for kind in TABLES}
    for i, source in enumerate(sources):
        for kind, path in source.items():
            table = read_table(path, kind)
            numbers = _pyarrow().repeat(_pyarrow().scalar(i, "int64"), len(table))
            tables[kind].append(table.append_column("source", numbers))
    frames = {kind: _frame(tables[kind], columns) for kind, columns in TABLES.items()}
    for warning in filter(None, (unlike_data(frames["runs"]), unlike_scores(frames["runs"]))):
        print(f"warning: {warning}", file=sys.stderr)
    return _unique(**frames)


def unlike_data(runs: pd.DataFrame) -> str:
    """A sentence where datasets of one name were not the same data in all finished runs; else an empty text."""
    done = runs[runs["status"] == "done"]

    def with_several(column: str) -> list[str]:
        contents = done.groupby(column)["data_fingerprint"].nunique()  # what is unknown is not counted
        return sorted(contents[contents > 1].index)

    datasets, repeated = with_several("dataset"), len(with_several("run_id"))
    if not datasets:
        return ""
    twice = f" ({repeated:,} runs are there with both, and the newest counts)" if repeated else ""
    return (
        f"not all runs on {a_few(datasets)} were trained on the same data, as their data_fingerprint says{twice}; "
        "keep their results apart, or rename one of the files and train again."
    )


def unlike_scores(runs: pd.DataFrame) -> str:
    """A sentence where a run was made twice from the same data, with other scores; else an empty text."""
    done = runs[runs["status"] == "done"]
    scores = done.groupby(["run_id", "data_fingerprint"], dropna=False)["score_last"].nunique()
    unlike = int((scores > 1).sum())
    return f"{unlike:,} runs are there more than once, with other scores, and the newest counts." if unlike else ""


def a_few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"


def result_folders(folder: Path) -> list[Path]:
    """A folder, and those in it, as far as they hold results."""
    return [place for place in _places(folder) if tables_of_runs(place)]


def _places(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [folder, *sorted(place for place in folder.iterdir() if place.is_dir() and place.name not in TABLES)]


def tables_of_runs(folder: Path) -> list[Path]:
    """The merged one and the parts."""
    merged = folder / "runs.parquet"
    parts = sorted(path for path in (folder / "runs").glob("*.parquet") if not path.name.startswith("."))
    return [merged, *parts] if merged.is_file() else parts


def all_tables_of_runs(folders: Iterable[Path]) -> list[Path]:
    return [path for folder in folders for place in result_folders(folder) for path in tables_of_runs(place)]


def _sources(folder: Path) -> list[dict[str, Path]]:
    """The files of a folder (or of the folders in it) by table, one dictionary a part."""
    if not folder.is_dir():
        raise AspcError(f"There is no folder of results at {folder}.")
    found: list[dict[str, Path]] = []
    for place in _places(folder):
        for runs in tables_of_runs(place):
            if runs.parent == place:
                found.append({kind: place / f"{kind}.parquet" for kind in TABLES})
            else:
                found.append({"runs": runs, "curves": place / "curves" / runs.name})
        found += [{"entries": path} for path in sorted((place / "entries").glob("*.parquet"))]
    if not found:
        raise AspcError(
            f"{folder} holds no results: neither it nor a folder in it has runs.parquet or runs/*.parquet; "
            "`aspc bench` makes such a folder."
        )
    return [{kind: path for kind, path in source.items() if path.is_file()} for source in found]


def read_table(path: Path, kind: str) -> pa.Table:
    """One checked Parquet file: sizes before memory is taken, then columns, types, versions, required values."""
    pa, columns = _pyarrow(), TABLES[kind]
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(path)
        schema = metadata.schema.to_arrow_schema()
        _check_columns(path, kind, schema)
        if metadata.num_rows > MOST_ROWS:
            raise AspcError(f"{path} claims {metadata.num_rows:,} rows; results have at most {MOST_ROWS:,} a file.")
        there = [key for key in columns if key in schema.names]
        texts = [key for key in there if columns[key].kind in ("text", "json")]
        with pq.ParquetFile(path, metadata=metadata, read_dictionary=texts, page_checksum_verification=True) as file:
            table = file.read(columns=there, use_threads=False, use_pandas_metadata=False)
        table.validate(full=True)  # a damaged text column can point beyond its dictionary
    except AspcError:
        raise
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError, MemoryError) as error:
        raise AspcError(
            f"{path} is not a whole Parquet file; it may be cut or damaged: remove it, or write it again."
        ) from error
    for key in (key for key in columns if key not in there):
        table = table.append_column(key, pa.nulls(len(table), _arrow_type(columns[key].kind)))
    return _check_values(path, kind, table)


def _check_columns(path: Path, kind: str, schema: pa.Schema) -> None:
    pa, columns = _pyarrow(), TABLES[kind]
    if "schema_version" not in schema.names:
        raise AspcError(f"{path} is not a table of results: it has no column schema_version.")
    if len(set(schema.names)) < len(schema.names):
        raise AspcError(f"{path} has two columns of one name.")
    missing = [key for key, column in columns.items() if column.in_every_file and key not in schema.names]
    if missing:
        raise AspcError(f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)} of {kind}.")
    for key, column in ((k, c) for k, c in columns.items() if k in schema.names):
        found = schema.field(key).type
        if pa.types.is_dictionary(found):
            found = found.value_type
        number, whole = pa.types.is_floating(found), pa.types.is_integer(found)
        good = {
            "int": whole,
            "float": number or whole,
            "text": pa.types.is_string(found) or pa.types.is_large_string(found),
        }["text" if column.kind == "json" else column.kind]
        if not good and not (pa.types.is_null(found) and not column.required):
            wanted = {"int": "whole numbers", "float": "numbers"}.get(column.kind, "text")
            raise AspcError(f"{path}: the column {key!r} must hold {wanted}, not {found}.")


def _check_values(path: Path, kind: str, table: pa.Table) -> pa.Table:
    pa, columns = _pyarrow(), TABLES[kind]
    import pyarrow.compute as pc

    arrays = {}
    for key, column in columns.items():
        array = table.column(key)
        if column.required and array.null_count:
            raise AspcError(f"{path}: {array.null_count:,} rows have no {key!r}, which every row must have.")
        if column.kind in ("text", "json"):
            _check_lengths(path, key, array)
        try:
            arrays[key] = array.cast(_arrow_type(column.kind))
        except pa.ArrowInvalid as error:
            raise AspcError(f"{path}: the column {key!r} has a value out of range.") from error
    newest = pc.max(arrays["schema_version"]).as_py()
    if newest is not None and newest != SCHEMA_VERSION:
        raise AspcError(
            f"{path} has results of format {newest} and this version reads format {SCHEMA_VERSION}; "
            "read them with the aspc version that wrote them."
        )
    if kind == "runs":
        odd = set(pc.unique(arrays["status"]).to_pylist()) - {"done", "failed"}
        if odd:
            raise AspcError(f"{path}: a run's status is 'done' or 'failed', not {min(odd)[:40]!r}.")
    return pa.table(arrays)


def _check_lengths(path: Path, key: str, array: pa.ChunkedArray) -> None:
    """Refuse texts that are small in the file, where equal ones are stored once, and huge in memory."""
    pa = _pyarrow()
    import pyarrow.compute as pc

    total = 0
    for chunk in array.chunks:
        lengths = pc.binary_length(chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk)
        if (pc.max(lengths).as_py() or 0) > LONGEST_TEXT:
            raise AspcError(f"{path}: the column {key!r} has a text of more than {LONGEST_TEXT:,} characters.")
        if pa.types.is_dictionary(chunk.type):
            lengths = lengths.take(chunk.indices)
        total += pc.sum(lengths).as_py() or 0
    if total > MOST_TEXT:
        raise AspcError(f"{path}: the column {key!r} claims {total / 1e9:,.1f} GB of text.")


def _frame(tables: list[pa.Table], columns: Mapping[str, Column]) -> pd.DataFrame:
    pa = _pyarrow()
    fields = [(key, _arrow_type(column.kind)) for key, column in columns.items()] + [("source", pa.int64())]
    table = pa.concat_tables([pa.schema(fields).empty_table(), *tables])
    return table.to_pandas(ignore_metadata=True)


def _unique(runs: pd.DataFrame, curves: pd.DataFrame, entries: pd.DataFrame) -> Results:
    """Each run once, and only the curves of the very rows that are kept."""
    import pandas as pd

    done = runs["status"] == "done"
    newest = runs["finished"].fillna(runs["started"]).fillna("")
    order = runs.assign(_done=done, _newest=newest).sort_values(["_done", "_newest", "source"], kind="stable")
    kept = order.drop_duplicates("run_id", keep="last").drop(columns=["_done", "_newest"])
    kept = kept.sort_values(["suite", "dataset", "variant", "seed", "run_id"], kind="stable")
    of_kept = curves.merge(kept[["run_id", "source"]], on=["run_id", "source"], how="inner")
    of_kept = of_kept.drop_duplicates(["run_id", "step"], keep="last").sort_values(["run_id", "step"], kind="stable")
    places = pd.concat([entries[entries["run_id"].isin(kept["run_id"])], kept], join="inner")
    places = places[list(ENTRIES)].drop_duplicates().sort_values(["suite", "variant", "run_id"], kind="stable")
    return Results(
        *(f[list(c)].reset_index(drop=True) for f, c in zip((kept, of_kept, places), TABLES.values(), strict=True))
    )


def _pyarrow() -> Any:
    try:
        import pandas  # noqa: F401
        import pyarrow
    except ImportError as error:
        raise MissingExtra("A table of results", "tables") from error
    return pyarrow
