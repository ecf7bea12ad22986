"""Claims about the results on the benchmark: average scores, profiles, the radar chart and learning curves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aspc.lab.paper_tables import domain_of
from aspc.lab.report import statistics
from aspc.lab.report.ablations import percent_difference
from aspc.lab.report.claims.comparisons import (
    ALMOST_EVERY,
    ASPC,
    BASELINES,
    EARLY,
    LATE_LOSS,
    PAPER_STEPS,
    TD3_BC,
    band_widths,
    check_better,
    check_better_overall,
    check_per_domain,
    paired_scores,
    require_domains,
    restrict_to_shared,
    select_d4rl,
    values_at_fraction,
)
from aspc.lab.report.claims.vocabulary import Claim, ClaimCheck, ClaimPart, DataGap, at_least, at_most, build_claim
from aspc.lab.report.datasets import D4RL, TASKS, sort_datasets, task_of
from aspc.lab.report.methods import method
from aspc.lab.report.radar import build_radar, polygon_area, scale_to_range
from aspc.lab.report.statistics import IntervalEstimate, Scores
from aspc.lab.report.view import View, drop_returns, match_lengths, scores_by_dataset

FIGURE_8_BASELINES = tuple(map(method, ("td3_bc", "wpc", "a2pr")))
HIGHEST_SCORE = 150.0  # largest threshold, since scores on Maze2d and Adroit exceed 100


def beats_td3_bc(view: View) -> Claim:
    first, second = paired_scores(view, ASPC, TD3_BC, D4RL)
    parts = check_better_overall(view, ASPC, TD3_BC, D4RL)
    if first:
        percent = percent_difference(first, second)
        is_partial = any(isinstance(part, DataGap) for part in parts)
        methods, names = (ASPC, TD3_BC), tuple(first)
        parts.append(ClaimCheck("improvement over TD3+BC", percent, "%", at_least(), methods, names, is_partial))
    return build_claim(
        view,
        "beats_td3_bc",
        "ASPC scores higher than TD3+BC on average (35 % higher on the paper's 39 datasets).",
        "Abstract, Table 1",
        parts,
    )


def beats_all_on_average(view: View) -> Claim:
    return build_claim(
        view,
        "beats_all_on_average",
        "On average over all domains, ASPC scores higher than every baseline, including those tuned per dataset.",
        "Section 5.1, Table 1",
        [part for other in BASELINES for part in check_better_overall(view, ASPC, other, D4RL)],
    )


def best_on_locomotion_and_mazes(view: View) -> Claim:
    domains = ("MuJoCo", "Maze2d")
    return build_claim(
        view,
        "best_on_locomotion_and_mazes",
        "ASPC is the best method on MuJoCo and on Maze2d.",
        "Section 5.1, Table 1",
        [part for other in BASELINES for part in check_per_domain(check_better, view, ASPC, other, domains)],
    )


def profile_above(view: View) -> Claim:
    parts: list[ClaimPart] = []
    for other in BASELINES:
        first, second = paired_scores(view, ASPC, other, D4RL)
        if len(first) < statistics.MIN_DATASETS:  # too few for a profile
            parts.append(DataGap((ASPC, other), D4RL, "that are comparable on at least three datasets"))
            continue
        names = list(first)
        stacked = statistics.stack([first, second], names)
        estimate = IntervalEstimate(*map(float, statistics.bootstrap(share_above, stacked))).scaled(100)
        description = f"fraction of thresholds at which ASPC's profile is at or above {other.name}'s"
        claimed = at_least(100 * ALMOST_EVERY)
        check = ClaimCheck(description, estimate, "% of thresholds", claimed, (ASPC, other), tuple(names))
        parts += require_domains([check], ASPC, other, D4RL)
    return build_claim(
        view,
        "profile_above",
        "ASPC's performance profile is above every baseline's at almost every threshold "
        f"(defined as at least {100 * ALMOST_EVERY:.0f} % of them).",
        "Section 5.1, Figure 2",
        parts,
    )


def share_above(both: np.ndarray) -> np.ndarray:
    """Return the fraction of thresholds at which the first method's profile is at or above the second's.

    Thresholds that all runs of both methods exceed, or that no run of either method exceeds, are ignored.

    Args:
        both: Scores of both methods, as an array [seeds, datasets, 2].
    """
    first, second = statistics.profile(both, np.linspace(0, HIGHEST_SCORE, 61))
    is_informative = (np.minimum(first, second) < 1) & (np.maximum(first, second) > 0)
    return np.asarray((first >= second)[is_informative].mean() if is_informative.any() else np.nan)


def largest_polygon(view: View) -> Claim:
    wanted = (ASPC, *BASELINES)
    scored = {m: runs for m in wanted if not (runs := drop_returns(view.candidates(m))).empty}
    matched = match_lengths(*scored.values()) if scored else []
    found = dict(zip(scored, map(scores_by_dataset, matched), strict=True))
    shared = set.intersection(*map(set, found.values())) if found else set()
    names = [n for n in sort_datasets(shared) if domain_of(n) in D4RL]
    covered = {task_of(name) for name in names} if len(found) == len(wanted) else set()
    requirement = "with scores on the same dataset at the same number of steps"
    parts: list[ClaimPart] = [DataGap(wanted, (t,), requirement) for t in TASKS if t not in covered]
    radar = build_radar({m.name: {n: s[n] for n in names} for m, s in found.items()}) if ASPC in found else None
    if radar is not None:
        rivals = [{n: found[m][n] for n in names} for m in found if m != ASPC]
        estimate = lead_in_area({n: found[ASPC][n] for n in names}, rivals, radar.tasks)
        description = f"area of ASPC's polygon − largest area of the others, over {len(radar.tasks)} tasks"
        parts.append(ClaimCheck(description, estimate, "of the radar", at_least(), tuple(found), tuple(names)))
    return build_claim(
        view,
        "largest_polygon",
        "ASPC has the largest polygon in the radar chart over the nine tasks.",
        "Section 5.1, Figure 2",
        parts,
    )


def lead_in_area(ours: Scores, rivals: Sequence[Scores], tasks: Sequence[str]) -> IntervalEstimate:
    """Return the area of ASPC's polygon in the radar chart minus the largest area of any rival's polygon.

    The bootstrap keeps the tasks fixed. It draws datasets within each task (the same for all methods), and then seeds
    within each dataset.
    """
    methods, rng = [ours, *rivals], np.random.default_rng(0)
    means, drawn = [], []  # per task: [methods], [methods, repetitions]
    for task in tasks:
        names = [name for name in ours if task_of(name) == task]
        draws = rng.integers(len(names), size=(statistics.REPETITIONS, len(names)))
        means.append([np.mean([scores[n].mean() for n in names]) for scores in methods])
        drawn.append([statistics.resampled_means([s[n] for n in names], draws, rng).mean(axis=1) for s in methods])
    value = float(_area_lead(np.array(means).T))
    if not statistics.can_resample(len(ours), min(len(x) for scores in methods for x in scores.values())):
        return IntervalEstimate(value, math.nan, math.nan)
    leads = _area_lead(np.array(drawn).transpose(1, 2, 0))
    return IntervalEstimate(value, *statistics.percentile_interval(leads))


def _area_lead(means: np.ndarray) -> np.ndarray:
    """Return the first method's polygon area minus the largest of the others, given means [methods, ..., tasks]."""
    areas = polygon_area(scale_to_range(means))
    return np.asarray(areas[0] - areas[1:].max(axis=0))


