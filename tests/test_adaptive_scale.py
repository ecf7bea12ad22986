"""The paper's outer level: the scale's parameterization, each loss, and derivatives against finite differences."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspc import algorithms
from aspc.adaptive_scale import AdaptiveScale, StepOutcome, l1, l2_ema, l2_literal, l3, raw_from_scale
from aspc.algorithms.interface import CRITIC, INNER, SCALE, Batch, OuterTerms, Spec
from aspc.algorithms.td3_bc import TD3BC
from aspc.algorithms.wpc import WPC
from aspc.errors import AspcError

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
    state = jax.jit(algorithm.init, static_argnums=1)(jax.random.key(0), SPEC)
    step = jax.jit(algorithm.update, static_argnums=3)
    for i in range(steps):
        state, _ = step(state, *inputs(i), ALL)
    return state


@pytest.mark.parametrize("scale", [1e-4, 0.1, 2.5, 10.0, 200.0])
def test_softplus_of_raw_is_the_scale(scale):
    np.testing.assert_allclose(jax.nn.softplus(raw_from_scale(scale)), scale, rtol=1e-3 if scale < 1e-3 else 1e-6)


def test_losses_are_the_papers_formulas():
    rng = np.random.default_rng(0)
    q, c, q0, c0 = rng.normal(size=(4, 32))
    c, c0 = np.square(c), np.square(c0)
    after = OuterTerms(jnp.asarray(q), jnp.asarray(c), 2.5, 1.0)
    losses = {"L2": jnp.asarray(0.3)}
    step = StepOutcome(
        jnp.asarray(q0), jnp.asarray(c0), after, jnp.asarray(0.7), jnp.asarray(0.9), 2.5, None, None, losses
    )
    np.testing.assert_allclose(l1(step), -2.5 * q.mean() / np.abs(q).mean() + c.mean(), rtol=1e-5)
    np.testing.assert_allclose(l2_literal(step), (q.mean() - q0.mean()) ** 2, rtol=1e-4)
    np.testing.assert_allclose(l2_ema(step), (0.9 - 0.7) ** 2, rtol=1e-4)
    variation = np.abs(c - c0).max()
    forms = {
        1: variation,
        2: c0.max() * variation,
        3: 0.3 * variation,
        4: 0.3 * c0.max() * variation,
        5: 0.3 * c0.mean() * np.abs(c.mean() - c0.mean()),
    }
    for form, expected in forms.items():
        for choice in (form, jnp.asarray(form - 1)):  # by name, and by number
            np.testing.assert_allclose(l3(step, choice), expected, rtol=1e-4)


def test_the_average_of_q_is_exponential():
    algorithm = AdaptiveScale(base=SMALL, ema=0.9)
    state = trained(algorithm, steps=0)
    start = dataclasses.replace(state.scale, ema_q=jnp.asarray(0.7))

    @jax.jit
    def update():
        ctx = algorithm.base.prepare(state.base, *inputs(0), ALL)
        inner, scale, metrics = algorithm.outer_update(ctx, ctx, start)
        return scale, metrics, algorithm.base.outer_terms(ctx, inner.params, 2.5).q

    scale, metrics, q = update()
    np.testing.assert_allclose(scale.ema_q, 0.9 * 0.7 + 0.1 * q.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["l2"], (scale.ema_q - 0.7) ** 2, rtol=1e-4)


@pytest.mark.parametrize("l2", ["ema", "literal"])
def test_derivatives_of_each_loss_match_finite_differences(l2):
    """(10): through Adam and the updated actor, with every explicit scale and detached factor held fixed."""
    with jax.enable_x64(True):
        algorithm = AdaptiveScale(base=SMALL, l2=l2)
        state = trained(algorithm)
        ctx = jax.jit(algorithm.base.prepare, static_argnums=3)(state.base, *inputs(99), ALL)
        _, _, metrics = jax.jit(algorithm.outer_update)(ctx, ctx, state.scale)
        alpha = state.scale.scale
        inner = jax.jit(algorithm.base.inner_step)(ctx, alpha)

        @jax.jit
        def losses(moved):
            """The outer losses of the actor that a step at `moved` gives; explicit scales stay at alpha."""
            shifted = algorithm.base.inner_step(ctx, moved)
            after = algorithm.base.outer_terms(ctx, shifted.params, alpha)
            fixed = algorithm.base.outer_terms(ctx, inner.params, alpha)
            loss1 = -alpha * after.q.mean() / jnp.abs(fixed.q).mean() + after.constraint.mean()
            change = lambda terms: (  # noqa: E731
                (1 - algorithm.ema) * (terms.q.mean() - state.scale.ema_q)
                if l2 == "ema"
                else terms.q.mean() - inner.q.mean()
            )
            loss3 = change(fixed) ** 2 * inner.constraint.max() * jnp.abs(after.constraint - inner.constraint).max()
            return jnp.stack([loss1, change(after) ** 2, loss3])

        h = 1e-5
        numeric = (losses(alpha + h) - losses(alpha - h)) / (2 * h)
    ours = [float(metrics[f"dl{i}_dscale"]) for i in (1, 2, 3)]
    np.testing.assert_allclose(ours, numeric, rtol=1e-5)
    assert np.all(np.abs(ours) > 0)


def test_outer_loss_option_selects_its_terms():
    """Adam's first moment after one update is a tenth of the gradient; every loss by its number, in one program."""
    with jax.enable_x64(True):
        algorithm = AdaptiveScale(base=SMALL, ema=0.5)
        state = trained(algorithm)
        ctx = jax.jit(algorithm.base.prepare, static_argnums=3)(state.base, *inputs(99), ALL)
        fresh = algorithm.start(state.base).scale

        def update(number):
            return dataclasses.replace(algorithm, outer_loss=number).outer_update(ctx, ctx, fresh)[1:]

        update = jax.jit(update)
        for number, terms in enumerate(([1], [1, 2], [1, 3], [1, 2, 3])):
            scale, metrics = update(jnp.asarray(number))
            gradient = sum(metrics[f"dl{i}_dscale"] for i in terms) * jax.nn.sigmoid(fresh.raw)
            np.testing.assert_allclose(10 * scale.opt[0].mu, gradient, rtol=1e-12)
        parts = [float(metrics[f"dl{i}_dscale"]) for i in (1, 2, 3)]
        assert np.all(np.abs(parts) > 1e-10 * abs(parts[0]))  # each is seen in the sum


