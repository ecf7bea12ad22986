"""What is seen of a run while it goes on: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

QUIET_SECONDS = 10.0  # between plain lines


def seconds_text(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


class Progress:
    """Steps per second, time left, and whatever `fields` were told last."""

    def __init__(self, total: int, done: int = 0, quiet: bool = False) -> None:
        self.total, self.first, self.quiet = total, done, quiet
        self.start = self.last_line = time.monotonic()
        self.compiled: tuple[int, float] | None = None  # where and when the first steps were done
        self.fields: dict[str, str] = {}
        self._bar: Any = None
        if not quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("[bold]{task.percentage:3.0f}%"),
                BarColumn(),
                TextColumn("{task.completed:,}/{task.total:,} steps  {task.fields[text]}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("", total=total, completed=done, text="compiling")
            self._bar.start()

    def show(self, step: int, **fields: str) -> None:
        changed = fields.items() - self.fields.items()
        self.fields |= fields
        if self.quiet:
            return
        now = time.monotonic()
        told = []
        if self.compiled is None and step < self.total:
            self.compiled = (step, now)  # what came before is no measure of what is left
        first, start = self.compiled or (self.first, self.start)
        if step > first:
            rate = (step - first) / max(now - start, 1e-9)
            told = [f"{rate:,.0f} steps/s", f"{seconds_text((self.total - step) / rate)} left"]
        text = "  ".join([*told, *(f"{name} {value}" for name, value in self.fields.items())])
        if self._bar is not None:
            self._bar.update(self._task, completed=step, text=text)
        elif now - self.last_line >= QUIET_SECONDS or (step == self.total and changed):
            self.last_line = now
            print(f"{step:,}/{self.total:,} steps  {text}".rstrip(), file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.quiet:
            return
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
