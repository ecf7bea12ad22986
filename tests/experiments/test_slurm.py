"""The Slurm engine with submitit's own stand-in for a queue: processes of this machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from by_hand import Clock

from aspc.errors import AspcError, DiskTrouble
from aspc.experiments import engine as engine_module
from aspc.experiments import results, suites
from aspc.experiments.engine import Bench
from aspc.experiments.groups import make_groups, record_failure, write_group
from aspc.experiments.plan import make_plan
from aspc.experiments.slurm_engine import SlurmEngine, slurm_settings

pytest.importorskip("submitit", reason="needs submitit: pip install 'aspc[slurm]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # submitit's own


def test_groups_are_jobs(tmp_path: Path, uninterrupted: Path) -> None:
    plan = make_plan(suites.expanded(["tiny"]), only=["BC", "*steps=2000"])
    groups = make_groups(plan, plan.runs, 2, {})
    ended = Bench(tmp_path, plan, groups, {}, SlurmEngine(tmp_path, cluster="local"), quiet=True).run()
    assert {known.status for known in ended.values()} == {"done"}
    expected = results.read(uninterrupted).runs.set_index("run_id")["score_last"]
    found = results.read(tmp_path).runs.set_index("run_id")["score_last"]
    assert len(found) == 2
    assert (found == expected[found.index]).all()


def test_a_full_disk_is_no_failure_of_a_run(tmp_path: Path) -> None:
    plan = make_plan(suites.expanded(["tiny_shared"]))
    (group,) = make_groups(plan, plan.runs, 2, {})
    engine = SlurmEngine(tmp_path, cluster="local")
    paths = SimpleNamespace(stderr=tmp_path / "log")
    for said in ("aspc.errors.DiskTrouble: no space", "ValueError: a bug"):
        job = SimpleNamespace(job_id="17", done=lambda: True, paths=paths, exception=lambda said=said: said)
        if "Disk" in said:
            with pytest.raises(DiskTrouble, match=r"17 ended without results.*the same command goes on"):
                engine._ended(group, job)
        else:
            assert "17 ended without results" in engine._ended(group, job).error


class Queued:
    """A job of an earlier bench, as Slurm would tell of it."""

    over = False

    def __init__(self, folder: Path, job_id: str) -> None:
        self.job_id = job_id

    def done(self, force_check: bool = False) -> bool:
        return self.over


def test_a_job_that_is_still_in_the_queue_is_not_submitted_again(tmp_path: Path, monkeypatch) -> None:
    plan = make_plan(suites.expanded(["tiny_shared"]))
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
