"""RAPO: exact derivatives of both outer losses, the order of its updates, and what its two policies share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import SPEC, amplified_state, mid_training_state, random_batch, random_noise, small

from aspc import algorithms
from aspc.adaptive_scale import raw_from_scale
from aspc.algorithms.interface import CRITIC, INNER, SCALE, Context, schedule_length
from aspc.algorithms.rapo import RAPO, Coefficient, RAPOState, norm
from aspc.algorithms.td3_bc import TD3BC
from aspc.algorithms.two_scales import AveragedState

ALL = frozenset({CRITIC, INNER, SCALE})


def rapo(**changes: Any) -> RAPO:
    return replace(small(RAPO()), **changes)


def mid_training(algorithm: RAPO) -> RAPOState:
    """A state whose target critics and second policy differ from the networks they started as."""
    base = mid_training_state(amplified_state(algorithm.base, dead_units=3))
    moved = lambda tree, factor: jax.tree.map(lambda leaf: leaf * factor, tree)  # noqa: E731
    base = replace(
        base,
        second=moved(base.second, 1.1),
        actor_target=moved(base.actor, 0.9),
        critics_target=moved(base.critics, 0.8),
    )
    return algorithm.start(base)


def at(coefficient: Coefficient, scale: Any) -> Coefficient:
    return replace(coefficient, raw=raw_from_scale(scale))


def slope_of(function: Any, here: float) -> float:
    h = 1e-3 * here
    near, far = (function(here + k * h) - function(here - k * h) for k in (1, 2))
    return (8 * near - far) / (12 * h)


def inputs(algorithm: RAPO) -> tuple[Context, Any]:
    """Return the context of an inner step, and the batch that evaluates it."""
    batch, noise, other = algorithm.split_inputs(random_batch(1, algorithm.batch_size), random_noise(2, algorithm))
    assert other is not None
    return algorithm.base.prepare(mid_training(algorithm).base, batch, noise, ALL), other[0]


def test_execution_loss_derivative_matches_finite_differences() -> None:
    """(9), (10), written out by hand, with both action gradients and the value scale held fixed."""
    with jax.enable_x64(True):
        algorithm = rapo()
        ctx, outer = inputs(algorithm)
        state, s = ctx.state, outer.observations
        coefficient = algorithm.start(state).acting_scale
        critic = state.critics_target[0]
        update = jax.jit(lambda scale: algorithm.update_acting_scale(ctx, outer, at(coefficient, scale)))
        here = 5.0
        inner, _, metrics = update(here)
        before, after = state.second(s), inner.params(s)
        gradient = jax.grad(lambda a: critic(s, a).sum())
        g_before, g_after = gradient(before), gradient(after)
        size = np.abs(critic(s, after)).mean()

        def loss(scale: float) -> float:
            step = update(scale)[0].params(s) - before
            curvature = np.linalg.norm(g_after - g_before, axis=-1) * np.linalg.norm(step, axis=-1)
            return float(-((g_before * step).sum(-1) - curvature / 2).mean() / size)

        slope = slope_of(loss, here)
        assert float(metrics["execution_loss"]) == pytest.approx(loss(here), rel=1e-10)
    assert abs(slope) > 1e-12
    np.testing.assert_allclose(metrics["dexecution_loss_dscale"], slope, rtol=1e-5)


def test_bootstrap_loss_derivative_matches_finite_differences() -> None:
    """(11), (12), written out by hand through a gradient step, with α_B in front and the value scale held fixed."""
    with jax.enable_x64(True):
        algorithm = rapo()
        ctx, outer = inputs(algorithm)
        state = ctx.state
        coefficient = algorithm.start(state).scale
        here = 5.0
        _, metrics = jax.jit(lambda scale: algorithm.update_scale(ctx, outer, at(coefficient, scale)))(here)

        @jax.jit
        def candidate(scale: Any) -> Any:
            """TD3+BC's own loss, divided by the scale."""
            grads = jax.grad(lambda p: TD3BC.actor_loss(algorithm.base, ctx, p, scale)[0] / scale)(state.actor)
            return jax.tree.map(lambda p, g: p - 3e-4 * g, state.actor, grads)

        def lowest(observations: Any, actor: Any) -> Any:
            return state.critics_target(observations, actor(observations)).min(0)

        size = np.abs(lowest(outer.observations, candidate(here))).mean() + 1e-6

        def loss(scale: float) -> float:
            new, old = (lowest(outer.next_observations, actor) for actor in (candidate(scale), state.actor))
            return float(here * np.sqrt(np.square(0.99 * outer.masks * (new - old) / size).mean()))

        slope = slope_of(loss, here)
        assert float(metrics["bootstrap_loss"]) == pytest.approx(loss(here), rel=1e-10)
    assert abs(slope) > 1e-12
    np.testing.assert_allclose(metrics["dbootstrap_loss_dscale"], slope, rtol=1e-5)


