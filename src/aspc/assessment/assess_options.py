"""Options for an assessment. This module does not import JAX, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass

from aspc.assessment.fqe_options import FQEOptions
from aspc.errors import AspcError


@dataclass(frozen=True)
class AssessOptions(FQEOptions):
    """Options for the estimators."""

    steps: int = 10_000
    """Number of minibatches per policy."""
    critics: int = 4
    """Number of critics per policy, and also the number of dynamics models. They are fitted in pairs; the two members
    of a pair use complementary halves of the episodes."""
    level: float = 0.9
    """Confidence level of the intervals."""
    margin: float | None = None
    """Largest loss of return that counts as negligible. Default: one fifth of the standard deviation of the logged
    returns."""
    model_steps: int = 5_000
    """Number of minibatches for fitting the dynamics models and, separately, the behavior density."""
    rollouts: int = 64
    """Maximum number of logged start states for simulations, per dynamics model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critics < 2 or self.critics % 2:
            raise AspcError(f"--critics must be an even number of at least 2, not {self.critics}.")
        if not 0.5 <= self.level < 1:
            raise AspcError(f"--level must be at least 0.5 and below 1, not {self.level}.")
        if self.margin is not None and not self.margin >= 0:
            raise AspcError(f"--margin must be at least 0, not {self.margin}.")
        for name in ("model_steps", "rollouts"):
            if getattr(self, name) < 1:
                raise AspcError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}.")
