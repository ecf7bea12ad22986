"""Running a plan to its end: what is done, what is next, and an engine that trains groups here or on a cluster.

An engine is told to start groups and says when they have ended; their results are files, so nothing is lost when the
process that watches is killed: the next one finds what is finished and goes on with the rest.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from filelock import FileLock, Timeout

from aspc import plugins
from aspc.data import cache
from aspc.errors import AspcError
from aspc.lab import results
from aspc.lab.groups import (
    GROUP,
    PROGRESS,
    Group,
    Member,
    data_fingerprint,
    file_of,
    group_folder,
    in_turn,
    load_dataset,
    make_groups,
    part_file,
    record_failure,
    run_group,
    write_group,
)
from aspc.lab.plan import Plan, short_hash
from aspc.training.run_folder import CONFIG
from aspc.training.trainer import Interrupted
from aspc.ui import seconds_text

LINE_SECONDS = 30.0  # between lines of progress while nothing ends


class Ended(NamedTuple):
    """A group that an engine has finished with. `error`: it could not be run (what failed in a run is in its row)."""

    group: Group
    error: str | None = None


class Engine(Protocol):
    """Where groups are trained."""

    def has_room(self, group: Group) -> bool:
        """Whether a group may be started now, beside those that run."""
        ...

    def start(self, group: Group) -> None:
        """Begin a group, whose file is in the bench's folder."""
        ...

    def wait(self, seconds: float) -> list[Ended]:
        """The groups that have ended since, after waiting for the first of them at most this long."""
        ...

    def close(self) -> None: ...


class LocalEngine:
    """This machine, one group after the other, in this process."""

    def __init__(self, bench: Path, quiet: bool = False, stop_at: float | None = None) -> None:
        self.bench, self.quiet, self.stop_at = bench, quiet, stop_at
        self._next: Group | None = None
        self._late_signal: int | None = None  # came when a group had nothing left to stop

    def has_room(self, group: Group) -> bool:
        return self._next is None

    def start(self, group: Group) -> None:
        if self._late_signal is not None:
            raise Interrupted("Stopped before the next group.", self._late_signal)
        self._next = group

    def wait(self, seconds: float) -> list[Ended]:
        group, self._next = self._next, None
        if group is None:
            return []
        with interrupted_at(self.stop_at):
            self._late_signal = run_group(self.bench, group.group_id, self.quiet)
        return [Ended(group)]

    def close(self) -> None:
        pass


class Watching:
    """The part of an engine that looks now and then whether what it started has ended."""

    look_seconds: float

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[Group, Any]] = {}

    def wait(self, seconds: float) -> list[Ended]:
        until = time.monotonic() + seconds
        while self._jobs:
            ended = [found for group, job in self._jobs.values() if (found := self._ended(group, job))]
            for group, _ in ended:
                del self._jobs[group.group_id]
            if ended or time.monotonic() >= until:
                return ended
            time.sleep(min(self.look_seconds, max(until - time.monotonic(), 0)))
        return []

    def _ended(self, group: Group, job: Any) -> Ended | None:
        """How a group has ended, if it has."""
        raise NotImplementedError


class Stop(BaseException):
    """SIGTERM between trainings. Like Python's own for Ctrl-C it is no `Exception`: it comes anywhere, and what deals
    with every failure of a library must not take it for one."""

    exit_code = 128 + signal.SIGTERM


def stopped(interruption: Interrupted | Stop | KeyboardInterrupt) -> Interrupted:
    code = 128 + signal.SIGINT if isinstance(interruption, KeyboardInterrupt) else interruption.exit_code
    return Interrupted("Stopped; the same command goes on where it was.", code - 128)


@contextmanager
def interrupted_at(when: float | None) -> Iterator[None]:
    """SIGTERM to ourselves at a time of the monotonic clock: a training saves a checkpoint and stops."""
    if when is None:
        yield
        return
    with cache.run_after(max(when - time.monotonic(), 0), partial(os.kill, os.getpid(), signal.SIGTERM)):
        yield


# ── what is known ───────────────────────────────────────────────────────────────────────────────────────────────────


class Known(NamedTuple):
    """A run that has ended, here or before."""

    status: str
    error: str | None
    scale_last: float | None
    data_fingerprint: str | None = None
    finished: str | None = None
    versions: str | None = None

    def counts_before(self, other: Known) -> bool:
        """As where results are read: "done" beats "failed", then the newest counts, then what is read later."""
        return (self.status == "done", self.finished or "") >= (other.status == "done", other.finished or "")


