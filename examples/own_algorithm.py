"""A custom algorithm in one file outside the package: critic-regularized regression (Wang et al., 2020).

The critics learn the values of the policy's actions. The policy imitates the logged actions that the critics value
more than its own.

    aspc train maze2d-umaze --plugin examples/own_algorithm.py --algo crr --steps 20000
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from aspc import authoring as rl


class CRRState(NamedTuple):  # carried from step to step; every leaf is an array
    actor: Any
    actor_opt: Any
    critics: Any
    critics_target: Any
    critics_opt: Any


@rl.register("crr")
@dataclass(frozen=True)
class CRR(rl.Algorithm[CRRState]):  # each field is a command-line option: --hidden-dim 64
    discount: rl.Fraction = 0.99
    lr: rl.NonNegative = 3e-4
    hidden_dim: rl.Count = 256

    def init(self, key, spec):
        key_actor, key_critics = jax.random.split(key)
        hidden, adam = [self.hidden_dim] * 2, rl.Adam(self.lr)
        actor = rl.DeterministicActor(rl.mlp(key_actor, spec.obs_dim, hidden, spec.act_dim))
        critics = rl.make_critics(key_critics, spec, hidden)
        return CRRState(actor, adam.init(actor), critics, critics, adam.init(critics))

    def update(self, state, batch, noise, parts):
        s, a, s_next, adam = batch.observations, batch.actions, batch.next_observations, rl.Adam(self.lr)
        y = rl.bootstrap(batch, self.discount, state.critics_target(s_next, state.actor(s_next)).min(0))
        critics = rl.fit_critics(adam, state.critics, state.critics_opt, batch, y)
        better = critics.params(s, a).min(0) > critics.params(s, state.actor(s)).min(0)
        actor = adam.minimize(lambda pi: ((better * jnp.square(pi(s) - a).mean(-1)).mean(), None), *state[:2])
        target = rl.polyak(state.critics_target, critics.params, tau=5e-3)
        state = CRRState(actor.params, actor.opt_state, critics.params, target, critics.opt_state)
        return state, {"critic_loss": critics.loss, "actor_loss": actor.loss, "imitated": better.mean()}

    def policy(self, state):  # the exported policy; it runs without JAX
        return rl.deterministic_policy(state.actor)
