"""`aspc bench` on this machine: results, failures, plans and options."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from tiny_suites import MAZE, OTHER_MAZE, STEPS

from aspc.data import writers
from aspc.data.sources import pointmaze
from aspc.errors import AspcError
from aspc.history import NEWEST_ONLY, History
from aspc.lab import recorded_runs, results
from aspc.lab.commands.bench import main as bench
from aspc.lab.cost import Rates, compute_evaluation_cost
from aspc.lab.dataset_files import find_dataset_files
from aspc.lab.groups import make_groups
from aspc.lab.plan import make_plan
from aspc.lab.recorded_runs import RecordedRun, check_data_unchanged, select_settled_runs
from aspc.lab.run_rows import build_curve
from aspc.lab.suites import expand
from aspc.policy import load_policy
from tiny import make_dataset


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


def test_histories_are_part_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs with and without history are different runs in one folder; those without keep their ids."""
    for options in ([], ["--history", "3", "--history-actions"]):
        words = ["tiny_shared", "--out", str(tmp_path), "--quiet", "--only", "BC", "--steps", "500", *options]
        assert bench(words) == 0
    found = results.read(tmp_path).runs
    configs = [json.loads(config)["options"] for config in found["config"]]
    assert sorted(config.get("history", 1) for config in configs) == [1, 1, 3, 3]
    assert found["run_id"].nunique() == 4
    histories = set()
    for _, row in found.iterrows():
        policy = load_policy(tmp_path / row["folder"] / "policy" / row["run_id"])
        histories.add(policy.history)
        assert policy.observation_size == 4
    assert histories == {NEWEST_ONLY, History(3, actions=True)}
    capsys.readouterr()
    with pytest.raises(AspcError, match="--history must be at least 1, not 0"):
        bench(["tiny_shared", "--out", str(tmp_path), "--history", "0"])
    with pytest.raises(AspcError, match="--history-actions needs at least two observations"):
        bench(["tiny_shared", "--out", str(tmp_path), "--history-actions", "--dry-run"])


def test_finished_runs_are_not_repeated_and_suites_share_runs(uninterrupted: Path, tmp_path: Path, capsys) -> None:
    before = {path: path.stat().st_mtime_ns for path in (uninterrupted / "runs").iterdir()}
    with FileLock(f"{uninterrupted}.lock"):  # shared with another worker
        assert bench(["tiny", "--out", str(uninterrupted)]) == 0
    assert "8 runs: 8 done, 0 failed earlier, none pending" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (uninterrupted / "runs").iterdir()} == before
    # If another folder has all runs, this one still records the suite that they belong to.
    assert bench(["tiny_again", "--out", str(tmp_path / "new"), "--reuse", str(uninterrupted)]) == 0
    assert f"aspc report {tmp_path / 'new'} {uninterrupted}\n" in capsys.readouterr().out
    assert set(results.read(tmp_path / "new", uninterrupted).entries["suite"]) == {"tiny", "tiny_again"}
    with pytest.raises(AspcError, match=r"No run in .* has ended yet"):
        results.read(tmp_path / "new")
    # Of another suite in another folder, with --reuse, one of two runs is new.
    assert bench(["tiny_shared", "--out", str(tmp_path), "--reuse", str(uninterrupted), "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert "2 runs: 1 done, 0 failed earlier, 1 pending in 1 group" in shown
    assert f"aspc report {tmp_path} {uninterrupted}\n" in shown
    both = results.read(uninterrupted, tmp_path)
    assert len(both.runs) == 9
    assert set(both.entries[both.entries["suite"] == "tiny_shared"]["variant"]) == {"BC, fast", "BC"}


def test_a_run_takes_its_scale_from_another(uninterrupted: Path, tmp_path: Path) -> None:
    known = ["--reuse", str(uninterrupted)]
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
    assert "none pending (pass --retry-failed" in capsys.readouterr().out
    assert bench([*words, "--retry-failed"]) == 1
    assert "1 pending in 1 group" in capsys.readouterr().out
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
    assert "1 pending in 1 group" in capsys.readouterr().out
    writers.write_hdf5(folder / "small.hdf5", writers.dataset_arrays(make_dataset(seed=1)))
    with pytest.raises(
        AspcError, match=r"small.hdf5 does not contain the data that finished runs on small used\. Rename the"
    ):
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
    with pytest.raises(AspcError, match=r"b\.npz does not contain the data .* choose another --out"):
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
    assert f"{hours:.1f} hours on one device; {hours / 2:.1f} on 2" in shown
    assert f"{9 * 8} episodes, at most {9 * 8 * 300:,} environment steps" in shown
    assert not (tmp_path / "no").exists()


def test_a_dry_run_without_a_rate_has_no_empty_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(["tiny_both", "--dry-run", "--out", str(tmp_path / "no")]) == 0
    shown = capsys.readouterr().out
    assert "steps/s" not in shown
    assert "hours\n" not in shown
    assert "To estimate the time, pass --rate" in shown
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
        (["tiny", "--reuse", str(tmp_path / "none")], "contains no results"),
        (["tiny", "--reuse", str(tmp_path)], "contains no results"),
        (["tiny", "--budget", "0"], "--budget must be above 0"),
        (["tiny", "--dry-run", "--rate", "aspx=30"], "did you mean aspc"),
        (["tiny_files", "--data", str(tmp_path / "none")], "none does not exist"),
        (["tiny", "--only", "fql"], "choose from ASPC, BC"),
        (["tiny", "--parallel-groups", "0"], "--parallel-groups must be at least 1"),
        (["tiny", "--parallel-groups", "2", "--engine", "ray"], "--parallel-groups requires --engine local"),
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


def test_options_without_a_value_are_rejected(tmp_path: Path) -> None:
    for option in ("--only", "--reuse", "--rate"):
        with pytest.raises(AspcError, match=f"{option} needs at least one value"):
            bench(["tiny", option, "--out", str(tmp_path)])


def test_a_plan_lists_missing_downloads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["main_table", "--only", "ASPC", "hopper-medium-v2", "--dry-run", "--out", str(tmp_path)]
    assert bench(words) == 0
    assert "datasets to download first: hopper-medium-v2\n" in capsys.readouterr().out
    assert bench(["tiny", "--dry-run", "--out", str(tmp_path)]) == 0
    assert "downloaded" not in capsys.readouterr().out  # mazes are generated
