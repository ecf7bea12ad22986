"""The interface of an algorithm: a frozen dataclass of hyperparameters with pure functions on an explicit state.

An algorithm never reads data, environments or the clock, and draws no random numbers itself: the loop passes it a
batch and the noise that it declares. Reference traces can therefore be replayed exactly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
from jax import named_scope
from jaxtyping import Array, Float, PRNGKeyArray

from aspc.algorithms.fields import Count, Fraction, Scalar
from aspc.optim import Optimizer

Metrics = dict[str, Array]
Noise = dict[str, Array]
State = TypeVar("State")
Extra = TypeVar("Extra")

# The parts of an update. INNER is the step that the scale affects: the actor's or, for CQL, the critics' step.
CRITIC, INNER, SCALE = "critic", "inner", "scale"
Parts = frozenset[str]


class Spec(NamedTuple):
    """Sizes of a task. Actions lie in [−max_action, max_action]; datasets are rescaled so that max_action is 1.

    `factors` lists the number of options of each discrete factor and 0 for each continuous factor, as in
    `aspc.action_space`. It is empty if all actions are continuous. The last entries of an observation are the masks of
    the action columns listed in `masked`.
    """

    obs_dim: int
    act_dim: int
    max_action: float = 1.0
    factors: tuple[int, ...] = ()
    masked: tuple[int, ...] = ()


class Batch(NamedTuple):
    """A minibatch of transitions.

    `masks` is 1 − terminal, so it is 0 where bootstrapping stops. With n-step returns, it is multiplied by γ^(k−1),
    where k ≤ n is the number of rewards in the sum.
    """

    observations: Float[Array, "batch obs"]
    actions: Float[Array, "batch act"]
    rewards: Float[Array, "batch"]
    next_observations: Float[Array, "batch obs"]
    masks: Float[Array, "batch"]
    next_actions: Float[Array, "batch act"] | None = None


class Draw(NamedTuple):
    """One named random draw of a step: its distribution and shape.

    "normal" is N(0, 1), "uniform" is U(low, high), and "integers" is uniform on low, …, high − 1.
    """

    kind: Literal["normal", "uniform", "integers"]
    shape: tuple[int, ...]
    low: float = 0.0
    high: float = 1.0

    def sample(self, key: PRNGKeyArray, steps: int) -> Array:
        """Draw samples [steps, *shape] for `steps` consecutive steps in one call."""
        shape = (steps, *self.shape)
        if self.kind == "normal":
            return jax.random.normal(key, shape)
        if self.kind == "uniform":
            return jax.random.uniform(key, shape, minval=self.low, maxval=self.high)
        return jax.random.randint(key, shape, int(self.low), int(self.high))


class Segment(NamedTuple):
    """A sequence of updates, repeated `repeats` times; `steps` lists the parts of each update."""

    steps: tuple[Parts, ...]
    repeats: int


Schedule = tuple[Segment, ...]


def schedule_length(schedule: Schedule) -> int:
    """Return the number of steps in one cycle."""
    return sum(len(segment.steps) * segment.repeats for segment in schedule)


Critics = Callable[[Float[Array, "batch obs"], Float[Array, "batch act"]], Float[Array, "critics batch"]]


class PolicyExport(NamedTuple):
    """A policy as plain arrays, which `aspc.policy` evaluates without JAX."""

    kind: str
    arrays: dict[str, Array]
    settings: dict[str, Any]
    act: Callable[..., Array] | None = None
    """The actor: (normalized observations, *random inputs of `kind`) → actions in [-1, 1]. Training compares the
    exported policy with it; None skips this check."""
    logits: Callable[..., Array] | None = None
    """Normalized observations → logits. If given, training compares logits instead of actions, because rounding can
    change the chosen option if logits are nearly equal."""


class Inner(NamedTuple):
    """The result of an inner step: updated parameters, and per-sample Q and constraint *before* the step.

    Q is None if the step does not compute it, as in IQL; `outer_terms` computes it on demand. Only `commit` uses
    `extra`.
    """

    params: Any
    opt_state: Any
    q: Float[Array, "batch"] | None
    constraint: Float[Array, "batch"]
    metrics: Metrics
    extra: Any = None


class OuterTerms(NamedTuple):
    """Per-sample Q and constraint for given parameters, and their weights in L1 for a given scale.

    The weights carry no gradient: equation (10) differentiates through the updated parameters only.
    """

    q: Float[Array, "batch"]
    constraint: Float[Array, "batch"]
    q_weight: Float[Array, ""] | float
    constraint_weight: Float[Array, "*batch"] | float


class Context(eqx.Module, Generic[State, Extra]):
    """The result of `prepare`: current state, batch, noise, metrics, and the algorithm's extra data."""

    state: State
    batch: Batch
    noise: Noise
    metrics: Metrics
    extra: Extra


