"""The local engine: train groups one after another in this process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from aspc.interrupts import Interrupted
from aspc.lab.engines.interface import FinishedGroup
from aspc.lab.group_training import run_group
from aspc.lab.groups import RunGroup
from aspc.ui import run_after


class LocalEngine:
    """An engine that trains one group at a time in this process, until an optional deadline on the monotonic clock."""

    def __init__(self, bench: Path, quiet: bool = False, deadline: float | None = None) -> None:
        self.bench, self.quiet, self.deadline = bench, quiet, deadline
        self._next: RunGroup | None = None
        self._late_signal: int | None = None  # a signal that arrived too late to stop the last group

    def has_room(self, group: RunGroup) -> bool:
        """Return whether no other group is waiting to be trained."""
        return self._next is None

    def start(self, group: RunGroup) -> None:
        """Accept a group, which the next call of `wait` trains.

        Raises:
            Interrupted: A signal arrived too late to stop the previous group.
        """
        if self._late_signal is not None:
            raise Interrupted("Stopped before the next group.", self._late_signal)
        self._next = group

    def wait(self, seconds: float) -> list[FinishedGroup]:
        """Train the accepted group until it ends, regardless of `seconds`, and return it."""
        group, self._next = self._next, None
        if group is None:
            return []
        with terminate_at(self.deadline):
            self._late_signal = run_group(self.bench, group.group_id, self.quiet)
        return [FinishedGroup(group)]

    def close(self) -> None:
        """Do nothing, since no group is running after `wait` has returned."""


@contextmanager
def terminate_at(deadline: float | None) -> Iterator[None]:
    """Send SIGTERM to this process at the deadline, so that training saves a checkpoint and stops.

    Args:
        deadline: A time on the monotonic clock; None for no deadline.
    """
    if deadline is None:
        yield
        return
    with run_after(max(deadline - time.monotonic(), 0), partial(os.kill, os.getpid(), signal.SIGTERM)):
        yield
