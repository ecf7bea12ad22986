"""User-supplied networks: any module, partitioned into trained arrays and static parts."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from aspc.errors import AspcError, first_line

DETECTION_ROWS = 7919  # a batch size unlikely to equal a layer size


class Constant:
    """An untrained NumPy array. It is hashed and compared by value, as JAX requires for static fields."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self._key = (array.shape, array.dtype.str, array.tobytes())

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self._key == other._key


class CustomNetwork(eqx.Module):
    """A user-supplied network. Its floating-point arrays are trained; everything else is static."""

    params: Any
    static: Any = eqx.field(static=True)
    takes_rows: bool = eqx.field(static=True)
    """True if the module takes a batch instead of a single input."""
    in_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)

    @classmethod
    def of(cls, module: Any, name: str, in_size: int, out_size: int) -> CustomNetwork:
        """Wrap a module that maps [in] to [out], or [batch, in] to [batch, out].

        Raises:
            AspcError: The module does not have these sizes, or it contains JAX arrays of integers or booleans.
        """
        params, static = eqx.partition(module, lambda leaf: isinstance(leaf, jax.Array) and eqx.is_inexact_array(leaf))
        if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(static)):
            raise AspcError(
                f"The network {name} has a JAX array of integers or booleans, which cannot be trained. Make it a NumPy "
                "array, or create it in __call__."
            )
        static = jax.tree.map(lambda leaf: Constant(leaf) if isinstance(leaf, np.ndarray) else leaf, static)
        found: list[str] = []
        for lead in ((DETECTION_ROWS,), ()):
            inputs = jax.ShapeDtypeStruct((*lead, in_size), jnp.result_type(float))  # type: ignore[no-untyped-call]
            try:
                shape = jax.eval_shape(module, inputs).shape
            except Exception as error:  # any exception, from user code or due to a wrong number of axes
                found.append(f"{type(error).__name__}: {first_line(error)}")
                continue
            if shape == (*lead, out_size):
                return cls(params, static, bool(lead), in_size, out_size)
            found.append(f"its output has shape {list(shape)}")
        raise AspcError(
            f"The network {name} must map [{in_size}] to [{out_size}], or [batch, {in_size}] to [batch, {out_size}]: "
            f"{found[-1]}."
        )

    def __call__(self, x: Float[Array, "*batch in"], dropout: Array | None = None) -> Float[Array, "*batch out"]:
        """Apply the network over any leading axes. If given, `dropout` is passed as the module's second argument."""
        constants = jax.tree.map(lambda leaf: leaf.array if isinstance(leaf, Constant) else leaf, self.static)
        module = eqx.combine(self.params, constants)
        if dropout is not None:
            outputs: Array = module(x, dropout)
            return outputs
        rows = x.reshape(-1, x.shape[-1])
        outputs = module(rows) if self.takes_rows else jax.vmap(module)(rows)
        return outputs.reshape(*x.shape[:-1], outputs.shape[-1])
