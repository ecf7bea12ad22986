"""FQL (Park et al., 2025): a flow policy clones the data, and a one-step policy distills it and maximizes Q.

    flow:     v(s, x_t, t) → a − x₀,   x_t = (1 − t)·x₀ + t·a,   x₀ ~ N(0, 1), t ~ U(0, 1)
    one step: min_μ  α·‖μ(s, z) − flow(s, z)‖² − Q(s, μ(s, z)),   flow(s, z) = z integrated along v in F Euler steps
    critics:  Q_k(s, a) → r + γ·mean_k Q'_k(s', μ(s', z'))

Appendix D weights Q instead, and normalizes it: ‖μ(s, z) − flow(s, z)‖² − α·Q/mean|Q|. Select this loss with
`scale_on="q", normalize_q=True`; `fql+aspc` uses this loss and learns its scale. All losses use the parameters from
the start of the step; squared norms are averaged over action dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient as sg
from jaxtyping import Array, Float, PRNGKeyArray

from aspc.algorithms.component_names import CustomActorCritic
from aspc.algorithms.components import make_network, make_optimizer
from aspc.algorithms.fields import Count, Depth, NonNegative
from aspc.algorithms.interface import (
    Batch,
    Context,
    Draw,
    Inner,
    Noise,
    OuterTerms,
    Parts,
    PolicyExport,
    ScalableAlgorithm,
    Spec,
)
from aspc.algorithms.policy_tracing import traced_policy
from aspc.algorithms.td_learning import bootstrap, make_critics, mean_abs, mlp_arrays, mlp_settings, polyak
from aspc.networks import MLP, Ensemble, Flow, glorot_init, mlp
from aspc.optim import Adam, Optimizer
from aspc.policy_kinds import NoiseInput


class FQLState(eqx.Module):
    """Flow, one-step policy and critics with targets, and their optimizer states."""

    flow: Flow
    flow_opt: Any
    one_step: Flow
    one_step_opt: Any
    critics: Ensemble
    critics_target: Ensemble
    critics_opt: Any


class Distillation(NamedTuple):
    """Inputs to the one-step policy's update, computed with the parameters from the start of the step."""

    critics: Ensemble
    flow_actions: Float[Array, "batch act"]


