"""Score tables, summaries, ablations, radar charts and runtimes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="the extra [report] is not installed")
pytest.importorskip("rliable", reason="the extra [report] is not installed")

from synthetic import D4RL, LOSSES, MAIN, NECESSITY, Variant, make, read_view

from aspc.lab import results
from aspc.lab.paper_tables import domain_of, number
from aspc.lab.paper_tables import tables as paper_tables
from aspc.lab.report import content, curves, runtime
from aspc.lab.report.ablations import build_ablations
from aspc.lab.report.aggregates import build_aggregates, summarize
from aspc.lab.report.radar import build_radar, polygon_area
from aspc.lab.report.score_tables import build_score_table

HOPPER, CHEETAH, PEN, MAZE = "hopper-medium-v2", "halfcheetah-medium-v2", "pen-human-v1", "maze2d-umaze-v1"
MAZES = tuple(name for name in D4RL if domain_of(name) == "Maze2d")


def test_cell_has_the_mean_over_seeds_and_the_papers_number(tmp_path: Path) -> None:
    make(tmp_path, "main_table", MAIN, [HOPPER, CHEETAH, PEN], seeds=3, points=5)
    table = build_score_table(read_view(tmp_path), "main_table")
    assert table.labels == ("TD3+BC", "A2PR", "IQL", "wPC", "ReBRAC", "ASPC")
    leading = build_score_table(read_view(tmp_path), "main_table", ["ASPC", "TD3+BC"])
    assert leading.labels == ("ASPC", "TD3+BC", "A2PR", "IQL", "wPC", "ReBRAC")
    assert [row.name for row in table.rows] == [CHEETAH, HOPPER, "MuJoCo average", PEN, "Average"]
    runs = results.read(tmp_path).runs
    ours = runs[(runs["dataset"] == HOPPER) & (runs["variant"] == "ASPC")]["score_last"]
    cell = table.rows[1].cells["ASPC"]
    assert cell.last.value == pytest.approx(ours.mean())
    assert cell.n == 3
    assert cell.paper is not None
    assert (cell.paper.mean, cell.paper.std) == (92.7, 7.2)
    assert cell.paper.rank == 2  # ReBRAC has 102.0
    assert table.rows[1].cells["ReBRAC"].paper.rank == 1  # type: ignore[union-attr]
    average = table.rows[2].cells["ASPC"]
    expected = np.mean([row.cells["ASPC"].last.value for row in table.rows[:2]])
    assert average.last.value == pytest.approx(expected)
    assert average.paper is not None
    paper = [number("main_table", name, "ASPC").mean for name in (HOPPER, CHEETAH)]
    assert average.paper.mean == pytest.approx(np.mean(paper))
    assert not average.paper.is_other_data
    assert not any("egenerated" in note for note in table.notes)


def test_papers_numbers_note_regenerated_data(tmp_path: Path) -> None:
    """The study's datasets have D4RL names without a version."""
    names = [name.removesuffix("-v2") for name in (HOPPER, CHEETAH)]
    make(tmp_path, "study_main", [MAIN[0], MAIN[-1]], names, seeds=2, points=5)
    table = build_score_table(read_view(tmp_path), "study_main")
    for row in table.rows:
        paper = row.cells["ASPC"].paper
        assert paper is not None
        assert paper.is_other_data
        assert not paper.note
    (note,) = (note for note in table.notes if "egenerated" in note)
    assert note.endswith(f"D4RL's own datasets: {names[1]}, {names[0]}.")


def test_ranks_use_rounded_scores(tmp_path: Path) -> None:
    scores = {"TD3+BC": 50.0, "A2PR": 80.0, "IQL": 80.0, "wPC": 70.0, "ReBRAC": 60.0, "ASPC": 70.0}
    make(tmp_path, "own", MAIN, [HOPPER], seeds=2, points=5, noise=0, score=lambda label, dataset: scores[label])
    (row,) = build_score_table(read_view(tmp_path), "own").rows
    assert {label: cell.rank for label, cell in row.cells.items()} == {
        "TD3+BC": 0, "A2PR": 1, "IQL": 1, "wPC": 2, "ReBRAC": 0, "ASPC": 2,
    }  # fmt: skip


