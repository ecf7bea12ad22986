"""Each claim on results where it holds, where it does not, and where data are missing."""

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
from aspc.lab.report import claims, paper_results, statistics
from aspc.lab.report.claims import D4RL, FAILS, HOLDS, OPEN, SAME_RUNTIME
from aspc.lab.report.statistics import Estimate
from aspc.lab.report.view import WALKERS, View, method, prepare, quality_of

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
    """A claim, the runs that can tell, and what makes it true or false."""

    claim: Callable[[View], claims.Claim]
    variants: tuple[Variant, ...]
    datasets: tuple[str, ...]
    holds: dict[str, Any]
    fails: dict[str, Any]
    given: Mapping[str, Any] = MappingProxyType({})


def by_label(default: float = 50.0, **scores: float) -> dict[str, Any]:
    """Scores by label; _ stands for what a Python name cannot have."""
    return {"score": lambda label, dataset: scores.get(label.translate(str.maketrans("+-()=., ", "________")), default)}


def loss_scores(l2_on_mujoco: float) -> Callable[[str, str], float]:
    table = {
        "MuJoCo": {"L1": 40, "L1+L2": l2_on_mujoco, "L1+L3": 45, "ASPC": 80},
        "AntMaze": {"L1": 30, "L1+L2": 31, "L1+L3": 70, "ASPC": 70},
        "Maze2d": {"L1": 60, "L1+L2": 80, "L1+L3": 80, "ASPC": 120},
        "Adroit": {"L1": 20, "L1+L2": 50, "L1+L3": 30, "ASPC": 50},
    }
    return lambda label, dataset: table[domain_of(dataset)][label]


def rising_with_quality(up: bool) -> Callable[[str], float]:
    values = {q: 0.5 * 2**i for i, q in enumerate(("expert", "medium-expert", "medium", "medium-replay"))}
    return lambda dataset: values[quality_of(dataset)] ** (1 if up else -1)  # type: ignore[index]


