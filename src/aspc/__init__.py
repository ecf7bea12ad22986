"""aspc: give it a logged dataset, get back a policy, with no per-dataset tuning, and see why to trust it.

    import aspc

    run = aspc.train("maze2d-umaze", algo="aspc", steps=20_000)
    action = run.policy.act(observation)

Importing the package costs almost nothing: JAX is loaded when something is trained.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aspc.data import Dataset
    from aspc.errors import AspcError
    from aspc.policy import Policy, load_policy
    from aspc.training.run import evaluate, train
    from aspc.training.run_folder import Run

_HOMES = {
    "AspcError": "aspc.errors",
    "Dataset": "aspc.data",
    "Policy": "aspc.policy",
    "Run": "aspc.training.run_folder",
    "evaluate": "aspc.training.run",
    "load_policy": "aspc.policy",
    "train": "aspc.training.run",
}

__all__ = ["AspcError", "Dataset", "Policy", "Run", "evaluate", "load_policy", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'aspc' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
