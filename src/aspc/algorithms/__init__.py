"""The registry: every algorithm by its name on the command line."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, Literal

from aspc.errors import AspcError, unknown_name

BCTerm = Literal["plain", "advantage_weighted"]
WITH_BC_TERM = ("aspc", "td3_bc")  # those that have a choice of it

_REGISTRY: dict[str, Callable[[], Any]] = {}


def register(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Make an algorithm available as `--algo NAME`: decorates a frozen dataclass, or a function that gives one."""

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
    check_algorithm(algorithm, name)
    if bc == "plain":
        return algorithm
    if bc != "advantage_weighted" or name not in WITH_BC_TERM:
        raise AspcError(f"{name} has no BC term {bc!r}; advantage_weighted goes with aspc and td3_bc.")
    from aspc.algorithms.advantage_weighted import AdvantageWeighted

    return replace(algorithm, base=AdvantageWeighted()) if name == "aspc" else AdvantageWeighted()


def registered_as(algorithm: Any) -> tuple[str, BCTerm] | None:
    """The name and the BC term by which `default` gives an algorithm like this one, whatever its numbers are."""
    known: list[tuple[str, BCTerm]] = [(name, "plain") for name in _REGISTRY]
    known += [(name, "advantage_weighted") for name in WITH_BC_TERM]
    return next((entry for entry in known if same_classes(default(*entry), algorithm)), None)


def same_classes(one: Any, other: Any) -> bool:
    """Whether two algorithms, and whatever they wrap, are of the same classes."""
    if type(one) is not type(other):
        return False
    inner = [field.name for field in fields(one) if is_dataclass(getattr(one, field.name))]
    return all(same_classes(getattr(one, name), getattr(other, name)) for name in inner)


def check_algorithm(algorithm: Any, what: str = "algo") -> None:
    """Refuses what cannot be trained at all, with what to do about it."""
    check_class(algorithm, what)
    from aspc.algorithms.interface import Preprocessing

    base = getattr(algorithm, "base", algorithm)
    if not isinstance(base, Preprocessing):
        raise AspcError(
            f"{what} does not say what it wants of its data: write class {type(base).__name__}(Preprocessing), "
            "with Preprocessing from aspc.algorithms.interface."
        )
    if not hasattr(algorithm, "batch_size"):
        raise AspcError(f"{what} has no batch_size: add batch_size: int = 256 to {type(base).__name__}.")


def check_class(algorithm: Any, what: str) -> None:
    """Refuses what is no frozen dataclass: programs are compiled for each algorithm, by the values of its fields."""
    if isinstance(algorithm, type):
        raise AspcError(f"{what} is an algorithm, not its class: give {algorithm.__name__}().")
    if (kind := _without_decorator(type(algorithm))) is not None:
        raise AspcError(f"{what} must be a frozen dataclass: write @dataclass(frozen=True) above {kind.__name__}.")
    for field in fields(algorithm):
        if is_dataclass(inner := getattr(algorithm, field.name)):
            check_class(inner, field.name)


def _without_decorator(kind: type) -> type | None:
    """The class itself, or one that it derives from whose fields are lost: what looks like fields there is none."""
    declared = getattr(kind, "__dataclass_params__", None)
    if declared is None or not declared.frozen:
        return kind
    bare = [k for k in kind.__mro__ if is_dataclass(k) and "__dataclass_params__" not in vars(k)]
    hints = {k: inspect.get_annotations(k).values() for k in bare}
    return next((k for k in bare if any("ClassVar" not in str(hint) for hint in hints[k])), None)


# Each is imported when it is asked for, so that a look at the names needs no JAX.
_OWN = {
    "bc": "BC",
    "td3_bc": "TD3BC",
    "wpc": "WPC",
    "a2pr": "A2PR",
    "mcep": "MCEP",
    "rapo": "RAPO",
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


@register("td3_bc_two_policies")
def _td3_bc_two_policies() -> Any:
    """ASPC+ without the learned scale: TD3+BC with a second, bolder policy whose average acts."""
    from aspc.algorithms.two_scales import TwoScales

    return TwoScales()


@register("aspc_averaged")
def _aspc_averaged() -> Any:
    """ASPC that acts with an average of its policy's weights."""
    from aspc.adaptive_scale import AdaptiveScale
    from aspc.algorithms.two_scales import AveragedPolicy

    return AdaptiveScale(base=AveragedPolicy())


@register("aspc_plus")
def _aspc_plus() -> Any:
    """ASPC with a second, bolder policy that acts, and steps of the first one judged on another batch."""
    from aspc.adaptive_scale import AdaptiveScale
    from aspc.algorithms.two_scales import TwoScales

    return AdaptiveScale(base=TwoScales(), outer_batch="independent")
