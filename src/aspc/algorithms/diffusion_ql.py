"""Diffusion-QL (Wang et al., 2023): a diffusion policy imitates the data and maximizes Q through its denoising chain.

    actor:   min_ε  ‖ε(√ā_t·a + √(1 − ā_t)·e, t, s) − e‖² − η·E[Q_i(s, a₀)] / E|Q_j(s, a₀)|
             e ~ N(0, 1), t one of N diffusion steps, a₀ a sample of the policy, {i, j} = {1, 2} in random order
    critics: Q_k(s, a) → r + γ·min_k Q'_k(s', a₀'),   a₀' a sample of the averaged policy

Appendix D divides Q_i by its own mean (`normalize_by="same"`). The gradients of the actor and the critics are clipped
by norm. The average of the actor's weights starts at the initial weights and is not updated before step `ema_start`, as
in the authors' code. To act, the policy samples 50 candidates from the actor itself, not from its average, and draws
one of them from the softmax of min_k Q'_k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient as sg
from jaxtyping import Array, Float, Int, PRNGKeyArray

from aspc.algorithms.component_names import CustomActorCritic
from aspc.algorithms.components import make_network, make_optimizer
from aspc.algorithms.fields import Count, Depth, Fraction, NonNegative, Range
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
from aspc.algorithms.td_learning import (
    bootstrap,
    fit_critics,
    make_critics,
    mean_abs,
    mlp_arrays,
    mlp_settings,
    polyak,
)
from aspc.networks import MLP, Ensemble, NoiseModel, mlp
from aspc.optim import Optimizer, global_norm
from aspc.policy_kinds import NoiseInput

BACKUP_SAMPLES = 10  # next actions per state with `max_q_backup`
CANDIDATES = 50  # actions sampled per state; the exported policy draws one of them, weighted by Q


class DiffusionSchedule(NamedTuple):
    """The variance-preserving noise schedule of N steps; index 0 is the first diffusion step."""

    alphas_cumprod: np.ndarray
    """ā_t: the fraction of the action's variance that remains after step t."""
    posterior_std: np.ndarray
    """Standard deviation of x_{t−1} given x_t and x₀; 0 at the last denoising step."""
    posterior_mean_coef1: np.ndarray
    """Weight of x₀ in the mean of x_{t−1}."""
    posterior_mean_coef2: np.ndarray
    """Weight of x_t in the mean of x_{t−1}."""

    @classmethod
    def vp(cls, n: int, beta_min: float = 0.1, beta_max: float = 10.0) -> DiffusionSchedule:
        """Return the n-step schedule with these bounds on β."""
        t = np.arange(1, n + 1)
        alphas = np.exp(-beta_min / n - 0.5 * (beta_max - beta_min) * (2 * t - 1) / n**2)
        betas, cumprod = 1 - alphas, np.cumprod(alphas)
        before = np.append(1.0, cumprod[:-1])
        std = np.sqrt(np.maximum(betas * (1 - before) / (1 - cumprod), 1e-20))
        std[0] = 0.0
        return cls(
            cumprod,
            std,
            betas * np.sqrt(before) / (1 - cumprod),
            (1 - before) * np.sqrt(alphas) / (1 - cumprod),
        )


class DiffusionQLState(eqx.Module):
    """The actor and its average, critics with targets, optimizer states, and the step counter."""

    actor: NoiseModel
    actor_ema: NoiseModel
    actor_opt: Any
    critics: Ensemble
    critics_target: Ensemble
    critics_opt: Any
    step: Int[Array, ""]


