"""Environments of benchmark datasets, and their step limits, action bounds and reference scores."""

from __future__ import annotations

from aspc.envs.facts import action_bounds, choices, horizon, is_continuing, normalized_score, reference_scores
from aspc.envs.make import make_env

__all__ = [
    "action_bounds",
    "choices",
    "horizon",
    "is_continuing",
    "make_env",
    "normalized_score",
    "reference_scores",
]
