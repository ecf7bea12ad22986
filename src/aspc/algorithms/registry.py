"""The registry of algorithms by their command-line names.

Algorithms are imported on demand, so that listing the names does not load JAX.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from aspc.algorithms.fields import is_dataclass_instance
from aspc.errors import AspcError, unknown_name

if TYPE_CHECKING:
    from aspc.algorithms.interface import Algorithm

Factory = TypeVar("Factory", bound=Callable[[], Any])
# Older versions recorded these algorithms as a base and a BC term; existing configs and hashes still contain both.
_BC_TERMS = {"aspc_aw": ("aspc", "advantage_weighted"), "td3_bc_aw": ("td3_bc", "advantage_weighted")}

_REGISTRY: dict[str, Callable[[], Any]] = {}
_AUTOMATIC: set[str] = set()  # NAME+aspc entries that `register` added; an explicit registration replaces them


def register(name: str) -> Callable[[Factory], Factory]:
    """Make an algorithm available as `--algo NAME`.

    Decorate a subclass of `Algorithm`, or a function that returns an algorithm. A `ScalableAlgorithm` class is also
    registered as `NAME+aspc`, with a learned scale and the outer loss L1 + L2 of the paper's integrations.

    Raises:
        AspcError: The name is already registered.
    """

    def add(factory: Factory) -> Factory:
        if name in _REGISTRY and name not in _AUTOMATIC:
            raise AspcError(f"An algorithm named {name!r} is already registered; choose another name.")
        _REGISTRY[name] = factory
        _AUTOMATIC.discard(name)
        adaptive = f"{name}+aspc"
        if adaptive not in _REGISTRY and _is_scalable(factory):
            _REGISTRY[adaptive] = lambda: _with_learned_scale(default(name))
            _AUTOMATIC.add(adaptive)
        return factory

    return add


def _is_scalable(factory: Callable[[], Any]) -> bool:
    """Return whether a factory is a subclass of `ScalableAlgorithm`. JAX is imported only if it is a class."""
    if not isinstance(factory, type):
        return False
    from aspc.algorithms.interface import ScalableAlgorithm

    return issubclass(factory, ScalableAlgorithm)


def _with_learned_scale(base: Any) -> Algorithm[Any]:
    """Wrap an algorithm as in appendix D, whose integrations use only L1 and L2."""
    from aspc.adaptive_scale import AdaptiveScale

    return AdaptiveScale(base=base, outer_loss="L1+L2")


def names() -> list[str]:
    """Return the names of all registered algorithms, sorted."""
    return sorted(_REGISTRY)


def default(name: str) -> Algorithm[Any]:
    """Return the algorithm registered as `name`, with the paper's hyperparameters.

    Raises:
        AspcError: The name is unknown, or the registered class is not a complete algorithm.
    """
    if name not in _REGISTRY:
        raise unknown_name("algorithm", name, names())
    factory = _REGISTRY[name]
    if isinstance(factory, type) and inspect.isabstract(factory):
        raise _missing_method(name, min(vars(factory)["__abstractmethods__"]), factory)
    algorithm: Algorithm[Any] = factory()
    check_algorithm(algorithm, name)
    return algorithm


def registered_as(algorithm: Algorithm[Any]) -> str | None:
    """Return the name of the registered algorithm with the same class and wrapped classes, or None if there is none."""
    return next((name for name in _REGISTRY if same_classes(default(name), algorithm)), None)


def split_bc_term(name: str) -> tuple[str, str]:
    """Return the algorithm and the BC term that older versions recorded for this name."""
    return _BC_TERMS.get(name, (name, "plain"))


def join_bc_term(name: str, bc: str) -> str:
    """Return the name of an algorithm that an older version recorded with a BC term."""
    return next((new for new, recorded in _BC_TERMS.items() if recorded == (name, bc)), name)


def same_classes(one: Any, other: Any) -> bool:
    """Return whether two algorithms, and the algorithms that they wrap, have the same classes."""
    if type(one) is not type(other):
        return False
    inner = [field.name for field in fields(one) if is_dataclass_instance(getattr(one, field.name))]
    return all(same_classes(getattr(one, name), getattr(other, name)) for name in inner)


def check_algorithm(algorithm: Any, name: str = "algo") -> None:
    """Check that an object is a trainable algorithm. Error messages call it `name`.

    Raises:
        AspcError: The object is not a frozen dataclass derived from `Algorithm`, or a method is missing.
    """
    from aspc.algorithms.interface import Algorithm

    _check_class(algorithm, name)
    if not isinstance(algorithm, Algorithm):
        raise AspcError(
            f"{name} is not an algorithm. Derive its class from aspc.authoring.Algorithm: "
            f"class {type(algorithm).__name__}(Algorithm)."
        )
    for method in ("init", "noise", "schedule", "update", "policy"):
        if not callable(getattr(algorithm, method)):  # a subclass can set it to None
            raise _missing_method(name, method, type(algorithm))


def _missing_method(name: str, method: str, kind: type) -> AspcError:
    return AspcError(f"The algorithm {name} has no method {method}; add it to its class, {kind.__name__}.")


def _check_class(algorithm: Any, name: str) -> None:
    """Check that an algorithm and those it wraps are frozen dataclasses.

    Compiled programs are cached by the values of the fields, so algorithms must be hashable.
    """
    if isinstance(algorithm, type):
        raise AspcError(f"{name} is a class, not an instance; pass {algorithm.__name__}().")
    if (kind := _undecorated(type(algorithm))) is not None:
        raise AspcError(f"{name} must be a frozen dataclass: write @dataclass(frozen=True) above {kind.__name__}.")
    for field in fields(algorithm):
        inner = getattr(algorithm, field.name)
        is_class = field.name == "base" and isinstance(inner, type)  # other fields can hold a class, such as a network
        if is_class or is_dataclass_instance(inner):
            _check_class(inner, field.name)


def _undecorated(kind: type) -> type | None:
    """Return `kind` or the first of its parents that needs `@dataclass(frozen=True)` but lacks it, or None.

    Without the decorator, annotations do not become fields. A class without annotated fields does not need it.
    """
    params = getattr(kind, "__dataclass_params__", None)
    if params is None or not params.frozen:
        return kind
    bare = [k for k in kind.__mro__ if is_dataclass(k) and "__dataclass_params__" not in vars(k)]
    hints = {k: inspect.get_annotations(k).values() for k in bare}
    return next((k for k in bare if any("ClassVar" not in str(hint) for hint in hints[k])), None)


# ---------------------------------------------------------------------------------------------------------------
# The built-in algorithms
# ---------------------------------------------------------------------------------------------------------------

_CLASSES = {
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
    "discrete_bc": "DiscreteBC",
    "discrete_td3_bc": "DiscreteTD3BC",
    "discrete_iql": "DiscreteIQL",
    "discrete_cql": "DiscreteCQL",
}


def _builtin(name: str, **settings: Any) -> Any:
    return getattr(importlib.import_module(f"aspc.algorithms.{name}"), _CLASSES[name])(**settings)


def _adaptive(name: str, **settings: Any) -> Any:
    return _with_learned_scale(_builtin(name, **settings))


for _name in _CLASSES:
    register(_name)(partial(_builtin, _name))
for _name in ("wpc", "iql", "rebrac", "cql", "diffusion_ql", "discrete_iql", "discrete_cql"):
    register(f"{_name}+aspc")(partial(_adaptive, _name))
# Appendix D multiplies FQL's normalized Q by the scale; FQL's authors multiply the distillation term by it.
register("fql+aspc")(partial(_adaptive, "fql", scale_on="q", normalize_q=True))


@register("aspc")
def _aspc() -> Any:
    from aspc.adaptive_scale import AdaptiveScale

    return AdaptiveScale()


@register("discrete_aspc")
def _discrete_aspc() -> Any:
    """ASPC for discrete actions."""
    from aspc.adaptive_scale import AdaptiveScale
    from aspc.algorithms.discrete_td3_bc import DiscreteTD3BC

    return AdaptiveScale(base=DiscreteTD3BC())


@register("td3_bc_aw")
def _td3_bc_aw() -> Any:
    """TD3+BC with an advantage-weighted BC term."""
    from aspc.algorithms.advantage_weighted import AdvantageWeighted

    return AdvantageWeighted()


@register("aspc_aw")
def _aspc_aw() -> Any:
    """ASPC+AW (appendix E.1): ASPC with an advantage-weighted BC term."""
    from aspc.adaptive_scale import AdaptiveScale
    from aspc.algorithms.advantage_weighted import AdvantageWeighted

    return AdaptiveScale(base=AdvantageWeighted())


@register("td3_bc_two_policies")
def _td3_bc_two_policies() -> Any:
    """ASPC+ without the learned scale: TD3+BC with a less constrained second policy that acts with averaged weights."""
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
    """ASPC with a second, less constrained policy that acts, and an independent outer batch."""
    from aspc.adaptive_scale import AdaptiveScale
    from aspc.algorithms.two_scales import TwoScales

    return AdaptiveScale(base=TwoScales(), outer_batch="independent")
