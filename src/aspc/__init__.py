"""Offline reinforcement learning: train policies from logged datasets without per-dataset tuning.

    import aspc

    run = aspc.train("maze2d-umaze", algo="aspc", steps=20_000)
    action = run.policy.act(observation)

Importing the package is fast: JAX is imported when training starts.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aspc.algorithms import register
    from aspc.assessment.assess import assess
    from aspc.data import Dataset
    from aspc.errors import AspcError
    from aspc.guards import fit_ood_score
    from aspc.policy import Policy, load_policy
    from aspc.policy_guards import Guards
    from aspc.training.callbacks import Callback
    from aspc.training.finetune import finetune
    from aspc.training.run import evaluate, train
    from aspc.training.run_folder import Run

__version__ = "0.2.0"

_MODULES = {
    "AspcError": "aspc.errors",
    "Callback": "aspc.training.callbacks",
    "Dataset": "aspc.data",
    "Guards": "aspc.policy_guards",
    "Policy": "aspc.policy",
    "Run": "aspc.training.run_folder",
    "assess": "aspc.assessment.assess",
    "evaluate": "aspc.training.run",
    "finetune": "aspc.training.finetune",
    "fit_ood_score": "aspc.guards",
    "load_policy": "aspc.policy",
    "register": "aspc.algorithms",
    "train": "aspc.training.run",
}

__all__ = [
    "AspcError",
    "Callback",
    "Dataset",
    "Guards",
    "Policy",
    "Run",
    "assess",
    "evaluate",
    "finetune",
    "fit_ood_score",
    "load_policy",
    "register",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'aspc' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
