"""Advantage-weighted actor-critic (AWAC; Nair et al., 2020), with a fixed or a learned scale.

    critics: Q_k(s, a) → r + γ·min_k Q'_k(s', a'),                a' ~ π(s')
    actor:   max_π  E[w·log π(a|s)],   w = min(exp(β·A), 100),    A = min_k Q_k(s, a) − min_k Q_k(s, ã),  ã ~ π(s)

The scale is β (1/λ in the paper). Like every `ScalableAlgorithm`, AWAC is also registered with a learned scale:

    aspc train maze2d-umaze --plugin examples/awac.py --algo awac --steps 20000
    aspc train maze2d-umaze --plugin examples/awac.py --algo awac+aspc --steps 20000
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from aspc import authoring as rl


class AWACState(NamedTuple):
    actor: Any
    actor_opt: Any
    critics: Any
    critics_target: Any
    critics_opt: Any


@rl.register("awac")
@dataclass(frozen=True)
class AWAC(rl.ScalableAlgorithm[AWACState, Any]):
    scale_name: ClassVar[str] = "beta"

    beta: rl.NonNegative = 1.0
    """Inverse temperature of the advantage weights. With 0, the actor is trained by behavior cloning."""
    lr: rl.NonNegative = 3e-4
    """Learning rate of the actor and the critics (Adam)."""
    hidden_dim: rl.Count = 256
    """Width of all hidden layers (ReLU)."""

    def init(self, key, spec):
        key_actor, key_critics = jax.random.split(key)
        hidden, adam = [self.hidden_dim] * 2, rl.Adam(self.lr)
        mean = rl.DeterministicActor(rl.mlp(key_actor, spec.obs_dim, hidden, spec.act_dim), spec.max_action)
        actor, critics = rl.GaussianActor(mean, jnp.zeros(spec.act_dim)), rl.make_critics(key_critics, spec, hidden)
        return AWACState(actor, adam.init(actor), critics, critics, adam.init(critics))

    def noise(self, spec, batch_size):
        return {name: rl.Draw("normal", (batch_size, spec.act_dim)) for name in ("action", "next_action")}

    def prepare(self, state, batch, noise, parts):  # update the critics, then compute the advantages
        def sample(s, epsilon):
            high = state.actor.mean.max_action
            return jnp.clip(state.actor(s) + jnp.exp(state.actor.log_std) * epsilon, -high, high)

        s, s_next, metrics = batch.observations, batch.next_observations, {}
        if rl.CRITIC in parts:
            next_q = state.critics_target(s_next, sample(s_next, noise["next_action"])).min(0)
            y = rl.bootstrap(batch, self.discount, next_q)
            fit = rl.fit_critics(rl.Adam(self.lr), state.critics, state.critics_opt, batch, y)
            target = rl.polyak(state.critics_target, fit.params, self.tau)
            state = state._replace(critics=fit.params, critics_target=target, critics_opt=fit.opt_state)
            metrics = {"critic_loss": fit.loss, "q_mean": fit.aux.mean()}
        advantage = state.critics(s, batch.actions).min(0) - state.critics(s, sample(s, noise["action"])).min(0)
        return rl.Context(state, batch, noise, metrics, advantage)

    def weights(self, ctx, beta):
        return jnp.exp(jnp.minimum(beta * ctx.extra, jnp.log(100.0)))

    def inner_step(self, ctx, scale):  # update the actor; differentiable with respect to the scale
        def loss(actor):
            nll = -actor.log_prob(actor(ctx.batch.observations), ctx.batch.actions)
            return (self.weights(ctx, scale) * nll).mean(), nll

        step = rl.Adam(self.lr).minimize(loss, ctx.state.actor, ctx.state.actor_opt)
        return rl.Inner(step.params, step.opt_state, None, step.aux, {"actor_loss": step.loss})

    def outer_terms(self, ctx, params, scale):  # Q and the constraint for the updated actor, and their weights in L1
        mean = params(ctx.batch.observations)
        q, nll = rl.min_q(ctx.state.critics(ctx.batch.observations, mean)), -params.log_prob(mean, ctx.batch.actions)
        return rl.OuterTerms(q, nll, 1.0, jax.lax.stop_gradient(self.weights(ctx, scale)))

    def commit(self, ctx, inner):
        return ctx.state._replace(actor=inner.params, actor_opt=inner.opt_state)

    def policy(self, state):
        return rl.deterministic_policy(state.actor.mean)