@dataclass(frozen=True)
class FQL(CustomActorCritic, ScalableAlgorithm[FQLState, Distillation]):
    """FQL with a fixed distillation weight α."""

    alpha: NonNegative = 10.0
    """Weight α of the distillation or of Q (see scale_on)."""
    scale_on: Literal["distillation", "q"] = "distillation"
    """Term that α multiplies: the distillation (authors' code), or Q (appendix D, which also normalizes Q)."""
    normalize_q: bool = False
    """Divide Q by mean|Q| in the one-step policy's loss."""
    flow_steps: Count = 10
    """Number F of Euler steps along the flow."""
    q_agg: Literal["mean", "min"] = "mean"
    """Aggregation of the two target critics."""
    lr: NonNegative = 3e-4
    """Learning rate of all networks (Adam)."""
    hidden_dim: Count = 512
    """Width of all hidden layers (GELU)."""
    hidden_layers: Depth = 4
    """Number of hidden layers of every network."""
    critic_layer_norm: bool = True
    """LayerNorm after each hidden layer of the critics."""
    actor_layer_norm: bool = False
    """LayerNorm after each hidden layer of the two policies."""
    normalize_observations: bool = False
    """Standardize observations with the dataset's mean and standard deviation (+ 1e-3)."""

    # -- networks, state and schedule --------------------------------------------------------------------------
    def init(self, key: PRNGKeyArray, spec: Spec) -> FQLState:
        key_flow, key_one_step, key_critics = jax.random.split(key, 3)
        hidden = [self.hidden_dim] * self.hidden_layers
        options: dict[str, Any] = {"init": glorot_init, "activation": jax.nn.gelu, "layer_norm_eps": 1e-6}
        norm = self.actor_layer_norm
        in_dim = spec.obs_dim + spec.act_dim
        return self.start(
            Flow(mlp(key_flow, in_dim + 1, hidden, spec.act_dim, layer_norm=norm, **options)),
            Flow(make_network(self.actor, key_one_step, in_dim, hidden, spec.act_dim, layer_norm=norm, **options)),
            make_critics(key_critics, spec, hidden, self.critic, layer_norm=self.critic_layer_norm, **options),
        )

    def start(self, flow: Flow, one_step: Flow, critics: Ensemble) -> FQLState:
        """Return the initial state for the given networks."""
        flow_opt, critics_opt = Adam(self.lr).init(flow), self.critics_optimizer().init(critics)
        return FQLState(flow, flow_opt, one_step, self.inner_optimizer().init(one_step), critics, critics, critics_opt)

    def inner_optimizer(self) -> Optimizer:
        """Return the optimizer of the one-step policy."""
        return make_optimizer(self.actor_optimizer, self.lr)

    def critics_optimizer(self) -> Optimizer:
        """Return the critics' optimizer."""
        return make_optimizer(self.critic_optimizer, self.lr)

    def noise(self, spec: Spec, batch_size: int) -> dict[str, Draw]:
        normal = Draw("normal", (batch_size, spec.act_dim))
        return {
            "critic_next_action": normal,
            "flow_x0": normal,
            "flow_t": Draw("uniform", (batch_size, 1)),
            "distill": normal,
        }

    # -- critics and flow --------------------------------------------------------------------------------------
    def flow_actions(self, flow: Flow, observations: Float[Array, "batch obs"], z: Float[Array, "batch act"]) -> Array:
        """Integrate z along the velocity field by Euler's method, and clip to [-1, 1]."""

        def euler(x: Array, k: Array) -> tuple[Array, None]:
            t = jnp.full((*x.shape[:-1], 1), k, x.dtype) / self.flow_steps
            return x + flow(observations, x, t) / self.flow_steps, None

        x, _ = jax.lax.scan(euler, z, jnp.arange(self.flow_steps))
        return jnp.clip(x, -1.0, 1.0)

    def prepare(self, state: FQLState, batch: Batch, noise: Noise, parts: Parts) -> Context[FQLState, Distillation]:
        """Update the critics with the loss mean_k (Q_k(s, a) − y)², and the flow; both use the old parameters."""
        s, a = batch.observations, batch.actions
        next_actions = jnp.clip(state.one_step(batch.next_observations, noise["critic_next_action"]), -1.0, 1.0)
        next_q = state.critics_target(batch.next_observations, next_actions)
        y = bootstrap(batch, self.discount, next_q.mean(0) if self.q_agg == "mean" else next_q.min(0))

        def critic_loss(critics: Ensemble) -> tuple[Array, Array]:
            q = critics(s, a)
            return jnp.square(q - y).mean(), q

        x0, t = noise["flow_x0"], noise["flow_t"]

        def flow_loss(flow: Flow) -> tuple[Array, None]:
            return jnp.square(flow(s, (1 - t) * x0 + t * a, t) - (a - x0)).mean(), None

        critics = self.critics_optimizer().minimize(critic_loss, state.critics, state.critics_opt)
        flow = Adam(self.lr).minimize(flow_loss, state.flow, state.flow_opt)
        q = critics.aux
        metrics = {
            "critic_loss": critics.loss,
            "q_mean": q.mean(),
            "q_max": q.max(),
            "q_min": q.min(),
            "flow_loss": flow.loss,
        }
        distillation = Distillation(state.critics, self.flow_actions(state.flow, s, noise["distill"]))
        state = replace(
            state, critics=critics.params, critics_opt=critics.opt_state, flow=flow.params, flow_opt=flow.opt_state
        )
        return Context(state, batch, noise, metrics, distillation)

    # -- the one-step policy: the inner step -------------------------------------------------------------------
    def terms(
        self, ctx: Context[FQLState, Distillation], one_step: Flow, scale: Array | float
    ) -> tuple[Array, Array, Any, Any, Any]:
        """Return Q(s, μ(s, z)) and the distillation error per sample, the normalizer of Q, and both terms' weights."""
        actions = one_step(ctx.batch.observations, ctx.noise["distill"])
        q = ctx.extra.critics(ctx.batch.observations, jnp.clip(actions, -1.0, 1.0)).mean(0)
        distillation = jnp.square(actions - ctx.extra.flow_actions).mean(-1)
        normalizer = mean_abs(q) if self.normalize_q else jnp.ones_like(mean_abs(q))
        q_weight, weight = (1.0, scale) if self.scale_on == "distillation" else (scale, 1.0)
        return q, distillation, normalizer, q_weight, weight

    def inner_step(self, ctx: Context[FQLState, Distillation], scale: Array | float) -> Inner:
        def inner_loss(one_step: Flow) -> tuple[Array, tuple[Array, Array, Array]]:
            q, distillation, normalizer, q_weight, weight = self.terms(ctx, one_step, scale)
            q_loss = -q.mean() / normalizer
            return weight * distillation.mean() + q_weight * q_loss, (q, distillation, q_loss)

        step = self.inner_optimizer().minimize(inner_loss, ctx.state.one_step, ctx.state.one_step_opt)
        q, distillation, q_loss = step.aux
        metrics = {
            "actor_loss": step.loss,
            "distillation_loss": distillation.mean(),
            "q_loss": q_loss,
            "actor_q_mean": q.mean(),
        }
        return Inner(step.params, step.opt_state, q, distillation, metrics)

    def outer_terms(self, ctx: Context[FQLState, Distillation], params: Flow, scale: Array | float) -> OuterTerms:
        """Return the inner loss's terms under the updated policy.

        `AdaptiveScale` divides Q by mean|Q|. Q's weight cancels this division and divides by FQL's normalizer instead.
        """
        q, distillation, normalizer, q_weight, weight = self.terms(ctx, params, sg(scale))
        return OuterTerms(q, distillation, q_weight * mean_abs(q) / normalizer, weight)

    def inner_params(self, state: FQLState) -> Flow:
        """Return the one-step policy."""
        return state.one_step

    def commit(self, ctx: Context[FQLState, Distillation], inner: Inner) -> FQLState:
        """Move the target critics towards the critics from *before* this step."""
        return replace(
            ctx.state,
            one_step=inner.params,
            one_step_opt=inner.opt_state,
            critics_target=polyak(ctx.state.critics_target, ctx.extra.critics, self.tau),
        )

    # -- acting ------------------------------------------------------------------------------------------------
    def policy(self, state: FQLState) -> PolicyExport:
        """Export clip(μ(s, z), −1, 1) with a new z for each state."""
        net = state.one_step.net

        def act(one_step: Flow, observations: Array, z: Array) -> Array:
            return jnp.clip(one_step(observations, z), -1.0, 1.0)

        settings = mlp_settings(net)
        if settings is None or not isinstance(net, MLP):
            noise = {"z": NoiseInput("normal", (None, net.out_size))}
            return traced_policy(act, state.one_step, net.in_size - net.out_size, noise)
        arrays, settings = mlp_arrays(net), {**settings, "latent_size": net.out_size}
        return PolicyExport("flow", arrays, settings, partial(act, state.one_step))
