"""A2PR (Liu et al., 2024): TD3+BC that clones the logged action or a VAE's proposal, whichever has higher Q.

    VAE:    reconstructs the logged actions whose advantage Q(s, a) − V(s) exceeds ε_A
    actor:  max_π  λ·Q(s, π(s)) − w₂·g·(π(s) − ā)²
            ā = the proposal â where Q(s, â) ≥ Q(s, a), else a
            g = 1 if Q(s, â) ≥ V(s) + ε_A or Q(s, a) > V(s) + ε_A, else 0
    value:  V(s) → min(y, y₂): TD targets from the target critics (y) and from the updated critics (y₂)

Critics, λ and targets are those of TD3+BC. The proposal is the VAE's reconstruction of π(s). As in the authors' code,
it is not detached, so the gradient of the constraint also reaches the actor through the VAE. The authors' code uses 4
hidden layers for the critics and 3 for the actor, and fixes ε_A at 0; the default sizes here are those in the paper's
table. Using the same ε_A in both indicators is this implementation's interpretation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from aspc.algorithms.fields import Count, Depth, NonNegative, Scalar
from aspc.algorithms.interface import Batch, Context, Draw, Noise, Parts, Spec
from aspc.algorithms.td3_bc import TD3BC
from aspc.algorithms.td_learning import bootstrap
from aspc.algorithms.wpc import WPCState
from aspc.networks import VAE, DeterministicActor, Value, mlp
from aspc.optim import Adam


class A2PRState(WPCState):
    """wPC's state plus a VAE for actions."""

    vae: VAE
    vae_opt: Any


class LoggedValues(NamedTuple):
    """Q(s, a) of the logged action from the updated critic, and V(s) from the value network before its update."""

    q_data: Float[Array, "batch"]
    v: Float[Array, "batch"]


class Proposal(NamedTuple):
    """The VAE's proposals, their Q-values, and two masks: `chosen` (the actor's target is the proposal) and `gate`."""

    actions: Float[Array, "batch act"]
    q: Float[Array, "batch"]
    chosen: Bool[Array, "batch"]
    gate: Bool[Array, "batch"]


