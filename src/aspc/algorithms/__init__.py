"""The registry: every algorithm by its name on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aspc.errors import AspcError, unknown_name

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
    return sorted(_REGISTRY)


def default(name: str) -> Any:
    """The algorithm of that name with the paper's hyper-parameters."""
    if name not in _REGISTRY:
        raise unknown_name("algorithm", name, names())
    return _REGISTRY[name]()


@register("td3_bc")
def _td3_bc() -> Any:
    from aspc.algorithms.td3_bc import TD3BC

    return TD3BC()


@register("aspc")
def _aspc() -> Any:
    from aspc.adaptive_scale import AdaptiveScale

    return AdaptiveScale()
