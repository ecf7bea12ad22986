"""Two scales: the policy that the critics bootstrap from stays close to the data, and a bolder one acts. ASPC+'s base.

    π: max_π  λ(α)·Q(s, π(s)) − (π(s) − a)²            the critics' targets take its actions: TD3+BC as it is
    μ: max_μ  λ(ρ·α)·Q(s, μ(s)) − (μ(s) − a)²          on the same critics, with ρ = acting_ratio
    μ̄ ← (1 − τ)·μ̄ + τ·μ                                what acts, with τ = acting_tau

Values can be trusted near the data, and what they say about a policy farther away is used once, to act, and never fed
back into them. The average takes out the swings from one step to the next that a large scale brings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.lax import stop_gradient as sg
from jaxtyping import Array

from aspc.algorithms.base import Context, Inner, PolicyExport
from aspc.algorithms.common import deterministic_policy
from aspc.algorithms.td3_bc import TD3BC
from aspc.networks import DeterministicActor, Ensemble, polyak
from aspc.optim import Adam


class ActingState(NamedTuple):
    """TD3+BC's state, the policy that acts (μ̄), and the one that it averages (μ), where that is not TD3+BC's own."""

    actor: DeterministicActor
    actor_target: DeterministicActor
    actor_opt: Any
    critics: Ensemble
    critics_target: Ensemble
    critics_opt: Any
    acting: DeterministicActor
    second: DeterministicActor | None = None
    second_opt: Any = None


@dataclass(frozen=True)
class AveragedPolicy(TD3BC):
    """TD3+BC that acts with an average of its policy's weights."""

    acting_tau: float = 1e-4
    """How fast the average follows, for each step of the policy: 1e-4 averages over about 20,000 steps of training."""

    def start(self, actor: DeterministicActor, critics: Ensemble) -> ActingState:  # type: ignore[override]
        return ActingState(*super().start(actor, critics), acting=actor)

    def averaged(self, average: DeterministicActor, policy: DeterministicActor, opt_state: Any) -> DeterministicActor:
        """The average one step on, at τ; as long as 1/τ is more than a tenth of the steps so far, over that tenth."""
        steps = opt_state[0].count
        return polyak(average, policy, jnp.maximum(self.acting_tau, 10 / (steps + 9)))

    def commit(self, ctx: Context, inner: Inner) -> ActingState:
        state = super().commit(ctx, inner)
        return state._replace(acting=self.averaged(state.acting, state.actor, state.actor_opt))

    def policy(self, state: ActingState) -> PolicyExport:
        return deterministic_policy(state.acting.net)


@dataclass(frozen=True)
class TwoScales(AveragedPolicy):
    """TD3+BC with a second policy, under another scale than the one the critics bootstrap from; its average acts."""

    acting_ratio: float = 2.0
    """The scale of the second policy, in units of the first one's."""

    def start(self, actor: DeterministicActor, critics: Ensemble) -> ActingState:  # type: ignore[override]
        """Both policies start as the same network."""
        return super().start(actor, critics)._replace(second=actor, second_opt=Adam(self.actor_lr).init(actor))

    def inner_step(self, ctx: Context, scale: Array | float) -> Inner:
        """A step of each policy; the second has no say in what the scale learns."""
        state = ctx.state
        second_ctx = ctx._replace(state=state._replace(actor=state.second, actor_opt=state.second_opt))
        first, second = super().inner_step(ctx, scale), super().inner_step(second_ctx, self.acting_ratio * sg(scale))
        return first._replace(extra=second, metrics={**first.metrics, "acting_bc_loss": second.metrics["bc_loss"]})

    def commit(self, ctx: Context, inner: Inner) -> ActingState:
        state, second = TD3BC.commit(self, ctx, inner), inner.extra
        acting = self.averaged(state.acting, second.params, second.opt_state)
        return state._replace(acting=acting, second=second.params, second_opt=second.opt_state)
