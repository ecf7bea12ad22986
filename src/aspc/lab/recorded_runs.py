"""Read recorded results to determine which planned runs need no further training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from aspc import plugins
from aspc.data import downloaded_file
from aspc.errors import AspcError
from aspc.lab import results
from aspc.lab.dataset_files import fingerprint_dataset, load_dataset
from aspc.lab.plan import BenchPlan
from aspc.text import count_noun
from aspc.ui import notify_if_slow


class RecordedRun(NamedTuple):
    """The outcome of a run that has ended."""

    status: str
    error: str | None
    scale_last: float | None
    data_fingerprint: str | None = None
    finished: str | None = None
    versions: str | None = None

    def supersedes(self, other: RecordedRun) -> bool:
        """Return whether this outcome takes precedence over another one.

        As in `results.read`, "done" takes precedence over "failed"; otherwise, the newer outcome does.
        """
        return (self.status == "done", self.finished or "") >= (other.status == "done", other.finished or "")


def read_recorded_runs(folders: Iterable[Path]) -> dict[str, RecordedRun]:
    """Return the outcomes of the runs in result folders, by run id."""
    found: dict[str, RecordedRun] = {}
    for path in results.find_run_tables(folders):
        found |= {k: v for k, v in read_recorded_table(path).items() if k not in found or v.supersedes(found[k])}
    return found


def read_recorded_table(path: Path) -> dict[str, RecordedRun]:
    """Return the outcomes of the runs in one result file, by run id."""
    table = results.read_table(path, "runs").select(["run_id", *RecordedRun._fields])
    return {row.pop("run_id"): RecordedRun(**row) for row in table.to_pylist()}


def select_settled_runs(
    plan: BenchPlan, recorded: Mapping[str, RecordedRun], data: Mapping[str, Path], retry_failed: bool
) -> dict[str, RecordedRun]:
    """Return the recorded outcomes of the planned runs that need no further training, by run id.

    A run that failed because its dataset could not be read is trained again once the dataset's file has changed.
    """

    def is_settled(run_id: str) -> bool:
        found, dataset = recorded[run_id], plan.runs[run_id].dataset
        if found.status == "done" or retry_failed:
            return found.status == "done"
        has_data = found.data_fingerprint is not None
        return has_data or not _is_modified_since(data.get(dataset, downloaded_file(dataset)), found.finished)

    return {run_id: recorded[run_id] for run_id in plan.runs if run_id in recorded and is_settled(run_id)}


def _is_modified_since(file: Path | None, when: str | None) -> bool:
    """Return whether a file was written, copied or moved into place after the given time."""
    if file is None or when is None or not file.exists():
        return False
    return file.stat().st_ctime > datetime.fromisoformat(when).timestamp() + 1  # results round times to seconds


def check_data_unchanged(plan: BenchPlan, settled: Mapping[str, RecordedRun], data: Mapping[str, Path]) -> None:
    """Check that the dataset files of finished runs still contain the data that these runs were trained on.

    Other files are not read.

    Raises:
        AspcError: A file's content differs.
    """
    recorded: dict[str, set[str]] = {}
    for run_id, run in settled.items():
        dataset = plan.runs[run_id].dataset
        if run.status == "done" and dataset in data and run.data_fingerprint is not None:
            recorded.setdefault(dataset, set()).add(run.data_fingerprint)
    with notify_if_slow("Checking that the files in --data match those of the finished runs …"):
        for dataset, fingerprints in recorded.items():
            if fingerprints != {fingerprint_dataset(load_dataset(dataset, str(data[dataset])))}:
                raise AspcError(
                    f"{data[dataset]} does not contain the data that finished runs on {dataset} used. "
                    "Rename the file, or choose another --out (and another --reuse)."
                )


def code_change_warning(plan: BenchPlan, settled: Mapping[str, RecordedRun]) -> str:
    """Return a warning if finished runs were trained with another version of the plugin, else an empty string."""
    versions = {run_id: results.parse_json(run.versions) for run_id, run in settled.items()}
    algos = [plan.runs[run_id].algo for run_id in settled]
    others = [algo for algo, own in zip(algos, versions.values(), strict=True) if plugins.has_changed(algo, own)]
    plugin = plugins.loaded()
    if plugin is None or not others:
        return ""
    return (
        f"warning: {count_noun(len(others), 'finished run')} of {', '.join(dict.fromkeys(others))} used another "
        f"version of {Path(plugin.path).name} and will not be repeated. Choose another --out to train again.\n"
    )
