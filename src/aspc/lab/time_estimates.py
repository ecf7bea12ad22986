"""Estimates of training time from the times of earlier groups."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from aspc.lab import results
from aspc.lab.groups import RunGroup


class StepTiming(NamedTuple):
    """Seconds per step of a number of runs that train together."""

    algo: str
    runs: int
    seconds: float


class TimeEstimator:
    """Predicts how long groups take."""

    def __init__(self, timings: Iterable[StepTiming] = ()) -> None:
        self.timings = list(timings)

    @classmethod
    def from_results(cls, folders: Iterable[Path], device: str, machine: str) -> TimeEstimator:
        """Read the times of groups on this device; on a CPU, only of groups on this machine."""
        timings: dict[str, StepTiming] = {}
        columns = ["group_id", "algo", "runs_together", "seconds", "steps", "device", "machine"]
        for path in results.find_run_tables(folders):
            for row in results.read_table(path, "runs").select(columns).to_pylist():
                is_here = row["device"] == device and (row["machine"] == machine or not device.startswith("cpu"))
                if is_here and row["group_id"] and row["seconds"] and row["runs_together"] and row["steps"] > 0:
                    seconds_per_step = row["seconds"] / row["steps"]
                    timings[row["group_id"]] = StepTiming(row["algo"], row["runs_together"], seconds_per_step)
        return cls(timings.values())

    def add(self, group: RunGroup, seconds: float, share_before: float = 0.0) -> None:
        """Record the time of a group; `share_before` of its steps were done earlier."""
        if share_before < 1:
            steps = _longest_steps(group) * (1 - share_before)
            self.timings.append(StepTiming(group.members[0].run.algo, len(group.members), seconds / steps))

    def seconds_left(self, groups: Iterable[tuple[RunGroup, float]], parallel_groups: int = 1) -> float:
        """Return the expected seconds for groups with the shares done so far, or 0 if no time is known yet."""
        if not self.timings:
            return 0.0
        return sum(self._seconds(group) * (1 - share) for group, share in groups) / max(parallel_groups, 1)

    def _seconds(self, group: RunGroup) -> float:
        """Predict from the group nearest in size, of the same algorithm if there is one.

        The prediction errs on the long side: a step of fewer runs is taken to last as long, one of more runs
        proportionally longer.
        """
        runs, algo = len(group.members), group.members[0].run.algo
        candidates = [timing for timing in self.timings if timing.algo == algo] or self.timings
        nearest = min(reversed(candidates), key=lambda timing: abs(math.log(timing.runs / runs)))
        return nearest.seconds * max(1.0, runs / nearest.runs) * _longest_steps(group)


def _longest_steps(group: RunGroup) -> int:
    return max(member.run.steps for member in group.members)
