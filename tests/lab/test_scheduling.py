"""The scheduler, with an engine that trains nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from manual_clock import ManualClock

from aspc.lab import results, suites
from aspc.lab import scheduler as scheduler_module
from aspc.lab.bench_folder import collect_groups
from aspc.lab.engines.interface import FinishedGroup
from aspc.lab.groups import GroupMember, RunGroup, results_path, write_group
from aspc.lab.plan import BenchPlan, make_plan
from aspc.lab.recorded_runs import RecordedRun, read_recorded_runs
from aspc.lab.run_rows import describe_run, failed_row
from aspc.lab.scheduler import Scheduler
from aspc.lab.time_estimates import StepTiming, TimeEstimator


class FakeEngine:
    """An engine whose groups finish at once. Groups of the variants in `lost` end without results."""

    def __init__(
        self, bench: Path, lost: tuple[str, ...] = (), room: int = 100, work: Callable[[], None] = lambda: None
    ) -> None:
        self.bench, self.lost, self.room, self.work = bench, lost, room, work
        self.started: list[RunGroup] = []
        self.running: list[RunGroup] = []
        self.is_closed = False

    def has_room(self, group: RunGroup) -> bool:
        return len(self.running) < self.room

    def start(self, group: RunGroup) -> None:
        self.started.append(group)
        self.running.append(group)

    def wait(self, seconds: float) -> list[FinishedGroup]:
        if not self.running:
            return []
        group = self.running.pop(0)
        self.work()
        if group.members[0].variant in self.lost:
            return [FinishedGroup(group, "the machine burned down")]
        results.write_part(self.bench, group.group_id, [self.row(member) for member in group.members], [])
        return [FinishedGroup(group)]

    def row(self, member: GroupMember) -> dict[str, Any]:
        return {**describe_run(member), "status": "done", "scale_last": 3.5}

    def close(self) -> None:
        self.is_closed = True


def run(tmp_path: Path, engine: FakeEngine, plan: BenchPlan, **settings: Any) -> dict[str, RecordedRun]:
    recorded = read_recorded_runs([tmp_path])
    pending = [run_id for run_id in plan.runs if run_id not in recorded]
    groups = collect_groups(tmp_path, plan, pending, 4, {})
    outcomes = Scheduler(tmp_path, plan, groups, recorded, engine, quiet=True, **settings).run()
    assert engine.is_closed
    return outcomes


@pytest.fixture
def stages() -> BenchPlan:
    return make_plan(suites.expand(["tiny_stages"]))


def variants(engine: FakeEngine) -> list[str]:
    return [group.members[0].variant for group in engine.started]


def test_groups_wait_for_scales(tmp_path: Path, stages: BenchPlan) -> None:
    engine = FakeEngine(tmp_path)
    ended = run(tmp_path, engine, stages)
    assert variants(engine) == ["ASPC", "converged"]
    assert [member.scale_target for member in engine.started[1].members] == [3.5, 3.5]
    assert {run.status for run in ended.values()} == {"done"}
    again = FakeEngine(tmp_path)
    run(tmp_path, again, stages)
    assert again.started == []


def test_runs_that_need_a_failed_run_fail_with_its_error(tmp_path: Path, stages: BenchPlan) -> None:
    class OneFails(FakeEngine):
        def row(self, member: GroupMember) -> dict[str, Any]:
            diverges = member.variant == "ASPC" and member.run.seed == 1
            return failed_row(member, "NaN") if diverges else super().row(member)

    engine = OneFails(tmp_path)
    ended = run(tmp_path, engine, stages)
    assert variants(engine) == ["ASPC", "converged"]
    assert [member.run.seed for member in engine.started[1].members] == [0]
    outcomes = {
        (stages.first_entry(run_id).variant, stages.runs[run_id].seed): known.error for run_id, known in ended.items()
    }
    assert outcomes == {
        ("ASPC", 0): None,
        ("ASPC", 1): "NaN",
        ("converged", 0): None,
        ("converged", 1): "This run needs the final scale of another run, which failed: NaN",
    }


def test_a_started_group_uses_the_current_files(tmp_path: Path) -> None:
    before, now = ({"a": tmp_path / folder / "a.npz"} for folder in ("before", "now"))
    plan = make_plan(suites.expand(["tiny_files"]), data=before)
    (group,) = collect_groups(tmp_path, plan, list(plan.runs), 4, before)
    write_group(tmp_path, group)
    (again,) = collect_groups(tmp_path, plan, list(plan.runs), 4, now)
    assert again.group_id == group.group_id
    assert [member.file for member in again.members] == [str(now["a"])]


def test_a_lost_group_does_not_stop_others(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path, lost=("BC",))
    ended = run(tmp_path, engine, make_plan(suites.expand(["tiny"])))
    assert sorted(known.status for known in ended.values()) == ["done"] * 4 + ["failed"] * 4
    assert {known.error for known in ended.values() if known.error} == {"the machine burned down"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The scheduler's clock."""
    clock = ManualClock()
    monkeypatch.setattr(scheduler_module, "time", clock)
    return clock


