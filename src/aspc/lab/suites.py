"""Every table and figure of the paper as a declared set of runs; and the suites of this project.

A suite is a list of blocks, a block is variants × datasets × seeds. A run is named by what it is, not by the suite that
asks for it (`aspc.lab.plan`), so suites that look at the same runs share them. `register` adds one of your own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from aspc import tasks
from aspc.algorithms import BCTerm
from aspc.errors import AspcError, unknown_name
from aspc.training.run_config import TrainOptions


@dataclass(frozen=True)
class Variant:
    """One column of a table: an algorithm with settings, under the label that is shown."""

    label: str
    algo: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Hyper-parameters that differ from the algorithm's defaults (and from the preset)."""
    preset: str | None = None
    """Per-dataset settings (`aspc.presets`)."""
    bc: BCTerm = "plain"
    scale_of: Variant | None = None
    """The run's `scale_target` is the final scale of this variant's run on the same dataset with the same seed."""


@dataclass(frozen=True)
class Block:
    """Variants on datasets. `options` are fields of `TrainOptions`; `alone` runs are timed, so they share no device."""

    variants: tuple[Variant, ...]
    datasets: tuple[str, ...]
    steps: int = 1_000_000
    seeds: int = 4
    options: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = False

    def __post_init__(self) -> None:
        """Refuse the slips that are easy to make in a suite of one's own."""
        for name, items, kind in (("variants", self.variants, Variant), ("datasets", self.datasets, str)):
            if not isinstance(items, tuple | list) or not all(isinstance(item, kind) for item in items):
                raise AspcError(f"A block's {name} are a tuple, with a comma even behind a single one; not {items!r}.")
        for name in ("steps", "seeds"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise AspcError(f"A block's {name} are a whole number of at least 1, not {value!r}.")
        known = {field.name for field in dataclasses.fields(TrainOptions)}
        for name in self.options:
            if name not in known:
                raise unknown_name("option of a block", name, known)


@dataclass(frozen=True)
class Suite:
    """A declared set of runs: `source` is the part of the paper it reproduces, `note` says what that leaves open."""

    name: str
    title: str
    source: str
    blocks: tuple[Block, ...] = ()
    note: str = ""
    parts: tuple[str, ...] = ()
    """Other suites, in order, if this one is made of them."""
    every_file: bool = False
    """The datasets are all files of the folder that is given with --data."""

    def __post_init__(self) -> None:
        labelled: dict[tuple[str, str], Variant] = {}
        for block in self.blocks:
            for variant, dataset in product(block.variants, block.datasets or ("",)):
                if labelled.setdefault((variant.label, dataset), variant) != variant:
                    raise AspcError(
                        f"In the suite {self.name} two variants have the label {variant.label!r}; give each its own."
                    )


_SUITES: dict[str, Suite] = {}


def register(suite: Suite) -> Suite:
    """Make a suite available as `aspc bench NAME`."""
    if suite.name in _SUITES:
        raise AspcError(f"A suite named {suite.name!r} is already registered; choose another name.")
    _SUITES[suite.name] = suite
    return suite


def names() -> list[str]:
    """All suites, in the paper's order."""
    return list(_SUITES)


def get(name: str) -> Suite:
    if name not in _SUITES:
        raise unknown_name("suite", name, _SUITES)
    return _SUITES[name]


def expanded(wanted: Iterable[str]) -> list[Suite]:
    """The suites that have runs of their own, in order, each once."""
    found: dict[str, Suite] = {}
    for name in wanted:
        suite = get(name)
        for part in expanded(suite.parts) if suite.parts else [suite]:
            found.setdefault(part.name, part)
    return list(found.values())


# ── datasets ────────────────────────────────────────────────────────────────────────────────────────────────────────

D4RL = tuple(tasks.datasets())
QUALITIES = ("random", "medium", "expert", "medium-expert", "medium-replay", "full-replay")
WALKERS = ("halfcheetah", "hopper", "walker2d")
HANDS = ("pen", "door", "hammer", "relocate")
MAZES = ("maze2d-umaze", "maze2d-medium", "maze2d-large")
CLEAN_MAZES = tuple(f"{name}-clean" for name in MAZES)


def of_tasks(tasks: Iterable[str], qualities: Iterable[str], version: str = "") -> tuple[str, ...]:
    return tuple(f"{task}-{quality}{version}" for task in tasks for quality in qualities)


ANTMAZE = tuple(name for name in D4RL if name.startswith("antmaze"))
ADROIT = of_tasks(HANDS, ("human", "cloned", "expert"), "-v1")
NINE = ("medium", "medium-expert", "medium-replay")  # the nine locomotion datasets that papers compare on
OGBENCH = tuple(
    f"antmaze-{size}-navigate-singletask-task{task}-v0" for size in ("large", "giant") for task in range(1, 6)
)

# ── variants ────────────────────────────────────────────────────────────────────────────────────────────────────────

TD3_BC = Variant("TD3+BC", "td3_bc")
A2PR = Variant("A2PR", "a2pr")
IQL = Variant("IQL", "iql", preset="paper")
WPC = Variant("wPC", "wpc")
REBRAC = Variant("ReBRAC", "rebrac", preset="paper")
ASPC = Variant("ASPC", "aspc")
ORIGINAL_CRITIC = {"critic_hidden_layers": 2, "critic_layer_norm": False}
K_ALPHAS = (1, 5, 10, 20, 30)


def relabelled(label: str, variant: Variant) -> Variant:
    """The same runs under another label."""
    return replace(variant, label=label)


def aspc_with(label: str, **settings: Any) -> Variant:
    return Variant(label, "aspc", settings)


# Table 2: alpha fixed at 2.5, fixed where ASPC ended, on a line to there, and learned.
NECESSITY = (
    relabelled("naive", TD3_BC),
    Variant("converged", "aspc", {"scale_mode": "converged"}, scale_of=ASPC),
    Variant("linear", "aspc", {"scale_mode": "linear"}, scale_of=ASPC),
    relabelled("dynamic", ASPC),
)
# Settings that are the defaults resolve to the very run of plain ASPC.
LOSSES = tuple(aspc_with(loss, outer_loss=loss) for loss in ("L1", "L1+L2", "L1+L3", "L1+L2+L3"))
L3_FORMS = tuple(aspc_with(f"({form})", l3_form=form) for form in range(1, 6))
K_ALPHA = tuple(aspc_with(f"k_alpha = {k}", k_alpha=k) for k in K_ALPHAS)
ROBUST_CRITIC = tuple(
    Variant(f"{v.label} {text} RC", v.algo, settings)
    for v in (TD3_BC, WPC, ASPC)
    for text, settings in (("without", ORIGINAL_CRITIC), ("with", {}))
)


def with_and_without_aspc(label: str, algo: str, preset: str | None) -> tuple[Variant, Variant]:
    return Variant(label, algo, preset=preset), Variant(f"{label}+ASPC", f"{algo}+aspc", preset=preset)


INTEGRATIONS = (
    *with_and_without_aspc("IQL", "iql", "paper"),
    *with_and_without_aspc("CQL", "cql", "corl"),
    *with_and_without_aspc("Diffusion-QL", "diffusion_ql", "authors"),
)

# ── the paper ───────────────────────────────────────────────────────────────────────────────────────────────────────


def of_the_paper(name: str, title: str, source: str, *blocks: Block, note: str = "") -> None:
    register(Suite(name, title, source, blocks, note))


of_the_paper(
    "main_table",
    "39 datasets, six algorithms",
    "Table 1, figure 2",
    Block((TD3_BC, A2PR, IQL, WPC, REBRAC, ASPC), D4RL),
)
of_the_paper(
    "one_setting",
    "ReBRAC and A2PR: one setting for all datasets against settings for each",
    "Figure 1b",
    Block(
        (Variant("ReBRAC, tuned", "rebrac", preset="paper"), Variant("ReBRAC, one setting", "rebrac")),
        (*of_tasks(WALKERS, ("random", *NINE), "-v2"), *ANTMAZE),
    ),
    Block(
        (Variant("A2PR, tuned", "a2pr", preset="authors"), Variant("A2PR, one setting", "a2pr")),
        ("hopper-random-v2", *of_tasks(WALKERS, ("medium",), "-v2")),
    ),
    note="The paper does not print its single settings: here they are the defaults, so batch size, discount, networks "
    "and rewards differ too where the tuned ones have others. A2PR's authors published settings for four datasets.",
)
of_the_paper(
    "alpha_by_quality",
    "how alpha moves, by the quality of the data",
    "Figure 3",
    Block((ASPC,), of_tasks(WALKERS, ("expert", "medium-expert", "medium", "medium-replay"), "-v2")),
)
of_the_paper(
    "alpha_by_task",
    "how alpha moves on six tasks",
    "Figure 4",
    Block((ASPC,), (*of_tasks(HANDS, ("expert",), "-v1"), "antmaze-large-play-v2", "maze2d-large-v1")),
    note="The paper names the tasks, not the datasets: expert hands and the large mazes are our reading.",
)
of_the_paper(
    "necessity",
    "alpha naive, converged, linear and dynamic",
    "Table 2",
    Block(NECESSITY, D4RL),
)
of_the_paper(
    "runtime",
    "seconds of a million steps, by algorithm",
    "Figure 5a",
    Block(
        (ASPC, TD3_BC, Variant("CQL", "cql", preset="corl"), IQL, WPC, A2PR),
        ("halfcheetah-medium-v2",),
        options={"eval_every": 1_000_000},
        alone=True,
    ),
)
of_the_paper(
    "k_alpha",
    "score by the update interval of alpha",
    "Figure 5b, score",
    Block(K_ALPHA, of_tasks(WALKERS, NINE, "-v2")),
    note="The figure's intervals (but 10 and 30) and datasets are not printed: 1 to 30 and nine datasets are ours.",
)
of_the_paper(
    "k_alpha_runtime",
    "seconds of a million steps, by the update interval of alpha",
    "Figure 5b, time",
    Block((*K_ALPHA, TD3_BC), ("halfcheetah-medium-v2",), options={"eval_every": 1_000_000}, alone=True),
)
of_the_paper(
    "robust_critic",
    "TD3+BC, wPC and ASPC without and with the robust critic",
    "Figure 6a",
    Block(ROBUST_CRITIC, D4RL),
)
of_the_paper("losses", "which terms of the outer loss", "Figure 6b", Block(LOSSES, D4RL))
of_the_paper(
    "integrations",
    "IQL, CQL and Diffusion-QL without and with ASPC",
    "Table 3",
    Block(INTEGRATIONS, of_tasks(WALKERS, NINE, "-v2")),
    note="With and without ASPC share the public per-dataset settings, so that they differ in the scale alone.",
)
of_the_paper(
    "ogbench",
    "ten tasks of OGBench, six algorithms",
    "Table 4",
    Block(
        (
            TD3_BC,
            Variant("IQL", "iql"),
            Variant("ReBRAC", "rebrac", preset="authors"),
            ASPC,
            *with_and_without_aspc("FQL", "fql", "authors"),
        ),
        OGBENCH,
        options={"eval_every": 50_000, "eval_episodes": 50},
    ),
    note="50 episodes every 50,000 steps, OGBench's own protocol; the paper does not say. ReBRAC and FQL, with and "
    "without ASPC, have their authors' settings for each environment (a longer discount in giant mazes, say), the "
    "others one.",
)
of_the_paper("alpha_curves", "how alpha moves on all 39 datasets", "Figure 7, appendix C", Block((ASPC,), D4RL))
of_the_paper(
    "performance_curves",
    "scores over steps on all 39 datasets",
    "Figure 8, appendix C",
    Block((TD3_BC, WPC, A2PR, ASPC), D4RL),
    note="The figure has four algorithms: those that the authors ran themselves.",
)
of_the_paper(
    "aspc_aw",
    "ASPC with advantage-weighted BC on AntMaze and Adroit",
    "Figure 9, appendix E.1",
    Block((ASPC, Variant("ASPC+AW", "aspc", bc="advantage_weighted")), (*ANTMAZE, *ADROIT)),
)
of_the_paper("l3_forms", "five forms of L3", "Table 13, appendix E.2", Block(L3_FORMS, D4RL))
of_the_paper(
    "case_study",
    "Q, BC loss and score over steps",
    "Figure 10, appendix E.3",
    Block((ASPC, TD3_BC), ("halfcheetah-medium-v2",)),
)
of_the_paper(
    "alpha0",
    "initial alpha 0.1, 2.5 and 10",
    "Figure 11, appendix F.1",
    Block(tuple(aspc_with(f"alpha0 = {a}", alpha=a) for a in (0.1, 2.5, 10.0)), D4RL),
)
of_the_paper(
    "alpha_lr",
    "learning rate of alpha 2e-2, 2e-3 and 2e-4",
    "Figure 12, appendix F.2",
    Block(tuple(aspc_with(f"lr = {lr:g}", scale_lr=lr) for lr in (2e-2, 2e-3, 2e-4)), D4RL),
)
register(Suite("paper", "all of the above", "the whole paper", parts=tuple(_SUITES)))

# ── suites of this project ──────────────────────────────────────────────────────────────────────────────────────────

register(
    Suite(
        "embedded",
        "a generated maze, three algorithms, two seeds, in minutes",
        "this project",
        (
            Block(
                (
                    Variant("TD3+BC, alpha = 10", "td3_bc", {"alpha": 10.0}),
                    Variant("IQL", "iql"),
                    aspc_with("ASPC, alpha0 = 10", alpha=10.0),
                ),
                ("maze2d-umaze",),
                steps=16_000,
                seeds=2,
                options={"eval_every": 1_000, "eval_episodes": 10, "final_episodes": 50},
            ),
        ),
        note="alpha starts at 10, not 2.5: on Maze2d it rises from 2.5 to about 8 in a million steps, not in 16,000.",
    )
)
ONE_SETTING = (TD3_BC, WPC, A2PR, Variant("IQL", "iql"), Variant("ReBRAC", "rebrac"), ASPC)
register(
    Suite(
        "locomotion",
        "six algorithms, one setting each, on every file of a folder",
        "this project",
        (Block(ONE_SETTING, ()),),
        every_file=True,
    )
)
register(
    Suite(
        "aspc_plus",
        "ASPC+ beside ASPC and TD3+BC on the main table's datasets",
        "this project",
        (Block((TD3_BC, ASPC, Variant("ASPC+", "aspc_plus")), D4RL),),
    )
)

# The study: D4RL's and OGBench's recipes at the benchmarks' own sizes (benchmarks/study_data.py). Its datasets have no
# version in their names, since their behaviour policies are not D4RL's: scores on the two are never mixed.
STUDY_WALKERS = of_tasks(WALKERS, QUALITIES)
STUDY_NINE = of_tasks(WALKERS, NINE)
STUDY_ANTMAZE = tuple(name.removesuffix("-v2") for name in ANTMAZE)
STUDY_HANDS = (*of_tasks(HANDS, ("expert",)), "door-human", "door-cloned")
STUDIED = (*STUDY_WALKERS, *MAZES, *STUDY_ANTMAZE, *STUDY_HANDS)
# A variant that is to be chosen among several is chosen on the first half of these datasets and judged on the second.
TUNED_ON = (
    *("hopper-random", "hopper-medium-expert", "hopper-medium-replay"),
    *("halfcheetah-medium", "halfcheetah-expert", "halfcheetah-full-replay"),
    *("walker2d-medium", "walker2d-expert", "walker2d-medium-replay"),
    "maze2d-medium",
)
REPORTED_ON = tuple(name for name in (*STUDY_WALKERS, *MAZES) if name not in TUNED_ON)
MILLION, SHORT = 1_000_000, 300_000
EVERY_100K = {"eval_every": 100_000}
MANY_EPISODES = {**EVERY_100K, "eval_episodes": 100}  # a maze is solved or not: ten episodes tell little


def register_study(name: str, title: str, *blocks: Block, note: str = "") -> None:
    register(Suite(name, title, "this project", blocks, note))


def on_walkers(variants: tuple[Variant, ...], steps: int, datasets: tuple[str, ...]) -> tuple[Block, ...]:
    """Return a block for each program shape, so that an interrupted session leaves complete comparisons."""
    hoppers = tuple(name for name in datasets if name.startswith("hopper"))
    others = tuple(name for name in datasets if name not in hoppers)
    return tuple(Block(variants, names, steps, options=EVERY_100K) for names in (hoppers, others))


def on_mazes(variants: tuple[Variant, ...], steps: int, mazes: tuple[str, ...] = MAZES) -> Block:
    return Block(variants, mazes, steps, options=MANY_EPISODES)


ASPC_PLUS = Variant("ASPC+", "aspc_plus")
TUNED = (relabelled("IQL, tuned", IQL), relabelled("ReBRAC, tuned", REBRAC))
MCEP, RAPO = Variant("MCEP", "mcep"), Variant("RAPO", "rapo")
MAIN_TABLE = (TD3_BC, ASPC, ASPC_PLUS, *TUNED, WPC, A2PR, Variant("ReBRAC, one setting", "rebrac"), RAPO)
ABLATIONS = {
    "how alpha is set": NECESSITY,
    "terms of the outer loss": LOSSES,
    "forms of L3": L3_FORMS,
    "robust critic": ROBUST_CRITIC,
    "steps between updates of alpha": K_ALPHA,
}
ABLATED = tuple(variant for variants in ABLATIONS.values() for variant in variants)

register_study(
    "study_main",
    "the main table at the benchmark's own sizes",
    on_mazes(MAIN_TABLE, MILLION),
    *on_walkers(MAIN_TABLE, MILLION, STUDY_WALKERS),
    on_mazes(MAIN_TABLE, MILLION, STUDY_ANTMAZE),
    Block(MAIN_TABLE, STUDY_HANDS, options=EVERY_100K),
    note="One configuration per algorithm unless its label says that it is tuned for each dataset.",
)
register_study(
    "study_ablations",
    "necessity, loss, L3, critic and k_alpha",
    *on_walkers(ABLATED, SHORT, STUDY_NINE),
    on_mazes(ABLATED, SHORT),
)
register_study(
    "study_integrations",
    "ASPC in other algorithms",
    *on_walkers((*INTEGRATIONS, *with_and_without_aspc("FQL", "fql", None)), SHORT, STUDY_NINE),
    note="FQL has no published settings for locomotion: it runs with its defaults.",
)
register_study(
    "study_time",
    "what learning the scale costs, each run alone",
    Block(
        (ASPC, aspc_with("k_alpha = 30", k_alpha=30), TD3_BC),
        ("hopper-medium",),
        steps=10_000,
        options={"eval_every": 10_000},
        alone=True,
    ),
    note="For an otherwise idle machine; runs of the other suites share theirs, so their times are not comparable.",
)
register(
    Suite(
        "study",
        "the main table, then ablations and integrations",
        "this project",
        parts=("study_main", "study_ablations", "study_integrations"),
    )
)

# ASPC+ without one of its parts each, and the methods closest to it.
CONTROLS = (
    Variant("TD3+BC, two policies", "td3_bc_two_policies"),
    aspc_with("ASPC, independent outer batch", outer_batch="independent"),
    Variant("ASPC, averaged policy", "aspc_averaged"),
    MCEP,
    RAPO,
)
register_study(
    "study_controls",
    "the parts of ASPC+ one by one, and its prior art, at the benchmark's own sizes",
    on_mazes(CONTROLS, MILLION),
    *on_walkers(CONTROLS, MILLION, STUDY_WALKERS),
    note="TD3+BC, ASPC and ASPC+ to compare with are in study_main.",
)

# Maze2d's data are regenerated by D4RL's recipe, so scores on them can be compared with published ones (docs/data.md).
# CORL's IQL is the best probe: its published spreads are small.
CORL_IQL = Variant("IQL", "iql", preset="corl")
register_study(
    "maze2d_recipe",
    "Maze2d with and without action noise, against published scores",
    on_mazes((CORL_IQL, TD3_BC, ASPC, Variant("BC", "bc")), MILLION, (*MAZES, *CLEAN_MAZES)),
    Block(
        (relabelled("IQL, float32 products", CORL_IQL),),
        ("maze2d-large",),
        options={**MANY_EPISODES, "matmul_precision": "highest"},
    ),
    note="Products are TF32 on an accelerator unless the variant's name says otherwise.",
)