def test_average_over_fewer_datasets_is_not_ranked(tmp_path: Path) -> None:
    make(tmp_path, "own", MAIN[:2], [HOPPER, CHEETAH], seeds=2, points=5, score=lambda label, dataset: 50)
    make(tmp_path, "own", [Variant("IQL", "iql")], [HOPPER], seeds=2, points=5, score=lambda label, dataset: 90)
    average = build_score_table(read_view(tmp_path), "own").rows[-1]
    assert average.cells["IQL"].n == 1
    assert average.cells["IQL"].rank == 0
    assert 1 in {average.cells["TD3+BC"].rank, average.cells["A2PR"].rank}


def test_suites_share_runs_under_their_own_labels(tmp_path: Path) -> None:
    make(tmp_path, "main_table", MAIN, [HOPPER], seeds=2, points=5)
    make(tmp_path, "necessity", NECESSITY, [HOPPER], seeds=2, points=5)
    view = read_view(tmp_path)
    assert len(view.runs) == 16
    table = build_score_table(view, "necessity")
    assert table.labels == ("naive", "converged", "linear", "dynamic")
    assert table.series["dynamic"] == "ASPC"
    assert table.series["converged"] == "ASPC, converged alpha"
    assert view.suite_names() == ["main_table", "necessity"]


def test_data_without_scores_is_measured_by_success_or_return(tmp_path: Path) -> None:
    make(tmp_path, "own", MAIN[:2], ["puzzle"], seeds=2, points=5, measure="success", noise=0)
    make(tmp_path, "own", MAIN[:2], ["plant-a", "plant-b"], seeds=2, points=5, measure="return", noise=0)
    view = read_view(tmp_path)
    rows = {row.name: row for row in build_score_table(view, "own").rows}
    assert rows["puzzle"].measure == "success"
    assert rows["puzzle"].cells["A2PR"].last.value == pytest.approx(50)
    assert rows["plant-a"].measure == "return"
    assert not any(row.is_average for row in rows.values())  # returns have different units
    drawn = [c for c in curves.build_curves(view) if c.metric == "score" and c.dataset == "puzzle"]
    assert drawn[0].mean[-1] == pytest.approx(50, abs=1)


def test_ablations_are_in_percent_of_the_baseline(tmp_path: Path) -> None:
    scores = {"naive": 50.0, "converged": 60.0, "linear": 55.0, "dynamic": 75.0}
    make(
        tmp_path,
        "study_ablations",
        NECESSITY,
        [HOPPER, *MAZES],
        seeds=2,
        points=5,
        noise=0.01,
        score=lambda a, d: scores[a],
    )
    make(tmp_path, "study_ablations", LOSSES, [HOPPER], seeds=2, points=5)
    found = {a.group.title: a for a in build_ablations(read_view(tmp_path))}
    dynamic = found["Is a dynamic scale necessary?"]
    assert dynamic.domains == ("MuJoCo", "Maze2d", "Total")
    assert dynamic.percent["Maze2d", "dynamic"].value == pytest.approx(50, abs=0.2)
    assert dynamic.paper["Maze2d", "dynamic"] == pytest.approx(137.8, abs=0.1)  # as the paper prints it
    assert {domain for domain, _ in dynamic.paper} == {"Maze2d"}  # its other numbers cover more datasets
    assert dynamic.without_paper == ("MuJoCo", "Total")
    assert set(found["Terms of the outer loss"].series) == {"L1", "L1+L2", "L1+L3"}


def test_papers_percentage_covers_the_same_datasets(tmp_path: Path) -> None:
    names = [HOPPER, "walker2d-medium-replay-v2"]  # two of the nine in the table
    make(tmp_path, "integrations", [Variant("IQL", "iql"), Variant("IQL+ASPC", "iql+aspc")], names, seeds=2, points=3)
    (found,) = build_ablations(read_view(tmp_path))
    ours, base = (
        np.mean([number("integrations", name, label).mean for name in names]) for label in ("IQL+ASPC", "IQL")
    )
    assert found.paper == {("MuJoCo", "IQL+ASPC"): pytest.approx(100 * (ours - base) / base)}
    assert found.without_paper == ()