def rises_faster(view: View) -> Claim:
    parts: list[ClaimPart] = []
    for other in FIGURE_8_BASELINES:
        scored = (select_d4rl(drop_returns(runs)) for runs in view.comparable_runs(ASPC, other))
        first, second = restrict_to_shared(*(values_at_fraction(view, runs, "score", EARLY) for runs in scored))
        if not first:
            early = f"an evaluation in the first {100 * EARLY:.0f} %"
            requirement = f"with comparable curves (same dataset, same number of steps, {early})"
            parts.append(DataGap((ASPC, other), requirement=requirement))
            continue
        estimate = statistics.difference(first, second)
        description = f"ASPC − {other.name} at {100 * EARLY:.0f} % of training"
        parts.append(ClaimCheck(description, estimate, "points", at_least(), (ASPC, other), tuple(first)))
    return build_claim(
        view,
        "rises_faster",
        "ASPC learns faster: within the first 0.3 M of 1 M steps it scores higher than TD3+BC, wPC and A2PR.",
        "Appendix C, Figure 8",
        parts,
        shown_in=D4RL,
    )


def narrow_bands(view: View) -> Claim:
    parts: list[ClaimPart] = []
    for other in FIGURE_8_BASELINES:
        scored = (select_d4rl(drop_returns(runs)) for runs in view.comparable_runs(ASPC, other))
        first, second = restrict_to_shared(*(band_widths(view, runs, "score") for runs in scored))
        if not first:
            requirement = "with comparable curves (same dataset, same number of steps, at least two seeds)"
            parts.append(DataGap((ASPC, other), requirement=requirement))
            continue
        estimate = statistics.difference(first, second)
        values = f"{statistics.grand_mean(first):.1f} vs. {statistics.grand_mean(second):.1f}"
        description = f"ASPC − {other.name}: mean distance of a seed's curve from the mean over seeds ({values})"
        parts.append(ClaimCheck(description, estimate, "points", at_most(), (ASPC, other), tuple(first)))
    return build_claim(
        view,
        "narrow_bands",
        "ASPC's bands over seeds are narrow (defined as no wider than those of TD3+BC, wPC and A2PR).",
        "Appendix C, Figure 8",
        parts,
        shown_in=D4RL,
    )


