"""wPC (Peng et al., 2023): TD3+BC whose BC term includes only actions with a positive advantage.

    actor:  max_π  λ·Q(s, π(s)) − w(s, a)·(π(s) − a)²,      w = 1 if Q(s, a) > V(s) else 0
    value:  V(s) → y, the critics' TD target

Critics, λ and targets are those of TD3+BC. For the authors' critics, set `critic_hidden_layers=2` and
`critic_layer_norm=False`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from aspc.algorithms.fields import Count, Depth, NonNegative
from aspc.algorithms.interface import Batch, Context, Noise, Parts, Spec
from aspc.algorithms.td3 import TD3State
from aspc.algorithms.td3_bc import TD3BC
from aspc.networks import Value, mlp
from aspc.optim import Adam


class WPCState(TD3State):
    """TD3's state plus a value network and its optimizer state."""

    value: Value
    value_opt: Any


@dataclass(frozen=True)
class WPC(TD3BC[WPCState]):
    """wPC with a fixed scale α: TD3+BC with a 0/1 weight on the BC term."""

    policy_noise: NonNegative = 0.1
    """Standard deviation of the target policy smoothing noise, relative to max_action."""
    value_lr: NonNegative = 3e-4
    """Learning rate of the value network (Adam)."""
    value_hidden_dim: Count = 256
    """Width of the value network's hidden layers (ReLU)."""
    value_hidden_layers: Depth = 2
    """Number of hidden layers in the value network."""

    def make_networks(self, key: PRNGKeyArray, spec: Spec) -> tuple[Any, ...]:
        key, key_value = jax.random.split(key)
        value = Value(mlp(key_value, spec.obs_dim, [self.value_hidden_dim] * self.value_hidden_layers, 1))
        return *super().make_networks(key, spec), value

    def start(self, *networks: Any) -> WPCState:
        actor, critics, value = networks
        return WPCState(**vars(self.td3_state(actor, critics)), value=value, value_opt=Adam(self.value_lr).init(value))

    def prepare(self, state: WPCState, batch: Batch, noise: Noise, parts: Parts) -> Context[WPCState, Array]:
        """Fit the critics, then V on mean (V(s) − y)². The advantage uses the new critic and the old V."""
        ctx = super().prepare(state, batch, noise, parts)

        def value_loss(value: Value) -> tuple[Array, Array]:
            v = value(batch.observations)
            return jnp.square(v - ctx.extra.y).mean(), v

        fit = Adam(self.value_lr).minimize(value_loss, state.value, state.value_opt)
        advantage = ctx.state.critics[0](batch.observations, batch.actions) - fit.aux
        return replace(
            ctx,
            state=replace(ctx.state, value=fit.params, value_opt=fit.opt_state),
            metrics={**ctx.metrics, "value_loss": fit.loss, "v_mean": fit.aux.mean()},
            extra=advantage,
        )

    def bc_weight(self, ctx: Context[WPCState, Array]) -> Array:
        """Compute w(s, a): 1 where the advantage is positive, else 0."""
        positive: Array = ctx.extra > 0
        return positive.astype(ctx.extra.dtype)
