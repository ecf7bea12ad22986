"""IQL (Kostrikov et al., 2022) never evaluates actions outside the data; its policy is advantage-weighted BC.

    value:   V(s)    → τ-expectile of min_k Q'_k(s, a):   E[|τ − 1(A < 0)|·A²],   A = min_k Q'_k(s, a) − V(s)
    critics: Q_k(s, a) → r + γ·V(s')
    actor:   min_π  E[w·ℓ(π(s), a)],   w = min(exp(β·A), 100),   ℓ = −log π(a|s), or ‖π(s) − a‖² if deterministic

The scale that ASPC learns is β, inside the exponential. The outer loss (the paper's appendix D) contains Q(s, π(s)) at
the policy's mean, but the paper does not specify which critic. This implementation takes the minimum of both critics,
as in the advantage A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient as sg
from jaxtyping import Array, Float, PRNGKeyArray

from aspc.algorithms.choices import ProductPolicy
from aspc.algorithms.component_names import CustomActorCritic
from aspc.algorithms.components import make_network, make_optimizer
from aspc.algorithms.fields import Count, Depth, Fraction, Horizon, NonNegative, Range
from aspc.algorithms.interface import (
    Batch,
    Context,
    Draw,
    Inner,
    Noise,
    OuterTerms,
    Parts,
    PolicyExport,
    ScalableAlgorithm,
    Spec,
)
from aspc.algorithms.td_learning import bootstrap, deterministic_policy, expectile_loss, make_critics, min_q, polyak
from aspc.networks import DeterministicActor, Ensemble, GaussianActor, Value, mlp
from aspc.optim import Adam, Optimizer, cosine_decay

Actor = GaussianActor | DeterministicActor | ProductPolicy


class IQLState(eqx.Module):
    """Actor, critics with targets, value network, and their optimizers."""

    actor: Actor
    actor_opt: Any
    critics: Ensemble
    critics_target: Ensemble
    critics_opt: Any
    value: Value
    value_opt: Any


@dataclass(frozen=True)
class IQL(CustomActorCritic, ScalableAlgorithm[IQLState, Array]):
    """IQL with a fixed inverse temperature β."""

    scale_name: ClassVar[str] = "beta"

    beta: NonNegative = 3.0
    """Inverse temperature of the advantage weights; 0 is behavior cloning."""
    expectile: Fraction = 0.7
    """Expectile τ for V: 0.5 is the mean over the data's actions, 1 the maximum."""
    deterministic: bool = False
    """Use a deterministic policy with a squared error instead of a Gaussian policy."""
    max_weight: Annotated[float, Range(0, exclusive_min=True)] = 100.0
    """Largest weight of a sample; a weight at this bound has zero gradient with respect to β."""
    actor_dropout: Annotated[float, Range(0, 1, exclusive_max=True)] = 0.0
    """Fraction of the actor's hidden units dropped during training."""
    actor_lr: NonNegative = 3e-4
    """Learning rate of the actor (Adam), with cosine decay to 0 over the horizon."""
    critic_lr: NonNegative = 3e-4
    """Learning rate of the critics (Adam)."""
    value_lr: NonNegative = 3e-4
    """Learning rate of the value network (Adam)."""
    hidden_dim: Count = 256
    """Width of all hidden layers (ReLU)."""
    hidden_layers: Depth = 2
    """Number of hidden layers of every network."""
    critic_layer_norm: bool = False
    """LayerNorm after each hidden layer of the critics and the value network."""
    lr_horizon: Horizon = 1_000_000
    """Steps over which the actor's learning rate decays. Set it with --horizon."""

    # -- networks, state and schedule --------------------------------------------------------------------------
    def init(self, key: PRNGKeyArray, spec: Spec) -> IQLState:
        key_actor, key_critics, key_value = jax.random.split(key, 3)
        hidden = [self.hidden_dim] * self.hidden_layers
        # The mean lies in [-1, 1] for any max_action, as in the authors' code.
        mean = DeterministicActor(make_network(self.actor, key_actor, spec.obs_dim, hidden, spec.act_dim))
        actor = mean if self.deterministic else GaussianActor(mean, jnp.zeros(spec.act_dim))
        norm = self.critic_layer_norm
        value = Value(mlp(key_value, spec.obs_dim, hidden, 1, layer_norm=norm))
        return self.start(actor, make_critics(key_critics, spec, hidden, self.critic, layer_norm=norm), value)

    def start(self, actor: Actor, critics: Ensemble, value: Value) -> IQLState:
        """Return the initial state for given networks."""
        return IQLState(
            actor,
            self.inner_optimizer().init(actor),
            critics,
            critics,
            self.critics_optimizer().init(critics),
            value,
            Adam(self.value_lr).init(value),
        )

    def inner_optimizer(self) -> Optimizer:
        """Return the actor's optimizer."""
        return make_optimizer(self.actor_optimizer, cosine_decay(self.actor_lr, self.lr_horizon))

    def critics_optimizer(self) -> Optimizer:
        """Return the critics' optimizer."""
        return make_optimizer(self.critic_optimizer, self.critic_lr)

    def noise(self, spec: Spec, batch_size: int) -> dict[str, Draw]:
        if not self.actor_dropout:
            return {}
        return {"dropout": Draw("uniform", (self.hidden_layers, batch_size, self.hidden_dim))}

    # -- value and critics -------------------------------------------------------------------------------------
    def prepare(self, state: IQLState, batch: Batch, noise: Noise, parts: Parts) -> Context[IQLState, Array]:
        """Update V, and the critics with the loss ½·Σ_k mean (Q_k(s, a) − y)², where y uses V before its update."""
        s, a = batch.observations, batch.actions
        target_q = state.critics_target(s, a).min(0)

        def value_loss(value: Value) -> tuple[Array, tuple[Array, Array]]:
            v = value(s)
            advantage = target_q - v
            return expectile_loss(advantage, self.expectile), (advantage, v)

        y = bootstrap(batch, self.discount, state.value(batch.next_observations))

        def critic_loss(critics: Ensemble) -> tuple[Array, Array]:
            q = critics(s, a)
            return jnp.square(q - y).mean(), q

        value = Adam(self.value_lr).minimize(value_loss, state.value, state.value_opt)
        critics = self.critics_optimizer().minimize(critic_loss, state.critics, state.critics_opt)
        state = replace(
            state,
            value=value.params,
            value_opt=value.opt_state,
            critics=critics.params,
            critics_opt=critics.opt_state,
            critics_target=polyak(state.critics_target, critics.params, self.tau),
        )
        advantage, v = value.aux
        metrics = {
            "value_loss": value.loss,
            "critic_loss": critics.loss,
            "v_mean": v.mean(),
            "q_mean": critics.aux[0].mean(),
            "advantage": advantage.mean(),
        }
        return Context(state, batch, noise, metrics, advantage)

    # -- actor: the inner step ---------------------------------------------------------------------------------
    def weights(self, ctx: Context[IQLState, Array], beta: Array | float) -> Float[Array, "batch"]:
        """Compute w = min(exp(β·A), 100). The exponent is clipped instead of w, since exp could overflow."""
        return jnp.exp(jnp.minimum(beta * ctx.extra, math.log(self.max_weight)))

    def bc_loss(
        self, ctx: Context[IQLState, Array], actor: Actor
    ) -> tuple[Float[Array, "batch act"], Float[Array, "batch"]]:
        """Return the policy's mean, and ℓ(π(s), a) per sample."""
        dropout = None
        if self.actor_dropout:
            dropout = (ctx.noise["dropout"] >= self.actor_dropout) / (1 - self.actor_dropout)
        mean = actor(ctx.batch.observations, dropout)
        if isinstance(actor, GaussianActor):
            return mean, -actor.log_prob(mean, ctx.batch.actions)
        return mean, jnp.square(mean - ctx.batch.actions).sum(-1)

    def inner_step(self, ctx: Context[IQLState, Array], scale: Array | float) -> Inner:
        weights = self.weights(ctx, scale)

        def inner_loss(actor: Actor) -> tuple[Array, Array]:
            bc = self.bc_loss(ctx, actor)[1]
            return (weights * bc).mean(), bc

        step = self.inner_optimizer().minimize(inner_loss, ctx.state.actor, ctx.state.actor_opt)
        bc = step.aux
        metrics = {"actor_loss": step.loss, "bc_loss": bc.mean(), "weight_mean": weights.mean()}
        return Inner(step.params, step.opt_state, None, bc, metrics)

    def outer_terms(self, ctx: Context[IQLState, Array], params: Any, scale: Array | float) -> OuterTerms:
        """Return the terms of L1 in appendix D: −E[Q(s, π̃(s))]/E|Q(s, π̃(s))| + E[w·ℓ(π̃(s), a)]."""
        mean, bc = self.bc_loss(ctx, params)
        q = min_q(ctx.state.critics(ctx.batch.observations, mean))
        return OuterTerms(q, bc, 1.0, sg(self.weights(ctx, scale)))

    def commit(self, ctx: Context[IQLState, Array], inner: Inner) -> IQLState:
        return replace(ctx.state, actor=inner.params, actor_opt=inner.opt_state)

    # -- acting ------------------------------------------------------------------------------------------------
    def policy(self, state: IQLState) -> PolicyExport:
        """Export the policy's mean."""
        actor = state.actor.mean if isinstance(state.actor, GaussianActor) else state.actor
        return deterministic_policy(actor)
