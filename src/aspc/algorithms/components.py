"""Networks and optimizers of the user: factories that replace the defaults, by object or by registered name.

    aspc.train(data, algo="aspc", actor=ResidualNet, critic_optimizer=optax.adamw)

    @register_network("residual")                      # in a plugin: --actor residual
    def make_residual(key, in_size, out_size): ...

A network factory returns a module (any Equinox module, or that of `init_apply(init, apply)`) that maps vectors [in] to
[out], or rows of them. An optimizer factory returns an Optax transformation for a learning rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray

from aspc.algorithms.component_names import NetworkChoice, find_component
from aspc.custom_networks import CustomNetwork
from aspc.errors import AspcError, first_line
from aspc.networks import MLP, mlp
from aspc.optim import Optimizer

# ---------------------------------------------------------------------------------------------------------------
# Networks
# ---------------------------------------------------------------------------------------------------------------


def make_network(
    choice: NetworkChoice,
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
