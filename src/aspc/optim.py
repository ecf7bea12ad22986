"""The one optimiser of the field, written so that it can be differentiated through."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

# √(v + ε²) instead of √v: at v = 0 (a weight whose gradient is exactly zero, as behind a dead ReLU) the
# derivative of √v is infinite, and 0·∞ would make the scale's gradient NaN. 1e-30 changes no float64 digit that
# the reference traces can see, and is still a normal number in float32.
EPS_ROOT = 1e-30


class Adam(NamedTuple):
    """Adam, β = (0.9, 0.999), ε = 1e-8, no weight decay: p ← p − lr · m̂ / (√v̂ + ε)."""

    learning_rate: float | Array | optax.Schedule

    def _transform(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate, b1=0.9, b2=0.999, eps=1e-8, eps_root=EPS_ROOT)

    def init(self, params: Any) -> optax.OptState:
        return self._transform().init(params)

    def step(self, params: Any, grads: Any, state: optax.OptState) -> tuple[Any, optax.OptState]:
        """One update; differentiable with respect to everything that `grads` depends on."""
        updates, state = self._transform().update(grads, state, params)
        return optax.apply_updates(params, updates), state


def cosine_decay(initial: float | Array, horizon: int) -> optax.Schedule:
    """lr_i = lr₀/2 · (1 + cos(π·i/horizon))."""
    return lambda count: initial * 0.5 * (1 + jnp.cos(jnp.pi * jnp.minimum(count / horizon, 1.0)))


def exponential_decay(initial: float | Array, final_ratio: float | Array, updates: int) -> optax.Schedule:
    """lr_n = lr₀ · final_ratio^(n/updates): after `updates` updates it has come down to `final_ratio` of itself."""
    return lambda count: initial * final_ratio ** (count / updates)


def count_parameters(params: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))
