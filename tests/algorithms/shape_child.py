"""Trace every algorithm with its annotated types and shapes checked at run time (jaxtyping's import hook, beartype).

A separate program, because the hook must precede the first import of the modules that it checks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from beartype import BeartypeConf, beartype
from jaxtyping import TypeCheckError, install_import_hook

check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float, as for mypy
CHECKED = ("aspc.adaptive_scale", "aspc.algorithms", "aspc.networks", "aspc.optim", "aspc.theory")
BATCH = 8


def numbers(*shape: int) -> jax.Array:
    return jnp.full(shape, 0.1)


def trace(algorithm: Any, batch_type: Any, spec: Any) -> None:
    """Trace each kind of step, and compute policy and critics of the initial state."""
    small = {"batch_size": BATCH}
    base = algorithm.base
    algorithm = replace(algorithm, **small) if base is None else replace(algorithm, base=replace(base, **small))
    rows, obs, act = algorithm.batch_size, spec.obs_dim, spec.act_dim
    next_actions = numbers(rows, act) if algorithm.uses_next_actions else None
    batch = batch_type(
        numbers(rows, obs), numbers(rows, act), numbers(rows), numbers(rows, obs), numbers(rows), next_actions
    )

    def initial(key: jax.Array) -> tuple[Any, Any]:
        """Return a state and noise, after computing the policy and the critics of the state."""
        noise = {name: draw.sample(key, 1)[0] for name, draw in algorithm.noise(spec, rows).items()}
        state = algorithm.init(key, spec)
        algorithm.policy(state)
        if (critics := algorithm.critics(state)) is not None:
            critics(batch.observations, batch.actions)
        return state, noise

    state, noise = jax.eval_shape(initial, jax.random.key(0))
    for parts in {parts for segment in algorithm.schedule() for parts in segment.steps}:
        jax.eval_shape(lambda state, noise, parts=parts: algorithm.update(state, batch, noise, parts), state, noise)


def main() -> None:
    with install_import_hook(CHECKED, f"{__name__}.check"):
        from aspc import algorithms, networks
        from aspc.algorithms.interface import Batch, Spec

        for name in algorithms.names():
            algorithm = algorithms.default(name)
            spec = Spec(3, 2) if not algorithm.handles_choices else Spec(3, 2, factors=(2,), masked=(1,))
            trace(algorithm, Batch, spec)
            print(name)
    critic = networks.Critic(networks.mlp(jax.random.key(0), 5, [4], 1))
    try:
        critic(numbers(BATCH, 3), numbers(BATCH + 1, 2))
    except TypeCheckError:
        print("a wrong shape is an error")


if __name__ == "__main__":
    main()
