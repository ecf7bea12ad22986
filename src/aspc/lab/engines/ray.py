"""An engine that trains groups as tasks of a Ray cluster, each with a fixed number of cores and GPUs.

If a machine is lost, Ray restarts its tasks on another machine. With shared storage, a task continues from its
checkpoint. Without shared storage, it starts over; once it has finished, Ray transfers its files back.
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
from aspc.interrupts import Interrupted
from aspc.io import write_atomically
from aspc.lab.engines.interface import FinishedGroup
from aspc.lab.group_training import run_group
from aspc.lab.groups import GROUP, RunGroup, group_path, results_path, write_group

CONNECT_SECONDS = 10.0
MAX_RETRIES = 10  # per task, if its machine is lost
Files = dict[str, bytes]


class RayEngine:
    """An engine that trains groups on a Ray cluster; without an address, it starts a cluster on this machine."""

    def __init__(
        self, bench: Path, address: str | None, cpus: float = 1, gpus: float = 0, *, shared_storage: bool = True
    ) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingExtra("--engine ray", "ray") from error
        self.bench, self.shared_storage = bench, shared_storage
        self._ray = ray
        self._running: dict[Any, RunGroup] = {}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if address is not None:
            check_reachable(address)
        settings: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
        try:
            with warnings.catch_warnings():
                # A fork loses JAX's threads, but Ray's child processes call exec immediately and do not need them.
                warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
                ray.init(**settings, log_to_driver=False, logging_level=logging.ERROR, ignore_reinit_error=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            problem = f"No Ray cluster could be reached at {address}" if address else "Ray could not be started"
            raise AspcError(f"{problem}: {first_line(error)}") from error
        # Run each group in its own process (max_calls=1), so that all device memory is freed when the group ends.
        resources = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=MAX_RETRIES, max_calls=1)
        self._train_here: Any = resources(train_in_place)
        self._train_away: Any = resources(train_and_pack)
        self.gpus = gpus
        self._notify_if_no_node_fits(cpus, gpus)

    def _notify_if_no_node_fits(self, cpus: float, gpus: float) -> None:
        """Print a note if no machine has enough cores and GPUs. This is not an error, since a cluster can grow."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
            print(
                f"note: no machine in the cluster has {cpus:g} cores and {gpus:g} GPUs for a group; waiting for one",
                file=sys.stderr,
            )

    def has_room(self, group: RunGroup) -> bool:
        """Return True: Ray queues the tasks, so that an autoscaler can see the total demand."""
        return True

    def start(self, group: RunGroup) -> None:
        """Submit a group to the cluster."""
        if self.shared_storage:
            task = self._train_here.remote(str(self.bench), group.group_id, self.gpus)
        else:
            task = self._train_away.remote(group.to_json(), self.gpus)
        self._running[task] = group

    def wait(self, seconds: float) -> list[FinishedGroup]:
        """Wait up to `seconds` for a group to end; return a list with this group, or an empty list if none ends."""
        if not self._running:
            return []
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        return [self._collect(task) for task in ready]

    def _collect(self, task: Any) -> FinishedGroup:
        group = self._running.pop(task)
        try:
            files = self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ExternalFailure):  # not caused by the run: stop all groups
                raise error.cause from error
            return FinishedGroup(group, f"{type(error.cause).__name__}: {error.cause}")
        except self._ray.exceptions.RayError as error:
            return FinishedGroup(
                group, f"The machine was lost {MAX_RETRIES + 1} times, or the cluster stopped: {first_line(error)}"
            )
        if files is not None:
            unpack(self.bench, group, files)
        return FinishedGroup(group)

    def close(self) -> None:
        """Cancel the running tasks and disconnect."""
        with contextlib.suppress(Exception):  # the cluster may be gone already
            for task in self._running:
                self._ray.cancel(task, force=True)
        self._ray.shutdown()


def check_reachable(address: str) -> None:
    """Raise `AspcError` if no server is listening at an address. Without this check, Ray would wait for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not port.isdigit():
        return  # "auto" or a Ray Client address
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or error
        raise AspcError(
            f"No Ray cluster is listening at {address} ({reason}). `ray start --head` prints the address."
        ) from error


# ── tasks ─────────── ───────────────────────────────────────────────────────────────────────────────────────────────


def train_in_place(bench: str, group_id: str, gpus: float) -> None:
    """Train a group in the shared folder."""
    _limit_device_memory(gpus)
    with exit_when_interrupted():
        run_group(Path(bench), group_id)


@contextlib.contextmanager
def exit_when_interrupted() -> Iterator[None]:
    """Exit the worker process on an interrupt, so that Ray restarts its task as if the machine had been lost."""
    try:
        yield
    except Interrupted as interruption:
        os._exit(interruption.exit_code)


def train_and_pack(group_json: str, gpus: float) -> Files:
    """Train a group in a temporary folder and return the contents of its files."""
    _limit_device_memory(gpus)
    group = RunGroup.from_json(group_json)
    with exit_when_interrupted(), tempfile.TemporaryDirectory(prefix="aspc-") as folder:
        bench = Path(folder)
        write_group(bench, group)
        run_group(bench, group.group_id)
        return pack(bench)


def _limit_device_memory(gpus: float) -> None:
    """Limit JAX to this group's fraction of the GPU's memory; by default, JAX preallocates three quarters of it."""
    # JAX raises an error if both the variable and its old name, XLA_PYTHON_CLIENT_MEM_FRACTION, are set.
    if 0 < gpus < 1 and "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ:
        os.environ.setdefault("XLA_CLIENT_MEM_FRACTION", f"{0.9 * gpus:.3f}")


def pack(bench: Path) -> Files:
    """Return the contents of all files in an output folder, by relative path."""
    paths = [path for path in sorted(bench.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(bench).as_posix(): path.read_bytes() for path in paths}


def unpack(bench: Path, group: RunGroup, files: Files) -> None:
    """Write a group's files to an output folder.

    The results are written last, because their presence marks the group as finished.

    Raises:
        AspcError: A file does not belong to the group.
    """
    last = results_path(bench, group.group_id).relative_to(bench).as_posix()
    own = group_path(bench, group.group_id).relative_to(bench).as_posix()
    allowed = (last, f"curves/{group.group_id}.parquet")
    for name in sorted(files, key=lambda name: name == last):
        parts = PurePosixPath(name).parts
        if ".." in parts or not (name in allowed or name.startswith(f"{own}/")):
            raise AspcError(f"Group {group.group_id} sent a file that does not belong to it: {name}.")
        if name == f"{own}/{GROUP}":
            continue
        path = bench.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, files[name])
