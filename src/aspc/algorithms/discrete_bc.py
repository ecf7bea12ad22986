"""Behavior cloning for discrete actions: min_π E[c(s, a)], with the cross-entropy c of `choices.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Array, Float, PRNGKeyArray

from aspc.algorithms.bc import BC, BCState
from aspc.algorithms.choices import ProductPolicy, export_product_policy, make_policy
from aspc.algorithms.interface import Batch, PolicyExport, Spec


@dataclass(frozen=True)
class DiscreteBC(BC):
    """Behavior cloning for discrete actions, with or without continuous ones. Rewards are ignored."""

    handles_choices: ClassVar[bool] = True

    def init(self, key: PRNGKeyArray, spec: Spec) -> BCState:
        hidden = [self.actor_hidden_dim] * self.actor_hidden_layers
        return self.start(make_policy(self.actor, key, spec, hidden))

    def constraint(self, actor: Any, batch: Batch) -> Float[Array, "batch"]:
        """Return c(s, a)."""
        constraint: Array = actor.constraint(actor(batch.observations), batch.actions)
        return constraint

    def policy(self, state: BCState) -> PolicyExport:
        assert isinstance(state.actor, ProductPolicy)
        return export_product_policy(state.actor)
