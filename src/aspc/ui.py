"""Messages for a waiting user: progress bars, progress lines and "still working" notices, all on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

PLAIN_LINE_SECONDS = 10.0  # time between lines if stderr is not a terminal
NOTICE_SECONDS = 2.0  # time until a progress bar or a notice appears


def format_seconds(seconds: float) -> str:
    """Return a duration as h:mm:ss or m:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


@contextmanager
def notify_if_slow(message: str) -> Iterator[None]:
    """Print a message if the block takes longer than `NOTICE_SECONDS`."""
    with run_after(NOTICE_SECONDS, lambda: print(message, file=sys.stderr, flush=True)):
        yield


@contextmanager
def run_after(seconds: float, action: Callable[[], object]) -> Iterator[None]:
    """Call `action` in another thread if the block takes longer than `seconds`."""
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Progress:
    """A progress display for training: a live line on a terminal, otherwise a plain line every ten seconds.

    A line shows the steps per second, the time left and the latest value of each field.
    """

    def __init__(self, total: int, done: int = 0, quiet: bool = False) -> None:
        self.total, self.first, self.quiet = total, done, quiet
        self.start = self.last_line = time.monotonic()
        self.compiled: tuple[int, float] | None = None  # step and time after the first chunk, which compiles
        self.fields: dict[str, str] = {}
        self._bar: Any = None
        if not quiet and sys.stderr.isatty():
            from rich.progress import BarColumn, TextColumn

            self._bar = _new_bar(
                TextColumn("[bold]{task.percentage:3.0f}%"),
                BarColumn(),
                TextColumn("{task.completed:,}/{task.total:,} steps  {task.fields[text]}"),
            )
            self._task = self._bar.add_task("", total=total, completed=done, text="compiling")
            self._bar.start()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def show(self, step: int, **fields: str) -> None:
        """Report that `step` is done, with new values of some fields."""
        changed = fields.items() - self.fields.items()
        self.fields |= fields
        if self.quiet:
            return
        now = time.monotonic()
        speed = []
        if self.compiled is None and step < self.total:
            self.compiled = (step, now)
        first, start = self.compiled or (self.first, self.start)
        if step > first:
            rate = (step - first) / max(now - start, 1e-9)
            speed = [f"{rate:,.0f} steps/s", f"{format_seconds((self.total - step) / rate)} left"]
        text = "  ".join([*speed, *(f"{name} {value}" for name, value in self.fields.items())])
        if self._bar is not None:
            self._bar.update(self._task, completed=step, text=text)
        elif now - self.last_line >= PLAIN_LINE_SECONDS or (step == self.total and changed):
            self.last_line = now
            print(f"{step:,}/{self.total:,} steps  {text}".rstrip(), file=sys.stderr, flush=True)

    def print(self, text: str) -> None:
        """Print a line above the progress line."""
        if self.quiet:
            return
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Remove the live line."""
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def progress_bar(
    title: str, total: int | None, *, unit: Literal["steps", "files", "bytes"] = "steps"
) -> Iterator[Callable[[int], None]]:
    """Yield a function that sets the amount done. On a terminal, a bar appears after `NOTICE_SECONDS`."""
    started = time.monotonic()
    bar, task = None, None

    def show(done: int) -> None:
        nonlocal bar, task
        if bar is None:
            if time.monotonic() - started < NOTICE_SECONDS or not sys.stderr.isatty():
                return
            bar = _amount_bar(unit)
            bar.start()
            task = bar.add_task(title, total=total)
        bar.update(task, completed=done)

    try:
        yield show
    finally:
        if bar is not None:
            bar.stop()


def _amount_bar(unit: str) -> Any:
    from rich import progress

    transfer = [progress.DownloadColumn(), progress.TransferSpeedColumn()] if unit == "bytes" else []
    return _new_bar(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        *transfer,
        progress.TaskProgressColumn(),
        progress.TimeRemainingColumn(),
    )


def _new_bar(*columns: Any) -> Any:
    from rich.console import Console
    from rich.progress import Progress as RichProgress

    return RichProgress(*columns, console=Console(stderr=True), transient=True)
