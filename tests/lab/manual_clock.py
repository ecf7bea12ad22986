"""A clock for tests that do not depend on the machine's load."""

from __future__ import annotations


class ManualClock:
    """A replacement for the module `time` that advances only in `sleep`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