def known_runs(folders: Iterable[Path]) -> dict[str, Known]:
    """The runs whose results are in some folders."""
    found: dict[str, Known] = {}
    for path in results.all_tables_of_runs(folders):
        found |= {k: v for k, v in read_known(path).items() if k not in found or v.counts_before(found[k])}
    return found


def read_known(path: Path) -> dict[str, Known]:
    table = results.read_table(path, "runs").select(["run_id", *Known._fields])
    return {row.pop("run_id"): Known(**row) for row in table.to_pylist()}


def refuse_other_data(plan: Plan, settled: Mapping[str, Known], data: Mapping[str, Path]) -> None:
    """An error where a file is not what runs on a dataset of its name were trained on that count as finished.

    Only the files of such runs are read. A dataset that is known by name is what its name says.
    """
    recorded: dict[str, set[str]] = {}
    for run_id, known in settled.items():
        dataset = plan.runs[run_id].dataset
        if known.status == "done" and dataset in data and known.data_fingerprint is not None:
            recorded.setdefault(dataset, set()).add(known.data_fingerprint)
    with cache.notify_if_slow("Reading files of --data, to see whether finished runs were trained on the same …"):
        for dataset, marks in recorded.items():
            if marks != {data_fingerprint(load_dataset(dataset, str(data[dataset])))}:
                raise AspcError(
                    f"{data[dataset]} is not the data that finished runs on {dataset} were trained on; "
                    "rename the file, or choose another --out (and another --known)."
                )


def other_code(plan: Plan, settled: Mapping[str, Known]) -> str:
    """A line where runs of the user's own algorithms count as finished that were trained with another code of them."""
    versions = {run_id: results.parse_json(known.versions) for run_id, known in settled.items()}
    algos = [plan.runs[run_id].algo for run_id in settled]
    others = [algo for algo, own in zip(algos, versions.values(), strict=True) if plugins.differs(algo, own)]
    plugin = plugins.loaded()
    if plugin is None or not others:
        return ""
    return (
        f"warning: {len(others)} finished runs of {', '.join(dict.fromkeys(others))} were trained with another version "
        f"of {Path(plugin.path).name}, and are not trained again; choose another --out for new ones.\n"
    )


def unfinished_groups(bench: Path) -> list[Group]:
    """Groups that were begun and have no results yet, the oldest first."""
    found = [p for p in (bench / "groups").glob(f"*/{GROUP}") if not part_file(bench, p.parent.name).exists()]
    return [
        Group.from_json(path.read_text(errors="replace"), path)
        for path in sorted(found, key=lambda p: p.stat().st_mtime)
    ]


def remember(bench: Path, plan: Plan) -> None:
    """Note which runs belong to which suite under which label: a run may be in several."""
    name = "-".join(dict.fromkeys(entry.suite for entry in plan.entries))[:100]
    results.write_entries(bench, f"{name}-{short_hash(sorted(plan.entries))}", plan.entries)


# ── running a plan ──────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def bench_lock(bench: Path) -> Iterator[None]:
    """One process at a time plans and watches in a folder."""
    try:
        bench.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AspcError(
            f"The folder {bench} cannot be made: {error.strerror or error}; choose another --out."
        ) from None
    if (bench / CONFIG).exists():
        raise AspcError(f"{bench} holds a run of `aspc train`; choose another --out.")
    guard = FileLock(bench / ".bench.lock")
    try:
        guard.acquire(timeout=0)
    except Timeout:
        raise AspcError(f"Another `aspc bench` is running in {bench}; wait for it, or choose another --out.") from None
    try:
        yield
    finally:
        guard.release()


def groups_to_run(
    bench: Path, plan: Plan, pending: Sequence[str], size: int, data: Mapping[str, Path], plugin: str | None = None
) -> list[Group]:
    """Groups of the pending runs, in the order of the plan; a group that was begun before stays as it was, but for
    where its files are now (that they are the same data is checked when it goes on)."""
    left = dict.fromkeys(pending)
    begun = []
    for group in unfinished_groups(bench):
        # The file of a group names a plugin, which is run: only one that was given here.
        if group.plugin == plugin and all(run_id in left for run_id in group.run_ids):
            begun.append(replace(group, members=tuple(replace(m, file=file_of(m.run, data)) for m in group.members)))
            for run_id in group.run_ids:
                del left[run_id]
    place = {run_id: i for i, run_id in enumerate(pending)}
    new = [_next_attempt(bench, group) for group in make_groups(plan, left, size, data, plugin)]
    # Those that wait for a scale come after the others of their suite, so their place is that of their last run.
    return in_turn(sorted([*begun, *new], key=lambda group: max(place[run_id] for run_id in group.run_ids)))


