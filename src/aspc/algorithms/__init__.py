"""The registry: every algorithm by its name on the command line."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from aspc.errors import AspcError, unknown_name

BCTerm = Literal["plain", "advantage_weighted"]

_REGISTRY: dict[str, Callable[[], Any]] = {}


def register(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Make an algorithm available as `--algo NAME`: decorates a function (or class) that gives its default."""

    def add(make: Callable[[], Any]) -> Callable[[], Any]:
        if name in _REGISTRY:
            raise AspcError(f"An algorithm named {name!r} is already registered; choose another name.")
        _REGISTRY[name] = make
        return make

    return add


def names() -> list[str]:
    """All that `--algo` takes, in alphabetical order."""
    return sorted(_REGISTRY)


def default(name: str, bc: BCTerm = "plain") -> Any:
    """The algorithm of that name with the paper's hyper-parameters.

    `bc` weighs the BC term of `aspc` and `td3_bc`: "advantage_weighted" is ASPC+AW (appendix E.1).
    """
    if name not in _REGISTRY:
        raise unknown_name("algorithm", name, names())
    algorithm = _REGISTRY[name]()
    if bc == "plain":
        return algorithm
    if bc != "advantage_weighted" or name not in ("aspc", "td3_bc"):
        raise AspcError(f"{name} has no BC term {bc!r}; advantage_weighted goes with aspc and td3_bc.")
    from aspc.algorithms.advantage_weighted import AdvantageWeighted

    return replace(algorithm, base=AdvantageWeighted()) if name == "aspc" else AdvantageWeighted()


# Each is imported when it is asked for, so that a look at the names needs no JAX.
_OWN = {
    "bc": "BC",
    "td3_bc": "TD3BC",
    "wpc": "WPC",
    "a2pr": "A2PR",
    "iql": "IQL",
    "rebrac": "ReBRAC",
    "cql": "CQL",
    "diffusion_ql": "DiffusionQL",
    "fql": "FQL",
}


def _own(name: str, **settings: Any) -> Any:
    return getattr(importlib.import_module(f"aspc.algorithms.{name}"), _OWN[name])(**settings)


def _adaptive(name: str, **settings: Any) -> Any:
    """Appendix D's integrations use L1 and L2 alone."""
    from aspc.adaptive_scale import AdaptiveScale

    return AdaptiveScale(base=_own(name, **settings), outer_loss="L1+L2")


for _name in _OWN:
    register(_name)(partial(_own, _name))
for _name in ("wpc", "iql", "rebrac", "cql", "diffusion_ql"):
    register(f"{_name}+aspc")(partial(_adaptive, _name))
# Appendix D's objective for FQL weighs the normalised Q, its authors' own the distillation.
register("fql+aspc")(partial(_adaptive, "fql", scale_on="q", normalize_q=True))


@register("aspc")
def _aspc() -> Any:
    from aspc.adaptive_scale import AdaptiveScale

    return AdaptiveScale()
