"""TD3+BC (Fujimoto & Gu, 2021), the backbone of ASPC: equations (1) to (5) of the paper.

    actor:   max_π  λ·Q(s, π(s)) − (π(s) − a)²,      λ = α / mean|Q(s, π(s))|                          (3), (4)
    critics: Q_k(s, a) → r + γ·min_k Q'_k(s', π'(s') + clipped noise)

The paper runs it with a *robust critic* (three hidden layers, each with LayerNorm), the default here; the original
form is `critic_hidden_layers=2, critic_layer_norm=False`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient as sg
from jaxtyping import Array, Float, PRNGKeyArray

from aspc.algorithms.base import (
    CRITIC,
    INNER,
    Batch,
    Context,
    Draw,
    Inner,
    Noise,
    OuterTerms,
    Parts,
    PolicyExport,
    Scalable,
    Schedule,
    Segment,
    Spec,
)
from aspc.networks import (
    Critic,
    DeterministicActor,
    Ensemble,
    ensemble,
    fan_in_init,
    mlp,
    polyak,
    robust_critic_init,
)
from aspc.optim import Adam


class TD3State(NamedTuple):
    actor: DeterministicActor
    actor_target: DeterministicActor
    actor_opt: Any
    critics: Ensemble
    critics_target: Ensemble
    critics_opt: Any


@dataclass(frozen=True)
class TD3BC(Scalable):
    """TD3+BC with a fixed scale α."""

    alpha: float = 2.5
    """Scale of the RL term against the BC term."""
    batch_size: int = 256
    """Transitions in a minibatch."""
    discount: float = 0.99
    """Discount factor γ."""
    tau: float = 5e-3
    """Target update rate."""
    policy_noise: float = 0.2
    """Standard deviation of the target policy's noise, in units of the largest action."""
    noise_clip: float = 0.5
    """Bound of that noise, in the same units."""
    policy_freq: int = 2
    """Critic updates for each actor update (k_π)."""
    actor_lr: float = 3e-4
    """Learning rate of the actor (Adam)."""
    critic_lr: float = 3e-4
    """Learning rate of the critics (Adam)."""
    actor_hidden_dim: int = 256
    """Width of the actor's hidden layers (ReLU)."""
    actor_hidden_layers: int = 2
    """Number of the actor's hidden layers."""
    critic_hidden_dim: int = 256
    """Width of the critics' hidden layers (ReLU)."""
    critic_hidden_layers: int = 3
    """Number of the critics' hidden layers: 3 in the robust critic, 2 in the original."""
    critic_layer_norm: bool = True
    """LayerNorm after each hidden layer of the critics: the robust critic has it, the original does not."""
    normalize_observations: bool = True
    """Standardise observations with the dataset's mean and standard deviation (+ 1e-3)."""

    # -- networks and schedule ---------------------------------------------------------------------------------
    def make_actor(self, key: PRNGKeyArray, spec: Spec) -> DeterministicActor:
        hidden = [self.actor_hidden_dim] * self.actor_hidden_layers
        return DeterministicActor(mlp(key, spec.obs_dim, hidden, spec.act_dim), spec.max_action)

    def make_critics(self, key: PRNGKeyArray, spec: Spec) -> Ensemble:
        hidden = [self.critic_hidden_dim] * self.critic_hidden_layers
        init = robust_critic_init if self.critic_layer_norm else fan_in_init
        in_dim = spec.obs_dim + spec.act_dim
        return ensemble(lambda k: Critic(mlp(k, in_dim, hidden, 1, init=init, layer_norm=self.critic_layer_norm)), key)

    def init(self, key: PRNGKeyArray, spec: Spec) -> TD3State:
        key_actor, key_critics = jax.random.split(key)
        return self.start(self.make_actor(key_actor, spec), self.make_critics(key_critics, spec))

    def start(self, actor: DeterministicActor, critics: Ensemble) -> TD3State:
        """The state before the first step for given networks: targets are copies, optimisers are empty."""
        return TD3State(
            actor,
            actor,
            Adam(self.actor_lr).init(actor),
            critics,
            critics,
            Adam(self.critic_lr).init(critics),
        )

    def noise(self, spec: Spec, batch_size: int) -> dict[str, Draw]:
        return {"target_policy": Draw("normal", (batch_size, spec.act_dim))}

    def schedule(self) -> Schedule:
        waiting = (frozenset({CRITIC}),) * (self.policy_freq - 1)
        return (Segment((*waiting, frozenset({CRITIC, INNER})), 1),)

    # -- critic ------------------------------------------------------------------------------------------------
    def td_target(self, state: TD3State, batch: Batch, noise: Noise) -> Float[Array, "batch"]:
        """y = r + γ·min_k Q'_k(s', a'), a' = clip(π'(s') + clip(ε, ±c), ±max_action)."""
        high = state.actor.max_action
        epsilon = jnp.clip(
            self.policy_noise * high * noise["target_policy"], -self.noise_clip * high, self.noise_clip * high
        )
        next_actions = jnp.clip(state.actor_target(batch.next_observations) + epsilon, -high, high)
        next_q = state.critics_target(batch.next_observations, next_actions).min(0)
        return batch.rewards + self.discount * batch.masks * next_q

    def prepare(self, state: TD3State, batch: Batch, noise: Noise, parts: Parts) -> Context:
        """The critics' step: Σ_k mean (Q_k(s, a) − y)²."""
        y = self.td_target(state, batch, noise)

        def critic_loss(critics: Ensemble) -> tuple[Array, Array]:
            q = critics(batch.observations, batch.actions)
            return jnp.square(q - y).mean(1).sum(), q[0].mean()

        (loss, q_mean), grads = jax.value_and_grad(critic_loss, has_aux=True)(state.critics)
        critics, critics_opt = Adam(self.critic_lr).step(state.critics, grads, state.critics_opt)
        state = state._replace(critics=critics, critics_opt=critics_opt)
        return Context(state, batch, noise, {"critic_loss": loss, "q_mean": q_mean})

    # -- actor: the inner step ---------------------------------------------------------------------------------
    def q_and_constraint(self, ctx: Context, actor: DeterministicActor) -> tuple[Array, Array]:
        """Per sample: Q(s, π(s)) by the first critic, and (π(s) − a)² averaged over action dimensions."""
        actions = actor(ctx.batch.observations)
        q = ctx.state.critics[0](ctx.batch.observations, actions)
        return q, jnp.square(actions - ctx.batch.actions).mean(-1)

    def inner_step(self, ctx: Context, scale: Array | float) -> Inner:
        """(4), (5): one Adam step on −λ(α)·Q(s, π_θ(s)) + ‖π_θ(s) − a‖²."""

        def inner_loss(actor: DeterministicActor) -> tuple[Array, tuple[Array, Array, Array]]:
            q, bc = self.q_and_constraint(ctx, actor)
            lmbda = scale / sg(jnp.abs(q).mean())
            return -lmbda * q.mean() + bc.mean(), (q, bc, lmbda)

        (loss, (q, bc, lmbda)), grads = jax.value_and_grad(inner_loss, has_aux=True)(ctx.state.actor)
        params, opt_state = Adam(self.actor_lr).step(ctx.state.actor, grads, ctx.state.actor_opt)
        metrics = {"actor_loss": loss, "actor_q_mean": q.mean(), "lmbda": lmbda, "bc_loss": bc.mean()}
        return Inner(params, opt_state, q, bc, metrics)

    def outer_terms(self, ctx: Context, params: DeterministicActor, scale: Array | float) -> OuterTerms:
        q, bc = self.q_and_constraint(ctx, params)
        return OuterTerms(q, bc, sg(scale), 1.0)

    def commit(self, ctx: Context, inner: Inner) -> TD3State:
        """The targets of actor and critics move on actor steps only, towards the updated networks."""
        state = ctx.state
        return state._replace(
            actor=inner.params,
            actor_opt=inner.opt_state,
            actor_target=polyak(state.actor_target, inner.params, self.tau),
            critics_target=polyak(state.critics_target, state.critics, self.tau),
        )

    # -- acting ------------------------------------------------------------------------------------------------
    def policy(self, state: TD3State) -> PolicyExport:
        layers = state.actor.net.layers
        arrays = {f"layers.{i}.weight": layer.weight for i, layer in enumerate(layers)}
        arrays |= {f"layers.{i}.bias": layer.bias for i, layer in enumerate(layers)}
        return PolicyExport("deterministic", arrays, {"activation": "relu", "output": "tanh"})
