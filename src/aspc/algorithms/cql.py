"""CQL (Kumar et al., 2020) on SAC: a penalty pushes down the Q-values of actions outside the data.

    critics: min_Q  Σ_k E(Q_k(s, a) − y)² + α_cql·Σ_k E[P_k],   y = r + γ·min_k Q'_k(s', a'),   a' ~ π(s')
             P_k = logsumexp over sampled actions of (Q_k − log density) − Q_k(s, a)         ("importance")
             P_k = logsumexp over sampled and logged actions of Q_k − Q_k(s, a)              ("logsumexp")
             P_k = mean over actions of π(s) of Q_k − Q_k(s, a)                              ("policy", appendix D)
    actor:   min_π  E[α·log π(u|s) − min_k Q_k(s, u)],   u ~ π(s)
    α:       learned so that the entropy of π stays at −dim(a)

The sampled actions are n uniform actions, n from π(s) and n from π(s'); Q is evaluated at s for all of them. All losses
use the parameters from the start of the step. The scale is α_cql, so the inner step updates the critics. Appendix D
does not define Q(s, π(s)) for two critics and a stochastic policy; here it is min_k Q_k(s, u), u as in the actor loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient as sg
from jaxtyping import Array, Float, PRNGKeyArray

from aspc.algorithms.component_names import CustomActorCritic
from aspc.algorithms.components import make_network, make_optimizer
from aspc.algorithms.fields import Count, Depth, NonNegative, Scalar
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
from aspc.algorithms.policy_tracing import traced_policy
from aspc.algorithms.td_learning import bootstrap, deterministic_policy, make_critics, min_q, polyak
from aspc.custom_networks import CustomNetwork
from aspc.networks import MLP, Ensemble, Linear, SquashedGaussianActor, orthogonal_init
from aspc.networks import small_glorot_last_init as actor_init
from aspc.optim import Adam, Optimizer


class CQLState(eqx.Module):
    """Actor, entropy weight α, critics with targets, the multiplier α', and their optimizers."""

    actor: SquashedGaussianActor
    actor_opt: Any
    log_alpha: Float[Array, ""]
    log_alpha_opt: Any
    critics: Ensemble
    critics_target: Ensemble
    critics_opt: Any
    log_alpha_prime: Float[Array, ""]
    log_alpha_prime_opt: Any


class Samples(NamedTuple):
    """Inputs to the critic update, all with gradients stopped."""

    y: Float[Array, "batch"]
    policy_actions: Float[Array, "batch act"]
    policy_q: Float[Array, "batch"]
    actions: Float[Array, "batch samples act"]
    """n uniform actions, n from π(s'), n from π(s), then the logged action."""
    log_density: Float[Array, "batch samples-1"]


class Penalty(NamedTuple):
    """Q of all actions in `Samples.actions`, and the penalty."""

    q: Float[Array, "critics batch samples"]
    gap: Float[Array, "critics batch"]
    """P_k per sample, clipped to its bounds."""


