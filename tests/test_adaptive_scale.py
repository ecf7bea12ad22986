"""The paper's outer level: the scale's parameterisation, each loss, and derivatives against finite differences."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspc.adaptive_scale import AdaptiveScale, l1, l2_ema, l2_literal, l3, raw_from_scale
from aspc.algorithms.base import CRITIC, INNER, SCALE, Batch, OuterTerms, Spec
from aspc.algorithms.td3_bc import TD3BC

SPEC = Spec(5, 3)
SMALL = TD3BC(actor_hidden_dim=12, critic_hidden_dim=12)
ALL = frozenset({CRITIC, INNER, SCALE})


def inputs(seed=0, size=24):
    rng = np.random.default_rng(seed)
    batch = Batch(
        rng.normal(size=(size, 5)),
        np.tanh(rng.normal(size=(size, 3))),
        rng.normal(size=size),
        rng.normal(size=(size, 5)),
        (rng.random(size) > 0.1).astype(float),
    )
    return jax.tree.map(jnp.asarray, batch), {"target_policy": jnp.asarray(rng.normal(size=(size, 3)))}


def trained(algorithm, steps=7):
    """A state some steps into training, so that Adam's moments and the average of Q are not zero."""
    state = algorithm.init(jax.random.key(0), SPEC)
    for i in range(steps):
        state, _ = algorithm.update(state, *inputs(i), ALL)
    return state


@pytest.mark.parametrize("scale", [1e-4, 0.1, 2.5, 10.0, 200.0])
def test_softplus_of_raw_is_the_scale(scale):
    np.testing.assert_allclose(jax.nn.softplus(raw_from_scale(scale)), scale, rtol=1e-3 if scale < 1e-3 else 1e-6)


def test_losses_are_the_papers_formulas():
    rng = np.random.default_rng(0)
    q, c, q0, c0 = rng.normal(size=(4, 32))
    c, c0 = np.square(c), np.square(c0)
    after = OuterTerms(jnp.asarray(q), jnp.asarray(c), 2.5, 1.0)
    np.testing.assert_allclose(l1(after), -2.5 * q.mean() / np.abs(q).mean() + c.mean(), rtol=1e-5)
    np.testing.assert_allclose(l2_literal(q, q0), (q.mean() - q0.mean()) ** 2, rtol=1e-4)
    loss2, ema = l2_ema(jnp.asarray(q), jnp.asarray(0.7), 0.995)
    np.testing.assert_allclose(ema, 0.995 * 0.7 + 0.005 * q.mean(), rtol=1e-5)
    np.testing.assert_allclose(loss2, (0.005 * (q.mean() - 0.7)) ** 2, rtol=1e-2)
    loss3, bc_sup, delta = l3(jnp.asarray(0.3), jnp.asarray(c), jnp.asarray(c0))
    np.testing.assert_allclose(bc_sup, c0.max(), rtol=1e-6)
    np.testing.assert_allclose(delta, np.abs(c - c0).max(), rtol=1e-5)
    np.testing.assert_allclose(loss3, 0.3 * c0.max() * np.abs(c - c0).max(), rtol=1e-5)


@pytest.mark.parametrize("l2", ["ema", "literal"])
def test_derivatives_of_each_loss_match_finite_differences(l2):
    """(10): through Adam and the updated actor, with every explicit scale and detached factor held fixed."""
    with jax.enable_x64(True):
        algorithm = AdaptiveScale(base=SMALL, l2=l2)
        state = trained(algorithm)
        ctx = algorithm.base.prepare(state.base, *inputs(99), ALL)
        _, _, metrics = algorithm.outer_update(ctx, state.scale)
        alpha = state.scale.scale
        inner = algorithm.base.inner_step(ctx, alpha)

        def losses(moved):
            """The outer losses of the actor that a step at `moved` gives; explicit scales stay at alpha."""
            shifted = algorithm.base.inner_step(ctx, moved)
            after = algorithm.base.outer_terms(ctx, shifted.params, alpha)
            fixed = algorithm.base.outer_terms(ctx, inner.params, alpha)
            loss1 = -alpha * after.q.mean() / jnp.abs(fixed.q).mean() + after.constraint.mean()
            value = lambda terms: (  # noqa: E731
                l2_ema(terms.q, state.scale.ema_q, algorithm.ema)[0] if l2 == "ema" else l2_literal(terms.q, inner.q)
            )
            loss3 = value(fixed) * inner.constraint.max() * jnp.abs(after.constraint - inner.constraint).max()
            return np.asarray([loss1, value(after), loss3])

        h = 1e-5
        numeric = (losses(alpha + h) - losses(alpha - h)) / (2 * h)
    ours = [float(metrics[f"dl{i}_dscale"]) for i in (1, 2, 3)]
    np.testing.assert_allclose(ours, numeric, rtol=1e-5)
    assert np.all(np.abs(ours) > 0)


def test_the_scales_gradient_is_finite_when_actor_units_are_dead():
    """A dead ReLU has an exactly zero gradient, where Adam's √v has an infinite derivative."""
    algorithm = AdaptiveScale(base=SMALL)
    state = algorithm.init(jax.random.key(0), SPEC)
    first = state.base.actor.net.layers[0]
    dead = dataclasses.replace(first, bias=first.bias.at[:6].set(-1e3))
    actor = dataclasses.replace(
        state.base.actor, net=dataclasses.replace(state.base.actor.net, layers=(dead, *state.base.actor.net.layers[1:]))
    )
    state = state._replace(base=algorithm.base.start(actor, state.base.critics))
    for i in range(5):
        state, metrics = algorithm.update(state, *inputs(i), ALL)
        for name, value in metrics.items():
            assert np.isfinite(value), name
    assert float(state.scale.scale) != 2.5


def test_without_eps_root_that_gradient_would_be_nan(monkeypatch):
    """The test above can fail: it does with the plain square root."""
    monkeypatch.setattr("aspc.optim.EPS_ROOT", 0.0)
    with pytest.raises(AssertionError):
        test_the_scales_gradient_is_finite_when_actor_units_are_dead()


def test_a_scale_that_does_not_learn_leaves_the_base_as_it_is():
    with jax.enable_x64(True):
        wrapped, base = AdaptiveScale(base=SMALL, scale_lr=0.0), SMALL
        ours, theirs = wrapped.init(jax.random.key(1), SPEC), base.init(jax.random.key(1), SPEC)
        for i in range(4):
            ours, _ = wrapped.update(ours, *inputs(i), ALL)
            theirs, _ = base.update(theirs, *inputs(i), ALL)
        for a, b in zip(jax.tree.leaves(ours.base), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("k_alpha", [1, 5, 10])
def test_the_scale_moves_on_every_k_alphath_actor_step(k_alpha):
    steps = [parts for s in AdaptiveScale(k_alpha=k_alpha).schedule() for parts in s.steps * s.repeats]
    assert len(steps) == 2 * k_alpha
    assert [i for i, parts in enumerate(steps) if SCALE in parts] == [2 * k_alpha - 1]
    assert [i for i, parts in enumerate(steps) if INNER in parts] == list(range(1, 2 * k_alpha, 2))


def test_the_scales_learning_rate_ends_at_one_percent():
    algorithm = AdaptiveScale(horizon=2000)
    schedule = algorithm.scale_optimiser().learning_rate
    np.testing.assert_allclose(schedule(0), 2e-3)
    np.testing.assert_allclose(schedule(100), 2e-5, rtol=1e-5)
