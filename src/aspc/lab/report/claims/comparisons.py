"""Checks that compare two methods, and statistics of curves that claims use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd

from aspc.lab.paper_tables import domain_of
from aspc.lab.report import statistics
from aspc.lab.report.ablations import percent_difference
from aspc.lab.report.claims.vocabulary import ClaimCheck, ClaimPart, ClaimRange, DataGap, at_least
from aspc.lab.report.curves import fill_scores
from aspc.lab.report.datasets import D4RL, sort_datasets
from aspc.lab.report.methods import Method, method
from aspc.lab.report.statistics import Scores
from aspc.lab.report.view import View, drop_returns, scores_by_dataset

ASPC, TD3_BC = method("aspc"), method("td3_bc")
BASELINES = tuple(map(method, ("td3_bc", "a2pr", "iql", "wpc", "rebrac")))

# Where the paper says "near", "nearly" or "minimal", a check needs a number. We chose these thresholds.
NEARLY_EQUAL = 5.0  # percent
MINIMAL_OVERHEAD = 25.0  # percent of TD3+BC's time
SAME_RUNTIME = 10.0  # percent
NEAR_A_TENTH = (0.03, 0.3)  # range of alpha, half a decade in each direction
SLIGHT_RISE = 1.2  # factor on alpha early in training
ALMOST_EVERY = 0.9  # fraction of thresholds
LATE_LOSS = 15.0  # percent below the best evaluation
FLAT = 5.0  # percent
EARLY = 0.3  # fraction of training ("the first 0.2–0.3 M steps")
PAPER_STEPS = 1_000_000


def restrict_to_shared(a: Scores, b: Scores) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the values of two methods on their common datasets, in display order."""
    names = [name for name in sort_datasets(a) if name in b]
    return {n: a[n] for n in names}, {n: b[n] for n in names}


def paired_scores(view: View, a: Method, b: Method, domains: Iterable[str] | None = None) -> tuple[Scores, Scores]:
    """Return the scores of two methods on their common datasets at the same number of steps."""
    kept = list(map(drop_returns, view.comparable_runs(a, b)))
    if domains is not None:
        kept = [runs[runs["domain"].isin(list(domains))] for runs in kept]
    return restrict_to_shared(*(scores_by_dataset(runs) for runs in kept))


def check_better(
    view: View, a: Method, b: Method, domains: Sequence[str] | None = None, label: str = ""
) -> list[ClaimPart]:
    """Check that the average of `a` is at least that of `b`.

    Args:
        view: The results.
        a: The method that is claimed to be better.
        b: The method to compare with.
        domains: The domains to which the comparison is restricted. Default: all domains.
        label: Name of the data to use in the check's description.

    Returns:
        A list with the check, or with a data gap if runs are missing.
    """
    first, second = paired_scores(view, a, b, domains)
    if not first:
        return [DataGap((a, b), tuple(domains or ()))]
    estimate = statistics.difference(first, second)
    values = f"{statistics.grand_mean(first):.1f} vs. {statistics.grand_mean(second):.1f}"
    if len(first) >= statistics.MIN_DATASETS:
        values += f"; median difference over datasets {statistics.median_difference(first, second).value:.1f}"
    description = f"{a.name} − {b.name}{f' on {label}' if label else ''} ({values})"
    return [ClaimCheck(description, estimate, "points", at_least(), (a, b), tuple(first))]


def check_nearly_equal(
    view: View, a: Method, b: Method, domains: Sequence[str] | None = None, label: str = ""
) -> list[ClaimPart]:
    """Check that two averages differ by at most NEARLY_EQUAL percent; see `check_better` for the arguments."""
    first, second = paired_scores(view, a, b, domains)
    if not first:
        return [DataGap((a, b), tuple(domains or ()))]
    estimate = percent_difference(first, second)
    description = f"{a.name} relative to {b.name}{f' on {label}' if label else ''}"
    claimed = ClaimRange(-NEARLY_EQUAL, NEARLY_EQUAL)
    return [ClaimCheck(description, estimate, "%", claimed, (a, b), tuple(first))]


