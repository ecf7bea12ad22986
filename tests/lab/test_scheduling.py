"""When groups start, and what is recorded of them: with an engine that trains nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from by_hand import Clock

from aspc.lab import results, suites
from aspc.lab.engines import local as engine_module
from aspc.lab.engines.local import Bench, Ended, StepTiming, TimeEstimator, groups_to_run, known_runs, pace_before
from aspc.lab.groups import Group, Member, failed_row, identity, part_file, write_group
from aspc.lab.plan import Plan, make_plan


class PretendEngine:
    """Every run is done as soon as it is looked at; groups of the variants in `lost` end without results."""

    def __init__(
        self, bench: Path, lost: tuple[str, ...] = (), room: int = 100, works: Callable[[], None] = lambda: None
    ) -> None:
        self.bench, self.lost, self.room, self.works = bench, lost, room, works
        self.started: list[Group] = []
        self.running: list[Group] = []
        self.closed = False

    def has_room(self, group: Group) -> bool:
        return len(self.running) < self.room

    def start(self, group: Group) -> None:
        self.started.append(group)
        self.running.append(group)

    def wait(self, seconds: float) -> list[Ended]:
        if not self.running:
            return []
        group = self.running.pop(0)
        self.works()
        if group.members[0].variant in self.lost:
            return [Ended(group, "the machine burned down")]
        results.write_part(self.bench, group.group_id, [self.row(member) for member in group.members], [])
        return [Ended(group)]

    def row(self, member: Member) -> dict[str, Any]:
        return {**identity(member), "status": "done", "scale_last": 3.5}

    def close(self) -> None:
        self.closed = True


def run(tmp_path: Path, engine: PretendEngine, plan: Plan, **settings):
    known = known_runs([tmp_path])
    pending = [run_id for run_id in plan.runs if run_id not in known]
    groups = groups_to_run(tmp_path, plan, pending, 4, {})
    ended = Bench(tmp_path, plan, groups, known, engine, quiet=True, **settings).run()
    assert engine.closed
    return ended


@pytest.fixture
def stages() -> Plan:
    return make_plan(suites.expand(["tiny_stages"]))


def variants(engine: PretendEngine) -> list[str]:
    return [group.members[0].variant for group in engine.started]


def test_a_group_waits_for_the_scale_that_it_needs(tmp_path: Path, stages: Plan) -> None:
    engine = PretendEngine(tmp_path)
    ended = run(tmp_path, engine, stages)
    assert variants(engine) == ["ASPC", "converged"]
    assert [member.scale_target for member in engine.started[1].members] == [3.5, 3.5]
    assert {run.status for run in ended.values()} == {"done"}
    again = PretendEngine(tmp_path)
    run(tmp_path, again, stages)
    assert again.started == []


def test_what_needs_a_failed_run_fails_with_its_reason_and_alone(tmp_path: Path, stages: Plan) -> None:
    class OneFails(PretendEngine):
        def row(self, member: Member) -> dict[str, Any]:
            diverges = member.variant == "ASPC" and member.run.seed == 1
            return failed_row(member, "NaN") if diverges else super().row(member)

    engine = OneFails(tmp_path)
    ended = run(tmp_path, engine, stages)
    assert variants(engine) == ["ASPC", "converged"]
    assert [member.run.seed for member in engine.started[1].members] == [0]
    outcomes = {
        (stages.entry_of(run_id).variant, stages.runs[run_id].seed): known.error for run_id, known in ended.items()
    }
    assert outcomes == {
        ("ASPC", 0): None,
        ("ASPC", 1): "NaN",
        ("converged", 0): None,
        ("converged", 1): "The run whose final scale is needed failed: NaN",
    }


def test_a_group_that_was_begun_goes_on_with_the_files_that_are_given_now(tmp_path: Path) -> None:
    before, now = ({"a": tmp_path / folder / "a.npz"} for folder in ("before", "now"))
    plan = make_plan(suites.expand(["tiny_files"]), data=before)
    (group,) = groups_to_run(tmp_path, plan, list(plan.runs), 4, before)
    write_group(tmp_path, group)
    (again,) = groups_to_run(tmp_path, plan, list(plan.runs), 4, now)
    assert again.group_id == group.group_id
    assert [member.file for member in again.members] == [str(now["a"])]


def test_a_group_that_is_lost_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    engine = PretendEngine(tmp_path, lost=("BC",))
    ended = run(tmp_path, engine, make_plan(suites.expand(["tiny"])))
    assert sorted(known.status for known in ended.values()) == ["done"] * 4 + ["failed"] * 4
    assert {known.error for known in ended.values() if known.error} == {"the machine burned down"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The engine's time."""
    by_hand = Clock()
    monkeypatch.setattr(engine_module, "time", by_hand)
    return by_hand


