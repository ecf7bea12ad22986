"""Estimates of training time, based on earlier groups."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from aspc.lab import results
from aspc.lab.groups import RunGroup


class StepTiming(NamedTuple):
    """Seconds per step for a given number of runs that train together."""

    algo: str
    runs: int
    seconds: float


class TimeEstimator:
    """An estimator of the training time of groups."""

    def __init__(self, timings: Iterable[StepTiming] = ()) -> None:
        self.timings = list(timings)

    @classmethod
    def from_results(cls, folders: Iterable[Path], device: str, machine: str) -> TimeEstimator:
        """Read the timings of groups on this type of device; for a CPU, only of groups on this machine."""
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
        """Record a group's training time, excluding the fraction `share_before` of its steps that was done before."""
        if share_before < 1:
            steps = _longest_steps(group) * (1 - share_before)
            self.timings.append(StepTiming(group.members[0].run.algo, len(group.members), seconds / steps))

    def seconds_left(self, groups: Iterable[tuple[RunGroup, float]], parallel_groups: int = 1) -> float:
        """Return the expected seconds for groups, given the completed fraction of each; 0 if no timing is known yet."""
        if not self.timings:
            return 0.0
        return sum(self._seconds(group) * (1 - fraction) for group, fraction in groups) / max(parallel_groups, 1)

    def _seconds(self, group: RunGroup) -> float:
        """Predict from the timing nearest in group size, preferably for the same algorithm.

        The prediction is conservative: a step of a smaller group is assumed to take as long, and a step of a larger
        group proportionally longer.
        """
        runs, algo = len(group.members), group.members[0].run.algo
        candidates = [timing for timing in self.timings if timing.algo == algo] or self.timings
        nearest = min(reversed(candidates), key=lambda timing: abs(math.log(timing.runs / runs)))
        return nearest.seconds * max(1.0, runs / nearest.runs) * _longest_steps(group)


def _longest_steps(group: RunGroup) -> int:
    return max(member.run.steps for member in group.members)
