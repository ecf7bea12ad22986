"""Operations on the output folder of `aspc bench`: lock it, find unfinished groups and record suite memberships."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from aspc.errors import AspcError
from aspc.io import exclusive_lock
from aspc.lab import results
from aspc.lab.groups import GROUP, RunGroup, dataset_file, interleave_timed_groups, make_groups, results_path
from aspc.lab.plan import BenchPlan, short_hash
from aspc.training.run_folder import CONFIG


@contextmanager
def bench_lock(bench: Path) -> Iterator[None]:
    """Lock the output folder (created if missing), so that only one process at a time plans and schedules runs in it.

    Raises:
        AspcError: The folder cannot be created, contains a run, or is locked by another process.
    """
    try:
        bench.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AspcError(f"Cannot create the folder {bench}: {error.strerror or error}. Choose another --out.") from None
    if (bench / CONFIG).exists():
        raise AspcError(f"{bench} contains a run of `aspc train`. Choose another --out.")
    busy = f"Another `aspc bench` is running in {bench}. Wait until it ends, or choose another --out."
    with exclusive_lock(bench / ".bench.lock", timeout_seconds=0, busy_message=busy):
        yield


def read_unfinished_groups(bench: Path) -> list[RunGroup]:
    """Return the groups that have been started but have no results yet, oldest first."""
    found = [p for p in (bench / "groups").glob(f"*/{GROUP}") if not results_path(bench, p.parent.name).exists()]
    return [
        RunGroup.from_json(path.read_text(errors="replace"), path)
        for path in sorted(found, key=lambda p: p.stat().st_mtime)
    ]


def record_entries(bench: Path, plan: BenchPlan) -> None:
    """Record which suites each run belongs to, and its label in each of them."""
    name = "-".join(dict.fromkeys(entry.suite for entry in plan.entries))[:100]
    results.write_entries(bench, f"{name}-{short_hash(sorted(plan.entries))}", plan.entries)


def collect_groups(
    bench: Path, plan: BenchPlan, pending: Sequence[str], size: int, data: Mapping[str, Path], plugin: str | None = None
) -> list[RunGroup]:
    """Group the pending runs and return the groups in the order of the plan.

    A group that has already been started keeps its runs; only the paths of its dataset files are updated. Training
    checks that these files contain the same data as before.
    """
    remaining = dict.fromkeys(pending)
    started = []
    for group in read_unfinished_groups(bench):
        # Training executes the plugin named in the group's file, so accept only the plugin passed to this command.
        if group.plugin == plugin and all(run_id in remaining for run_id in group.run_ids):
            members = tuple(replace(member, file=dataset_file(member.run, data)) for member in group.members)
            started.append(replace(group, members=members))
            for run_id in group.run_ids:
                del remaining[run_id]
    order = {run_id: i for i, run_id in enumerate(pending)}
    new = [_next_attempt(bench, group) for group in make_groups(plan, remaining, size, data, plugin)]
    # Sort by each group's last run: groups that need another run's scale then follow the other groups of their suite.
    groups = sorted([*started, *new], key=lambda group: max(order[run_id] for run_id in group.run_ids))
    return interleave_timed_groups(groups)


def _next_attempt(bench: Path, group: RunGroup) -> RunGroup:
    """Return the group with the next unused attempt number, so that the results of earlier failed attempts are kept."""
    while results_path(bench, group.group_id).exists():
        group = replace(group, attempt=group.attempt + 1)
    return group
