"""ASPC on every base: the derivative of the outer loss is exact, and a constant scale changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import ADAPTIVE, amplified_state, cycle, mid_training_state, random_batch, random_noise, run, small

from aspc import algorithms
from aspc.adaptive_scale import AdaptiveScale, raw_from_scale
from aspc.algorithms.cql import CQL
from aspc.algorithms.diffusion_ql import DiffusionQL
from aspc.algorithms.fql import FQL
from aspc.algorithms.interface import INNER
from aspc.algorithms.iql import IQL
from aspc.algorithms.rebrac import ReBRAC

# The registered ones, and other options of their bases.
VARIANTS = {
    **{name: lambda name=name: algorithms.default(name) for name in ADAPTIVE},
    "iql deterministic, dropout": lambda: AdaptiveScale(base=IQL(deterministic=True, actor_dropout=0.2)),
    "rebrac, Q not normalized": lambda: AdaptiveScale(base=ReBRAC(normalize_q=False, beta1=0.5)),
    "cql lagrange": lambda: AdaptiveScale(base=CQL(lagrange=True, max_target_backup=True)),
    "cql, appendix D's penalty": lambda: AdaptiveScale(base=CQL(penalty="policy")),
    "diffusion_ql, appendix D's normalizer": lambda: AdaptiveScale(base=DiffusionQL(normalize_by="same")),
    "fql, the authors' objective": lambda: AdaptiveScale(base=FQL()),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_outer_derivative_matches_finite_differences(name: str) -> None:
    """(10): factors without gradient (scale and normalizer in L1, the average in L2) are held fixed.

    Some units are dead: their weights have a second moment of exactly 0, where √v has no derivative.
    """
    with jax.enable_x64(True):
        algorithm = small(VARIANTS[name]())
        base = algorithm.base
        if base.scale < 0.1:  # with a smaller scale, differences are rounding errors
            base = replace(base, **{base.scale_name: 0.5})
            algorithm = replace(algorithm, base=base)
        parts = next(parts for parts in cycle(base) if INNER in parts)
        state = mid_training_state(amplified_state(base, dead_units=3))
        batch, noise = random_batch(98, base.batch_size), random_noise(99, base)
        outer = replace(algorithm.start(state).scale, ema_q=jnp.asarray(0.7))
        here = float(outer.scale)

        @jax.jit
        def outer_level(scale: Any) -> Any:
            """Return the derivatives at `scale`, and Q and constraint under the resulting parameters."""
            ctx = base.prepare(state, batch, noise, parts)
            inner, _, metrics = algorithm.outer_update(ctx, ctx, replace(outer, raw=raw_from_scale(scale)))
            return (metrics["dl1_dscale"], metrics["dl2_dscale"]), base.outer_terms(ctx, inner.params, here)

        got, fixed = outer_level(here)

        def losses(scale: float) -> np.ndarray:
            _, after = outer_level(scale)
            q_term = after.q.mean() / jnp.abs(fixed.q).mean()
            l1 = -fixed.q_weight * q_term + (fixed.constraint_weight * after.constraint).mean()
            l2 = ((1 - algorithm.ema) * (after.q.mean() - outer.ema_q)) ** 2
            return np.array([l1, l2])

        h = 1e-3 * here
        near, far = (losses(here + k * h) - losses(here - k * h) for k in (1, 2))
        slope = (8 * near - far) / (12 * h)
    assert np.all(np.abs(slope) > 1e-12), "the scale does nothing here, so nothing is tested"
    np.testing.assert_allclose(got, slope, rtol=1e-5)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_constant_scale_equals_the_base_algorithm(name: str) -> None:
    with jax.enable_x64(True):
        algorithm = replace(small(algorithms.default(name)), k_alpha=1, scale_lr=0.0, outer_batch="same")
        start = amplified_state(algorithm.base)
        plain, adaptive = run(algorithm.base, start, 5), run(algorithm, algorithm.start(start), 5)
        assert float(adaptive.scale.scale) == pytest.approx(algorithm.base.scale, rel=1e-12)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(adaptive.base), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_iql_weights_at_their_bound_have_no_gradient() -> None:
    algorithm = IQL(max_weight=100.0)
    advantage = jnp.array([-1.0, 0.5, 4.0, 1e5])
    ctx = type("Ctx", (), {"extra": advantage})()
    weights, slopes = jax.jvp(lambda beta: algorithm.weights(ctx, beta), (3.0,), (1.0,))
    np.testing.assert_allclose(weights, [np.exp(-3), np.exp(1.5), 100, 100], rtol=1e-6)
    np.testing.assert_allclose(slopes, [-np.exp(-3), 0.5 * np.exp(1.5), 0, 0], rtol=1e-6)


def test_appendix_d_and_the_authors_weigh_fql_differently() -> None:
    """The same losses, α on the other one: at α = 1 with a normalized Q the two objectives are one."""
    with jax.enable_x64(True):
        authors = small(FQL(normalize_q=True))
        batch, noise = random_batch(0, 12), random_noise(1, authors)
        start = amplified_state(authors)

        def weights_after(algorithm: FQL) -> Callable[[float], np.ndarray]:
            def step(alpha: Any) -> Any:
                return replace(algorithm, alpha=alpha).update(start, batch, noise, cycle(algorithm)[0])[0].one_step

            compiled = jax.jit(step)
            return lambda alpha: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(compiled(alpha))])

        by_authors, by_appendix = weights_after(authors), weights_after(replace(authors, scale_on="q"))
        np.testing.assert_allclose(by_authors(1.0), by_appendix(1.0), rtol=1e-12)
        assert np.abs(by_authors(2.0) - by_appendix(2.0)).max() > 1e-5
