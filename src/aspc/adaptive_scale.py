"""ASPC: learn the scale between RL and BC with second-order gradients, equations (4) to (10) of the paper. This module
has more than 400 lines because it contains the whole outer level.

A base algorithm supplies its inner step as four pure pieces (`algorithms.interface.ScalableAlgorithm`). This module
implements the paper's outer level for any base. In the notation used here, θ and θ̃(α) are the parameters before and
after the inner step, q and c are the per-sample Q(s, π_θ(s)) and BC loss ‖π_θ(s) − a‖², q̃ and c̃ are the same under θ̃,
and sg(·) stops gradients. The outer loss is a sum of named terms, `AdaptiveScale.loss_terms`. Each term is a function
of a `StepOutcome`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, cast, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import named_scope
from jax.lax import stop_gradient as sg
from jaxtyping import Array, Float, Int, PRNGKeyArray

from aspc.algorithms.component_names import OptimizerChoice
from aspc.algorithms.components import make_optimizer
from aspc.algorithms.fields import Count, Fraction, Horizon, NonNegative, PerRun, Scalar
from aspc.algorithms.interface import (
    INNER,
    SCALE,
    Algorithm,
    Batch,
    Context,
    Critics,
    Draw,
    Inner,
    Metrics,
    Noise,
    OuterTerms,
    Parts,
    PolicyExport,
    ScalableAlgorithm,
    Schedule,
    Segment,
    Spec,
    State,
    schedule_length,
)
from aspc.algorithms.td3_bc import TD3BC
from aspc.errors import AspcError, unknown_name
from aspc.networks import jvp_compatible_networks
from aspc.optim import Optimizer, check_differentiable, exponential_decay

Base = TypeVar("Base", bound=ScalableAlgorithm[Any, Any])
OuterLoss = Literal["L1", "L1+L2", "L1+L3", "L1+L2+L3"]
L3Form = Literal[1, 2, 3, 4, 5]
TERMS, OUTER_LOSSES, L3_FORMS = ("L1", "L2", "L3"), get_args(OuterLoss), get_args(L3Form)


# ---------------------------------------------------------------------------------------------------------------
# The scale: α = softplus(raw) stays positive
# ---------------------------------------------------------------------------------------------------------------


def raw_from_scale(scale: float | Array) -> Array:
    """Compute the inverse of softplus, log(e^α − 1), in a form that does not overflow for large α."""
    scale = jnp.asarray(scale)
    return scale + jnp.log(-jnp.expm1(-scale))


class ScaleState(eqx.Module):
    """The state of the outer level: softplus⁻¹ of the scale, optimizer state, running average of Q, update count."""

    raw: Float[Array, ""]
    opt: Any
    ema_q: Float[Array, ""]
    updates: Int[Array, ""]

    @property
    def scale(self) -> Float[Array, ""]:
        """The scale α."""
        return jax.nn.softplus(self.raw)


class AdaptiveState(eqx.Module):
    """The state of the base algorithm and of the scale."""

    base: Any
    scale: ScaleState


# ---------------------------------------------------------------------------------------------------------------
# The outer loss
# ---------------------------------------------------------------------------------------------------------------


class StepOutcome(NamedTuple):
    """The outcome of an inner step: everything that a term of the outer loss can use.

    Quantities from before the step carry no gradient, nor does the scale: (10) differentiates through θ̃ only.
    """

    q: Float[Array, "batch"]  # before the step
    constraint: Float[Array, "batch"]  # before the step: the BC loss, or the base's own constraint
    after: OuterTerms  # Q and constraint after the step, and their weights in L1
    ema_q: Float[Array, ""]  # the average of Q before the step
    new_ema_q: Float[Array, ""]  # the average of Q after the step
    scale: Float[Array, ""]
    params: Any  # θ̃
    context: Context[Any, Any]  # the batch that the terms are computed on, its noise, and the state before the step
    losses: Metrics  # the terms computed so far, by name, unweighted


LossTerm = Callable[[StepOutcome], Float[Array, ""]]


def l1(step: StepOutcome) -> Float[Array, ""]:
    """(6)  Return L1 = −α·E[q̃]/E|q̃| + E[c̃]. Neither α nor the normalizer carries a gradient."""
    after = step.after
    q_term = after.q.mean() / sg(jnp.abs(after.q).mean())
    return -sg(after.q_weight) * q_term + (sg(after.constraint_weight) * after.constraint).mean()


def l2_ema(step: StepOutcome) -> Float[Array, ""]:
    """(7)  Return L2 = (ē' − ē)² as the authors' code computes it, where ē' = ema·ē + (1 − ema)·E[q̃] averages Q."""
    return jnp.square(step.new_ema_q - step.ema_q)


def l2_literal(step: StepOutcome) -> Float[Array, ""]:
    """(7)  Return L2 = (E[q̃] − E[q])² on one batch, as printed in the paper."""
    return jnp.square(step.after.q.mean() - step.q.mean())


def l3(step: StepOutcome, form: L3Form | Array = 4) -> Float[Array, ""]:
    """(8)  Return L3 = sg(L2) · sup c · sup |c̃ − c| (form 4), or another form from appendix E.2."""
    l2, c = step.losses["L2"], step.constraint
    change = jnp.abs(step.after.constraint - c)
    # Select the sup by index: the derivative of `max` divides by the number of maxima, which rounding can make 0.
    variation = change[jnp.argmax(sg(change))]
    forms = (
        variation,
        c.max() * variation,
        sg(l2) * variation,
        sg(l2) * c.max() * variation,
        sg(l2) * c.mean() * jnp.abs((step.after.constraint - c).mean()),
    )
    return jnp.stack(forms)[choice_index(form, L3_FORMS)]


def choice_index(choice: str | int | Array, choices: tuple[str | int, ...]) -> int | Array:
    """Return the index of a choice. A traced choice, which can differ between runs, is already an index."""
    return choices.index(choice) if isinstance(choice, str | int) else choice


# ---------------------------------------------------------------------------------------------------------------
# The wrapper
# ---------------------------------------------------------------------------------------------------------------


def _from_base(name: str) -> property:
    return property(lambda self: getattr(self.base, name))


def _batch_size(self: LearnedScale[Any, Any]) -> int:
    """Return the base's batch size, doubled for an independent outer batch (the second half)."""
    size: int = self.base.batch_size
    return 2 * size if self.outer_batch == "independent" else size


@dataclass(frozen=True)
class LearnedScale(Algorithm[State], Generic[Base, State]):
    """Base class for algorithms that learn a scale: schedule, optimizer and batches.

    Subclasses define the outer loss.
    """

    if not TYPE_CHECKING:  # attributes of the base, not fields of the wrapper
        normalize_observations: ClassVar = _from_base("normalize_observations")
        reward_transform: ClassVar = _from_base("reward_transform")
        reward_scale: ClassVar = _from_base("reward_scale")
        reward_shift: ClassVar = _from_base("reward_shift")
        batch_size: ClassVar = property(_batch_size)
        discount = _from_base("discount")
        scale_name = _from_base("scale_name")
        uses_next_actions = _from_base("uses_next_actions")
        climbs_q = _from_base("climbs_q")
        handles_choices = _from_base("handles_choices")
        handles_numbers = _from_base("handles_numbers")

    base: Base = field(kw_only=True)
    """Base algorithm; its scale is the initial value of the learned scale."""
    scale_lr: NonNegative = 2e-3
    """Initial learning rate η_α of the scale (Adam) for k_alpha = 10. The rate used is scale_lr · k_alpha / 10."""
    scale_lr_final_ratio: NonNegative = 0.01
    """Final learning rate of the scale as a fraction of its initial value, with exponential decay over the horizon."""
    k_alpha: Count = 10
    """Inner (actor) steps per update of the scale."""
    outer_batch: Literal["same", "independent"] = "same"
    """Evaluate the outer loss on the inner step's batch, as the paper does, or on an independent batch."""
    scale_optimizer: OptimizerChoice = None
    """Optimizer of the scale: adam, adamw, lion, rmsprop, sgd or a registered name. Default: Adam."""
    scale_horizon: Horizon = 1_000_000
    """Steps over which the scale's learning rate decays. Set by --horizon."""

    def __post_init__(self) -> None:
        if self.k_alpha < 1:
            raise AspcError("k_alpha must be at least 1.")
        if isinstance(self.base.scale, int | float) and not self.base.scale > 0:
            raise AspcError(
                f"A learned scale must start above 0, so {self.base.scale_name} cannot be {self.base.scale}."
            )

    def validate(self) -> None:
        """Check that the scale can be learned through the inner step's optimizer."""
        self.base.validate()
        if (optimizer := self.base.inner_optimizer()) is not None:
            check_differentiable(optimizer, "the inner step")

    # -- batches and policy --------------------------------------------------------------------------------------
    def noise(self, spec: Spec, batch_size: int) -> dict[str, Draw]:
        """Return the base's noise draws, with a second set for an independent outer batch."""
        if self.outer_batch == "same":
            return self.base.noise(spec, batch_size)
        half = self.base.noise(spec, batch_size // 2)
        return half | {f"outer/{name}": draw for name, draw in half.items()}

    def split_inputs(self, batch: Batch, noise: Noise) -> tuple[Batch, Noise, tuple[Batch, Noise] | None]:
        """Return the inner batch, its noise, and the outer batch with its noise (None if both levels share a batch)."""
        if self.outer_batch == "same":
            return batch, noise, None
        half = len(batch.rewards) // 2
        first, second = jax.tree.map(lambda x: x[:half], batch), jax.tree.map(lambda x: x[half:], batch)
        inner = {name: draw for name, draw in noise.items() if not name.startswith("outer/")}
        return first, inner, (second, {name: noise[f"outer/{name}"] for name in inner})

    def policy(self, state: Any) -> PolicyExport:
        """Return the base's policy, which does not depend on the scale."""
        return self.base.policy(state.base)

    def critics(self, state: Any) -> Critics | None:
        """Return the base's critics."""
        return self.base.critics(state.base)

    @property
    def initial_scale(self) -> float | None:
        """The base's scale."""
        return self.base.scale

    # -- schedule ----------------------------------------------------------------------------------------------
    def schedule(self) -> Schedule:
        """Return the base's cycle, with an update of the scale at every k_alpha-th inner step."""
        (cycle,) = self.base.schedule()
        inner_steps = [i for i, parts in enumerate(cycle.steps) if INNER in parts]
        if len(inner_steps) != 1 or cycle.repeats != 1:
            raise ValueError("the base algorithm of an adaptive scale must take exactly one inner step per cycle")
        (i,) = inner_steps
        with_scale = (*cycle.steps[:i], cycle.steps[i] | {SCALE}, *cycle.steps[i + 1 :])
        last = Segment(with_scale, 1)
        return (last,) if self.k_alpha == 1 else (Segment(cycle.steps, self.k_alpha - 1), last)

    def outer_optimizer(self) -> Optimizer:
        """Return the optimizer of the raw scale, with a learning rate that decays over the horizon."""
        initial = self.scale_lr * self.k_alpha / 10
        decayed = exponential_decay(initial, self.scale_lr_final_ratio, self.scale_updates())
        return make_optimizer(self.scale_optimizer, decayed)

    def scale_updates(self) -> int:
        """Return the number of updates of the scale over the horizon."""
        return max(self.scale_horizon // schedule_length(self.schedule()), 1)

    # -- state -------------------------------------------------------------------------------------------------
    def init(self, key: PRNGKeyArray, spec: Spec) -> State:
        """Return the base's initial state with the scale at its initial value."""
        return self.start(self.base.init(key, spec))

    def start(self, base_state: Any) -> State:
        """Return the initial state for a given base state."""
        raise NotImplementedError


@dataclass(frozen=True)
class AdaptiveScale(LearnedScale[Base, AdaptiveState], Generic[Base]):
    """Learn the scale of a base algorithm (ASPC when the base is TD3+BC)."""

    base: Base = field(default_factory=cast("Callable[[], Base]", TD3BC))
    """Base algorithm; its scale is the initial value of the learned scale."""
    ema: Fraction = 0.995
    """Smoothing factor of the moving average of Q in L2."""
    outer_loss: Annotated[OuterLoss, PerRun()] = "L1+L2+L3"
    """Terms of the outer loss, equation (9)."""
    l2: Literal["ema", "literal"] = "ema"
    """Compute L2 from a moving average of Q (ema, as in the authors' code) or from one batch (literal, as in (7))."""
    l3_form: Annotated[L3Form, PerRun()] = 4
    """Form of L3 (1 to 5, appendix E.2); 4 is equation (8)."""
    scale_mode: Literal["learned", "fixed", "converged", "linear"] = "learned"
    """Learn the scale, keep it at its initial value, keep it at scale_target, or move it there linearly over
    scale_horizon steps."""
    scale_target: Scalar = math.nan
    """Constant scale in mode "converged", or final scale in mode "linear"; see --scale-from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # A traced target, which differs between runs, is never missing.
        missing = isinstance(self.scale_target, int | float) and not self.scale_target > 0
        if self.scale_mode in ("converged", "linear") and missing:
            raise AspcError(
                f"The scale mode {self.scale_mode!r} needs scale_target, the final scale of a run that learned it."
            )

    @property
    def initial_scale(self) -> float | None:
        """The base's scale, or scale_target in mode "converged"."""
        return self.scale_target if self.scale_mode == "converged" else self.base.scale

    def start(self, base_state: Any) -> AdaptiveState:
        """Return the initial state: the initial scale, a fresh optimizer, and ema = 0."""
        raw = raw_from_scale(jnp.asarray(self.initial_scale, dtype=float))
        opt = self.outer_optimizer().init(raw)
        return AdaptiveState(base_state, ScaleState(raw, opt, jnp.zeros_like(raw), jnp.zeros((), jnp.int32)))

    # -- one step ----------------------------------------------------------------------------------------------
    def update(self, state: AdaptiveState, batch: Batch, noise: Noise, parts: Parts) -> tuple[AdaptiveState, Metrics]:
        """Take the base's step at the current scale, and update the scale if SCALE is among the parts."""
        batch, noise, other = self.split_inputs(batch, noise)
        with named_scope("critic"):
            ctx = self.base.prepare(state.base, batch, noise, parts)
        scale_state, metrics = state.scale, Metrics()
        if INNER not in parts:
            return AdaptiveState(ctx.state, scale_state), ctx.metrics
        if SCALE in parts and self.scale_mode == "learned":
            with named_scope("scale"):
                outer_ctx = ctx if other is None else self.base.prepare_again(ctx, *other)
                inner, scale_state, metrics = self.outer_update(ctx, outer_ctx, state.scale)
        else:
            with named_scope("actor"):
                inner = self.base.inner_step(ctx, state.scale.scale)
            if SCALE in parts and self.scale_mode == "linear":
                scale_state = self.interpolate(state.scale)
        metrics = {**ctx.metrics, **inner.metrics, **metrics, "scale": scale_state.scale}
        with named_scope("targets"):
            return AdaptiveState(self.base.commit(ctx, inner), scale_state), metrics

    def interpolate(self, state: ScaleState) -> ScaleState:
        """Move the scale one step along the line from its initial value to the target."""
        updates = state.updates + 1
        progress = jnp.minimum(updates / self.scale_updates(), 1.0).astype(state.raw.dtype)
        scale = self.base.scale + progress * (self.scale_target - self.base.scale)
        return replace(state, raw=raw_from_scale(scale).astype(state.raw.dtype), updates=updates)

    # -- the outer loss ----------------------------------------------------------------------------------------
    def loss_terms(self) -> dict[str, LossTerm]:
        """(9)  Return the terms of the outer loss, by name and in order. Override this method to add or replace terms.

        The option `outer_loss` selects among L1, L2 and L3; other terms are always used. Metrics use lower-case names.
        """
        l2 = l2_ema if self.l2 == "ema" else l2_literal
        return {"L1": l1, "L2": l2, "L3": partial(l3, form=self.l3_form)}

    def term_weights(self) -> dict[str, float | Array]:
        """Return the weights of the terms by name; a missing weight is 1. Metrics report the weighted terms."""
        return {}

    def outer_losses(
        self, outer_ctx: Context[Any, Any], inner: Inner, scale: Array, ema_q: Array
    ) -> tuple[Float[Array, "terms"], tuple[Array, Metrics]]:
        """Return the weighted terms under θ̃ on the batch of `outer_ctx`, the new average of Q, and metrics."""
        after = self.base.outer_terms(outer_ctx, inner.params, scale)
        q, c, independent = inner.q, inner.constraint, self.outer_batch == "independent"
        has_q = q is not None or independent or self.l2 == "literal"
        if q is None or independent:  # inner.q and inner.constraint are on the inner batch; IQL has no inner.q
            before = self.base.outer_terms(outer_ctx, self.base.inner_params(outer_ctx.state), scale)
            q, c = before.q, before.constraint if independent else c
        q, c, ema_q = sg((q, c, ema_q))
        new_ema_q = self.ema * ema_q + (1 - self.ema) * after.q.mean()
        step = StepOutcome(q, c, after, ema_q, new_ema_q, sg(scale), inner.params, outer_ctx, {})
        for name, term in self.loss_terms().items():
            if shape := jnp.shape(value := term(step)):
                raise AspcError(f"Loss term {name!r} has shape {shape}. Make it a scalar, for example with .mean().")
            step = step._replace(losses={**step.losses, name: value})
        weights = self.term_weights()
        for name in weights.keys() - step.losses.keys():
            raise unknown_name("term", name, step.losses, "in term_weights")
        metrics = {"delta_q": after.q.mean() - q.mean()} if has_q else {}
        metrics |= {
            "delta_ema_q": new_ema_q - ema_q,
            "bc_sup": c.max(),
            "delta_bc_sup": jnp.abs(after.constraint - c).max(),
        }
        return jnp.stack([weights.get(name, 1) * value for name, value in step.losses.items()]), (new_ema_q, metrics)

    def outer_update(
        self, ctx: Context[Any, Any], outer_ctx: Context[Any, Any], state: ScaleState
    ) -> tuple[Inner, ScaleState, Metrics]:
        """(9), (10)  Take the inner step and update the scale by differentiating through it.

        The scale is a scalar, so the chain rule of (10) is a single forward-mode pass (jvp) through the inner step and
        the outer losses. The pass yields the derivative of each term and the result of the inner step.
        """

        def losses(raw: Array) -> tuple[Array, tuple[Inner, Array, Metrics]]:
            scale = jax.nn.softplus(raw)
            inner = self.base.inner_step(ctx, scale)
            with jvp_compatible_networks():  # θ̃ depends on the scale
                values, (new_ema_q, metrics) = self.outer_losses(outer_ctx, inner, scale, state.ema_q)
            return values, (inner, new_ema_q, metrics)

        values, derivatives, (inner, new_ema_q, metrics) = jax.jvp(
            losses, (state.raw,), (jnp.ones_like(state.raw),), has_aux=True
        )
        names = tuple(self.loss_terms())
        used = jnp.asarray([[name in loss or name not in TERMS for name in names] for loss in OUTER_LOSSES])
        gradient = jnp.where(used[choice_index(self.outer_loss, OUTER_LOSSES)], derivatives, 0.0).sum()
        raw, opt = self.outer_optimizer().step(state.raw, gradient, state.opt)

        d_scale_d_raw = jax.nn.sigmoid(state.raw)
        # Derivatives with respect to the scale itself, not to its softplus⁻¹.
        of_losses = {name.lower(): values[i] for i, name in enumerate(names)}
        of_losses |= {f"d{name.lower()}_dscale": derivatives[i] / d_scale_d_raw for i, name in enumerate(names)}
        return inner, ScaleState(raw, opt, new_ema_q, state.updates + 1), {**of_losses, **metrics}
