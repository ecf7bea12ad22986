"""Each claim on results where it holds, where it does not, and where data are missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyarrow", reason="the extra [report] is not installed")
pytest.importorskip("rliable", reason="the extra [report] is not installed")

from synthetic import MAIN, NECESSITY, Shape, Variant, make

from aspc.experiments import results
from aspc.presets.paper_tables import domain_of
from aspc.report import claims, stats
from aspc.report.claims import FAILS, HOLDS, OPEN
from aspc.report.stats import Estimate
from aspc.report.view import View, prepare, quality_of

ASPC, TD3_BC = Variant("ASPC", "aspc"), Variant("TD3+BC", "td3_bc")
HOPPER, PEN, MAZE, ANT = "hopper-medium-v2", "pen-human-v1", "maze2d-umaze-v1", "antmaze-umaze-v2"
OGBENCH = "antmaze-large-navigate-singletask-task1-v0"
CHEETAH = "halfcheetah-medium-v2"
LADDER = tuple(f"hopper-{quality}-v2" for quality in ("expert", "medium-expert", "medium", "medium-replay"))
LOSSES = tuple(Variant(terms, "aspc", outer_loss=terms) for terms in ("L1", "L1+L2", "L1+L3"))
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
    return {"score": lambda label, dataset: scores.get(label.translate(str.maketrans("+ ()=.,", "_______")), default)}


def loss_scores(l2_on_mujoco: float) -> Callable[[str, str], float]:
    table = {
        "MuJoCo": {"L1": 40, "L1+L2": l2_on_mujoco, "L1+L3": 45, "ASPC": 80},
        "AntMaze": {"L1": 30, "L1+L2": 31, "L1+L3": 70, "ASPC": 70},
        "Maze2d": {"L1": 60, "L1+L2": 80, "L1+L3": 80, "ASPC": 120},
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
            (HOPPER, PEN),
            by_label(ASPC=80, TD3_BC=50),
            by_label(ASPC=50, TD3_BC=80),
        ),
        Case(claims.beats_all_on_average, MAIN, (HOPPER, PEN), by_label(ASPC=80), by_label(ASPC=80, ReBRAC=90)),
        Case(claims.best_on_locomotion_and_mazes, MAIN, (HOPPER, MAZE), by_label(ASPC=80), by_label(ASPC=80, wPC=90)),
        Case(claims.profile_above, MAIN, (HOPPER, PEN, MAZE), by_label(ASPC=80), by_label(ASPC=40)),
        Case(claims.largest_polygon, MAIN, (HOPPER, PEN, MAZE), by_label(ASPC=80), by_label(ASPC=80, IQL=90)),
        Case(
            claims.rises_faster,
            (ASPC, TD3_BC),
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
            (Variant("ReBRAC, tuned", "rebrac", beta1=0.05), Variant("ReBRAC", "rebrac")),
            (HOPPER, PEN),
            by_label(ReBRAC=40),
            by_label(ReBRAC=60),
        ),
        Case(
            claims.smaller_on_better_data,
            (ASPC,),
            LADDER,
            {"alpha": rising_with_quality(True)},
            {"alpha": rising_with_quality(False)},
        ),
        Case(
            claims.scale_by_task,
            (ASPC,),
            (PEN, MAZE, ANT),
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
            (ASPC, Variant("ASPC without RC", "aspc", **WITHOUT)),
            (HOPPER, PEN),
            by_label(ASPC=80),
            by_label(ASPC=40),
        ),
        Case(claims.l1_alone_is_worst, (*LOSSES, ASPC), (HOPPER, PEN), by_label(60, L1=30), by_label(60, L1=70)),
        Case(
            claims.losses_by_domain,
            (*LOSSES, ASPC),
            (HOPPER, ANT, MAZE),
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
        Case(claims.form_five_is_form_four, (*FORMS, ASPC), (HOPPER, PEN), by_label(80), by_label(80, _5_=60)),
        Case(claims.l3_matters_little_on_adroit, (*FORMS, ASPC), (PEN,), by_label(80), by_label(80, _2_=60)),
        Case(
            claims.middle_start_is_best,
            (ASPC, *(Variant(f"alpha0 = {a}", "aspc", **{"base.alpha": a}) for a in (0.1, 10.0))),
            (HOPPER, PEN),
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
            (Variant("CQL", "cql", cql_alpha=5.0), Variant("CQL+ASPC", "cql+aspc")),
            (HOPPER, CHEETAH),
            by_label(CQL_ASPC=80),
            by_label(CQL_ASPC=40),
        ),
        Case(
            claims.holds_on_ogbench,
            (ASPC, TD3_BC, Variant("FQL", "fql", alpha=3.0), Variant("FQL+ASPC", "fql+aspc", **{"base.alpha": 3.0})),
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
            {**by_label(50), "shape": Shape(pace=0.6)},
            {**by_label(50), "shape": Shape(rise=-0.3)},
            {"points": 40},
        ),
    )
}


def check(case: Case, folder: Path, changes: dict[str, Any]) -> claims.Claim:
    options = {"seeds": 3, "points": 10, "noise": 0.4, **case.given, **changes}
    make(folder, "own", case.variants, case.datasets, **options)
    return case.claim(prepare(results.read(folder)))


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


def test_without_the_runs_nothing_is_decided(tmp_path: Path) -> None:
    make(tmp_path, "own", [Variant("mine", "my_own")], ["my-data"], seeds=2, points=5)
    for claim in claims.check_all(prepare(results.read(tmp_path))):
        assert claim.verdict == OPEN
        assert claim.checks == ()


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
    assert claims.at_least(estimate) == least
    assert claims.at_most(estimate.times(-1)) == least
    assert claims.within(estimate, -5, 5) == inside


def test_no_interval_no_verdict() -> None:
    alone = stats.mean([3.0])
    assert claims.at_least(alone) == claims.at_most(alone) == claims.within(alone, 0, 9) == OPEN
