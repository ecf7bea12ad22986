"""TD3+BC for discrete actions, the base of discrete ASPC: equations (4) and (5) with expectations over options.

    actor:   min_π  −λ·E_π[Q_1](s) + c(s, a),   λ = α / mean|E_π[Q_1](s)|
    critics: Q_k(s, a) → r + γ·(1 − done)·Σ_j π'(j|s')·min_k Q'_k(s', ã_c)[j]

c is the constraint of `choices.py`; ã_c are the target policy's continuous factors with TD3's clipped noise. The paper
covers only continuous actions. This project's interpretation consists of the constraint c, expectations over options
instead of sampled options in the actor's loss and the target, the minimum over the critics per option, and no smoothing
noise on options.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Generic

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from aspc.algorithms.choices import Factors, ProductPolicy, export_product_policy, make_choice_critics, make_policy
from aspc.algorithms.interface import Batch, Context, Draw, Noise, PolicyExport, Spec
from aspc.algorithms.td3 import TD3StateT
from aspc.algorithms.td3_bc import TD3BC, TDTarget
from aspc.algorithms.td_learning import bootstrap
from aspc.networks import fan_in_init, robust_critic_init


@dataclass(frozen=True)
class DiscreteTD3BC(TD3BC[TD3StateT], Generic[TD3StateT]):
    """TD3+BC for discrete actions with a fixed scale α."""

    handles_choices: ClassVar[bool] = True

    def make_networks(self, key: PRNGKeyArray, spec: Spec) -> tuple[Any, ...]:
        """Initialize the policy and the critics."""
        key_actor, key_critics = jax.random.split(key)
        policy = make_policy(self.actor, key_actor, spec, [self.actor_hidden_dim] * self.actor_hidden_layers)
        critics = make_choice_critics(
            key_critics,
            spec,
            [self.critic_hidden_dim] * self.critic_hidden_layers,
            self.critic,
            init=robust_critic_init if self.critic_layer_norm else fan_in_init,
            layer_norm=self.critic_layer_norm,
        )
        return policy, critics

    def noise(self, spec: Spec, batch_size: int) -> dict[str, Draw]:
        """Return the smoothing noise of continuous factors; discrete factors need none."""
        numbers = len(Factors.of(spec).number_columns)
        return {"target_policy": Draw("normal", (batch_size, numbers))} if numbers else {}

    def td_target(self, state: TD3StateT, batch: Batch, noise: Noise) -> TDTarget:
        """Compute y = r + γ·Σ_j π'(j|s')·min_k Q'_k(s', ã_c)[j]. The next actions are the outputs of π' with ã_c."""
        policy: ProductPolicy = state.actor_target
        critics: Any = state.critics_target
        outputs = policy(batch.next_observations)
        columns = policy.factors.number_columns
        if len(columns):
            epsilon = jnp.clip(self.policy_noise * noise["target_policy"], -self.noise_clip, self.noise_clip)
            outputs = outputs.at[:, columns].set(jnp.clip(outputs[:, columns] + epsilon, -1, 1))
        q = critics.values(batch.next_observations, outputs[:, columns]).min(0)
        next_q = (policy.probabilities(outputs) * q).sum(-1)
        return TDTarget(bootstrap(batch, self.discount, next_q), outputs)

    def expected_q(
        self, ctx: Context[TD3StateT, Any], policy: ProductPolicy, outputs: Float[Array, "batch act"]
    ) -> Float[Array, "batch"]:
        """Return E_π[Q_1](s)."""
        critic: Any = ctx.state.critics[0]
        q: Array = critic.values(ctx.batch.observations, policy.factors.numbers(outputs))
        return (policy.probabilities(outputs) * q).sum(-1)

    def q_and_constraint(self, ctx: Context[TD3StateT, Any], actor: Any) -> tuple[Array, Array]:
        """Return, per sample, E_π[Q_1](s) and c(s, a)."""
        outputs = actor(ctx.batch.observations)
        return self.expected_q(ctx, actor, outputs), actor.constraint(outputs, ctx.batch.actions)

    def policy(self, state: TD3StateT) -> PolicyExport:
        return export_product_policy(state.actor)
