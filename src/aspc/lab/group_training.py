"""Train a group of runs in this process, given the group's file."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from aspc import plugins
from aspc.data import Dataset
from aspc.errors import AspcError, ExternalFailure
from aspc.interrupts import Interrupted
from aspc.io import exclusive_lock, write_atomically
from aspc.lab import results
from aspc.lab.dataset_files import fingerprint_dataset, load_dataset
from aspc.lab.groups import GROUP, PROGRESS, GroupMember, RunGroup, group_path, results_path
from aspc.lab.plan import short_hash
from aspc.lab.run_rows import Rows, build_rows, describe_environment, failed_row, utc_now
from aspc.training.fleet import Fleet, train_fleet
from aspc.training.fleet import Member as FleetMember
from aspc.training.grouping import can_vary
from aspc.training.hyperparameters import flat_values
from aspc.training.run_folder import RESULT

PROGRESS_SECONDS = 2.0  # between writes of the progress file
LOCK_SECONDS = 300.0  # maximum wait for another process that is about to stop training the same group
OnProgress = Callable[[int, int], None]
T = TypeVar("T")


def run_group(bench: Path, group_id: str, quiet: bool = True, on_progress: OnProgress | None = None) -> int | None:
    """Train the group with this id, or resume its training, and write its results; do nothing if they already exist.

    If a run fails or its data cannot be loaded, the results record the error and the other runs continue. An
    interrupted group keeps its checkpoints, from which the next attempt continues.

    Returns:
        A signal that arrived too late to stop this group, or None. After a signal, the caller must not start another
        group.
    """
    folder = group_path(bench, group_id)
    busy = f"Another process is still training in {folder}; wait until it ends."
    with exclusive_lock(folder / ".group.lock", timeout_seconds=LOCK_SECONDS, busy_message=busy):
        if results_path(bench, group_id).exists():
            return None
        group = RunGroup.from_json((folder / GROUP).read_text(errors="replace"), folder / GROUP)
        if group.plugin is not None:
            _load_plugin_once(group.plugin)
        _adopt_checkpoints(bench, group)
        started = utc_now()
        rows, curves, late_signal = _train_programs(group, folder, quiet, _make_reporter(folder, on_progress))
        facts = {"group_id": group_id, "started": started, "finished": utc_now(), "command": group.command}
        facts |= describe_environment()
        results.write_part(bench, group_id, [{**facts, **row} for row in rows], curves)
        for finished in folder.glob(f"fleet-*/{RESULT}"):
            shutil.rmtree(finished.parent / "checkpoints", ignore_errors=True)  # large, and no longer needed
    return late_signal


def _load_plugin_once(path: str) -> None:
    plugin = plugins.loaded()
    if plugin is None or plugin.path != path:
        plugins.load_plugin(path)


def _adopt_checkpoints(bench: Path, group: RunGroup) -> None:
    """Move the unfinished fleets of the previous attempt to this attempt's folder."""
    if group.attempt == 0:
        return
    previous = group_path(bench, dataclasses.replace(group, attempt=group.attempt - 1).group_id)
    folder = group_path(bench, group.group_id)
    for fleet in previous.glob("fleet-*"):
        if not (fleet / RESULT).exists() and not (folder / fleet.name).exists():
            fleet.rename(folder / fleet.name)


def record_failure(bench: Path, group: RunGroup, error: str, data_fingerprint: str | None = None) -> None:
    """Write the results of a group that could not be trained: every run has failed with `error`."""
    now = utc_now()
    facts = {"group_id": group.group_id, "started": now, "finished": now, "data_fingerprint": data_fingerprint}
    rows = [{**facts, **failed_row(member, error)} for member in group.members]
    results.write_part(bench, group.group_id, rows, [])


