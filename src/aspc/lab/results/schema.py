"""The columns of the result tables (docs/report.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from aspc.errors import MissingExtra

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 1
Kind = Literal["text", "json", "int", "float"]
Row = Mapping[str, Any]


class Column(NamedTuple):
    """One column of a table.

    A column with `is_in_every_file=False` is missing from older files. Its values are then null.
    """

    kind: Kind
    is_required: bool
    description: str
    is_in_every_file: bool = True


RUNS: dict[str, Column] = {
    "schema_version": Column("int", True, "version of this format"),
    "run_id": Column("text", True, "id of the run, unchanged if the run is repeated"),
    "suite": Column("text", True, "first suite that the run belongs to"),
    "variant": Column("text", True, "label in that suite"),
    "algo": Column("text", True, "name of the algorithm"),
    "dataset": Column("text", True, "name of the dataset"),
    "data_fingerprint": Column("text", False, "hash of the dataset's content; missing in older files", False),
    "seed": Column("int", True, "seed"),
    "steps": Column("int", True, "number of training steps"),
    "settings": Column("json", False, "settings that differ from the algorithm's defaults"),
    "config": Column("json", False, "all settings that define the run"),
    "config_hash": Column("text", False, "hash of the config"),
    "status": Column("text", True, '"done" or "failed"'),
    "error": Column("text", False, "error message"),
    "score_last": Column("float", False, "normalized score of the last evaluation"),
    "score_best": Column("float", False, "best normalized score of any evaluation"),
    "return_last": Column("float", False, "return of the last evaluation"),
    "return_best": Column("float", False, "best return of any evaluation"),
    "success_last": Column("float", False, "fraction of episodes that succeeded in the last evaluation"),
    "episodes": Column("int", False, "number of episodes in the last evaluation"),
    "scale_name": Column("text", False, "symbol of the scale (alpha, beta, eta)"),
    "scale_initial": Column("float", False, "scale at the start"),
    "scale_last": Column("float", False, "scale at the end"),
    "behaviour_score": Column("float", False, "normalized score of the logged data"),
    "seconds": Column("float", False, "wall-clock training time in seconds"),
    "steps_per_second": Column("float", False, "steps per second of this run, compilation time excluded"),
    "runs_together": Column("int", False, "number of runs that trained together on the device"),
    "group_id": Column("text", False, "id of the group of runs that trained together"),
    "device": Column("text", False, "device"),
    "machine": Column("text", False, "machine"),
    "git_revision": Column("text", False, "revision of the code"),
    "command": Column("text", False, "command that requested the run"),
    "versions": Column("json", False, "versions of the packages"),
    "matmul_precision": Column("text", False, "precision of matrix products"),
    "started": Column("text", False, "start time (ISO 8601, UTC)"),
    "finished": Column("text", False, "end time (ISO 8601, UTC)"),
    "folder": Column("text", False, "the run's folder"),
}
CURVES: dict[str, Column] = {
    "schema_version": Column("int", True, "version of this format"),
    "run_id": Column("text", True, "the run"),
    "step": Column("int", True, "step"),
    "score": Column("float", False, "normalized score"),
    "return": Column("float", False, "return"),
    "success_rate": Column("float", False, "fraction of episodes that succeeded"),
    "scale": Column("float", False, "scale"),
    "q": Column("float", False, "mean Q of the policy's actions, or of the logged actions (IQL, CQL)"),
    "bc_loss": Column("float", False, "mean BC loss"),
    "critic_loss": Column("float", False, "critic loss"),
    "l1": Column("float", False, "L1"),
    "l2": Column("float", False, "L2"),
    "l3": Column("float", False, "L3"),
}
ENTRIES: dict[str, Column] = {
    "schema_version": Column("int", True, "version of this format"),
    "suite": Column("text", True, "a suite that the run belongs to"),
    "variant": Column("text", True, "the run's label in that suite"),
    "run_id": Column("text", True, "the run"),
}
TABLES: dict[str, dict[str, Column]] = {"runs": RUNS, "curves": CURVES, "entries": ENTRIES}


def arrow_type(kind: Kind) -> pa.DataType:
    """Return the Arrow type for columns of this kind."""
    pa = import_pyarrow()
    return {"text": pa.string(), "json": pa.string(), "int": pa.int64(), "float": pa.float64()}[kind]


def import_pyarrow() -> Any:
    """Import and return PyArrow, and check that pandas is installed.

    Raises:
        MissingExtra: One of them is not installed.
    """
    try:
        import pandas  # noqa: F401
        import pyarrow
    except ImportError as error:
        raise MissingExtra("A table of results", "tables") from error
    return pyarrow
