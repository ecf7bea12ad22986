"""TD3+BC with a BC term weighted by advantage: the base of ASPC+AW (appendix E.1).

    actor:  max_π  λ·Q(s, π(s)) − w(s, a)·(π(s) − a)²,   w = u / mean u,   u = min(exp(A / T), 100)
    value:  V(s) → τ-expectile of min_k Q'_k(s, a), as in IQL;   A = min_k Q'_k(s, a) − V(s),   T = mean|A|

The paper gives no formula for the weight; this one is the library's interpretation. Term L3 of the outer loss uses the
unweighted BC loss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Array

from aspc.algorithms.fields import Fraction, NonNegative, PerRun, Range
from aspc.algorithms.interface import Batch, Context, Noise, Parts
from aspc.algorithms.td3_bc import TD3BC
from aspc.algorithms.td_learning import expectile_loss, mean_abs
from aspc.algorithms.wpc import WPC, WPCState
from aspc.networks import Value
from aspc.optim import Adam


@dataclass(frozen=True)
class AdvantageWeighted(WPC):
    """TD3+BC with an advantage-weighted BC term. It uses wPC's networks with a different value loss and weight."""

    policy_noise: NonNegative = 0.2
    """Standard deviation of the target policy's noise, relative to max_action."""
    expectile: Fraction = 0.7
    """Expectile τ for V, as in IQL."""
    max_weight: Annotated[float, Range(0, exclusive_min=True), PerRun()] = 100.0
    """Maximum weight of a sample, before weights are normalized to a mean of 1."""

    def prepare(self, state: WPCState, batch: Batch, noise: Noise, parts: Parts) -> Context[WPCState, Array]:
        """Fit the critics, then V. The advantage uses the target critics and V before this update."""
        ctx = TD3BC.prepare(self, state, batch, noise, parts)
        q_target = state.critics_target(batch.observations, batch.actions).min(0)

        def value_loss(value: Value) -> tuple[Array, Array]:
            advantage = q_target - value(batch.observations)
            return expectile_loss(advantage, self.expectile), advantage

        fit = Adam(self.value_lr).minimize(value_loss, state.value, state.value_opt)
        return replace(
            ctx,
            state=replace(ctx.state, value=fit.params, value_opt=fit.opt_state),
            metrics={**ctx.metrics, "value_loss": fit.loss, "advantage_mean": fit.aux.mean()},
            extra=fit.aux,
        )

    def bc_weight(self, ctx: Context[WPCState, Array]) -> Array:
        """Compute w(s, a) = u / mean u."""
        weight = jnp.minimum(jnp.exp(ctx.extra / mean_abs(ctx.extra)), self.max_weight)
        return weight / weight.mean()
