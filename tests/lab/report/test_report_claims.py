"""Verdicts of each claim on results where it holds, where it fails, and where runs are missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="the extra [report] is not installed")
pytest.importorskip("rliable", reason="the extra [report] is not installed")

from claim_cases import (
    ANT,
    ASPC,
    CASES,
    CHEETAH,
    HOPPER,
    IQL,
    MAZE,
    PEN,
    TD3_BC,
    by_label,
    case_view,
    check_case,
    drop_runs,
)
from synthetic import MAIN, Variant, make, read_view

from aspc.lab.report import statistics
from aspc.lab.report.claims import ablations, benchmark, generality, registry, vocabulary
from aspc.lab.report.claims.vocabulary import FAILS, HOLDS, OPEN
from aspc.lab.report.statistics import IntervalEstimate


def test_every_claim_has_a_case() -> None:
    assert set(CASES) == {claim.__name__ for claim in registry.ALL}


@pytest.mark.parametrize("name", CASES)
def test_claim_holds_and_fails(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    good, bad = check_case(case, tmp_path / "holds", case.holds), check_case(case, tmp_path / "fails", case.fails)
    assert good.name == bad.name == name
    assert good.verdict == HOLDS, [c for c in good.checks if c.verdict != HOLDS]
    assert bad.verdict == FAILS, bad.checks
    for one in (*good.checks, *bad.checks):
        assert one.estimate.has_interval
        assert one.methods
        assert set(one.datasets) <= set(case.datasets)


@pytest.mark.parametrize("name", CASES)
def test_no_claim_holds_without_one_of_its_methods(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "REPETITIONS", 50)
    case = CASES[name]
    view = case_view(case, tmp_path, case.holds)
    for variant in case.variants:
        claim = case.claim(drop_runs(view, variant=variant.label))
        assert claim.verdict != HOLDS
        assert claim.missing.startswith("Missing: runs of ")


@pytest.mark.parametrize(
    ("name", "column", "value", "missing"),
    [
        ("beats_all_on_average", "domain", "AntMaze", "runs on AntMaze"),
        ("best_on_locomotion_and_mazes", "domain", "Maze2d", "runs on Maze2d"),
        ("largest_polygon", "task", "door", "runs on door"),
        ("scale_by_task", "domain", "Adroit", "runs on Adroit"),
        ("losses_by_domain", "domain", "Adroit", "runs on Adroit"),
        ("l2_inside_l3_matters", "domain", "Maze2d", "runs on Maze2d"),
        ("default_start_is_best", "domain", "AntMaze", "runs on AntMaze"),
        ("weighting_helps_on_sparse_rewards", "domain", "AntMaze", "runs on AntMaze"),
        (
            "smaller_on_better_data",
            "dataset",
            "hopper-expert-v2",
            "runs of ASPC on hopper of the same length on two data qualities (expert and medium-expert)",
        ),
        ("smaller_on_better_data", "task", "walker2d", "runs on walker2d"),
        ("profile_above", "domain", "Adroit", "runs on Adroit"),
    ],
)
def test_no_claim_holds_without_part_of_its_data(
    name: str, column: str, value: str, missing: str, tmp_path: Path
) -> None:
    case = CASES[name]
    claim = case.claim(drop_runs(case_view(case, tmp_path, case.holds), **{column: value}))
    assert claim.verdict == OPEN
    is_average = name in ("beats_all_on_average", "profile_above")
    assert {check.verdict for check in claim.checks} == {OPEN if is_average else HOLDS}
    assert claim.missing == f"Missing: {missing}."


def test_distinct_values_need_two_tasks(tmp_path: Path) -> None:
    case = CASES["distinct_by_task"]
    claim = case.claim(drop_runs(case_view(case, tmp_path, case.holds), task="hopper"))
    assert (claim.verdict, claim.checks) == (OPEN, ())
    assert claim.missing == (
        "Missing: runs of ASPC on MuJoCo, Maze2d, AntMaze or Adroit with a final alpha after a million steps, "
        "on two datasets of two tasks."
    )


@pytest.mark.parametrize("name", ["beats_all_on_average", "beats_td3_bc", "profile_above"])
def test_average_is_open_while_a_domain_is_missing(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    view = case_view(case, tmp_path, case.fails)
    assert case.claim(view).verdict == FAILS
    claim = case.claim(drop_runs(view, domain="AntMaze"))
    assert claim.checks
    assert {check.verdict for check in claim.checks} == {OPEN}
    assert claim.verdict == OPEN


EFFECTS = [
    *("rises_faster", "dynamic_is_best", "robust_critic_helps", "l1_alone_is_worst", "form_five_matches_form_four"),
    *("default_rate_is_best", "narrow_bands", "short_interval_is_harmless"),
]


@pytest.mark.parametrize("name", EFFECTS)
def test_verdict_on_an_effect_names_its_domains(name: str, tmp_path: Path) -> None:
    case = CASES[name]._replace(datasets=(HOPPER, CHEETAH, MAZE, ANT, PEN))
    view = case_view(case, tmp_path, case.holds)
    everywhere, partly = case.claim(view), case.claim(drop_runs(drop_runs(view, domain="AntMaze"), domain="Adroit"))
    assert (everywhere.verdict, everywhere.scope) == (HOLDS, "")
    assert (partly.verdict, partly.scope) == (HOLDS, " on MuJoCo and Maze2d")
    two = case.claim(replace(view, runs=view.runs[view.runs["dataset"].isin([MAZE, PEN])]))
    assert (two.verdict, two.scope) == (HOLDS, f" on {MAZE} and {PEN} only")  # the intervals cover only seeds
    assert {check.scope for check in two.checks} == {f"{MAZE} and {PEN} only"}
    assert {check.scope for check in partly.checks} == {""}
    make(tmp_path, "plant", case.variants, ("plant.csv",), **{"seeds": 3, "points": 10, **case.given, **case.fails})
    assert case.claim(read_view(tmp_path)).checks == everywhere.checks  # user data does not count


def test_missing_runs_are_listed(tmp_path: Path) -> None:
    """Checks can hold with some baselines, one domain, one base and one initial alpha, but the claims stay open."""
    start = Variant("alpha0 = 0.1", "aspc", **{"base.alpha": 0.1})
    variants = (ASPC, TD3_BC, IQL, Variant("IQL+ASPC", "iql+aspc"), start)
    scores = by_label(ASPC=80, IQL_ASPC=70)
    make(tmp_path, "own", variants, (HOPPER, CHEETAH), seeds=3, points=10, noise=0.4, **scores)
    view = read_view(tmp_path)
    expected = {
        benchmark.beats_all_on_average: "runs on Maze2d, AntMaze and Adroit; runs of A2PR, wPC and ReBRAC",
        benchmark.best_on_locomotion_and_mazes: "runs on Maze2d; runs of A2PR, wPC and ReBRAC",
        generality.improves_each_base: "runs of CQL+ASPC, CQL, Diffusion-QL+ASPC and Diffusion-QL",
        ablations.default_start_is_best: "runs on AntMaze and Adroit; runs of ASPC (alpha0 = 10)",
    }
    for make_claim, words in expected.items():
        claim, is_average = make_claim(view), make_claim is benchmark.beats_all_on_average
        assert {check.verdict for check in claim.checks} == {OPEN if is_average else HOLDS}
        assert (claim.verdict, claim.missing) == (OPEN, f"Missing: {words}.")


def test_missing_runs_in_a_domain_and_incomparable_runs_are_listed(tmp_path: Path) -> None:
    make(tmp_path, "own", MAIN, (HOPPER, MAZE), seeds=2, points=5)
    view = read_view(tmp_path)
    gone = view.runs["algo"].isin(["iql", "wpc"]) & (view.runs["domain"] == "Maze2d")
    fewer = replace(view, runs=view.runs[~gone])
    assert benchmark.best_on_locomotion_and_mazes(fewer).missing == "Missing: runs of IQL and wPC on Maze2d."
    shorter = view.runs["steps"].where(view.runs["algo"] == "aspc", 1000)
    claim = benchmark.beats_td3_bc(replace(view, runs=view.runs.assign(steps=shorter)))
    assert claim.missing == (
        "Missing: runs on AntMaze and Adroit; "
        "runs of ASPC and TD3+BC on MuJoCo that are comparable (same dataset, same number of steps, with a score); "
        "runs of ASPC and TD3+BC on Maze2d that are comparable (same dataset, same number of steps, with a score)."
    )


def test_failed_check_decides_despite_missing_runs(tmp_path: Path) -> None:
    case = CASES["beats_all_on_average"]
    claim = case.claim(drop_runs(case_view(case, tmp_path, case.fails), variant="A2PR"))
    assert claim.verdict == FAILS
    assert claim.missing == "Missing: runs of A2PR."


def test_all_claims_are_open_without_runs(tmp_path: Path) -> None:
    make(tmp_path, "own", [Variant("mine", "my_own")], ["my-data"], seeds=2, points=5)
    for claim in registry.check_all(read_view(tmp_path)):
        assert claim.verdict == OPEN
        assert claim.checks == ()
        assert claim.missing.startswith("Missing: runs of ")


@pytest.mark.parametrize("name", ["beats_td3_bc", "smaller_on_better_data", "small_overhead", "profile_above"])
def test_claims_are_open_with_one_seed(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    claim = check_case(case._replace(given={**case.given, "seeds": 1}), tmp_path, case.holds)
    assert claim.checks
    assert claim.verdict == OPEN
    assert not any(c.estimate.has_interval for c in claim.checks)


@pytest.mark.parametrize(
    ("low", "high", "least", "inside"),
    [(1, 2, HOLDS, HOLDS), (-2, -1, FAILS, HOLDS), (-1, 1, OPEN, HOLDS), (4, 7, HOLDS, OPEN), (6, 7, HOLDS, FAILS)],
)
def test_verdicts(low: float, high: float, least: str, inside: str) -> None:
    estimate = IntervalEstimate((low + high) / 2, low, high)
    assert vocabulary.at_least().verdict(estimate) == least
    assert vocabulary.at_most().verdict(estimate.scaled(-1)) == least
    assert vocabulary.ClaimRange(-5, 5).verdict(estimate) == inside


def test_zero_difference_is_open() -> None:
    nothing = statistics.difference({ANT: np.zeros(4)}, {ANT: np.zeros(4)})
    assert nothing.has_interval
    assert vocabulary.at_least().verdict(nothing) == vocabulary.at_most().verdict(nothing) == OPEN


def test_verdict_without_interval_is_open() -> None:
    for alone in (statistics.mean([3.0]), statistics.mean([3.0, 3.1])):  # two seeds of one dataset have no interval
        for claimed in (vocabulary.at_least(), vocabulary.at_most(), vocabulary.ClaimRange(0, 9)):
            assert claimed.verdict(alone) == OPEN