def _next_attempt(bench: Path, group: Group) -> Group:
    """A group whose runs failed before is another one: its first results are kept."""
    while part_file(bench, group.group_id).exists():
        group = replace(group, attempt=group.attempt + 1)
    return group


class Bench:
    """A plan on its way: starts groups when what they need is there, and counts what comes of them."""

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        groups: Sequence[Group],
        known: Mapping[str, Known],
        engine: Engine,
        *,
        quiet: bool = False,
        stop_at: float | None = None,
        fill: bool = False,
        pace: TimeEstimator | None = None,
        command: str | None = None,
    ) -> None:
        """`fill` also begins a group that will not end by `stop_at`, where nothing else is left to begin."""
        self.folder, self.plan, self.engine, self.quiet, self.stop_at = folder, plan, engine, quiet, stop_at
        self.fill, self.pace, self.command, self.has_begun = fill, pace or TimeEstimator(), command, False
        self.waiting, self.running = list(groups), dict[str, Running]()
        self.known = {run_id: known[run_id] for run_id in plan.runs if run_id in known}
        self.last_line = 0.0

    def run(self) -> dict[str, Known]:
        """Until everything has ended, or the time is up. Returns what is known of the plan's runs then."""
        try:
            while (self.running or self.waiting) and not self._time_is_up():
                moved = self._start_what_can()
                if not moved and (self.fill or not self.has_begun):
                    moved = self._start_what_can(in_time=False)  # or it would never be begun
                if not self.running and not moved:
                    break  # too little time is left for any other group
                for ended in self.engine.wait(max(min(LINE_SECONDS, self._seconds_left()), 0)):
                    self._end(ended)
                self._line_now_and_then()
        except (Interrupted, Stop) as interruption:
            if not self._time_is_up():
                raise stopped(interruption) from interruption
        finally:
            self.engine.close()
            self._look_again()
        return self.known

    def _look_again(self) -> None:
        """What was told to stop may have been at its end."""
        for group, *_ in list(self.running.values()):
            if part_file(self.folder, group.group_id).exists():
                self._end(Ended(group))

    def _time_is_up(self) -> bool:
        return self._seconds_left() <= 0

    def _seconds_left(self) -> float:
        return math.inf if self.stop_at is None else self.stop_at - time.monotonic()

    def _start_what_can(self, in_time: bool = True) -> bool:
        """Start groups while there is room and time; returns whether anything changed.

        `in_time`: only those that are expected to end before the time is up.
        """
        moved = False
        for group in list(self.waiting):
            if not self.engine.has_room(group) or self._time_is_up():
                break
            needs = {m.run.scale_of for m in group.members if m.run.scale_of is not None}
            too_long = self.pace.seconds_left([(group, self._share(group))]) > self._seconds_left()
            if not needs <= self.known.keys() or (too_long and in_time):
                continue
            moved = True
            self.waiting.remove(group)
            ready = self._without_the_lost(group)
            if ready is not None:
                ready = replace(ready, command=self.command)
                write_group(self.folder, ready)
                self.running[ready.group_id] = Running(ready, time.monotonic(), self._share(ready))
                self.has_begun = True
                self.say(f"starting {ready.title}" + ", which will not end in this sitting" * too_long)
                self.engine.start(ready)
        return moved

    def _without_the_lost(self, group: Group) -> Group | None:
        """The group with the scales that its runs need; those whose scale was never found are recorded as failed."""
        lost: dict[Known, list[Member]] = {}
        ready = []
        for member in group.members:
            needed = self.known.get(member.run.scale_of or "")
            if needed is None:
                ready.append(member)
            elif needed.status == "done" and needed.scale_last is not None:
                ready.append(replace(member, scale_target=needed.scale_last))
            else:
                lost.setdefault(needed, []).append(member)
        for needed, members in lost.items():
            failed, why = replace(group, members=tuple(members)), needed.error or "it has learned no scale"
            said = f"The run whose final scale is needed failed: {why}"
            record_failure(self.folder, failed, said, needed.data_fingerprint)
            self._end(Ended(failed))
        return replace(group, members=tuple(ready)) if ready else None

    def _end(self, ended: Ended) -> None:
        group, began, share = self.running.pop(ended.group.group_id, Running(ended.group, time.monotonic(), 0.0))
        part = part_file(self.folder, group.group_id)
        if not part.exists():
            record_failure(self.folder, group, ended.error or "The group ended without results.")
        rows = read_known(part)
        self.known |= rows
        if all(row.status == "done" for row in rows.values()):  # what fails is soon over
            self.pace.note(group, time.monotonic() - began, share)
        failed = [(run_id, row.error) for run_id, row in rows.items() if row.status == "failed"]
        for run_id, error in failed[:1]:
            more = f" (and {len(failed) - 1} more of this group)" if len(failed) > 1 else ""
            self.say(f"failed: {self._called(run_id)}: {error}{more}")
        self.say(self.line())

    def _called(self, run_id: str) -> str:
        run = self.plan.runs[run_id]
        return f"{self.plan.entry_of(run_id).variant} on {run.dataset}, seed {run.seed}"

    # -- what is seen --------------------------------------------------------------------------------------------
    def line(self) -> str:
        under_way = [group for group, *_ in self.running.values()]
        running = sum(len(group.members) for group in under_way)
        failed = sum(run.status == "failed" for run in self.known.values())
        done = len(self.known) - failed
        share = sum(self._share(group) * len(group.members) for group in under_way) / max(running, 1)
        halfway = f" ({share:.0%} of their steps)" if share else ""
        text = f"{done} of {len(self.plan.runs)} runs done, {running} running{halfway}, {failed} failed"
        groups = [*self.waiting, *under_way]
        left = self.pace.seconds_left([(group, self._share(group)) for group in groups], len(self.running))
        return f"{text}, about {seconds_text(left)} left" if left else text

    def _share(self, group: Group) -> float:
        """How much of a group that was begun is done."""
        try:
            seen = json.loads((group_folder(self.folder, group.group_id) / PROGRESS).read_text())
            return seen["step"] / seen["steps"]
        except (OSError, ValueError, KeyError, ZeroDivisionError):
            return 0.0

    def _line_now_and_then(self) -> None:
        if self.running and time.monotonic() - self.last_line > LINE_SECONDS:
            self.say(self.line())

    def say(self, text: str) -> None:
        self.last_line = time.monotonic()
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)


