"""Claims about training time."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from aspc.lab.report import statistics
from aspc.lab.report.claims.comparisons import (
    ASPC,
    MINIMAL_OVERHEAD,
    NEARLY_EQUAL,
    SAME_RUNTIME,
    TD3_BC,
    check_nearly_equal,
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
from aspc.lab.report.datasets import D4RL, sort_datasets
from aspc.lab.report.methods import Method, method
from aspc.lab.report.statistics import IntervalEstimate
from aspc.lab.report.view import View


def _time_overhead(view: View, a: Method, b: Method) -> tuple[IntervalEstimate, tuple[str, ...]]:
    """Return the additional time per step of `a` relative to `b` in percent, and the datasets of the measurement.

    Runs are compared per dataset, device and machine. Runs that trained together are excluded, because all runs of a
    group report the same time and groups can share a device.
    """
    runs = pd.concat([view.candidates(a), view.candidates(b)])
    runs = runs[(runs["steps_per_second"] > 0) & (runs["runs_together"].fillna(1) == 1)]
    if runs.empty:
        return statistics.NO_ESTIMATE, ()
    keys = [runs["dataset"], runs["device"].fillna(""), runs["machine"].fillna("")]
    setup = pd.Series(["\n".join(k) for k in zip(*keys, strict=True)], runs.index)
    logs = -np.log(runs["steps_per_second"].astype(float))
    found = [
        {str(s): logs[g.index].to_numpy() for s, g in runs[runs["method"] == m.name].groupby(setup)} for m in (a, b)
    ]
    shared = [s for s in found[0] if s in found[1]]
    if not shared:
        return statistics.NO_ESTIMATE, ()
    ratio = statistics.difference(*found)
    percent = IntervalEstimate(*(100 * (math.exp(x) - 1) for x in ratio))
    return percent, tuple(sort_datasets(s.split("\n")[0] for s in shared))


def _check_overhead(view: View, a: Method, claimed: ClaimRange) -> list[ClaimPart]:
    estimate, datasets = _time_overhead(view, a, TD3_BC)
    if not datasets:
        return [DataGap((a, TD3_BC), requirement="timed alone on the same dataset, device and machine")]
    return [ClaimCheck(f"time per step, {a.name} relative to TD3+BC", estimate, "%", claimed, (a, TD3_BC), datasets)]


def small_overhead(view: View) -> Claim:
    return build_claim(
        view,
        "small_overhead",
        f"ASPC adds minimal runtime to TD3+BC (defined as at most {MINIMAL_OVERHEAD:.0f} %).",
        "Section 5.4, Figure 5a",
        _check_overhead(view, ASPC, at_most(MINIMAL_OVERHEAD)),
    )


def short_interval_is_harmless(view: View) -> Claim:
    parts: list[ClaimPart] = []
    for k_alpha in (1, 5):
        for part in check_nearly_equal(view, method("aspc", k_alpha=k_alpha), ASPC, D4RL):
            parts.append(part._replace(claimed=at_least(-NEARLY_EQUAL)) if isinstance(part, ClaimCheck) else part)
    return build_claim(
        view,
        "short_interval_is_harmless",
        f"A k_alpha below 10 does not lower the score (by more than {NEARLY_EQUAL:.0f} %).",
        "Section 5.4, Figure 5b",
        parts,
        shown_in=D4RL,
    )


def long_interval_is_free(view: View) -> Claim:
    long_interval = method("aspc", k_alpha=30)
    overhead = _check_overhead(view, long_interval, ClaimRange(-SAME_RUNTIME, SAME_RUNTIME))
    return build_claim(
        view,
        "long_interval_is_free",
        f"With k_alpha = 30, ASPC is as fast as TD3+BC (within {SAME_RUNTIME:.0f} %) and scores as high as with "
        "k_alpha = 10.",
        "Section 5.4, Figure 5b",
        [*overhead, *check_nearly_equal(view, long_interval, ASPC, D4RL)],
    )
