"""Results for each claim of the paper: options with which it holds, and with which it fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from synthetic import MAIN, NECESSITY, Shape, Variant, make, read_view

from aspc.lab.paper_tables import domain_of
from aspc.lab.report.claims import ablations, benchmark, generality, learned_scale, runtime, vocabulary
from aspc.lab.report.datasets import LOCOMOTION, quality_of
from aspc.lab.report.view import View

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
MAZES = tuple(f"maze2d-{size}-v1" for size in ("umaze", "medium", "large"))
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
            benchmark.narrow_bands,
            (ASPC, TD3_BC, WPC, A2PR),
            (HOPPER, PEN),
            {"shape": Shape(wobble=0.2)},
            {"shape": Shape(wobble=5.0)},
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
            learned_scale.distinct_by_task,
            (ASPC,),
            (*LADDER[:3], *MAZES),
            {"alpha": lambda dataset: 50.0 if dataset in MAZES else 5.0},
            {"alpha": lambda dataset: 10.0 ** ((*LADDER[:3], *MAZES).index(dataset) % 3)},
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
            runtime.short_interval_is_harmless,
            (ASPC, *(Variant(f"k_alpha = {k}", "aspc", k_alpha=k) for k in (1, 5))),
            (HOPPER, PEN),
            by_label(80, k_alpha___5=90),
            by_label(80, k_alpha___1=60),
        ),
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
            (ASPC, Variant("ASPC+AW", "aspc_aw")),
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
    return read_view(folder)


def check_case(case: Case, folder: Path, changes: dict[str, Any]) -> vocabulary.Claim:
    return case.claim(case_view(case, folder, changes))


def drop_runs(view: View, **dropped: str) -> View:
    """Drop the runs with a value in a column."""
    ((column, value),) = dropped.items()
    return replace(view, runs=view.runs[view.runs[column] != value])
