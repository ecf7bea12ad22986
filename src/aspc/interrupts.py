"""Ctrl-C and SIGTERM for a command: never lost, and never raised where an exception would crash the interpreter.

Python raises KeyboardInterrupt between any two bytecodes. Inside an import that can leave a half-initialised extension
module behind, which crashes later, or end in an `except` of the library that is imported. Inside a callback of the
garbage collector Python prints the exception and drops it. A signal that arrives there is noted, and sent again until
it arrives where it can be obeyed.
"""

from __future__ import annotations

import queue
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
RESEND_SECONDS = 0.02
INSIST = 3  # signals during one import after which it is interrupted all the same: it may hang
IMPORT_FILES = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")


class Terminated(KeyboardInterrupt):
    """Raised for SIGTERM, as KeyboardInterrupt is for SIGINT."""


class DeferredInterrupts:
    """A context in which SIGINT and SIGTERM raise KeyboardInterrupt and `Terminated` as soon as that is safe.

    Signals that are ignored when it is entered stay ignored, as in a background job of a shell script. Outside of the
    main thread it does nothing. A signal that could not be raised before the end of the block is raised there; none
    is sent after it.
    """

    def __init__(self) -> None:
        self._handlers: dict[signal.Signals, Any] = {}
        self._notes: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # its put can interrupt itself
        self._pending: int | None = None
        self._received = 0
        self._is_resent = False
        self._is_closing = False

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._outside: FrameType | None = sys._getframe(1)
        self._main = threading.get_ident()
        self._hook_before, sys.unraisablehook = sys.unraisablehook, self._unraisable
        self._thread = threading.Thread(target=self._resend, name="resend signals", daemon=True)
        self._thread.start()
        for number in SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._handlers[number] = signal.signal(number, self._handle)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_closing = True  # from here on nothing is raised, so that all of the following is done
        if threading.current_thread() is not threading.main_thread():
            return
        self._notes.put(None)
        self._thread.join()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        sys.unraisablehook, self._outside = self._hook_before, None
        if self._pending is not None and kind is None:
            raise _exception(self._pending)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_resent, self._is_resent = self._is_resent, False
        self._received += not is_resent
        if self._is_closing or (self._received < INSIST and self._must_wait(frame)):
            self._note(number)
        else:
            self._pending, self._received = None, 0
            raise _exception(number)

    def _must_wait(self, frame: FrameType | None) -> bool:
        """Return whether an import, or the hook below, is under way in the block."""
        while frame is not None and frame is not self._outside:
            code = frame.f_code
            if code.co_filename in IMPORT_FILES or code is DeferredInterrupts._unraisable.__code__:
                return True
            frame = frame.f_back
        return False

    def _note(self, number: int) -> None:
        self._pending = number
        self._notes.put(number)

    def _unraisable(self, dropped: Any) -> None:
        """Take back an interrupt that Python has dropped."""
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            self._note(signal.SIGTERM if issubclass(dropped.exc_type, Terminated) else signal.SIGINT)
        else:
            self._hook_before(dropped)

    def _resend(self) -> None:
        while (number := self._notes.get()) is not None:
            time.sleep(RESEND_SECONDS)
            if self._is_closing:
                break
            self._is_resent = True
            signal.pthread_kill(self._main, number)  # to the main thread, so that a system call in it ends


def _exception(number: int) -> KeyboardInterrupt:
    return Terminated() if number == signal.SIGTERM else KeyboardInterrupt()
