"""The suites and the page of the study."""

from __future__ import annotations

import importlib
import json
import re
import sys
import types
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from aspc.lab import suites
from aspc.lab.groups import group_path, make_groups, results_path, write_group
from aspc.lab.paper_tables import domain_of
from aspc.lab.plan import make_plan
from aspc.lab.suites.datasets import MAZES, QUALITIES, REPORTED_ON, STUDIED, STUDY_WALKERS, TUNED_ON, WALKERS

ROOT = Path(__file__).parents[2]
FILES = {name: Path(f"{name}.hdf5") for name in STUDIED}


def test_an_interrupted_session_leaves_complete_comparisons() -> None:
    """All variants on a set of datasets come before the next set."""
    plan = make_plan(suites.expand(["study_main"]), data=FILES, only=["ASPC", "TD3+BC", "maze2d-*", "hopper-*"])
    groups = make_groups(plan, plan.runs, 64, FILES)
    compared = [({m.run.dataset for m in group.members}, group.members[0].variant) for group in groups]
    assert [variant for _, variant in compared] == ["TD3+BC", "ASPC"] * 2
    assert [datasets for datasets, _ in compared[::2]] == [datasets for datasets, _ in compared[1::2]]


def test_tuning_and_report_halves_are_balanced() -> None:
    tuned, reported = set(TUNED_ON), set(REPORTED_ON)
    assert not tuned & reported
    assert tuned | reported == {*STUDY_WALKERS, *MAZES}
    for half in (tuned, reported):
        domains = Counter(map(domain_of, half))
        assert domains["MuJoCo"] == 9
        assert domains["Maze2d"] in (1, 2)
        assert all(sum(name.startswith(f"{task}-") for name in half) == 3 for task in WALKERS)
        assert all(any(name.endswith(f"-{quality}") for name in half) for quality in QUALITIES)


def import_benchmark(name: str) -> ModuleType:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="module")
def study_page() -> ModuleType:
    return import_benchmark("study_page")


@pytest.fixture(scope="module")
def unfinished_runs() -> ModuleType:
    return import_benchmark("unfinished_runs")


def test_the_page_matches_the_committed_results(study_page: ModuleType) -> None:
    text = (ROOT / "docs" / "study.md").read_text("utf-8")
    assert study_page.fill(text, study_page.Study(ROOT / "results")) == text


def test_tables_are_computed_from_the_runs(study_page: ModuleType) -> None:
    study = study_page.Study(ROOT / "results")
    scores = study.scores("study_main", "ASPC")
    assert set(scores) >= set(MAZES)
    assert all(len(values) == 4 for values in scores.values())
    large = scores["maze2d-large"]
    section = study_page.domain_section(study, "Maze2d")
    row = next(line for line in section.splitlines() if line.startswith("| maze2d-large"))
    assert f"{large.mean():.1f} ± {large.std(ddof=1):.1f}" in row


def write_interrupted_group(bench: Path, evaluated: dict[int, list[int]]) -> None:
    """Write a group of runs and the evaluations that each run reached."""
    plan = make_plan(suites.expand(["study_main"]), data=FILES, only=["ASPC", "halfcheetah-expert"])
    (group,) = make_groups(plan, plan.runs, 64, FILES)
    write_group(bench, group)
    folder = group_path(bench, group.group_id) / "fleet-0"
    folder.mkdir()
    points = [(step, run) for run, steps in evaluated.items() for step in steps]
    lines = [f"{step},{run},{step / 1000 + run}" for step, run in points]
    (folder / "evaluations.csv").write_text("\n".join(["step,run,score_mean", *lines]))
    (folder / "metrics.csv").write_text("\n".join(["step,run,scale", *(f"{step},{run},2.5" for step, run in points)]))


def test_evaluations_of_interrupted_runs_are_reported_at_their_last_common_step(
    study_page: ModuleType, unfinished_runs: ModuleType, tmp_path: Path
) -> None:
    write_interrupted_group(tmp_path / "bench", {0: [100, 200, 300], 1: [100, 200], 2: [100, 200], 3: [100, 200, 300]})
    file = tmp_path / "results" / "unfinished" / "halfcheetah.csv"
    assert unfinished_runs.main([str(tmp_path / "bench"), str(file)]) == 0
    assert len(file.read_text().splitlines()) == 1 + 3 + 2 + 2 + 3
    section = study_page.unfinished_section(types.SimpleNamespace(folder=tmp_path / "results"))
    assert section.splitlines()[-1] == "| halfcheetah-expert, 200 steps | 1.7 ± 1.3 |"


def test_finished_groups_are_not_reported_as_interrupted(unfinished_runs: ModuleType, tmp_path: Path) -> None:
    write_interrupted_group(tmp_path, {0: [100]})
    (group,) = (tmp_path / "groups").iterdir()
    finished = results_path(tmp_path, group.name)
    finished.parent.mkdir()
    finished.touch()
    assert unfinished_runs.main([str(tmp_path), str(tmp_path / "out.csv")]) == 2
    assert not (tmp_path / "out.csv").exists()


def test_published_scores_name_their_source(study_page: ModuleType) -> None:
    published = study_page.published_scores()
    assert {p.source for p in published} == {"CORL", "paper"}
    iql = {p.dataset: p.mean for p in published if p.variant == "IQL"}
    assert iql == {"maze2d-umaze": 42.11, "maze2d-medium": 34.85, "maze2d-large": 61.72}
    assert all(np.isfinite(p.std) for p in published)


# ── numbers on several pages ────────────────────────────────────────────────────────────────────────────────────────


def read_words(path: str) -> str:
    return " ".join((ROOT / path).read_text("utf-8").split())


def test_pages_state_the_measured_cost_of_aspc_plus() -> None:
    measured = json.loads((ROOT / "benchmarks/results/aspc_plus_2_cores.json").read_text())
    (cost,) = [row["k_alpha_10"] for row in measured["costs"] if row["algo"] == "aspc_plus"]
    percent = f"{100 * (cost - 1):.0f} % more time"
    assert set(re.findall(r"\d+ % more time", read_words("docs/aspc_plus.md"))) == {percent}
    assert f"{cost:.3f} times as long as TD3+BC" in read_words("benchmarks/README.md")


def test_the_note_of_the_embedded_suite_agrees_with_the_study(study_page: ModuleType) -> None:
    runs = study_page.Study(ROOT / "results").by_suite["study_main"]
    alpha = runs[(runs["label"] == "ASPC") & runs["dataset"].isin(MAZES)]["scale_last"].mean()
    statement = f"to about {alpha:.0f} in a million steps"
    assert statement in suites.get("embedded").note
    assert statement in read_words("docs/experiments.md")
