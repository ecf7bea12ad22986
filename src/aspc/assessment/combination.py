"""A random-effects combination of several estimators, with an interval widened by disagreement and calibration.

Let d_i be the differences of the estimators that give an estimate, with standard errors s_i. Fitted Q and dynamics
models extrapolate from the log. Their members can share an error that the spread of members does not show. Calibration
measures it as a fraction b of V, the standard deviation of the returns from all logged states:

    e_i = √(s_i² + (b·V)²) if the estimator extrapolates, else s_i

The variance τ² between estimators is estimated as in DerSimonian and Laird (1986). With weights w_i ∝ 1/(e_i² + τ²),

    d = Σ w_i·d_i,    σ = √((Σ w_i·e_i)² + τ²),    interval d ± z·σ.

All estimators use the same episodes, so their errors are added as if fully correlated. Agreement between estimators
therefore does not narrow the interval, but disagreement widens it. The pessimistic estimate is not one of the d_i. If
only fitted Q gives an estimate, no other estimator can contradict it, so the pessimistic estimate caps the lower end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from aspc.assessment.critic_estimators import FITTED_Q, PESSIMISTIC
from aspc.assessment.evidence import DifferenceEstimate
from aspc.assessment.model_estimator import DYNAMICS_MODEL


class IntervalCalibration(NamedTuple):
    """The systematic error of estimators that extrapolate, and the source of its measurement."""

    systematic_error: float
    """b, in units of the standard deviation of the returns from all logged states."""
    source: str | None


# Measured by `benchmarks/calibration.py`; docs/trust.md states the result and its limits.
CALIBRATION = IntervalCalibration(0.52, "a pilot study with 144 policies on 9 small datasets")
EXTRAPOLATING = (FITTED_Q, DYNAMICS_MODEL)


@dataclass(frozen=True)
class CombinedDifference:
    """The combined estimate for one policy and one signal."""

    signal: str
    difference: float
    low: float
    high: float
    probability_higher: float
    """Probability that the policy's discounted sum of the signal is higher than the controller's."""
    standard_error: float
    """σ, the standard error of the difference."""
    disagreement: float
    """τ, the standard deviation between estimators."""
    used: tuple[str, ...]
    """The estimators that are combined."""

    def lower_bound(self, confidence: float) -> float:
        """Return a one-sided lower bound with this confidence, which is never above the lower end of the interval."""
        return min(self.low, NormalDist(self.difference, self.standard_error).inv_cdf(1 - confidence))

    @property
    def is_known(self) -> bool:
        """True if any estimator gives an estimate."""
        return bool(self.used)


def combine(
    signal: str,
    estimates: Sequence[DifferenceEstimate],
    level: float,
    calibration: IntervalCalibration = CALIBRATION,
    spread: float = 0.0,
) -> CombinedDifference:
    """Combine the estimates of one policy and one signal; `spread` is V."""
    speaking = [e for e in estimates if e.silent_because is None and e.estimator != PESSIMISTIC]
    if not speaking:
        return CombinedDifference(signal, math.nan, math.nan, math.nan, math.nan, math.nan, math.nan, ())
    differences = np.asarray([e.difference for e in speaking])
    systematic = [calibration.systematic_error * spread * (e.estimator in EXTRAPOLATING) for e in speaking]
    errors = np.hypot([e.standard_error for e in speaking], systematic)
    tau = between_estimators(differences, errors)
    weights = 1 / np.maximum(errors**2 + tau**2, 1e-300)
    weights /= weights.sum()
    center, error = float(weights @ differences), max(float(np.hypot(weights @ errors, tau)), 1e-12)
    normal = NormalDist(center, error)
    low, high = normal.inv_cdf((1 - level) / 2), normal.inv_cdf((1 + level) / 2)
    used = tuple(e.estimator for e in speaking)
    bounds = [e.difference for e in estimates if e.estimator == PESSIMISTIC and used == (FITTED_Q,)]
    return CombinedDifference(signal, center, min([low, *bounds]), high, 1 - normal.cdf(0), error, tau, used)


def between_estimators(differences: np.ndarray, errors: np.ndarray) -> float:
    """Return τ, the DerSimonian–Laird standard deviation between estimates with standard errors `errors`."""
    precision = 1 / np.maximum(errors**2, 1e-300)
    mean = (precision @ differences) / precision.sum()
    heterogeneity = precision @ np.square(differences - mean) - (len(differences) - 1)
    scale = precision.sum() - np.square(precision).sum() / precision.sum()
    return float(np.sqrt(max(0.0, heterogeneity / scale))) if scale > 0 else 0.0
