"""ASPC: the scale between RL and BC is learned by second-order gradients. Equations (4) to (10) of the paper.

A base algorithm supplies its inner step as four pure pieces (`algorithms.base.ScalableAlgorithm`); everything here is the
paper's outer level and knows no base by name. Notation: θ are the parameters before the inner step, θ̃(α) after it,
q and c the per-sample Q(s, π_θ(s)) and BC loss ‖π_θ(s) − a‖², q̃ and c̃ the same under θ̃, sg(·) carries no gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, get_args

import jax
import jax.numpy as jnp
from jax import named_scope
from jax.lax import stop_gradient as sg
from jaxtyping import Array, Float, Int, PRNGKeyArray

from aspc import kernels
from aspc.algorithms.interface import (
    INNER,
    SCALE,
    Batch,
    Draw,
    Inner,
    Metrics,
    Noise,
    OuterTerms,
    Parts,
    PolicyExport,
    Schedule,
    Segment,
    Spec,
    schedule_length,
)
from aspc.algorithms.td3_bc import TD3BC
from aspc.errors import AspcError
from aspc.optim import Adam, exponential_decay

Base = TypeVar("Base", bound=Any)  # an Algorithm that is ScalableAlgorithm
OuterLoss = Literal["L1", "L1+L2", "L1+L3", "L1+L2+L3"]
L3Form = Literal[1, 2, 3, 4, 5]
TERMS, OUTER_LOSSES, L3_FORMS = ("L1", "L2", "L3"), get_args(OuterLoss), get_args(L3Form)


# ---------------------------------------------------------------------------------------------------------------
# The scale: α = softplus(raw) stays positive
# ---------------------------------------------------------------------------------------------------------------


def raw_from_scale(scale: float | Array) -> Array:
    """The inverse of softplus, log(e^α − 1), written so that a large α does not overflow."""
    scale = jnp.asarray(scale)
    return scale + jnp.log(-jnp.expm1(-scale))


class ScaleState(NamedTuple):
    """What the outer level carries: softplus⁻¹ of the scale, its optimiser, the average of Q in L2, updates so far."""

    raw: Float[Array, ""]
    opt: Any
    ema_q: Float[Array, ""]
    updates: Int[Array, ""]

    @property
    def scale(self) -> Float[Array, ""]:
        return jax.nn.softplus(self.raw)


class AdaptiveState(NamedTuple):
    base: Any
    scale: ScaleState


# ---------------------------------------------------------------------------------------------------------------
# The outer loss
# ---------------------------------------------------------------------------------------------------------------


def l1(after: OuterTerms) -> Float[Array, ""]:
    """(6)  L1 = −α·E[q̃]/E|q̃| + E[c̃]; neither α nor the normaliser carries a gradient."""
    q_term = after.q.mean() / sg(jnp.abs(after.q).mean())
    return -sg(after.q_weight) * q_term + (sg(after.constraint_weight) * after.constraint).mean()


def l2_ema(q_after: Float[Array, "batch"], ema_q: Float[Array, ""], decay: float) -> tuple[Array, Array]:
    """(7) as the authors compute it: the change of an average of Q. Returns L2 and the new average."""
    new_ema = decay * sg(ema_q) + (1 - decay) * q_after.mean()
    return jnp.square(new_ema - sg(ema_q)), sg(new_ema)


def l2_literal(q_after: Float[Array, "batch"], q_before: Float[Array, "batch"]) -> Float[Array, ""]:
    """(7) as it is written: L2 = (E[q̃] − E[q])², on one batch."""
    return jnp.square(q_after.mean() - sg(q_before.mean()))


def l3(
    l2: Float[Array, ""], c_after: Float[Array, "batch"], c_before: Float[Array, "batch"], form: L3Form | Array = 4
) -> Float[Array, ""]:
    """(8)  L3 = sg(L2) · sup c · sup |c̃ − c|, which is form 4; the others are appendix E.2's."""
    c = sg(c_before)
    change = jnp.abs(c_after - c)
    # sup as a selection: the derivative of `max` divides by how many entries equal it, which rounding can make none.
    variation = change[jnp.argmax(sg(change))]
    forms = (
        variation,
        c.max() * variation,
        sg(l2) * variation,
        sg(l2) * c.max() * variation,
        sg(l2) * c.mean() * jnp.abs((c_after - c).mean()),
    )
    return jnp.stack(forms)[place(form, L3_FORMS)]


