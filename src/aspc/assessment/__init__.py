"""Assessment of policies without an environment: off-policy evaluation (`aspc fqe`) and trust reports."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aspc.assessment.fqe import fitted_q_evaluation
    from aspc.assessment.fqe_options import FQEOptions
    from aspc.assessment.ranking import Ranking
    from aspc.assessment.returns import choose_states, returns_to_go

_MODULES = {
    "FQEOptions": "fqe_options",
    "Ranking": "ranking",
    "choose_states": "returns",
    "fitted_q_evaluation": "fqe",
    "returns_to_go": "returns",
}

__all__ = ["FQEOptions", "Ranking", "choose_states", "fitted_q_evaluation", "returns_to_go"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