@dataclass(frozen=True)
class A2PR(TD3BC[A2PRState]):
    """A2PR with a fixed scale α."""

    critic_layer_norm: bool = False
    """LayerNorm after each hidden layer of the critics."""
    value_lr: NonNegative = 3e-4
    """Learning rate of the value network (Adam)."""
    value_hidden_dim: Count = 256
    """Width of the value network's hidden layers (ReLU)."""
    value_hidden_layers: Depth = 3
    """Number of hidden layers in the value network."""
    vae_weight: NonNegative = 1.0
    """Weight w₁ of the VAE's reconstruction loss; the KL term has weight 0.5."""
    constraint_weight: NonNegative = 1.0
    """Weight w₂ of the actor's constraint ("mask" in the authors' code)."""
    advantage_threshold: Scalar = 0.0
    """Advantage ε_A above which an action is imitated."""
    vae_lr: NonNegative = 1e-3
    """Learning rate of the VAE (Adam)."""
    vae_hidden_dim: Count = 750
    """Width of the VAE's two hidden layers (ReLU)."""

    # -- networks and state ------------------------------------------------------------------------------------
    def make_networks(self, key: PRNGKeyArray, spec: Spec) -> tuple[Any, ...]:
        key, key_value, key_encoder, key_decoder = jax.random.split(key, 4)
        value = Value(mlp(key_value, spec.obs_dim, [self.value_hidden_dim] * self.value_hidden_layers, 1))
        hidden, latent = [self.vae_hidden_dim] * 2, 2 * spec.act_dim
        vae = VAE(
            mlp(key_encoder, spec.obs_dim + spec.act_dim, hidden, 2 * latent),
            mlp(key_decoder, spec.obs_dim + latent, hidden, spec.act_dim),
            spec.max_action,
        )
        return *super().make_networks(key, spec), value, vae

    def start(self, *networks: Any) -> A2PRState:
        actor, critics, value, vae = networks
        return A2PRState(
            **vars(self.td3_state(actor, critics)),
            value=value,
            value_opt=Adam(self.value_lr).init(value),
            vae=vae,
            vae_opt=Adam(self.vae_lr).init(vae),
        )

    def noise(self, spec: Spec, batch_size: int) -> dict[str, Draw]:
        latent = Draw("normal", (batch_size, 2 * spec.act_dim))
        return {**super().noise(spec, batch_size), "vae_train": latent, "vae_actor": latent}

    # -- critics, value and VAE --------------------------------------------------------------------------------
    def prepare(self, state: A2PRState, batch: Batch, noise: Noise, parts: Parts) -> Context[A2PRState, LoggedValues]:
        ctx = super().prepare(state, batch, noise, parts)
        s, a, critics = batch.observations, batch.actions, ctx.state.critics
        y, next_actions = ctx.extra
        y2 = bootstrap(batch, self.discount, critics(batch.next_observations, next_actions).min(0))

        def value_loss(value: Value) -> tuple[Array, Array]:
            v = value(s)
            return jnp.square(v - jnp.minimum(y, y2)).mean(), v

        value = Adam(self.value_lr).minimize(value_loss, state.value, state.value_opt)
        logged = LoggedValues(critics[0](s, a), value.aux)
        good = logged.q_data > logged.v + self.advantage_threshold

        def vae_loss(vae: VAE) -> tuple[Array, tuple[Array, Array]]:
            mean, log_std = vae.encode(s, a)
            reconstruction = vae.decode(s, mean + jnp.exp(log_std) * noise["vae_train"])
            error = (self.vae_weight * good[:, None] * jnp.square(reconstruction - a)).mean()
            kl = -0.5 * (1 + 2 * log_std - jnp.square(mean) - jnp.exp(2 * log_std)).mean()
            return error + 0.5 * kl, (error, kl)

        vae = Adam(self.vae_lr).minimize(vae_loss, state.vae, state.vae_opt)
        metrics = {
            "value_loss": value.loss,
            "v_mean": value.aux.mean(),
            "vae_loss": vae.loss,
            "vae_reconstruction": vae.aux[0],
            "vae_kl": vae.aux[1],
            "td_target": y.mean(),
            "td_target_online": y2.mean(),
        }
        return replace(
            ctx,
            state=replace(
                ctx.state, value=value.params, value_opt=value.opt_state, vae=vae.params, vae_opt=vae.opt_state
            ),
            metrics={**ctx.metrics, **metrics},
            extra=logged,
        )

    # -- actor -------------------------------------------------------------------------------------------------
    def propose(self, ctx: Context[A2PRState, LoggedValues], policy_actions: Float[Array, "batch act"]) -> Proposal:
        """Return the VAE's reconstruction â of π(s) and compare its Q with that of the logged action and with V(s)."""
        s, vae, (q_data, v) = ctx.batch.observations, ctx.state.vae, ctx.extra
        mean, log_std = vae.encode(s, policy_actions)
        actions = vae.decode(s, mean + jnp.exp(log_std) * ctx.noise["vae_actor"])
        q = ctx.state.critics[0](s, actions)
        least = v + self.advantage_threshold
        return Proposal(actions, q, q >= q_data, (q >= least) | (q_data > least))

    def q_and_constraint(self, ctx: Context[A2PRState, LoggedValues], actor: DeterministicActor) -> tuple[Array, Array]:
        policy_actions = actor(ctx.batch.observations)
        proposal = self.propose(ctx, policy_actions)
        target = jnp.where(proposal.chosen[:, None], proposal.actions, ctx.batch.actions)
        q = self.actor_q(ctx, policy_actions)
        return q, self.constraint_weight * proposal.gate * jnp.square(policy_actions - target).mean(-1)
