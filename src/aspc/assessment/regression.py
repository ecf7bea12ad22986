"""Least-squares regression with an ensemble of MLPs, for the dynamics models and the behavior's mean action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from aspc.networks import Ensemble, ensemble, mlp
from aspc.optim import Adam, cosine_decay

HIDDEN_LAYERS = 2
CHUNK = 500  # steps between progress reports
PREDICTED_ROWS = 65_536  # maximum number of rows per call


@dataclass(frozen=True, eq=False)
class Regression:
    """A fitted ensemble, with the statistics that standardize its inputs and targets."""

    networks: Ensemble
    inputs: tuple[np.ndarray, np.ndarray]
    """Mean and standard deviation of the inputs."""
    targets: tuple[np.ndarray, np.ndarray]
    """Mean and standard deviation of the targets."""

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        """Return predictions [members, rows, out] at inputs [rows, in]."""
        batches = np.array_split(inputs, -(-len(inputs) // PREDICTED_ROWS))
        mean, std = self.targets
        found = [np.asarray(apply(self.networks, jnp.asarray(standardize(b, self.inputs)))) for b in batches]
        return np.asarray(np.concatenate(found, 1) * std + mean)


def standardize(values: np.ndarray, statistics: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Return (values − mean) / std in float32."""
    return np.asarray((values - statistics[0]) / statistics[1], np.float32)


@jax.jit
def apply(networks: Ensemble, inputs: Float[Array, "rows in"]) -> Float[Array, "members rows out"]:
    """Return the standardized predictions of all members."""
    return networks(inputs)


def fit_regression(
    inputs: np.ndarray,
    targets: np.ndarray,
    weights: np.ndarray,
    *,
    steps: int,
    batch_size: int,
    hidden_dim: int,
    learning_rate: float,
    seed: int,
    show: Callable[[int], None] = lambda step: None,
) -> Regression:
    """Fit an ensemble to targets [rows, out] at inputs [rows, in] by least squares.

    Args:
        inputs: The inputs.
        targets: The targets.
        weights: Weight [rows, members] of each row in the loss of each member.
        steps: The number of minibatches.
        batch_size: Rows per minibatch. All members see the same rows.
        hidden_dim: Width of the two hidden layers.
        learning_rate: Learning rate (Adam), with cosine decay to 0.
        seed: Seed of initial weights and minibatches.
        show: Called with the number of completed steps.
    """
    statistics = [(x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64) + 1e-6) for x in (inputs, targets)]
    sizes = inputs.shape[1], [hidden_dim] * HIDDEN_LAYERS, targets.shape[1]
    networks = ensemble(lambda key: mlp(key, *sizes, layer_norm=True), jax.random.key(seed), weights.shape[1])
    adam = Adam(cosine_decay(learning_rate, steps))
    state: Any = networks, adam.init(networks)
    table = standardize(inputs, statistics[0]), standardize(targets, statistics[1]), np.asarray(weights, np.float32)
    arrays = tuple(map(jnp.asarray, table))
    for first in range(0, steps, CHUNK):
        size = min(CHUNK, steps - first)
        settings = {"size": size, "batch_size": batch_size, "learning_rate": learning_rate, "steps": steps}
        state = _advance(state, arrays, jnp.asarray(first), jnp.asarray(seed), **settings)
        jax.tree.leaves(state)[0].block_until_ready()  # report progress only for completed steps
        show(first + size)
    return Regression(state[0], statistics[0], statistics[1])


@partial(jax.jit, static_argnames=("size", "batch_size", "learning_rate", "steps"))
def _advance(
    state: Any,
    table: tuple[Array, Array, Array],
    first_step: Int[Array, ""],
    seed: Int[Array, ""],
    *,
    size: int,
    batch_size: int,
    learning_rate: float,
    steps: int,
) -> Any:
    inputs, targets, weights = table
    adam, key = Adam(cosine_decay(learning_rate, steps)), jax.random.key(seed)

    def one_step(state: Any, step: Array) -> tuple[Any, None]:
        rows = jax.random.randint(jax.random.fold_in(key, step), (batch_size,), 0, len(inputs))

        def loss(networks: Ensemble) -> tuple[Array, None]:
            errors = jnp.square(networks(inputs[rows]) - targets[rows]).mean(2)  # [members, batch]
            return (weights[rows].T * errors).mean(1).sum(), None

        fit = adam.minimize(loss, *state)
        return (fit.params, fit.opt_state), None

    return jax.lax.scan(one_step, state, first_step + jnp.arange(size))[0]