def no_late_collapse(view: View) -> Claim:
    runs = drop_returns(select_d4rl(view.runs_of(ASPC)))
    runs = runs[(runs["best"] > 0) & (runs["steps"] >= PAPER_STEPS)]  # shorter runs cannot show a late collapse
    last, best = scores_by_dataset(runs, "last"), scores_by_dataset(runs, "best")
    names = [n for n in sort_datasets(last) if n in best and len(last[n]) == len(best[n])]
    parts: list[ClaimPart] = []
    if names:
        loss = statistics.average({n: last[n] - best[n] for n in names}).scaled(100 / statistics.grand_mean(best))
        description = (
            f"last evaluation relative to the run's best; no collapse means a loss of at most {LATE_LOSS:.0f} %"
        )
        parts.append(ClaimCheck(description, loss, "%", at_least(-LATE_LOSS), (ASPC,), tuple(names)))
    else:
        parts.append(DataGap((ASPC,), D4RL, "with a score above zero and a million steps"))
    text = "ASPC's curves show no late collapse."
    return build_claim(view, "no_late_collapse", text, "Appendix C, Figure 8", parts, shown_in=D4RL)


def one_setting_degrades(view: View) -> Claim:
    parts: list[ClaimPart] = []
    for rival in (method("rebrac"), method("a2pr")):
        runs = drop_returns(view.candidates(rival))
        matched = match_lengths(runs[runs["tuned"] <= 0], runs[runs["tuned"] > 0])
        plain, tuned = restrict_to_shared(*map(scores_by_dataset, matched))
        if not plain:
            requirement = "both with one setting and tuned per dataset (same dataset, same number of steps)"
            parts.append(DataGap((rival,), requirement=requirement))
            continue
        estimate = percent_difference(plain, tuned)
        description = f"{rival.name} with one setting for all datasets, relative to tuning per dataset"
        parts.append(ClaimCheck(description, estimate, "%", at_most(), (rival,), tuple(plain)))
    return build_claim(
        view,
        "one_setting_degrades",
        "ReBRAC and A2PR score lower with one setting for all datasets.",
        "Section 1, Figure 1b",
        parts,
    )
