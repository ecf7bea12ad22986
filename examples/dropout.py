"""Dropout in the actor of TD3+BC or ASPC. The dropout masks are declared as noise, so runs remain reproducible.

aspc train maze2d-umaze --plugin examples/dropout.py --algo td3_bc_dropout --steps 20000
aspc train maze2d-umaze --plugin examples/dropout.py --algo td3_bc_dropout+aspc --steps 20000
"""

from dataclasses import dataclass

import jax.numpy as jnp

from aspc import authoring as rl


@rl.register("td3_bc_dropout")
@dataclass(frozen=True)
class DropoutTD3BC(rl.TD3BC):
    actor_dropout: rl.Fraction = 0.1
    """Fraction of the actor's hidden units that are dropped during training."""

    def noise(self, spec, batch_size):
        shape = (self.actor_hidden_layers, batch_size, self.actor_hidden_dim)
        return {**super().noise(spec, batch_size), "dropout": rl.Draw("uniform", shape)}

    def q_and_constraint(self, ctx, actor):
        mask = (ctx.noise["dropout"] >= self.actor_dropout) / (1 - self.actor_dropout)
        actions = actor(ctx.batch.observations, mask)
        return self.actor_q(ctx, actions), jnp.square(actions - ctx.batch.actions).mean(-1)
