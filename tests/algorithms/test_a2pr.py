"""A2PR's advantage threshold."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import SPEC, cycle, random_batch, random_noise, small

from aspc.algorithms.a2pr import A2PR, LoggedValues


@pytest.mark.parametrize(
    ("threshold", "gate"),
    [(0.0, [True, True, False, True]), (0.25, [True, True, False, False]), (0.75, [True, False, False, False])],
)
def test_threshold_gates_the_constraint(threshold: float, gate: list[bool]) -> None:
    """Advantages of the proposal are 1, 0.5, -1 and 0; those of the logged action 0.5, 0.25, -0.5 and 0.25.

    The proposal's may equal the threshold, the logged action's must exceed it.
    """
    q_proposal, q_data, v = (
        jnp.array([2.0, 1.0, 0.0, 1.0]),
        jnp.array([1.5, 0.75, 0.5, 1.25]),
        jnp.array([1.0, 0.5, 1, 1]),
    )
    zero = jnp.zeros(4)
    vae = SimpleNamespace(encode=lambda s, a: (zero, zero), decode=lambda s, latent: q_proposal[:, None])
    critics = [lambda s, a: a[:, 0]]
    ctx = SimpleNamespace(
        batch=SimpleNamespace(observations=zero),
        state=SimpleNamespace(vae=vae, critics=critics),
        extra=LoggedValues(q_data, v),
        noise={"vae_actor": zero},
    )
    found = A2PR(advantage_threshold=threshold).propose(ctx, zero)  # type: ignore[arg-type]
    assert found.gate.tolist() == gate
    assert found.chosen.tolist() == [True, True, False, False]  # by Q alone


def test_threshold_selects_what_the_vae_reconstructs() -> None:
    algorithm = small(A2PR())
    state = jax.jit(lambda key: algorithm.init(key, SPEC))(jax.random.key(0))
    batch, noise = random_batch(0, algorithm.batch_size), random_noise(1, algorithm)
    parts = max(cycle(algorithm), key=len)

    @jax.jit
    def prepare(threshold: float) -> tuple[jax.Array, jax.Array]:
        ctx = replace(algorithm, advantage_threshold=threshold).prepare(state, batch, noise, parts)
        return ctx.metrics["vae_reconstruction"], ctx.extra.q_data - ctx.extra.v

    nothing, advantages = prepare(1e6)
    everything, _ = prepare(-1e6)
    best = np.sort(advantages)
    one, _ = prepare(float(best[-2:].mean()))  # only the best row exceeds it
    assert nothing == 0
    assert 0 < one < everything
