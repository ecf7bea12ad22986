"""The Slurm engine with submitit's own stand-in for a queue: processes of this machine."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from by_hand import Clock

from aspc.errors import AspcError, DiskFailure, ExternalFailure
from aspc.lab import results, suites
from aspc.lab.engines import local as engine_module
from aspc.lab.engines.local import Bench
from aspc.lab.engines.slurm import STOPPED, SlurmEngine, slurm_settings
from aspc.lab.groups import make_groups, record_failure, write_group
from aspc.lab.plan import make_plan
from waiting import wait_until

pytest.importorskip("submitit", reason="needs submitit: pip install 'aspc[slurm]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # submitit's own


def test_groups_are_jobs(tmp_path: Path, uninterrupted: Path) -> None:
    plan = make_plan(suites.expand(["tiny"]), only=["BC", "*steps=2000"])
    groups = make_groups(plan, plan.runs, 2, {})
    ended = Bench(tmp_path, plan, groups, {}, SlurmEngine(tmp_path, cluster="local"), quiet=True).run()
    assert {known.status for known in ended.values()} == {"done"}
    expected = results.read(uninterrupted).runs.set_index("run_id")["score_last"]
    found = results.read(tmp_path).runs.set_index("run_id")["score_last"]
    assert len(found) == 2
    assert (found == expected[found.index]).all()


def test_a_full_disk_is_no_failure_of_a_run(tmp_path: Path) -> None:
    plan = make_plan(suites.expand(["tiny_shared"]))
    (group,) = make_groups(plan, plan.runs, 2, {})
    engine = SlurmEngine(tmp_path, cluster="local")
    paths = SimpleNamespace(stderr=tmp_path / "log")
    for said in ("aspc.errors.DiskFailure: no space", "aspc.errors.ExternalFailure: other data", "ValueError: a bug"):
        job = SimpleNamespace(job_id="17", done=lambda: True, paths=paths, exception=lambda said=said: said)
        if "Disk" in said:
            with pytest.raises(DiskFailure, match=r"17 ended without results.*the same command goes on"):
                engine._ended(group, job)
        elif "Outside" in said:
            with pytest.raises(ExternalFailure, match=r"17 ended without results.*mended, the same command goes on"):
                engine._ended(group, job)
        else:
            assert "17 ended without results" in engine._ended(group, job).error


def test_a_job_that_the_cluster_stops_is_submitted_again_and_goes_on(tmp_path: Path) -> None:
    """SIGTERM, as before a preemption."""
    plan = make_plan(suites.expand(["tiny"]), only=["BC", "*?steps=2000"], steps=60_000, seeds=1)
    (group,) = make_groups(plan, plan.runs, 2, {})[:1]
    write_group(tmp_path, group)
    engine = SlurmEngine(tmp_path, cluster="local")
    engine.start(group)
    first = engine._jobs[group.group_id][1].job_id
    wait_until(lambda: list(tmp_path.glob("groups/*/fleet-*/checkpoints/[0-9]*")) or engine.wait(0.1))
    words = (b"submitit.core._submit", str(tmp_path).encode())  # not one of another run of these tests
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
    except OSError:  # it has just ended
        return b""


def test_a_job_that_somebody_cancels_is_not_submitted_again(tmp_path: Path) -> None:
    plan = make_plan(suites.expand(["tiny_shared"]))
    (group,) = make_groups(plan, plan.runs, 2, {})
    write_group(tmp_path, group)
    (tmp_path / "groups" / group.group_id / STOPPED).touch()
    facts = {"job_id": "17", "done": lambda: True, "exception": lambda: None, "state": "CANCELLED by 1000"}
    job = SimpleNamespace(paths=SimpleNamespace(stderr=tmp_path / "log"), **facts)
    assert "17 ended without results" in SlurmEngine(tmp_path, cluster="local")._ended(group, job).error


def test_a_disk_that_is_full_when_results_are_written_is_disk_trouble(tmp_path: Path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(results, "write_atomically", full)
    with pytest.raises(DiskFailure, match="cannot be written"):
        results.write_entries(tmp_path, "one", [])


def test_jobs_may_run_into_their_time_limit_as_often_as_they_need(tmp_path: Path, monkeypatch) -> None:
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
    with pytest.raises(AspcError, match=r"does not know a setting of --slurm: .*partitoin"):
        SlurmEngine(tmp_path, words=["partitoin=gpu"])


class Queued:
    """A job of an earlier bench, as Slurm would tell of it."""

    over = False

    def __init__(self, folder: Path, job_id: str) -> None:
        self.job_id = job_id

    def done(self, force_check: bool = False) -> bool:
        return self.over


def test_a_job_that_is_still_in_the_queue_is_not_submitted_again(tmp_path: Path, monkeypatch) -> None:
    plan = make_plan(suites.expand(["tiny_shared"]))
    (group,) = make_groups(plan, plan.runs, 2, {})
    write_group(tmp_path, group)
    engine = SlurmEngine(tmp_path, cluster="local")
    (tmp_path / "groups" / group.group_id / "slurm_job").write_text("17")
    monkeypatch.setattr(engine, "_job_kind", Queued)
    engine.start(group)
    assert not list((tmp_path / "slurm").glob("*submitted*"))
    clock = Clock()
    with monkeypatch.context() as by_hand:
        by_hand.setattr(engine_module, "time", clock)
        assert engine.wait(60) == []
    assert clock.now == pytest.approx(60)
    record_failure(tmp_path, group, "what it came to")
    (ended,) = engine.wait(10)
    assert ended.group == group


def test_settings_of_jobs() -> None:
    assert slurm_settings(["partition=gpu", "time=720"]) == {"slurm_partition": "gpu", "slurm_time": 720}
    assert slurm_settings([]) == {"slurm_time": 1440}
    with pytest.raises(AspcError, match="NAME=VALUE"):
        slurm_settings(["partition"])
    with pytest.raises(AspcError, match="whole"):
        SlurmEngine(Path("unused"), cpus=0.5, cluster="local")


def test_where_there_is_no_slurm_a_sentence_says_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(AspcError, match="Slurm cannot be used from here"):
        SlurmEngine(tmp_path)
