"""Groups as tasks of a Ray cluster: each has its share of cores and GPUs, and goes where there is room.

A task whose machine is lost is started again by Ray on another one. Where all machines see the bench's folder it goes
on from its checkpoint; where they do not, it starts again, and what it leaves behind comes back through Ray itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from aspc.errors import AspcError, ExternalFailure, MissingExtra, first_line
from aspc.io import write_atomically
from aspc.lab.engines.local import Ended
from aspc.lab.groups import GROUP, Group, group_folder, part_file, run_group, write_group
from aspc.training.trainer import Interrupted

CONNECT_SECONDS = 10.0
RETRIES = 10  # of a task whose machine was lost
Files = dict[str, bytes]


class RayEngine:
    """A Ray cluster; without an address, one that is started on this machine for as long as the bench runs."""

    def __init__(
        self, bench: Path, address: str | None, cpus: float = 1, gpus: float = 0, *, shared_storage: bool = True
    ) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingExtra("--engine ray", "ray") from error
        self.bench, self.shared_storage = bench, shared_storage
        self._ray = ray
        self._running: dict[Any, Group] = {}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if address is not None:
            refuse_unreachable(address)
        settings: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
        try:
            with warnings.catch_warnings():
                # Ray's children execute another program at once, so that JAX's threads are not missed there.
                warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
                ray.init(**settings, log_to_driver=False, logging_level=logging.ERROR, ignore_reinit_error=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            where = f"at {address}" if address else "on this machine"
            raise AspcError(f"No Ray cluster could be reached {where}: {str(error).splitlines()[0]}") from error
        # A process of its own for each group: it gives all memory of its device back when it ends.
        resources = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES, max_calls=1)
        self._train_here: Any = resources(train_in_place)
        self._train_away: Any = resources(train_and_pack)
        self.gpus = gpus
        self._note_what_is_missing(cpus, gpus)

    def _note_what_is_missing(self, cpus: float, gpus: float) -> None:
        """A cluster may grow, so groups that nobody can take yet are no error."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
            print(
                f"note: no machine of the cluster has {cpus:g} cores and {gpus:g} GPUs for a group; waiting for one",
                file=sys.stderr,
            )

    def has_room(self, group: Group) -> bool:
        return True  # Ray keeps the queue, and a cluster that scales sees all that is wanted

    def start(self, group: Group) -> None:
        if self.shared_storage:
            task = self._train_here.remote(str(self.bench), group.group_id, self.gpus)
        else:
            task = self._train_away.remote(group.to_json(), self.gpus)
        self._running[task] = group

    def wait(self, seconds: float) -> list[Ended]:
        if not self._running:
            return []
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        return [self._ended(task) for task in ready]

    def _ended(self, task: Any) -> Ended:
        group = self._running.pop(task)
        try:
            files = self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ExternalFailure):  # no fault of the run: the bench stops, and can go on
                raise error.cause from error
            return Ended(group, f"{type(error.cause).__name__}: {error.cause}")
        except self._ray.exceptions.RayError as error:
            return Ended(group, f"Its machine was lost {RETRIES + 1} times, or the cluster ended: {first_line(error)}")
        if files is not None:
            unpack(self.bench, group, files)
        return Ended(group)

    def close(self) -> None:
        with contextlib.suppress(Exception):  # the cluster may be gone already
            for task in self._running:
                self._ray.cancel(task, force=True)
        self._ray.shutdown()


def refuse_unreachable(address: str) -> None:
    """Ray itself waits for minutes where nobody listens."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not port.isdigit():
        return  # "auto", or an address of Ray's client
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or error
        raise AspcError(f"No Ray cluster listens at {address} ({reason}); `ray start --head` prints one.") from error


# ── what the tasks do ───────────────────────────────────────────────────────────────────────────────────────────────


def train_in_place(bench: str, group_id: str, gpus: float) -> None:
    """Train a group in the folder that all machines see."""
    _share_device(gpus)
    with lost_when_stopped():
        run_group(Path(bench), group_id)


@contextlib.contextmanager
def lost_when_stopped() -> Iterator[None]:
    """A worker that is told to stop ends as one whose machine is lost: Ray begins its task again."""
    try:
        yield
    except Interrupted as interruption:
        os._exit(interruption.exit_code)


def train_and_pack(group_json: str, gpus: float) -> Files:
    """Train a group in a folder of this machine; returns what it leaves behind."""
    _share_device(gpus)
    group = Group.from_json(group_json)
    with lost_when_stopped(), tempfile.TemporaryDirectory(prefix="aspc-") as folder:
        bench = Path(folder)
        write_group(bench, group)
        run_group(bench, group.group_id)
        return pack(bench)


def _share_device(gpus: float) -> None:
    """JAX takes three quarters of a device's memory at once; a group that shares one takes its share."""
    if 0 < gpus < 1 and "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ:  # its old name; JAX refuses both together
        os.environ.setdefault("XLA_CLIENT_MEM_FRACTION", f"{0.9 * gpus:.3f}")


def pack(bench: Path) -> Files:
    """The files of a bench by relative path."""
    paths = [path for path in sorted(bench.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(bench).as_posix(): path.read_bytes() for path in paths}


def unpack(bench: Path, group: Group, files: Files) -> None:
    """Put a group's files in their places, its results last: they say that all is there."""
    last = part_file(bench, group.group_id).relative_to(bench).as_posix()
    own = group_folder(bench, group.group_id).relative_to(bench).as_posix()
    allowed = (last, f"curves/{group.group_id}.parquet")
    for name in sorted(files, key=lambda name: name == last):
        parts = PurePosixPath(name).parts
        if ".." in parts or not (name in allowed or name.startswith(f"{own}/")):
            raise AspcError(f"The group {group.group_id} sent a file that is not its own: {name}.")
        if name == f"{own}/{GROUP}":
            continue
        path = bench.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, files[name])
