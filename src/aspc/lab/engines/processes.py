"""An engine that runs several groups at once on this machine, each in its own process.

One group can then train while another compiles or evaluates. If the parent process ends for any reason, the processes
of the groups save a checkpoint and exit: each of them reads from a pipe that only the parent holds open.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

from aspc.__main__ import run_reporting_errors
from aspc.errors import AspcError
from aspc.lab.engines.interface import FinishedGroup, PollingEngine
from aspc.lab.group_training import run_group
from aspc.lab.groups import RunGroup, group_path, results_path

STOP_SECONDS = 30.0  # time to save a checkpoint before the process is killed
LOG = "log.txt"
# Exit codes that stop all groups, for example because of a full disk or a signal. The last line of the log states the
# reason.
STOPPING_EXIT_CODES = (2, 128 + signal.SIGINT, 128 + signal.SIGTERM)


class ProcessesEngine(PollingEngine["subprocess.Popen[bytes]"]):
    """An engine that trains up to `parallel_groups` groups at once, each in its own process on this machine."""

    poll_seconds = 0.2

    def __init__(self, bench: Path, parallel_groups: int) -> None:
        super().__init__()
        self.bench, self.parallel_groups = bench, parallel_groups

    def has_room(self, group: RunGroup) -> bool:
        """Return whether another process can start. A timed group must train alone."""
        is_exclusive = group.alone or any(running.alone for running, _ in self._jobs.values())
        return len(self._jobs) < (1 if is_exclusive else self.parallel_groups)

    def start(self, group: RunGroup) -> None:
        """Start a process that trains a group."""
        command = [sys.executable, "-P", "-m", "aspc.lab.engines.processes", str(self.bench), group.group_id]
        with self._log_file(group).open("ab") as log:
            # In a new session, the process does not receive Ctrl-C; the parent does, and stops its children.
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._jobs[group.group_id] = (group, process)

    def _log_file(self, group: RunGroup) -> Path:
        return group_path(self.bench, group.group_id) / LOG

    def _poll(self, group: RunGroup, job: subprocess.Popen[bytes]) -> FinishedGroup | None:
        code = job.poll()
        if code is None:
            return None
        _close_input(job)
        if results_path(self.bench, group.group_id).exists():
            return FinishedGroup(group)
        if code in STOPPING_EXIT_CODES:
            raise AspcError(self._log_file(group).read_text(errors="replace").splitlines()[-1].removeprefix("aspc: "))
        if code < 0:
            raise AspcError(
                f"A group's process was killed by {signal.Signals(-code).name} (log: {self._log_file(group)}). "
                "Run the same command again to continue."
            )
        return FinishedGroup(
            group, f"The group's process ended with exit code {code} and no results (log: {self._log_file(group)})"
        )

    def close(self) -> None:
        """Ask all processes to save a checkpoint and exit; kill those that take too long."""
        deadline = time.monotonic() + STOP_SECONDS
        processes = [process for _, process in self._jobs.values()]
        for process in processes:
            _close_input(process)
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0))
            process.kill()  # has no effect on a process that has ended
            process.wait()


def _close_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def terminate_with_parent() -> None:
    """Wait until the parent closes the pipe, then send SIGTERM to this process, so that it saves a checkpoint."""
    os.read(sys.stdin.fileno(), 1)  # unbuffered, because a buffered read would hold a lock when the process exits
    os.kill(os.getpid(), signal.SIGTERM)


def main(bench: str, group_id: str) -> int:
    """Train a group and return the exit code of its process."""
    threading.Thread(target=terminate_with_parent, daemon=True).start()
    return run_reporting_errors(partial(run_group, Path(bench), group_id))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
