"""Custom terms of the outer loss: replaced, added and re-weighted ones, and the documented example."""

from __future__ import annotations

import ast
import runpy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import SPEC, random_batch, random_noise, small

import registries
from aspc.__main__ import main
from aspc.algorithms.interface import CRITIC, INNER, SCALE, Metrics
from aspc.algorithms.iql import IQL
from aspc.algorithms.td3_bc import TD3BC
from aspc.authoring import AdaptiveScale, LossTerm, NonNegative, StepOutcome
from aspc.errors import AspcError
from aspc.training.compiled_loop import Loop
from aspc.training.run_folder import Run

EXAMPLE = Path(__file__).parents[2] / "examples" / "one_sided_l2.py"
ALL = frozenset({CRITIC, INNER, SCALE})
BASE = TD3BC(actor_hidden_dim=12, critic_hidden_dim=12, critic_hidden_layers=1, batch_size=12)


def policy_change(step: StepOutcome) -> jax.Array:
    """E ‖π̃(s) − π(s)‖², from the parameters and the batch."""
    observations, actor = step.context.batch.observations, step.context.state.actor
    return jnp.square(step.params(observations) - actor(observations)).mean()


@dataclass(frozen=True)
class ReplacedL2(AdaptiveScale):
    def loss_terms(self) -> dict[str, LossTerm]:
        return {**super().loss_terms(), "L2": lambda step: jnp.abs(step.after.q.mean() - step.q.mean())}


@dataclass(frozen=True)
class AddedTerm(AdaptiveScale):
    def loss_terms(self) -> dict[str, LossTerm]:
        return {**super().loss_terms(), "Policy_change": policy_change}


@dataclass(frozen=True)
class WeightedTerms(AddedTerm):
    l2_weight: NonNegative = 3.0

    def term_weights(self) -> dict[str, Any]:
        return {"L2": self.l2_weight, "Policy_change": 0.5}


def mid_run(algorithm: Any, steps: int = 3) -> tuple[Any, Any]:
    """Return the base's context and the scale's state some steps into training; the latter has a fresh optimizer."""
    state = jax.jit(algorithm.init, static_argnums=1)(jax.random.key(0), SPEC)
    step = jax.jit(algorithm.update, static_argnums=3)
    size = algorithm.batch_size
    for i in range(steps):
        state, _ = step(state, random_batch(i, size), random_noise(i, algorithm), ALL)
    prepare = jax.jit(algorithm.base.prepare, static_argnums=3)
    ctx = prepare(state.base, random_batch(9, size), random_noise(9, algorithm), ALL)
    return ctx, replace(algorithm.start(state.base).scale, ema_q=state.scale.ema_q)


def outer_update(algorithm: Any, ctx: Any, state: Any) -> tuple[Any, Metrics]:
    _, scale, metrics = jax.jit(algorithm.outer_update)(ctx, ctx, state)
    return scale, metrics


def gradient(scale: Any, state: Any) -> float:
    """Return the derivative of the outer loss: Adam's first moment after one update is a tenth of the gradient."""
    return float(10 * scale.opt[0].mu / jax.nn.sigmoid(state.raw))


def test_replacing_a_term_changes_only_that_term() -> None:
    with jax.enable_x64(True):
        plain = AdaptiveScale(base=BASE, l3_form=1)  # this L3 does not multiply L2
        ctx, state = mid_run(plain)
        (_, ours), (_, theirs) = (
            outer_update(kind(base=BASE, l3_form=1), ctx, state) for kind in (ReplacedL2, AdaptiveScale)
        )
        assert ours.keys() == theirs.keys()
        changed = {name for name in ours if not np.allclose(ours[name], theirs[name], rtol=1e-9, atol=0)}
        assert changed == {"l2", "dl2_dscale"}
        np.testing.assert_allclose(ours["l2"], abs(ours["delta_q"]), rtol=1e-9)

        _, metrics = outer_update(ReplacedL2(base=BASE), ctx, state)  # this one does
        np.testing.assert_allclose(
            metrics["l3"], metrics["l2"] * metrics["bc_sup"] * metrics["delta_bc_sup"], rtol=1e-9
        )


def test_an_added_term_is_logged_and_used_with_every_outer_loss() -> None:
    with jax.enable_x64(True):
        ctx, state = mid_run(AdaptiveScale(base=BASE))
        _, theirs = outer_update(AdaptiveScale(base=BASE), ctx, state)
        scale, ours = outer_update(AddedTerm(base=BASE, outer_loss="L1"), ctx, state)
        assert ours.keys() - theirs.keys() == {"policy_change", "dpolicy_change_dscale"}
        for name in theirs:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-9)
        assert ours["policy_change"] > 0
        total = ours["dl1_dscale"] + ours["dpolicy_change_dscale"]
        np.testing.assert_allclose(gradient(scale, state), total, rtol=1e-9)
        assert abs(ours["dpolicy_change_dscale"]) > 1e-8 * abs(total)