@dataclass(frozen=True)
class Algorithm(ABC, Generic[State]):
    """The base class of all algorithms, generic in the type of the state, which is a pytree of arrays.

    A subclass is a frozen dataclass; its fields are hyperparameters and become command-line options. Their types
    declare value ranges and mark the fields that can differ between runs; see `aspc.algorithms.fields`.

    Rewards become `reward_scale · transform(r) + reward_shift` before training.
    """

    scale_name: ClassVar[str | None] = None
    """The name of the scale in the algorithm's own paper; None if it has no scale."""
    uses_next_actions: ClassVar[bool] = False
    """True if the algorithm's batches must contain the action logged after each transition."""
    climbs_q: ClassVar[bool] = False
    """True if the policy maximizes Q over actions that can lie outside the data."""
    handles_choices: ClassVar[bool] = False
    """True if the algorithm supports discrete actions."""
    handles_numbers: ClassVar[bool] = True
    """True if the algorithm supports continuous actions, alone or combined with discrete ones."""
    if TYPE_CHECKING:

        @property
        def base(self) -> Algorithm[Any] | None:
            """The algorithm that this one wraps."""

        @property
        def discount(self) -> float:
            """Discount factor γ."""
    else:  # class attributes, so that subclasses can declare them as fields
        base, discount = None, 1.0

    normalize_observations: bool = True
    """Standardize observations with the dataset's mean and standard deviation (+ 1e-3)."""
    reward_transform: Literal["none", "return_range", "standardize"] = "none"
    """Reward transform, applied before scale and shift: none, 1000·r/(highest − lowest episode return), or
    (r − mean)/(std + 1e-6)."""
    reward_scale: Scalar = 1.0
    """Factor applied to rewards after the transform."""
    reward_shift: Scalar = 0.0
    """Constant added to rewards after scaling."""
    batch_size: Count = 256
    """Transitions per minibatch."""

    @abstractmethod
    def init(self, key: PRNGKeyArray, spec: Spec) -> State:
        """Return the initial state."""

    def noise(self, spec: Spec, batch_size: int) -> dict[str, Draw]:
        """Return the random draws that one step consumes, by name; by default none."""
        return {}

    def schedule(self) -> Schedule:
        """Return the static cycle of updates; by default every step has a critic and an inner part."""
        return (Segment((frozenset({CRITIC, INNER}),), 1),)

    @abstractmethod
    def update(self, state: State, batch: Batch, noise: Noise, parts: Parts) -> tuple[State, Metrics]:
        """Run the given parts of one step; return the new state and scalar metrics."""

    @abstractmethod
    def policy(self, state: State) -> PolicyExport:
        """Return the policy to export."""

    def critics(self, state: State) -> Critics | None:
        """Return the critics for the trust report, or None (the default) if the algorithm learns no Q-function."""
        return None

    def validate(self) -> None:
        """Check the combination of hyperparameters before a run starts; by default every combination is valid.

        Raises:
            AspcError: The combination is invalid.
        """

    @property
    def initial_scale(self) -> float | None:
        """The scale before the first step; None for an algorithm without a scale."""
        return None

    @property
    def unwrapped(self) -> Algorithm[Any]:
        """The wrapped algorithm, or this one if it wraps none."""
        return self if self.base is None else self.base.unwrapped


@dataclass(frozen=True)
class ScalableAlgorithm(Algorithm[State], Generic[State, Extra]):
    """An algorithm whose constraint has a scale, split into the four pieces that `AdaptiveScale` wraps.

    `update` runs these pieces at a fixed scale: this is the plain algorithm. `Extra` is the type of `Context.extra`.
    """

    scale_name: ClassVar[str] = "alpha"

    discount: Fraction = 0.99
    """Discount factor γ."""
    tau: Fraction = 5e-3
    """Target update rate."""

    # -- the four pieces ---------------------------------------------------------------------------------------
    @abstractmethod
    def prepare(self, state: State, batch: Batch, noise: Noise, parts: Parts) -> Context[State, Extra]:
        """Run everything that precedes the inner step, such as the critics' update."""

    @abstractmethod
    def inner_step(self, ctx: Context[State, Extra], scale: Array | float) -> Inner:
        """Take one differentiable optimizer step on the parameters that the scale governs."""

    @abstractmethod
    def outer_terms(self, ctx: Context[State, Extra], params: Any, scale: Array | float) -> OuterTerms:
        """Compute Q and constraint under `params`, with the noise of the inner step."""

    @abstractmethod
    def commit(self, ctx: Context[State, Extra], inner: Inner) -> State:
        """Return the new state with the inner step's parameters and optimizer state.

        Also update the target networks and parameter averages that change with each inner step; for TD3+BC, these are
        the targets of actor and critics. `prepare` updates the targets that change with each critic step.
        """

    def prepare_again(self, ctx: Context[State, Extra], batch: Batch, noise: Noise) -> Context[State, Extra]:
        """Return the context for evaluating the inner step on another batch, with the state before that step.

        TD targets and sample weights are computed on the new batch. `prepare` runs without parts, so the critics of
        TD3+BC and its variants are not fitted to this batch before they evaluate the step on it.
        """
        return replace(self.prepare(ctx.state, batch, noise, frozenset()), state=ctx.state)

    def inner_optimizer(self) -> Optimizer | None:
        """Return the optimizer of the inner step, to check that it is differentiable; None skips the check."""
        return None

    def inner_params(self, state: Any) -> Any:
        """Return the parameters that the inner step updates; by default `state.actor`."""
        return state.actor

    def critics(self, state: Any) -> Critics | None:
        """Return the critics; by default `state.critics`."""
        critics: Critics = state.critics
        return critics

    # -- the plain algorithm -----------------------------------------------------------------------------------
    @property
    def scale(self) -> float:
        """The fixed scale of the plain algorithm, or the initial scale if the scale is learned."""
        value: float = getattr(self, self.scale_name)
        return value

    @property
    def initial_scale(self) -> float | None:
        """The scale before the first step."""
        return self.scale

    def update(self, state: State, batch: Batch, noise: Noise, parts: Parts) -> tuple[State, Metrics]:
        """Take one step at the fixed scale."""
        with named_scope("critic"):  # named for the profile of a step (`aspc speed --profile`)
            ctx = self.prepare(state, batch, noise, parts)
        if INNER not in parts:
            return ctx.state, ctx.metrics
        with named_scope("actor"):
            inner = self.inner_step(ctx, self.scale)
        with named_scope("targets"):
            return self.commit(ctx, inner), {**ctx.metrics, **inner.metrics}
