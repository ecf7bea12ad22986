"""TD3+BC (Fujimoto & Gu, 2021), the backbone of ASPC: equations (1) to (5) of the paper.

    actor:   max_π  λ·Q(s, π(s)) − (π(s) − a)²,      λ = α / mean|Q(s, π(s))|                          (3), (4)
    critics: Q_k(s, a) → r + γ·min_k Q'_k(s', π'(s') + clipped noise)

The paper uses a *robust critic* (three hidden layers, each with LayerNorm), which is the default here. To get the
original critic, set `critic_hidden_layers=2, critic_layer_norm=False`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient as sg
from jaxtyping import Array, Float, PRNGKeyArray

from aspc.algorithms.components import make_network
from aspc.algorithms.fields import Count, Depth, NonNegative
from aspc.algorithms.interface import (
    CRITIC,
    INNER,
    Batch,
    Context,
    Inner,
    Noise,
    OuterTerms,
    Parts,
    Schedule,
    Segment,
    Spec,
)
from aspc.algorithms.td3 import TD3, TD3StateT
from aspc.algorithms.td_learning import bootstrap, fit_critics, make_critics, mean_abs, polyak
from aspc.networks import DeterministicActor, fan_in_init, robust_critic_init


class TDTarget(NamedTuple):
    """The critics' target y, and the next actions a' used to compute it."""

    y: Float[Array, "batch"]
    next_actions: Float[Array, "batch act"]


@dataclass(frozen=True)
class TD3BC(TD3[TD3StateT], Generic[TD3StateT]):
    """TD3+BC with a fixed scale α; generic in the state, which a subclass can extend."""

    alpha: NonNegative = 2.5
    """Weight of the RL term relative to the BC term."""
    actor_hidden_dim: Count = 256
    """Width of the actor's hidden layers (ReLU)."""
    actor_hidden_layers: Depth = 2
    """Number of hidden layers in the actor."""
    critic_hidden_dim: Count = 256
    """Width of the critics' hidden layers (ReLU)."""
    critic_hidden_layers: Depth = 3
    """Number of hidden layers in each critic: 3 in the paper's robust critic, 2 in TD3's."""
    critic_layer_norm: bool = True
    """Use LayerNorm after each hidden layer of the critics, as in the robust critic (TD3's critic has none)."""

    # -- networks, state and schedule --------------------------------------------------------------------------
    def make_networks(self, key: PRNGKeyArray, spec: Spec) -> tuple[Any, ...]:
        """Initialize the networks, in the order in which `start` takes them."""
        key_actor, key_critics = jax.random.split(key)
        hidden = [self.actor_hidden_dim] * self.actor_hidden_layers
        actor = make_network(self.actor, key_actor, spec.obs_dim, hidden, spec.act_dim)
        critics = make_critics(
            key_critics,
            spec,
            [self.critic_hidden_dim] * self.critic_hidden_layers,
            self.critic,
            init=robust_critic_init if self.critic_layer_norm else fan_in_init,
            layer_norm=self.critic_layer_norm,
        )
        return DeterministicActor(actor, spec.max_action), critics

    def init(self, key: PRNGKeyArray, spec: Spec) -> TD3StateT:
        return self.start(*self.make_networks(key, spec))

    def schedule(self) -> Schedule:
        waiting = (frozenset({CRITIC}),) * (self.policy_freq - 1)
        return (Segment((*waiting, frozenset({CRITIC, INNER})), 1),)

    # -- critic ------------------------------------------------------------------------------------------------
    def td_target(self, state: TD3StateT, batch: Batch, noise: Noise) -> TDTarget:
        """Compute y = r + γ·min_k Q'_k(s', a') with a' from the smoothed target policy."""
        next_actions = self.next_actions(state, batch, noise)
        next_q = state.critics_target(batch.next_observations, next_actions).min(0)
        return TDTarget(bootstrap(batch, self.discount, next_q), next_actions)

    def prepare(self, state: TD3StateT, batch: Batch, noise: Noise, parts: Parts) -> Context[TD3StateT, Any]:
        """Take one optimizer step on the critic loss Σ_k mean (Q_k(s, a) − y)²."""
        target = self.td_target(state, batch, noise)
        if CRITIC not in parts:
            return Context(state, batch, noise, {}, target)
        fit = fit_critics(self.critics_optimizer(), state.critics, state.critics_opt, batch, target.y)
        state = replace(state, critics=fit.params, critics_opt=fit.opt_state)
        return Context(state, batch, noise, {"critic_loss": fit.loss, "q_mean": fit.aux[0].mean()}, target)

    # -- actor: the inner step ---------------------------------------------------------------------------------
    def actor_q(self, ctx: Context[TD3StateT, Any], actions: Float[Array, "batch act"]) -> Float[Array, "batch"]:
        """Return the first critic's Q, which the policy maximizes."""
        return ctx.state.critics[0](ctx.batch.observations, actions)

    def q_and_constraint(self, ctx: Context[TD3StateT, Any], actor: DeterministicActor) -> tuple[Array, Array]:
        """Return, per sample, Q(s, π(s)) and (π(s) − a)² averaged over action dimensions."""
        actions = actor(ctx.batch.observations)
        q = self.actor_q(ctx, actions)
        return q, jnp.square(actions - ctx.batch.actions).mean(-1)

    def bc_weight(self, ctx: Context[TD3StateT, Any]) -> Array | float:
        """Return the weight of each sample's BC loss, which is 1 here."""
        return 1.0

    def actor_loss(
        self, ctx: Context[TD3StateT, Any], actor: Any, scale: Array | float
    ) -> tuple[Array, tuple[Array, Array, Array, Array]]:
        """(4)  Return −λ(α)·Q(s, π(s)) + ‖π(s) − a‖², and per-sample Q and BC loss, λ, and the mean BC loss."""
        q, bc = self.q_and_constraint(ctx, actor)
        lmbda, bc_loss = scale / mean_abs(q), (self.bc_weight(ctx) * bc).mean()
        return -lmbda * q.mean() + bc_loss, (q, bc, lmbda, bc_loss)

    def inner_step(self, ctx: Context[TD3StateT, Any], scale: Array | float) -> Inner:
        """(5)  Take one optimizer step (Adam) on `actor_loss`."""
        step = self.inner_optimizer().minimize(
            lambda actor: self.actor_loss(ctx, actor, scale), ctx.state.actor, ctx.state.actor_opt
        )
        q, bc, lmbda, bc_loss = step.aux
        metrics = {"actor_loss": step.loss, "actor_q_mean": q.mean(), "lmbda": lmbda, "bc_loss": bc_loss}
        return Inner(step.params, step.opt_state, q, bc, metrics)

    def outer_terms(self, ctx: Context[TD3StateT, Any], params: Any, scale: Array | float) -> OuterTerms:
        q, bc = self.q_and_constraint(ctx, params)
        return OuterTerms(q, bc, sg(scale), self.bc_weight(ctx))

    def commit(self, ctx: Context[TD3StateT, Any], inner: Inner) -> TD3StateT:
        """Store the updated actor, and move the targets of actor and critics (on actor steps only)."""
        state = ctx.state
        return replace(
            state,
            actor=inner.params,
            actor_opt=inner.opt_state,
            actor_target=polyak(state.actor_target, inner.params, self.tau),
            critics_target=polyak(state.critics_target, state.critics, self.tau),
        )
