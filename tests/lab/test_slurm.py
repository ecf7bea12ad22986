"""The Slurm engine, with submitit's local executor in place of a queue."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from manual_clock import ManualClock

from aspc.errors import AspcError, DiskFailure, ExternalFailure
from aspc.lab import results, suites
from aspc.lab.engines import interface
from aspc.lab.engines.slurm import STOPPED, SlurmEngine, parse_slurm_settings
from aspc.lab.group_training import record_failure
from aspc.lab.groups import make_groups, write_group
from aspc.lab.plan import make_plan
from aspc.lab.results import parquet
from aspc.lab.scheduler import Scheduler
from waiting import wait_until

pytest.importorskip("submitit", reason="needs submitit: pip install 'aspc[slurm]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # submitit's own


def test_groups_train_as_jobs(tmp_path: Path, uninterrupted: Path) -> None:
    plan = make_plan(suites.expand(["tiny"]), only=["BC", "*steps=2000"])
    groups = make_groups(plan, plan.runs, 2, {})
    outcomes = Scheduler(tmp_path, plan, groups, {}, SlurmEngine(tmp_path, cluster="local"), quiet=True).run()
    assert {run.status for run in outcomes.values()} == {"done"}
    expected = results.read(uninterrupted).runs.set_index("run_id")["score_last"]
    found = results.read(tmp_path).runs.set_index("run_id")["score_last"]
    assert len(found) == 2
    assert (found == expected[found.index]).all()


def test_external_failures_stop_the_bench(tmp_path: Path) -> None:
    plan = make_plan(suites.expand(["tiny_shared"]))
    (group,) = make_groups(plan, plan.runs, 2, {})
    engine = SlurmEngine(tmp_path, cluster="local")
    paths = SimpleNamespace(stderr=tmp_path / "log")
    for error in ("aspc.errors.DiskFailure: no space", "aspc.errors.ExternalFailure: other data", "ValueError: a bug"):
        job = SimpleNamespace(job_id="17", done=lambda: True, paths=paths, exception=lambda error=error: error)
        if "Disk" in error:
            with pytest.raises(DiskFailure, match=r"17 ended without results.*run the same command again"):
                engine._poll(group, job)
        elif "External" in error:
            with pytest.raises(ExternalFailure, match=r"17 ended without results.*Fix .* run the same command again"):
                engine._poll(group, job)
        else:
            assert "17 ended without results" in engine._poll(group, job).error


def test_a_preempted_job_is_resubmitted_and_continues(tmp_path: Path) -> None:
    """The job receives SIGTERM, as before a preemption."""
    plan = make_plan(suites.expand(["tiny"]), only=["BC", "*?steps=2000"], steps=60_000, seeds=1)
    (group,) = make_groups(plan, plan.runs, 2, {})[:1]
    write_group(tmp_path, group)
    engine = SlurmEngine(tmp_path, cluster="local")
    engine.start(group)
    first = engine._jobs[group.group_id][1].job_id
    wait_until(lambda: list(tmp_path.glob("groups/*/fleet-*/checkpoints/[0-9]*")) or engine.wait(0.1))
    words = (b"submitit.core._submit", str(tmp_path).encode())  # not a job of another test run
    (training,) = [p for p in Path("/proc").glob("[0-9]*") if all(word in cmdline(p) for word in words)]
    os.kill(int(training.name), signal.SIGTERM)
    ended: list[Any] = []
    wait_until(lambda: ended.extend(engine.wait(1.0)) or ended)
    assert ended[0].error is None
    assert engine.wait(0) == []
    second = (tmp_path / "groups" / group.group_id / "slurm_job").read_text()
    assert second != first
    assert set(results.read(tmp_path).runs["status"]) == {"done"}


def cmdline(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # the process has just ended
        return b""


def test_a_cancelled_job_is_not_resubmitted(tmp_path: Path) -> None:
    plan = make_plan(suites.expand(["tiny_shared"]))
    (group,) = make_groups(plan, plan.runs, 2, {})
    write_group(tmp_path, group)
    (tmp_path / "groups" / group.group_id / STOPPED).touch()
    facts = {"job_id": "17", "done": lambda: True, "exception": lambda: None, "state": "CANCELLED by 1000"}
    job = SimpleNamespace(paths=SimpleNamespace(stderr=tmp_path / "log"), **facts)
    assert "17 ended without results" in SlurmEngine(tmp_path, cluster="local")._poll(group, job).error


def test_a_full_disk_while_writing_results_is_a_disk_failure(tmp_path: Path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(parquet, "write_atomically", full)
    with pytest.raises(DiskFailure, match="cannot be written"):
        results.write_entries(tmp_path, "one", [])


def test_timeouts_of_jobs_are_unlimited(tmp_path: Path, monkeypatch) -> None:
    import submitit

    made = {}

    class Executor:
        def __init__(self, **settings: object) -> None:
            made.update(settings)

        def update_parameters(self, **settings: object) -> None:
            if "slurm_partitoin" in settings:
                raise NameError("Unknown argument 'slurm_partitoin'")

    monkeypatch.setattr(submitit, "AutoExecutor", Executor)
    SlurmEngine(tmp_path)
    assert made["slurm_max_num_timeout"] >= 1000
    with pytest.raises(AspcError, match=r"Unknown --slurm setting: .*partitoin"):
        SlurmEngine(tmp_path, words=["partitoin=gpu"])


class QueuedJob:
    """A job of an earlier `aspc bench` that is still in the queue."""

    def __init__(self, folder: Path, job_id: str) -> None:
        self.job_id = job_id

    def done(self, force_check: bool = False) -> bool:
        return False


def test_a_queued_job_is_not_resubmitted(tmp_path: Path, monkeypatch) -> None:
    plan = make_plan(suites.expand(["tiny_shared"]))
    (group,) = make_groups(plan, plan.runs, 2, {})
    write_group(tmp_path, group)
    engine = SlurmEngine(tmp_path, cluster="local")
    (tmp_path / "groups" / group.group_id / "slurm_job").write_text("17")
    monkeypatch.setattr(engine, "_job_kind", QueuedJob)
    engine.start(group)
    assert not list((tmp_path / "slurm").glob("*submitted*"))
    clock = ManualClock()
    with monkeypatch.context() as patch:
        patch.setattr(interface, "time", clock)
        assert engine.wait(60) == []
    assert clock.now == pytest.approx(60)
    record_failure(tmp_path, group, "an error")
    (ended,) = engine.wait(10)
    assert ended.group == group


def test_slurm_settings_are_parsed() -> None:
    assert parse_slurm_settings(["partition=gpu", "time=720"]) == {"slurm_partition": "gpu", "slurm_time": 720}
    assert parse_slurm_settings([]) == {"slurm_time": 1440}
    with pytest.raises(AspcError, match="NAME=VALUE"):
        parse_slurm_settings(["partition"])
    with pytest.raises(AspcError, match="whole"):
        SlurmEngine(Path("unused"), cpus=0.5, cluster="local")


def test_missing_slurm_is_an_error(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(AspcError, match="Slurm cannot be used from this machine"):
        SlurmEngine(tmp_path)
