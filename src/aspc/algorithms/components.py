"""Networks and optimizers of the user: factories that replace the defaults, by object or by registered name.

    aspc.train(data, algo="aspc", actor=ResidualNet, critic_optimizer=optax.adamw)

    @register_network("residual")                      # in a plugin: --actor residual
    def make_residual(key, in_size, out_size): ...

A network factory returns a module (any Equinox module, or that of `init_apply(init, apply)`) that maps vectors [in] to
[out], or rows of them. An optimizer factory returns an Optax transformation for a learning rate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import equinox as eqx
import jax
import optax
from jaxtyping import PRNGKeyArray

from aspc.algorithms.fields import declared
from aspc.errors import AspcError, first_line, unknown_name
from aspc.networks import MLP, CustomNetwork, mlp
from aspc.optim import EPS_ROOT, Optimizer

Factory = TypeVar("Factory", bound=Callable[..., Any])
AlgorithmT = TypeVar("AlgorithmT")

_REGISTRIES: dict[str, dict[str, Callable[..., Any]]] = {
    "network": {},
    "optimizer": {
        "adam": partial(optax.adam, eps_root=EPS_ROOT),
        "adamw": partial(optax.adamw, eps_root=EPS_ROOT),
        "lion": optax.lion,
        "rmsprop": optax.rmsprop,
        "sgd": optax.sgd,
    },
}
# Optax's own functions stand for the entries above: the same steps, with finite derivatives where a gradient is zero.
_DIFFERENTIABLE: dict[Callable[..., Any], str] = {optax.adam: "adam", optax.adamw: "adamw"}
_AUTOMATIC: set[tuple[str, str]] = set()  # names of objects that were passed without registering them


@dataclasses.dataclass(frozen=True)
class Component:
    """Marks a hyperparameter that names a network or an optimizer."""

    kind: str


if TYPE_CHECKING:
    NetworkChoice: TypeAlias = str | Callable[..., Any] | None
    OptimizerChoice: TypeAlias = str | Callable[..., Any] | None
else:  # on the command line only names
    NetworkChoice = Annotated[str | None, Component("network")]
    OptimizerChoice = Annotated[str | None, Component("optimizer")]


@dataclasses.dataclass(frozen=True)
class CustomActor:
    """The fields of an algorithm whose actor can be replaced."""

    actor: NetworkChoice = None
    """Network of the actor, by registered name. Default: an MLP with the sizes below."""
    actor_optimizer: OptimizerChoice = None
    """Optimizer of the actor: adam, adamw, lion, rmsprop, sgd or a registered name. Default: Adam."""


@dataclasses.dataclass(frozen=True)
class CustomActorCritic(CustomActor):
    """The fields of an algorithm whose actor and critics can be replaced."""

    critic: NetworkChoice = None
    """Network of each critic, by registered name. Default: an MLP with the sizes below."""
    critic_optimizer: OptimizerChoice = None
    """Optimizer of the critics: adam, adamw, lion, rmsprop, sgd or a registered name. Default: Adam."""


# ---------------------------------------------------------------------------------------------------------------
# Names
# ---------------------------------------------------------------------------------------------------------------


def register_network(name: str) -> Callable[[Factory], Factory]:
    """Make a network factory available as `--actor NAME` and `--critic NAME`.

    The factory is a function or a class, (key, input size, output size) → module.

    Raises:
        AspcError: The name is already registered.
    """
    return _register("network", name)


def register_optimizer(name: str) -> Callable[[Factory], Factory]:
    """Make an optimizer available as `--actor-optimizer NAME` and in the other options for optimizers.

    The factory maps a learning rate, a number or an Optax schedule, to an `optax.GradientTransformation`.

    Raises:
        AspcError: The name is already registered.
    """
    return _register("optimizer", name)


def _register(kind: str, name: str) -> Callable[[Factory], Factory]:
    def add(factory: Factory) -> Factory:
        registry = _REGISTRIES[kind]
        if name in registry and (kind, name) not in _AUTOMATIC and registry[name] is not factory:
            raise AspcError(f"The {kind} {name!r} is already registered; choose another name.")
        registry[name] = factory
        _AUTOMATIC.discard((kind, name))
        return factory

    return add


def registered_components(kind: str) -> list[str]:
    """Return the registered names of a kind, sorted."""
    return sorted(_REGISTRIES[kind])


def find_component(kind: str, choice: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the factory of a name, or the factory itself.

    Raises:
        AspcError: The name is not registered.
    """
    if not isinstance(choice, str):
        return _REGISTRIES[kind][_DIFFERENTIABLE[choice]] if choice in _DIFFERENTIABLE else choice
    if choice not in _REGISTRIES[kind]:
        error = unknown_name(kind, choice, _REGISTRIES[kind]) if _REGISTRIES[kind] else f"Unknown {kind} {choice!r}."
        raise AspcError(f"{error} Register your own with @register_{kind} in a file and pass it with --plugin.")
    return _REGISTRIES[kind][choice]


