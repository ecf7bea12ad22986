"""Behavior cloning: min_π E‖π(s) − a‖². The baseline that any offline-RL algorithm has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from aspc.algorithms.choices import ProductPolicy
from aspc.algorithms.component_names import CustomActor
from aspc.algorithms.components import make_network, make_optimizer
from aspc.algorithms.fields import Count, Depth, NonNegative
from aspc.algorithms.interface import (
    INNER,
    Algorithm,
    Batch,
    Metrics,
    Noise,
    Parts,
    PolicyExport,
    Schedule,
    Segment,
    Spec,
)
from aspc.algorithms.td_learning import deterministic_policy
from aspc.networks import DeterministicActor
from aspc.optim import Optimizer


class BCState(eqx.Module):
    """The actor and its optimizer."""

    actor: DeterministicActor | ProductPolicy
    actor_opt: Any


@dataclass(frozen=True)
class BC(CustomActor, Algorithm[BCState]):
    """Behavior cloning with TD3+BC's actor. Rewards are ignored."""

    actor_lr: NonNegative = 3e-4
    """Learning rate of the actor (Adam)."""
    actor_hidden_dim: Count = 256
    """Width of the actor's hidden layers (ReLU)."""
    actor_hidden_layers: Depth = 2
    """Number of hidden layers in the actor."""

    def init(self, key: PRNGKeyArray, spec: Spec) -> BCState:
        hidden = [self.actor_hidden_dim] * self.actor_hidden_layers
        net = make_network(self.actor, key, spec.obs_dim, hidden, spec.act_dim)
        return self.start(DeterministicActor(net, spec.max_action))

    def start(self, actor: DeterministicActor | ProductPolicy) -> BCState:
        """Return the initial state for a given network."""
        return BCState(actor, self.optimizer().init(actor))

    def optimizer(self) -> Optimizer:
        """Return the actor's optimizer."""
        return make_optimizer(self.actor_optimizer, self.actor_lr)

    def schedule(self) -> Schedule:
        return (Segment((frozenset({INNER}),), 1),)

    def constraint(self, actor: Any, batch: Batch) -> Float[Array, "batch *act"]:
        """Return (π(s) − a)²."""
        return jnp.square(actor(batch.observations) - batch.actions)

    def update(self, state: BCState, batch: Batch, noise: Noise, parts: Parts) -> tuple[BCState, Metrics]:
        def loss(actor: Any) -> tuple[Array, None]:
            return self.constraint(actor, batch).mean(), None

        step = self.optimizer().minimize(loss, state.actor, state.actor_opt)
        return BCState(step.params, step.opt_state), {"bc_loss": step.loss}

    def policy(self, state: BCState) -> PolicyExport:
        assert isinstance(state.actor, DeterministicActor)
        return deterministic_policy(state.actor)
