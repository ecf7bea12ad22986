"""A clock for tests: a busy machine changes nothing."""

from __future__ import annotations


class Clock:
    """Stands in for the module `time`, and goes on only where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