def test_weights_scale_the_term_and_its_derivative() -> None:
    """The weight is traced, as for runs of one program that differ in it."""
    with jax.enable_x64(True):
        ctx, state = mid_run(AdaptiveScale(base=BASE))
        _, plain = outer_update(AddedTerm(base=BASE), ctx, state)

        @jax.jit
        def update(l2_weight: jax.Array) -> tuple[Any, Metrics]:
            return WeightedTerms(base=BASE, l2_weight=l2_weight).outer_update(ctx, ctx, state)[1:]

        for weight in (0.0, 2.0):
            scale, ours = update(jnp.asarray(weight))
            factors = {"l2": weight, "policy_change": 0.5}
            for name in plain:
                factor = factors.get(name.removeprefix("d").removesuffix("_dscale"), 1.0)
                np.testing.assert_allclose(ours[name], factor * plain[name], rtol=1e-9, err_msg=name)
            parts = [ours[f"d{name}_dscale"] for name in ("l1", "l2", "l3", "policy_change")]
            np.testing.assert_allclose(gradient(scale, state), sum(parts), rtol=1e-9)


def test_the_total_derivative_matches_finite_differences() -> None:
    with jax.enable_x64(True):
        algorithm = WeightedTerms(base=BASE, ema=0.5)
        ctx, state = mid_run(algorithm)
        scale, _ = outer_update(algorithm, ctx, state)
        alpha, base = state.scale, algorithm.base
        inner = jax.jit(base.inner_step)(ctx, alpha)
        fixed = base.outer_terms(ctx, inner.params, alpha)

        @jax.jit
        def total(moved: jax.Array) -> jax.Array:
            """Weighted sum for a step at `moved`, with explicit scales and detached factors held fixed."""
            params = base.inner_step(ctx, moved).params
            after = base.outer_terms(ctx, params, alpha)
            l1 = -alpha * after.q.mean() / jnp.abs(fixed.q).mean() + after.constraint.mean()
            l2, fixed_l2 = (jnp.square(0.5 * (terms.q.mean() - state.ema_q)) for terms in (after, fixed))
            l3 = fixed_l2 * inner.constraint.max() * jnp.abs(after.constraint - inner.constraint).max()
            observations = ctx.batch.observations
            change = jnp.square(params(observations) - ctx.state.actor(observations)).mean()
            return l1 + 3.0 * l2 + l3 + 0.5 * change

        h = 1e-5
        numeric = (total(alpha + h) - total(alpha - h)) / (2 * h)
        np.testing.assert_allclose(gradient(scale, state), numeric, rtol=1e-5)


def test_q_before_the_step_exists_for_every_base() -> None:
    """The inner step of IQL does not compute it."""
    base = small(IQL())
    ctx, state = mid_run(ReplacedL2(base=base), steps=1)
    _, metrics = outer_update(ReplacedL2(base=base), ctx, state)
    _, literal = outer_update(AdaptiveScale(base=base, l2="literal"), ctx, state)
    np.testing.assert_allclose(metrics["l2"], abs(literal["delta_q"]), rtol=1e-5)
    assert "delta_q" not in metrics  # logged where it costs nothing


def test_invalid_terms_are_refused() -> None:
    @dataclass(frozen=True)
    class PerSample(AdaptiveScale):
        def loss_terms(self) -> dict[str, LossTerm]:
            return {**super().loss_terms(), "L4": lambda step: step.after.q}

    @dataclass(frozen=True)
    class Misspelt(AdaptiveScale):
        def term_weights(self) -> dict[str, Any]:
            return {"L22": 2.0}

    ctx, state = mid_run(AdaptiveScale(base=BASE), steps=0)
    with pytest.raises(AspcError, match=r"Loss term 'L4' has shape \(12,\)\. Make it a scalar"):
        jax.eval_shape(PerSample(base=BASE).outer_update, ctx, ctx, state)
    with pytest.raises(AspcError, match="Unknown term 'L22' in term_weights; did you mean L2"):
        jax.eval_shape(Misspelt(base=BASE).outer_update, ctx, ctx, state)


def test_the_example_trains_from_the_command_line(tmp_path: Path) -> None:
    (kind,) = (node for node in ast.parse(EXAMPLE.read_text()).body if isinstance(node, ast.ClassDef))
    assert kind.end_lineno is not None
    assert kind.end_lineno - kind.decorator_list[0].lineno + 1 <= 6
    programs = (Loop.run_blocks, Loop.run_steps)
    before = sum(program._cache_size() for program in programs)
    options = ["--actor-hidden-dim", "16", "--critic-hidden-dim", "16", "--batch-size", "16", "--k-alpha", "2"]
    options += ["--steps", "20", "--env", "none", "--quiet", "--no-tensorboard", "--out", str(tmp_path / "run")]
    with registries.restored():
        words = ["train", "maze2d-umaze?steps=2000", "--plugin", str(EXAMPLE), "--algo", "aspc_one_sided_l2"]
        assert main([*words, *options]) == 0
    assert sum(program._cache_size() for program in programs) - before <= 2
    metrics = Run(tmp_path / "run").metrics
    for name in ("l1", "l2", "l3", "dl1_dscale", "dl2_dscale", "dl3_dscale"):
        assert np.isfinite(metrics[name]).all(), name
    assert metrics["scale"][-1] != 2.5


def test_the_example_penalizes_only_decreases() -> None:
    with registries.restored():
        kind = runpy.run_path(str(EXAMPLE))["OneSidedL2"]
    ctx, state = mid_run(AdaptiveScale(base=BASE))
    for ema_q, factor in ((1e3, 1), (-1e3, 0)):  # the average falls, rises
        moved = replace(state, ema_q=jnp.asarray(ema_q))
        (_, ours), (_, plain) = (outer_update(k(base=BASE), ctx, moved) for k in (kind, AdaptiveScale))
        for name in ("l2", "dl2_dscale", "l3", "dl3_dscale"):
            np.testing.assert_allclose(ours[name], factor * plain[name], rtol=1e-4, err_msg=name)
