"""The list of all claims in the paper's order, and their checks against the paper's own tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from aspc.lab.paper_tables import DOMAINS, PaperTable
from aspc.lab.report import paper_results
from aspc.lab.report.claims import ablations, benchmark, generality, learned_scale, runtime
from aspc.lab.report.claims.vocabulary import FAILS, Claim, ClaimCheck
from aspc.lab.report.view import View

ALL: tuple[Callable[[View], Claim], ...] = (
    benchmark.beats_td3_bc,
    benchmark.beats_all_on_average,
    benchmark.best_on_locomotion_and_mazes,
    benchmark.profile_above,
    benchmark.largest_polygon,
    benchmark.rises_faster,
    benchmark.narrow_bands,
    benchmark.no_late_collapse,
    benchmark.one_setting_degrades,
    learned_scale.smaller_on_better_data,
    learned_scale.scale_by_task,
    learned_scale.distinct_by_task,
    learned_scale.drops_then_rises,
    learned_scale.dynamic_is_best,
    runtime.small_overhead,
    runtime.short_interval_is_harmless,
    runtime.long_interval_is_free,
    ablations.robust_critic_helps,
    ablations.l1_alone_is_worst,
    ablations.losses_by_domain,
    ablations.l2_inside_l3_matters,
    ablations.form_five_matches_form_four,
    ablations.l3_matters_little_on_adroit,
    ablations.default_start_is_best,
    ablations.default_rate_is_best,
    generality.improves_each_base,
    generality.holds_on_ogbench,
    generality.weighting_helps_on_sparse_rewards,
    generality.keeps_rising,
)


def check_all(view: View) -> list[Claim]:
    """Check every claim and return the claims in the paper's order."""
    found = [(check, check(view)) for check in ALL]
    return [replace(claim, paper_contradiction=find_contradiction(check, claim.source)) for check, claim in found]


@cache
def find_contradiction(check: Callable[[View], Claim], source: str) -> str:
    """Describe which of a claim's checks fail on the paper's tables that `source` names.

    Returns:
        The description, or an empty string if no check fails.
    """
    tables = paper_results.find_source_tables(source)
    found = (_describe_failures(table, check(paper_results.view_of_table(table.name)).checks) for table in tables)
    return " ".join(filter(None, found))


def _describe_failures(table: PaperTable, checks: Sequence[ClaimCheck]) -> str:
    failed = [check for check in checks if check._replace(estimate=check.estimate.exact()).verdict == FAILS]
    if not failed:
        return ""
    unit = "domain" if table.rows[0] in DOMAINS else "dataset"
    numbers = "; ".join(f"{check.description}: {check.estimate.value:.1f} {check.unit}" for check in failed)
    fail = "fails" if len(failed) == 1 else "fail"
    return (
        f"The paper's own {table.source} does not support this: with the printed means per {unit} in place of runs, "
        f"{len(failed)} of {len(checks)} checks {fail} ({numbers})."
    )
