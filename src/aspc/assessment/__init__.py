"""Assessment of policies without an environment: verdicts (`aspc assess`), rankings (`aspc fqe`), trust reports."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aspc.assessment.assess import Assessment, PolicyAssessment
    from aspc.assessment.assess_options import AssessOptions
    from aspc.assessment.fqe import fitted_q_evaluation
    from aspc.assessment.fqe_options import FQEOptions
    from aspc.assessment.ranking import Ranking
    from aspc.assessment.returns import choose_states, returns_to_go

_MODULES = {
    "AssessOptions": "assess_options",
    "Assessment": "assess",
    "FQEOptions": "fqe_options",
    "PolicyAssessment": "assess",
    "Ranking": "ranking",
    "choose_states": "returns",
    "fitted_q_evaluation": "fqe",
    "returns_to_go": "returns",
}

__all__ = [
    "AssessOptions",
    "Assessment",
    "FQEOptions",
    "PolicyAssessment",
    "Ranking",
    "choose_states",
    "fitted_q_evaluation",
    "returns_to_go",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
