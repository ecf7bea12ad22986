"""The Ray engine on a real cluster of three nodes on loopback, one of which is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from result_assertions import assert_each_run_once, assert_same_results

from aspc.errors import AspcError, DiskFailure
from aspc.interrupts import Interrupted
from aspc.lab import results, suites
from aspc.lab.engines.ray import RayEngine, exit_when_interrupted, unpack
from aspc.lab.groups import make_groups
from aspc.lab.plan import make_plan
from aspc.policy import load_policy

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'aspc[ray]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own

Start = Callable[..., "subprocess.Popen[str]"]
TIMEOUT_SECONDS = 1200
LOOPBACK = "127.0.0.2"  # Ray replaces 127.0.0.1 by an address that others can reach


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without cores and two workers with one core each."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    quick = {"health_check_initial_delay_ms": 2000, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    memory = 80 * 2**20
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 0,
            "object_store_memory": memory,
            "include_dashboard": False,
            "node_ip_address": LOOPBACK,
            "_system_config": quick,
        },
    )
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1, object_store_memory=memory, node_ip_address=LOOPBACK)
        yield cluster
    finally:
        cluster.shutdown()


def find_worker(cluster: Any, group: Path) -> tuple[Any, int] | None:
    """Return the node and the process that hold a group's lock, or None if the group has ended."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            opened = [os.readlink(link) for link in (process / "fd").iterdir()]
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, PermissionError):
            continue  # the process has ended, or is not ours
        for node in cluster.list_all_nodes():
            if str(group / ".group.lock") in opened and node.all_processes["raylet"][0].process.pid == parent:
                return node, int(process.name)
    return None


def pause_worker(cluster: Any, bench: Path) -> tuple[Any, int, Path] | None:
    """Stop a process that has saved a checkpoint of a group; return its node, the process and the group's folder."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process can end meanwhile
        for checkpoint in bench.glob("groups/*/fleet-*/checkpoints/[0-9]*"):
            group = checkpoint.parents[2]
            if (found := find_worker(cluster, group)) is not None:
                node, process = found
                os.kill(process, signal.SIGSTOP)
                if not (bench / "runs" / f"{group.name}.parquet").exists():
                    return node, process, group
                os.kill(process, signal.SIGCONT)
    return None


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the process in /proc")
def test_every_run_finishes_once_although_a_node_is_killed(
    cluster: Any, start: Start, uninterrupted: Path, tmp_path: Path
) -> None:
    words = ("tiny", "--out", tmp_path, "--group-size", "2", "--engine", "ray", "--address", cluster.address)
    process = start(*words)
    start_time = time.monotonic()
    while (caught := pause_worker(cluster, tmp_path)) is None:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < start_time + TIMEOUT_SECONDS
        time.sleep(0.01)
    node, worker, group = caught
    configs = {path: path.read_bytes() for path in group.glob("fleet-*/config.json")}
    cluster.remove_node(node, allow_graceful=False)  # SIGKILL
    with contextlib.suppress(ProcessLookupError):  # a stopped process does not notice that its node is lost
        os.kill(worker, signal.SIGKILL)
    assert not (tmp_path / "runs" / f"{group.name}.parquet").exists()  # the group was not finished
    output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0, output
    assert {path: path.read_bytes() for path in group.glob("fleet-*/config.json")} == configs  # the group continued
    assert_same_results(tmp_path, uninterrupted)
    assert_each_run_once(tmp_path)


def test_results_are_transferred_without_shared_storage(
    cluster: Any, start: Start, uninterrupted: Path, tmp_path: Path
):
    address = ("--engine", "ray", "--address", cluster.address, "--no-shared-storage")
    process = start("tiny", "--only", "BC", "--group-size", "2", "--out", tmp_path / "here", *address)
    output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0, output
    found, expected = results.read(tmp_path / "here").runs, results.read(uninterrupted).runs
    assert (
        dict(zip(found["run_id"], found["score_last"], strict=True)).items()
        <= dict(zip(expected["run_id"], expected["score_last"], strict=True)).items()
    )
    for row in found.itertuples():
        assert (tmp_path / "here" / row.folder / "policy" / row.run_id).is_dir()


def test_a_network_of_a_plugin_trains_and_is_evaluated_on_the_cluster(
    cluster: Any, start: Start, tmp_path: Path
) -> None:
    plugin = Path(__file__).with_name("tiny_network.py")
    words = ("tiny_network", "--out", tmp_path, "--plugin", plugin)
    process = start(*words, "--engine", "ray", "--address", cluster.address)
    output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0, output
    (row,) = results.read(tmp_path).runs.itertuples()
    assert row.status == "done"
    assert row.score_last == row.score_last  # evaluated by a worker without JAX
    assert load_policy(tmp_path / row.folder / "policy" / row.run_id).kind == "program"


def test_foreign_files_are_rejected(tmp_path: Path) -> None:
    plan = make_plan(suites.expand(["tiny_shared"]))
    (group,) = make_groups(plan, plan.runs, 2, {})
    own = f"groups/{group.group_id}"
    unpack(tmp_path, group, {f"runs/{group.group_id}.parquet": b"1", f"{own}/fleet-1/result.json": b"2"})
    assert (tmp_path / own / "fleet-1" / "result.json").read_bytes() == b"2"
    for name in ("runs/another.parquet", f"{own}/../other/x", "/etc/passwd", f"{own}-2/x"):
        with pytest.raises(AspcError, match="does not belong to it"):
            unpack(tmp_path, group, {name: b""})


def test_disk_failures_stop_the_bench_and_interrupts_end_the_worker(tmp_path: Path, monkeypatch) -> None:
    class Task(Exception):
        cause: Exception = DiskFailure("The disk is full.")

    def get(task: Any) -> None:
        raise task

    engine = object.__new__(RayEngine)
    kinds = SimpleNamespace(RayTaskError=Task, RayError=Task)
    engine._ray, engine._running = SimpleNamespace(get=get, exceptions=kinds), {}
    for cause in (DiskFailure("The disk is full."), ValueError("a bug")):
        task = Task()
        task.cause = cause
        engine._running[task] = "group"
        if isinstance(cause, DiskFailure):
            with pytest.raises(DiskFailure, match="disk is full"):
                engine._collect(task)
        else:
            assert engine._collect(task).error == "ValueError: a bug"
    exit_codes: list[int] = []
    monkeypatch.setattr(os, "_exit", exit_codes.append)
    with exit_when_interrupted():
        raise Interrupted("Stopped.", signal.SIGTERM)
    assert exit_codes == [143]


def test_jax_does_not_warn_about_forks_of_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess
    import sys
    import warnings

    import jax
    import ray

    def start_processes(**_: Any) -> None:
        """Start a process with a preexec function, as Ray does, so that JAX notices the fork."""
        subprocess.run([sys.executable, "-c", ""], preexec_fn=lambda: None, check=True)
        raise ConnectionError("enough")

    jax.devices()
    monkeypatch.setattr(ray, "init", start_processes)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with pytest.raises(AspcError, match="enough"):
            RayEngine(tmp_path, None)
    assert [str(warning.message) for warning in seen if "fork" in str(warning.message)] == []


def test_an_unreachable_cluster_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AspcError, match="No Ray cluster"):
        RayEngine(tmp_path, "127.0.0.1:1")
