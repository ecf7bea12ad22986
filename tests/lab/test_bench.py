"""`aspc bench` on this machine: results, failures, kills and continuation."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from result_assertions import assert_each_run_once, assert_same_results
from tiny_suites import MAZE, OTHER_MAZE, STEPS

from aspc.data import writers
from aspc.data.sources import pointmaze
from aspc.errors import AspcError, ExternalFailure
from aspc.interrupts import Interrupted, Terminated
from aspc.lab import recorded_runs, results, suites
from aspc.lab.commands.bench import main as bench
from aspc.lab.commands.bench_run import graceful_shutdown
from aspc.lab.cost import Rates, compute_evaluation_cost
from aspc.lab.dataset_files import find_dataset_files
from aspc.lab.engines import processes
from aspc.lab.engines.interface import FinishedGroup
from aspc.lab.engines.local import LocalEngine
from aspc.lab.engines.processes import ProcessesEngine
from aspc.lab.group_training import capture_failure, record_failure
from aspc.lab.groups import GROUP, RunGroup, group_path, make_groups, write_group
from aspc.lab.plan import make_plan
from aspc.lab.recorded_runs import RecordedRun, check_data_unchanged, select_settled_runs
from aspc.lab.run_rows import build_curve
from aspc.lab.scheduler import Scheduler
from aspc.lab.suites import expand
from aspc.policy import Policy
from aspc.training import evaluation
from aspc.training.checkpoints import Checkpoints
from aspc.training.trainer import Trainer
from tiny import make_dataset
from waiting import DEADLINE_SECONDS, wait_until

Start = Callable[..., "subprocess.Popen[str]"]
GROUPS_OF_TWO = ("--group-size", "2")


def test_results_describe_runs_and_outcomes(uninterrupted: Path) -> None:
    found = results.read(uninterrupted)
    assert len(found.runs) == 8
    assert (found.runs["status"] == "done").all()
    assert set(found.runs["dataset"]) == {MAZE, OTHER_MAZE}
    assert (found.runs["runs_together"] == 2).all()
    assert found.runs["command"].str.startswith("aspc bench tiny --out").all()
    fingerprints = found.runs.groupby("dataset")["data_fingerprint"].unique()  # the same for all algorithms
    assert len(fingerprints[MAZE]) == len(fingerprints[OTHER_MAZE]) == 1
    assert fingerprints[MAZE][0] != fingerprints[OTHER_MAZE][0]
    learned = found.runs[found.runs["variant"] == "ASPC"]
    assert (learned["scale_initial"] == 2.5).all()
    assert (learned["scale_last"] != 2.5).all()
    assert found.runs[found.runs["variant"] == "BC"]["scale_last"].isna().all()  # BC has no scale
    row = learned.iloc[0]
    assert json.loads(row["settings"]) == {
        "base.actor_hidden_dim": 8,
        "base.critic_hidden_dim": 8,
        "base.batch_size": 8,
    }
    assert json.loads(row["config"])["hyperparameters"]["base"]["actor_hidden_dim"] == 8
    assert row[["score_last", "return_last", "seconds", "behaviour_score"]].notna().all()
    assert (uninterrupted / row["folder"] / "policy" / row["run_id"]).is_dir()
    curve = found.curves[found.curves["run_id"] == row["run_id"]]
    assert curve["step"].tolist() == list(range(500, STEPS + 1, 500))
    assert curve[["score", "scale", "q", "bc_loss", "critic_loss", "l1"]].notna().all(axis=None)
    assert curve["score"].iloc[-1] == row["score_last"]
    assert not list(uninterrupted.rglob("checkpoints"))


def test_finished_runs_are_not_repeated_and_suites_share_runs(uninterrupted: Path, tmp_path: Path, capsys) -> None:
    before = {path: path.stat().st_mtime_ns for path in (uninterrupted / "runs").iterdir()}
    with FileLock(f"{uninterrupted}.lock"):  # shared with another worker
        assert bench(["tiny", "--out", str(uninterrupted)]) == 0
    assert "8 runs: 8 done, 0 failed before, none pending" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (uninterrupted / "runs").iterdir()} == before
    # If another folder has all runs, this one still records the suite that they belong to.
    assert bench(["tiny_again", "--out", str(tmp_path / "new"), "--known", str(uninterrupted)]) == 0
    assert f"aspc report {tmp_path / 'new'} {uninterrupted}\n" in capsys.readouterr().out
    assert set(results.read(tmp_path / "new", uninterrupted).entries["suite"]) == {"tiny", "tiny_again"}
    with pytest.raises(AspcError, match=r"No run in .* has ended yet"):
        results.read(tmp_path / "new")
    # Of another suite in another folder, with --known, one of two runs is new.
    assert bench(["tiny_shared", "--out", str(tmp_path), "--known", str(uninterrupted), "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert "2 runs: 1 done, 0 failed before, 1 pending in 1 groups" in shown
    assert f"aspc report {tmp_path} {uninterrupted}\n" in shown
    both = results.read(uninterrupted, tmp_path)
    assert len(both.runs) == 9
    assert set(both.entries[both.entries["suite"] == "tiny_shared"]["variant"]) == {"BC, fast", "BC"}


def test_a_run_takes_its_scale_from_another(uninterrupted: Path, tmp_path: Path) -> None:
    known = ["--known", str(uninterrupted)]
    assert bench(["tiny_stages", "--out", str(tmp_path), "--quiet", *known]) == 0
    runs = results.read(uninterrupted, tmp_path).runs
    for seed in (0, 1):
        of_seed = runs[(runs["seed"] == seed) & (runs["dataset"] == MAZE)].set_index("variant")
        final = of_seed.loc["ASPC", "scale_last"]
        assert final != 2.5
        assert of_seed.loc["converged", "scale_initial"] == final
        assert of_seed.loc["converged", "scale_last"] == pytest.approx(final, rel=1e-5)
        assert json.loads(of_seed.loc["converged", "settings"])["scale_target"] == final


def test_a_failed_run_is_recorded_and_does_not_stop_others(tmp_path: Path, capsys) -> None:
    words = ["tiny_failing", "--out", str(tmp_path), "--quiet"]
    assert bench(words) == 1
    runs = results.read(tmp_path).runs.set_index("variant")
    assert len(list((tmp_path / "runs").iterdir())) == 1  # one group
    assert runs["status"].to_dict() == {"BC, fast": "done", "BC, diverging": "failed"}
    assert "became" in runs.loc["BC, diverging", "error"]
    assert "1 of 2 runs done, 1 failed" in capsys.readouterr().out
    # It is repeated only on request, and the first results are kept.
    assert bench(words) == 1
    assert "none pending (--retry-failed" in capsys.readouterr().out
    assert bench([*words, "--retry-failed"]) == 1
    assert "1 pending in 1 groups" in capsys.readouterr().out
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_unreadable_data_fails_alone_and_changed_data_is_rejected(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name, sizes in (("small", {}), ("wide", {"obs": 6})):
        writers.write_hdf5(folder / f"{name}.hdf5", writers.dataset_arrays(make_dataset(**sizes)))
    (folder / "broken.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n and then nothing")
    words = ["tiny_files", "--data", str(folder), "--steps", "500", "--out", str(tmp_path), "--quiet"]
    assert bench(words) == 1
    runs = results.read(tmp_path).runs.set_index("dataset")
    assert runs["status"].to_dict() == {"small": "done", "wide": "done", "broken": "failed"}
    assert "broken.hdf5" in runs.loc["broken", "error"]
    assert runs["score_last"].isna().all()  # the files have no environment
    assert runs["data_fingerprint"].isna().to_dict() == {"small": False, "wide": False, "broken": True}
    capsys.readouterr()
    assert bench(words) == 1
    assert "none pending" in capsys.readouterr().out
    time.sleep(2.1)
    writers.write_hdf5(
        folder / "broken.hdf5", writers.dataset_arrays(make_dataset(seed=2))
    )  # a valid file in its place
    assert bench(words) == 0
    assert "1 pending in 1 groups" in capsys.readouterr().out
    writers.write_hdf5(folder / "small.hdf5", writers.dataset_arrays(make_dataset(seed=1)))
    with pytest.raises(AspcError, match=r"small.hdf5 is not the data that finished runs on small were .*\. Rename the"):
        bench(words)
    assert bench([*words, "--only", "wide"]) == 0  # only requested files are read


def test_an_ogbench_file_provides_its_single_tasks(tmp_path: Path) -> None:
    pytest.importorskip("ogbench")
    folder, stem = tmp_path / "data", "pointmaze-medium-navigate"
    for suffix, seed in (("", 0), ("-val", 1)):
        arrays = pointmaze.generate("pointmaze-medium", 10, 301, seed, noise=0.5)
        writers.write_npz(folder / f"{stem}-v0{suffix}.npz", arrays)
    names = [f"{stem}-singletask-task{i}-v0" for i in (1, 4)]
    words = ["tiny_files", "--data", str(folder), "--out", str(tmp_path / "bench"), "--quiet"]
    assert bench([*words, "--only", *names, "--steps", "100", "--eval-every", "100"]) == 0
    runs = results.read(tmp_path / "bench").runs.set_index("dataset")
    assert runs["status"].to_dict() == dict.fromkeys(names, "done")
    assert set(runs["runs_together"]) == {2}  # the tasks of one environment share a program
    assert runs["data_fingerprint"].nunique() == 2  # the rewards differ
    assert runs["success_last"].notna().all()  # evaluated in OGBench's environment


def test_only_files_of_fingerprinted_runs_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("a", "b"):
        writers.write_npz(folder / f"{name}.npz", writers.dataset_arrays(make_dataset()))
    plan = make_plan(expand(["tiny_files"]), data=find_dataset_files(folder))
    recorded = {run_id: RecordedRun("done", None, None) for run_id in plan.runs}  # as in older results
    monkeypatch.setattr(recorded_runs, "load_dataset", lambda name, file: pytest.fail(f"{file} was read"))
    check_data_unchanged(plan, recorded, find_dataset_files(folder))
    for run_id, run in plan.runs.items():
        recorded[run_id] = RecordedRun("done", None, None, "other" if run.dataset == "b" else None)
    check_data_unchanged(plan, recorded, {})  # known by name
    monkeypatch.undo()
    with pytest.raises(AspcError, match=r"b\.npz is not the data .* choose another --out"):
        check_data_unchanged(plan, recorded, find_dataset_files(folder))
    retried = {run_id: RecordedRun("failed", "NaN", None, k.data_fingerprint) for run_id, k in recorded.items()}
    assert select_settled_runs(plan, retried, {}, retry_failed=True) == {}


def test_two_benches_in_one_folder_are_rejected(tmp_path: Path) -> None:
    from aspc.lab.bench_folder import bench_lock

    with bench_lock(tmp_path), pytest.raises(AspcError, match="Another `aspc bench`"):
        bench(["tiny", "--out", str(tmp_path)])


def test_list_and_dry_run_output(tmp_path: Path, capsys) -> None:
    assert bench(["--list"]) == 0
    listed = capsys.readouterr().out
    assert "main_table" in listed
    assert "Table 1" in listed
    assert bench(["tiny_both", "--dry-run", "--rate", "100", "--devices", "2", "--out", str(tmp_path / "no")]) == 0
    shown = capsys.readouterr().out
    assert "9 runs: 0 done" in shown
    assert "BC, ASPC" not in shown  # they need two programs
    assert f"{5 * STEPS:,}" in shown
    hours = 9 * STEPS / 100 / 3600
    assert f"{hours:.1f} hours of one device; {hours / 2:.1f} on 2" in shown
    assert f"{9 * 8} episodes, at most {9 * 8 * 300:,} environment steps" in shown
    assert not (tmp_path / "no").exists()


def test_a_dry_run_without_a_rate_has_no_empty_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(["tiny_both", "--dry-run", "--out", str(tmp_path / "no")]) == 0
    shown = capsys.readouterr().out
    assert "steps/s" not in shown
    assert "hours\n" not in shown
    assert "Add --rate to estimate the time" in shown
    assert bench(["tiny_both", "--dry-run", "--rate", "aspc=100", "--out", str(tmp_path / "no")]) == 0
    shown = capsys.readouterr().out
    assert "steps/s" in shown
    assert "Add --rate" not in shown


def test_evaluation_cost_counts_final_episodes() -> None:
    options = {"eval_every": 1000, "eval_episodes": 10, "final_episodes": 50}
    plan = make_plan(expand(["tiny"]), options=options, steps=3000)
    cost = compute_evaluation_cost(make_groups(plan, plan.runs, 64, {}))
    assert cost.episodes == len(plan.runs) * (2 * 10 + 50)


def test_rates_are_parsed(tmp_path: Path) -> None:
    assert Rates.parse(["70000"]).of("cql") == 70_000
    assert [Rates.parse(["70", "iql=50"]).of(algo) for algo in ("iql", "fql")] == [50.0, 70.0]
    measured = tmp_path / "speeds.json"
    rows = [("td3_bc", 100.0), ("td3_bc", 300.0), ("iql", 50.0)]
    measured.write_text(json.dumps({"speeds": [{"algo": a, "steps_per_second": r} for a, r in rows]}))
    algos = ("td3_bc", "aspc", "iql+aspc", "fql")
    assert [Rates.parse([str(measured)]).of(algo) for algo in algos] == [300.0, 300.0, 50.0, None]
    two_policies = ("aspc_plus", "mcep", "rapo", "td3_bc_two_policies")
    assert {Rates.parse([str(measured)]).of(algo) for algo in two_policies} == {300.0}
    assert Rates.parse([str(measured), "aspc_plus=60"]).of("mcep") == 60.0
    assert [Rates.parse([str(measured), "aspc=3000"]).of(algo) for algo in algos] == [3000.0, 3000.0, 500.0, None]
    for wrong in ("0", "aspc=-1", str(tmp_path / "none.json")):
        with pytest.raises(AspcError, match="--rate"):
            Rates.parse([wrong])


def test_invalid_options_are_errors(tmp_path: Path) -> None:
    for words, text in (
        (["tinny"], "did you mean tiny"),
        (["tiny", "--steps", "0"], "--steps must be at least 1"),
        (["tiny", "--known", str(tmp_path / "none")], "no results in"),
        (["tiny", "--known", str(tmp_path)], "no results in"),
        (["tiny", "--budget", "0"], "--budget must be above 0"),
        (["tiny", "--dry-run", "--rate", "aspx=30"], "did you mean aspc"),
        (["tiny_files", "--data", str(tmp_path / "none")], "no folder"),
        (["tiny", "--only", "fql"], "choose from ASPC, BC"),
        (["tiny", "--at-once", "0"], "--at-once must be at least 1"),
        (["tiny", "--at-once", "2", "--engine", "ray"], "--at-once needs --engine local"),
    ):
        with pytest.raises(AspcError, match=text):
            bench([*words, "--out", str(tmp_path / "out")])


def test_curves_keep_evaluations_and_a_hundred_points() -> None:
    steps = np.arange(1, 1001) * 1000
    evaluated = np.asarray([33_000, 1_000_000])
    points = build_curve(
        {"step": steps, "scale": steps / 1e6, "q_mean": steps},
        {"step": evaluated, "score_mean": [1.0, 2.0], "return_mean": [3.0, 4.0], "success_rate": [0.0, 1.0]},
    )
    assert len(points) == 101
    assert points[-1] == {"step": 1_000_000, "score": 2.0, "return": 4.0, "success_rate": 1.0, "scale": 1.0, "q": 1e6}
    assert [p["step"] for p in points if "score" in p] == evaluated.tolist()


# ── kills ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def kill_when(process: subprocess.Popen[str], condition: Callable[[], bool]) -> bool:
    """Send SIGKILL once a condition holds; return False if the process ended before."""
    if not wait_until(condition, process):
        process.stdout.close()
        return False
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return True


def finish(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, output


def test_a_killed_bench_continues_to_the_same_results(start: Start, uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "bench"
    words = ("tiny", "--out", out, *GROUPS_OF_TWO)
    # Once during the first group, after a checkpoint, and once after two groups.
    assert kill_when(start(*words), lambda: any(out.glob("groups/*/fleet-*/checkpoints/[0-9]*")))
    assert kill_when(start(*words), lambda: len(list((out / "runs").glob("[!.]*"))) >= 2)
    finish(start(*words))
    assert_same_results(out, uninterrupted)
    assert_each_run_once(out)


def test_parallel_groups_give_the_same_results_and_end_with_their_parent(
    start: Start, uninterrupted: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bench"
    words = ("tiny", "--out", out, "--at-once", "2", *GROUPS_OF_TWO)

    def running_groups() -> list[Path]:
        return [lock.parent for lock in out.glob("groups/*/.group.lock") if list(lock.parent.glob("fleet-*/metrics*"))]

    assert kill_when(start(*words), lambda: len(running_groups()) >= 2)
    for folder in running_groups():
        with FileLock(folder / ".group.lock", timeout=DEADLINE_SECONDS):  # its process has ended
            pass
    finish(start(*words))
    assert_same_results(out, uninterrupted)
    assert_each_run_once(out)


def test_a_crashed_process_fails_its_group_and_a_stopped_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first group has a file that cannot be opened; the second is stopped by `close`."""
    monkeypatch.setattr(processes, "STOP_SECONDS", 600)
    plan = make_plan([suites.get("tiny_shared")], steps=10_000_000)
    crashing, stopped = (replace(make_groups(plan, plan.runs, 1, {})[0], attempt=i) for i in range(2))
    engine = ProcessesEngine(tmp_path, at_once=2)
    for group in (crashing, stopped):
        write_group(tmp_path, group)
        if group is crashing:
            (group_path(tmp_path, group.group_id) / GROUP).unlink()
            (group_path(tmp_path, group.group_id) / GROUP).symlink_to(GROUP)  # a loop
        engine.start(group)
    assert not engine.has_room(crashing)
    (ended,) = engine.wait(600)
    assert ended.group == crashing
    assert "ended with exit code 1 and no results" in str(ended.error)
    assert engine.has_room(crashing)
    timed = replace(crashing, members=tuple(replace(m, run=replace(m.run, alone=True)) for m in crashing.members))
    assert not engine.has_room(timed)
    checkpoints = group_path(tmp_path, stopped.group_id)
    wait_until(lambda: list(checkpoints.glob("fleet-*/checkpoints/[0-9]*")) or engine.wait(0.1))
    assert engine.wait(0) == []
    process = engine._jobs[stopped.group_id][1]
    engine.close()
    assert process.returncode == 128 + signal.SIGTERM


