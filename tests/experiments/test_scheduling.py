"""When groups start, and what is recorded of them: with an engine that trains nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from aspc.experiments import results, suites
from aspc.experiments.engine import Bench, Ended, groups_to_run, known_runs
from aspc.experiments.groups import Group, Member, failed_row, identity, part_file, write_group
from aspc.experiments.plan import Plan, make_plan


class PretendEngine:
    """Every run is done as soon as it is looked at; groups of the variants in `lost` end without results."""

    def __init__(self, bench: Path, lost: tuple[str, ...] = (), room: int = 100, seconds: float = 0) -> None:
        self.bench, self.lost, self.room, self.seconds = bench, lost, room, seconds
        self.started: list[Group] = []
        self.running: list[Group] = []
        self.closed = False

    def has_room(self) -> bool:
        return len(self.running) < self.room

    def start(self, group: Group) -> None:
        self.started.append(group)
        self.running.append(group)

    def wait(self, seconds: float) -> list[Ended]:
        if not self.running:
            return []
        group = self.running.pop(0)
        time.sleep(self.seconds)
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
    return make_plan(suites.expanded(["tiny_stages"]))


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


def test_a_group_that_is_lost_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    engine = PretendEngine(tmp_path, lost=("BC",))
    ended = run(tmp_path, engine, make_plan(suites.expanded(["tiny"])))
    assert sorted(known.status for known in ended.values()) == ["done"] * 4 + ["failed"] * 4
    assert {known.error for known in ended.values() if known.error} == {"the machine burned down"}


def test_nothing_starts_that_would_not_end_in_time(tmp_path: Path) -> None:
    plan = make_plan(suites.expanded(["tiny"]))
    engine = PretendEngine(tmp_path, room=1, seconds=0.4)
    ended = run(tmp_path, engine, plan, stop_at=time.monotonic() + 0.7)
    assert len(engine.started) == 1  # the second would take another 0.4 s
    assert len(ended) == 4
    assert len(run(tmp_path, PretendEngine(tmp_path), plan)) == 8


def test_groups_that_a_cluster_has_not_ended_are_left_when_time_is_up(tmp_path: Path) -> None:
    class Slow(PretendEngine):
        def wait(self, seconds: float) -> list[Ended]:
            time.sleep(min(seconds, 0.2))
            return []

    engine, began = Slow(tmp_path), time.monotonic()
    assert run(tmp_path, engine, make_plan(suites.expanded(["tiny"])), stop_at=began + 0.3) == {}
    assert len(engine.started) == 2
    assert time.monotonic() - began < 5


def test_a_group_that_was_begun_stays_as_it_was(tmp_path: Path) -> None:
    plan = make_plan(suites.expanded(["tiny"]))
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
