"""Claims about ablations: robust critic, outer loss, forms of L3, initial value and learning rate of alpha."""

from __future__ import annotations

from aspc.lab.report.claims.comparisons import (
    ASPC,
    NEARLY_EQUAL,
    check_better,
    check_nearly_equal,
    check_per_domain,
)
from aspc.lab.report.claims.vocabulary import Claim, build_claim
from aspc.lab.report.datasets import D4RL
from aspc.lab.report.methods import Method, method
from aspc.lab.report.view import View


def robust_critic_helps(view: View) -> Claim:
    without_rc = {"critic_hidden_layers": 2, "critic_layer_norm": False}
    pairs = [(method(algo), method(algo, **without_rc)) for algo in ("aspc", "wpc")]
    return build_claim(
        view,
        "robust_critic_helps",
        "ASPC and wPC need the robust critic: they score lower without it.",
        "Section 5.5, Figure 6a",
        [part for a, b in pairs for part in check_better(view, a, b, D4RL)],
        shown_in=D4RL,
    )


def _with_loss(terms: str) -> Method:
    return method("aspc", outer_loss=terms)


def l1_alone_is_worst(view: View) -> Claim:
    others = (_with_loss("L1+L2"), _with_loss("L1+L3"), ASPC)
    return build_claim(
        view,
        "l1_alone_is_worst",
        "L1 alone performs worst of all outer losses.",
        "Section 5.5, Figure 6b",
        [part for other in others for part in check_better(view, other, _with_loss("L1"), D4RL)],
        shown_in=D4RL,
    )


def losses_by_domain(view: View) -> Claim:
    parts = [
        *check_per_domain(check_nearly_equal, view, _with_loss("L1+L2"), ASPC, ("MuJoCo", "Adroit")),
        *check_per_domain(check_better, view, _with_loss("L1+L3"), _with_loss("L1"), ("AntMaze",)),
        *check_per_domain(check_better, view, ASPC, _with_loss("L1+L2"), ("Maze2d",)),
        *check_per_domain(check_better, view, ASPC, _with_loss("L1+L3"), ("Maze2d",)),
    ]
    return build_claim(
        view,
        "losses_by_domain",
        "L1+L2 matches full ASPC on MuJoCo and Adroit, L3 helps on AntMaze, and Maze2d needs both.",
        "Section 5.5, Figure 6b",
        parts,
    )


def _with_l3_form(number: int) -> Method:
    return ASPC if number == 4 else method("aspc", l3_form=number)


def l2_inside_l3_matters(view: View) -> Claim:
    wanted = [(a, b, d) for d in ("Maze2d", "AntMaze") for a in (3, 4, 5) for b in (1, 2)]
    return build_claim(
        view,
        "l2_inside_l3_matters",
        "The forms of L3 that contain L2 (3, 4, 5) beat those that do not (1, 2) on Maze2d and AntMaze.",
        "Appendix E.2, Table 13",
        [
            part
            for a, b, domain in wanted
            for part in check_per_domain(check_better, view, _with_l3_form(a), _with_l3_form(b), (domain,))
        ],
    )


def form_five_matches_form_four(view: View) -> Claim:
    return build_claim(
        view,
        "form_five_matches_form_four",
        f"L3 with means instead of suprema (form 5) scores the same as form 4 (within {NEARLY_EQUAL:.0f} %).",
        "Appendix E.2, Table 13",
        check_nearly_equal(view, _with_l3_form(5), _with_l3_form(4), D4RL),
        shown_in=D4RL,
    )


def l3_matters_little_on_adroit(view: View) -> Claim:
    forms = [_with_l3_form(n) for n in (1, 2, 3, 5)]
    return build_claim(
        view,
        "l3_matters_little_on_adroit",
        f"On Adroit, the form of L3 makes little difference (within {NEARLY_EQUAL:.0f} %).",
        "Appendix E.2, Table 13",
        [part for form in forms for part in check_per_domain(check_nearly_equal, view, form, ASPC, ("Adroit",))],
    )


def default_start_is_best(view: View) -> Claim:
    others, domains = [method("aspc", alpha=a) for a in (0.1, 10.0)], ("MuJoCo", "AntMaze", "Adroit")
    return build_claim(
        view,
        "default_start_is_best",
        "An initial alpha of 2.5 is better than 0.1 or 10 on MuJoCo, AntMaze and Adroit.",
        "Appendix F.1, Figure 11",
        [part for other in others for part in check_per_domain(check_better, view, ASPC, other, domains)],
    )


def default_rate_is_best(view: View) -> Claim:
    others = [method("aspc", scale_lr=lr) for lr in (2e-2, 2e-4)]
    return build_claim(
        view,
        "default_rate_is_best",
        "Decreasing or increasing alpha's learning rate tenfold from 2e-3 lowers scores on average.",
        "Appendix F.2, Figure 12",
        [part for other in others for part in check_better(view, ASPC, other, D4RL)],
        shown_in=D4RL,
    )