def test_dataset_comparison(tmp_path: Path) -> None:
    scores = {("ASPC", PEN): 80.0, ("ASPC+AW", PEN): 60.0, ("ASPC", HOPPER): 0.001, ("ASPC+AW", HOPPER): 5.0}
    aspc, weighted = Variant("ASPC", "aspc"), Variant("ASPC+AW", "aspc_aw")
    here = {"seeds": 2, "points": 3, "noise": 0, "score": lambda *key: scores.get(key, 1.0)}
    make(tmp_path, "aspc_aw", [aspc, weighted], [PEN, HOPPER], **here)
    make(tmp_path, "aspc_aw", [aspc], [CHEETAH], **here)  # nothing to compare
    (found,) = content.build(results.read(tmp_path)).dataset_comparisons
    assert found.datasets == (HOPPER, PEN)
    assert found.series == {"ASPC": "ASPC", "ASPC+AW": "ASPC+AW"}
    assert found.scores[PEN, "ASPC+AW"].value == pytest.approx(60)
    assert found.describe_changes(PEN) == "−25 %"
    assert found.describe_changes(HOPPER) == ">999 %"


def test_radar_is_scaled_between_worst_and_best() -> None:
    values = {
        "a": {HOPPER: np.array([10.0]), PEN: np.array([50.0]), MAZE: np.array([0.0])},
        "b": {HOPPER: np.array([20.0]), PEN: np.array([40.0]), MAZE: np.array([0.0])},
        "c": {HOPPER: np.array([15.0]), PEN: np.array([45.0]), MAZE: np.array([0.0])},
    }
    found = build_radar(values)
    assert found is not None
    assert found.tasks == ("hopper", "maze2d", "pen")
    assert found.values == {"a": (0.0, 0.0, 1.0), "b": (1.0, 0.0, 0.0), "c": (0.5, 0.0, 0.5)}
    assert build_radar({name: values[name] for name in "ab"}) is None  # two polygons would only touch 0 and 1


@pytest.mark.parametrize(("tasks", "caption"), [(12, ""), (13, "the first 12 of 13 tasks")])
def test_radar_caption_counts_omitted_tasks(tasks: int, caption: str) -> None:
    """Each unknown dataset is its own task."""
    scores = {f"mine{i:02}": np.arange(3.0) for i in range(tasks)}
    found = build_radar({"a": scores, "b": scores, "c": scores})
    assert found is not None
    assert len(found.tasks) == 12
    assert found.caption == caption
    assert polygon_area(np.ones(3)) == 1


def test_runtime_compares_equal_conditions(tmp_path: Path) -> None:
    make(tmp_path, "runtime", MAIN, [CHEETAH, HOPPER], seeds=1, points=5)
    make(tmp_path, "more", MAIN[:1], [PEN], seeds=1, points=5)
    speeds = runtime.compare_algorithms(runtime.measure_runtimes(read_view(tmp_path)))
    assert {s.dataset for s in speeds} == {CHEETAH}
    assert [s.series for s in speeds][:2] == ["TD3+BC", "ASPC"]
    assert speeds[1].seconds.value / speeds[0].seconds.value == pytest.approx(1.08, abs=0.03)