def test_the_scales_gradient_is_finite_when_actor_units_are_dead():
    """A dead ReLU has an exactly zero gradient, where Adam's √v has an infinite derivative."""
    algorithm = AdaptiveScale(base=SMALL)
    state = algorithm.init(jax.random.key(0), SPEC)
    first = state.base.actor.net.layers[0]
    dead = dataclasses.replace(first, bias=first.bias.at[:6].set(-1e3))
    actor = dataclasses.replace(
        state.base.actor, net=dataclasses.replace(state.base.actor.net, layers=(dead, *state.base.actor.net.layers[1:]))
    )
    state = dataclasses.replace(state, base=algorithm.base.start(actor, state.base.critics))
    step = jax.jit(algorithm.update, static_argnums=3)
    for i in range(5):
        state, metrics = step(state, *inputs(i), ALL)
        for name, value in metrics.items():
            assert np.isfinite(value), name
    assert float(state.scale.scale) != 2.5


def test_without_eps_root_that_gradient_would_be_nan(monkeypatch):
    """The test above can fail: it does with the plain square root."""
    monkeypatch.setattr("aspc.optim.EPS_ROOT", 0.0)
    with pytest.raises(AssertionError):
        test_the_scales_gradient_is_finite_when_actor_units_are_dead()


def test_fixed_scale_equals_the_base_algorithm():
    with jax.enable_x64(True):
        wrapped, base = AdaptiveScale(base=SMALL, scale_lr=0.0), SMALL
        ours, theirs = wrapped.init(jax.random.key(1), SPEC), base.init(jax.random.key(1), SPEC)
        our_step, their_step = (jax.jit(algorithm.update, static_argnums=3) for algorithm in (wrapped, base))
        for i in range(4):
            ours, _ = our_step(ours, *inputs(i), ALL)
            theirs, _ = their_step(theirs, *inputs(i), ALL)
        for a, b in zip(jax.tree.leaves(ours.base), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("k_alpha", [1, 5, 10])
def test_scale_is_updated_every_k_alpha_actor_steps(k_alpha):
    steps = [parts for s in AdaptiveScale(k_alpha=k_alpha).schedule() for parts in s.steps * s.repeats]
    assert len(steps) == 2 * k_alpha
    assert [i for i, parts in enumerate(steps) if SCALE in parts] == [2 * k_alpha - 1]
    assert [i for i, parts in enumerate(steps) if INNER in parts] == list(range(1, 2 * k_alpha, 2))


def test_the_scales_learning_rate_ends_at_one_percent():
    algorithm = AdaptiveScale(scale_horizon=2000)
    schedule = algorithm.outer_optimizer().learning_rate
    np.testing.assert_allclose(schedule(0), 2e-3)
    np.testing.assert_allclose(schedule(100), 2e-5, rtol=1e-5)


# -- ablations -----------------------------------------------------------------------------------------------


def run_steps(algorithm, steps):
    """Whole cycles of the schedule on random batches; the scale after each step."""
    state, scales = algorithm.init(jax.random.key(0), SPEC), []
    cycle = [parts for s in algorithm.schedule() for parts in s.steps * s.repeats]
    update = jax.jit(algorithm.update, static_argnums=3)
    for i in range(steps):
        batch, noise = inputs(i, algorithm.batch_size)
        if algorithm.outer_batch == "independent":
            first, second = jnp.split(noise["target_policy"], 2)
            noise = {"target_policy": first, "outer/target_policy": second}
        state, _ = update(state, batch, noise, cycle[i % len(cycle)])
        scales.append(float(state.scale.scale))
    return state, scales


TINY_BASE = dataclasses.replace(SMALL, batch_size=24)


def test_fixed_converged_and_linear_scales():
    options = {"base": TINY_BASE, "k_alpha": 2, "scale_horizon": 40}
    _, fixed = run_steps(AdaptiveScale(scale_mode="fixed", **options), 12)
    np.testing.assert_allclose(fixed, 2.5, rtol=1e-6)
    _, converged = run_steps(AdaptiveScale(scale_mode="converged", scale_target=7.0, **options), 12)
    np.testing.assert_allclose(converged, 7.0, rtol=1e-6)
    _, linear = run_steps(AdaptiveScale(scale_mode="linear", scale_target=7.0, **options), 48)
    np.testing.assert_allclose(linear[3::4], np.minimum(2.5 + 4.5 * np.arange(1, 13) / 10, 7.0), rtol=1e-5)
    with pytest.raises(AspcError, match="scale_target"):
        AdaptiveScale(scale_mode="converged")


def test_independent_outer_batch_changes_the_scale_but_not_the_inner_step():
    with jax.enable_x64(True):
        options = {"base": TINY_BASE, "k_alpha": 1}
        _, scale_same = run_steps(AdaptiveScale(**options), 2)
        state, scales = run_steps(AdaptiveScale(outer_batch="independent", **options), 2)
        algorithm = AdaptiveScale(outer_batch="independent", scale_lr=0.0, **options)
        unlearned, _ = run_steps(algorithm, 2)
        for a, b in zip(jax.tree.leaves(state.base), jax.tree.leaves(unlearned.base), strict=True):
            np.testing.assert_array_equal(a, b)
    assert scales[-1] != scale_same[-1]
    assert scales[-1] != 2.5


def test_critics_are_not_fitted_to_the_outer_batch():
    """The critics that weigh its samples are not fitted to them first."""
    base = WPC(actor_hidden_dim=12, critic_hidden_dim=12, value_hidden_dim=12, batch_size=24, critic_lr=1e-2)
    state = jax.jit(base.init, static_argnums=1)(jax.random.key(0), SPEC)

    @jax.jit
    def advantages():
        """Return the advantages of the outer batch, by the algorithm and by its critics."""
        ctx = base.prepare(state, *inputs(0), frozenset({CRITIC, INNER}))
        batch, noise = inputs(1)
        outer_ctx = base.prepare_again(ctx, batch, noise)
        assert outer_ctx.state is ctx.state
        q, v = ctx.state.critics[0](batch.observations, batch.actions), ctx.state.value(batch.observations)
        return outer_ctx.extra, q - v

    found, expected = advantages()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_advantage_weights_have_mean_one_and_prefer_good_actions():
    algorithm = algorithms.default("aspc_aw")
    base = dataclasses.replace(algorithm.base, actor_hidden_dim=12, critic_hidden_dim=12, value_hidden_dim=12)
    state = jax.jit(base.init, static_argnums=1)(jax.random.key(0), SPEC)
    ctx = jax.jit(base.prepare, static_argnums=3)(state, *inputs(0), ALL)
    weights = np.asarray(base.bc_weight(ctx))
    np.testing.assert_allclose(weights.mean(), 1, rtol=1e-5)
    assert np.corrcoef(weights, ctx.extra)[0, 1] > 0.5
    # L1 is weighted, L3 is not: the constraint itself comes unweighted.
    terms = base.outer_terms(ctx, state.actor, 2.5)
    plain = jnp.square(state.actor(ctx.batch.observations) - ctx.batch.actions).mean(-1)
    np.testing.assert_allclose(terms.constraint, plain, rtol=1e-6)
    np.testing.assert_allclose(terms.constraint_weight, weights, rtol=1e-6)
