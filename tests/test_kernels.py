"""The fused networks against the plain ones: values, gradients, complete updates, and the number of GPU kernels."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.problems import ADAPTIVE, SPEC, random_batch, random_noise, small
from aspc import algorithms, kernels
from aspc.algorithms.interface import CRITIC, INNER, SCALE, Spec
from aspc.kernels import KernelChoice, Tiles, XlaKernels, fused
from aspc.lab.speed.measure import synthetic_table
from aspc.networks import ensemble, mlp
from aspc.training.compiled_loop import Loop, RowRange, start_runs
from aspc.training.hyperparameters import replace_fields
from aspc.training.packed_table import Layout

HERE = Tiles(rows=16, depth=16, interpret=True)  # the kernels' own code, run as ordinary JAX


def networks(fan_in: int, hidden: list[int], out: int, norm: bool):
    """Return twin networks with non-trivial LayerNorms."""
    nets = ensemble(lambda key: mlp(key, fan_in, hidden, out, layer_norm=norm), jax.random.key(0))
    return jax.tree.map(lambda leaf: leaf + 0.3 * jax.random.normal(jax.random.key(leaf.size), leaf.shape), nets)


@pytest.mark.parametrize("choice", [HERE, XlaKernels()], ids=["tiles", "products"])
@pytest.mark.parametrize(
    ("fan_in", "hidden", "out", "norm"),
    [(23, [32] * 3, 1, True), (17, [32] * 2, 6, False), (40, [16], 17, True)],
)
def test_values_and_gradients_match_the_plain_network(
    fan_in: int, hidden: list[int], out: int, norm: bool, choice: KernelChoice
):
    """For all networks of an ensemble at once, and for a single member."""
    with jax.enable_x64(True):
        nets, x = networks(fan_in, hidden, out, norm), jax.random.normal(jax.random.key(1), (32, fan_in))

        def loss(nets, x):
            return jnp.sin(nets(x)).sum() + jnp.cos(nets[1](x)).sum()

        def computed(choice: KernelChoice | None):
            with fused(choice):
                return jax.jit(lambda: (nets(x), jax.grad(loss, (0, 1))(nets, x)))()

        plain, kernel = computed(None), computed(choice)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(kernel), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11)


def test_networks_that_the_kernels_do_not_fit_are_plain():
    def uses_kernels(net, x, *dropout) -> bool:
        with fused(HERE):
            return "pallas_call" in str(jax.make_jaxpr(lambda x: net(x, *dropout))(x))

    x = jnp.ones((32, 5))
    assert uses_kernels(mlp(jax.random.key(0), 5, [16, 16], 2), x)
    assert not uses_kernels(mlp(jax.random.key(0), 5, [16, 16], 2, activation=jax.nn.gelu), x)
    assert not uses_kernels(mlp(jax.random.key(0), 5, [16, 32], 2), x)
    assert not uses_kernels(mlp(jax.random.key(0), 5, [24, 24], 2), x)
    assert not uses_kernels(mlp(jax.random.key(0), 5, [16, 16], 2), x[:20])
    assert not uses_kernels(mlp(jax.random.key(0), 5, [16, 16], 2), x, jnp.ones((2, 32, 16)))


def test_update_with_fused_networks_matches_the_plain_update():
    """All parts in one step: the scale's forward mode and the critics' reverse mode."""
    sizes = {"actor_hidden_dim": 16, "critic_hidden_dim": 16, "critic_hidden_layers": 2, "batch_size": 32}
    algorithm = replace_fields(algorithms.default("aspc"), sizes)
    parts = frozenset({CRITIC, INNER, SCALE})
    with jax.enable_x64(True):
        state = algorithm.init(jax.random.key(0), Spec(4, 2))
        batch = Layout(4, 2, False).unpack(synthetic_table(Layout(4, 2, False))[:32].astype(float))
        noise = {"target_policy": jax.random.normal(jax.random.key(1), (32, 2))}

        def update(choice: KernelChoice | None):
            with fused(choice):
                return jax.jit(lambda state: algorithm.update(state, batch, noise, parts))(state)

        plain, *others = update(None), update(HERE), update(XlaKernels())
    for other in others:
        for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("choice", [Tiles(rows=4, depth=16, interpret=True), XlaKernels()], ids=["tiles", "products"])
@pytest.mark.parametrize("algo", [*ADAPTIVE, "rapo"])
def test_every_scale_can_be_updated_with_fused_networks(algo: str, choice: KernelChoice):
    """Only the weights of a loss depend on a scale, so no network of the inner step moves in forward mode: it would
    be refused here."""
    algorithm = small(algorithms.default(algo))
    parts = frozenset().union(*(parts for segment in algorithm.schedule() for parts in segment.steps))
    rows = 12 * algorithm.batch_size // algorithm.base.batch_size  # twice as many with an independent outer batch
    state, batch, noise = algorithm.init(jax.random.key(0), SPEC), random_batch(0, rows), random_noise(1, algorithm)
    with fused(choice):
        _, metrics = jax.eval_shape(lambda state: algorithm.update(state, batch, noise, parts), state)
    assert any(name.endswith("_dscale") for name in metrics)


def test_cpu_uses_plain_networks_by_default():
    assert kernels.default_kernels(1) is None
    assert kernels.default_kernels(64) is None


def test_a_step_lowers_to_few_kernels_for_a_gpu():
    """Counted in the program lowered for CUDA, which needs no GPU; every additional kernel slows a step down."""
    algorithm = algorithms.default("aspc")
    spec, layout = Spec(17, 6), Layout(17, 6, False)
    loop = Loop(algorithm, spec, layout, vectorize=True, kernels=Tiles())
    source = RowRange(jnp.zeros(2, jnp.int32), jnp.full(2, 1000, jnp.int32))
    runs = start_runs(algorithm, spec, jnp.arange(2), source)
    traced = loop.run_blocks.trace(
        loop, runs.state, runs._replace(state=None), synthetic_table(layout), jnp.asarray(0), blocks=1
    )
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    # A cycle is a critic step and a critic-and-actor step, once in the inner loop and once with the scale's update.
    # Forward: π'(s'), Q'(s', a') and Q(s, a) per critic step; π(s) and Q(s, π(s)) per actor step. Backward: Q(s, a) per
    # critic step; Q(s, π(s)) and π(s) per actor step, and their tangents in the scale's. θ̃ is evaluated plainly.
    assert len(re.findall(r"call @_forward\w*\(", text)) == 2 * 2 * 3 + 2 * 2
    assert len(re.findall(r"call @_backward\w*\(", text)) == 2 * 2 * 1 + 2 * 2 + 2
    # Equal kernels are lowered once, which takes most of a second start: five networks forward, three backward.
    assert text.count('name = "mlp_forward"') == 5
    assert text.count('name = "mlp_backward"') == 3
    # Q(s, π(s)) is the first critic's. Its weights are not copied out of the twins' first: that would be 14 copies.
    kernels_made = [line for line in text.splitlines() if 'name = "mlp_forward"' in line]
    whole = ["tensor<2x2x256x256xf32>, tensor" in line and "-> (tensor<2x256x1xf32>" in line for line in kernels_made]
    assert sum(whole) == 1
