"""Each claim on results where it holds, where it does not hold, and where runs are missing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="the extra [report] is not installed")
pytest.importorskip("rliable", reason="the extra [report] is not installed")

from synthetic import MAIN, NECESSITY, Shape, Variant, make

from aspc.lab import results
from aspc.lab.paper_tables import domain_of, tables
from aspc.lab.report import paper_results, statistics
from aspc.lab.report.claims import ablations, benchmark, generality, learned_scale, registry, runtime, vocabulary
from aspc.lab.report.claims.comparisons import SAME_RUNTIME
from aspc.lab.report.claims.vocabulary import FAILS, HOLDS, OPEN
from aspc.lab.report.datasets import D4RL, LOCOMOTION, quality_of
from aspc.lab.report.methods import method
from aspc.lab.report.statistics import IntervalEstimate
from aspc.lab.report.view import View, build_view

ASPC, TD3_BC = Variant("ASPC", "aspc"), Variant("TD3+BC", "td3_bc")
WPC, A2PR, IQL = Variant("wPC", "wpc"), Variant("A2PR", "a2pr"), Variant("IQL", "iql")
HOPPER, PEN, MAZE, ANT = "hopper-medium-v2", "pen-human-v1", "maze2d-umaze-v1", "antmaze-umaze-v2"
OGBENCH = "antmaze-large-navigate-singletask-task1-v0"
CHEETAH = "halfcheetah-medium-v2"
TASKS = (
    HOPPER,
    CHEETAH,
    "walker2d-medium-v2",
    MAZE,
    ANT,
    PEN,
    *(f"{t}-human-v1" for t in ("door", "hammer", "relocate")),
)
LADDER = tuple(f"hopper-{quality}-v2" for quality in ("expert", "medium-expert", "medium", "medium-replay"))
LOSSES = tuple(Variant(terms, "aspc", outer_loss=terms) for terms in ("L1", "L1+L2", "L1+L3"))
INTEGRATED = tuple(
    Variant(label + "+ASPC" * bool(aspc), algo + aspc)
    for label, algo in (("IQL", "iql"), ("CQL", "cql"), ("Diffusion-QL", "diffusion_ql"))
    for aspc in ("", "+aspc")
)
FORMS = tuple(Variant(f"({n})", "aspc", l3_form=n) for n in (1, 2, 3, 5))
WITHOUT = {"base.critic_hidden_layers": 2, "base.critic_layer_norm": False}


class Case(NamedTuple):
    """A claim, the runs that decide it, and options that make it hold or fail."""

    claim: Callable[[View], vocabulary.Claim]
    variants: tuple[Variant, ...]
    datasets: tuple[str, ...]
    holds: dict[str, Any]
    fails: dict[str, Any]
    given: Mapping[str, Any] = MappingProxyType({})


def by_label(default: float = 50.0, **scores: float) -> dict[str, Any]:
    """Return scores by label; _ stands for characters that a Python name cannot contain."""
    return {"score": lambda label, dataset: scores.get(label.translate(str.maketrans("+-()=., ", "________")), default)}


def loss_scores(l2_on_mujoco: float) -> Callable[[str, str], float]:
    table = {
        "MuJoCo": {"L1": 40, "L1+L2": l2_on_mujoco, "L1+L3": 45, "ASPC": 80},
        "AntMaze": {"L1": 30, "L1+L2": 31, "L1+L3": 70, "ASPC": 70},
        "Maze2d": {"L1": 60, "L1+L2": 80, "L1+L3": 80, "ASPC": 120},
        "Adroit": {"L1": 20, "L1+L2": 50, "L1+L3": 30, "ASPC": 50},
    }
    return lambda label, dataset: table[domain_of(dataset)][label]


def alpha_by_quality(*, is_rising: bool) -> Callable[[str], float]:
    values = {q: 0.5 * 2**i for i, q in enumerate(("expert", "medium-expert", "medium", "medium-replay"))}
    return lambda dataset: values[quality_of(dataset)] ** (1 if is_rising else -1)  # type: ignore[index]


CASES = {
    case.claim.__name__: case
    for case in (
        Case(
            benchmark.beats_td3_bc,
            (ASPC, TD3_BC),
            (HOPPER, PEN, MAZE, ANT),
            by_label(ASPC=80, TD3_BC=50),
            by_label(ASPC=50, TD3_BC=80),
        ),
        Case(
            benchmark.beats_all_on_average,
            MAIN,
            (HOPPER, PEN, MAZE, ANT),
            by_label(ASPC=80),
            by_label(ASPC=80, ReBRAC=90),
        ),
        Case(
            benchmark.best_on_locomotion_and_mazes, MAIN, (HOPPER, MAZE), by_label(ASPC=80), by_label(ASPC=80, wPC=90)
        ),
        Case(benchmark.profile_above, MAIN, (HOPPER, PEN, MAZE, ANT), by_label(ASPC=80), by_label(ASPC=40)),
        Case(benchmark.largest_polygon, MAIN, TASKS, by_label(ASPC=80), by_label(ASPC=80, IQL=90)),
        Case(
            benchmark.rises_faster,
            (ASPC, TD3_BC, WPC, A2PR),
            (HOPPER, PEN),
            by_label(ASPC=80),
            {**by_label(ASPC=60), "shape": Shape(pace=2.0)},
            {"points": 30},
        ),
        Case(
            benchmark.no_late_collapse,
            (ASPC,),
            (HOPPER, PEN),
            by_label(ASPC=80),
            {**by_label(ASPC=80), "shape": Shape(last=0.4)},
        ),
        Case(
            benchmark.one_setting_degrades,
            (
                *(Variant("ReBRAC, tuned", "rebrac", beta1=0.05), Variant("ReBRAC", "rebrac")),
                *(Variant("A2PR, tuned", "a2pr", vae_lr=1e-4), A2PR),
            ),
            (HOPPER, PEN),
            by_label(ReBRAC=40, A2PR=40),
            by_label(ReBRAC=60, A2PR=40),
        ),
        Case(
            learned_scale.smaller_on_better_data,
            (ASPC,),
            tuple(name.replace("hopper", task) for task in LOCOMOTION for name in LADDER),
            {"alpha": alpha_by_quality(is_rising=True)},
            {"alpha": alpha_by_quality(is_rising=False)},
        ),
        Case(
            learned_scale.scale_by_task,
            (ASPC,),
            ("pen-expert-v1", MAZE, ANT),
            {},
            {"alpha": lambda dataset: 1.0},
            {"shape": Shape(drop=20.0)},
        ),
        Case(
            learned_scale.drops_then_rises,
            (ASPC,),
            (HOPPER, MAZE),
            {"alpha": lambda dataset: 5.0},
            {"alpha": lambda dataset: 20.0, "shape": Shape(drop=0.0)},
            {"points": 30},
        ),
        Case(
            learned_scale.dynamic_is_best,
            NECESSITY,
            (HOPPER, PEN),
            by_label(dynamic=80, converged=70, linear=65, naive=60),
            by_label(dynamic=80, converged=70, linear=65, naive=75),
        ),
        Case(runtime.small_overhead, (ASPC, TD3_BC), (HOPPER,), {}, {"shape": Shape(overhead=0.6)}),
        Case(
            runtime.long_interval_is_free,
            (ASPC, TD3_BC, Variant("k_alpha = 30", "aspc", k_alpha=30)),
            (HOPPER, PEN),
            by_label(80),
            {**by_label(80), "shape": Shape(overhead=0.9)},
        ),
        Case(
            ablations.robust_critic_helps,
            (
                *(ASPC, Variant("ASPC without RC", "aspc", **WITHOUT)),
                *(WPC, Variant("wPC without RC", "wpc", critic_hidden_layers=2, critic_layer_norm=False)),
            ),
            (HOPPER, PEN),
            by_label(ASPC=80, wPC=80),
            by_label(ASPC=80, wPC=40),
        ),
        Case(ablations.l1_alone_is_worst, (*LOSSES, ASPC), (HOPPER, PEN), by_label(60, L1=30), by_label(60, L1=70)),
        Case(
            ablations.losses_by_domain,
            (*LOSSES, ASPC),
            (HOPPER, ANT, MAZE, PEN),
            {"score": loss_scores(80)},
            {"score": loss_scores(60)},
        ),
        Case(
            ablations.l2_inside_l3_matters,
            (*FORMS, ASPC),
            (MAZE, ANT),
            by_label(80, _1_=40, _2_=45),
            by_label(80, _1_=90, _2_=45),
        ),
        Case(
            ablations.form_five_matches_form_four, (FORMS[-1], ASPC), (HOPPER, PEN), by_label(80), by_label(80, _5_=60)
        ),
        Case(ablations.l3_matters_little_on_adroit, (*FORMS, ASPC), (PEN,), by_label(80), by_label(80, _2_=60)),
        Case(
            ablations.default_start_is_best,
            (ASPC, *(Variant(f"alpha0 = {a}", "aspc", **{"base.alpha": a}) for a in (0.1, 10.0))),
            (HOPPER, ANT, PEN),
            by_label(ASPC=80),
            by_label(ASPC=40),
        ),
        Case(
            ablations.default_rate_is_best,
            (ASPC, *(Variant(f"lr = {lr}", "aspc", scale_lr=lr) for lr in (2e-2, 2e-4))),
            (HOPPER, PEN),
            by_label(ASPC=80),
            by_label(ASPC=40),
        ),
        Case(
            generality.improves_each_base,
            INTEGRATED,
            (HOPPER, CHEETAH),
            by_label(IQL_ASPC=80, CQL_ASPC=80, Diffusion_QL_ASPC=80),
            by_label(IQL_ASPC=80, CQL_ASPC=40, Diffusion_QL_ASPC=80),
        ),
        Case(
            generality.holds_on_ogbench,
            (
                *(ASPC, TD3_BC, IQL, Variant("ReBRAC", "rebrac")),
                *(Variant("FQL", "fql", alpha=3.0), Variant("FQL+ASPC", "fql+aspc", **{"base.alpha": 3.0})),
            ),
            (OGBENCH,),
            by_label(ASPC=80, FQL_ASPC=60),
            by_label(ASPC=80, FQL_ASPC=30),
            {"measure": "success"},
        ),
        Case(
            generality.weighting_helps_on_sparse_rewards,
            (ASPC, Variant("ASPC+AW", "aspc", bc="advantage_weighted")),
            (ANT, PEN),
            by_label(ASPC_AW=80),
            by_label(ASPC_AW=40),
        ),
        Case(
            generality.keeps_rising,
            (ASPC, TD3_BC),
            (CHEETAH,),
            {**by_label(50), "shape": Shape(pace=0.6, others=0.05)},
            {**by_label(50), "shape": Shape(pace=0.6, others=0.2)},  # TD3+BC is not flat
            {"points": 40},
        ),
    )
}


def case_view(case: Case, folder: Path, changes: dict[str, Any]) -> View:
    options = {"seeds": 3, "points": 10, "noise": 0.4, **case.given, **changes}
    make(folder, "own", case.variants, case.datasets, **options)
    return build_view(results.read(folder))


def check_case(case: Case, folder: Path, changes: dict[str, Any]) -> vocabulary.Claim:
    return case.claim(case_view(case, folder, changes))


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


def drop_runs(view: View, **dropped: str) -> View:
    """Drop the runs with a value in a column."""
    ((column, value),) = dropped.items()
    return replace(view, runs=view.runs[view.runs[column] != value])


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
            "runs of ASPC on hopper of the same length on two qualities (expert and medium-expert)",
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
    "default_rate_is_best",
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
    assert case.claim(build_view(results.read(tmp_path))).checks == everywhere.checks  # user data does not count


def test_missing_runs_are_listed(tmp_path: Path) -> None:
    """Checks can hold with some baselines, one domain, one base and one initial alpha, but the claims stay open."""
    start = Variant("alpha0 = 0.1", "aspc", **{"base.alpha": 0.1})
    variants = (ASPC, TD3_BC, IQL, Variant("IQL+ASPC", "iql+aspc"), start)
    scores = by_label(ASPC=80, IQL_ASPC=70)
    make(tmp_path, "own", variants, (HOPPER, CHEETAH), seeds=3, points=10, noise=0.4, **scores)
    view = build_view(results.read(tmp_path))
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
    view = build_view(results.read(tmp_path))
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


def test_modified_runs_do_not_affect_claims(tmp_path: Path) -> None:
    """Even if they are longer, better and slower than plain ASPC."""
    both, score = (ASPC, TD3_BC), by_label(ASPC=80, wider=99)
    for steps in (300_000, 1_000_000):
        make(
            tmp_path, "own", both if steps == 300_000 else (TD3_BC,), [HOPPER], seeds=3, points=5, steps=steps, **score
        )
    alone = build_view(results.read(tmp_path))
    slow = Variant("wider", "aspc", batch_size=1024)
    make(tmp_path, "search", [slow], [HOPPER], seeds=3, points=5, shape=Shape(overhead=3.0), **score)
    beside = build_view(results.read(tmp_path))
    for claim in (benchmark.beats_td3_bc, runtime.small_overhead):
        assert claim(alone).checks
        assert claim(alone).checks == claim(beside).checks


def test_only_runs_without_concurrency_are_timed(tmp_path: Path) -> None:
    make(tmp_path, "own", (ASPC, TD3_BC), [HOPPER], seeds=2, points=5)
    view = build_view(results.read(tmp_path))
    together = replace(view, runs=view.runs.assign(runs_together=2))
    assert runtime.small_overhead(view).checks
    assert runtime.small_overhead(together).checks == ()
    assert "timed alone on the same dataset" in runtime.small_overhead(together).missing


def test_time_is_compared_on_one_machine(tmp_path: Path) -> None:
    """CPU devices have the same name on all machines."""
    make(tmp_path, "own", (ASPC, TD3_BC), [HOPPER], seeds=2, points=5)
    view = build_view(results.read(tmp_path))
    server = view.runs["machine"].where(view.runs["algo"] == "aspc", "a server with 64 cores")
    assert runtime.small_overhead(replace(view, runs=view.runs.assign(machine=server))).checks == ()


def test_much_faster_run_does_not_have_the_same_runtime(tmp_path: Path) -> None:
    case = CASES["long_interval_is_free"]
    timed = check_case(case, tmp_path, {**case.holds, "shape": Shape(overhead=-0.5)}).checks[0]
    assert timed.estimate.value < -SAME_RUNTIME
    assert timed.verdict == FAILS


def test_all_claims_are_open_without_runs(tmp_path: Path) -> None:
    make(tmp_path, "own", [Variant("mine", "my_own")], ["my-data"], seeds=2, points=5)
    for claim in registry.check_all(build_view(results.read(tmp_path))):
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


def test_runs_of_different_lengths_are_not_compared(tmp_path: Path) -> None:
    make(tmp_path, "long", [ASPC], [HOPPER], seeds=2, points=5, score=lambda label, dataset: 90)
    make(tmp_path, "short", [TD3_BC], [HOPPER], seeds=2, points=5, score=lambda label, dataset: 50, steps=1000)
    assert benchmark.beats_td3_bc(build_view(results.read(tmp_path))).checks == ()
    make(tmp_path, "short_too", [ASPC], [HOPPER], seeds=2, points=5, score=lambda label, dataset: 40, steps=1000)
    (difference, _) = benchmark.beats_td3_bc(build_view(results.read(tmp_path))).checks
    assert difference.estimate.value == pytest.approx(-10, abs=4)


def test_polygon_ignores_returns(tmp_path: Path) -> None:
    case = CASES["largest_polygon"]
    view = case_view(case, tmp_path, case.holds)
    assert HOPPER in case.datasets
    other, options = "hopper-expert", {"seeds": 3, "points": 10, "noise": 0.4, **case.given}
    make(tmp_path, "returns", MAIN, [other], **options, **case.fails, measure="return")
    claim = case.claim(build_view(results.read(tmp_path)))
    assert claim.checks == case.claim(view).checks


def test_polygon_needs_runs_of_the_same_length(tmp_path: Path) -> None:
    case = CASES["largest_polygon"]
    make(tmp_path, "long", [ASPC], case.datasets, seeds=2, points=5, score=lambda *_: 90)
    rivals = [variant for variant in MAIN if variant.algo != "aspc"]
    make(tmp_path, "short", rivals, case.datasets, seeds=2, points=5, score=lambda *_: 50, steps=1000)
    claim = case.claim(build_view(results.read(tmp_path)))
    assert claim.checks == ()
    assert "the same number of steps" in claim.missing


@pytest.mark.parametrize("name", ["rises_faster", "one_setting_degrades"])
def test_returns_are_not_averaged_with_scores(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    view = case_view(case, tmp_path, case.holds)
    assert case.claim(view).verdict == HOLDS
    worse = {**case.fails, "measure": "return"}
    options = {"seeds": 3, "points": 10, "noise": 0.4, **case.given, **worse}
    make(tmp_path, "plant", case.variants, ("plant.csv",), **options)
    assert case.claim(build_view(results.read(tmp_path))).checks == case.claim(view).checks


def test_tuned_runs_of_different_lengths_are_not_compared(tmp_path: Path) -> None:
    for variant, steps in ((Variant("ReBRAC", "rebrac"), 1000), (Variant("tuned", "rebrac", beta1=0.05), 1_000_000)):
        make(tmp_path, "own", [variant], [HOPPER], seeds=2, points=5, steps=steps)
    assert benchmark.one_setting_degrades(build_view(results.read(tmp_path))).checks == ()


def test_alpha_is_compared_at_the_same_length(tmp_path: Path) -> None:
    for name, steps in zip(LADDER, (1000, 1000, 1000, 1_000_000), strict=True):
        make(tmp_path, "own", [ASPC], [name], seeds=2, points=5, steps=steps)
    assert learned_scale.smaller_on_better_data(build_view(results.read(tmp_path))).checks == ()
    make(tmp_path, "own", [ASPC], LADDER[2:3], seeds=2, points=5)
    (one,) = learned_scale.smaller_on_better_data(build_view(results.read(tmp_path))).checks
    assert one.datasets == (LADDER[2], LADDER[3])


def test_final_alpha_needs_runs_as_long_as_the_papers(tmp_path: Path) -> None:
    make(tmp_path, "own", [ASPC], [MAZE], seeds=2, points=5, steps=300_000)
    claim = learned_scale.scale_by_task(build_view(results.read(tmp_path)))
    assert claim.checks == ()
    assert "after a million steps" in claim.missing


def test_final_alpha_on_adroit_uses_expert_data(tmp_path: Path) -> None:
    """As in the suite of Figure 4: alpha differs on human data."""
    for name, alpha in (("pen-expert-v1", 0.1), ("pen-human-v1", 3.0)):
        make(tmp_path, "own", [ASPC], [name], seeds=2, points=5, alpha=lambda _, alpha=alpha: alpha)
    (one,) = learned_scale.scale_by_task(build_view(results.read(tmp_path))).checks
    assert one.datasets == ("pen-expert-v1",)


def test_late_collapse_needs_runs_as_long_as_the_papers(tmp_path: Path) -> None:
    make(tmp_path, "own", [ASPC], [HOPPER], seeds=3, points=5, steps=600)
    claim = benchmark.no_late_collapse(build_view(results.read(tmp_path)))
    assert claim.checks == ()
    assert "and a million steps" in claim.missing
    make(tmp_path, "own", [ASPC], [HOPPER], seeds=3, points=5)
    assert benchmark.no_late_collapse(build_view(results.read(tmp_path))).scope == f" on {HOPPER} only"
    make(tmp_path, "own", [ASPC], LADDER, seeds=3, points=5)
    assert benchmark.no_late_collapse(build_view(results.read(tmp_path))).scope == " on MuJoCo"


def test_claims_about_d4rl_ignore_other_data(tmp_path: Path) -> None:
    case = CASES["drops_then_rises"]
    view = case_view(case, tmp_path, case.holds)
    make(tmp_path, "own", (ASPC,), (OGBENCH,), seeds=3, **case.given, **case.fails)
    assert case.claim(build_view(results.read(tmp_path))).checks == case.claim(view).checks


def test_a2pr_is_compared_with_one_setting(tmp_path: Path) -> None:
    """As in the paper, which compares ReBRAC with its per-dataset settings."""
    tuned_rebrac = Variant("ReBRAC, tuned", "rebrac", beta1=0.05)
    for tuned, plain in ((Variant("A2PR, tuned", "a2pr", vae_lr=1e-4), A2PR), (tuned_rebrac, Variant("R", "rebrac"))):
        make(tmp_path, "own", [plain], [HOPPER], seeds=2, points=5, score=lambda *_: 40.0)
        make(tmp_path, "own", [tuned], [HOPPER], seeds=2, points=5, score=lambda *_: 80.0)
    view = build_view(results.read(tmp_path))
    assert view.runs_of(method("a2pr"))["last"].mean() == pytest.approx(40, abs=5)
    assert view.runs_of(method("rebrac"))["last"].mean() == pytest.approx(80, abs=5)


def test_profiles_are_compared_at_informative_thresholds() -> None:
    """Thresholds that all or no runs exceed do not count: only those between 96 and 102 do."""
    low_high = np.stack([np.full((2, 3), 96.0), np.full((2, 3), 102.0)], axis=-1)
    assert float(benchmark.share_above(low_high)) == 0
    assert float(benchmark.share_above(low_high[..., ::-1])) == 1
    assert np.isnan(benchmark.share_above(low_high[..., [0, 0]]))


def test_gain_on_one_of_many_datasets_is_no_average_gain(tmp_path: Path) -> None:
    """The average is higher over seeds, which agree, but not over datasets."""
    gains = dict(zip((*LADDER, MAZE, ANT, PEN), (60.0, -2.0, -2.0, -2.0, -2.0, -2.0, -2.0), strict=True))
    score = lambda label, dataset: 50 + (gains[dataset] if label == "ASPC" else 0)  # noqa: E731
    make(tmp_path, "own", [ASPC, TD3_BC], gains, seeds=4, points=5, score=score, noise=0.2)
    claim = benchmark.beats_td3_bc(build_view(results.read(tmp_path)))
    assert claim.checks[0].estimate.value == pytest.approx(48 / 7, abs=0.2)
    assert claim.checks[0].estimate.low < 0 < claim.checks[0].estimate.high
    assert "median difference over datasets -2.0" in claim.checks[0].description
    assert claim.verdict == OPEN


def test_polygon_is_resampled_within_tasks() -> None:
    """With equal seeds, the interval covers the datasets of the only task that has two."""
    ours = {MAZE: np.full(2, 2.0), ANT: np.full(2, 2.0), LADDER[0]: np.full(2, 4.0), LADDER[1]: np.full(2, 0.0)}
    rival = {name: np.full(3, 1.0) for name in ours}
    found = benchmark.lead_in_area(ours, [rival], ("hopper", "maze2d", "antmaze"))
    # hopper: 2 against 1, drawn as 4 or 2 (both lead) or 0 (loses one of three corners)
    assert found == (1.0, pytest.approx(1 / 3), 1.0)
    few = benchmark.lead_in_area({n: x[:1] for n, x in ours.items()}, [rival], ("hopper", "maze2d", "antmaze"))
    assert not few.has_interval


def test_averages_give_datasets_equal_weight(tmp_path: Path) -> None:
    """Although one dataset has many more seeds."""
    gap = {HOPPER: 30.0, PEN: 0.0}
    score = lambda label, dataset: 50 + (gap[dataset] if label == "ASPC" else 0)  # noqa: E731
    make(tmp_path, "many", [ASPC, TD3_BC], [HOPPER], seeds=9, points=5, score=score, noise=0.1)
    make(tmp_path, "few", [ASPC, TD3_BC], [PEN], seeds=2, points=5, score=score, noise=0.1)
    (difference, _) = benchmark.beats_td3_bc(build_view(results.read(tmp_path))).checks
    assert difference.estimate.value == pytest.approx(15, abs=0.3)


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


# -- the paper's numbers ---------------------------------------------------------------------------------


def test_claims_that_the_papers_table_contradicts() -> None:
    """Compare with shares of the 39 printed means above each threshold."""
    found = {claim.name: claim for claim in registry.check_all(paper_results.view_of_table("necessity"))}
    assert [name for name, claim in found.items() if claim.paper_contradiction] == ["profile_above"]
    numbers, rows = tables()["main_table"].numbers, tables()["main_table"].rows
    aspc, rebrac = (
        np.mean([[numbers[row, label].mean > t for t in np.linspace(0, 150, 61)] for row in rows], axis=0)
        for label in ("ASPC", "ReBRAC")
    )
    share = 100 * np.mean((aspc >= rebrac)[np.maximum(aspc, rebrac) > 0])
    assert share == pytest.approx(72.1, abs=0.1)
    text = found["profile_above"].paper_contradiction
    assert text.startswith(
        "The paper's own Table 1 does not support this: with its printed means per dataset instead of runs, "
    )
    assert text.endswith(f"at which ASPC's profile is at or above ReBRAC's: {share:.1f} % of thresholds.")


def test_contradictions_follow_the_tables_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only claims about the modified table of L3's forms change."""
    table = tables()["l3_forms"]
    worse = {key: n._replace(mean=n.mean / 2 if key[1] == "(5)" else n.mean) for key, n in table.numbers.items()}
    monkeypatch.setattr(paper_results, "tables", lambda: {**tables(), "l3_forms": table._replace(numbers=worse)})
    for cached in (paper_results.view_of_table, registry.find_contradiction):
        monkeypatch.setattr(sys.modules[cached.__module__], cached.__name__, cached.__wrapped__)
    contradictions = {
        claim.name: claim.paper_contradiction for claim in registry.check_all(paper_results.view_of_table("necessity"))
    }
    changed = {"form_five_matches_form_four", "l3_matters_little_on_adroit", "l2_inside_l3_matters"}
    assert {name for name, text in contradictions.items() if text} == {"profile_above", *changed}
    assert contradictions["form_five_matches_form_four"] == (
        "The paper's own Table 13, appendix E.2 does not support this: with its printed means per domain instead of "
        "runs, 1 of 1 checks fails: ASPC, L3 form 5 against ASPC: -50.0 %."
    )


