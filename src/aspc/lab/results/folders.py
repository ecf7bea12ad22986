"""Write to result folders, and find the files in them.

A part of a result folder is a set of files with the same name, one per table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aspc.errors import AspcError
from aspc.lab.results.parquet import make_table, write_table
from aspc.lab.results.schema import ENTRIES, TABLES, Row

if TYPE_CHECKING:
    pass


def write_part(folder: str | Path, name: str, runs: Sequence[Row], curves: Sequence[Row]) -> None:
    """Write runs and their curves as one part of a result folder, replacing an existing part with the same name.

    Missing keys become null, `schema_version` is filled in, and dictionaries become JSON. The curves are written before
    the runs, and a part without runs is ignored. If the process is killed, no incomplete part is therefore ever read.

    Raises:
        AspcError: A row is invalid, or a curve does not belong to any of the runs.
    """
    _check_name(name)
    unknown = {row["run_id"] for row in curves} - {row["run_id"] for row in runs}
    if unknown:
        raise AspcError(f"The curves in result file {name} refer to an unknown run: {min(unknown)!r}.")
    for kind, rows in (("curves", curves), ("runs", runs)):
        write_table(Path(folder) / kind / f"{name}.parquet", make_table(rows, TABLES[kind], name))


def write_entries(folder: str | Path, name: str, entries: Iterable[tuple[str, str, str]]) -> None:
    """Record which suites each run belongs to.

    The runs table cannot record this, because each of its rows names only the first suite of a run.

    Args:
        folder: The result folder.
        name: Name of the part.
        entries: Tuples (suite, variant, run_id).
    """
    _check_name(name)
    rows = [dict(zip(("suite", "variant", "run_id"), entry, strict=True)) for entry in entries]
    write_table(Path(folder) / "entries" / f"{name}.parquet", make_table(rows, ENTRIES, name))


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[\w.+=@-]{1,200}", name) or name.startswith("."):
        raise AspcError(f"Invalid name {name!r} for a result file. Use only letters, digits and . _ + = @ -.")


def find_result_folders(folder: Path) -> list[Path]:
    """Return all folders that contain results among the given folder and its subfolders."""
    return [candidate for candidate in _candidates(folder) if _run_tables_in(candidate)]


def _candidates(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [folder, *sorted(path for path in folder.iterdir() if path.is_dir() and path.name not in TABLES)]


def _run_tables_in(folder: Path) -> list[Path]:
    """Return the files of the runs table in a folder: the merged file, if it exists, and all parts."""
    merged = folder / "runs.parquet"
    parts = sorted(path for path in (folder / "runs").glob("*.parquet") if not path.name.startswith("."))
    return [merged, *parts] if merged.is_file() else parts


def find_run_tables(folders: Iterable[Path]) -> list[Path]:
    """Return the files of the runs table in the given folders and in their subfolders."""
    return [path for folder in folders for found in find_result_folders(folder) for path in _run_tables_in(found)]


def find_parts(folder: Path) -> list[dict[str, Path]]:
    """Return the parts in a folder and its subfolders, each as a dictionary from table name to file.

    Raises:
        AspcError: The folder does not exist or contains no results.
    """
    if not folder.is_dir():
        raise AspcError(f"Result folder {folder} does not exist.")
    found: list[dict[str, Path]] = []
    for candidate in _candidates(folder):
        for runs in _run_tables_in(candidate):
            if runs.parent == candidate:
                found.append({kind: candidate / f"{kind}.parquet" for kind in TABLES})
            else:
                found.append({"runs": runs, "curves": candidate / "curves" / runs.name})
        found += [{"entries": path} for path in sorted((candidate / "entries").glob("*.parquet"))]
    if not found:
        raise AspcError(
            f"{folder} contains no results: neither it nor a subfolder has runs.parquet or runs/*.parquet. "
            "Pass the output folder of `aspc bench`."
        )
    return [{kind: path for kind, path in part.items() if path.is_file()} for part in found]
