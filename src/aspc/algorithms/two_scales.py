"""Two policies on the same critics: one that the critics bootstrap from, close to the data, and a bolder one that acts.

    π: max_π  λ(α)·Q(s, π(s)) − (π(s) − a)²            TD3+BC's policy; the critics' targets take its actions
    μ: max_μ  λ(α_μ)·Q(s, μ(s)) − (μ(s) − a)²          on the same critics, at a larger scale
    μ̄ ← (1 − τ)·μ̄ + τ·μ                                an average of its weights, with τ = acting_tau

Critic values can be trusted near the data. What they say about a policy farther away is used once, to act, and never
fed back into them. The idea is MCEP's (`mcep.py`: α_μ is a constant, and μ acts); RAPO (`rapo.py`) learns both scales.
`TwoScales`, the base of ASPC+, has α_μ = acting_ratio · α and acts with μ̄: the average removes the swings from one
step to the next that a large scale brings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.lax import stop_gradient as sg
from jaxtyping import Array

from aspc.algorithms.interface import Context, Inner, PolicyExport
from aspc.algorithms.td3_bc import TD3BC
from aspc.algorithms.td_learning import deterministic_policy
from aspc.networks import DeterministicActor, Ensemble, polyak
from aspc.optim import Adam


class ActingState(NamedTuple):
    """TD3+BC's state, an average of weights that acts (μ̄), and the second policy (μ); None where there is none."""

    actor: DeterministicActor
    actor_target: DeterministicActor
    actor_opt: Any
    critics: Ensemble
    critics_target: Ensemble
    critics_opt: Any
    acting: DeterministicActor = None  # type: ignore[assignment]
    second: DeterministicActor = None  # type: ignore[assignment]
    second_opt: Any = None


@dataclass(frozen=True)
class AveragedPolicy(TD3BC):
    """TD3+BC that acts with an average of its policy's weights."""

    acting_tau: float = 1e-4
    """How fast the average follows, for each step of the policy: 1e-4 averages over about 20,000 steps of training."""

    def start(self, actor: DeterministicActor, critics: Ensemble) -> ActingState:  # type: ignore[override]
        return ActingState(*TD3BC.start(self, actor, critics), acting=actor)

    def averaged(self, average: DeterministicActor, policy: DeterministicActor, opt_state: Any) -> DeterministicActor:
        """Move the average one step, at rate τ; early on, where 1/τ exceeds a tenth of the steps, over that tenth."""
        steps = opt_state[0].count
        return polyak(average, policy, jnp.maximum(self.acting_tau, 10 / (steps + 9)))

    def commit(self, ctx: Context, inner: Inner) -> ActingState:
        state = super().commit(ctx, inner)
        return state._replace(acting=self.averaged(state.acting, state.actor, state.actor_opt))

    def policy(self, state: ActingState) -> PolicyExport:
        return deterministic_policy(state.acting.net)


@dataclass(frozen=True)
class TwoPolicies(TD3BC):
    """TD3+BC with a second policy on the same critics, which acts."""

    def start(self, actor: DeterministicActor, critics: Ensemble) -> ActingState:  # type: ignore[override]
        """Both policies start as the same network."""
        opt = Adam(self.actor_lr).init(actor)
        return ActingState(*TD3BC.start(self, actor, critics), second=actor, second_opt=opt)

    def second_scale(self, scale: Array | float) -> Array | float:
        """The scale of the second policy, given the first one's."""
        return scale

    def first_step(self, ctx: Context, scale: Array | float) -> Inner:
        """One step of the policy that the critics bootstrap from."""
        return TD3BC.inner_step(self, ctx, scale)

    def second_step(self, ctx: Context, scale: Array | float) -> Inner:
        """One step of the policy that acts, on the same critics and batch."""
        state = ctx.state
        return TD3BC.inner_step(
            self, ctx._replace(state=state._replace(actor=state.second, actor_opt=state.second_opt)), scale
        )

    def both(self, first: Inner, second: Inner) -> Inner:
        """The two steps as one for `commit`."""
        return first._replace(extra=second, metrics={**first.metrics, "acting_bc_loss": second.metrics["bc_loss"]})

    def inner_step(self, ctx: Context, scale: Array | float) -> Inner:
        """One step of each policy; a learned scale takes no gradient from the second."""
        return self.both(self.first_step(ctx, scale), self.second_step(ctx, self.second_scale(sg(scale))))

    def commit(self, ctx: Context, inner: Inner) -> ActingState:
        second = inner.extra
        return TD3BC.commit(self, ctx, inner)._replace(second=second.params, second_opt=second.opt_state)

    def policy(self, state: ActingState) -> PolicyExport:
        return deterministic_policy(state.second.net)


@dataclass(frozen=True)
class TwoScales(TwoPolicies, AveragedPolicy):
    """TD3+BC with a second policy at a multiple of the first one's scale; an average of its weights acts."""

    acting_ratio: float = 2.0
    """The scale of the second policy, in units of the first one's."""

    def start(self, actor: DeterministicActor, critics: Ensemble) -> ActingState:  # type: ignore[override]
        return TwoPolicies.start(self, actor, critics)._replace(acting=actor)

    def second_scale(self, scale: Array | float) -> Array | float:
        return self.acting_ratio * scale

    def commit(self, ctx: Context, inner: Inner) -> ActingState:
        state = TwoPolicies.commit(self, ctx, inner)
        return state._replace(acting=self.averaged(state.acting, state.second, state.second_opt))

    def policy(self, state: ActingState) -> PolicyExport:
        return AveragedPolicy.policy(self, state)
