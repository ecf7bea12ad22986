"""User-supplied networks and optimizers: factories that replace the defaults, passed directly or by registered name.

    aspc.train(data, algo="aspc", actor=ResidualNet, critic_optimizer=optax.adamw)

    @register_network("residual")                      # in a plugin: --actor residual
    def make_residual(key, in_size, out_size): ...

A network factory returns an Equinox module that maps [in] to [out], or [batch, in] to [batch, out]. `init_apply` makes
such a factory from two pure functions. An optimizer factory takes a learning rate and returns an Optax transformation.
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
    """Initialize the chosen network. The default is an MLP; `hidden` and `options` apply only to it.

    Raises:
        AspcError: The factory fails, or its module does not map `in_size` to `out_size`.
    """
    if choice is None:
        return mlp(key, in_size, hidden, out_size, **options)
    factory = find_component("network", choice)
    name = choice if isinstance(choice, str) else getattr(choice, "__name__", repr(choice))
    try:
        module = factory(key, in_size, out_size)
    except AspcError:
        raise
    except Exception as error:  # user code can raise any exception
        raise AspcError(
            f"The network {name} failed: {type(error).__name__}: {first_line(error)}. It is called with a key, "
            f"the input size {in_size} and the output size {out_size}."
        ) from error
    return module if isinstance(module, MLP) else CustomNetwork.of(module, name, in_size, out_size)


class Applied(eqx.Module):
    """A network's parameters and the pure function that applies them."""

    params: Any
    apply: Callable[..., Any] = eqx.field(static=True)

    def __call__(self, x: jax.Array) -> Any:
        return self.apply(self.params, x)


def init_apply(init: Callable[..., Any], apply: Callable[..., Any]) -> Callable[..., Applied]:
    """Make a network factory from a pair of pure functions.

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
    """Return the chosen optimizer. The default is Adam."""
    factory = None if choice is None else find_component("optimizer", choice)
    return Optimizer(learning_rate, max_grad_norm, factory)
