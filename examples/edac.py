"""EDAC's ensemble of N critics with diversified gradients (An et al., 2021), here with a deterministic actor.

    critics: Q_k(s, a) → r + γ·min_k Q'_k(s', π'(s') + clipped noise), with the penalty
             η/(N − 1) · E Σ_{i≠j} ⟨∇_a Q_i(s, a), ∇_a Q_j(s, a)⟩ on normalized gradients
    actor:   max_π  E[min_k Q_k(s, π(s))]

The paper uses SAC's actor; this example uses TD3's.

    aspc train maze2d-umaze --plugin examples/edac.py --algo edac --steps 20000
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from aspc import authoring as rl


class EDACState(NamedTuple):
    actor: Any
    actor_target: Any
    actor_opt: Any
    critics: Any
    critics_target: Any
    critics_opt: Any


@rl.register("edac")
@dataclass(frozen=True)
class EDAC(rl.Algorithm[EDACState]):
    climbs_q: ClassVar[bool] = True

    n_critics: Annotated[int, rl.Range(2)] = 10
    """Number of critics N."""
    eta: rl.NonNegative = 1.0
    """Weight η of the penalty on similar gradients. With 0, the ensemble is not diversified."""
    discount: rl.Fraction = 0.99
    """Discount factor γ."""
    lr: rl.NonNegative = 3e-4
    """Learning rate of the actor and the critics (Adam)."""
    hidden_dim: rl.Count = 256
    """Width of all hidden layers (ReLU)."""

    def init(self, key, spec):
        key_actor, key_critics = jax.random.split(key)
        width, adam, inputs = self.hidden_dim, rl.Adam(self.lr), spec.obs_dim + spec.act_dim
        actor = rl.DeterministicActor(rl.mlp(key_actor, spec.obs_dim, [width] * 3, spec.act_dim), spec.max_action)
        critics = rl.ensemble(lambda k: rl.Critic(rl.mlp(k, inputs, [width] * 3, 1)), key_critics, self.n_critics)
        return EDACState(actor, actor, adam.init(actor), critics, critics, adam.init(critics))

    def noise(self, spec, batch_size):
        return {"target_policy": rl.Draw("normal", (batch_size, spec.act_dim))}

    def similarity(self, critics, s, a):
        """Return Σ_{i≠j} ⟨g_i, g_j⟩/(N − 1) = (|Σ_i g_i|² − Σ_i |g_i|²)/(N − 1), where g_i = ∇_a Q_i/|∇_a Q_i|."""
        g = jax.vmap(lambda critic: jax.grad(lambda a: critic(s, a).sum())(a))(critics.members)
        g = g / jnp.sqrt(jnp.square(g).sum(-1, keepdims=True) + 1e-12)
        return (jnp.square(g.sum(0)).sum(-1) - jnp.square(g).sum((0, -1))).mean() / (self.n_critics - 1)

    def update(self, state, batch, noise, parts):
        s, a, s_next, adam = batch.observations, batch.actions, batch.next_observations, rl.Adam(self.lr)
        high = state.actor.max_action
        epsilon = high * jnp.clip(0.2 * noise["target_policy"], -0.5, 0.5)
        a_next = jnp.clip(state.actor_target(s_next) + epsilon, -high, high)
        y = rl.bootstrap(batch, self.discount, state.critics_target(s_next, a_next).min(0))

        def critic_loss(critics):
            td, similarity = jnp.square(critics(s, a) - y).mean(1).sum(), self.similarity(critics, s, a)
            return td + self.eta * similarity, {"td_loss": td, "similarity": similarity}

        critics = adam.minimize(critic_loss, state.critics, state.critics_opt)

        def actor_loss(actor):
            q = critics.params(s, actor(s))
            return -jnp.take_along_axis(q, q.argmin(0)[None], 0).mean(), None  # only one critic's gradient if tied

        actor = adam.minimize(actor_loss, state.actor, state.actor_opt)
        targets = rl.polyak((state.actor_target, state.critics_target), (actor.params, critics.params), tau=5e-3)
        state = EDACState(actor.params, targets[0], actor.opt_state, critics.params, targets[1], critics.opt_state)
        return state, {"actor_loss": actor.loss, **critics.aux}

    def policy(self, state):
        return rl.deterministic_policy(state.actor)

    def critics(self, state):
        return state.critics
