"""RAPO on TD3+BC (Cho, Choi & Hong, 2026, arXiv 2609.40149): role-adaptive policy optimization.

Two policies share the critics: π_B supplies the actions for the critics' targets, and π_E acts. Each has its own
coefficient α, learned by differentiating an outer loss through a candidate step. The outer loss depends on the policy's
role and is evaluated on an independent batch.

    both:  L(θ; α) = −Q₁(s, π(s)) / mean|Q₁| + ‖π(s) − a‖² / (α·d_a)                                            (1)
    θ̃(α):  one step on L(θ; α); for π_E, the Adam step that is committed; for π_B, a plain gradient step          (7)
    π_E:   L_E = −mean[ g₀·δ − ½‖g₊ − g₀‖·‖δ‖ ] / S_E,  δ = π̃(s) − π(s),  g₀, g₊ = sg(∇ₐQ̄₁) at π(s), π̃(s)  (9), (10)
    π_B:   L_B = sg(α_B)·√mean (Δy / S_B)²,  Δy = γ·(1 − d)·[Q̄min(s', π̃(s')) − Q̄min(s', π(s'))]             (11), (12)
    S_E = max(mean|Q̄₁(s, π̃_E(s))|, ε),  S_B = mean|Q̄min(s, π̃_B(s))| + ε,  with gradients stopped            (15), (16)

Q̄ are the target critics. L_E rewards local improvement of the acting policy; L_B penalizes changes of critic targets.

From the paper: all of the above, and α = softplus(ρ) with both coefficients initialized to 5. A step updates the
critics first, then the coefficients (every 20th critic update), then the policies (every second critic update). π_E
uses its coefficient from before this update, π_B its new one. The coefficients' learning rate decays exponentially to
1 % of its initial value. Networks, batches and observations are those of TD3+BC with the robust critic; all network
learning rates are 3e-4. Actions come from π_E itself, not from an average of its weights.

The paper selects the coefficients' initial learning rate per dataset by final scores (91.7 on nine locomotion tasks,
70.0 on AntMaze; the preset `authors`). It also tries three rates that are the same for all datasets. The default here,
3e-4, is the best of them; the paper reports 87.4 and 64.2 for it.

Choices made here: both policies start from the same network. AntMaze's rewards are unchanged. The paper states this
only for locomotion; it shifts AntMaze's rewards for RAPO on IQL, which is not implemented here. No public code exists
for comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import named_scope
from jax.lax import stop_gradient as sg
from jaxtyping import Array, Float

from aspc.adaptive_scale import LearnedScale, raw_from_scale
from aspc.algorithms.fields import NonNegative
from aspc.algorithms.interface import INNER, SCALE, Batch, Context, Inner, Metrics, Noise, Parts
from aspc.algorithms.td_learning import mean_abs, min_q
from aspc.algorithms.two_scales import TwoPolicies, TwoPoliciesState
from aspc.networks import DeterministicActor, jvp_compatible_networks

EPS = 1e-6


class Coefficient(eqx.Module):
    """A learned coefficient α, stored as softplus⁻¹(α), and its optimizer state."""

    raw: Float[Array, ""]
    opt: Any

    @property
    def scale(self) -> Float[Array, ""]:
        """The coefficient."""
        return jax.nn.softplus(self.raw)


class RAPOState(eqx.Module):
    """The two policies and their critics, and the coefficients of π_B (`scale`) and π_E (`acting_scale`)."""

    base: TwoPoliciesState
    scale: Coefficient
    acting_scale: Coefficient


@dataclass(frozen=True)
class RolePolicies(TwoPolicies[TwoPoliciesState]):
    """TD3+BC with two policies, in RAPO's loss convention: TD3+BC's actor loss divided by the scale."""

    alpha: NonNegative = 5.0
    """Initial scale of the RL term relative to the BC term, for both policies."""

    def actor_loss(
        self, ctx: Context[TwoPoliciesState, Any], actor: DeterministicActor, scale: Array | float
    ) -> tuple[Array, tuple[Array, Array, Array, Array]]:
        """(1)  Compute TD3+BC's loss divided by the scale."""
        loss, parts = super().actor_loss(ctx, actor, scale)
        return loss / scale, parts


Roles = TypeVar("Roles", bound=RolePolicies)


