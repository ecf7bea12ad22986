"""Suites that reproduce the tables and figures of the paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aspc.lab.suites.datasets import ADROIT, ANTMAZE, D4RL, HANDS, NINE, OGBENCH, WALKERS, dataset_names
from aspc.lab.suites.declaration import Block, Suite, Variant, names, register

TD3_BC = Variant("TD3+BC", "td3_bc")
A2PR = Variant("A2PR", "a2pr")
IQL = Variant("IQL", "iql", preset="paper")
WPC = Variant("wPC", "wpc")
REBRAC = Variant("ReBRAC", "rebrac", preset="paper")
ASPC = Variant("ASPC", "aspc")
ORIGINAL_CRITIC = {"critic_hidden_layers": 2, "critic_layer_norm": False}
K_ALPHAS = (1, 5, 10, 20, 30)


def relabel(label: str, variant: Variant, title: str = "") -> Variant:
    """Return a variant with another label. It has the same runs as the original."""
    return replace(variant, label=label, title=title)


def aspc_variant(label: str, title: str = "", **settings: Any) -> Variant:
    """Return a variant of ASPC with the given hyperparameters."""
    return Variant(label, "aspc", settings, title=title)


# Table 2: alpha fixed at 2.5, fixed at ASPC's final value, changing linearly from 2.5 to that value, and learned.
NECESSITY = (
    relabel("naive", TD3_BC, "alpha fixed at 2.5 (TD3+BC)"),
    Variant("converged", "aspc", {"scale_mode": "converged"}, scale_of=ASPC, title="alpha fixed at ASPC's final value"),
    Variant("linear", "aspc", {"scale_mode": "linear"}, scale_of=ASPC, title="alpha linear to ASPC's final value"),
    relabel("dynamic", ASPC, "alpha learned (ASPC)"),
)
# Variants whose settings equal the defaults share their runs with plain ASPC.
LOSSES = tuple(
    aspc_variant(loss, title, outer_loss=loss)
    for loss, title in (
        ("L1", "outer loss L1"),
        ("L1+L2", "outer loss L1 + L2"),
        ("L1+L3", "outer loss L1 + L3"),
        ("L1+L2+L3", "outer loss L1 + L2 + L3 (ASPC)"),
    )
)
L3_FORMULAS = (
    "sup |Δc|",
    "sup c · sup |Δc|",
    "L2 · sup |Δc|",
    "L2 · sup c · sup |Δc| (ASPC)",
    "L2 · mean c · |mean Δc|",
)
L3_FORMS = tuple(
    aspc_variant(f"({form})", f"L3 = {formula}", l3_form=form) for form, formula in enumerate(L3_FORMULAS, 1)
)
K_ALPHA = tuple(
    aspc_variant(f"k_alpha = {k}", f"alpha every {k} policy steps" if k > 1 else "alpha every policy step", k_alpha=k)
    for k in K_ALPHAS
)
ROBUST_CRITIC = tuple(
    Variant(f"{v.label} {text} RC", v.algo, settings, title=f"{v.label}, {title}")
    for v in (TD3_BC, WPC, ASPC)
    for text, settings, title in (("without", ORIGINAL_CRITIC, "TD3's critic"), ("with", {}, "robust critic"))
)


def integration_pair(label: str, algo: str, preset: str | None) -> tuple[Variant, Variant]:
    """Return two variants of an algorithm: without ASPC and with ASPC."""
    return Variant(label, algo, preset=preset), Variant(f"{label}+ASPC", f"{algo}+aspc", preset=preset)


def printed_pair(label: str, algo: str, preset: str, **settings: Any) -> tuple[Variant, Variant]:
    """Return two variants of an algorithm with the settings of appendix D: alone, and with ASPC and the literal L2."""
    inside = {f"base.{name}": value for name, value in settings.items()}
    wrapped = f"{label}+ASPC"
    return (
        Variant(f"{label}, as printed", algo, settings, preset, column=label),
        Variant(f"{wrapped}, as printed", f"{algo}+aspc", {**inside, "l2": "literal"}, preset, column=wrapped),
    )


INTEGRATIONS = (
    *integration_pair("IQL", "iql", "paper"),
    *integration_pair("CQL", "cql", "corl"),
    *integration_pair("Diffusion-QL", "diffusion_ql", "authors"),
)


# Equations (41) to (52) as printed, where they differ from the public trainers. IQL's inner objective does not differ.
AS_PRINTED = (
    INTEGRATIONS[0],
    printed_pair("IQL", "iql", "paper")[1],
    *printed_pair("CQL", "cql", "corl", penalty="policy"),
    *printed_pair("Diffusion-QL", "diffusion_ql", "authors", normalize_by="same"),
)


def register_paper_suite(name: str, title: str, source: str, *blocks: Block, note: str = "") -> None:
    """Register a table or figure of the paper."""
    register(Suite(name, title, source, blocks, note))


register_paper_suite(
    "main_table",
    "39 datasets, six algorithms",
    "Table 1, figure 2",
    Block((TD3_BC, A2PR, IQL, WPC, REBRAC, ASPC), D4RL),
)
register_paper_suite(
    "one_setting",
    "ReBRAC and A2PR: one setting for all datasets versus per-dataset settings",
    "Figure 1b",
    Block(
        (Variant("ReBRAC, tuned", "rebrac", preset="paper"), Variant("ReBRAC, one setting", "rebrac")),
        (*dataset_names(WALKERS, ("random", *NINE), "-v2"), *ANTMAZE),
    ),
    Block(
        (Variant("A2PR, tuned", "a2pr", preset="authors"), Variant("A2PR, one setting", "a2pr")),
        ("hopper-random-v2", *dataset_names(WALKERS, ("medium",), "-v2")),
    ),
    note="The paper does not state its single settings. We use the defaults, so the batch size, discount, networks and "
    "rewards can also differ from those of the tuned runs. A2PR's authors published settings for four datasets.",
)
register_paper_suite(
    "alpha_by_quality",
    "alpha over steps, by data quality",
    "Figure 3",
    Block((ASPC,), dataset_names(WALKERS, ("expert", "medium-expert", "medium", "medium-replay"), "-v2")),
)
register_paper_suite(
    "alpha_by_task",
    "alpha over steps on six tasks",
    "Figure 4",
    Block((ASPC,), (*dataset_names(HANDS, ("expert",), "-v1"), "antmaze-large-play-v2", "maze2d-large-v1")),
    note="The paper names the tasks but not the datasets. We use the expert data on Adroit, and the large mazes.",
)
register_paper_suite(
    "necessity",
    "alpha: naive, converged, linear and dynamic",
    "Table 2",
    Block(NECESSITY, D4RL),
)
register_paper_suite(
    "runtime",
    "seconds per million steps, by algorithm",
    "Figure 5a",
    Block(
        (ASPC, TD3_BC, Variant("CQL", "cql", preset="corl"), IQL, WPC, A2PR),
        ("halfcheetah-medium-v2",),
        options={"eval_every": 1_000_000},
        alone=True,
    ),
)
register_paper_suite(
    "k_alpha",
    "score by update interval of alpha",
    "Figure 5b, score",
    Block(K_ALPHA, dataset_names(WALKERS, NINE, "-v2")),
    note="The paper states neither the figure's datasets nor its intervals, except for 10 and 30. We chose the others.",
)
register_paper_suite(
    "k_alpha_runtime",
    "seconds per million steps, by update interval of alpha",
    "Figure 5b, time",
    Block((*K_ALPHA, TD3_BC), ("halfcheetah-medium-v2",), options={"eval_every": 1_000_000}, alone=True),
)
register_paper_suite(
    "robust_critic",
    "TD3+BC, wPC and ASPC with and without the robust critic",
    "Figure 6a",
    Block(ROBUST_CRITIC, D4RL),
)
register_paper_suite("losses", "terms of the outer loss", "Figure 6b", Block(LOSSES, D4RL))
register_paper_suite(
    "integrations",
    "IQL, CQL and Diffusion-QL with and without ASPC",
    "Table 3",
    Block(INTEGRATIONS, dataset_names(WALKERS, NINE, "-v2")),
    note="Both variants of an algorithm use its public per-dataset settings, so they differ only in the scale.",
)
register_paper_suite(
    "integrations_printed",
    "IQL, CQL and Diffusion-QL with ASPC, following the equations of appendix D",
    "Table 3, appendix D",
    Block(AS_PRINTED, dataset_names(WALKERS, NINE, "-v2")),
    note="The equations differ from the public trainers: CQL's penalty is the mean under the policy (45), "
    "Diffusion-QL's Q is normalized by the same critic (49), and L2 is computed on one batch instead of from an "
    "average of Q (43, 47, 51). Everything else, including IQL without ASPC, is the same as in the suite integrations.",
)
register_paper_suite(
    "ogbench",
    "ten tasks of OGBench, six algorithms",
    "Table 4",
    Block(
        (
            TD3_BC,
            Variant("IQL", "iql", preset="authors"),
            Variant("ReBRAC", "rebrac", preset="authors"),
            ASPC,
            *integration_pair("FQL", "fql", "authors"),
        ),
        OGBENCH,
        options={"eval_every": 50_000, "eval_episodes": 50},
    ),
    note="Runs are evaluated for 50 episodes every 50,000 steps, which is OGBench's protocol; the paper does not state "
    "its own. IQL, ReBRAC and FQL, with and without ASPC, use the per-environment settings of FQL's authors (for "
    "example, a larger discount in giant mazes). The other algorithms use one setting.",
)
register_paper_suite(
    "alpha_curves", "alpha over steps on all 39 datasets", "Figure 7, appendix C", Block((ASPC,), D4RL)
)
register_paper_suite(
    "performance_curves",
    "scores over steps on all 39 datasets",
    "Figure 8, appendix C",
    Block((TD3_BC, WPC, A2PR, ASPC), D4RL),
    note="The figure shows the four algorithms that the authors ran themselves.",
)
register_paper_suite(
    "aspc_aw",
    "ASPC with advantage-weighted BC on AntMaze and Adroit",
    "Figure 9, appendix E.1",
    Block((ASPC, Variant("ASPC+AW", "aspc_aw")), (*ANTMAZE, *ADROIT)),
)
register_paper_suite("l3_forms", "five forms of L3", "Table 13, appendix E.2", Block(L3_FORMS, D4RL))
register_paper_suite(
    "case_study",
    "Q, BC loss and score over steps",
    "Figure 10, appendix E.3",
    Block((ASPC, TD3_BC), ("halfcheetah-medium-v2",)),
)
register_paper_suite(
    "alpha0",
    "initial alpha: 0.1, 2.5 and 10",
    "Figure 11, appendix F.1",
    Block(tuple(aspc_variant(f"alpha0 = {a}", f"alpha starts at {a:g}", alpha=a) for a in (0.1, 2.5, 10.0)), D4RL),
)
register_paper_suite(
    "alpha_lr",
    "learning rate of alpha: 2e-2, 2e-3 and 2e-4",
    "Figure 12, appendix F.2",
    Block(
        tuple(aspc_variant(f"lr = {lr:g}", f"learning rate of alpha {lr:g}", scale_lr=lr) for lr in (2e-2, 2e-3, 2e-4)),
        D4RL,
    ),
)
register(Suite("paper", "all of the above", "the whole paper", parts=tuple(names())))
