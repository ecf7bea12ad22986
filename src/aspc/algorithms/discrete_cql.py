"""CQL for discrete actions, as Q-learning without an actor (Kumar et al., 2020, CQL(H) on DQN). The policy is greedy.

    critics: min_Q  Σ_k E(Q_k(s, a) − y)² + α_cql·Σ_k E[log Σ_j exp Q_k(s)[j] − Q_k(s, a)]
             y = r + γ·(1 − done)·min_k Q'_k(s')[j*],   j* = argmax_j mean_k Q_k(s')[j]            (double Q-learning)
    policy:  argmax_j mean_k Q_k(s)[j]

Sums and maxima are over the combinations of options that the masks allow. As in the authors' code, the squared error
has no factor ½. To compare algorithms fairly, this project uses two critics, their minimum in the target and their mean
in the policy. Continuous actions are not supported.

The scale is α_cql, so the inner step updates the critics. With a learned scale, the constraint is the penalty per
sample, and Q(s, π(s)) is max_j mean_k Q_k(s)[j]; this is the library's interpretation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient as sg
from jaxtyping import Array, Float, PRNGKeyArray

from aspc.algorithms.choices import ChoiceCritics, export_greedy_policy, make_choice_critics
from aspc.algorithms.component_names import NetworkChoice, OptimizerChoice
from aspc.algorithms.components import make_optimizer
from aspc.algorithms.fields import Count, Depth, NonNegative
from aspc.algorithms.interface import (
    INNER,
    Batch,
    Context,
    Inner,
    Noise,
    OuterTerms,
    Parts,
    PolicyExport,
    ScalableAlgorithm,
    Schedule,
    Segment,
    Spec,
)
from aspc.algorithms.td_learning import bootstrap, polyak
from aspc.optim import Optimizer


class DiscreteCQLState(eqx.Module):
    """Critics with targets, and their optimizer."""

    critics: ChoiceCritics
    critics_target: ChoiceCritics
    critics_opt: Any


@dataclass(frozen=True)
class DiscreteCQL(ScalableAlgorithm[DiscreteCQLState, Array]):
    """CQL for discrete actions with a fixed penalty weight."""

    scale_name: ClassVar[str] = "cql_weight"
    handles_choices: ClassVar[bool] = True
    handles_numbers: ClassVar[bool] = False
    climbs_q: ClassVar[bool] = True

    cql_weight: NonNegative = 1.0
    """Weight α_cql of the penalty on options outside the data."""
    critic: NetworkChoice = None
    """Network of each critic, by registered name. Default: an MLP with the sizes below."""
    critic_optimizer: OptimizerChoice = None
    """Optimizer of the critics: adam, adamw, lion, rmsprop, sgd or a registered name. Default: Adam."""
    critic_lr: NonNegative = 3e-4
    """Learning rate of the critics (Adam)."""
    hidden_dim: Count = 256
    """Width of the critics' hidden layers (ReLU)."""
    hidden_layers: Depth = 2
    """Number of hidden layers in each critic."""

    def init(self, key: PRNGKeyArray, spec: Spec) -> DiscreteCQLState:
        hidden = [self.hidden_dim] * self.hidden_layers
        return self.start(make_choice_critics(key, spec, hidden, self.critic))

    def start(self, critics: ChoiceCritics) -> DiscreteCQLState:
        """Return the initial state for given critics."""
        return DiscreteCQLState(critics, critics, self.inner_optimizer().init(critics))

    def schedule(self) -> Schedule:
        return (Segment((frozenset({INNER}),), 1),)

    def inner_optimizer(self) -> Optimizer:
        """Return the critics' optimizer."""
        return make_optimizer(self.critic_optimizer, self.critic_lr)

    def inner_params(self, state: Any) -> Any:
        """Return the critics."""
        return state.critics

    # -- values -------------------------------------------------------------------------------------------------
    def values(self, critics: ChoiceCritics, observations: Array) -> Float[Array, "critics batch combinations"]:
        """Return Q_k(s)[j], or −1e9 for forbidden combinations. If all are forbidden in a state, masks are ignored."""
        q = critics.values(observations, observations[:, :0])
        allowed = critics.members.factors.allowed_combinations(observations)
        # A state without any allowed option still needs a finite value, or one such row would corrupt the critics.
        return jnp.where(allowed | ~allowed.any(-1, keepdims=True), q, -1e9)

    def prepare(
        self, state: DiscreteCQLState, batch: Batch, noise: Noise, parts: Parts
    ) -> Context[DiscreteCQLState, Array]:
        """Compute the targets y."""
        best = self.values(state.critics, batch.next_observations).mean(0).argmax(-1)
        next_q = self.values(state.critics_target, batch.next_observations).min(0)
        y = bootstrap(batch, self.discount, jnp.take_along_axis(next_q, best[:, None], 1)[:, 0])
        return Context(state, batch, noise, {}, y)

    # -- critics: the inner step -----------------------------------------------------------------------------------
    def terms(
        self, ctx: Context[DiscreteCQLState, Array], critics: ChoiceCritics
    ) -> tuple[Array, Array, Float[Array, "batch"]]:
        """Return, per sample, Σ_k (Q_k(s, a) − y)², the penalty summed over k, and max_j mean_k Q_k(s)[j]."""
        q = self.values(critics, ctx.batch.observations)
        logged = (q * critics.members.factors.combination(ctx.batch.actions)).sum(-1)
        penalty = jax.nn.logsumexp(q, -1) - logged
        greedy = q.mean(0)
        best = jnp.take_along_axis(greedy, sg(greedy).argmax(-1)[:, None], 1)[:, 0]
        return jnp.square(logged - ctx.extra).sum(0), penalty.sum(0), best

    def inner_step(self, ctx: Context[DiscreteCQLState, Array], scale: Array | float) -> Inner:
        def loss(critics: ChoiceCritics) -> tuple[Array, tuple[Array, Array, Array]]:
            error, penalty, best = self.terms(ctx, critics)
            return error.mean() + scale * penalty.mean(), (error, penalty, best)

        step = self.inner_optimizer().minimize(loss, ctx.state.critics, ctx.state.critics_opt)
        error, penalty, best = step.aux
        metrics = {"critic_loss": error.mean(), "cql_loss": penalty.mean(), "q_mean": best.mean()}
        return Inner(step.params, step.opt_state, best, penalty, metrics)

    def outer_terms(self, ctx: Context[DiscreteCQLState, Array], params: Any, scale: Array | float) -> OuterTerms:
        """Return the terms of L1 = −E[Q̃(s, π(s))]/E|Q̃(s, π(s))| + α_cql·E[P̃]."""
        _, penalty, best = self.terms(ctx, params)
        return OuterTerms(best, penalty, 1.0, sg(scale))

    def commit(self, ctx: Context[DiscreteCQLState, Array], inner: Inner) -> DiscreteCQLState:
        target = polyak(ctx.state.critics_target, inner.params, self.tau)
        return replace(ctx.state, critics=inner.params, critics_target=target, critics_opt=inner.opt_state)

    def policy(self, state: DiscreteCQLState) -> PolicyExport:
        return export_greedy_policy(state.critics)
