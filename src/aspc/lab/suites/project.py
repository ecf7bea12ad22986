"""This project's own suites: a quick check, training on your own files, and the study at the benchmarks' sizes."""

from __future__ import annotations

from typing import Any

from aspc.lab.suites.datasets import CLEAN_MAZES, D4RL, MAZES, STUDY_ANTMAZE, STUDY_HANDS, STUDY_NINE, STUDY_WALKERS
from aspc.lab.suites.declaration import Block, Suite, Variant, register
from aspc.lab.suites.paper import (
    A2PR,
    ASPC,
    INTEGRATIONS,
    IQL,
    K_ALPHA,
    L3_FORMS,
    LOSSES,
    NECESSITY,
    REBRAC,
    ROBUST_CRITIC,
    TD3_BC,
    WPC,
    aspc_variant,
    integration_pair,
    relabel,
)

register(
    Suite(
        "embedded",
        "a quick check on a generated maze: three algorithms, two seeds, a few minutes",
        "this project",
        (
            Block(
                (
                    Variant("TD3+BC, alpha = 10", "td3_bc", {"alpha": 10.0}),
                    Variant("IQL", "iql"),
                    aspc_variant("ASPC, alpha0 = 10", alpha=10.0),
                ),
                ("maze2d-umaze",),
                steps=16_000,
                seeds=2,
                options={"eval_every": 1_000, "eval_episodes": 10, "final_episodes": 50},
            ),
        ),
        note="alpha starts at 10, because on Maze2d it only rises from 2.5 to about 8 in a million steps.",
    )
)
ONE_SETTING = (TD3_BC, WPC, A2PR, Variant("IQL", "iql"), Variant("ReBRAC", "rebrac"), ASPC)
register(
    Suite(
        "locomotion",
        "six algorithms with one setting each, on every file in a folder",
        "this project",
        (Block(ONE_SETTING, ()),),
        every_file=True,
    )
)
register(
    Suite(
        "aspc_plus",
        "ASPC+, ASPC and TD3+BC on the main table's datasets",
        "this project",
        (Block((TD3_BC, ASPC, Variant("ASPC+", "aspc_plus")), D4RL),),
    )
)

MILLION, SHORT = 1_000_000, 300_000
EVERY_100K = {"eval_every": 100_000}
MANY_EPISODES = {**EVERY_100K, "eval_episodes": 100}  # success in a maze is binary, so ten episodes are too noisy


def register_study(name: str, title: str, *blocks: Block, note: str = "", **facts: Any) -> None:
    """Register one of the study's suites."""
    register(Suite(name, title, "this project", blocks, note, **facts))


def locomotion_blocks(variants: tuple[Variant, ...], steps: int, datasets: tuple[str, ...]) -> tuple[Block, ...]:
    """Return a block for Hopper and one for the larger robots, so that the comparisons on Hopper finish first."""
    hoppers = tuple(name for name in datasets if name.startswith("hopper"))
    others = tuple(name for name in datasets if name not in hoppers)
    return tuple(Block(variants, names, steps, options=EVERY_100K) for names in (hoppers, others))


def maze_block(variants: tuple[Variant, ...], steps: int, mazes: tuple[str, ...] = MAZES) -> Block:
    """Return a block for mazes, with more episodes per evaluation."""
    return Block(variants, mazes, steps, options=MANY_EPISODES)


ASPC_PLUS = Variant("ASPC+", "aspc_plus")
TUNED = (relabel("IQL, tuned", IQL), relabel("ReBRAC, tuned", REBRAC))
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
    "the main table on datasets of the benchmarks' original sizes",
    maze_block(MAIN_TABLE, MILLION),
    *locomotion_blocks(MAIN_TABLE, MILLION, STUDY_WALKERS),
    maze_block(MAIN_TABLE, MILLION, STUDY_ANTMAZE),
    Block(MAIN_TABLE, STUDY_HANDS, options=EVERY_100K),
    note="Each algorithm uses one configuration, unless its label says that it is tuned per dataset.",
    candidates=(ASPC.label, ASPC_PLUS.label),
    rivals=(TD3_BC.label, *(variant.label for variant in TUNED)),
)
register_study(
    "study_ablations",
    "ablations of ASPC: how alpha is set, outer loss, form of L3, critic and k_alpha",
    *locomotion_blocks(ABLATED, SHORT, STUDY_NINE),
    maze_block(ABLATED, SHORT),
)
register_study(
    "study_integrations",
    "other algorithms with and without ASPC",
    *locomotion_blocks((*INTEGRATIONS, *integration_pair("FQL", "fql", None)), SHORT, STUDY_NINE),
    note="FQL has no published settings for locomotion, so it uses its defaults.",
)
register_study(
    "study_time",
    "runtime cost of learning the scale, with each run trained alone",
    Block(
        (ASPC, aspc_variant("k_alpha = 30", k_alpha=30), TD3_BC),
        ("hopper-medium",),
        steps=10_000,
        options={"eval_every": 10_000},
        alone=True,
    ),
    note="Run this suite on an otherwise idle machine. The runs of other suites share a device, so their times are not "
    "comparable.",
)
register(
    Suite(
        "study",
        "the main table, then ablations and integrations",
        "this project",
        parts=("study_main", "study_ablations", "study_integrations"),
    )
)

# Ablations of the components of ASPC+, and the methods most similar to it.
CONTROLS = (
    Variant("TD3+BC, two policies", "td3_bc_two_policies"),
    aspc_variant("ASPC, independent outer batch", outer_batch="independent"),
    Variant("ASPC, averaged policy", "aspc_averaged"),
    MCEP,
    RAPO,
)
register_study(
    "study_controls",
    "ablations of ASPC+, and the methods most similar to it, on datasets of the benchmarks' original sizes",
    maze_block(CONTROLS, MILLION),
    *locomotion_blocks(CONTROLS, MILLION, STUDY_WALKERS),
    note="Compare with TD3+BC, ASPC and ASPC+ in study_main.",
)

# The Maze2d datasets are regenerated with D4RL's recipe, so scores on them are comparable with published scores
# (docs/data.md). CORL's IQL is the most sensitive test of this, because its published standard deviations are small.
CORL_IQL = Variant("IQL", "iql", preset="corl")
register_study(
    "maze2d_recipe",
    "Maze2d with and without action noise, for comparison with published scores",
    maze_block((CORL_IQL, TD3_BC, ASPC, Variant("BC", "bc")), MILLION, (*MAZES, *CLEAN_MAZES)),
    Block(
        (relabel("IQL, float32 products", CORL_IQL),),
        ("maze2d-large",),
        options={**MANY_EPISODES, "matmul_precision": "highest"},
    ),
    note="On an accelerator, matrix products use TF32 unless the variant's name says otherwise.",
)