def test_runtime_prefers_runs_without_concurrency_and_plain_algorithms(tmp_path: Path) -> None:
    """Even if more series ran concurrently, or as variants without concurrency."""
    variants = [
        *(Variant(f"k_alpha = {k}", "aspc", k_alpha=k) for k in (30, 2)),
        Variant("A2PR, tuned", "a2pr", mask=1),
    ]
    timed = [MAIN[0], MAIN[1], MAIN[-1], *variants]
    make(tmp_path, "runtime", timed, [HOPPER], seeds=1, points=3)
    make(tmp_path, "main_table", [*MAIN, *NECESSITY, *variants], [CHEETAH], seeds=2, points=3)
    view = read_view(tmp_path)
    together = view.entries["dataset"].map({HOPPER: 1, CHEETAH: 4})
    speeds = runtime.measure_runtimes(dataclasses.replace(view, entries=view.entries.assign(runs_together=together)))
    chosen = runtime.compare_algorithms(speeds)
    assert [(s.series, s.concurrent) for s in chosen] == [("TD3+BC", 1), ("ASPC", 1), ("A2PR", 1)]
    intervals = runtime.compare_intervals(speeds)
    assert [s.series for s in intervals] == ["ASPC, k_alpha = 2", "ASPC", "ASPC, k_alpha = 30", "TD3+BC"]
    alone = [s for s in speeds if s.concurrent > 1 or s.series == "TD3+BC"]
    assert {s.concurrent for s in runtime.compare_algorithms(alone)} == {4}  # a single series is no comparison
    only_variants = [s for s in speeds if s.series in ("A2PR, tuned", "ASPC, k_alpha = 2")]
    assert {s.series for s in runtime.compare_algorithms(only_variants)} == {"A2PR, tuned", "ASPC, k_alpha = 2"}


def test_columns_follow_the_suite_or_natural_order(tmp_path: Path) -> None:
    k_alpha = [Variant(f"k_alpha = {k}", "aspc", k_alpha=k) for k in (30, 5, 1, 10, 20)]
    rates = [Variant(f"lr = {lr:g}", "aspc", scale_lr=lr) for lr in (2e-4, 2e-2, 2e-3)]
    for suite, variants in (("k_alpha", k_alpha), ("own", k_alpha), ("alpha_lr", rates)):
        make(tmp_path, suite, variants, [HOPPER], seeds=1, points=3)
    view = read_view(tmp_path)
    for suite in ("k_alpha", "own"):
        assert build_score_table(view, suite).labels == tuple(f"k_alpha = {k}" for k in (1, 5, 10, 20, 30))
    assert build_score_table(view, "alpha_lr").labels == ("lr = 0.02", "lr = 0.002", "lr = 0.0002")


def test_ogbench_rows_are_in_the_papers_order(tmp_path: Path) -> None:
    rows = paper_tables()["ogbench"].rows
    make(tmp_path, "ogbench", [MAIN[0], MAIN[-1]], sorted(rows), seeds=1, points=3, measure="success")
    view = read_view(tmp_path)
    assert [row.name for row in build_score_table(view, "ogbench").rows] == [*rows, "Average"]
    assert list(content.build(results.read(tmp_path)).datasets) == rows


def test_suites_have_sources_in_the_papers_order(tmp_path: Path) -> None:
    for suite in ("alpha_lr", "own", "case_study", "study_main", "necessity", "main_table"):
        make(tmp_path, suite, [MAIN[0], MAIN[-1]], [HOPPER], seeds=1, points=3)
    found = content.build(results.read(tmp_path))
    assert [(table.suite, table.source) for table in (found.main_table, *found.other_tables)] == [
        ("main_table", "Table 1, figure 2"),
        ("necessity", "Table 2"),
        ("case_study", "Figure 10, appendix E.3"),
        ("alpha_lr", "Figure 12, appendix F.2"),
        ("study_main", ""),
        ("own", ""),
    ]
    assert found.other_tables[2].title == "learning rate of alpha: 2e-2, 2e-3 and 2e-4"


def test_cell_has_the_standard_deviation_over_seeds(tmp_path: Path) -> None:
    make(tmp_path, "own", MAIN[-1:], [HOPPER, CHEETAH], seeds=3, points=5)
    make(tmp_path, "own", MAIN[:1], [HOPPER], seeds=1, points=5)
    rows = {row.name: row.cells for row in build_score_table(read_view(tmp_path), "own").rows}
    runs = results.read(tmp_path).runs.query("dataset == @HOPPER and variant == 'ASPC'")
    assert rows[HOPPER]["ASPC"].last_std == pytest.approx(runs["score_last"].std())
    assert rows[HOPPER]["ASPC"].best_std == pytest.approx(runs["score_best"].std())
    assert np.isnan(rows[HOPPER]["TD3+BC"].last_std)  # one seed
    assert np.isnan(rows["MuJoCo average"]["ASPC"].last_std)


