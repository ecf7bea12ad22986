"""Two policies with shared critics: one stays close to the data and supplies the critics' targets; the other acts.

    π: max_π  λ(α)·Q(s, π(s)) − (π(s) − a)²            TD3+BC's policy, whose actions the critics' targets use
    μ: max_μ  λ(α_μ)·Q(s, μ(s)) − (μ(s) − a)²          the acting policy: same critics, larger scale
    μ̄ ← (1 − τ)·μ̄ + τ·μ                                a moving average of μ's weights, with τ = acting_tau

Critic values can be trusted near the data. Values of actions farther away are used only to improve the policy that
acts; they never enter the critics' targets. The idea comes from MCEP (`mcep.py`: α_μ is a constant, and μ acts); RAPO
(`rapo.py`) learns both scales. `TwoScales`, the base of ASPC+, sets α_μ = acting_ratio · α and acts with μ̄: averaging
removes the step-to-step oscillation that a large scale causes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

import jax.numpy as jnp
from jax.lax import stop_gradient as sg
from jaxtyping import Array

from aspc.algorithms.fields import Fraction, NonNegative
from aspc.algorithms.interface import Context, Inner, PolicyExport
from aspc.algorithms.td3 import TD3State
from aspc.algorithms.td3_bc import TD3BC
from aspc.algorithms.td_learning import deterministic_policy, polyak
from aspc.networks import DeterministicActor
from aspc.optim import step_count


class AveragedState(TD3State):
    """TD3's state and the averaged policy, which acts (μ̄)."""

    acting: DeterministicActor


class TwoPoliciesState(TD3State):
    """TD3's state and a second policy (μ)."""

    second: DeterministicActor
    second_opt: Any


class TwoScalesState(TwoPoliciesState, AveragedState):
    """TD3's state, a second policy (μ), and the average of its weights, which acts (μ̄)."""


AveragedT = TypeVar("AveragedT", bound=AveragedState)
TwoPoliciesT = TypeVar("TwoPoliciesT", bound=TwoPoliciesState)


@dataclass(frozen=True)
class AveragedPolicy(TD3BC[AveragedT], Generic[AveragedT]):
    """TD3+BC that acts with a moving average of its policy's weights."""

    acting_tau: Fraction = 1e-4
    """Update rate of the averaged weights of the policy that acts, per policy step. 1e-4 averages over about 20,000
    training steps."""

    def start(self, *networks: Any) -> AveragedT:
        td3 = self.td3_state(*networks)
        return cast("AveragedT", AveragedState(**vars(td3), acting=td3.actor))

    def averaged(self, average: DeterministicActor, policy: DeterministicActor, opt_state: Any) -> DeterministicActor:
        """Update the average at rate τ; early in training, average over the last tenth of the steps instead."""
        steps = step_count(opt_state)
        return polyak(average, policy, jnp.maximum(self.acting_tau, 10 / (steps + 9)))

    def commit(self, ctx: Context[AveragedT, Any], inner: Inner) -> AveragedT:
        state = super().commit(ctx, inner)
        return replace(state, acting=self.averaged(state.acting, state.actor, state.actor_opt))

    def policy(self, state: AveragedT) -> PolicyExport:
        return deterministic_policy(state.acting)


@dataclass(frozen=True)
class TwoPolicies(TD3BC[TwoPoliciesT], Generic[TwoPoliciesT]):
    """TD3+BC with a second policy, which is trained with the same critics and selects the actions."""

    def two_policies_state(self, *networks: Any) -> TwoPoliciesState:
        """Return the initial state, in which both policies are the same network."""
        td3 = self.td3_state(*networks)
        return TwoPoliciesState(**vars(td3), second=td3.actor, second_opt=self.inner_optimizer().init(td3.actor))

    def start(self, *networks: Any) -> TwoPoliciesT:
        return cast("TwoPoliciesT", self.two_policies_state(*networks))

    def second_scale(self, scale: Array | float) -> Array | float:
        """Return the scale of the second policy, given that of the first."""
        return scale

    def first_step(self, ctx: Context[TwoPoliciesT, Any], scale: Array | float) -> Inner:
        """Take one step of the policy in the critics' targets."""
        return TD3BC.inner_step(self, ctx, scale)

    def second_step(self, ctx: Context[TwoPoliciesT, Any], scale: Array | float) -> Inner:
        """Take one step of the policy that acts, with the same critics and batch."""
        state = ctx.state
        return TD3BC.inner_step(
            self, replace(ctx, state=replace(state, actor=state.second, actor_opt=state.second_opt)), scale
        )

    def join_steps(self, first: Inner, second: Inner) -> Inner:
        """Combine the two steps for `commit`."""
        return first._replace(extra=second, metrics={**first.metrics, "acting_bc_loss": second.metrics["bc_loss"]})

    def inner_step(self, ctx: Context[TwoPoliciesT, Any], scale: Array | float) -> Inner:
        """Take one step of each policy. A learned scale receives no gradient from the second step."""
        return self.join_steps(self.first_step(ctx, scale), self.second_step(ctx, self.second_scale(sg(scale))))

    def commit(self, ctx: Context[TwoPoliciesT, Any], inner: Inner) -> TwoPoliciesT:
        second = inner.extra
        return replace(TD3BC.commit(self, ctx, inner), second=second.params, second_opt=second.opt_state)

    def policy(self, state: TwoPoliciesT) -> PolicyExport:
        return deterministic_policy(state.second)


@dataclass(frozen=True)
class TwoScales(TwoPolicies[TwoScalesState], AveragedPolicy[TwoScalesState]):
    """TD3+BC with a second policy, whose scale is a multiple of the first's and which acts with averaged weights."""

    acting_ratio: NonNegative = 2.0
    """Scale of the acting policy, as a multiple of the scale of the policy in the critics' targets."""

    def start(self, *networks: Any) -> TwoScalesState:
        state = self.two_policies_state(*networks)
        return TwoScalesState(**vars(state), acting=state.actor)

    def second_scale(self, scale: Array | float) -> Array | float:
        return self.acting_ratio * scale

    def commit(self, ctx: Context[TwoScalesState, Any], inner: Inner) -> TwoScalesState:
        state = TwoPolicies.commit(self, ctx, inner)
        return replace(state, acting=self.averaged(state.acting, state.second, state.second_opt))

    def policy(self, state: TwoScalesState) -> PolicyExport:
        return AveragedPolicy.policy(self, state)
