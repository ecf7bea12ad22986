"""Claims about the learned scale alpha."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pandas as pd

from aspc.lab.paper_tables import domain_of
from aspc.lab.report import statistics
from aspc.lab.report.claims.comparisons import (
    ASPC,
    EARLY,
    NEAR_A_TENTH,
    PAPER_STEPS,
    SLIGHT_RISE,
    TD3_BC,
    check_better,
    curves_per_seed,
    select_d4rl,
)
from aspc.lab.report.claims.vocabulary import (
    Claim,
    ClaimCheck,
    ClaimPart,
    ClaimRange,
    DataGap,
    at_least,
    at_most,
    build_claim,
)
from aspc.lab.report.datasets import D4RL, LOCOMOTION, quality_of, sort_datasets, task_of
from aspc.lab.report.methods import method
from aspc.lab.report.statistics import Scores
from aspc.lab.report.view import View, scores_by_dataset
from aspc.tasks import without_version


def _log_final_scales(runs: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return log10 of each seed's final alpha, by dataset."""
    runs = runs[runs["scale_last"] > 0]
    return scores_by_dataset(runs.assign(log_scale=np.log10(runs["scale_last"].astype(float))), "log_scale")


def smaller_on_better_data(view: View) -> Claim:
    parts: list[ClaimPart] = []
    qualities = ("expert", "medium-expert", "medium", "medium-replay")
    runs = view.runs_of(ASPC)
    for task in LOCOMOTION:
        task_runs = runs[runs["task"] == task]
        # Alpha changes more in longer runs, so only runs of the same length are compared.
        found = _log_final_scales(task_runs[task_runs["steps"] == task_runs["steps"].max()])
        by_quality = {quality_of(n): n for n in sort_datasets(found)}
        present = [q for q in qualities if q in by_quality]
        absent = [f"{high} and {low}" for high, low in pairwise(qualities) if (high, low) not in pairwise(present)]
        if absent:
            parts.append(DataGap((ASPC,), (task,), f"of the same length on two data qualities ({', '.join(absent)})"))
        for high, low in pairwise(present):
            names = by_quality[high], by_quality[low]
            estimate = statistics.difference({"": found[names[1]]}, {"": found[names[0]]})
            alphas = [f"{10 ** found[n].mean():.3g}" for n in names]
            description = f"{task}: log₁₀ alpha on {low} − on {high} (alpha {alphas[1]} vs. {alphas[0]})"
            parts.append(ClaimCheck(description, estimate, "decades", at_least(), (ASPC,), names))
    return build_claim(
        view,
        "smaller_on_better_data",
        "For each locomotion task, the final alpha is smaller on better data: "
        "expert < medium-expert < medium < medium-replay.",
        "Section 5.2, Figure 3",
        parts,
    )


def _is_in_figure_4(dataset: str) -> bool:
    """Return whether Figure 4 shows a dataset. The figure names only tasks, so expert data is assumed for Adroit."""
    return domain_of(dataset) != "Adroit" or without_version(dataset).endswith("-expert")


def scale_by_task(view: View) -> Claim:
    runs = view.runs_of(ASPC)
    # Alpha's learning rate decays within each run, so alpha changes less in runs that are shorter than the paper's.
    scales = _log_final_scales(runs[runs["steps"] >= PAPER_STEPS])
    found = {n: v for n, v in scales.items() if _is_in_figure_4(n)}
    absent = [d for d in ("Adroit", "AntMaze", "Maze2d") if d not in map(domain_of, found)]
    parts: list[ClaimPart] = [DataGap((ASPC,), (d,), "with a final alpha after a million steps") for d in absent]
    low, high = (math.log10(x) for x in NEAR_A_TENTH)
    for task in ("pen", "door", "hammer", "relocate", "antmaze", "maze2d"):
        values = {n: found[n] for n in sort_datasets(found) if task_of(n) == task}
        if not values:
            continue
        estimate = statistics.average(values)
        is_adroit = domain_of(next(iter(values))) == "Adroit"
        claimed = ClaimRange(low, high) if is_adroit else at_least(1.0)
        text = f"{NEAR_A_TENTH[0]} to {NEAR_A_TENTH[1]}" if is_adroit else "above 10"
        description = f"{task}: log₁₀ of the final alpha (alpha {10**estimate.value:.3g}, claimed {text})"
        parts.append(ClaimCheck(description, estimate, "decades", claimed, (ASPC,), tuple(values)))
    return build_claim(
        view,
        "scale_by_task",
        "Alpha settles near 0.1 on Adroit and exceeds 10 on AntMaze and Maze2d.",
        "Section 5.2, Figure 4",
        parts,
    )