def map_components(algorithm: AlgorithmT, change: Callable[[str, Any], Any]) -> AlgorithmT:
    """Apply a function of kind and value to every component of an algorithm that is set, those of its base included."""
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


def name_components(algorithm: AlgorithmT) -> AlgorithmT:
    """Replace the factories of an algorithm by names, registering those that are not registered under their own.

    Raises:
        AspcError: A factory has no name.
    """
    return map_components(algorithm, _name_of)


def resolve_components(algorithm: AlgorithmT) -> AlgorithmT:
    """Replace the names of networks and optimizers in an algorithm by their factories.

    Raises:
        AspcError: A name is not registered.
    """
    return map_components(algorithm, find_component)


def _name_of(kind: str, choice: Any) -> str:
    if isinstance(choice, str):
        find_component(kind, choice)
        return choice
    choice = find_component(kind, choice)
    for name, factory in _REGISTRIES[kind].items():
        if factory is choice:
            return name
    name = getattr(choice, "__name__", "<unnamed>")
    if name.startswith("<") or not callable(choice):
        raise AspcError(
            f"A run records its {kind} by name, and {choice!r} has none. Define a function or a class, or register it "
            f"with register_{kind}."
        )
    if name in _REGISTRIES[kind] and (kind, name) not in _AUTOMATIC:
        raise AspcError(f"Another {kind} is registered as {name!r}; rename yours, or register it with register_{kind}.")
    _REGISTRIES[kind][name] = choice
    _AUTOMATIC.add((kind, name))
    return str(name)


# ---------------------------------------------------------------------------------------------------------------
# Networks
# ---------------------------------------------------------------------------------------------------------------


def make_network(
    choice: str | Callable[..., Any] | None,
    key: PRNGKeyArray,
    in_size: int,
    hidden: Sequence[int],
    out_size: int,
    **options: Any,
) -> MLP | CustomNetwork:
    """Initialize the chosen network, by default an MLP with these hidden layers and the options of `mlp`.

    Raises:
        AspcError: The factory fails, or its module does not have these sizes.
    """
    if choice is None:
        return mlp(key, in_size, hidden, out_size, **options)
    factory = find_component("network", choice)
    name = choice if isinstance(choice, str) else getattr(choice, "__name__", repr(choice))
    try:
        module = factory(key, in_size, out_size)
    except AspcError:
        raise
    except Exception as error:  # any error of the user's code
        raise AspcError(
            f"The network {name} failed: {type(error).__name__}: {first_line(error)}. It is called with a key, "
            f"{in_size} inputs and {out_size} outputs."
        ) from error
    return module if isinstance(module, MLP) else CustomNetwork.of(module, name, in_size, out_size)


class Applied(eqx.Module):
    """The parameters of a network with the function that applies it."""

    params: Any
    apply: Callable[..., Any] = eqx.field(static=True)

    def __call__(self, x: jax.Array) -> Any:
        return self.apply(self.params, x)


def init_apply(init: Callable[..., Any], apply: Callable[..., Any]) -> Callable[..., Applied]:
    """Return the network factory of a pair of pure functions.

    Args:
        init: (key, input size, output size) → parameters, a pytree of floating-point arrays.
        apply: (parameters, input) → output.
    """

    def make(key: PRNGKeyArray, in_size: int, out_size: int) -> Applied:
        return Applied(init(key, in_size, out_size), apply)

    make.__name__ = apply.__name__
    return make


# ---------------------------------------------------------------------------------------------------------------
# Optimizers
# ---------------------------------------------------------------------------------------------------------------


def make_optimizer(choice: str | Callable[..., Any] | None, learning_rate: Any, max_grad_norm: Any = None) -> Optimizer:
    """Return the chosen optimizer, by default Adam."""
    factory = None if choice is None else find_component("optimizer", choice)
    return Optimizer(learning_rate, max_grad_norm, factory)