def _make_reporter(folder: Path, on_progress: OnProgress | None) -> OnProgress:
    """Return a callback that writes a group's progress to its folder, where other processes can read it."""
    last = 0.0

    def report(step: int, steps: int) -> None:
        nonlocal last
        if on_progress is not None:
            on_progress(step, steps)
        if time.monotonic() - last > PROGRESS_SECONDS:
            last = time.monotonic()
            write_atomically(folder / PROGRESS, json.dumps({"step": step, "steps": steps}).encode())

    return report


def _train_programs(group: RunGroup, folder: Path, quiet: bool, report: OnProgress) -> tuple[Rows, Rows, int | None]:
    """Load the data and train one fleet per pair of observation and action sizes.

    Returns:
        The rows of the runs, the rows of their curves, and the signal that arrived during the last chunk, if any.
    """
    paths = {member.run.dataset: member.file for member in group.members}
    loaded = {name: capture_failure(partial(load_dataset, name, path)) for name, path in paths.items()}
    data = {name: found for name, found in loaded.items() if isinstance(found, Dataset)}
    errors = {name: found for name, found in loaded.items() if isinstance(found, str)}
    fingerprints = {name: fingerprint_dataset(dataset) for name, dataset in data.items()}
    rows: Rows = [failed_row(m, errors[m.run.dataset]) for m in group.members if m.run.dataset in errors]
    curves: Rows = []
    programs: dict[tuple[int, int], list[GroupMember]] = {}
    for member in group.members:
        if (dataset := data.get(member.run.dataset)) is not None:
            programs.setdefault((dataset.observation_size, dataset.action_size), []).append(member)
    late_signal: int | None = None
    for members in programs.values():
        if late_signal is not None:
            raise Interrupted(f"Training of group {folder.name} was interrupted.", late_signal)
        path = folder / f"fleet-{short_hash([m.run.run_id for m in members])[:8]}"
        fleet = capture_failure(partial(_train, members, data, path, quiet, report))
        if isinstance(fleet, str):
            rows += [failed_row(member, fleet) for member in members]
            continue
        late_signal = fleet.signal
        for member in members:
            row, points = build_rows(fleet, member, data[member.run.dataset], len(members))
            rows.append(row)
            curves += points
    return [{**row, "data_fingerprint": fingerprints.get(row["dataset"])} for row in rows], curves, late_signal


def capture_failure(action: Callable[[], T]) -> T | str:
    """Return the result of `action`, or a message if it fails.

    Raises:
        Interrupted: Training was stopped.
        ExternalFailure: The cause is outside the run, such as a full disk or a replaced data file.
    """
    try:
        return action()
    except (Interrupted, ExternalFailure):
        raise
    except Exception as error:
        return _format_error(error)


def _format_error(error: Exception) -> str:
    text = " ".join(str(error).split())[:2000]
    return text if isinstance(error, AspcError) else f"{type(error).__name__}: {text}{_find_plugin_frame(error)}"


def _find_plugin_frame(error: Exception) -> str:
    """Return the location in the plugin's folder that raised an error, in parentheses, or an empty string."""
    plugin = plugins.loaded()
    folder = None if plugin is None else Path(plugin.path).parent
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).parent == folder]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""


def _train(
    members: Sequence[GroupMember], data: Mapping[str, Dataset], path: Path, quiet: bool, report: OnProgress
) -> Fleet:
    first = members[0]
    algorithm = first.algorithm()
    # If any member sets a hyperparameter that can vary between runs, all members set it. A run is then bitwise
    # reproducible in every group that varies the same hyperparameters.
    varying = sorted({name for m in members for name in m.settings if can_vary(algorithm, name)})

    def varying_values(member: GroupMember) -> dict[str, Any]:
        values = flat_values(member.algorithm())
        return {name: values[name] for name in varying}

    return train_fleet(
        first.run.algo,
        algorithm,
        [FleetMember(m.run.run_id, data[m.run.dataset], m.run.seed, varying_values(m)) for m in members],
        first.run.train_options(),
        path,
        quiet=quiet,
        on_progress=report,
    )
