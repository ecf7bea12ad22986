"""Compare estimated differences with true ones: for each estimator, for their combination and for the selection."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np

from aspc.assessment.combination import IntervalCalibration, combine
from aspc.assessment.evidence import REWARD, DifferenceEstimate
from fqe_ranking import spearman

LEVEL, Z90 = 0.9, 1.6449
COMBINATION = "combination"
COLUMNS = ("estimates", "coverage", "cross-val.", "Spearman", "regret@1", "worse", "SharpeRatio@3")
LARGEST_ERROR = 100.0  # systematic error at which the search ends
Result = dict[str, Any]  # the result of a dataset
Row = dict[str, Any]  # the row of a policy


def summarize(results: list[Result]) -> dict[str, Any]:
    """Return the measures of every estimator, the combination and the selection, with intervals over datasets."""
    kinds = [*dict.fromkeys(kind for r in results for p in r["policies"] for kind in p["estimates"]), COMBINATION]
    table: dict[str, Any] = {}
    for kind in kinds:
        needed = [needed_errors(result, kind) for result in results]
        others = [systematic_error([n for n in needed if n is not own]) for own in needed]
        rows = [measures_of(r, kind, n, b) for r, n, b in zip(results, needed, others, strict=True)]
        table[kind] = {name: mean_over_datasets([row.get(name) for row in rows]) for name in COLUMNS}
        table[kind]["systematic error"] = systematic_error(needed)
    # `others` are now those of the combination.
    none = [0.0] * len(results)
    rules = {
        "selection": (others, True),
        "selection, uncorrected": (others, False),
        "uncorrected, no error": (none, False),
    }
    for name, (errors, is_corrected) in rules.items():
        chosen = [select(r, b or 0.0, is_corrected) for r, b in zip(results, errors, strict=True)]
        table[name] = {
            "estimates": mean_over_datasets([float(row is not None) for row in chosen]),
            "worse": mean_over_datasets([float(row is not None and row["truth"] < 0) for row in chosen]),
        }
    policies = sum(len(result["policies"]) for result in results)
    return {"datasets": len(results), "policies": policies, "level": LEVEL, "estimators": table}


def answer(result: Result, row: Row, kind: str, systematic: float) -> tuple[float, float] | None:
    """Return the difference that an estimator predicts, and its standard error including a systematic error.

    Returns None if there is no estimate. The combination has no estimate for policies outside the data.
    """
    if kind != COMBINATION:
        found = row["estimates"].get(kind)
        if found is None or found["silent"] is not None:
            return None
        return found["difference"], math.hypot(found["error"], systematic * result["spread"])
    if row["verdict"] == "outside the data":
        return None
    estimates = [
        DifferenceEstimate(kind, row["name"], REWARD, e["difference"], e["error"], silent_because=e["silent"])
        for kind, e in row["estimates"].items()
    ]
    combined = combine(REWARD, estimates, LEVEL, IntervalCalibration(systematic, None), result["spread"])
    return (combined.difference, combined.standard_error) if combined.is_known else None


def is_covered(row: Row, found: tuple[float, float]) -> bool:
    """Return whether the interval around an estimate contains the truth. It allows for the error of the truth."""
    return abs(found[0] - row["truth"]) <= Z90 * math.hypot(found[1], row["truth_error"])


def needed_errors(result: Result, kind: str) -> list[float]:
    """Return the smallest systematic error at which the interval contains the truth, per policy with an estimate."""
    needed = []
    for row in result["policies"]:
        low, high = 0.0, LARGEST_ERROR
        found = answer(result, row, kind, low)
        if found is None:
            continue
        while high - low > 1e-3 and not is_covered(row, found):
            middle = (low + high) / 2
            found_there = answer(result, row, kind, middle)
            assert found_there is not None
            low, high = (low, middle) if is_covered(row, found_there) else (middle, high)
        needed.append(high if high < LARGEST_ERROR else low)
    return needed


def systematic_error(needed: list[list[float]]) -> float | None:
    """Return the smallest systematic error at which the intervals cover a fraction `LEVEL` of the true differences.

    All datasets have the same weight.
    """
    values = np.concatenate([np.zeros(0), *needed])
    if len(values) == 0:
        return None
    weights = np.concatenate([np.full(len(group), 1 / len(group)) for group in needed if group])
    order = np.argsort(values)
    reached = np.searchsorted(weights[order].cumsum(), LEVEL * weights.sum() - 1e-9)
    return float(values[order][reached])


def measures_of(result: Result, kind: str, needed: list[float], systematic: float | None) -> dict[str, float]:
    """Return the measures of one estimator on one dataset. Those of the ranking need at least three policies.

    Args:
        result: The result of the dataset.
        kind: The estimator.
        needed: For each policy, the systematic error at which the interval contains the truth.
        systematic: The systematic error estimated from the other datasets.
    """
    answers = [(row, answer(result, row, kind, systematic or 0.0)) for row in result["policies"]]
    pairs = [(row, found) for row, found in answers if found is not None]
    measures = {"estimates": len(pairs) / len(answers)}
    if not pairs:
        return measures
    measures["coverage"] = float((np.asarray(needed) == 0).mean())
    if systematic is not None:
        measures["cross-val."] = float((np.asarray(needed) <= systematic).mean())
    if len(pairs) < 3:
        return measures
    truth = np.asarray([row["truth"] for row, _ in pairs])
    difference, error = (np.asarray(column) for column in zip(*(found for _, found in pairs), strict=True))
    if np.ptp(truth) > 0 and np.ptp(difference) > 0:
        measures["Spearman"] = spearman(difference, truth)
    # The combination ranks by its lower bound.
    order = np.argsort(-(difference - (Z90 * error if kind == COMBINATION else 0.0)))
    every, first = np.asarray([row["truth"] for row in result["policies"]]), truth[order[:3]]
    measures["regret@1"] = float((every.max() - first[0]) / max(np.ptp(every), 1e-9))
    measures["worse"] = float(first[0] < 0)
    if first.std() > 1e-2 * np.ptp(every):  # else the ratio is undefined
        measures["SharpeRatio@3"] = float(first.max() / first.std())
    return measures


def select(result: Result, systematic: float, is_corrected: bool) -> Row | None:
    """Return the policy that `aspc assess --select` saves, with or without its correction for several policies."""
    answers = [(row, answer(result, row, COMBINATION, systematic)) for row in result["policies"]]
    pairs = [(row, found) for row, found in answers if found is not None]
    confidence = ((1 + LEVEL) / 2) ** (1 / max(len(pairs), 1) if is_corrected else 1)
    quantile = NormalDist().inv_cdf(confidence)
    bounds = [found[0] - quantile * found[1] for _, found in pairs]
    best = int(np.argmax(bounds)) if bounds else 0
    return pairs[best][0] if bounds and bounds[best] > 0 else None


def mean_over_datasets(values: list[float | None]) -> dict[str, float] | None:
    """Return the mean over datasets with its 90 % bootstrap interval, or None if there are no values."""
    known = np.asarray([v for v in values if v is not None and math.isfinite(v)])
    if len(known) == 0:
        return None
    rng = np.random.default_rng(0)
    means = known[rng.integers(0, len(known), (2_000, len(known)))].mean(1)
    low, high = np.quantile(means, [0.05, 0.95])
    return {"mean": float(known.mean()), "low": float(low), "high": float(high), "datasets": len(known)}


def print_summary(summary: dict[str, Any]) -> None:
    print(f"{summary['policies']} policies on {summary['datasets']} datasets; 90 % intervals over datasets")
    print(f"{'':23s}" + "".join(f"{c:>20s}" for c in (*COLUMNS, "systematic error")))
    for kind, found in summary["estimators"].items():
        cells = [found.get(column) for column in COLUMNS]
        text = "".join(f"{'' if c is None else '{mean:.2f} [{low:.2f}, {high:.2f}]'.format(**c):>20s}" for c in cells)
        error = found.get("systematic error")
        print(f"{kind:23s}{text}{'' if error is None else f'{error:.2f}':>20s}")
