"""Ctrl-C and SIGTERM: `DeferredInterrupts` for a command, `GracefulShutdown` for the training loop.

Python can raise KeyboardInterrupt between any two bytecodes. During an import, the exception can leave a
half-initialized extension module that crashes later, or be caught by an `except` in the imported library. In a callback
of the garbage collector, Python prints the exception and drops it. `DeferredInterrupts` records signals that arrive in
such code and resends them until they can be raised safely.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from aspc.errors import AspcError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
RESEND_SECONDS = 0.02
MAX_DEFERRED_SIGNALS = 3  # the third signal during an import interrupts it, as the import may hang
IMPORT_FILES = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM, like KeyboardInterrupt on SIGINT."""


class Interrupted(AspcError):
    """Training was stopped by SIGINT or SIGTERM after saving a checkpoint; the run can be resumed."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class GracefulShutdown:
    """A context manager that records the first SIGINT or SIGTERM, to be handled when the current chunk of steps ends.

    A second signal raises KeyboardInterrupt. Ignored signals stay ignored, such as SIGINT in background jobs of shell
    scripts. Outside the main thread, the context manager does nothing.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> GracefulShutdown:
        if threading.current_thread() is threading.main_thread():
            handled = [number for number in SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
            self._handlers = {number: signal.signal(number, self._handle) for number in handled}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None:
            raise _exception(number)
        self.signal_number = number
        if number == signal.SIGINT:
            # Write directly, since the signal may arrive during a print. The write fails if the command is piped into a
            # `tee` that has already ended.
            with suppress(OSError):
                os.write(2, b"\nStopping after this chunk is saved. Press Ctrl-C again to stop now without saving.\n")


class DeferredInterrupts:
    """A context manager in which SIGINT and SIGTERM raise KeyboardInterrupt and `Terminated` as soon as that is safe.

    Ignored signals stay ignored, as in background jobs of shell scripts. Outside the main thread, the context manager
    does nothing. A signal still pending at the end of the block is raised there; no signal is resent later.
    """

    def __init__(self) -> None:
        self._handlers: dict[signal.Signals, Any] = {}
        self._deferred: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # `put` is reentrant
        self._pending: int | None = None
        self._received = 0
        self._is_resent = False
        self._is_closing = False
        self._outside: FrameType | None = None
        self._previous_hook = sys.unraisablehook
        self._thread = threading.Thread(target=self._resend, name="resend signals", daemon=True)

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._outside = sys._getframe(1)
        self._previous_hook, sys.unraisablehook = sys.unraisablehook, self._handle_unraisable
        self._thread.start()
        for number in SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._handlers[number] = signal.signal(number, self._handle)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_closing = True  # no interrupt is raised after this line, so the cleanup below completes
        if threading.current_thread() is not threading.main_thread():
            return
        self._deferred.put(None)
        self._thread.join()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        sys.unraisablehook, self._outside = self._previous_hook, None
        if self._pending is not None and kind is None:
            raise _exception(self._pending)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_resent, self._is_resent = self._is_resent, False
        if is_resent and self._pending is None:
            return  # resent while the previous signal was being raised
        self._received += not is_resent
        if self._is_closing or (self._received < MAX_DEFERRED_SIGNALS and self._is_unsafe(frame)):
            self._defer(number)
        else:
            self._pending, self._received = None, 0
            raise _exception(number)

    def _is_unsafe(self, frame: FrameType | None) -> bool:
        """Return whether an import or `_handle_unraisable` is running inside the block."""
        while frame is not None and frame is not self._outside:
            code = frame.f_code
            if code.co_filename in IMPORT_FILES or code is DeferredInterrupts._handle_unraisable.__code__:
                return True
            frame = frame.f_back
        return False

    def _defer(self, number: int) -> None:
        self._pending = number
        self._deferred.put(number)

    def _handle_unraisable(self, dropped: Any) -> None:
        """Defer an interrupt that Python has dropped; forward other exceptions to the previous hook."""
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            self._defer(signal.SIGTERM if issubclass(dropped.exc_type, Terminated) else signal.SIGINT)
        else:
            self._previous_hook(dropped)

    def _resend(self) -> None:
        """Resend deferred signals until they are raised.

        Sending once is not enough: a signal that arrives just before a system call blocks does not interrupt the call.
        """
        main_thread = threading.main_thread().ident
        assert main_thread is not None
        while (number := self._deferred.get()) is not None:
            is_sent = False
            while self._pending is not None and not self._is_closing:
                time.sleep(RESEND_SECONDS)
                if self._pending is None or self._is_closing:
                    break
                if is_sent and signal.getsignal(number) != self._handle:
                    break  # `GracefulShutdown` may have handled it and would treat a resent signal as a second one
                self._is_resent = is_sent = True
                signal.pthread_kill(main_thread, number)  # also interrupts a system call


def _exception(number: int) -> KeyboardInterrupt:
    return Terminated() if number == signal.SIGTERM else KeyboardInterrupt()