@dataclass(frozen=True)
class DiffusionQL(CustomActorCritic, ScalableAlgorithm[DiffusionQLState, None]):
    """Diffusion-QL with a fixed weight η of Q."""

    scale_name: ClassVar[str] = "eta"

    eta: NonNegative = 1.0
    """Weight η of the normalized Q relative to the imitation loss."""
    normalize_by: Literal["other", "same"] = "other"
    """Divide Q by mean|Q| of the other critic, as in the authors' code, or of the same critic, as in appendix D."""
    max_q_backup: bool = False
    """Use the best of 10 next actions in the critics' target."""
    max_grad_norm: NonNegative = 1.0
    """Maximum gradient norm of the actor and the critics; larger gradients are clipped."""
    diffusion_steps: Count = 5
    """Number N of diffusion steps."""
    ema_rate: Fraction = 5e-3
    """Update rate of the average of the actor's weights (1 − decay)."""
    ema_every: Count = 5
    """Steps between updates of the average."""
    ema_start: Annotated[int, Range(0)] = 1000
    """First step at which the average is updated."""
    actor_lr: NonNegative = 3e-4
    """Learning rate of the actor (Adam)."""
    critic_lr: NonNegative = 3e-4
    """Learning rate of the critics (Adam)."""
    hidden_dim: Count = 256
    """Width of all hidden layers (Mish)."""
    hidden_layers: Depth = 3
    """Number of hidden layers of the actor and the critics."""
    time_dim: Annotated[int, Range(4, even=True)] = 16
    """Size of the embedding of the diffusion step."""
    normalize_observations: bool = False
    """Standardize observations with the dataset's mean and standard deviation (+ 1e-3)."""

    # -- networks, state and schedule --------------------------------------------------------------------------
    def init(self, key: PRNGKeyArray, spec: Spec) -> DiffusionQLState:
        key_time, key_actor, key_critics = jax.random.split(key, 3)
        hidden, mish = [self.hidden_dim] * self.hidden_layers, jax.nn.mish
        in_dim = spec.act_dim + self.time_dim + spec.obs_dim
        actor = NoiseModel(
            mlp(key_time, self.time_dim, [2 * self.time_dim], self.time_dim, activation=mish),
            make_network(self.actor, key_actor, in_dim, hidden, spec.act_dim, activation=mish),
            spec.max_action,
        )
        return self.start(actor, make_critics(key_critics, spec, hidden, self.critic, activation=mish))

    def start(self, actor: NoiseModel, critics: Ensemble) -> DiffusionQLState:
        """Return the initial state for the given networks."""
        return DiffusionQLState(
            actor,
            actor,
            self.inner_optimizer().init(actor),
            critics,
            critics,
            self.critics_optimizer().init(critics),
            jnp.zeros((), jnp.int32),
        )

    def inner_optimizer(self) -> Optimizer:
        """Return the actor's optimizer."""
        return make_optimizer(self.actor_optimizer, self.actor_lr, self.max_grad_norm)

    def critics_optimizer(self) -> Optimizer:
        """Return the critics' optimizer."""
        return make_optimizer(self.critic_optimizer, self.critic_lr, self.max_grad_norm)

    def noise(self, spec: Spec, batch_size: int) -> dict[str, Draw]:
        n, act = self.diffusion_steps, spec.act_dim
        targets = batch_size * (BACKUP_SAMPLES if self.max_q_backup else 1)
        return {
            "target_xT": Draw("normal", (targets, act)),
            "target_steps": Draw("normal", (n, targets, act)),
            "bc_t": Draw("integers", (batch_size,), 0, n),
            "bc_eps": Draw("normal", (batch_size, act)),
            "actor_xT": Draw("normal", (batch_size, act)),
            "actor_steps": Draw("normal", (n, batch_size, act)),
            "choose_u": Draw("uniform", ()),
        }

    # -- diffusion ---------------------------------------------------------------------------------------------
    def sample(
        self,
        actor: NoiseModel,
        observations: Float[Array, "batch obs"],
        x_start: Float[Array, "batch act"],
        steps: Float[Array, "n batch act"],
    ) -> Float[Array, "batch act"]:
        """Sample actions from noise. Each of N steps predicts x₀, clips it, and samples the posterior given x₀."""
        diffusion, high = DiffusionSchedule.vp(self.diffusion_steps), actor.max_action
        x = x_start
        for t, epsilon in zip(reversed(range(self.diffusion_steps)), steps, strict=True):
            kept = diffusion.alphas_cumprod[t]
            x0 = (1 / kept) ** 0.5 * x - (1 / kept - 1) ** 0.5 * actor(x, jnp.asarray(t), observations)
            x0 = jnp.clip(x0, -high, high)
            x = float(diffusion.posterior_mean_coef1[t]) * x0 + float(diffusion.posterior_mean_coef2[t]) * x
            x = x + float(diffusion.posterior_std[t]) * epsilon
        return jnp.clip(x, -high, high)

    def imitation(self, ctx: Context[DiffusionQLState, None], actor: NoiseModel) -> Float[Array, "batch"]:
        """Compute ‖ε(noisy action, t, s) − e‖² per sample, averaged over action dimensions."""
        t, e = ctx.noise["bc_t"], ctx.noise["bc_eps"]
        kept = jnp.asarray(DiffusionSchedule.vp(self.diffusion_steps).alphas_cumprod, e.dtype)[t][:, None]
        noisy = jnp.sqrt(kept) * ctx.batch.actions + jnp.sqrt(1 - kept) * e
        return jnp.square(actor(noisy, t, ctx.batch.observations) - e).mean(-1)

    # -- critics -----------------------------------------------------------------------------------------------
    def prepare(
        self, state: DiffusionQLState, batch: Batch, noise: Noise, parts: Parts
    ) -> Context[DiffusionQLState, None]:
        """Fit the critics with one step on Σ_k mean (Q_k(s, a) − y)²."""
        s_next = batch.next_observations
        if self.max_q_backup:
            s_next = jnp.repeat(s_next, BACKUP_SAMPLES, axis=0)
        next_actions = self.sample(state.actor_ema, s_next, noise["target_xT"], noise["target_steps"])
        next_q = state.critics_target(s_next, next_actions)
        if self.max_q_backup:
            next_q = next_q.reshape(len(next_q), -1, BACKUP_SAMPLES).max(-1)
        y = bootstrap(batch, self.discount, next_q.min(0))
        fit = fit_critics(self.critics_optimizer(), state.critics, state.critics_opt, batch, y)
        state = replace(state, critics=fit.params, critics_opt=fit.opt_state)
        metrics = {
            "critic_loss": fit.loss,
            "critic_grad_norm": global_norm(fit.grads),
            **{f"q{k + 1}_mean": fit.aux[k].mean() for k in range(2)},
        }
        return Context(state, batch, noise, metrics, None)

    # -- actor: the inner step ---------------------------------------------------------------------------------
    def q_of_policy(
        self, ctx: Context[DiffusionQLState, None], actor: NoiseModel
    ) -> tuple[Float[Array, "2 batch"], Array, Array]:
        """Return Q_k(s, a₀) of both critics, the randomly chosen Q_i that is maximized, and its normalizer."""
        actions = self.sample(actor, ctx.batch.observations, ctx.noise["actor_xT"], ctx.noise["actor_steps"])
        q = ctx.state.critics(ctx.batch.observations, actions)
        first = ctx.noise["choose_u"] > 0.5
        chosen, other = jnp.where(first, q[0], q[1]), jnp.where(first, q[1], q[0])
        return q, chosen, mean_abs(other if self.normalize_by == "other" else chosen)

    def inner_step(self, ctx: Context[DiffusionQLState, None], scale: Array | float) -> Inner:
        def inner_loss(actor: NoiseModel) -> tuple[Array, tuple[Array, Array, Array, Array]]:
            imitation = self.imitation(ctx, actor)
            both, q, normalizer = self.q_of_policy(ctx, actor)
            q_loss = -q.mean() / normalizer
            return imitation.mean() + scale * q_loss, (imitation, both, q, q_loss)

        step = self.inner_optimizer().minimize(inner_loss, ctx.state.actor, ctx.state.actor_opt)
        imitation, both, q, q_loss = step.aux
        metrics = {
            "actor_loss": step.loss,
            "bc_loss": imitation.mean(),
            "q_loss": q_loss,
            "actor_grad_norm": global_norm(step.grads),
            **{f"actor_q{k + 1}_mean": both[k].mean() for k in range(2)},
        }
        return Inner(step.params, step.opt_state, q, imitation, metrics)

    def outer_terms(self, ctx: Context[DiffusionQLState, None], params: NoiseModel, scale: Array | float) -> OuterTerms:
        """Return terms such that L1 is the updated actor's inner loss. Q's weight cancels AdaptiveScale's 1/mean|Q|."""
        _, q, normalizer = self.q_of_policy(ctx, params)
        return OuterTerms(q, self.imitation(ctx, params), sg(scale) * mean_abs(q) / normalizer, 1.0)

    def commit(self, ctx: Context[DiffusionQLState, None], inner: Inner) -> DiffusionQLState:
        state = ctx.state
        due = (state.step % self.ema_every == 0) & (state.step >= self.ema_start)
        return replace(
            state,
            actor=inner.params,
            actor_opt=inner.opt_state,
            actor_ema=polyak(state.actor_ema, inner.params, jnp.where(due, self.ema_rate, 0.0)),
            critics_target=polyak(state.critics_target, state.critics, self.tau),
            step=state.step + 1,
        )

    # -- acting ------------------------------------------------------------------------------------------------
    def policy(self, state: DiffusionQLState) -> PolicyExport:
        time_net, net, critics = state.actor.time_net, state.actor.net, state.critics_target.members.net
        act, used = self.act, mlp_settings(time_net, net, critics)
        if used is None or not (isinstance(net, MLP) and isinstance(critics, MLP)):
            act_dim = net.out_size
            noise = {
                "noise": NoiseInput("normal", (self.diffusion_steps + 1, None, CANDIDATES, act_dim)),
                "gumbel": NoiseInput("gumbel", (None, CANDIDATES)),
            }
            return traced_policy(act, (state.actor, state.critics_target), net.in_size - act_dim - self.time_dim, noise)
        arrays = {**mlp_arrays(time_net, "time."), **mlp_arrays(net, "noise."), **mlp_arrays(critics, "critics.")}
        diffusion = DiffusionSchedule.vp(self.diffusion_steps)
        settings = {
            **used,
            "candidates": CANDIDATES,
            **{name: values.tolist() for name, values in diffusion._asdict().items()},
        }
        return PolicyExport("diffusion", arrays, settings, partial(self.act, (state.actor, state.critics_target)))

    def act(
        self,
        networks: tuple[NoiseModel, Ensemble],
        observations: Float[Array, "batch obs"],
        noise: Float[Array, "n_plus_1 batch candidates act"],
        gumbel: Float[Array, "batch candidates"],
    ) -> Float[Array, "batch act"]:
        """Sample candidates for each state and draw one of them from the softmax of min_k Q'_k."""
        actor, critics = networks
        actions = jax.vmap(partial(self.sample, actor, observations), (1, 2), 1)(noise[0], noise[1:])
        q = jax.vmap(lambda actions: critics(observations, actions).min(0), 1, 1)(actions)
        chosen = jax.nn.one_hot(jnp.argmax(q + gumbel, axis=1), CANDIDATES)
        return (chosen[:, :, None] * actions).sum(1)
