"""Wait for a condition instead of a fixed time; the deadline only ends tests that hang."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

DEADLINE_SECONDS = 900


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str] | None = None) -> bool:
    """Wait for a condition and return True; return False if a process ends before it holds."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        if process is not None and process.poll() is not None:
            return bool(condition())
        assert time.monotonic() < deadline, f"waited {DEADLINE_SECONDS} s without success"
        time.sleep(0.01)
    return True