def test_no_group_starts_that_would_exceed_the_deadline(tmp_path: Path, clock: ManualClock) -> None:
    plan = make_plan(suites.expand(["tiny"]))
    engine = FakeEngine(tmp_path, room=1, work=lambda: clock.sleep(40))
    ended = run(tmp_path, engine, plan, deadline=70)
    assert len(engine.started) == 1  # the second would take another 40 s
    assert len(ended) == 4
    assert len(run(tmp_path, FakeEngine(tmp_path), plan)) == 8


def test_estimates_exclude_steps_done_before(tmp_path: Path) -> None:
    plan = make_plan(suites.expand(["tiny"]))
    four = collect_groups(tmp_path, plan, list(plan.runs), 4, {})[0]
    estimator = TimeEstimator()
    assert estimator.seconds_left([(four, 0.0)]) == 0  # no times yet
    estimator.add(four, seconds=10, share_before=0.75)
    assert estimator.seconds_left([(four, 0.0)]) == pytest.approx(40)
    assert estimator.seconds_left([(four, 0.5), (four, 0.0)], parallel_groups=2) == pytest.approx(30)
    # A step of fewer runs is taken to last as long, until a group of that size was timed.
    two = replace(four, members=four.members[:2])
    assert estimator.seconds_left([(two, 0.0)]) == pytest.approx(40)
    estimator.add(two, seconds=25)
    assert estimator.seconds_left([(two, 0.0)]) == pytest.approx(25)
    assert estimator.seconds_left([(replace(four, members=four.members * 2), 0.0)]) == pytest.approx(80)


def test_estimates_come_from_results_of_the_same_device(tmp_path: Path) -> None:
    plan = make_plan(suites.expand(["tiny"]))
    group = collect_groups(tmp_path, plan, list(plan.runs), 4, {})[0]
    facts = {"seconds": 20.0, "runs_together": 4, "status": "done", "group_id": "g", "device": "gpu: fast"}
    rows = [{**describe_run(member), **facts, "machine": "a box"} for member in group.members]
    results.write_part(tmp_path, "g", rows, [])
    assert TimeEstimator.from_results([tmp_path], "gpu: fast", "another box").seconds_left(
        [(group, 0.0)]
    ) == pytest.approx(20)
    assert TimeEstimator.from_results([tmp_path], "cpu: cpu", "a box").timings == []


def test_a_long_group_starts_if_none_fits_and_the_full_budget_allows_more(tmp_path: Path) -> None:
    plan = make_plan(suites.expand(["tiny"]))
    for is_full, count in ((False, 1), (True, 2)):
        engine = FakeEngine(tmp_path / str(is_full), room=1)
        slow = TimeEstimator(StepTiming(algo, 4, seconds=1.0) for algo in ("bc", "aspc"))  # 4,000 steps
        run(
            tmp_path / str(is_full),
            engine,
            plan,
            deadline=time.monotonic() + 60,
            estimator=slow,
            use_full_budget=is_full,
        )
        assert len(engine.started) == count


def test_the_scheduler_stops_at_the_deadline(tmp_path: Path, clock: ManualClock) -> None:
    class Slow(FakeEngine):
        def wait(self, seconds: float) -> list[FinishedGroup]:
            clock.sleep(min(seconds, 20))
            return []

    engine = Slow(tmp_path)
    assert run(tmp_path, engine, make_plan(suites.expand(["tiny"])), deadline=30) == {}
    assert len(engine.started) == 2
    assert clock.now == pytest.approx(30)


def test_a_started_group_keeps_its_runs(tmp_path: Path) -> None:
    plan = make_plan(suites.expand(["tiny"]))
    started = collect_groups(tmp_path, plan, list(plan.runs), 3, {})[1]
    write_group(tmp_path, started)
    groups = collect_groups(tmp_path, plan, list(plan.runs), 8, {})
    assert started in groups
    assert sorted(run_id for group in groups for run_id in group.run_ids) == sorted(plan.runs)
    # If one of its runs is no longer requested, the others form new groups.
    fewer = [run_id for run_id in plan.runs if run_id != started.run_ids[0]]
    assert started not in collect_groups(tmp_path, plan, fewer, 8, {})


def test_empty_and_missing_folders_have_no_runs(tmp_path: Path) -> None:
    assert read_recorded_runs([tmp_path, tmp_path / "none"]) == {}
    assert not results_path(tmp_path, "x").exists()
