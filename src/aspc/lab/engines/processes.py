"""Several groups at once on this machine, each in a process of its own: one trains while another compiles or evaluates.

Such a process ends, with a checkpoint, when the one that started it does, however that ends: it reads from a pipe that
nobody else holds.
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
from typing import Any

from aspc.__main__ import exit_code
from aspc.errors import AspcError
from aspc.lab.engines.local import Ended, Watching
from aspc.lab.groups import Group, group_folder, part_file, run_group

STOP_SECONDS = 30.0  # for a checkpoint; what takes longer is killed, and its last checkpoint counts
LOG = "log.txt"
# Exit codes of what ends a bench with a sentence in one process too (a full disk, a signal).
SENTENCES = (2, 128 + signal.SIGINT, 128 + signal.SIGTERM)


class ProcessesEngine(Watching):
    """Processes of this machine, `at_once` at most."""

    look_seconds = 0.2

    def __init__(self, bench: Path, at_once: int) -> None:
        super().__init__()
        self.bench, self.at_once = bench, at_once

    def has_room(self, group: Group) -> bool:
        alone = group.alone or any(running.alone for running, _ in self._jobs.values())
        return len(self._jobs) < (1 if alone else self.at_once)

    def start(self, group: Group) -> None:
        command = [sys.executable, "-P", "-m", "aspc.lab.engines.processes", str(self.bench), group.group_id]
        with self._log(group).open("ab") as log:
            # A session of its own: Ctrl-C is for us, and we end it.
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._jobs[group.group_id] = (group, process)

    def _log(self, group: Group) -> Path:
        return group_folder(self.bench, group.group_id) / LOG

    def _ended(self, group: Group, job: Any) -> Ended | None:
        code = job.poll()
        if code is None:
            return None
        job.stdin.close()
        if part_file(self.bench, group.group_id).exists():
            return Ended(group)
        if code in SENTENCES:
            raise AspcError(self._log(group).read_text(errors="replace").splitlines()[-1].removeprefix("aspc: "))
        if code < 0:
            raise AspcError(
                f"The process of a group was killed by {signal.Signals(-code).name} (its log is {self._log(group)}); "
                "the same command goes on from its checkpoint."
            )
        return Ended(group, f"Its process ended with exit code {code} and no results; its log is {self._log(group)}")

    def close(self) -> None:
        until = time.monotonic() + STOP_SECONDS
        processes: list[Any] = [process for _, process in self._jobs.values()]
        for process in processes:
            process.stdin.close()
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0))
            process.kill()  # nothing happens to one that has ended
            process.wait()


def end_with_the_parent() -> None:
    """SIGTERM to ourselves when nobody holds the other end of our input any more: a training saves a checkpoint."""
    os.read(sys.stdin.fileno(), 1)  # not through Python's buffer, whose lock nobody could take at the end of a process
    os.kill(os.getpid(), signal.SIGTERM)


def main(bench: str, group_id: str) -> int:
    threading.Thread(target=end_with_the_parent, daemon=True).start()
    return exit_code(partial(run_group, Path(bench), group_id))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