CASES = {
    case.claim.__name__: case
    for case in (
        Case(
            claims.beats_td3_bc,
            (ASPC, TD3_BC),
            (HOPPER, PEN, MAZE, ANT),
            by_label(ASPC=80, TD3_BC=50),
            by_label(ASPC=50, TD3_BC=80),
        ),
        Case(
            claims.beats_all_on_average,
            MAIN,
            (HOPPER, PEN, MAZE, ANT),
            by_label(ASPC=80),
            by_label(ASPC=80, ReBRAC=90),
        ),
        Case(claims.best_on_locomotion_and_mazes, MAIN, (HOPPER, MAZE), by_label(ASPC=80), by_label(ASPC=80, wPC=90)),
        Case(claims.profile_above, MAIN, (HOPPER, PEN, MAZE, ANT), by_label(ASPC=80), by_label(ASPC=40)),
        Case(claims.largest_polygon, MAIN, TASKS, by_label(ASPC=80), by_label(ASPC=80, IQL=90)),
        Case(
            claims.rises_faster,
            (ASPC, TD3_BC, WPC, A2PR),
            (HOPPER, PEN),
            by_label(ASPC=80),
            {**by_label(ASPC=60), "shape": Shape(pace=2.0)},
            {"points": 30},
        ),
        Case(
            claims.no_late_collapse,
            (ASPC,),
            (HOPPER, PEN),
            by_label(ASPC=80),
            {**by_label(ASPC=80), "shape": Shape(last=0.4)},
        ),
        Case(
            claims.one_setting_degrades,
            (
                *(Variant("ReBRAC, tuned", "rebrac", beta1=0.05), Variant("ReBRAC", "rebrac")),
                *(Variant("A2PR, tuned", "a2pr", vae_lr=1e-4), A2PR),
            ),
            (HOPPER, PEN),
            by_label(ReBRAC=40, A2PR=40),
            by_label(ReBRAC=60, A2PR=40),
        ),
        Case(
            claims.smaller_on_better_data,
            (ASPC,),
            tuple(name.replace("hopper", task) for task in WALKERS for name in LADDER),
            {"alpha": rising_with_quality(True)},
            {"alpha": rising_with_quality(False)},
        ),
        Case(
            claims.scale_by_task,
            (ASPC,),
            ("pen-expert-v1", MAZE, ANT),
            {},
            {"alpha": lambda dataset: 1.0},
            {"shape": Shape(drop=20.0)},
        ),
        Case(
            claims.drops_then_rises,
            (ASPC,),
            (HOPPER, MAZE),
            {"alpha": lambda dataset: 5.0},
            {"alpha": lambda dataset: 20.0, "shape": Shape(drop=0.0)},
            {"points": 30},
        ),
        Case(
            claims.dynamic_is_best,
            NECESSITY,
            (HOPPER, PEN),
            by_label(dynamic=80, converged=70, linear=65, naive=60),
            by_label(dynamic=80, converged=70, linear=65, naive=75),
        ),
        Case(claims.small_overhead, (ASPC, TD3_BC), (HOPPER,), {}, {"shape": Shape(overhead=0.6)}),
        Case(
            claims.interval_of_thirty,
            (ASPC, TD3_BC, Variant("k_alpha = 30", "aspc", k_alpha=30)),
            (HOPPER, PEN),
            by_label(80),
            {**by_label(80), "shape": Shape(overhead=0.9)},
        ),
        Case(
            claims.robust_critic_helps,
            (
                *(ASPC, Variant("ASPC without RC", "aspc", **WITHOUT)),
                *(WPC, Variant("wPC without RC", "wpc", critic_hidden_layers=2, critic_layer_norm=False)),
            ),
            (HOPPER, PEN),
            by_label(ASPC=80, wPC=80),
            by_label(ASPC=80, wPC=40),
        ),
        Case(claims.l1_alone_is_worst, (*LOSSES, ASPC), (HOPPER, PEN), by_label(60, L1=30), by_label(60, L1=70)),
        Case(
            claims.losses_by_domain,
            (*LOSSES, ASPC),
            (HOPPER, ANT, MAZE, PEN),
            {"score": loss_scores(80)},
            {"score": loss_scores(60)},
        ),
        Case(
            claims.l2_inside_l3_matters,
            (*FORMS, ASPC),
            (MAZE, ANT),
            by_label(80, _1_=40, _2_=45),
            by_label(80, _1_=90, _2_=45),
        ),
        Case(claims.form_five_is_form_four, (FORMS[-1], ASPC), (HOPPER, PEN), by_label(80), by_label(80, _5_=60)),
        Case(claims.l3_matters_little_on_adroit, (*FORMS, ASPC), (PEN,), by_label(80), by_label(80, _2_=60)),
        Case(
            claims.middle_start_is_best,
            (ASPC, *(Variant(f"alpha0 = {a}", "aspc", **{"base.alpha": a}) for a in (0.1, 10.0))),
            (HOPPER, ANT, PEN),
            by_label(ASPC=80),
            by_label(ASPC=40),
        ),
        Case(
            claims.middle_rate_is_best,
            (ASPC, *(Variant(f"lr = {lr}", "aspc", scale_lr=lr) for lr in (2e-2, 2e-4))),
            (HOPPER, PEN),
            by_label(ASPC=80),
            by_label(ASPC=40),
        ),
        Case(
            claims.improves_each_base,
            INTEGRATED,
            (HOPPER, CHEETAH),
            by_label(IQL_ASPC=80, CQL_ASPC=80, Diffusion_QL_ASPC=80),
            by_label(IQL_ASPC=80, CQL_ASPC=40, Diffusion_QL_ASPC=80),
        ),
        Case(
            claims.holds_on_ogbench,
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
            claims.weighting_helps_where_rewards_are_sparse,
            (ASPC, Variant("ASPC+AW", "aspc", bc="advantage_weighted")),
            (ANT, PEN),
            by_label(ASPC_AW=80),
            by_label(ASPC_AW=40),
        ),
        Case(
            claims.keeps_rising,
            (ASPC, TD3_BC),
            (CHEETAH,),
            {**by_label(50), "shape": Shape(pace=0.6, others=0.05)},
            {**by_label(50), "shape": Shape(pace=0.6, others=0.2)},  # TD3+BC is not flat
            {"points": 40},
        ),
    )
}


