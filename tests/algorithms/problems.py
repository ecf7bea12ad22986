"""Small problems on which every algorithm can be stepped. Data is drawn with NumPy: nothing to compile."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from aspc.algorithms.interface import Batch, Draw, Noise, Parts, Spec
from aspc.policy_kinds import KINDS, sample_noise
from registries import number_names

SPEC = Spec(obs_dim=5, act_dim=2)
WIDTH = 16
ADAPTIVE = [name for name in number_names() if "aspc" in name]


def small(algorithm: Any) -> Any:
    """Return the algorithm with narrow networks and few samples."""
    if algorithm.base is not None:
        return replace(algorithm, base=small(algorithm.base))
    names = {field.name for field in fields(algorithm)}
    smaller = {name: WIDTH for name in names if name.endswith("hidden_dim")}
    smaller |= {name: 2 for name in names if name.endswith("hidden_layers")}
    for name, value in {"n_actions": 2, "flow_steps": 2, "diffusion_steps": 2, "ema_start": 2, "ema_every": 2}.items():
        if name in names:
            smaller[name] = value
    return replace(algorithm, batch_size=12, **smaller)


def floats(array: np.ndarray) -> Any:
    """Convert to the current float precision."""
    return jnp.asarray(array, dtype=float)


def random_batch(seed: int, size: int) -> Batch:
    rng = np.random.default_rng(seed)
    return Batch(
        floats(rng.standard_normal((size, SPEC.obs_dim))),
        floats(rng.uniform(-1, 1, (size, SPEC.act_dim))),
        floats(rng.standard_normal(size)),
        floats(rng.standard_normal((size, SPEC.obs_dim))),
        floats(rng.uniform(size=size) > 0.1),
        floats(rng.uniform(-1, 1, (size, SPEC.act_dim))),
    )


def random_noise(seed: int, algorithm: Any) -> Noise:
    rng = np.random.default_rng(seed)

    def draw(how: Draw) -> Any:
        if how.kind == "integers":
            return jnp.asarray(rng.integers(int(how.low), int(how.high), how.shape), jnp.int32)
        if how.kind == "uniform":
            return floats(rng.uniform(how.low, how.high, how.shape))
        return floats(rng.standard_normal(how.shape))

    return {name: draw(how) for name, how in algorithm.noise(SPEC, algorithm.batch_size).items()}


def cycle(algorithm: Any) -> list[Parts]:
    return [parts for segment in algorithm.schedule() for parts in segment.steps * segment.repeats]


def run(algorithm: Any, state: Any, steps: int) -> Any:
    """Take steps on random batches, each with all parts of the algorithm (one program to compile)."""
    parts = max(cycle(algorithm), key=len)
    update = jax.jit(lambda state, batch, noise: algorithm.update(state, batch, noise, parts)[0])
    for i in range(steps):
        state = update(state, random_batch(i, algorithm.batch_size), random_noise(1000 + i, algorithm))
    return state


def amplified_state(base: Any, *, gain: float = 2.0, dead_units: int = 0) -> Any:
    """Return an initial state with larger weights than usual, so that Q, clips and gates matter.

    The first `dead_units` of every hidden layer are cut off: all their weights have a gradient of exactly 0.
    """

    def change(leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        leaf = np.array(leaf) * gain
        if leaf.shape[-1:] == (WIDTH,):
            leaf[..., :dead_units] = 0
        if leaf.ndim >= 2 and leaf.shape[-2] == WIDTH:
            leaf[..., :dead_units, :] = 0
        return floats(leaf)

    return jax.tree.map(change, jax.jit(lambda key: base.init(key, SPEC))(jax.random.key(0)))


def mid_training_state(state: Any) -> Any:
    """Return the state with optimizers as after some steps; a weight of 0 counts as one that never had a gradient."""
    rng = np.random.default_rng(7)

    def moments(opt: Any, params: Any) -> Any:
        if not isinstance(opt, optax.ScaleByAdamState):
            return opt
        mu = jax.tree.map(lambda p: (p != 0) * floats(0.1 * rng.standard_normal(p.shape)), params)
        nu = jax.tree.map(lambda p: (p != 0) * floats(0.01 * rng.uniform(0.5, 1.5, p.shape)), params)
        return opt._replace(count=jnp.asarray(5, jnp.int32), mu=mu, nu=nu)

    optimizers = [field.name for field in fields(state) if field.name.endswith("_opt")]
    return replace(
        state,
        **{
            name: tuple(moments(opt, getattr(state, name.removesuffix("_opt"))) for opt in getattr(state, name))
            for name in optimizers
        },
    )


def act(kind: str, arrays: Any, settings: Any, observations: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a policy's actions, computed with NumPy from normalized observations, in ±1."""
    draws = KINDS[kind].noise(arrays, settings, observations.shape[-1])
    return KINDS[kind].act(arrays, settings, observations, *sample_noise(draws, len(observations), rng))