@dataclass(frozen=True)
class RAPO(LearnedScale[Roles, RAPOState], Generic[Roles]):
    """TD3+BC with one policy for bootstrapping and one for acting, each with a coefficient learned for its role."""

    base: Roles = field(default_factory=cast("Callable[[], Roles]", RolePolicies))
    """The two policies and their critics."""
    scale_lr: NonNegative = 3e-4
    """Initial learning rate of both coefficients (Adam) for k_alpha = 10. The rate used is scale_lr · k_alpha / 10."""
    outer_batch: Literal["same", "independent"] = "independent"
    """Evaluate candidate steps on an independent batch, as the RAPO paper does, or on the inner step's batch."""

    def start(self, base_state: TwoPoliciesState) -> RAPOState:
        """Return the initial state, with both coefficients at the base's scale."""
        raw = raw_from_scale(jnp.asarray(self.base.scale, dtype=float))
        coefficient = Coefficient(raw, self.outer_optimizer().init(raw))
        return RAPOState(base_state, coefficient, coefficient)

    # -- one step ----------------------------------------------------------------------------------------------
    def update(self, state: RAPOState, batch: Batch, noise: Noise, parts: Parts) -> tuple[RAPOState, Metrics]:
        """Update critics, then coefficients if SCALE is among the parts, then both policies and the targets."""
        batch, noise, other = self.split_inputs(batch, noise)
        with named_scope("critic"):
            ctx = self.base.prepare(state.base, batch, noise, parts)
        if INNER not in parts:
            return replace(state, base=ctx.state), ctx.metrics
        alpha_b, alpha_e, metrics = state.scale, state.acting_scale, Metrics()
        if SCALE in parts:
            outer_batch = batch if other is None else other[0]
            with named_scope("scale"):
                second, alpha_e, of_e = self.update_acting_scale(ctx, outer_batch, alpha_e)
                alpha_b, of_b = self.update_scale(ctx, outer_batch, alpha_b)
            metrics = of_b | of_e
        with named_scope("actor"):
            if SCALE not in parts:
                second = self.base.second_step(ctx, alpha_e.scale)
            inner = self.base.join_steps(self.base.first_step(ctx, alpha_b.scale), second)
        metrics = {**ctx.metrics, **inner.metrics, **metrics, "scale": alpha_b.scale, "acting_scale": alpha_e.scale}
        with named_scope("targets"):
            return RAPOState(self.base.commit(ctx, inner), alpha_b, alpha_e), metrics

    def update_acting_scale(
        self, ctx: Context[TwoPoliciesState, Any], outer_batch: Batch, coefficient: Coefficient
    ) -> tuple[Inner, Coefficient, Metrics]:
        """Update α_E by differentiating through π_E's Adam step. Also return this step, so that it can be committed."""

        def loss(scale: Array) -> tuple[Array, Inner]:
            inner = self.base.second_step(ctx, scale)
            with exact_differences():
                return self.execution_loss(ctx.state, outer_batch, inner.params), inner

        return self.descend(loss, coefficient, "execution_loss")

    def update_scale(
        self, ctx: Context[TwoPoliciesState, Any], outer_batch: Batch, coefficient: Coefficient
    ) -> tuple[Coefficient, Metrics]:
        """Update α_B by differentiating through a plain gradient step of π_B."""
        actor = ctx.state.actor

        def loss(scale: Array) -> tuple[Array, None]:
            grads = jax.grad(lambda actor: self.base.actor_loss(ctx, actor, scale)[0])(actor)
            candidate = jax.tree.map(lambda p, g: p - self.base.actor_lr * g, actor, grads)
            with exact_differences():
                return self.bootstrap_loss(ctx.state, outer_batch, candidate, scale), None

        _, coefficient, metrics = self.descend(loss, coefficient, "bootstrap_loss")
        return coefficient, metrics

    def descend(
        self, loss: Callable[[Array], tuple[Array, Any]], coefficient: Coefficient, name: str
    ) -> tuple[Any, Coefficient, Metrics]:
        """(6)  Update a coefficient by Adam, with one forward-mode pass through the candidate step and its loss."""
        scale = coefficient.scale
        value, slope, aux = jax.jvp(loss, (scale,), (jnp.ones_like(scale),), has_aux=True)
        gradient = slope * jax.nn.sigmoid(coefficient.raw)  # with respect to softplus⁻¹ of the coefficient
        raw, opt = self.outer_optimizer().step(coefficient.raw, gradient, coefficient.opt)
        return aux, Coefficient(raw, opt), {name: value, f"d{name}_dscale": slope}

    # -- the outer losses --------------------------------------------------------------------------------------
    def execution_loss(self, state: TwoPoliciesState, batch: Batch, candidate: DeterministicActor) -> Float[Array, ""]:
        """(9), (10)  Return the curvature penalty minus the first-order gain in Q̄₁ along the step, both normalized."""

        def q(actions: Array) -> Array:
            return state.critics_target[0](batch.observations, actions)

        before, after = state.second(batch.observations), candidate(batch.observations)
        step = after - before
        slope = jax.grad(lambda actions: q(actions).sum())  # each row's Q depends only on that row's action
        g_before, g_after = slope(before), slope(sg(after))
        gain = (g_before * step).sum(-1)
        penalty = 0.5 * norm(g_after - g_before) * norm(step)
        loss: Array = -(gain - penalty).mean() / jnp.maximum(mean_abs(q(sg(after))), EPS)
        return loss

    def bootstrap_loss(
        self, state: TwoPoliciesState, batch: Batch, candidate: DeterministicActor, scale: Array
    ) -> Float[Array, ""]:
        """(11), (12)  Return α times the normalized RMS change of the critics' targets (no target policy smoothing)."""

        def q(observations: Array, actor: DeterministicActor) -> Array:
            return min_q(state.critics_target(observations, actor(observations)))

        next_q, next_q_before = q(batch.next_observations, candidate), q(batch.next_observations, state.actor)
        change = self.base.discount * batch.masks * (next_q - next_q_before)
        size = mean_abs(q(batch.observations, candidate)) + EPS
        return sg(scale) * root(jnp.square(change / size).mean())


@contextmanager
def exact_differences() -> Iterator[None]:
    """Allow forward mode and disable TF32, whose error exceeds the relative change of Q in a step (at most 1e-4)."""
    with jvp_compatible_networks(), jax.default_matmul_precision("highest"):
        yield


def root(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Compute √x with value and derivative 0 at x = 0.

    x is 0 if the step does not change the action, for example because the action is saturated.
    """
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1.0)), 0.0)


def norm(x: Float[Array, "batch act"]) -> Float[Array, "batch"]:
    """Compute ‖x‖ per row."""
    return root(jnp.square(x).sum(-1))