def of_case(case: Case, folder: Path, changes: dict[str, Any]) -> View:
    options = {"seeds": 3, "points": 10, "noise": 0.4, **case.given, **changes}
    make(folder, "own", case.variants, case.datasets, **options)
    return prepare(results.read(folder))


def check(case: Case, folder: Path, changes: dict[str, Any]) -> claims.Claim:
    return case.claim(of_case(case, folder, changes))


def test_every_claim_has_a_case() -> None:
    assert set(CASES) == {claim.__name__ for claim in claims.ALL}


@pytest.mark.parametrize("name", CASES)
def test_a_claim_that_holds_and_one_that_does_not(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    good, bad = check(case, tmp_path / "holds", case.holds), check(case, tmp_path / "fails", case.fails)
    assert good.name == bad.name == name
    assert good.verdict == HOLDS, [c for c in good.checks if c.verdict != HOLDS]
    assert bad.verdict == FAILS, bad.checks
    for one in (*good.checks, *bad.checks):
        assert one.estimate.has_interval
        assert one.methods
        assert set(one.datasets) <= set(case.datasets)


def without(view: View, **left_out: str) -> View:
    """The view less the runs that have this value in this column."""
    ((column, value),) = left_out.items()
    return replace(view, runs=view.runs[view.runs[column] != value])


@pytest.mark.parametrize("name", CASES)
def test_no_claim_holds_without_one_of_the_methods_that_it_speaks_of(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "REPETITIONS", 50)
    case = CASES[name]
    view = of_case(case, tmp_path, case.holds)
    for variant in case.variants:
        claim = case.claim(without(view, variant=variant.label))
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
        ("middle_start_is_best", "domain", "AntMaze", "runs on AntMaze"),
        ("weighting_helps_where_rewards_are_sparse", "domain", "AntMaze", "runs on AntMaze"),
        (
            "smaller_on_better_data",
            "dataset",
            "hopper-expert-v2",
            "runs of ASPC on hopper of one length on two qualities (expert and medium-expert)",
        ),
        ("smaller_on_better_data", "task", "walker2d", "runs on walker2d"),
        ("profile_above", "domain", "Adroit", "runs on Adroit"),
    ],
)
def test_no_claim_holds_without_a_place_that_it_names(
    name: str, column: str, value: str, missing: str, tmp_path: Path
) -> None:
    case = CASES[name]
    claim = case.claim(without(of_case(case, tmp_path, case.holds), **{column: value}))
    assert claim.verdict == OPEN
    part_of_an_average = name in ("beats_all_on_average", "profile_above")
    assert {check.verdict for check in claim.checks} == {OPEN if part_of_an_average else HOLDS}
    assert claim.missing == f"Missing: {missing}."


