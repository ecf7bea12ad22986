"""A variant of TD3+BC whose actor and critics share an encoder, which is trained only by the critics' loss.

aspc train maze2d-umaze --plugin examples/shared_encoder.py --algo td3_bc_shared --steps 20000
"""

from dataclasses import dataclass, replace

import equinox as eqx
import jax

from aspc import authoring as rl


class SharedCritics(eqx.Module):  # Q_k(f(s), a), as an array [critics, batch]
    encoder: rl.MLP
    heads: rl.Ensemble

    def __call__(self, observations, actions):
        return self.heads(jax.nn.relu(self.encoder(observations)), actions)

    def __getitem__(self, index):
        return lambda observations, actions: self.heads[index](jax.nn.relu(self.encoder(observations)), actions)


class EncodedActor(eqx.Module):  # π(f(s)), with a copy of the critics' encoder
    encoder: rl.MLP
    head: rl.DeterministicActor

    def __call__(self, observations):
        return self.head(jax.lax.stop_gradient(jax.nn.relu(self.encoder(observations))))

    @property
    def max_action(self):
        return self.head.max_action


@rl.register("td3_bc_shared")
@dataclass(frozen=True)
class SharedEncoder(rl.TD3BC):
    features: rl.Count = 64
    """Size of the encoder's output."""

    def make_networks(self, key, spec):
        key_encoder, key_heads = jax.random.split(key)
        encoder = rl.mlp(key_encoder, spec.obs_dim, [self.critic_hidden_dim], self.features)
        actor, heads = super().make_networks(key_heads, spec._replace(obs_dim=self.features))
        return EncodedActor(encoder, actor), SharedCritics(encoder, heads)

    def commit(self, ctx, inner):  # copy the critics' encoder to the actor
        state = super().commit(ctx, inner)
        actor = replace(state.actor, encoder=state.critics.encoder)
        target = replace(state.actor_target, encoder=state.critics_target.encoder)
        return replace(state, actor=actor, actor_target=target)

    def policy(self, state):
        return rl.deterministic_policy(state.actor, observation_size=state.actor.encoder.in_size)