def test_domain_summary_includes_all_labels_with_runs_on_it(tmp_path: Path) -> None:
    """IQL has too few datasets for the overall comparison, and wPC has fewer seeds than the others."""
    ends = {"ASPC": 80.0, "TD3+BC": 70.0, "IQL": 90.0, "wPC": 60.0}
    options = {"points": 3, "noise": 0.1, "score": lambda label, dataset: ends[label]}
    everywhere = [HOPPER, CHEETAH, *MAZES, PEN, "door-human-v1"]
    make(tmp_path, "own", [MAIN[0], MAIN[-1]], everywhere, seeds=4, **options)
    make(tmp_path, "own", [MAIN[2]], MAZES, seeds=4, **options)
    make(tmp_path, "own", [MAIN[3]], everywhere, seeds=2, **options)
    view = read_view(tmp_path)
    found = build_aggregates(view, build_score_table(view, "own"))
    assert found is not None
    assert [(one.domain, len(one.datasets)) for one in found.domains] == [("MuJoCo", 2), ("Maze2d", 3), ("Adroit", 2)]
    (mujoco, maze, _), overall = found.domains, found.overall
    assert set(maze.labels) == {"TD3+BC", "IQL", "wPC", "ASPC"}
    assert maze.improvement["IQL"] == (0, 0, 0)
    assert set(overall.labels) == {"TD3+BC", "wPC", "ASPC"}
    assert set(overall.improvement) == set(overall.difference) == {"TD3+BC", "wPC"}
    assert overall.reference == "ASPC"
    assert overall.improvement["TD3+BC"] == (1, 1, 1)
    assert overall.iqm["TD3+BC"].value == pytest.approx(70, abs=0.1)
    for differences in (overall.difference, overall.median_difference):
        assert differences["wPC"].value == pytest.approx(20, abs=0.2)
        assert differences["wPC"].has_interval
    assert mujoco.iqm["ASPC"].has_interval
    assert not mujoco.iqm["wPC"].has_interval  # two datasets, two seeds
    one_domain = summarize("Maze2d", {"ASPC": {MAZE: np.arange(3.0)}, "IQL": {}}, {"ASPC": "ASPC", "IQL": "IQL"})
    assert one_domain is None  # nothing to compare


def test_runs_of_different_lengths_are_not_ranked_or_compared(tmp_path: Path) -> None:
    aspc, td3_bc, iql = Variant("ASPC", "aspc"), Variant("TD3+BC", "td3_bc"), Variant("IQL", "iql")
    for variants, steps in (((aspc, iql), 1_000_000), ((td3_bc,), 10_000)):
        make(tmp_path, "s", variants, [HOPPER, PEN], seeds=2, points=3, steps=steps)
    view = read_view(tmp_path)
    table = build_score_table(view, "s")
    assert {cell.rank for row in table.rows for cell in row.cells.values()} == {0}
    assert f"{HOPPER}: not ranked, because runs have between 10,000 and 1,000,000 steps." in table.notes
    found = build_aggregates(view, table)
    assert found is not None
    assert set(found.overall.labels) == {"ASPC", "IQL"}
    assert found.left_out == ("TD3+BC",)
    make(tmp_path, "s", (td3_bc,), [HOPPER, PEN], seeds=2, points=3)
    view = read_view(tmp_path)
    assert set(view.comparable_suite_runs("s")["steps"]) == {1_000_000}
    assert {cell.rank for cell in build_score_table(view, "s").rows[0].cells.values()} == {0, 1, 2}


def test_cpus_of_two_machines_are_two_devices(tmp_path: Path) -> None:
    make(tmp_path, "s", [Variant("ASPC", "aspc"), Variant("TD3+BC", "td3_bc")], [HOPPER], seeds=2, points=3)
    view = read_view(tmp_path)
    server = view.entries["machine"].where(view.entries["algo"] == "aspc", "a server")
    speeds = runtime.measure_runtimes(dataclasses.replace(view, entries=view.entries.assign(machine=server)))
    assert len({speed.device for speed in speeds}) == 2
    assert len({speed.device for speed in runtime.measure_runtimes(view)}) == 1
