"""The assessment of policies against the logged controller: hold-out, estimates, support, verdicts and selection."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from aspc.assessment.assess_options import AssessOptions
from aspc.assessment.combination import CALIBRATION, CombinedDifference, IntervalCalibration, combine
from aspc.assessment.critic_estimators import FITTED_Q, CriticEstimators
from aspc.assessment.device_policy import check_fits, longest_history
from aspc.assessment.evidence import REWARD, DifferenceEstimate, Estimator, Evidence, LoggedReturns
from aspc.assessment.held_out_episodes import HeldOutEpisodes, held_out_episodes
from aspc.assessment.importance import BehaviorDensity, ImportanceSampling
from aspc.assessment.kpi_columns import kpi_columns
from aspc.assessment.model_estimator import ModelEstimator
from aspc.assessment.ranking import value_bounds
from aspc.assessment.support import LoggedNeighbors, Support
from aspc.assessment.trained_runs import (
    Candidate,
    checkpoint_policies,
    data_sources,
    dataset_of,
    recorded_options,
    saved_policies,
    with_bounds_of,
)
from aspc.assessment.verdict import Verdict, decide
from aspc.data import Dataset
from aspc.errors import AspcError
from aspc.policy import Policy
from aspc.training.run_folder import Run

SMALL_LOSS = 0.2  # default margin in standard deviations of logged returns: Cohen's "small effect"

Source = Dataset | str | os.PathLike[str]
RunSource = Run | str | os.PathLike[str]
Notify = Callable[[int, int, str], None]  # completed steps, total steps, current stage


@dataclass(frozen=True, eq=False)
class PolicyAssessment:
    """The assessment of one policy."""

    name: str
    source: str
    verdict: Verdict
    differences: dict[str, CombinedDifference]
    """The combined difference from the logged controller, by signal; the first is the reward."""
    estimates: list[DifferenceEstimate]
    """The estimates of all estimators."""
    support: Support
    policy: Policy

    @property
    def reward(self) -> CombinedDifference:
        """The combined difference in return."""
        return self.differences[REWARD]

    def has_estimate(self, signal: str) -> bool:
        """Return whether a signal has a usable estimate. A policy that acts outside the data has none."""
        return self.differences[signal].is_known and not self.support.is_outside

    def of_signal(self, signal: str) -> list[DifferenceEstimate]:
        """Return the estimates of one signal."""
        return [estimate for estimate in self.estimates if estimate.signal == signal]

    @property
    def critics_agreement(self) -> tuple[int, int] | None:
        """The number of critics that agree with the sign of the estimate, and of all critics; None without critics."""
        for estimate in self.of_signal(REWARD):
            if estimate.estimator == FITTED_Q and estimate.members:
                same = sum(np.sign(m) == np.sign(estimate.difference) for m in estimate.members)
                return int(same), len(estimate.members)
        return None


@dataclass(frozen=True, eq=False)
class Assessment:
    """The assessment of policies against the logged controller, best policy first."""

    dataset: str
    episodes: str
    """A description of the episodes used for the assessment."""
    discount: float
    level: float
    margin: float
    controller: dict[str, LoggedReturns]
    """The logged discounted sums, by signal."""
    policies: list[PolicyAssessment]
    calibration: IntervalCalibration = CALIBRATION
    warnings: list[str] = field(default_factory=list)

    def select(self, anyway: bool = False) -> PolicyAssessment | None:
        """Return the policy to deploy, or None.

        Among the policies inside the data, this is the one with the highest `selection_bound`, if that is above 0.

        Args:
            anyway: Ignore both conditions. If no policy has a bound, return the first policy.
        """
        if anyway:
            known = [p for p in self.policies if p.reward.is_known]
            return max(known, key=self.selection_bound, default=self.policies[0])
        better = [p for p in self.comparable if self.selection_bound(p) > 0]
        return max(better, key=self.selection_bound, default=None)

    @property
    def comparable(self) -> list[PolicyAssessment]:
        """The policies with an estimate, among which `select` chooses."""
        return [p for p in self.policies if p.has_estimate(REWARD)]

    def selection_bound(self, policy: PolicyAssessment) -> float:
        """Return a lower bound on a policy's difference in return that accounts for choosing among several policies.

        The lower end of each interval holds with probability (1 + level)/2 on its own. By Šidák's inequality, these
        bounds hold with the same probability for all comparable policies at once.
        """
        confidence = (1 + self.level) / 2
        return policy.reward.lower_bound(confidence ** (1 / max(len(self.comparable), 1)))


def assess(
    runs: RunSource | Iterable[RunSource] | Mapping[str, Policy],
    dataset: Source | None = None,
    *,
    kpis: Sequence[str] = (),
    checkpoints: bool = False,
    on_training_data: bool = False,
    options: AssessOptions = AssessOptions(),  # noqa: B008 (frozen)
    notify: Notify = lambda step, total, part: None,
    vectorize: bool | None = None,
    **data_options: Any,
) -> Assessment:
    """Assess policies against the controller that produced the logs, without a simulator.

    Args:
        runs: Folders of runs, fleets or policies, or a mapping from names to policies. A policy without a run is
            assessed on all episodes of the dataset, so pass episodes that it was not trained on.
        dataset: The data for the assessment. Default: the episodes of the runs' data that training held out
            (`holdout`).
        kpis: Names of additional log columns for which to estimate the difference.
        checkpoints: Assess all checkpoints of the runs instead of their final policies.
        on_training_data: Use all episodes, including those that the policies were trained on.
        options: Options for the estimators.
        notify: Called with the number of completed steps, the total number of steps and the current stage.
        vectorize: Fit the critics of all policies in parallel. Default: True only on an accelerator.
        data_options: Options for loading the dataset with `aspc.data.load`.

    Raises:
        AspcError: If no held-out episode is left, or if a policy's sizes or columns differ from the dataset's.
    """
    if isinstance(runs, Mapping):
        if dataset is None:
            raise AspcError("assess needs a dataset for policies without runs; pass one with held-out episodes.")
        candidates, paths = [Candidate(name, policy, name) for name, policy in runs.items()], list[Path]()
        full = dataset if isinstance(dataset, Dataset) else dataset_of([], os.fspath(dataset), data_options)
    else:
        paths = _folders(runs)
        candidates = [] if checkpoints else saved_policies(paths)  # before loading the data, to fail early
        full = dataset if isinstance(dataset, Dataset) else _load(paths, dataset, data_options)
        candidates = candidates or checkpoint_policies(paths, full)
    if not candidates:
        raise AspcError("assess needs at least one policy.")
    source, read_options = _recorded_source(paths, dataset, data_options)
    columns = kpi_columns(kpis, full, source, read_options)
    if paths:
        held_out = held_out_episodes(paths, full, on_training_data, is_training_data=dataset is None)
    else:
        held_out = HeldOutEpisodes(np.arange(len(full)), f"all {len(full.episode_lengths):,} episodes, as given", [])
    kept = full if len(held_out.rows) == len(full) else full.select(held_out.rows)
    kept = with_bounds_of(kept, (c.policy for c in candidates), data_options)
    kept_columns = {name: column[held_out.rows] for name, column in columns.items()}
    return judge(
        candidates,
        Evidence.of(kept, kept_columns, options, longest_history(c.policy for c in candidates)),
        held_out,
        notify,
        vectorize,
    )


def _folders(runs: RunSource | Iterable[RunSource]) -> list[Path]:
    listed = [runs] if isinstance(runs, Run | str | os.PathLike) else list(runs)
    return list(dict.fromkeys(run.path if isinstance(run, Run) else Path(run) for run in listed))


def _load(paths: list[Path], dataset: str | os.PathLike[str] | None, options: Mapping[str, Any]) -> Dataset:
    return dataset_of(paths, None if dataset is None else os.fspath(dataset), options)


def _recorded_source(
    paths: list[Path], dataset: Source | None, options: Mapping[str, Any]
) -> tuple[str | None, Mapping[str, Any]]:
    """Return the file of the dataset (None if it has no file) and the options for reading that file."""
    if isinstance(dataset, Dataset):
        return None, {}
    if dataset is not None:
        return os.fspath(dataset), {**recorded_options(paths, os.fspath(dataset)), **options}
    recorded = data_sources(paths[0])[0]
    return recorded.source, recorded.options


def judge(
    candidates: list[Candidate],
    evidence: Evidence,
    held_out: HeldOutEpisodes,
    notify: Notify,
    vectorize: bool | None = None,
    calibration: IntervalCalibration = CALIBRATION,
) -> Assessment:
    """Evaluate all policies on held-out evidence, decide the verdicts, and return the policies, best first."""
    policies = {c.name: c.policy for c in candidates}
    for name, policy in policies.items():
        check_fits(name, policy, evidence.dataset)
    estimates = _estimate(evidence, policies, notify, vectorize)
    margin = _margin(evidence)
    neighbors = LoggedNeighbors.of(evidence.dataset, seed=evidence.options.seed, history=evidence.history)
    judged = []
    for c in candidates:
        own = [e for e in estimates if e.policy == c.name]
        combined = {
            signal: combine(
                signal, [e for e in own if e.signal == signal], evidence.options.level, calibration, logged.spread
            )
            for signal, logged in evidence.logged_returns.items()
        }
        support = neighbors.measure_policy(c.policy, evidence.options.seed)
        silent = {e.estimator: e.silent_because for e in own if e.signal == REWARD and e.silent_because is not None}
        verdict = decide(combined[REWARD], support, margin, silent)
        judged.append(PolicyAssessment(c.name, c.source, verdict, combined, own, support, c.policy))
    order = sorted(judged, key=lambda p: (p.support.is_outside, not p.reward.is_known, -_lower_bound(p)))
    return Assessment(
        evidence.dataset.name.removesuffix(" (held out)"),
        held_out.description,
        evidence.options.discount,
        evidence.options.level,
        margin,
        evidence.logged_returns,
        order,
        calibration,
        [*held_out.warnings, *unattainable_gains(order, evidence)],
    )


def unattainable_gains(policies: list[PolicyAssessment], evidence: Evidence) -> list[str]:
    """Return a warning about each policy whose estimated return is above the maximum for the logged rewards."""
    log, discount = evidence.dataset, evidence.options.discount
    limit = value_bounds(log.rewards, bool(log.terminals.any()), discount)[1] - evidence.logged_returns[REWARD].mean
    text = f"the gain is overestimated: with the logged rewards, it is at most {(1 - discount) * limit:+.4g} per step"
    return [f"{p.name}: {text}." for p in policies if p.has_estimate(REWARD) and p.reward.difference > limit]


def _lower_bound(policy: PolicyAssessment) -> float:
    return policy.reward.low if policy.reward.is_known else 0.0


def _estimate(
    evidence: Evidence, policies: dict[str, Policy], notify: Notify, vectorize: bool | None
) -> list[DifferenceEstimate]:
    """Run all estimators and report progress over their steps."""
    options = evidence.options
    critics = options.steps * len(evidence.signals)
    total = 3 * options.model_steps + critics

    def show(first: int, step: int, part: str) -> None:
        notify(first + step, total, part)

    density = BehaviorDensity.fit(evidence, partial(show, 0))
    importance = ImportanceSampling.of(evidence, density, policies)
    estimators: list[tuple[Estimator, int]] = [
        (CriticEstimators(importance, vectorize), options.model_steps),
        (ModelEstimator(density), options.model_steps + critics),
        (importance, total),
    ]
    found = []
    for estimator, first in estimators:
        found += estimator.estimate(evidence, policies, partial(show, first))
    notify(total, total, "done")
    return found


def _margin(evidence: Evidence) -> float:
    """Return the largest loss of return that is considered negligible."""
    if evidence.options.margin is not None:
        return evidence.options.margin
    return SMALL_LOSS * evidence.logged_returns[REWARD].std
