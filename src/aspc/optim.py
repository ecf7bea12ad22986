"""Differentiable optimizers (by default Adam) and learning-rate schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from aspc.errors import AspcError, first_line

# √(v + ε²) instead of √v: at v = 0 (a weight whose gradient is exactly zero, as behind a dead ReLU) the
# derivative of √v is infinite, and 0·∞ would make the scale's gradient NaN. 1e-30 is too small to
# change the float64 reference traces, and is still a normal number in float32.
EPS_ROOT = 1e-30


class Minimized(NamedTuple):
    """The result of one step on a loss, with the gradients before clipping."""

    params: Any
    opt_state: Any
    loss: Array
    aux: Any
    grads: Any


class Optimizer(NamedTuple):
    """An Optax transformation with a learning rate. The default is Adam, p ← p − lr · m̂ / (√v̂ + ε), with β = (0.9,
    0.999), ε = 1e-8 and no weight decay.
    """

    learning_rate: float | Array | optax.Schedule
    max_grad_norm: float | Array | None = None
    """Clip gradients to this global norm; None disables clipping."""
    transformation: Callable[[Any], optax.GradientTransformation] | None = None
    """Map a learning rate to the transformation; None selects Adam."""

    def _transform(self) -> optax.GradientTransformation:
        if self.transformation is None:
            return optax.adam(self.learning_rate, b1=0.9, b2=0.999, eps=1e-8, eps_root=EPS_ROOT)
        return optax.chain(_count_steps(), self.transformation(self.learning_rate))

    def init(self, params: Any) -> optax.OptState:
        """Return the initial optimizer state."""
        return self._transform().init(params)

    def step(self, params: Any, grads: Any, state: optax.OptState) -> tuple[Any, optax.OptState]:
        """Take one step, which is differentiable with respect to everything that `grads` depends on."""
        with jax.named_scope("optimizer"):
            return self._step(params, grads, state)

    def _step(self, params: Any, grads: Any, state: optax.OptState) -> tuple[Any, optax.OptState]:
        if self.max_grad_norm is not None:
            factor = jnp.minimum(1.0, self.max_grad_norm / (global_norm(grads) + 1e-6))
            grads = jax.tree.map(lambda g: g * factor, grads)
        updates, state = self._transform().update(grads, state, params)
        return optax.apply_updates(params, updates), state

    def minimize(self, loss: Callable[[Any], tuple[Array, Any]], params: Any, state: optax.OptState) -> Minimized:
        """Take one step on `loss(params) -> (value, aux)`."""
        (value, aux), grads = jax.value_and_grad(loss, has_aux=True)(params)
        params, state = self.step(params, grads, state)
        return Minimized(params, state, value, aux, grads)


class Adam(Optimizer):
    """Adam with a learning rate."""

    __slots__ = ()


def step_count(state: Any) -> Array:
    """Return the number of steps that an optimizer has taken."""
    count: Array = state[0].count  # the first state is Adam's or that of `_count_steps`
    return count


def _count_steps() -> optax.GradientTransformation:
    """Return a transformation that only counts steps, because some optimizers do not count them."""
    return optax.scale_by_schedule(lambda count: 1.0)


def check_differentiable(optimizer: Optimizer, purpose: str) -> None:
    """Check that a step of an optimizer can be differentiated with respect to the gradient.

    The check uses the third step, because the first step of Adam and its variants depends only on the gradient's sign.

    Raises:
        AspcError: The optimizer fails, or its derivative is zero or is not finite at a zero gradient.
    """
    if optimizer.transformation is None:
        return
    transformation: Any = optimizer.transformation
    name = getattr(getattr(transformation, "func", transformation), "__name__", "the optimizer")
    tested = optimizer._replace(learning_rate=1e-3, max_grad_norm=None)
    gradient, change = jnp.array([1.0, -2.0, 0.0]), jnp.array([0.5, 1.0, 0.0])

    def third_step(x: Array) -> Array:
        params = jnp.array([0.3, -0.2, 0.1])
        state = tested.init(params)
        for _ in range(2):
            params, state = tested.step(params, gradient, state)
        stepped: Array = tested.step(params, gradient + x * change, state)[0]
        return stepped

    try:
        derivative = jax.jit(jax.jacfwd(third_step))(0.0)
    except Exception as error:  # user code can raise any exception
        raise AspcError(f"The optimizer of {purpose} failed: {type(error).__name__}: {first_line(error)}.") from error
    if not jnp.isfinite(derivative).all():
        raise AspcError(
            f"A step of {name} has no finite derivative where a gradient is zero, but {purpose} is differentiated "
            "through it. Keep the square root away from 0, for example with optax.adamw(…, eps_root=1e-30)."
        )
    if not jnp.any(derivative):
        raise AspcError(
            f"A step of {name} does not change with small changes in the gradient, but {purpose} is differentiated "
            "through it, so the scale would never change. Choose an optimizer without signs or rounding, such as Adam."
        )


def global_norm(tree: Any) -> Array:
    """Compute √Σg² over all arrays, with a finite derivative even if every g is 0."""
    return jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(tree)) + EPS_ROOT)


def cosine_decay(initial: float | Array, horizon: int) -> optax.Schedule:
    """Return the schedule lr_i = lr₀/2 · (1 + cos(π·i/horizon))."""
    return lambda count: initial * 0.5 * (1 + jnp.cos(jnp.pi * jnp.minimum(_fraction(count, horizon), 1.0)))


def exponential_decay(initial: float | Array, final_ratio: float | Array, updates: int) -> optax.Schedule:
    """Return the schedule lr_n = lr₀ · final_ratio^(n/updates)."""
    return lambda count: initial * final_ratio ** _fraction(count, updates)


def _fraction(count: Array, total: int) -> Array:
    """Compute count/total in the run's precision. JAX divides 32-bit integers in float32 even if 64-bit is enabled."""
    return jnp.asarray(count, dtype=float) / total