def check_per_domain(
    check: Callable[..., list[ClaimPart]], view: View, a: Method, b: Method, domains: Sequence[str]
) -> list[ClaimPart]:
    """Apply a check that compares two methods to each domain separately."""
    return [part for domain in domains for part in check(view, a, b, [domain], domain)]


def check_better_overall(view: View, a: Method, b: Method, domains: Sequence[str]) -> list[ClaimPart]:
    """Check that the average of `a` over all of these domains is at least that of `b`."""
    return require_domains(check_better(view, a, b, domains), a, b, domains)


def require_domains(parts: Iterable[ClaimPart], a: Method, b: Method, domains: Sequence[str]) -> list[ClaimPart]:
    """Mark checks as partial if a domain is missing, and add a data gap for each missing domain.

    A missing domain could change the result of the checks.
    """
    checks = [part for part in parts if isinstance(part, ClaimCheck)]
    covered = {domain_of(name) for check in checks for name in check.datasets}
    gaps = [DataGap((a, b), (domain,)) for domain in domains if domain not in covered]
    return [*(check._replace(is_partial=bool(gaps)) for check in checks), *gaps]


def select_d4rl(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs on D4RL, the benchmark that the paper's figures show."""
    return runs[runs["domain"].isin(D4RL)]


def curves_per_seed(view: View, runs: pd.DataFrame, metric: str) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
    """Return the curve (steps, values) of each seed, by dataset and without missing points."""
    table = fill_scores(view.curves.merge(runs[["run_id", "dataset", "measure"]], on="run_id"))
    table = table[np.isfinite(table[metric].astype(float))]
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for (dataset, _), group in table.groupby(["dataset", "run_id"]):
        found.setdefault(str(dataset), []).append((group["step"].to_numpy(), group[metric].to_numpy(float)))
    return found


def values_at_fraction(view: View, runs: pd.DataFrame, metric: str, fraction: float) -> dict[str, np.ndarray]:
    """Return the last value of each seed within the given fraction of training, by dataset."""
    out = {}
    for dataset, seeds in curves_per_seed(view, runs, metric).items():
        points = [values[steps <= fraction * steps[-1]] for steps, values in seeds]
        if all(len(p) for p in points):
            out[dataset] = np.array([p[-1] for p in points])
    return out


def band_widths(view: View, runs: pd.DataFrame, metric: str) -> dict[str, np.ndarray]:
    """Return the mean distance of each seed's curve from the mean over seeds, by dataset.

    Datasets with one seed are left out. The distance is averaged over the steps that all seeds share. It is measured
    from the mean of the same n seeds, which the factor √(n / (n − 1)) corrects for, so that results with different
    numbers of seeds are comparable.
    """
    out = {}
    for dataset, seeds in curves_per_seed(view, runs, metric).items():
        shared = sorted(set.intersection(*(set(steps.tolist()) for steps, _ in seeds)))
        if len(seeds) > 1 and shared:
            values = np.stack([values[np.isin(steps, shared)] for steps, values in seeds])
            correction = np.sqrt(len(seeds) / (len(seeds) - 1))
            out[dataset] = correction * np.abs(values - values.mean(axis=0)).mean(axis=1)
    return out


def late_growth(view: View, runs: pd.DataFrame, metric: str) -> dict[str, np.ndarray]:
    """Return the growth of each seed's curve from the second to the last fifth of training, in percent and by dataset.

    The first fifth, the start-up phase, is skipped.
    """
    out = {}
    for dataset, seeds in curves_per_seed(view, runs, metric).items():
        if all(len(values) >= 5 for _, values in seeds):
            fifths = [np.array_split(values, 5) for _, values in seeds]
            before, after = (np.array([f[i].mean() for f in fifths]) for i in (1, 4))
            if (before != 0).all():
                out[dataset] = 100 * (after - before) / np.abs(before)
    return out