class Running(NamedTuple):
    """A group that an engine has: since when, and how much of it was done before."""

    group: Group
    began: float
    share: float


class StepTiming(NamedTuple):
    """Seconds that a step of some runs together took."""

    algo: str
    runs: int
    seconds: float


class TimeEstimator:
    """How long groups took, to say how long others will take."""

    def __init__(self, took: Iterable[StepTiming] = ()) -> None:
        self.took = list(took)

    def note(self, group: Group, seconds: float, share: float = 0.0) -> None:
        """A group has ended; `share` of it was done before these seconds."""
        if share < 1:
            steps = _longest(group) * (1 - share)
            self.took.append(StepTiming(group.members[0].run.algo, len(group.members), seconds / steps))

    def seconds_left(self, groups: Iterable[tuple[Group, float]], at_once: int = 1) -> float:
        """Expected seconds for groups of which a share is done; 0 while nothing is known."""
        if not self.took:
            return 0.0
        return sum(self._seconds(group) * (1 - share) for group, share in groups) / max(at_once, 1)

    def _seconds(self, group: Group) -> float:
        """Judged by the group nearest in size, of the same algorithm if there was one; rather too long than too short:
        fewer runs are taken to need as long for a step, more to need longer in proportion."""
        runs, algo = len(group.members), group.members[0].run.algo
        alike = [took for took in self.took if took.algo == algo] or self.took
        nearest = min(reversed(alike), key=lambda took: abs(math.log(took.runs / runs)))
        return nearest.seconds * max(1.0, runs / nearest.runs) * _longest(group)


def _longest(group: Group) -> int:
    return max(member.run.steps for member in group.members)


def pace_before(folders: Iterable[Path], device: str, machine: str) -> TimeEstimator:
    """How long groups took whose results are in some folders, on such a device (a CPU: on such a machine)."""
    found: dict[str, StepTiming] = {}
    columns = ["group_id", "algo", "runs_together", "seconds", "steps", "device", "machine"]
    for path in results.all_tables_of_runs(folders):
        for row in results.read_table(path, "runs").select(columns).to_pylist():
            here = row["device"] == device and (row["machine"] == machine or not device.startswith("cpu"))
            if here and row["group_id"] and row["seconds"] and row["runs_together"] and row["steps"] > 0:
                found[row["group_id"]] = StepTiming(row["algo"], row["runs_together"], row["seconds"] / row["steps"])
    return TimeEstimator(found.values())