def test_acting_policy_uses_the_old_coefficient_and_bootstrap_policy_the_new_one() -> None:
    with jax.enable_x64(True):
        algorithm = rapo(scale_lr=1.0)
        state, batch, noise = mid_training(algorithm), random_batch(1, algorithm.batch_size), random_noise(2, algorithm)
        after, _ = jax.jit(lambda: algorithm.update(state, batch, noise, ALL))()
        first, inner_noise, _ = algorithm.split_inputs(batch, noise)
        ctx = algorithm.base.prepare(state.base, first, inner_noise, ALL)
        actor = algorithm.base.first_step(ctx, after.scale.scale).params
        second = algorithm.base.second_step(ctx, state.acting_scale.scale).params
        moved = [float(c.scale) for c in (after.scale, after.acting_scale)]
    assert np.all(np.abs(np.array(moved) - 5) > 0.1)
    close(after.base.actor, actor)
    close(after.base.second, second)


def test_acting_policy_does_not_affect_critics_or_bootstrap_policy() -> None:
    algorithm = rapo()
    update = jax.jit(lambda state, batch, noise: algorithm.update(state, batch, noise, ALL)[0])

    def trained(scale: float) -> RAPOState:
        state = mid_training(algorithm)
        state = replace(state, acting_scale=at(state.acting_scale, scale))
        for i in range(4):
            state = update(state, random_batch(i, algorithm.batch_size), random_noise(9 + i, algorithm))
        return state

    one, other = trained(5.0), trained(50.0)
    for name in ("actor", "actor_target", "critics", "critics_target"):
        equal(getattr(one.base, name), getattr(other.base, name))
    equal(one.scale, other.scale)
    assert not np.array_equal(one.base.second.net.layers[0].weight, other.base.second.net.layers[0].weight)
    equal(algorithm.policy(other).arrays, TD3BC().policy(replace(other.base, actor=other.base.second)).arrays)


def test_candidate_steps_are_evaluated_on_independent_rows() -> None:
    algorithm = rapo()
    state, noise = mid_training(algorithm), random_noise(2, algorithm)
    batch, half = random_batch(1, algorithm.batch_size), algorithm.base.batch_size
    others = jax.tree.map(lambda a, b: jnp.concatenate([a[:half], b[half:]]), batch, random_batch(3, 2 * half))
    update = jax.jit(lambda batch: algorithm.update(state, batch, noise, ALL)[0])
    one, other = update(batch), update(others)
    equal((one.base.critics, one.base.second), (other.base.critics, other.base.second))
    assert one.scale.opt[0].mu != other.scale.opt[0].mu
    assert one.acting_scale.opt[0].mu != other.acting_scale.opt[0].mu


def test_saturated_actions_have_a_finite_derivative() -> None:
    """A saturated tanh does not change, so ‖δ‖ and the root mean square are 0 and have no derivative."""
    value, slope = jax.jvp(lambda x: norm(x * jnp.zeros((3, 2))), (1.0,), (1.0,))
    np.testing.assert_array_equal((value, slope), np.zeros((2, 3)))
    algorithm = rapo()
    state = mid_training(algorithm)
    saturated = jax.tree.map(lambda leaf: leaf * 1e4, (state.base.actor, state.base.second))
    state = replace(state, base=replace(state.base, actor=saturated[0], second=saturated[1]))
    batch, noise = random_batch(1, algorithm.batch_size), random_noise(2, algorithm)
    after, metrics = jax.jit(lambda: algorithm.update(state, batch, noise, ALL))()
    assert metrics["dexecution_loss_dscale"] == metrics["dbootstrap_loss_dscale"] == 0
    assert (after.scale.scale, after.acting_scale.scale) == (state.scale.scale, state.acting_scale.scale)


def test_rapo_has_the_settings_of_its_paper() -> None:
    algorithm = algorithms.default("rapo")
    base = algorithm.base
    assert (base.alpha, base.actor_lr, base.critic_lr, algorithm.scale_lr) == (5.0, 3e-4, 3e-4, 3e-4)
    assert (base.batch_size, algorithm.batch_size, algorithm.scale_lr_final_ratio) == (256, 512, 0.01)
    assert schedule_length(algorithm.schedule()) == 20
    assert sum(SCALE in parts for segment in algorithm.schedule() for parts in segment.steps) == 1
    state = jax.eval_shape(lambda: algorithm.init(jax.random.key(0), SPEC))
    assert not isinstance(state.base, AveragedState)


def close(a: Any, b: Any) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-14)


def equal(a: Any, b: Any) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)
