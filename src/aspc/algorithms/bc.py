"""Behaviour cloning: min_π E‖π(s) − a‖². The yardstick that any offline-RL algorithm has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from aspc.algorithms.interface import (
    INNER,
    Batch,
    Draw,
    Metrics,
    Noise,
    Parts,
    PolicyExport,
    Preprocessing,
    Schedule,
    Segment,
    Spec,
)
from aspc.algorithms.td_learning import deterministic_policy
from aspc.networks import DeterministicActor, mlp
from aspc.optim import Adam


class BCState(NamedTuple):
    actor: DeterministicActor
    actor_opt: Any


@dataclass(frozen=True)
class BC(Preprocessing):
    """Behaviour cloning with TD3+BC's actor; rewards play no role."""

    batch_size: int = 256
    """Transitions in a minibatch."""
    actor_lr: float = 3e-4
    """Learning rate of the actor (Adam)."""
    actor_hidden_dim: int = 256
    """Width of the actor's hidden layers (ReLU)."""
    actor_hidden_layers: int = 2
    """Number of the actor's hidden layers."""

    def init(self, key: PRNGKeyArray, spec: Spec) -> BCState:
        net = mlp(key, spec.obs_dim, [self.actor_hidden_dim] * self.actor_hidden_layers, spec.act_dim)
        return self.start(DeterministicActor(net, spec.max_action))

    def start(self, actor: DeterministicActor) -> BCState:
        """The state before the first step for a given network."""
        return BCState(actor, Adam(self.actor_lr).init(actor))

    def noise(self, spec: Spec, batch_size: int) -> dict[str, Draw]:
        return {}

    def schedule(self) -> Schedule:
        return (Segment((frozenset({INNER}),), 1),)

    def update(self, state: BCState, batch: Batch, noise: Noise, parts: Parts) -> tuple[BCState, Metrics]:
        def loss(actor: DeterministicActor) -> tuple[Array, None]:
            return jnp.square(actor(batch.observations) - batch.actions).mean(), None

        step = Adam(self.actor_lr).minimize(loss, state.actor, state.actor_opt)
        return BCState(step.params, step.opt_state), {"bc_loss": step.loss}

    def policy(self, state: BCState) -> PolicyExport:
        return deterministic_policy(state.actor.net)