@dataclass(frozen=True)
class CQL(CustomActorCritic, ScalableAlgorithm[CQLState, Samples]):
    """CQL with a fixed penalty weight."""

    scale_name: ClassVar[str] = "cql_alpha"

    cql_alpha: NonNegative = 10.0
    """Weight of the penalty."""
    penalty: Literal["importance", "logsumexp", "policy"] = "importance"
    """Penalty: importance-weighted log-sum-exp (authors' code), plain log-sum-exp, or the mean under π (appendix D)."""
    n_actions: Count = 10
    """Number n of sampled actions of each kind: uniform, from π(s) and from π(s')."""
    temperature: NonNegative = 1.0
    """Temperature of the log-sum-exp."""
    penalty_min: Scalar = -math.inf
    """Lower bound of a sample's penalty."""
    penalty_max: Scalar = math.inf
    """Upper bound of a sample's penalty."""
    lagrange: bool = False
    """Multiply the penalty by a learned α' that keeps it at `target_gap`."""
    target_gap: Scalar = -1.0
    """Target value of the penalty, used to learn α'."""
    max_target_backup: bool = False
    """Use the best of n next actions in the critics' target."""
    backup_entropy: bool = False
    """Include SAC's entropy term in the critics' target."""
    alpha_multiplier: NonNegative = 1.0
    """Multiplier of the entropy weight α."""
    actor_lr: NonNegative = 3e-5
    """Learning rate of the actor and of α (Adam)."""
    critic_lr: NonNegative = 3e-4
    """Learning rate of the critics and of α' (Adam)."""
    hidden_dim: Count = 256
    """Width of all hidden layers (ReLU)."""
    actor_hidden_layers: Depth = 3
    """Number of hidden layers in the actor."""
    critic_hidden_layers: Depth = 3
    """Number of hidden layers in each critic."""

    # -- networks, state and schedule --------------------------------------------------------------------------
    def init(self, key: PRNGKeyArray, spec: Spec) -> CQLState:
        key_actor, key_critics = jax.random.split(key)
        hidden = [self.hidden_dim] * self.actor_hidden_layers
        net = make_network(self.actor, key_actor, spec.obs_dim, hidden, 2 * spec.act_dim, init=actor_init)
        actor = SquashedGaussianActor(net, jnp.ones(()), -jnp.ones(()), spec.max_action)
        hidden = [self.hidden_dim] * self.critic_hidden_layers
        return self.start(actor, make_critics(key_critics, spec, hidden, self.critic, init=orthogonal_init))

    def start(self, actor: SquashedGaussianActor, critics: Ensemble) -> CQLState:
        """Return the initial state for the given networks."""
        log_alpha, log_alpha_prime = jnp.zeros(()), jnp.ones(())
        return CQLState(
            actor,
            self.policy_optimizer().init(actor),
            log_alpha,
            Adam(self.actor_lr).init(log_alpha),
            critics,
            critics,
            self.inner_optimizer().init(critics),
            log_alpha_prime,
            Adam(self.critic_lr).init(log_alpha_prime),
        )

    def inner_optimizer(self) -> Optimizer:
        """Return the critics' optimizer."""
        return make_optimizer(self.critic_optimizer, self.critic_lr)

    def policy_optimizer(self) -> Optimizer:
        """Return the actor's optimizer."""
        return make_optimizer(self.actor_optimizer, self.actor_lr)

    def noise(self, spec: Spec, batch_size: int) -> dict[str, Draw]:
        one = Draw("normal", (batch_size, spec.act_dim))
        many = Draw("normal", (batch_size, self.n_actions, spec.act_dim))
        return {
            "pi_obs": one,
            "pi_next": many if self.max_target_backup else one,
            "random_actions": Draw("uniform", many.shape, -1.0, 1.0),
            "cql_current": many,
            "cql_next": many,
        }

    # -- actor, entropy weight and critic inputs ---------------------------------------------------------------
    def prepare(self, state: CQLState, batch: Batch, noise: Noise, parts: Parts) -> Context[CQLState, Samples]:
        """Update the actor and the entropy weight, and draw the critics' inputs, all from the old parameters."""
        alpha = jnp.exp(state.log_alpha) * self.alpha_multiplier

        def actor_loss(actor: SquashedGaussianActor) -> tuple[Array, tuple[Array, Array, Array]]:
            actions, log_pi = actor.sample(batch.observations, noise["pi_obs"])
            q = min_q(state.critics(batch.observations, actions))
            return (alpha * log_pi - q).mean(), (actions, q, log_pi)

        actor = self.policy_optimizer().minimize(actor_loss, state.actor, state.actor_opt)
        actions, q, log_pi = actor.aux
        target_entropy = -batch.actions.shape[-1]

        def alpha_loss(log_alpha: Array) -> tuple[Array, None]:
            return -(log_alpha * (log_pi + target_entropy)).mean(), None

        entropy = Adam(self.actor_lr).minimize(alpha_loss, state.log_alpha, state.log_alpha_opt)
        target_q = self.target_q(state, batch, noise, alpha)
        samples = Samples(
            bootstrap(batch, self.discount, target_q), actions, q, *self.sampled_actions(state.actor, batch, noise)
        )
        metrics = {
            "actor_loss": actor.loss,
            "log_pi": log_pi.mean(),
            "alpha": alpha,
            "alpha_loss": entropy.loss,
            "target_q": target_q.mean(),
        }
        state = replace(
            state,
            actor=actor.params,
            actor_opt=actor.opt_state,
            log_alpha=entropy.params,
            log_alpha_opt=entropy.opt_state,
        )
        return Context(state, batch, noise, metrics, sg(samples))

    def target_q(self, state: CQLState, batch: Batch, noise: Noise, alpha: Array) -> Float[Array, "batch"]:
        """Compute min_k Q'_k(s', a'), optionally for the best of several a' and optionally with the entropy term."""
        actions, log_pi = state.actor.sample(batch.next_observations, noise["pi_next"])
        q = state.critics_target(tile_observations(batch.next_observations, actions), actions).min(0)
        if self.max_target_backup:
            best = q.argmax(1)[:, None]
            q, log_pi = (jnp.take_along_axis(x, best, 1)[:, 0] for x in (q, log_pi))
        return q - alpha * log_pi if self.backup_entropy else q

    def sampled_actions(self, actor: SquashedGaussianActor, batch: Batch, noise: Noise) -> tuple[Array, Array]:
        """Return `Samples.actions` and the log density of every action but the logged one."""
        uniform = noise["random_actions"]
        log_uniform = jnp.full(uniform.shape[:2], uniform.shape[-1] * math.log(0.5), uniform.dtype)
        following, log_following = actor.sample(batch.next_observations, noise["cql_next"])
        current, log_current = actor.sample(batch.observations, noise["cql_current"])
        actions = jnp.concatenate([uniform, following, current, batch.actions[:, None]], 1)
        return actions, jnp.concatenate([log_uniform, log_following, log_current], 1)

    # -- critics: the inner step -------------------------------------------------------------------------------
    def penalize(self, ctx: Context[CQLState, Samples], critics: Ensemble) -> Penalty:
        """Compute P_k and the Q-values that it uses."""
        actions = ctx.extra.actions
        q = critics(tile_observations(ctx.batch.observations, actions), actions)
        sampled, logged = q[..., :-1], q[..., -1]
        if self.penalty == "policy":
            high = sampled[..., -self.n_actions :].mean(-1)
        else:
            weighed = sampled - ctx.extra.log_density if self.penalty == "importance" else q
            high = self.temperature * jax.nn.logsumexp(weighed / self.temperature, -1)
        return Penalty(q, jnp.clip(high - logged, self.penalty_min, self.penalty_max))

    def alpha_prime(self, log_alpha_prime: Array) -> Array:
        """Return the multiplier α'."""
        return jnp.clip(jnp.exp(log_alpha_prime), 0.0, 1e6)

    def penalty_weight(self, ctx: Context[CQLState, Samples], scale: Array | float) -> Array | float:
        """Return the penalty weight: the scale, multiplied by α' if `lagrange` is set."""
        return self.alpha_prime(ctx.state.log_alpha_prime) * scale if self.lagrange else scale

    def inner_step(self, ctx: Context[CQLState, Samples], scale: Array | float) -> Inner:
        """Take one step on Σ_k [Bellman error + weight · P_k]; with `lagrange`, also one step on α'."""
        state = ctx.state
        weight = self.penalty_weight(ctx, scale)
        offset = self.target_gap if self.lagrange else 0.0

        def inner_loss(critics: Ensemble) -> tuple[Array, Penalty]:
            penalty = self.penalize(ctx, critics)
            bellman = jnp.square(penalty.q[..., -1] - ctx.extra.y).mean(1)
            return (bellman + weight * (penalty.gap.mean(1) - offset)).sum(), penalty

        step = self.inner_optimizer().minimize(inner_loss, state.critics, state.critics_opt)
        gap = step.aux.gap
        metrics = {"critic_loss": step.loss, "q_mean": step.aux.q[0, :, -1].mean(), "penalty": gap.mean()}
        log_alpha_prime, log_alpha_prime_opt = state.log_alpha_prime, state.log_alpha_prime_opt
        if self.lagrange:

            def alpha_prime_loss(log_alpha_prime: Array) -> tuple[Array, None]:
                return -self.alpha_prime(log_alpha_prime) * scale * (gap.mean() - offset), None

            dual = Adam(self.critic_lr).minimize(alpha_prime_loss, log_alpha_prime, log_alpha_prime_opt)
            log_alpha_prime, log_alpha_prime_opt = dual.params, dual.opt_state
            metrics |= {"alpha_prime": self.alpha_prime(state.log_alpha_prime), "alpha_prime_loss": dual.loss}
        return Inner(
            (step.params, log_alpha_prime),
            (step.opt_state, log_alpha_prime_opt),
            ctx.extra.policy_q,
            gap.mean(0),
            metrics,
        )

    def outer_terms(
        self, ctx: Context[CQLState, Samples], params: tuple[Ensemble, Array], scale: Array | float
    ) -> OuterTerms:
        """Return the terms of L1 (appendix D) = −E[Q̃(s, π(s))]/E|Q̃(s, π(s))| + α_cql·P̃, with P̃ averaged over k."""
        critics, _ = params
        q = min_q(critics(ctx.batch.observations, ctx.extra.policy_actions))
        return OuterTerms(q, self.penalize(ctx, critics).gap.mean(0), 1.0, sg(self.penalty_weight(ctx, scale)))

    def inner_params(self, state: CQLState) -> tuple[Ensemble, Array]:
        """Return the critics and log α'."""
        return state.critics, state.log_alpha_prime

    def commit(self, ctx: Context[CQLState, Samples], inner: Inner) -> CQLState:
        critics, log_alpha_prime = inner.params
        critics_opt, log_alpha_prime_opt = inner.opt_state
        return replace(
            ctx.state,
            critics=critics,
            critics_opt=critics_opt,
            critics_target=polyak(ctx.state.critics_target, critics, self.tau),
            log_alpha_prime=log_alpha_prime,
            log_alpha_prime_opt=log_alpha_prime_opt,
        )

    # -- acting ------------------------------------------------------------------------------------------------
    def policy(self, state: CQLState) -> PolicyExport:
        """Export tanh(mean) as the policy; the mean is the first half of the last layer's output."""
        net = state.actor.net

        def act(net: MLP | CustomNetwork, observations: Array) -> Array:
            return jnp.tanh(jnp.split(net(observations), 2, axis=-1)[0])

        if not isinstance(net, MLP):
            return traced_policy(act, net, net.in_size)
        *hidden, last = net.layers
        act_dim = net.out_size // 2
        mean = Linear(last.weight[..., :act_dim], last.bias[..., :act_dim])
        return deterministic_policy(MLP((*hidden, mean), (), net.activation))._replace(act=partial(act, net))


def tile_observations(observations: Float[Array, "batch obs"], actions: Float[Array, "batch *samples act"]) -> Array:
    """Repeat each observation for each of its actions."""
    if actions.ndim == observations.ndim:
        return observations
    return jnp.broadcast_to(observations[:, None], (*actions.shape[:-1], observations.shape[-1]))
