"""What every algorithm is: a frozen dataclass of hyper-parameters with pure functions on an explicit state.

An algorithm never reads data, environments or the clock, and never draws a random number by itself: the loop hands
it a batch and the named noise it asked for. That is what lets a reference trace be replayed exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import jax
from jax import named_scope
from jaxtyping import Array, Float, PRNGKeyArray

Metrics = dict[str, Array]
Noise = dict[str, Array]

# The parts an update can have. INNER is the step that the scale governs: the actor's (for CQL, the critic's).
CRITIC, INNER, SCALE = "critic", "inner", "scale"
Parts = frozenset[str]


class Spec(NamedTuple):
    """Sizes of the problem. Actions lie in ±max_action (datasets are rescaled to ±1; traces may have others)."""

    obs_dim: int
    act_dim: int
    max_action: float = 1.0


class Batch(NamedTuple):
    """A minibatch of transitions. `masks` is 0 where bootstrapping stops: 1 − terminal (n-step: times γ^(k−1))."""

    observations: Float[Array, "batch obs"]
    actions: Float[Array, "batch act"]
    rewards: Float[Array, "batch"]
    next_observations: Float[Array, "batch obs"]
    masks: Float[Array, "batch"]
    next_actions: Float[Array, "batch act"] | None = None


class Draw(NamedTuple):
    """One named random draw of a step: its distribution and its shape.

    "normal" is N(0, 1), "uniform" U(low, high), "integers" uniform on low, …, high − 1.
    """

    kind: Literal["normal", "uniform", "integers"]
    shape: tuple[int, ...]
    low: float = 0.0
    high: float = 1.0

    def sample(self, key: PRNGKeyArray, steps: int) -> Array:
        """The draws of `steps` consecutive steps in one call, [steps, *shape]."""
        shape = (steps, *self.shape)
        if self.kind == "normal":
            return jax.random.normal(key, shape)
        if self.kind == "uniform":
            return jax.random.uniform(key, shape, minval=self.low, maxval=self.high)
        return jax.random.randint(key, shape, int(self.low), int(self.high))


class Segment(NamedTuple):
    """`steps` consecutive updates (the parts of each), repeated `repeats` times."""

    steps: tuple[Parts, ...]
    repeats: int


Schedule = tuple[Segment, ...]


def schedule_length(schedule: Schedule) -> int:
    return sum(len(segment.steps) * segment.repeats for segment in schedule)


class PolicyExport(NamedTuple):
    """The acting part of a state, as plain arrays: what `aspc.policy` needs to act without JAX."""

    kind: str
    arrays: dict[str, Array]
    settings: dict[str, Any]


class Inner(NamedTuple):
    """What one inner step gives: updated parameters, and per-sample Q and constraint *before* the step.

    Q is None where the step does without it (IQL's does); `outer_terms` computes it where it is needed. `extra` is
    for `commit` alone.
    """

    params: Any
    opt_state: Any
    q: Float[Array, "batch"] | None
    constraint: Float[Array, "batch"]
    metrics: Metrics
    extra: Any = None


class OuterTerms(NamedTuple):
    """Per-sample Q and constraint under some parameters, and the weights that the scale gives them in L1.

    The weights carry no gradient: equation (10) differentiates through the updated parameters only.
    """

    q: Float[Array, "batch"]
    constraint: Float[Array, "batch"]
    q_weight: Float[Array, ""] | float
    constraint_weight: Float[Array, "*batch"] | float


class Algorithm(Protocol):
    """The interface the training loop sees.

    A class attribute `numbered` may name fields with a few choices (`Literal`): its functions then also take the number
    of a choice in place of the choice, so that the runs of one program can differ in it.
    """

    batch_size: int
    normalize_observations: bool

    def init(self, key: PRNGKeyArray, spec: Spec) -> Any:
        """The state before the first step; its leaves are all arrays."""
        ...

    def noise(self, spec: Spec, batch_size: int) -> dict[str, Draw]:
        """The random draws that one step consumes."""
        ...

    def schedule(self) -> Schedule:
        """The static cycle of updates, repeated for the whole run."""
        ...

    def update(self, state: Any, batch: Batch, noise: Noise, parts: Parts) -> tuple[Any, Metrics]:
        """One step."""
        ...

    def policy(self, state: Any) -> PolicyExport:
        """What acts."""
        ...


@dataclass(frozen=True)
class Preprocessing:
    """What an algorithm's specification does to the data before training (it travels with the policy).

    Rewards become `reward_scale · transform(r) + reward_shift`.
    """

    climbs_q: ClassVar[bool] = False  # its policy goes where Q is highest, also where nothing was logged

    normalize_observations: bool = True
    """Standardise observations with the dataset's mean and standard deviation (+ 1e-3)."""
    reward_transform: Literal["none", "return_range", "standardize"] = "none"
    """First of all: nothing, or 1000·r/(highest − lowest return of an episode), or (r − mean)/(std + 1e-6)."""
    reward_scale: float = 1.0
    """Then rewards are multiplied by this."""
    reward_shift: float = 0.0
    """And this is added."""


def with_horizon(algorithm: Any, steps: int) -> Any:
    """The algorithm with every horizon (of a learning rate's decay) set to the length of the run.

    Their names end in `horizon`; a wrapper's and its base's differ, since they stand side by side on the command line.
    """
    if isinstance(getattr(algorithm, "base", None), Preprocessing):
        algorithm = replace(algorithm, base=with_horizon(algorithm.base, steps))
    return replace(algorithm, **{f.name: steps for f in fields(algorithm) if f.name.endswith("horizon")})


def lost_horizons(algorithm: Any, steps: int) -> list[str]:
    """The horizons that somebody has chosen and `with_horizon` would replace: not their class's default."""
    inner = lost_horizons(algorithm.base, steps) if isinstance(getattr(algorithm, "base", None), Preprocessing) else []
    own = [f for f in fields(algorithm) if f.name.endswith("horizon")]
    return [*inner, *(f.name for f in own if getattr(algorithm, f.name) not in (f.default, steps))]


@dataclass(frozen=True)
class ScalableAlgorithm(Preprocessing):
    """An algorithm whose constraint has a scale, in the four pieces that `adaptive_scale` wraps.

    Here they are run at a fixed scale, which is the plain algorithm.
    """

    scale_name: ClassVar[str] = "alpha"  # what the base's own paper calls the scale
    uses_next_actions: ClassVar[bool] = False

    batch_size: int = 256
    """Transitions in a minibatch."""
    discount: float = 0.99
    """Discount factor γ."""
    tau: float = 5e-3
    """Target update rate."""

    # -- the four pieces ---------------------------------------------------------------------------------------
    def prepare(self, state: Any, batch: Batch, noise: Noise, parts: Parts) -> Any:
        """All that precedes the inner step (e.g. the critic's update). Returns a context with `.state`."""
        raise NotImplementedError

    def inner_step(self, ctx: Any, scale: Array | float) -> Inner:
        """One differentiable optimiser step on the parameters that the scale governs."""
        raise NotImplementedError

    def outer_terms(self, ctx: Any, params: Any, scale: Array | float) -> OuterTerms:
        """Q and constraint under `params`, with the noise of the inner step."""
        raise NotImplementedError

    def commit(self, ctx: Any, inner: Inner) -> Any:
        """The new state: updated parameters, targets and averages, in the base's order."""
        raise NotImplementedError

    def prepare_again(self, ctx: Any, batch: Batch, noise: Noise) -> Any:
        """The context for judging the inner step on another batch: what that batch brings with it (targets, weights),
        and the state as it is before the inner step. No part of a step is asked for, so the critics of TD3+BC and what
        builds on it are not fitted to that batch before they weigh it."""
        return self.prepare(ctx.state, batch, noise, frozenset())._replace(state=ctx.state)

    def inner_params(self, state: Any) -> Any:
        """The parameters that the inner step updates."""
        return state.actor

    # -- the plain algorithm -----------------------------------------------------------------------------------
    @property
    def scale(self) -> float:
        """The fixed scale of the plain algorithm; the initial one when it is learned."""
        return getattr(self, self.scale_name)

    def update(self, state: Any, batch: Batch, noise: Noise, parts: Parts) -> tuple[Any, Metrics]:
        """One step at the fixed scale, from the four pieces."""
        with named_scope("critic"):  # names for the profile of a step (`aspc speed --profile`)
            ctx = self.prepare(state, batch, noise, parts)
        if INNER not in parts:
            return ctx.state, ctx.metrics
        with named_scope("actor"):
            inner = self.inner_step(ctx, self.scale)
        with named_scope("targets"):
            return self.commit(ctx, inner), {**ctx.metrics, **inner.metrics}


class Context(NamedTuple):
    """What `prepare` hands to the other pieces: the state so far, the batch, the noise, and anything else needed."""

    state: Any
    batch: Batch
    noise: Noise
    metrics: Metrics
    extra: Any = None
