"""The scheduler of `aspc bench`, which starts groups on an engine and records their outcomes."""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from aspc.interrupts import Interrupted, Terminated
from aspc.lab.engines.interface import Engine, FinishedGroup
from aspc.lab.group_training import record_failure
from aspc.lab.groups import PROGRESS, GroupMember, RunGroup, group_path, results_path, write_group
from aspc.lab.plan import BenchPlan
from aspc.lab.recorded_runs import RecordedRun, read_recorded_table
from aspc.lab.time_estimates import TimeEstimator
from aspc.text import count_noun
from aspc.ui import format_seconds

STATUS_SECONDS = 30.0  # between status lines, unless a group ends earlier


class RunningGroup(NamedTuple):
    """A group that is running on an engine, its start time, and the fraction of its steps done before that time."""

    group: RunGroup
    start_time: float
    share_before: float


class Scheduler:
    """A scheduler that starts each group once the runs that it depends on have ended, and collects the outcomes."""

    def __init__(
        self,
        folder: Path,
        plan: BenchPlan,
        groups: Sequence[RunGroup],
        recorded: Mapping[str, RecordedRun],
        engine: Engine,
        *,
        quiet: bool = False,
        deadline: float | None = None,
        use_full_budget: bool = False,
        estimator: TimeEstimator | None = None,
        command: str | None = None,
    ) -> None:
        """Prepare to train the groups of a plan. Call `run` to train them.

        Args:
            folder: The output folder of `aspc bench`.
            plan: The plan of all runs.
            groups: The groups to train, in order.
            recorded: Outcomes of runs that have ended already and are not trained again.
            engine: The engine that trains the groups.
            quiet: Whether to suppress status lines.
            deadline: The time to stop, on the monotonic clock.
            use_full_budget: Whether to start a group that cannot end before the deadline if no other group can start.
            estimator: The time estimator, with the timings of earlier groups.
            command: The command to record with the results.
        """
        self.folder, self.plan, self.engine, self.quiet, self.deadline = folder, plan, engine, quiet, deadline
        self.use_full_budget, self.command, self.has_started = use_full_budget, command, False
        self.estimator = estimator or TimeEstimator()
        self.waiting, self.running = list(groups), dict[str, RunningGroup]()
        self.recorded = {run_id: recorded[run_id] for run_id in plan.runs if run_id in recorded}
        self._last_status = 0.0

    def run(self) -> dict[str, RecordedRun]:
        """Train until all groups have ended or the deadline has been reached.

        Returns:
            The outcomes of all runs in the plan that have ended, by run id.

        Raises:
            Interrupted: A signal stopped training before the deadline.
        """
        try:
            while (self.running or self.waiting) and not self._is_out_of_time():
                has_changed = self._start_groups()
                if not has_changed and (self.use_full_budget or not self.has_started):
                    has_changed = self._start_groups(ignore_deadline=True)  # otherwise, long groups would never start
                if not self.running and not has_changed:
                    break  # too little time is left for any other group
                for finished in self.engine.wait(max(min(STATUS_SECONDS, self._seconds_left()), 0)):
                    self._record(finished)
                self._print_status_periodically()
        except (Interrupted, Terminated) as interruption:
            if not self._is_out_of_time():
                raise to_interrupted(interruption) from interruption
        finally:
            self.engine.close()
            self._record_late_results()
        return self.recorded

    def _record_late_results(self) -> None:
        """Record the outcomes of groups that finished while the engine was closing."""
        for group, *_ in list(self.running.values()):
            if results_path(self.folder, group.group_id).exists():
                self._record(FinishedGroup(group))

    def _is_out_of_time(self) -> bool:
        return self._seconds_left() <= 0

    def _seconds_left(self) -> float:
        return math.inf if self.deadline is None else self.deadline - time.monotonic()

    def _start_groups(self, ignore_deadline: bool = False) -> bool:
        """Start waiting groups while the engine has free capacity and time is left.

        Args:
            ignore_deadline: Whether to also start groups that are not expected to end before the deadline.

        Returns:
            Whether any group was started or recorded as failed.
        """
        has_changed = False
        for group in list(self.waiting):
            if not self.engine.has_room(group) or self._is_out_of_time():
                break
            needed = {m.run.scale_of for m in group.members if m.run.scale_of is not None}
            is_too_long = self.estimator.seconds_left([(group, self._completed_fraction(group))]) > self._seconds_left()
            if not needed <= self.recorded.keys() or (is_too_long and not ignore_deadline):
                continue
            has_changed = True
            self.waiting.remove(group)
            ready = self._resolve_scales(group)
            if ready is not None:
                ready = replace(ready, command=self.command)
                write_group(self.folder, ready)
                self.running[ready.group_id] = RunningGroup(ready, time.monotonic(), self._completed_fraction(ready))
                self.has_started = True
                self._print(f"starting {ready.title}" + ", which will not finish within --budget" * is_too_long)
                self.engine.start(ready)
        return has_changed

    def _resolve_scales(self, group: RunGroup) -> RunGroup | None:
        """Fill in the scales that other runs have learned, and record runs whose scale is missing as failed.

        Returns:
            The group of the remaining runs, or None if there are none.
        """
        failures: dict[RecordedRun, list[GroupMember]] = {}
        ready = []
        for member in group.members:
            source = self.recorded.get(member.run.scale_of or "")
            if source is None:
                ready.append(member)
            elif source.status == "done" and source.scale_last is not None:
                ready.append(replace(member, scale_target=source.scale_last))
            else:
                failures.setdefault(source, []).append(member)
        for source, members in failures.items():
            failed = replace(group, members=tuple(members))
            problem = "did not learn a scale." if source.status == "done" else f"failed: {source.error}"
            message = f"This run needs the final scale of another run, which {problem}"
            record_failure(self.folder, failed, message, source.data_fingerprint)
            self._record(FinishedGroup(failed))
        return replace(group, members=tuple(ready)) if ready else None

    def _record(self, finished: FinishedGroup) -> None:
        untimed = RunningGroup(finished.group, time.monotonic(), 0.0)
        group, start_time, share_before = self.running.pop(finished.group.group_id, untimed)
        path = results_path(self.folder, group.group_id)
        if not path.exists():
            record_failure(self.folder, group, finished.error or "The group ended without results.")
        outcomes = read_recorded_table(path)
        self.recorded |= outcomes
        if all(run.status == "done" for run in outcomes.values()):  # failed runs end early and would bias the estimate
            self.estimator.add(group, time.monotonic() - start_time, share_before)
        failed = [(run_id, run.error) for run_id, run in outcomes.items() if run.status == "failed"]
        for run_id, error in failed[:1]:
            more = f" (and {len(failed) - 1} more in this group)" if len(failed) > 1 else ""
            self._print(f"failed: {self._describe_run(run_id)}: {error}{more}")
        self._print(self.format_status())

    def _describe_run(self, run_id: str) -> str:
        run = self.plan.runs[run_id]
        return f"{self.plan.first_entry(run_id).variant} on {run.dataset}, seed {run.seed}"

    # -- status --------------------------------------------------------------------------------------------------
    def format_status(self) -> str:
        """Return a status line: how many runs are done, running and failed, and the estimated time left."""
        active = [group for group, *_ in self.running.values()]
        running = sum(len(group.members) for group in active)
        failed = sum(run.status == "failed" for run in self.recorded.values())
        done = len(self.recorded) - failed
        completed = sum(self._completed_fraction(group) * len(group.members) for group in active) / max(running, 1)
        progress = f" ({completed:.0%} of their steps)" if completed else ""
        runs = count_noun(len(self.plan.runs), "run")
        text = f"{done:,} of {runs} done, {running} running{progress}, {failed} failed"
        fractions = [(group, self._completed_fraction(group)) for group in (*self.waiting, *active)]
        seconds = self.estimator.seconds_left(fractions, len(self.running))
        return f"{text}, about {format_seconds(seconds)} left" if seconds else text

    def _completed_fraction(self, group: RunGroup) -> float:
        """Return the completed fraction of a group's steps."""
        try:
            progress = json.loads((group_path(self.folder, group.group_id) / PROGRESS).read_text())
            return float(progress["step"] / progress["steps"])
        except (OSError, ValueError, KeyError, ZeroDivisionError):
            return 0.0

    def _print_status_periodically(self) -> None:
        if self.running and time.monotonic() - self._last_status > STATUS_SECONDS:
            self._print(self.format_status())

    def _print(self, text: str) -> None:
        self._last_status = time.monotonic()
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)


def to_interrupted(error: Interrupted | KeyboardInterrupt) -> Interrupted:
    """Return an `Interrupted` with the same signal and a message that explains how to continue."""
    if isinstance(error, Interrupted):
        number = error.exit_code - 128
    else:
        number = signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT
    return Interrupted("Stopped. Run the same command again to continue.", number)
