"""Registries of networks and optimizers, and the hyperparameters that select them by name or factory.

This module does not import JAX, so listing names is fast; `aspc.algorithms.components` creates the components.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

from aspc.algorithms.fields import declared
from aspc.errors import AspcError, unknown_name

Factory = TypeVar("Factory", bound=Callable[..., Any])
AlgorithmT = TypeVar("AlgorithmT")

_REGISTRIES: dict[str, dict[str, Callable[..., Any]]] = {"network": {}, "optimizer": {}}
_AUTOMATIC: set[tuple[str, str]] = set()  # kind and name of each factory registered automatically


@cache
def _builtin_optimizers() -> tuple[dict[str, Callable[..., Any]], dict[Callable[..., Any], str]]:
    """Return two mappings: from names to built-in optimizers, and from Optax functions to their replacements' names.

    A replacement takes the same steps as the original, but its derivatives are finite where a gradient is zero.
    """
    import optax

    from aspc.optim import EPS_ROOT

    by_name = {
        "adam": partial(optax.adam, eps_root=EPS_ROOT),
        "adamw": partial(optax.adamw, eps_root=EPS_ROOT),
        "lion": optax.lion,
        "rmsprop": optax.rmsprop,
        "sgd": optax.sgd,
    }
    return by_name, {optax.adam: "adam", optax.adamw: "adamw"}


def _factories(kind: str) -> dict[str, Callable[..., Any]]:
    return {**(_builtin_optimizers()[0] if kind == "optimizer" else {}), **_REGISTRIES[kind]}


@dataclasses.dataclass(frozen=True)
class Component:
    """An annotation for a hyperparameter that selects a network or an optimizer."""

    kind: str


if TYPE_CHECKING:
    NetworkChoice: TypeAlias = str | Callable[..., Any] | None
    OptimizerChoice: TypeAlias = str | Callable[..., Any] | None
else:  # the command line accepts only names
    NetworkChoice = Annotated[str | None, Component("network")]
    OptimizerChoice = Annotated[str | None, Component("optimizer")]


@dataclasses.dataclass(frozen=True)
class CustomActor:
    """Fields of an algorithm with a replaceable actor."""

    actor: NetworkChoice = None
    """Network of the actor, by registered name. Default: an MLP with the sizes below."""
    actor_optimizer: OptimizerChoice = None
    """Optimizer of the actor: adam, adamw, lion, rmsprop, sgd or a registered name. Default: Adam."""


@dataclasses.dataclass(frozen=True)
class CustomActorCritic(CustomActor):
    """Fields of an algorithm with a replaceable actor and replaceable critics."""

    critic: NetworkChoice = None
    """Network of each critic, by registered name. Default: an MLP with the sizes below."""
    critic_optimizer: OptimizerChoice = None
    """Optimizer of the critics: adam, adamw, lion, rmsprop, sgd or a registered name. Default: Adam."""


# ---------------------------------------------------------------------------------------------------------------
# Names
# ---------------------------------------------------------------------------------------------------------------


def register_network(name: str) -> Callable[[Factory], Factory]:
    """Make a network factory available as `--actor NAME` and `--critic NAME`.

    The factory is a function or a class that maps (key, input size, output size) to a module.

    Raises:
        AspcError: The name is already registered.
    """
    return _register("network", name)


def register_optimizer(name: str) -> Callable[[Factory], Factory]:
    """Make an optimizer available as `--actor-optimizer NAME` and in the other optimizer options.

    The factory maps a learning rate (a number or an Optax schedule) to an `optax.GradientTransformation`.

    Raises:
        AspcError: The name is already registered.
    """
    return _register("optimizer", name)


def _register(kind: str, name: str) -> Callable[[Factory], Factory]:
    def add(factory: Factory) -> Factory:
        known = _factories(kind)
        if name in known and (kind, name) not in _AUTOMATIC and known[name] is not factory:
            raise AspcError(f"The {kind} {name!r} is already registered; choose another name.")
        _REGISTRIES[kind][name] = factory
        _AUTOMATIC.discard((kind, name))
        return factory

    return add


def registered_components() -> frozenset[str]:
    """Return the names of all registered networks and optimizers."""
    return frozenset(name for registry in _REGISTRIES.values() for name in registry)


def find_component(kind: str, choice: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the factory that is registered as `choice`. If `choice` is a factory, return it or its replacement.

    Raises:
        AspcError: The name is not registered.
    """
    if not isinstance(choice, str):
        name = _builtin_optimizers()[1].get(choice) if kind == "optimizer" else None
        return choice if name is None else _builtin_optimizers()[0][name]
    if choice not in (known := _factories(kind)):
        problem = unknown_name(kind, choice, known) if known else f"Unknown {kind} {choice!r}."
        raise AspcError(f"{problem} Register your own with @register_{kind} in a file; pass the file with --plugin.")
    return known[choice]


def map_components(algorithm: AlgorithmT, change: Callable[[str, Any], Any]) -> AlgorithmT:
    """Apply `change(kind, value)` to every component that an algorithm or its base specifies."""
    changed: Any = algorithm
    kind: Any = type(algorithm)
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(changed):
        value = getattr(algorithm, field.name)
        if field.name == "base" and value is not None:
            changes[field.name] = map_components(value, change)
        elif value is not None and (mark := declared(kind, field.name, Component)) is not None:
            changes[field.name] = change(mark.kind, value)
    result: AlgorithmT = dataclasses.replace(changed, **changes) if changes else algorithm
    return result


def has_network(algorithm: Any) -> bool:
    """Return whether an algorithm, or its base, has a user-supplied network."""
    networks: list[Any] = []

    def collect(kind: str, value: Any) -> Any:
        if kind == "network":
            networks.append(value)
        return value

    map_components(algorithm, collect)
    return bool(networks)


def name_components(algorithm: AlgorithmT) -> AlgorithmT:
    """Replace the factories of an algorithm with names; register unregistered factories under their `__name__`.

    Raises:
        AspcError: A factory has no name.
    """
    return map_components(algorithm, _name_of)


def resolve_components(algorithm: AlgorithmT) -> AlgorithmT:
    """Replace the names of networks and optimizers in an algorithm with their factories.

    Raises:
        AspcError: A name is not registered.
    """
    return map_components(algorithm, find_component)


def _name_of(kind: str, choice: Any) -> str:
    if isinstance(choice, str):
        find_component(kind, choice)
        return choice
    choice = find_component(kind, choice)
    for name, factory in _factories(kind).items():
        if factory is choice:
            return name
    name = getattr(choice, "__name__", "<unnamed>")
    if name.startswith("<") or not callable(choice):
        raise AspcError(
            f"A run records its {kind} by name, but {choice!r} has no name. Pass a function or a class, or register it "
            f"with register_{kind}."
        )
    if name in _factories(kind) and (kind, name) not in _AUTOMATIC:
        raise AspcError(f"Another {kind} is registered as {name!r}; rename yours, or register it with register_{kind}.")
    _REGISTRIES[kind][name] = choice
    _AUTOMATIC.add((kind, name))
    return str(name)