def distinct_by_task(view: View) -> Claim:
    runs = select_d4rl(view.runs_of(ASPC))
    # As in `scale_by_task`, alpha changes less in shorter runs.
    scales = _log_final_scales(runs[runs["steps"] >= PAPER_STEPS])
    gaps = task_separation(scales)
    parts: list[ClaimPart] = []
    if not gaps:
        parts.append(DataGap((ASPC,), D4RL, "with a final alpha after a million steps, on two datasets of two tasks"))
    for task in dict.fromkeys(map(task_of, gaps)):
        values = {name: gaps[name] for name in gaps if task_of(name) == task}
        estimate = statistics.average(values)
        description = f"{task}: distance of log₁₀ of the final alpha to other tasks' datasets − to the task's own"
        parts.append(ClaimCheck(description, estimate, "decades", at_least(), (ASPC,), tuple(values)))
    return build_claim(
        view,
        "distinct_by_task",
        "Alpha reaches distinct values across tasks; within a task, the quality of the data changes it less.",
        "Appendix C, Figure 7",
        parts,
        shown_in=D4RL,
    )


def task_separation(scales: Scores) -> dict[str, np.ndarray]:
    """Return how much further each seed's value is from other tasks' datasets than from its own task's, by dataset.

    This is the mean distance to the datasets of other tasks minus the mean distance to the other datasets of the same
    task. Each distance is measured between the seed's value and a dataset's mean over seeds. Datasets without another
    dataset of their task are left out; if there is only one task, all datasets are.
    """
    means = {name: values.mean() for name, values in scales.items()}
    out = {}
    for name in sort_datasets(scales):
        own = [means[other] for other in scales if other != name and task_of(other) == task_of(name)]
        others = [means[other] for other in scales if task_of(other) != task_of(name)]
        if own and others:
            far, near = (np.abs(scales[name][:, None] - np.array(x)).mean(axis=1) for x in (others, own))
            out[name] = far - near
    return out


def drops_then_rises(view: View) -> Claim:
    runs = select_d4rl(view.runs_of(ASPC))
    start = scores_by_dataset(runs, "scale_initial")
    early, late = {}, {}
    for name, seeds in curves_per_seed(view, runs, "scale").items():
        if name in start and all(len(values) >= 5 and (values > 0).all() for _, values in seeds):
            beginnings = [values[: max(2, round(EARLY * len(values)))] for _, values in seeds]
            early[name] = np.array([math.log10(b[-1] / start[name].mean()) for b in beginnings])
            late[name] = np.array([math.log10(v[-1] / b.min()) for (_, v), b in zip(seeds, beginnings, strict=True)])
    parts: list[ClaimPart] = []
    if not early:
        parts.append(DataGap((ASPC,), requirement="with at least five points of alpha's curve"))
    for task in dict.fromkeys(task_of(n) for n in sort_datasets(early)):
        names = tuple(n for n in sort_datasets(early) if task_of(n) == task)
        change = statistics.average({n: early[n] for n in names})
        quantity = f"log₁₀ of alpha's change in the first {100 * EARLY:.0f} % of training"
        description = f"{task}: {quantity}; claimed: at most a factor of {SLIGHT_RISE}"
        parts.append(ClaimCheck(description, change, "decades", at_most(math.log10(SLIGHT_RISE)), (ASPC,), names))
        rise = statistics.average({n: late[n] for n in names})
        description = f"{task}: log₁₀ of alpha's rise from its early minimum to the end"
        parts.append(ClaimCheck(description, rise, "decades", at_least(), (ASPC,), names))
    return build_claim(
        view,
        "drops_then_rises",
        "Alpha first drops, or rises only slightly, and then increases as the critic stabilizes.",
        "Section 5.2, Figures 3 and 4",
        parts,
    )


def dynamic_is_best(view: View) -> Claim:
    converged, linear = method("aspc", scale_mode="converged"), method("aspc", scale_mode="linear")
    pairs = ((ASPC, converged), (converged, TD3_BC), (ASPC, linear), (linear, TD3_BC))
    return build_claim(
        view,
        "dynamic_is_best",
        "Dynamic alpha ≥ converged alpha ≥ naive alpha, and a linear schedule closes only part of the gap.",
        "Section 5.3, Table 2",
        [part for a, b in pairs for part in check_better(view, a, b, D4RL)],
        shown_in=D4RL,
    )