def test_errors_of_a_process_stop_the_bench(tmp_path: Path) -> None:
    plan = make_plan([suites.get("tiny_shared")])
    (group,) = make_groups(plan, plan.runs, 2, {})
    write_group(tmp_path, group)
    (group_path(tmp_path, group.group_id) / GROUP).write_text("{}")
    engine = ProcessesEngine(tmp_path, at_once=1)
    engine.start(group)
    with pytest.raises(AspcError, match=r"group\.json is damaged; remove its folder"):
        engine.wait(600)
    engine.start(group)
    engine._jobs[group.group_id][1].kill()
    with pytest.raises(AspcError, match=r"killed by SIGKILL .*The same command continues from its checkpoint"):
        engine.wait(600)
    engine.close()


def test_the_next_attempt_continues_after_a_failed_evaluation(
    tmp_path: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = evaluation.WorkerProcess.call

    def fail(
        worker: evaluation.WorkerProcess, job: tuple[str, Policy, list[int]], timeout: float
    ) -> list[dict[str, float]]:
        if job[1].info["step"] >= 3000:
            raise evaluation.WorkerFailed("an evaluation worker died")
        return usual(worker, job, timeout)

    monkeypatch.setattr(evaluation.WorkerProcess, "call", fail)
    words = ["tiny", "--only", "BC", "maze2d-umaze?steps=2000", "--out", str(tmp_path), "--quiet", *GROUPS_OF_TWO]
    assert bench(words) == 1
    (unfinished,) = tmp_path.glob("groups/*/fleet-*")
    assert list(unfinished.glob("checkpoints/[0-9]*"))
    started = json.loads((unfinished / "config.json").read_text())["started"]
    monkeypatch.setattr(evaluation.WorkerProcess, "call", usual)
    assert bench([*words, "--retry-failed"]) == 0
    (finished,) = tmp_path.glob("groups/*/fleet-*")
    assert finished.parent != unfinished.parent
    assert json.loads((finished / "config.json").read_text())["started"] == started
    assert not (finished / "checkpoints").exists()
    expected = results.read(uninterrupted).runs.set_index("run_id")["score_last"]
    found = results.read(tmp_path).runs.set_index("run_id")["score_last"]
    assert len(found) == 2
    assert (found == expected[found.index]).all()


def test_replaced_data_of_an_interrupted_run_stops_the_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Trainer._process_chunk

    def signalled(trainer: Trainer, chunk: Any) -> None:
        usual(trainer, chunk)
        signal.raise_signal(signal.SIGTERM)

    folder = tmp_path / "data"
    folder.mkdir()
    file = folder / "mine.npz"
    writers.write_npz(file, writers.dataset_arrays(make_dataset()))
    words = ["tiny_files", "--data", str(folder), "--steps", "20000", "--out", str(tmp_path), "--quiet"]
    monkeypatch.setattr(Trainer, "_process_chunk", signalled)
    with pytest.raises(Interrupted):
        bench(words)
    monkeypatch.setattr(Trainer, "_process_chunk", usual)
    checkpoints = sorted(tmp_path.glob("groups/*/fleet-*/checkpoints/[0-9]*"))
    assert checkpoints
    good = file.read_bytes()
    writers.write_npz(file, writers.dataset_arrays(make_dataset(seed=1)))
    with pytest.raises(ExternalFailure, match=r"mine is not what .* was trained on"):
        bench(words)
    assert sorted(tmp_path.glob("groups/*/fleet-*/checkpoints/[0-9]*")) == checkpoints
    file.write_bytes(good)
    assert bench(words) == 0


def test_options_without_a_value_are_rejected(tmp_path: Path) -> None:
    for option in ("--only", "--known", "--rate"):
        with pytest.raises(AspcError, match=f"{option} needs at least one value behind it"):
            bench(["tiny", option, "--out", str(tmp_path)])


def test_a_plan_lists_missing_downloads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["main_table", "--only", "ASPC", "hopper-medium-v2", "--dry-run", "--out", str(tmp_path)]
    assert bench(words) == 0
    assert "to be downloaded first: hopper-medium-v2\n" in capsys.readouterr().out
    assert bench(["tiny", "--dry-run", "--out", str(tmp_path)]) == 0
    assert "downloaded" not in capsys.readouterr().out  # mazes are generated


class InterruptedEngine:
    """An engine that is interrupted while it waits, and whose groups finish when it is closed."""

    def __init__(self, bench: Path, interruption: BaseException) -> None:
        self.bench, self.interruption, self.groups = bench, interruption, list[RunGroup]()

    def has_room(self, group: RunGroup) -> bool:
        return not self.groups

    def start(self, group: RunGroup) -> None:
        self.groups.append(group)

    def wait(self, seconds: float) -> list[FinishedGroup]:
        raise self.interruption

    def close(self) -> None:
        for group in self.groups:
            record_failure(self.bench, group, "an error")


@pytest.mark.parametrize("interruption", [Interrupted("Stopped.", signal.SIGTERM), Terminated()])
def test_groups_that_finish_during_a_stop_are_recorded(tmp_path: Path, interruption: BaseException) -> None:
    plan = make_plan([suites.get("tiny_shared")])
    groups = make_groups(plan, plan.runs, 2, {})
    scheduler = Scheduler(tmp_path, plan, groups, {}, InterruptedEngine(tmp_path, interruption), quiet=True)
    with pytest.raises(Interrupted, match="The same command continues"):
        scheduler.run()
    assert set(scheduler.recorded) == set(plan.runs)
    assert scheduler.running == {}


def test_a_signal_is_not_a_failure_of_the_interrupted_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Any exception of Orbax is reported as a damaged checkpoint, but not a signal."""
    import orbax.checkpoint

    def signalled(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(orbax.checkpoint, "CheckpointManager", signalled)
    with pytest.raises(Interrupted, match="The same command continues") as interruption, graceful_shutdown():
        capture_failure(partial(Checkpoints, tmp_path / "checkpoints"))
    assert interruption.value.exit_code == 143


def test_a_signal_in_the_last_chunk_stops_before_the_next_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = Trainer._save_policies

    def signalled(*arguments: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        saved(*arguments)

    monkeypatch.setattr(Trainer, "_save_policies", signalled)
    plan = make_plan([suites.get("tiny_shared")], steps=500)
    groups = make_groups(plan, plan.runs, 1, {})
    assert len(groups) == 2
    scheduler = Scheduler(tmp_path, plan, groups, {}, LocalEngine(tmp_path, quiet=True), quiet=True)
    with pytest.raises(Interrupted, match="The same command continues") as interruption:
        scheduler.run()
    assert interruption.value.exit_code == 143
    assert len(scheduler.recorded) == 1  # the finished group is recorded
    assert {run.status for run in scheduler.recorded.values()} == {"done"}


def test_ctrl_c_explains_how_to_continue() -> None:
    with pytest.raises(Interrupted, match="The same command continues") as interruption, graceful_shutdown():
        raise KeyboardInterrupt
    assert interruption.value.exit_code == 130


@pytest.mark.slow
def test_kills_at_random_moments_change_nothing(start: Start, uninterrupted: Path, tmp_path: Path) -> None:
    out, rng = tmp_path / "bench", random.Random(0)
    words = ("tiny", "--out", out, *GROUPS_OF_TWO)
    kills = 0
    while kills < 10:
        process, kill_time = start(*words), time.monotonic() + rng.uniform(0.5, 15)
        if not kill_when(process, lambda end=kill_time: time.monotonic() > end):
            # It had finished: start over, to reach ten kills.
            assert_same_results(out, uninterrupted)
            out = tmp_path / f"bench{kills}"
            words = ("tiny", "--out", out, *GROUPS_OF_TWO)
            continue
        kills += 1
    finish(start(*words))
    assert_same_results(out, uninterrupted)
    assert_each_run_once(out)


@pytest.mark.slow
def test_a_budget_stops_a_run_and_the_next_one_continues(tmp_path: Path, capsys) -> None:
    words = ["tiny_shared", "--steps", "60000", "--out", str(tmp_path), "--quiet"]
    budgets = 0
    while bench([*words, "--budget", "0.1"]) == 0 and "left" in capsys.readouterr().out:
        budgets += 1
        assert budgets < 50
    assert budgets >= 1
    assert (results.read(tmp_path).runs["status"] == "done").all()
    assert_each_run_once(tmp_path)


def test_sigterm_saves_a_checkpoint_and_prints_a_message(start: Start, tmp_path: Path) -> None:
    process = start("tiny_shared", "--steps", "10000000", "--eval-every", "1000000", "--out", tmp_path)
    assert wait_until(lambda: list(tmp_path.glob("groups/*/fleet-*/checkpoints/[0-9]*")), process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 128 + signal.SIGTERM, output
    assert "Traceback" not in output
    assert "Stopped. The same command continues from here." in output
