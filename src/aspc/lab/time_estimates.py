"""Estimates of training time, based on the timings of earlier groups."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from aspc.lab import results
from aspc.lab.groups import RunGroup


class StepTiming(NamedTuple):
    """The time per step, in seconds, for a given number of runs that train together."""

    algo: str
    runs: int
    seconds: float


class TimeEstimator:
    """An estimator of the time that groups take to train."""

    def __init__(self, timings: Iterable[StepTiming] = ()) -> None:
        self.timings = list(timings)

    @classmethod
    def from_results(cls, folders: Iterable[Path], device: str, machine: str) -> TimeEstimator:
        """Create an estimator from the results of groups that were trained on this type of device.

        Timings on a CPU are used only if they are from this machine.
        """
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
        """Record a group's training time.

        Args:
            group: The group.
            seconds: Time spent on training.
            share_before: Fraction of the group's steps that were complete when this timing started.
        """
        if share_before < 1:
            steps = _longest_steps(group) * (1 - share_before)
            self.timings.append(StepTiming(group.members[0].run.algo, len(group.members), seconds / steps))

    def seconds_left(self, groups: Iterable[tuple[RunGroup, float]], parallel_groups: int = 1) -> float:
        """Return the expected time to train groups, in seconds; 0 if no timing is known yet.

        Args:
            groups: The groups, each with the fraction of its steps that has been completed.
            parallel_groups: Number of groups that train at the same time.
        """
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