@pytest.mark.parametrize("name", tables())
def test_paper_table_as_runs_has_the_tables_averages(name: str) -> None:
    """A domain counts as many times as it has datasets, and methods are those of the claims."""
    table, view = tables()[name], paper_results.view_of_table(name)
    for place, label in table.averages:
        runs = view.runs[(view.runs["variant"] == label) & ((view.runs["domain"] == place) | (place not in D4RL))]
        assert runs["last"].mean() == pytest.approx(table.recomputed(place, label))
    assert {"ASPC"} <= set(view.runs["method"]) or name == "integrations"


def test_claims_ignore_datasets_of_no_benchmark(tmp_path: Path) -> None:
    """Maze2d without action noise is not part of D4RL."""
    mazes = ("maze2d-umaze", "maze2d-medium", "maze2d-large")
    names = (*mazes, *(f"{name}-clean" for name in mazes))
    pair = [Variant("ASPC", "aspc"), Variant("TD3+BC", "td3_bc")]
    make(tmp_path, "maze2d_recipe", pair, names, seeds=3, points=5)
    view = build_view(results.read(tmp_path))
    for claim in (
        benchmark.beats_td3_bc(view),
        benchmark.best_on_locomotion_and_mazes(view),
        learned_scale.scale_by_task(view),
    ):
        assert {name for check in claim.checks for name in check.datasets} == set(mazes)
