"""Candidates for a better variant: ASPC with two policies, one that the critics bootstrap from and one that acts.

    aspc bench two_policies --plugin benchmarks/two_policies.py --data FOLDER --out RESULTS

Two scales: the critics are learned with the policy that has the learned scale α, close to the data, where their values
can be trusted. A second policy is trained on the same critics with the scale acting_ratio · α, and that one is rolled
out. A ratio of 1 would be ASPC.

An average: evaluations of one run swing widely once α is large, so the policy that acts is a slow average of the
weights that the other one has on its way.

They are no part of the library as long as they have not been found to be better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from jax.lax import stop_gradient as sg
from jaxtyping import Array

from aspc.adaptive_scale import AdaptiveScale
from aspc.algorithms import register
from aspc.algorithms.base import Context, Inner, OuterTerms, PolicyExport
from aspc.algorithms.common import deterministic_policy
from aspc.algorithms.td3_bc import TD3BC
from aspc.experiments.suites import ASPC, Variant, search
from aspc.networks import DeterministicActor, Ensemble, polyak
from aspc.optim import Adam

NAME, AVERAGED = "two_policies+aspc", "averaged_policy+aspc"
RATIOS = (0.5, 2.0)


class TwoPoliciesState(NamedTuple):
    """TD3+BC's state, and the policy that acts (with its optimiser, if it is trained by itself)."""

    actor: DeterministicActor
    actor_target: DeterministicActor
    actor_opt: Any
    critics: Ensemble
    critics_target: Ensemble
    critics_opt: Any
    acting: DeterministicActor
    acting_opt: Any = None


@dataclass(frozen=True)
class TwoPolicies(TD3BC):
    """TD3+BC with a second policy that acts, under another scale than the one that the critics bootstrap from."""

    acting_ratio: float = 2.0
    """The scale of the policy that acts, in units of the other's."""

    def start(self, actor: DeterministicActor, critics: Ensemble) -> TwoPoliciesState:  # type: ignore[override]
        """Both policies start as the same network."""
        return TwoPoliciesState(*super().start(actor, critics), actor, Adam(self.actor_lr).init(actor))

    def inner_step(self, ctx: Context, scale: Array | float) -> Inner:
        """A step of each policy; the one that acts has no say in what the scale learns."""
        state = ctx.state
        acting_ctx = ctx._replace(state=state._replace(actor=state.acting, actor_opt=state.acting_opt))
        first, acting = super().inner_step(ctx, scale), super().inner_step(acting_ctx, self.acting_ratio * sg(scale))
        return first._replace(
            params=(first.params, acting.params),
            opt_state=(first.opt_state, acting.opt_state),
            metrics={**first.metrics, "acting_bc_loss": acting.metrics["bc_loss"]},
        )

    def inner_params(self, state: TwoPoliciesState) -> tuple[DeterministicActor, DeterministicActor]:
        return state.actor, state.acting

    def outer_terms(self, ctx: Context, params: Any, scale: Array | float) -> OuterTerms:
        return super().outer_terms(ctx, params[0], scale)

    def commit(self, ctx: Context, inner: Inner) -> TwoPoliciesState:
        (actor, acting), (actor_opt, acting_opt) = inner.params, inner.opt_state
        state = super().commit(ctx, inner._replace(params=actor, opt_state=actor_opt))
        return state._replace(acting=acting, acting_opt=acting_opt)

    def policy(self, state: TwoPoliciesState) -> PolicyExport:
        return deterministic_policy(state.acting.net)


@dataclass(frozen=True)
class AveragedPolicy(TD3BC):
    """TD3+BC that acts with an average of its policy's weights."""

    acting_tau: float = 1e-4
    """How fast the average follows, for each step of the policy: 1e-4 averages over about 20,000 steps of training."""

    def start(self, actor: DeterministicActor, critics: Ensemble) -> TwoPoliciesState:  # type: ignore[override]
        return TwoPoliciesState(*super().start(actor, critics), acting=actor)

    def commit(self, ctx: Context, inner: Inner) -> TwoPoliciesState:
        state = super().commit(ctx, inner)
        return state._replace(acting=polyak(state.acting, state.actor, self.acting_tau))

    def policy(self, state: TwoPoliciesState) -> PolicyExport:
        return deterministic_policy(state.acting.net)


@register(NAME)
def _two_policies() -> Any:
    return AdaptiveScale(base=TwoPolicies())


@register(AVERAGED)
def _averaged_policy() -> Any:
    return AdaptiveScale(base=AveragedPolicy())


VARIANTS = (
    ASPC,
    *(Variant(f"two policies, ratio {ratio:g}", NAME, {"acting_ratio": ratio}) for ratio in RATIOS),
    Variant("averaged policy", AVERAGED),
)
search("two_policies", "ASPC with a second policy that acts", VARIANTS)
