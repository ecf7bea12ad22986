"""ASPC: the scale between RL and BC is learned by second-order gradients. Equations (4) to (10) of the paper.

A base algorithm supplies its inner step as four pure pieces (`algorithms.base.Scalable`); everything here is the
paper's outer level and knows no base by name. Notation: θ are the parameters before the inner step, θ̃(α) after it,
q and c the per-sample Q(s, π_θ(s)) and BC loss ‖π_θ(s) − a‖², q̃ and c̃ the same under θ̃, sg(·) carries no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient as sg
from jaxtyping import Array, Float, PRNGKeyArray

from aspc.algorithms.base import (
    INNER,
    SCALE,
    Batch,
    Draw,
    Inner,
    Metrics,
    Noise,
    OuterTerms,
    Parts,
    PolicyExport,
    Schedule,
    Segment,
    Spec,
    schedule_length,
)
from aspc.algorithms.td3_bc import TD3BC
from aspc.optim import Adam, exponential_decay

Base = TypeVar("Base", bound=Any)  # an Algorithm that is Scalable
OuterLoss = Literal["L1", "L1+L2", "L1+L3", "L1+L2+L3"]


# ---------------------------------------------------------------------------------------------------------------
# The scale: α = softplus(raw) stays positive
# ---------------------------------------------------------------------------------------------------------------


def raw_from_scale(scale: float | Array) -> Array:
    """The inverse of softplus, log(e^α − 1), written so that a large α does not overflow."""
    scale = jnp.asarray(scale)
    return scale + jnp.log(-jnp.expm1(-scale))


class ScaleState(NamedTuple):
    """What the outer level carries: softplus⁻¹ of the scale, its optimiser, and the average of Q in L2."""

    raw: Float[Array, ""]
    opt: Any
    ema_q: Float[Array, ""]

    @property
    def scale(self) -> Float[Array, ""]:
        return jax.nn.softplus(self.raw)


class AdaptiveState(NamedTuple):
    base: Any
    scale: ScaleState


# ---------------------------------------------------------------------------------------------------------------
# The outer loss
# ---------------------------------------------------------------------------------------------------------------


def l1(after: OuterTerms) -> Float[Array, ""]:
    """(6)  L1 = −α·E[q̃]/E|q̃| + E[c̃]; neither α nor the normaliser carries a gradient."""
    q_term = after.q.mean() / sg(jnp.abs(after.q).mean())
    return -sg(after.q_weight) * q_term + (sg(after.constraint_weight) * after.constraint).mean()


def l2_ema(q_after: Float[Array, "batch"], ema_q: Float[Array, ""], decay: float) -> tuple[Array, Array]:
    """(7) as the authors compute it: the change of an average of Q. Returns L2 and the new average."""
    new_ema = decay * sg(ema_q) + (1 - decay) * q_after.mean()
    return jnp.square(new_ema - sg(ema_q)), sg(new_ema)


def l2_literal(q_after: Float[Array, "batch"], q_before: Float[Array, "batch"]) -> Float[Array, ""]:
    """(7) as it is written: L2 = (E[q̃] − E[q])², on one batch."""
    return jnp.square(q_after.mean() - sg(q_before.mean()))


def l3(
    l2: Float[Array, ""], c_after: Float[Array, "batch"], c_before: Float[Array, "batch"]
) -> tuple[Array, Array, Array]:
    """(8)  L3 = sg(L2) · sup c · sup |c̃ − c|. Returns L3, sup c and sup |c̃ − c|."""
    bc_sup = sg(c_before.max())
    delta_bc_sup = jnp.abs(c_after - sg(c_before)).max()
    return sg(l2) * bc_sup * delta_bc_sup, bc_sup, delta_bc_sup


# ---------------------------------------------------------------------------------------------------------------
# The wrapper
# ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AdaptiveScale(Generic[Base]):
    """A base algorithm whose scale is learned (ASPC when the base is TD3+BC)."""

    base: Base = field(default_factory=TD3BC)  # type: ignore[assignment]
    """The algorithm whose scale is learned; its own scale is the initial one."""
    scale_lr: float = 2e-3
    """Learning rate η_α of the scale (Adam) at an update interval of 10; it is multiplied by k_alpha/10."""
    scale_lr_final_ratio: float = 0.01
    """The scale's learning rate decays exponentially to this share of itself over the horizon."""
    k_alpha: int = 10
    """Inner (actor) steps for each update of the scale."""
    ema: float = 0.995
    """Smoothing factor of the average of Q in L2."""
    outer_loss: OuterLoss = "L1+L2+L3"
    """Which terms of the outer loss (9) are used."""
    l2: Literal["ema", "literal"] = "ema"
    """L2 on an average of Q, as the authors compute it, or on one batch, as (7) is written."""
    horizon: int = 1_000_000
    """Steps over which the scale's learning rate decays; `train` sets it to the length of the run."""

    # -- what is the base's stays the base's -------------------------------------------------------------------
    @property
    def batch_size(self) -> int:
        return self.base.batch_size

    @property
    def normalize_observations(self) -> bool:
        return self.base.normalize_observations

    @property
    def uses_next_actions(self) -> bool:
        return self.base.uses_next_actions

    @property
    def scale_name(self) -> str:
        return self.base.scale_name

    def noise(self, spec: Spec, batch_size: int) -> dict[str, Draw]:
        return self.base.noise(spec, batch_size)

    def policy(self, state: AdaptiveState) -> PolicyExport:
        return self.base.policy(state.base)

    # -- schedule ----------------------------------------------------------------------------------------------
    def schedule(self) -> Schedule:
        """The base's cycle, with an update of the scale at every k_alpha-th inner step."""
        (cycle,) = self.base.schedule()
        inner_steps = [i for i, parts in enumerate(cycle.steps) if INNER in parts]
        if len(inner_steps) != 1 or cycle.repeats != 1:
            raise ValueError("a base to be wrapped has exactly one inner step in its cycle")
        (i,) = inner_steps
        with_scale = (*cycle.steps[:i], cycle.steps[i] | {SCALE}, *cycle.steps[i + 1 :])
        last = Segment(with_scale, 1)
        return (last,) if self.k_alpha == 1 else (Segment(cycle.steps, self.k_alpha - 1), last)

    def scale_optimiser(self) -> Adam:
        updates = self.horizon // schedule_length(self.schedule())
        return Adam(exponential_decay(self.scale_lr * self.k_alpha / 10, self.scale_lr_final_ratio, max(updates, 1)))

    # -- state -------------------------------------------------------------------------------------------------
    def init(self, key: PRNGKeyArray, spec: Spec) -> AdaptiveState:
        return self.start(self.base.init(key, spec))

    def start(self, base_state: Any) -> AdaptiveState:
        """The state before the first step for a given base: the base's scale, an empty optimiser, ema = 0."""
        raw = raw_from_scale(jnp.asarray(self.base.scale, dtype=float))
        return AdaptiveState(base_state, ScaleState(raw, self.scale_optimiser().init(raw), jnp.zeros_like(raw)))

    # -- one step ----------------------------------------------------------------------------------------------
    def update(self, state: AdaptiveState, batch: Batch, noise: Noise, parts: Parts) -> tuple[AdaptiveState, Metrics]:
        ctx = self.base.prepare(state.base, batch, noise, parts)
        scale_state, metrics = state.scale, Metrics()
        if INNER not in parts:
            return AdaptiveState(ctx.state, scale_state), ctx.metrics
        if SCALE in parts:
            inner, scale_state, metrics = self.outer_update(ctx, state.scale)
        else:
            inner = self.base.inner_step(ctx, state.scale.scale)
        metrics = {**ctx.metrics, **inner.metrics, **metrics, "scale": scale_state.scale}
        return AdaptiveState(self.base.commit(ctx, inner), scale_state), metrics

    def outer_losses(
        self, ctx: Any, inner: Inner, scale: Array, ema_q: Array
    ) -> tuple[Float[Array, "3"], tuple[Array, Metrics]]:
        """L1, L2, L3 under θ̃ = `inner.params`; also the new average of Q, and what is worth looking at."""
        after = self.base.outer_terms(ctx, inner.params, scale)
        loss2_ema, new_ema_q = l2_ema(after.q, ema_q, self.ema)
        loss2 = loss2_ema if self.l2 == "ema" else l2_literal(after.q, inner.q)
        loss3, bc_sup, delta_bc_sup = l3(loss2, after.constraint, inner.constraint)
        seen = {
            "delta_q": after.q.mean() - inner.q.mean(),
            "delta_ema_q": new_ema_q - ema_q,
            "bc_sup": bc_sup,
            "delta_bc_sup": delta_bc_sup,
        }
        return jnp.stack([l1(after), loss2, loss3]), (new_ema_q, seen)

    def outer_update(self, ctx: Any, state: ScaleState) -> tuple[Inner, ScaleState, Metrics]:
        """(9), (10): one step on the scale through the inner step, which is the one that is committed.

        The scale is one number, so the chain rule of (10) is a single forward-mode pass (jvp) through inner step
        and outer losses: it gives the derivatives of L1, L2 and L3 separately, and the inner step itself.
        """

        def losses(raw: Array) -> tuple[Array, Any]:
            scale = jax.nn.softplus(raw)
            inner = self.base.inner_step(ctx, scale)
            values, (new_ema_q, seen) = self.outer_losses(ctx, inner, scale, state.ema_q)
            return values, (inner, new_ema_q, seen)

        values, derivatives, (inner, new_ema_q, seen) = jax.jvp(
            losses, (state.raw,), (jnp.ones_like(state.raw),), has_aux=True
        )
        gradient = sum(d for term, d in zip(("L1", "L2", "L3"), derivatives, strict=True) if term in self.outer_loss)
        raw, opt = self.scale_optimiser().step(state.raw, gradient, state.opt)

        d_scale_d_raw = jax.nn.sigmoid(state.raw)
        metrics = {f"l{i + 1}": values[i] for i in range(3)}
        # Derivatives with respect to the scale itself, not to softplus⁻¹ of it.
        metrics |= {f"dl{i + 1}_dscale": derivatives[i] / d_scale_d_raw for i in range(3)}
        return inner, ScaleState(raw, opt, new_ema_q), {**metrics, **seen}
