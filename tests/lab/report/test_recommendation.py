"""The rule by which a suite's results recommend a method."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra [report] is not installed")
pytest.importorskip("rliable", reason="the extra [report] is not installed")

from synthetic import Variant, make, read_view

from aspc.errors import AspcError
from aspc.lab import results, suites
from aspc.lab.report import content, page_text
from aspc.lab.report.recommendation import Recommendation, recommend
from aspc.lab.suites import Block, Suite

HOPPERS = tuple(f"hopper-{quality}" for quality in ("medium", "expert", "random"))
MAZES = tuple(f"maze2d-{size}" for size in ("umaze", "medium", "large"))
OURS, THEIRS = (Variant("ASPC", "aspc"), Variant("ASPC+", "aspc_plus")), Variant("TD3+BC", "td3_bc")
TUNED = Variant("ReBRAC, tuned", "rebrac", beta1=0.05)


def run_suite(
    folder: Path, scores: dict[str, tuple[float, float]], datasets: tuple[str, ...] = HOPPERS + MAZES
) -> Path:
    """Write runs of the study with the scores (hopper, maze) of each label."""
    for variant in (*OURS, THEIRS, TUNED):
        if variant.label in scores:
            score = lambda label, dataset: scores[label]["maze" in dataset]  # noqa: E731
            make(folder, "study_main", [variant], datasets, seeds=2, points=4, score=score, noise=0.1)
    return folder


def outcome(folder: Path, scores: dict[str, tuple[float, float]]) -> Recommendation:
    found = recommend(read_view(run_suite(folder, scores)), "study_main")
    assert found is not None
    return found


def test_the_candidate_with_the_highest_average_is_recommended(tmp_path: Path) -> None:
    found = outcome(tmp_path, {"ASPC": (80, 60), "ASPC+": (70, 90), "TD3+BC": (70, 50), "ReBRAC, tuned": (60, 60)})
    assert found.label == "ASPC+"
    assert found.candidates == ("ASPC", "ASPC+")
    assert found.rivals == ("TD3+BC", "ReBRAC, tuned")
    assert found.datasets["MuJoCo"] == (3, 18)
    assert found.datasets["AntMaze"] == (0, 6)
    assert sum(planned for _, planned in found.datasets.values()) == 33


def test_a_candidate_behind_on_one_domain_is_not_recommended(tmp_path: Path) -> None:
    """Although its average over all datasets is the highest."""
    found = outcome(tmp_path, {"ASPC": (71, 60), "ASPC+": (60, 150), "TD3+BC": (70, 50)})
    assert [(lead.domain, lead.is_behind) for lead in found.leads["ASPC+"]] == [("MuJoCo", True), ("Maze2d", False)]
    assert [lead.estimate.value for lead in found.leads["ASPC+"]] == pytest.approx([-10, 100], abs=0.5)
    assert found.label == "ASPC"


def test_no_method_is_recommended_if_all_are_behind(tmp_path: Path) -> None:
    scores = {"ASPC": (60.0, 60.0), "ASPC+": (60.0, 60.0), "TD3+BC": (70.0, 70.0)}
    found = outcome(tmp_path, scores)
    assert found.label is None
    summary = content.build(results.read(tmp_path)).aggregates
    assert summary is not None
    text = page_text.describe_recommendation(found, summary.overall)
    assert text == (
        "No method is recommended. With results on 6 of 33 datasets, none of the candidates (ASPC and ASPC+) meets the "
        "criteria."
    )


def test_the_page_names_the_evidence_and_puts_the_recommended_method_first(tmp_path: Path) -> None:
    run_suite(tmp_path, {"ASPC": (75, 60), "ASPC+": (80, 90), "TD3+BC": (70, 50), "ReBRAC, tuned": (60, 95)}, HOPPERS)
    found = content.build(results.read(tmp_path))
    assert found.recommendation is not None
    assert found.main_table.labels == ("ASPC+", "ASPC", "TD3+BC", "ReBRAC, tuned")
    text = page_text.describe_results(found)
    assert text.startswith(
        "Recommended so far, with results on 3 of 33 datasets: <strong>ASPC+</strong>. Its interquartile mean is 80"
    )
    others = r"7[\d.]+ for ASPC, 7[\d.]+ for TD3\+BC and [56][\d.]+ for ReBRAC \(tuned\)"
    assert re.search(rf", compared with {others}\.", text)
    rule = page_text.describe_rule(found.recommendation)
    assert rule.startswith("Datasets with results: MuJoCo 3 of 18, Maze2d 0 of 3, AntMaze 0 of 6, Adroit 0 of 6.")
    assert "it is not behind TD3+BC or ReBRAC (tuned) on any domain" in rule


def test_only_declared_suites_recommend(tmp_path: Path) -> None:
    make(tmp_path, "main_table", [OURS[0], THEIRS], ["hopper-medium-v2"], seeds=2, points=4)
    assert recommend(read_view(tmp_path), "main_table") is None
    with pytest.raises(AspcError, match="lists 'ours' as a candidate or rival"):
        Suite("s", "t", "u", (Block((suites.ASPC,), ("d",)),), candidates=("ours",))
