"""The interface of engines, which train groups on this machine or on a cluster.

Results are files, so nothing is lost if the process that started the groups is killed: the next process finds the
finished groups and trains the remaining ones.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import Generic, NamedTuple, Protocol, TypeVar

from aspc.lab.groups import RunGroup

Job = TypeVar("Job")


class FinishedGroup(NamedTuple):
    """A group that has ended.

    `error` is set if the whole group failed. If only some of its runs failed, the errors are in the rows of these runs.
    """

    group: RunGroup
    error: str | None = None


class Engine(Protocol):
    """A backend that trains groups."""

    def has_room(self, group: RunGroup) -> bool:
        """Return whether the group can start now, alongside the groups that are already running."""
        ...

    def start(self, group: RunGroup) -> None:
        """Start a group whose file has been written to the output folder."""
        ...

    def wait(self, seconds: float) -> list[FinishedGroup]:
        """Wait until at least one group ends or `seconds` have passed; return all groups that have ended."""
        ...

    def close(self) -> None:
        """Stop or release the running groups."""
        ...


class PollingEngine(Generic[Job]):
    """Base class for engines that poll the jobs that they have started."""

    poll_seconds: float

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[RunGroup, Job]] = {}

    def wait(self, seconds: float) -> list[FinishedGroup]:
        """Wait until at least one group ends or `seconds` have passed; return all groups that have ended."""
        deadline = time.monotonic() + seconds
        while self._jobs:
            finished = [found for group, job in self._jobs.values() if (found := self._poll(group, job))]
            for group, _ in finished:
                del self._jobs[group.group_id]
            if finished or time.monotonic() >= deadline:
                return finished
            time.sleep(min(self.poll_seconds, max(deadline - time.monotonic(), 0)))
        return []

    @abstractmethod
    def _poll(self, group: RunGroup, job: Job) -> FinishedGroup | None:
        """Return the group with its outcome, or None while it is running."""
