"""ReBRAC (Tarasov et al., 2023): TD3+BC with decoupled penalties on the actor and on the critic's target.

    actor:   max_π  λ·min_k Q_k(s, π(s)) − β₁·‖π(s) − a‖²,      λ = 1 / mean|Q|
    critics: Q_k(s, a) → r + γ·(min_k Q'_k(s', a') − β₂·‖a' − ã'‖²),      ã' the logged next action

Squared norms are sums over action dimensions. The learnable scale is β₁, the weight of the actor's penalty.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient as sg
from jaxtyping import Array, PRNGKeyArray

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
from aspc.algorithms.td3 import TD3, TD3State
from aspc.algorithms.td_learning import bootstrap, fit_critics, make_critics, mean_abs, min_q, polyak
from aspc.networks import DeterministicActor, robust_critic_init, small_last_init


@dataclass(frozen=True)
class ReBRAC(TD3[TD3State]):
    """ReBRAC with a fixed actor penalty β₁."""

    scale_name: ClassVar[str] = "beta1"
    uses_next_actions: ClassVar[bool] = True

    beta1: NonNegative = 0.001
    """Weight of the actor's penalty."""
    beta2: NonNegative = 0.001
    """Weight of the penalty in the critics' target."""
    normalize_q: bool = True
    """Divide Q by mean|Q| in the actor's loss."""
    actor_lr: NonNegative = 1e-3
    """Learning rate of the actor (Adam)."""
    critic_lr: NonNegative = 1e-3
    """Learning rate of the critics (Adam)."""
    hidden_dim: Count = 256
    """Width of all hidden layers (ReLU)."""
    actor_hidden_layers: Depth = 3
    """Number of hidden layers in the actor."""
    critic_hidden_layers: Depth = 3
    """Number of hidden layers in each critic."""
    actor_layer_norm: bool = False
    """LayerNorm after each hidden layer of the actor."""
    critic_layer_norm: bool = True
    """LayerNorm after each hidden layer of the critics."""
    normalize_observations: bool = False
    """Standardize observations with the dataset's mean and standard deviation (+ 1e-3)."""

    # -- networks, state and schedule --------------------------------------------------------------------------
    def init(self, key: PRNGKeyArray, spec: Spec) -> TD3State:
        key_actor, key_critics = jax.random.split(key)
        actor = make_network(
            self.actor,
            key_actor,
            spec.obs_dim,
            [self.hidden_dim] * self.actor_hidden_layers,
            spec.act_dim,
            init=small_last_init(1e-3),
            layer_norm=self.actor_layer_norm,
            layer_norm_eps=1e-6,
        )
        critics = make_critics(
            key_critics,
            spec,
            [self.hidden_dim] * self.critic_hidden_layers,
            self.critic,
            init=robust_critic_init,
            layer_norm=self.critic_layer_norm,
            layer_norm_eps=1e-6,
        )
        return self.start(DeterministicActor(actor, spec.max_action), critics)

    def schedule(self) -> Schedule:
        """Return a cycle of one full update followed by `policy_freq − 1` updates of the critics alone."""
        waiting = (frozenset({CRITIC}),) * (self.policy_freq - 1)
        return (Segment((frozenset({CRITIC, INNER}), *waiting), 1),)

    # -- critics -----------------------------------------------------------------------------------------------
    def prepare(self, state: TD3State, batch: Batch, noise: Noise, parts: Parts) -> Context[TD3State, None]:
        """Fit the critics. The penalty is masked together with Q', so terminal transitions have no penalty."""
        s_next = batch.next_observations
        next_actions = self.next_actions(state, batch, noise)
        assert batch.next_actions is not None, "ReBRAC requires the action logged after each transition"
        penalty = jnp.square(next_actions - batch.next_actions).sum(-1)
        next_q = state.critics_target(s_next, next_actions).min(0) - self.beta2 * penalty
        y = bootstrap(batch, self.discount, next_q)
        fit = fit_critics(self.critics_optimizer(), state.critics, state.critics_opt, batch, y)
        state = replace(state, critics=fit.params, critics_opt=fit.opt_state)
        return Context(state, batch, noise, {"critic_loss": fit.loss, "q_min": fit.aux.min(0).mean()}, None)

    # -- actor: the inner step ---------------------------------------------------------------------------------
    def q_and_penalty(self, ctx: Context[TD3State, None], actor: DeterministicActor) -> tuple[Array, Array, Array]:
        """Return min_k Q_k(s, π(s)) and ‖π(s) − a‖² per sample, and the normalizer of Q, 1/λ."""
        actions = actor(ctx.batch.observations)
        q = min_q(ctx.state.critics(ctx.batch.observations, actions))
        penalty = jnp.square(actions - ctx.batch.actions).sum(-1)
        return q, penalty, mean_abs(q) if self.normalize_q else jnp.ones_like(mean_abs(q))

    def inner_step(self, ctx: Context[TD3State, None], scale: Array | float) -> Inner:
        def inner_loss(actor: DeterministicActor) -> tuple[Array, tuple[Array, Array]]:
            q, penalty, normalizer = self.q_and_penalty(ctx, actor)
            return (scale * penalty - q / normalizer).mean(), (q, penalty)

        step = self.inner_optimizer().minimize(inner_loss, ctx.state.actor, ctx.state.actor_opt)
        q, penalty = step.aux
        metrics = {"actor_loss": step.loss, "actor_q_mean": q.mean(), "bc_loss": penalty.mean()}
        return Inner(step.params, step.opt_state, q, penalty, metrics)

    def outer_terms(self, ctx: Context[TD3State, None], params: DeterministicActor, scale: Array | float) -> OuterTerms:
        """Return terms such that L1 is the updated actor's loss. Q's weight cancels AdaptiveScale's 1/mean|Q|."""
        q, penalty, normalizer = self.q_and_penalty(ctx, params)
        return OuterTerms(q, penalty, mean_abs(q) / normalizer, sg(scale))

    def commit(self, ctx: Context[TD3State, None], inner: Inner) -> TD3State:
        """Update the targets (on actor steps only). The actor's target tracks the actor from *before* this step."""
        state = ctx.state
        return replace(
            state,
            actor=inner.params,
            actor_opt=inner.opt_state,
            actor_target=polyak(state.actor_target, state.actor, self.tau),
            critics_target=polyak(state.critics_target, state.critics, self.tau),
        )