@pytest.mark.parametrize("name", ["beats_all_on_average", "beats_td3_bc", "profile_above"])
def test_an_average_is_open_while_one_of_its_domains_could_turn_it(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    view = of_case(case, tmp_path, case.fails)
    assert case.claim(view).verdict == FAILS
    claim = case.claim(without(view, domain="AntMaze"))
    assert claim.checks
    assert {check.verdict for check in claim.checks} == {OPEN}
    assert claim.verdict == OPEN


EFFECTS = [
    *("rises_faster", "dynamic_is_best", "robust_critic_helps", "l1_alone_is_worst", "form_five_is_form_four"),
    "middle_rate_is_best",
]


@pytest.mark.parametrize("name", EFFECTS)
def test_the_verdict_on_an_effect_says_which_domains_it_is_of(name: str, tmp_path: Path) -> None:
    case = CASES[name]._replace(datasets=(HOPPER, CHEETAH, MAZE, ANT, PEN))
    view = of_case(case, tmp_path, case.holds)
    everywhere, partly = case.claim(view), case.claim(without(without(view, domain="AntMaze"), domain="Adroit"))
    assert (everywhere.verdict, everywhere.where) == (HOLDS, "")
    assert (partly.verdict, partly.where) == (HOLDS, " on MuJoCo and Maze2d")
    two = case.claim(replace(view, runs=view.runs[view.runs["dataset"].isin([MAZE, PEN])]))
    assert (two.verdict, two.where) == (HOLDS, f" on {MAZE} and {PEN} only")  # their intervals cover seeds alone
    assert {check.limit for check in two.checks} == {f"{MAZE} and {PEN} only"}
    assert {check.limit for check in partly.checks} == {""}
    make(tmp_path, "plant", case.variants, ("plant.csv",), **{"seeds": 3, "points": 10, **case.given, **case.fails})
    assert case.claim(prepare(results.read(tmp_path))).checks == everywhere.checks  # own data are no part of it


def test_what_is_missing_is_said_in_words(tmp_path: Path) -> None:
    """Some baselines, one domain, one base, one start: the checks hold, but for that of an average over all domains,
    and none of these claims does."""
    start = Variant("alpha0 = 0.1", "aspc", **{"base.alpha": 0.1})
    variants = (ASPC, TD3_BC, IQL, Variant("IQL+ASPC", "iql+aspc"), start)
    scores = by_label(ASPC=80, IQL_ASPC=70)
    make(tmp_path, "own", variants, (HOPPER, CHEETAH), seeds=3, points=10, noise=0.4, **scores)
    view = prepare(results.read(tmp_path))
    expected = {
        claims.beats_all_on_average: "runs on Maze2d, AntMaze and Adroit; runs of A2PR, wPC and ReBRAC",
        claims.best_on_locomotion_and_mazes: "runs on Maze2d; runs of A2PR, wPC and ReBRAC",
        claims.improves_each_base: "runs of CQL+ASPC, CQL, Diffusion-QL+ASPC and Diffusion-QL",
        claims.middle_start_is_best: "runs on AntMaze and Adroit; runs of ASPC (alpha0 = 10)",
    }
    for make_claim, words in expected.items():
        claim, part_of_an_average = make_claim(view), make_claim is claims.beats_all_on_average
        assert {check.verdict for check in claim.checks} == {OPEN if part_of_an_average else HOLDS}
        assert (claim.verdict, claim.missing) == (OPEN, f"Missing: {words}.")


def test_a_method_may_be_missing_in_a_domain_or_have_nothing_comparable(tmp_path: Path) -> None:
    make(tmp_path, "own", MAIN, (HOPPER, MAZE), seeds=2, points=5)
    view = prepare(results.read(tmp_path))
    gone = view.runs["algo"].isin(["iql", "wpc"]) & (view.runs["domain"] == "Maze2d")
    fewer = replace(view, runs=view.runs[~gone])
    assert claims.best_on_locomotion_and_mazes(fewer).missing == "Missing: runs of IQL and wPC on Maze2d."
    shorter = view.runs["steps"].where(view.runs["algo"] == "aspc", 1000)
    claim = claims.beats_td3_bc(replace(view, runs=view.runs.assign(steps=shorter)))
    assert claim.missing == (
        "Missing: runs on AntMaze and Adroit; "
        "runs of ASPC and TD3+BC on MuJoCo that can be compared (same dataset, same number of steps, a score); "
        "runs of ASPC and TD3+BC on Maze2d that can be compared (same dataset, same number of steps, a score)."
    )


def test_a_check_that_fails_decides_whatever_is_missing(tmp_path: Path) -> None:
    case = CASES["beats_all_on_average"]
    claim = case.claim(without(of_case(case, tmp_path, case.fails), variant="A2PR"))
    assert claim.verdict == FAILS
    assert claim.missing == "Missing: runs of A2PR."


def test_a_searched_variant_gives_no_claim_its_numbers(tmp_path: Path) -> None:
    """Longer, better and slower than plain ASPC, it changes neither the score nor the time that the claims are of."""
    both, score = (ASPC, TD3_BC), by_label(ASPC=80, wider=99)
    for steps in (300_000, 1_000_000):
        make(
            tmp_path, "own", both if steps == 300_000 else (TD3_BC,), [HOPPER], seeds=3, points=5, steps=steps, **score
        )
    alone = prepare(results.read(tmp_path))
    slow = Variant("wider", "aspc", batch_size=1024)
    make(tmp_path, "search", [slow], [HOPPER], seeds=3, points=5, shape=Shape(overhead=3.0), **score)
    beside = prepare(results.read(tmp_path))
    for claim in (claims.beats_td3_bc, claims.small_overhead):
        assert claim(alone).checks
        assert claim(alone).checks == claim(beside).checks


def test_only_runs_that_trained_alone_are_timed(tmp_path: Path) -> None:
    make(tmp_path, "own", (ASPC, TD3_BC), [HOPPER], seeds=2, points=5)
    view = prepare(results.read(tmp_path))
    together = replace(view, runs=view.runs.assign(runs_together=2))
    assert claims.small_overhead(view).checks
    assert claims.small_overhead(together).checks == ()
    assert "timed alone on the same dataset" in claims.small_overhead(together).missing


def test_a_step_is_timed_on_one_machine(tmp_path: Path) -> None:
    """Every processor's device is called the same."""
    make(tmp_path, "own", (ASPC, TD3_BC), [HOPPER], seeds=2, points=5)
    view = prepare(results.read(tmp_path))
    server = view.runs["machine"].where(view.runs["algo"] == "aspc", "a server with 64 cores")
    assert claims.small_overhead(replace(view, runs=view.runs.assign(machine=server))).checks == ()


def test_a_run_that_is_much_faster_does_not_take_as_long(tmp_path: Path) -> None:
    case = CASES["interval_of_thirty"]
    timed = check(case, tmp_path, {**case.holds, "shape": Shape(overhead=-0.5)}).checks[0]
    assert timed.estimate.value < -SAME_RUNTIME
    assert timed.verdict == FAILS


def test_without_the_runs_nothing_is_decided(tmp_path: Path) -> None:
    make(tmp_path, "own", [Variant("mine", "my_own")], ["my-data"], seeds=2, points=5)
    for claim in claims.check_all(prepare(results.read(tmp_path))):
        assert claim.verdict == OPEN
        assert claim.checks == ()
        assert claim.missing.startswith("Missing: runs of ")


@pytest.mark.parametrize("name", ["beats_td3_bc", "smaller_on_better_data", "small_overhead", "profile_above"])
def test_one_seed_decides_nothing(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    claim = check(case._replace(given={**case.given, "seeds": 1}), tmp_path, case.holds)
    assert claim.checks
    assert claim.verdict == OPEN
    assert not any(c.estimate.has_interval for c in claim.checks)


def test_runs_of_another_length_are_not_compared(tmp_path: Path) -> None:
    make(tmp_path, "long", [ASPC], [HOPPER], seeds=2, points=5, score=lambda label, dataset: 90)
    make(tmp_path, "short", [TD3_BC], [HOPPER], seeds=2, points=5, score=lambda label, dataset: 50, steps=1000)
    assert claims.beats_td3_bc(prepare(results.read(tmp_path))).checks == ()
    make(tmp_path, "short_too", [ASPC], [HOPPER], seeds=2, points=5, score=lambda label, dataset: 40, steps=1000)
    (difference, _) = claims.beats_td3_bc(prepare(results.read(tmp_path))).checks
    assert difference.estimate.value == pytest.approx(-10, abs=4)


def test_the_polygon_is_of_scores(tmp_path: Path) -> None:
    case = CASES["largest_polygon"]
    view = of_case(case, tmp_path, case.holds)
    assert HOPPER in case.datasets
    other, options = "hopper-expert", {"seeds": 3, "points": 10, "noise": 0.4, **case.given}
    make(tmp_path, "returns", MAIN, [other], **options, **case.fails, measure="return")
    claim = case.claim(prepare(results.read(tmp_path)))
    assert claim.checks == case.claim(view).checks


def test_the_polygon_is_of_runs_of_one_length(tmp_path: Path) -> None:
    case = CASES["largest_polygon"]
    make(tmp_path, "long", [ASPC], case.datasets, seeds=2, points=5, score=lambda *_: 90)
    rivals = [variant for variant in MAIN if variant.algo != "aspc"]
    make(tmp_path, "short", rivals, case.datasets, seeds=2, points=5, score=lambda *_: 50, steps=1000)
    claim = case.claim(prepare(results.read(tmp_path)))
    assert claim.checks == ()
    assert "the same number of steps" in claim.missing


@pytest.mark.parametrize("name", ["rises_faster", "one_setting_degrades"])
def test_returns_are_not_averaged_with_scores(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    view = of_case(case, tmp_path, case.holds)
    assert case.claim(view).verdict == HOLDS
    worse = {**case.fails, "measure": "return"}
    options = {"seeds": 3, "points": 10, "noise": 0.4, **case.given, **worse}
    make(tmp_path, "plant", case.variants, ("plant.csv",), **options)
    assert case.claim(prepare(results.read(tmp_path))).checks == case.claim(view).checks


def test_tuned_runs_of_another_length_are_not_compared(tmp_path: Path) -> None:
    for variant, steps in ((Variant("ReBRAC", "rebrac"), 1000), (Variant("tuned", "rebrac", beta1=0.05), 1_000_000)):
        make(tmp_path, "own", [variant], [HOPPER], seeds=2, points=5, steps=steps)
    assert claims.one_setting_degrades(prepare(results.read(tmp_path))).checks == ()


def test_alpha_is_compared_after_runs_of_one_length_only(tmp_path: Path) -> None:
    for name, steps in zip(LADDER, (1000, 1000, 1000, 1_000_000), strict=True):
        make(tmp_path, "own", [ASPC], [name], seeds=2, points=5, steps=steps)
    assert claims.smaller_on_better_data(prepare(results.read(tmp_path))).checks == ()
    make(tmp_path, "own", [ASPC], LADDER[2:3], seeds=2, points=5)
    (one,) = claims.smaller_on_better_data(prepare(results.read(tmp_path))).checks
    assert one.datasets == (LADDER[2], LADDER[3])


def test_where_alpha_ends_is_asked_of_runs_as_long_as_the_papers(tmp_path: Path) -> None:
    make(tmp_path, "own", [ASPC], [MAZE], seeds=2, points=5, steps=300_000)
    claim = claims.scale_by_task(prepare(results.read(tmp_path)))
    assert claim.checks == ()
    assert "after a million steps" in claim.missing


def test_hands_are_experts_where_alpha_is_asked_for(tmp_path: Path) -> None:
    """As the suite of Figure 4 reads it: humans' data have another alpha."""
    for name, alpha in (("pen-expert-v1", 0.1), ("pen-human-v1", 3.0)):
        make(tmp_path, "own", [ASPC], [name], seeds=2, points=5, alpha=lambda _, alpha=alpha: alpha)
    (one,) = claims.scale_by_task(prepare(results.read(tmp_path))).checks
    assert one.datasets == ("pen-expert-v1",)


def test_what_is_late_in_a_short_run_says_nothing_of_a_late_collapse(tmp_path: Path) -> None:
    make(tmp_path, "own", [ASPC], [HOPPER], seeds=3, points=5, steps=600)
    claim = claims.no_late_collapse(prepare(results.read(tmp_path)))
    assert claim.checks == ()
    assert "a million steps long" in claim.missing
    make(tmp_path, "own", [ASPC], [HOPPER], seeds=3, points=5)
    assert claims.no_late_collapse(prepare(results.read(tmp_path))).where == f" on {HOPPER} only"
    make(tmp_path, "own", [ASPC], LADDER, seeds=3, points=5)
    assert claims.no_late_collapse(prepare(results.read(tmp_path))).where == " on MuJoCo"


def test_figures_about_d4rl_are_not_judged_on_other_data(tmp_path: Path) -> None:
    case = CASES["drops_then_rises"]
    view = of_case(case, tmp_path, case.holds)
    make(tmp_path, "own", (ASPC,), (OGBENCH,), seeds=3, **case.given, **case.fails)
    assert case.claim(prepare(results.read(tmp_path))).checks == case.claim(view).checks


def test_a2pr_is_compared_with_one_setting_as_in_the_paper(tmp_path: Path) -> None:
    """Its authors' settings for some datasets are there for Figure 1b. ReBRAC's stand for it in the paper."""
    tuned_rebrac = Variant("ReBRAC, tuned", "rebrac", beta1=0.05)
    for tuned, plain in ((Variant("A2PR, tuned", "a2pr", vae_lr=1e-4), A2PR), (tuned_rebrac, Variant("R", "rebrac"))):
        make(tmp_path, "own", [plain], [HOPPER], seeds=2, points=5, score=lambda *_: 40.0)
        make(tmp_path, "own", [tuned], [HOPPER], seeds=2, points=5, score=lambda *_: 80.0)
    view = prepare(results.read(tmp_path))
    assert view.of(method("a2pr"))["last"].mean() == pytest.approx(40, abs=5)
    assert view.of(method("rebrac"))["last"].mean() == pytest.approx(80, abs=5)


def test_profiles_are_compared_where_they_can_differ() -> None:
    """Where every run, or none, is above a threshold with both, that says nothing: 96 against 102 is below, at the
    thresholds between the two."""
    low_high = np.stack([np.full((2, 3), 96.0), np.full((2, 3), 102.0)], axis=-1)
    assert float(claims.share_above(low_high)) == 0
    assert float(claims.share_above(low_high[..., ::-1])) == 1
    assert np.isnan(claims.share_above(low_high[..., [0, 0]]))


def test_a_gain_on_one_dataset_of_many_is_no_gain_on_average(tmp_path: Path) -> None:
    """Seeds agree, so that over them the average is sure to be higher; over datasets it is not."""
    gains = dict(zip((*LADDER, MAZE, ANT, PEN), (60.0, -2.0, -2.0, -2.0, -2.0, -2.0, -2.0), strict=True))
    score = lambda label, dataset: 50 + (gains[dataset] if label == "ASPC" else 0)  # noqa: E731
    make(tmp_path, "own", [ASPC, TD3_BC], gains, seeds=4, points=5, score=score, noise=0.2)
    claim = claims.beats_td3_bc(prepare(results.read(tmp_path)))
    assert claim.checks[0].estimate.value == pytest.approx(48 / 7, abs=0.2)
    assert claim.checks[0].estimate.low < 0 < claim.checks[0].estimate.high
    assert "median of the datasets' differences -2.0" in claim.checks[0].what
    assert claim.verdict == OPEN


def test_the_polygon_is_resampled_within_tasks() -> None:
    """By hand: with seeds that agree, the interval is over the datasets of the one task that has two."""
    ours = {MAZE: np.full(2, 2.0), ANT: np.full(2, 2.0), LADDER[0]: np.full(2, 4.0), LADDER[1]: np.full(2, 0.0)}
    rival = {name: np.full(3, 1.0) for name in ours}
    found = claims.lead_in_area(ours, [rival], ("hopper", "maze2d", "antmaze"))
    # hopper: 2 against 1, drawn as 4, 2 (both of these lead) or 0 against 1 (one of three corners is lost)
    assert found == (1.0, pytest.approx(1 / 3), 1.0)
    few = claims.lead_in_area({n: x[:1] for n, x in ours.items()}, [rival], ("hopper", "maze2d", "antmaze"))
    assert not few.has_interval


def test_a_claim_on_average_weighs_datasets_alike(tmp_path: Path) -> None:
    """The same difference on each dataset, but for one dataset with many more seeds."""
    gap = {HOPPER: 30.0, PEN: 0.0}
    score = lambda label, dataset: 50 + (gap[dataset] if label == "ASPC" else 0)  # noqa: E731
    make(tmp_path, "many", [ASPC, TD3_BC], [HOPPER], seeds=9, points=5, score=score, noise=0.1)
    make(tmp_path, "few", [ASPC, TD3_BC], [PEN], seeds=2, points=5, score=score, noise=0.1)
    (difference, _) = claims.beats_td3_bc(prepare(results.read(tmp_path))).checks
    assert difference.estimate.value == pytest.approx(15, abs=0.3)


@pytest.mark.parametrize(
    ("low", "high", "least", "inside"),
    [(1, 2, HOLDS, HOLDS), (-2, -1, FAILS, HOLDS), (-1, 1, OPEN, HOLDS), (4, 7, HOLDS, OPEN), (6, 7, HOLDS, FAILS)],
)
def test_verdicts(low: float, high: float, least: str, inside: str) -> None:
    estimate = Estimate((low + high) / 2, low, high)
    assert claims.at_least().verdict(estimate) == least
    assert claims.at_most().verdict(estimate.times(-1)) == least
    assert claims.Claimed(-5, 5).verdict(estimate) == inside


def test_no_difference_at_all_decides_nothing() -> None:
    nothing = statistics.difference({ANT: np.zeros(4)}, {ANT: np.zeros(4)})
    assert nothing.has_interval
    assert claims.at_least().verdict(nothing) == claims.at_most().verdict(nothing) == OPEN


def test_no_interval_no_verdict() -> None:
    for alone in (statistics.mean([3.0]), statistics.mean([3.0, 3.1])):  # nor from two seeds of a dataset
        for claimed in (claims.at_least(), claims.at_most(), claims.Claimed(0, 9)):
            assert claimed.verdict(alone) == OPEN


# -- the paper's own numbers ---------------------------------------------------------------------------------


def test_a_claim_that_the_papers_own_table_does_not_show_says_so() -> None:
    """Whatever our runs are. By hand: the shares of the 39 printed means above each threshold."""
    found = {claim.name: claim for claim in claims.check_all(paper_results.view_of("necessity"))}
    assert [name for name, claim in found.items() if claim.not_in_paper] == ["profile_above"]
    numbers, rows = tables()["main_table"].numbers, tables()["main_table"].rows
    aspc, rebrac = (
        np.mean([[numbers[row, label].mean > t for t in np.linspace(0, 150, 61)] for row in rows], axis=0)
        for label in ("ASPC", "ReBRAC")
    )
    share = 100 * np.mean((aspc >= rebrac)[np.maximum(aspc, rebrac) > 0])
    assert share == pytest.approx(72.1, abs=0.1)
    said = found["profile_above"].not_in_paper
    assert said.startswith("The paper's own Table 1 does not show this. By the mean that it prints for each dataset")
    assert said.endswith(f"where ASPC's profile is at or above ReBRAC's: {share:.1f} % of thresholds.")


def test_it_is_said_of_any_claim_whose_table_has_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here of domains, in the table of L3's forms; claims on other tables, or on figures, are left as they are."""
    table = tables()["l3_forms"]
    worse = {key: n._replace(mean=n.mean / 2 if key[1] == "(5)" else n.mean) for key, n in table.numbers.items()}
    monkeypatch.setattr(paper_results, "tables", lambda: {**tables(), "l3_forms": table._replace(numbers=worse)})
    for cached in (paper_results.view_of, claims.not_in_paper):
        monkeypatch.setattr(sys.modules[cached.__module__], cached.__name__, cached.__wrapped__)
    said = {claim.name: claim.not_in_paper for claim in claims.check_all(paper_results.view_of("necessity"))}
    changed = {"form_five_is_form_four", "l3_matters_little_on_adroit", "l2_inside_l3_matters"}
    assert {name for name, text in said.items() if text} == {"profile_above", *changed}
    assert said["form_five_is_form_four"] == (
        "The paper's own Table 13, appendix E.2 does not show this. By the mean that it prints for each domain, in the "
        "place of runs, 1 of 1 checks does not hold: ASPC, L3 form 5 against ASPC: -50.0 %."
    )


@pytest.mark.parametrize("name", tables())
def test_a_table_of_the_paper_as_runs_has_its_averages(name: str) -> None:
    """Domains weigh as their datasets; methods are those that the claims ask for."""
    table, view = tables()[name], paper_results.view_of(name)
    for place, label in table.averages:
        runs = view.runs[(view.runs["variant"] == label) & ((view.runs["domain"] == place) | (place not in D4RL))]
        assert runs["last"].mean() == pytest.approx(table.recomputed(place, label))
    assert {"ASPC"} <= set(view.runs["method"]) or name == "integrations"


def test_datasets_that_no_benchmark_has_are_not_judged(tmp_path: Path) -> None:
    """Maze2d without action noise is this project's: the paper's claims say nothing about it."""
    mazes = ("maze2d-umaze", "maze2d-medium", "maze2d-large")
    names = (*mazes, *(f"{name}-clean" for name in mazes))
    pair = [Variant("ASPC", "aspc"), Variant("TD3+BC", "td3_bc")]
    make(tmp_path, "maze2d_recipe", pair, names, seeds=3, points=5)
    view = prepare(results.read(tmp_path))
    for claim in (claims.beats_td3_bc(view), claims.best_on_locomotion_and_mazes(view), claims.scale_by_task(view)):
        assert {name for check in claim.checks for name in check.datasets} == set(mazes)
