"""IQL for discrete actions: IQL's value and critics, and an advantage-weighted cross-entropy for the policy.

    value:   V(s)    → τ-expectile of min_k Q'_k(s, a):   E[|τ − 1(A < 0)|·A²],   A = min_k Q'_k(s, a) − V(s)
    critics: Q_k(s, a) → r + γ·V(s')
    actor:   min_π  E[w·c(s, a)],   w = min(exp(β·A), 100),   c as in `choices.py`

The ASPC paper covers only continuous actions. For a learned β, the outer loss in this library uses E_π[min_k Q_k](s)
instead of the critics at the policy's mean. The policy is deterministic in continuous action dimensions, as IQL's
deterministic policy is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from jax.lax import stop_gradient as sg
from jaxtyping import Array, Float, PRNGKeyArray

from aspc.algorithms.choices import (
    ChoiceCritics,
    ProductPolicy,
    export_product_policy,
    make_choice_critics,
    make_policy,
)
from aspc.algorithms.interface import Context, OuterTerms, PolicyExport, Spec
from aspc.algorithms.iql import IQL, IQLState
from aspc.algorithms.td_learning import min_q
from aspc.networks import Value, mlp


@dataclass(frozen=True)
class DiscreteIQL(IQL):
    """IQL for discrete actions with a fixed inverse temperature β. The option `deterministic` has no effect."""

    handles_choices: ClassVar[bool] = True

    def init(self, key: PRNGKeyArray, spec: Spec) -> IQLState:
        key_actor, key_critics, key_value = jax.random.split(key, 3)
        hidden = [self.hidden_dim] * self.hidden_layers
        critics = make_choice_critics(key_critics, spec, hidden, self.critic)
        value = Value(mlp(key_value, spec.obs_dim, hidden, 1))
        return self.start(make_policy(self.actor, key_actor, spec, hidden), critics, value)

    def bc_loss(
        self, ctx: Context[IQLState, Array], actor: Any
    ) -> tuple[Float[Array, "batch act"], Float[Array, "batch"]]:
        """Return the policy's outputs, and c(s, a) per sample."""
        dropout = None
        if self.actor_dropout:
            dropout = (ctx.noise["dropout"] >= self.actor_dropout) / (1 - self.actor_dropout)
        outputs = actor(ctx.batch.observations, dropout)
        return outputs, actor.constraint(outputs, ctx.batch.actions)

    def outer_terms(self, ctx: Context[IQLState, Array], params: Any, scale: Array | float) -> OuterTerms:
        """Return the terms of L1 = −E[E_π̃[min_k Q_k]]/E|E_π̃[min_k Q_k]| + E[w·c̃]."""
        outputs, bc = self.bc_loss(ctx, params)
        critics = ctx.state.critics
        assert isinstance(critics, ChoiceCritics)
        q = min_q(critics.values(ctx.batch.observations, params.factors.numbers(outputs)))
        return OuterTerms((params.probabilities(outputs) * q).sum(-1), bc, 1.0, sg(self.weights(ctx, scale)))

    def policy(self, state: IQLState) -> PolicyExport:
        assert isinstance(state.actor, ProductPolicy)
        return export_product_policy(state.actor)
