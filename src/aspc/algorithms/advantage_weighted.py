"""TD3+BC that imitates good actions more: the base of ASPC+AW (appendix E.1).

    actor:  max_π  λ·Q(s, π(s)) − w(s, a)·(π(s) − a)²,   w = u / mean u,   u = min(exp(A / T), 100)
    value:  V(s)  expectile τ of min_k Q'_k(s, a), as in IQL;   A = min_k Q'_k(s, a) − V(s),   T = mean|A|

The paper gives no formula for the weight; this is this project's reading of it. L3 stays unweighted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from aspc.algorithms.interface import Batch, Context, Noise, Parts
from aspc.algorithms.td3_bc import TD3BC
from aspc.algorithms.td_learning import expectile_loss, mean_abs
from aspc.algorithms.wpc import WPC
from aspc.networks import Value
from aspc.optim import Adam


@dataclass(frozen=True)
class AdvantageWeighted(WPC):
    """TD3+BC with an advantage-weighted BC term: wPC's networks, another V and another weight."""

    policy_noise: float = 0.2
    """Standard deviation of the target policy's noise, in units of the largest action."""
    expectile: float = 0.7
    """Expectile τ that V estimates."""
    max_weight: float = 100.0
    """Weights are clipped here before they are normalised to a mean of 1."""

    def prepare(self, state: Any, batch: Batch, noise: Noise, parts: Parts) -> Context:
        """The critics' step, then V's. The advantage takes target critics and the old V."""
        ctx = TD3BC.prepare(self, state, batch, noise, parts)
        q_target = state.critics_target(batch.observations, batch.actions).min(0)

        def value_loss(value: Value) -> tuple[Array, Array]:
            advantage = q_target - value(batch.observations)
            return expectile_loss(advantage, self.expectile), advantage

        fit = Adam(self.value_lr).minimize(value_loss, state.value, state.value_opt)
        return ctx._replace(
            state=ctx.state._replace(value=fit.params, value_opt=fit.opt_state),
            metrics={**ctx.metrics, "value_loss": fit.loss, "advantage_mean": fit.aux.mean()},
            extra=fit.aux,
        )

    def bc_weight(self, ctx: Context) -> Array:
        weight = jnp.minimum(jnp.exp(ctx.extra / mean_abs(ctx.extra)), self.max_weight)
        return weight / weight.mean()