def place(choice: str | int | Array, choices: tuple[Any, ...]) -> int | Array:
    """Which of its choices a setting is; where the runs of a program differ in it, it comes as that number."""
    return choices.index(choice) if isinstance(choice, str | int) else choice


# ---------------------------------------------------------------------------------------------------------------
# The wrapper
# ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LearnedScale(Generic[Base]):
    """A base algorithm with a learned scale: schedule, learning rate and batches. A subclass adds the outer loss."""

    base: Base
    """The algorithm whose scale is learned; its own scale is the initial one."""
    scale_lr: float = 2e-3
    """Learning rate η_α of the scale (Adam) at an update interval of 10; it is multiplied by k_alpha/10."""
    scale_lr_final_ratio: float = 0.01
    """The scale's learning rate decays exponentially to this share of itself over the horizon."""
    k_alpha: int = 10
    """Inner (actor) steps for each update of the scale."""
    outer_batch: Literal["same", "independent"] = "same"
    """Judge the inner step on the batch it was made with, as ASPC's paper does, or on another one."""
    scale_horizon: int = 1_000_000
    """Steps over which the scale's learning rate decays (or the line ends); set to the length of the run."""

    def __post_init__(self) -> None:
        if self.k_alpha < 1:
            raise AspcError("k_alpha must be at least 1.")
        if isinstance(self.base.scale, int | float) and not self.base.scale > 0:
            raise AspcError(
                f"A scale that is learned starts above 0, so {self.base.scale_name} cannot be {self.base.scale}."
            )

    # -- what is the base's stays the base's -------------------------------------------------------------------
    @property
    def batch_size(self) -> int:
        """An independent outer batch comes as the second half of a batch twice as large."""
        return self.base.batch_size * (2 if self.outer_batch == "independent" else 1)

    @property
    def normalize_observations(self) -> bool:
        """As the base says."""
        return self.base.normalize_observations

    @property
    def uses_next_actions(self) -> bool:
        """As the base says."""
        return self.base.uses_next_actions

    @property
    def scale_name(self) -> str:
        """What the base's own paper calls the scale."""
        return self.base.scale_name

    def noise(self, spec: Spec, batch_size: int) -> dict[str, Draw]:
        """The base's draws, and as many again for an independent outer batch."""
        if self.outer_batch == "same":
            return self.base.noise(spec, batch_size)
        half = self.base.noise(spec, batch_size // 2)
        return half | {f"outer/{name}": draw for name, draw in half.items()}

    def split_inputs(self, batch: Batch, noise: Noise) -> tuple[Batch, Noise, tuple[Batch, Noise] | None]:
        """What the inner step takes, and what an independent outer batch brings (None if it is the same one)."""
        if self.outer_batch == "same":
            return batch, noise, None
        half = len(batch.rewards) // 2
        first, second = jax.tree.map(lambda x: x[:half], batch), jax.tree.map(lambda x: x[half:], batch)
        inner = {name: draw for name, draw in noise.items() if not name.startswith("outer/")}
        return first, inner, (second, {name: noise[f"outer/{name}"] for name in inner})

    def policy(self, state: Any) -> PolicyExport:
        """The base's policy: the scale plays no part in acting."""
        return self.base.policy(state.base)

    # -- schedule ----------------------------------------------------------------------------------------------
    def schedule(self) -> Schedule:
        """The base's cycle, with an update of the scale at every k_alpha-th inner step."""
        (cycle,) = self.base.schedule()
        inner_steps = [i for i, parts in enumerate(cycle.steps) if INNER in parts]
        if len(inner_steps) != 1 or cycle.repeats != 1:
            raise ValueError("a base to be wrapped has exactly one inner step in its cycle")
        (i,) = inner_steps
        with_scale = (*cycle.steps[:i], cycle.steps[i] | {SCALE}, *cycle.steps[i + 1 :])
        last = Segment(with_scale, 1)
        return (last,) if self.k_alpha == 1 else (Segment(cycle.steps, self.k_alpha - 1), last)

    def scale_optimiser(self) -> Adam:
        """Adam on the raw scale, with a learning rate that decays over the horizon."""
        initial = self.scale_lr * self.k_alpha / 10
        return Adam(exponential_decay(initial, self.scale_lr_final_ratio, self.scale_updates()))

    def scale_updates(self) -> int:
        """How often the scale is updated over the horizon."""
        return max(self.scale_horizon // schedule_length(self.schedule()), 1)

    def init(self, key: PRNGKeyArray, spec: Spec) -> Any:
        """The base's initial state, and the scale at its own."""
        return self.start(self.base.init(key, spec))

    def start(self, base_state: Any) -> Any:
        """The state before the first step for a given base."""
        raise NotImplementedError


@dataclass(frozen=True)
class AdaptiveScale(LearnedScale[Base]):
    """A base algorithm whose scale is learned (ASPC when the base is TD3+BC)."""

    base: Base = field(default_factory=TD3BC)  # type: ignore[assignment]
    """The algorithm whose scale is learned; its own scale is the initial one."""
    ema: float = 0.995
    """Smoothing factor of the average of Q in L2."""
    outer_loss: OuterLoss = "L1+L2+L3"
    """Which terms of the outer loss (9) are used."""
    l2: Literal["ema", "literal"] = "ema"
    """L2 on an average of Q, as the authors compute it, or on one batch, as (7) is written."""
    l3_form: L3Form = 4
    """Which of appendix E.2's five forms L3 has; 4 is the paper's (8)."""
    scale_mode: Literal["learned", "fixed", "converged", "linear"] = "learned"
    """The scale is learned; or stays at its initial value; or is scale_target throughout; or goes there on a line."""
    scale_target: float = math.nan
    """Where the modes "converged" and "linear" end: the final scale of a learned run."""

    numbered: ClassVar[tuple[str, ...]] = ("outer_loss", "l3_form")

    def __post_init__(self) -> None:
        super().__post_init__()
        # As one of several runs of a program the target is a traced number, and so it is given.
        missing = isinstance(self.scale_target, int | float) and not self.scale_target > 0
        if self.scale_mode in ("converged", "linear") and missing:
            raise AspcError(f"The scale mode {self.scale_mode!r} needs scale_target, the final scale of a learned run.")

    # -- state -------------------------------------------------------------------------------------------------
    def start(self, base_state: Any) -> AdaptiveState:
        """The state before the first step for a given base: the base's scale, an empty optimiser, ema = 0."""
        initial = self.scale_target if self.scale_mode == "converged" else self.base.scale
        raw = raw_from_scale(jnp.asarray(initial, dtype=float))
        opt = self.scale_optimiser().init(raw)
        return AdaptiveState(base_state, ScaleState(raw, opt, jnp.zeros_like(raw), jnp.zeros((), jnp.int32)))

    # -- one step ----------------------------------------------------------------------------------------------
    def update(self, state: AdaptiveState, batch: Batch, noise: Noise, parts: Parts) -> tuple[AdaptiveState, Metrics]:
        """One step: the base's at the present scale, or, where SCALE is among the parts, the outer update around it."""
        batch, noise, other = self.split_inputs(batch, noise)
        with named_scope("critic"):
            ctx = self.base.prepare(state.base, batch, noise, parts)
        scale_state, metrics = state.scale, Metrics()
        if INNER not in parts:
            return AdaptiveState(ctx.state, scale_state), ctx.metrics
        if SCALE in parts and self.scale_mode == "learned":
            with named_scope("scale"):
                judged = ctx if other is None else self.base.prepare_again(ctx, *other)
                inner, scale_state, metrics = self.outer_update(ctx, judged, state.scale)
        else:
            with named_scope("actor"):
                inner = self.base.inner_step(ctx, state.scale.scale)
            if SCALE in parts and self.scale_mode == "linear":
                scale_state = self.on_the_line(state.scale)
        metrics = {**ctx.metrics, **inner.metrics, **metrics, "scale": scale_state.scale}
        with named_scope("targets"):
            return AdaptiveState(self.base.commit(ctx, inner), scale_state), metrics

    def on_the_line(self, state: ScaleState) -> ScaleState:
        """The scale at its next place between the initial one and the target."""
        updates = state.updates + 1
        share = jnp.minimum(updates / self.scale_updates(), 1.0).astype(state.raw.dtype)
        scale = self.base.scale + share * (self.scale_target - self.base.scale)
        return state._replace(raw=raw_from_scale(scale).astype(state.raw.dtype), updates=updates)

    def outer_losses(
        self, judged: Any, inner: Inner, scale: Array, ema_q: Array
    ) -> tuple[Float[Array, "3"], tuple[Array, Metrics]]:
        """L1, L2, L3 under θ̃ = `inner.params`; also the new average of Q, and what is worth looking at.

        `judged` is the context whose batch the losses are computed on.
        """
        after = self.base.outer_terms(judged, inner.params, scale)
        q, c = inner.q, inner.constraint  # the inner step has computed them for its own batch already
        if self.outer_batch == "independent" or (q is None and self.l2 == "literal"):
            before = self.base.outer_terms(judged, self.base.inner_params(judged.state), scale)
            q, c = before.q, before.constraint
        loss2, new_ema_q = l2_ema(after.q, ema_q, self.ema)
        if self.l2 == "literal":
            assert q is not None
            loss2 = l2_literal(after.q, q)
        seen = {} if q is None else {"delta_q": after.q.mean() - q.mean()}
        seen |= {
            "delta_ema_q": new_ema_q - ema_q,
            "bc_sup": c.max(),
            "delta_bc_sup": jnp.abs(after.constraint - c).max(),
        }
        return jnp.stack([l1(after), loss2, l3(loss2, after.constraint, c, self.l3_form)]), (new_ema_q, seen)

    def outer_update(self, ctx: Any, judged: Any, state: ScaleState) -> tuple[Inner, ScaleState, Metrics]:
        """(9), (10): one step on the scale through the inner step, which is the one that is committed.

        The scale is one number, so the chain rule of (10) is a single forward-mode pass (jvp) through inner step
        and outer losses: it gives the derivatives of L1, L2 and L3 separately, and the inner step itself.
        """

        def losses(raw: Array) -> tuple[Array, Any]:
            scale = jax.nn.softplus(raw)
            inner = self.base.inner_step(ctx, scale)
            with kernels.fused(None):  # θ̃ moves with the scale, and fused networks have no forward mode
                values, (new_ema_q, seen) = self.outer_losses(judged, inner, scale, state.ema_q)
            return values, (inner, new_ema_q, seen)

        values, derivatives, (inner, new_ema_q, seen) = jax.jvp(
            losses, (state.raw,), (jnp.ones_like(state.raw),), has_aux=True
        )
        used = jnp.asarray([[term in loss for term in TERMS] for loss in OUTER_LOSSES])
        gradient = jnp.where(used[place(self.outer_loss, OUTER_LOSSES)], derivatives, 0.0).sum()
        raw, opt = self.scale_optimiser().step(state.raw, gradient, state.opt)

        d_scale_d_raw = jax.nn.sigmoid(state.raw)
        metrics = {f"l{i + 1}": values[i] for i in range(3)}
        # Derivatives with respect to the scale itself, not to softplus⁻¹ of it.
        metrics |= {f"dl{i + 1}_dscale": derivatives[i] / d_scale_d_raw for i in range(3)}
        return inner, ScaleState(raw, opt, new_ema_q, state.updates + 1), {**metrics, **seen}