def test_nothing_starts_that_would_not_end_in_time(tmp_path: Path, clock: Clock) -> None:
    plan = make_plan(suites.expand(["tiny"]))
    engine = PretendEngine(tmp_path, room=1, works=lambda: clock.sleep(40))
    ended = run(tmp_path, engine, plan, stop_at=70)
    assert len(engine.started) == 1  # the second would take another 40 s
    assert len(ended) == 4
    assert len(run(tmp_path, PretendEngine(tmp_path), plan)) == 8


def test_what_was_done_before_is_no_part_of_the_pace(tmp_path: Path) -> None:
    plan = make_plan(suites.expand(["tiny"]))
    four = groups_to_run(tmp_path, plan, list(plan.runs), 4, {})[0]
    pace = TimeEstimator()
    assert pace.seconds_left([(four, 0.0)]) == 0  # nothing is known
    pace.note(four, seconds=10, share=0.75)
    assert pace.seconds_left([(four, 0.0)]) == pytest.approx(40)
    assert pace.seconds_left([(four, 0.5), (four, 0.0)], at_once=2) == pytest.approx(30)
    # Fewer runs are taken to need as long for a step; the nearest in size is what counts, once there is one.
    two = replace(four, members=four.members[:2])
    assert pace.seconds_left([(two, 0.0)]) == pytest.approx(40)
    pace.note(two, seconds=25)
    assert pace.seconds_left([(two, 0.0)]) == pytest.approx(25)
    assert pace.seconds_left([(replace(four, members=four.members * 2), 0.0)]) == pytest.approx(80)


def test_the_pace_is_known_from_results_of_the_same_device(tmp_path: Path) -> None:
    plan = make_plan(suites.expand(["tiny"]))
    group = groups_to_run(tmp_path, plan, list(plan.runs), 4, {})[0]
    took = {"seconds": 20.0, "runs_together": 4, "status": "done", "group_id": "g", "device": "gpu: fast"}
    rows = [{**identity(member), **took, "machine": "a box"} for member in group.members]
    results.write_part(tmp_path, "g", rows, [])
    assert pace_before([tmp_path], "gpu: fast", "another box").seconds_left([(group, 0.0)]) == pytest.approx(20)
    assert pace_before([tmp_path], "cpu: cpu", "a box").took == []


def test_where_no_group_fits_one_is_begun_and_more_only_to_fill_the_time(tmp_path: Path) -> None:
    plan = make_plan(suites.expand(["tiny"]))
    for fill, begun in ((False, 1), (True, 2)):
        engine = PretendEngine(tmp_path / str(fill), room=1)
        slow = TimeEstimator(StepTiming(algo, 4, seconds=1.0) for algo in ("bc", "aspc"))  # 4,000 steps
        run(tmp_path / str(fill), engine, plan, stop_at=time.monotonic() + 60, pace=slow, fill=fill)
        assert len(engine.started) == begun


def test_groups_that_a_cluster_has_not_ended_are_left_when_time_is_up(tmp_path: Path, clock: Clock) -> None:
    class Slow(PretendEngine):
        def wait(self, seconds: float) -> list[Ended]:
            clock.sleep(min(seconds, 20))
            return []

    engine = Slow(tmp_path)
    assert run(tmp_path, engine, make_plan(suites.expand(["tiny"])), stop_at=30) == {}
    assert len(engine.started) == 2
    assert clock.now == pytest.approx(30)


def test_a_group_that_was_begun_stays_as_it_was(tmp_path: Path) -> None:
    plan = make_plan(suites.expand(["tiny"]))
    begun = groups_to_run(tmp_path, plan, list(plan.runs), 3, {})[1]
    write_group(tmp_path, begun)
    groups = groups_to_run(tmp_path, plan, list(plan.runs), 8, {})
    assert begun in groups
    assert sorted(run_id for group in groups for run_id in group.run_ids) == sorted(plan.runs)
    # One of its runs is not wanted any more: the others are put into new groups.
    fewer = [run_id for run_id in plan.runs if run_id != begun.run_ids[0]]
    assert begun not in groups_to_run(tmp_path, plan, fewer, 8, {})


def test_an_empty_folder_or_none_has_no_known_runs(tmp_path: Path) -> None:
    assert known_runs([tmp_path, tmp_path / "none"]) == {}
    assert not part_file(tmp_path, "x").exists()
