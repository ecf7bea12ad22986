"""Off-policy evaluation: which policy is best, and by how much, with no environment (`aspc fqe`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aspc.assessment.fqe import FQEOptions, Ranking, fitted_q_evaluation
    from aspc.assessment.returns import choose_states, returns_to_go

__all__ = ["FQEOptions", "Ranking", "choose_states", "fitted_q_evaluation", "returns_to_go"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from aspc.assessment import fqe, returns

    return getattr(fqe, name, None) or getattr(returns, name)
