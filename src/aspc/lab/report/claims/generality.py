"""Claims about other base algorithms, other benchmarks, advantage weighting, and the case study."""

from __future__ import annotations

import numpy as np

from aspc.lab.report import statistics
from aspc.lab.report.claims.comparisons import (
    ASPC,
    FLAT,
    TD3_BC,
    check_better,
    check_per_domain,
    late_growth,
    restrict_to_shared,
)
from aspc.lab.report.claims.vocabulary import Claim, ClaimCheck, ClaimPart, ClaimRange, DataGap, at_least, build_claim
from aspc.lab.report.datasets import sort_datasets
from aspc.lab.report.methods import method
from aspc.lab.report.statistics import Scores
from aspc.lab.report.view import View
from aspc.tasks import without_version

CASE_STUDY = "halfcheetah-medium"


def improves_each_base(view: View) -> Claim:
    bases = ("iql", "cql", "diffusion_ql")
    return build_claim(
        view,
        "improves_each_base",
        "ASPC improves the average of each base algorithm on MuJoCo: IQL, CQL and Diffusion-QL.",
        "Section 5.6, Table 3",
        [
            part
            for base in bases
            for part in check_per_domain(check_better, view, method(f"{base}+aspc"), method(base), ("MuJoCo",))
        ],
    )


def holds_on_ogbench(view: View) -> Claim:
    others = tuple(map(method, ("td3_bc", "iql", "rebrac", "fql")))
    pairs = (*((ASPC, other) for other in others), (method("fql+aspc"), method("fql")))
    return build_claim(
        view,
        "holds_on_ogbench",
        "The gains carry over to OGBench: ASPC scores higher than every baseline, and FQL+ASPC higher than FQL.",
        "Section 5.7, Table 4",
        [part for a, b in pairs for part in check_per_domain(check_better, view, a, b, ("OGBench",))],
    )


def weighting_helps_on_sparse_rewards(view: View) -> Claim:
    weighted = method("aspc_aw")
    return build_claim(
        view,
        "weighting_helps_on_sparse_rewards",
        "Advantage-weighted BC (ASPC+AW) improves ASPC on AntMaze and on Adroit.",
        "Appendix E.1, Figure 9",
        check_per_domain(check_better, view, weighted, ASPC, ("AntMaze", "Adroit")),
    )


def keeps_rising(view: View) -> Claim:
    parts: list[ClaimPart] = []
    for metric, name in (("q", "Q"), ("bc_loss", "BC loss"), ("score", "score")):
        ours = _select_case_study(late_growth(view, view.runs_of(ASPC), metric))
        if not ours:
            parts.append(DataGap((ASPC,), (CASE_STUDY,), f"with a curve of {name}"))
        else:
            description = f"{name} with ASPC: growth from the second to the last fifth of training"
            parts.append(ClaimCheck(description, statistics.average(ours), "%", at_least(), (ASPC,), tuple(ours)))
        matched = view.comparable_runs(ASPC, TD3_BC)
        growths = (_select_case_study(late_growth(view, runs, metric)) for runs in matched)
        first, second = restrict_to_shared(*growths)
        if not first:
            parts.append(DataGap((ASPC, TD3_BC), (CASE_STUDY,), f"with comparable curves of {name}"))
        else:
            lead, flat = statistics.difference(first, second), statistics.average(second)
            description = f"{name}: growth with ASPC − growth with TD3+BC"
            parts.append(ClaimCheck(description, lead, "percentage points", at_least(), (ASPC, TD3_BC), tuple(first)))
            description = f"{name} with TD3+BC: growth in this period; flat means within {FLAT:.0f} %"
            parts.append(ClaimCheck(description, flat, "%", ClaimRange(-FLAT, FLAT), (TD3_BC,), tuple(second)))
    return build_claim(
        view,
        "keeps_rising",
        "On halfcheetah-medium, Q, BC loss and score keep rising with ASPC, while TD3+BC stays flat.",
        "Appendix E.3, Figure 10",
        parts,
    )


def _select_case_study(values: Scores) -> dict[str, np.ndarray]:
    return {name: values[name] for name in sort_datasets(values) if without_version(name) == CASE_STUDY}
