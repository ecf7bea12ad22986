"""Fitted-Q evaluation: the value of a policy from logs alone.

    Q_k(s, a) → r + γ·(1 − done)·Q'_k(s', π(s')),      J(π) = E[Q(s₀, π(s₀))] over the first states of episodes

A policy never changes while it is evaluated, so its actions π(s') and π(s₀) are computed once, and an evaluation is
a scan over minibatches of one packed table. All policies see the same minibatches and start from the same networks:
what differs between their estimates is due to them. Each critic learns from its own target, so that their spread
says how far the data determines the answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from aspc.algorithms.interface import Spec
from aspc.algorithms.td_learning import bootstrap, fit_critics
from aspc.assessment.fqe_options import FQEOptions
from aspc.assessment.returns import States, interval, resampled_means, returns_to_go
from aspc.data import Dataset
from aspc.errors import AspcError, printable
from aspc.networks import Critic, Ensemble, ensemble, mlp, polyak, robust_critic_init
from aspc.optim import Adam, cosine_decay
from aspc.policy import Policy
from aspc.policy_kinds import sample, whole_act
from aspc.training.compiled_loop import on_accelerator
from aspc.training.packed_table import Layout, Normaliser, pack

BEHAVIOUR = "behaviour (the data)"
TABLE_BYTES = 2**30  # of precomputed actions on the device at a time
ACT_ROWS, ACT_NUMBERS = 65_536, 2**22  # observations, and random numbers for them, in one call of a policy
LOOKS = 20  # how often the estimates are looked at on the way
UNSETTLED = 0.05  # an estimate that still moved by this share of itself in the last quarter has not settled


# ---------------------------------------------------------------------------------------------------------------
# The data and the policies' actions
# ---------------------------------------------------------------------------------------------------------------


class Actions(NamedTuple):
    """What a policy does after each transition and in the states that its value is averaged over, in ±1."""

    next: np.ndarray  # [N, act]
    start: np.ndarray  # [S, act]


@dataclass(frozen=True, eq=False)
class Logs:
    """A dataset made ready to evaluate policies on: packed rows, rewards in units of the data's own returns."""

    dataset: Dataset
    states: States
    rows: np.ndarray  # [N, width], packed
    next_observations: np.ndarray  # [N, obs], as logged
    behaviour: Actions
    normaliser: Normaliser
    unit: float  # one unit of the critics in units of reward
    start: float  # where critics start, in their units: the value of a log whose every row is like its average one

    @classmethod
    def of(cls, dataset: Dataset, states: States, options: FQEOptions) -> Logs:
        transitions = dataset.transitions(discount=options.discount)
        if len(transitions.rewards) > options.max_rows:
            rng = np.random.default_rng(options.seed)
            kept = np.sort(rng.choice(len(transitions.rewards), options.max_rows, replace=False))
            transitions = type(transitions)(*(array[kept] for array in transitions))
        returns = returns_to_go(dataset, options.discount).returns
        unit = float(np.sqrt(np.square(returns).mean())) or 1.0
        normaliser = Normaliser.of(dataset.observations)
        layout = Layout(dataset.observation_size, dataset.action_size)
        rows: Any = pack(transitions._replace(rewards=transitions.rewards / unit), layout, normaliser, options.discount)
        batch = layout.unpack(rows)
        start = float(batch.rewards.mean() / (1 - options.discount * batch.masks.mean()))
        logged = dataset.scale_actions(dataset.actions[states.rows])
        behaviour = Actions(transitions.next_actions, logged)
        return cls(dataset, states, rows, transitions.next_observations, behaviour, normaliser, unit, start)

    @property
    def layout(self) -> Layout:
        return Layout(self.dataset.observation_size, self.dataset.action_size)

    def actions_of(self, policy: Policy, seed: int) -> Actions:
        """A policy's actions, from fixed noise where it samples, in the units of the critics."""
        rng = np.random.default_rng(seed)
        start = self.dataset.observations[self.states.rows]
        return Actions(*(self._act(policy, observations, rng) for observations in (self.next_observations, start)))

    def _act(self, policy: Policy, observations: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return self.dataset.scale_actions(act_on_device(policy, observations, rng))


def act_on_device(policy: Policy, observations: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """`policy.act` in large batches on the default device; noise is drawn batch by batch from `rng`."""
    program = _acting(policy.kind, json.dumps(policy.settings))
    bounds = policy.observation_mean, policy.observation_std, policy.action_low, policy.action_high
    drawn = sum(math.prod(size or 1 for size in draw.shape) for draw in policy.noise().values())  # for each row
    largest = min(ACT_ROWS, max(1, ACT_NUMBERS // max(drawn, 1)))
    parts = np.array_split(observations, -(-len(observations) // largest))
    return np.concatenate(
        [program(policy.arrays, bounds, part, sample(policy.noise(), len(part), rng)) for part in parts]
    )


@cache
def _acting(kind: str, settings: str) -> Callable[..., Any]:
    """The compiled form of one kind of policy, for all weights of one shape."""

    def act(arrays: Any, bounds: Any, observations: Array, noise: Any) -> Array:
        mean, std, low, high = bounds
        return whole_act(Policy(kind, arrays, json.loads(settings), mean, std, low, high), observations, noise)

    return jax.jit(act)


def attainable(rewards: np.ndarray, can_end: bool, discount: float) -> tuple[float, float]:
    """The lowest and highest value that any policy can have if rewards stay within those of the log."""
    low, high = float(rewards.min()), float(rewards.max())
    for_ever = low / (1 - discount), high / (1 - discount)
    if not can_end:
        return for_ever
    return min(low, for_ever[0]), max(high, for_ever[1])


def check_fits(name: str, policy: Policy, dataset: Dataset) -> None:
    sizes = policy.observation_size, policy.action_size
    if sizes != (dataset.observation_size, dataset.action_size):
        raise AspcError(
            f"{name} takes {sizes[0]} observation and gives {sizes[1]} action numbers, but {dataset.name} has "
            f"{dataset.observation_size} and {dataset.action_size}; choose the dataset with --dataset."
        )
    for key in ("observations", "actions"):
        field = f"{key[:-1]}_names"
        known, found = tuple(policy.info.get(field, ())), getattr(dataset, field)
        if known and found and known != found:
            raise AspcError(
                f"{name} was trained on {key} {printable(', '.join(known))}, but {dataset.name} has "
                f"{printable(', '.join(found))}; choose its columns in the policy's order, for example with "
                f"--map {key}={printable(','.join(known))}."
            )


# ---------------------------------------------------------------------------------------------------------------
# The compiled evaluation
# ---------------------------------------------------------------------------------------------------------------


class FQEState(NamedTuple):
    critics: Ensemble
    critics_target: Ensemble
    critics_opt: Any


@dataclass(frozen=True)
class FQE:
    """The evaluation of several policies as one program; every leaf of its state has a leading axis of policies."""

    options: FQEOptions
    spec: Spec
    layout: Layout
    vectorise: bool
    """Policies side by side (`vmap`: best on an accelerator) or one after the other (best on a CPU)."""

    def adam(self) -> Adam:
        return Adam(cosine_decay(self.options.learning_rate, self.options.steps))

    def init(self, policies: int, start: float) -> FQEState:
        """The same fresh networks for every policy. They start at the data's value: where the data says nothing critics
        stay near their start, and with costs a policy that does what nobody did would be the best if that were 0."""
        hidden = [self.options.hidden_dim] * self.options.hidden_layers

        def make(key: Any) -> Critic:
            inputs = self.spec.obs_dim + self.spec.act_dim
            net = mlp(key, inputs, hidden, 1, init=robust_critic_init, layer_norm=True)
            return Critic(eqx.tree_at(lambda net: net.layers[-1].bias, net, jnp.full(1, start)))

        critics = ensemble(make, jax.random.key(self.options.seed), self.options.critics)
        state = FQEState(critics, critics, self.adam().init(critics))
        return jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], policies, 0), state)

    def over_policies(self, one: Callable[[Any], Any], inputs: Any) -> Any:
        return jax.vmap(one)(inputs) if self.vectorise else jax.lax.map(one, inputs)

    @partial(jax.jit, static_argnames=("self", "steps"), donate_argnames=("state",))
    def advance(
        self,
        state: FQEState,
        table: Float[Array, "rows width"],
        next_actions: Float[Array, "policies rows act"],
        first_step: Int[Array, ""],
        *,
        steps: int,
    ) -> FQEState:
        """`steps` minibatches for every policy. Which rows they hold depends on the step alone."""
        key = jax.random.key(self.options.seed + 1)

        def one_policy(inputs: tuple[FQEState, Array]) -> FQEState:
            state, actions = inputs

            def one_step(state: FQEState, step: Array) -> tuple[FQEState, None]:
                rows = jax.random.randint(jax.random.fold_in(key, step), (self.options.batch_size,), 0, len(table))
                batch = self.layout.unpack(table[rows])
                next_q = state.critics_target(batch.next_observations, actions[rows])  # [critics, batch]
                y = bootstrap(batch, self.options.discount, next_q)
                fit = fit_critics(self.adam(), state.critics, state.critics_opt, batch, y)
                target = polyak(state.critics_target, fit.params, self.options.tau)
                return FQEState(fit.params, target, fit.opt_state), None

            return jax.lax.scan(one_step, state, first_step + jnp.arange(steps))[0]

        return self.over_policies(one_policy, (state, next_actions))

    @partial(jax.jit, static_argnames=("self",))
    def values(
        self, state: FQEState, observations: Float[Array, "states obs"], actions: Float[Array, "policies states act"]
    ) -> Float[Array, "policies critics states"]:
        """Q(s, π(s)) of every policy by each of its (target) critics."""
        return self.over_policies(lambda x: x[0].critics_target(observations, x[1]), (state, actions))

    def run(
        self, logs: Logs, actions: list[Actions], show: Callable[[int, np.ndarray], None]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Values [policies, critics, states] at the end, and mean values [policies, looks] on the way."""
        table = jnp.asarray(logs.rows)
        next_actions, start_actions = (jnp.asarray(np.stack(x)) for x in zip(*actions, strict=True))
        start = jnp.asarray(logs.normaliser(logs.dataset.observations[logs.states.rows]))
        state, step, history = self.init(len(actions), logs.start), 0, []
        chunk = max(1, -(-self.options.steps // LOOKS))
        while step < self.options.steps:
            size = min(chunk, self.options.steps - step)
            state = self.advance(state, table, next_actions, jnp.asarray(step), steps=size)
            step += size
            values = np.asarray(self.values(state, start, start_actions), np.float64) * logs.unit
            history.append(values.mean((1, 2)))
            show(step, history[-1])
        return values, np.stack(history, 1)


# ---------------------------------------------------------------------------------------------------------------
# The answer
# ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Estimate:
    """What one policy is estimated to be worth: its discounted return, in units of reward."""

    name: str
    value: float
    low: float  # of the bootstrap interval over episodes
    high: float
    critics: list[float]  # the same value by each critic alone
    history: list[float]  # on the way
    first_in: float  # share of the resamples of episodes in which it is the best of the policies
    trouble: str | None  # why not to believe it: it diverged, or has not settled

    @property
    def diverged(self) -> bool:
        """Whether it is not finite, or more than any policy can earn with the logged rewards."""
        return self.trouble is not None and self.trouble.startswith("diverged")


@dataclass(frozen=True, eq=False)
class Ranking:
    """Policies from best to worst (those that diverged last), beside the data's own value."""

    dataset: str
    discount: float
    states: int
    policies: list[Estimate]
    behaviour: Estimate
    monte_carlo: dict[str, float] | None  # the data's own discounted return at the same states, no model in it

    @property
    def best(self) -> Estimate:
        """The estimate of the policy that is ranked first; an error where all of them diverged."""
        if self.policies[0].diverged:
            raise AspcError("The evaluation of every policy diverged, so none can be chosen; try a smaller --discount.")
        return self.policies[0]


def fitted_q_evaluation(
    policies: Mapping[str, Policy],
    dataset: Dataset,
    states: States,
    options: FQEOptions = FQEOptions(),  # noqa: B008 (frozen)
    progress: Any = None,
    vectorise: bool | None = None,
) -> Ranking:
    """Estimate the discounted return of policies, and of the behaviour that made the data, and rank them.

    `states` says where the returns begin: `choose_states(dataset, "auto")` takes the first states of episodes. The
    estimate of the behaviour can be held against the logged returns (`Ranking.monte_carlo`): where the two disagree,
    believe none of it. docs/trust.md says how far to believe the rest.

    Actions are cut at the dataset's bounds, which may be those of the machine. Where they were only guessed from data
    that the policies were not trained on, `aspc.assessment.trained_runs.with_bounds_of` makes room for what the
    policies do, as the command does.
    """
    if not isinstance(policies, Mapping):
        raise AspcError("fitted_q_evaluation takes policies by name, for example {'mine': policy}.")
    for name, policy in policies.items():
        check_fits(name, policy, dataset)
    logs = Logs.of(dataset, states, options)
    vectorise = on_accelerator() if vectorise is None else vectorise
    fqe = FQE(options, Spec(dataset.observation_size, dataset.action_size), logs.layout, vectorise)
    at_once = max(1, TABLE_BYTES // max(logs.behaviour.next.nbytes, 1))
    names = [BEHAVIOUR, *policies]
    values, history = [], []
    for first in range(0, len(names), at_once):
        group = names[first : first + at_once]
        actions = []
        for name in group:
            if progress is not None:
                progress.show(first * options.steps // len(names), policy=name)
            actions.append(logs.behaviour if name == BEHAVIOUR else logs.actions_of(policies[name], options.seed))

        def show(step: int, means: np.ndarray, first: int = first, count: int = len(group)) -> None:
            if progress is not None:
                done = (first * options.steps + count * step) // len(names)
                progress.show(done, estimates=f"{means.min():.4g} to {means.max():.4g}")

        group_values, group_history = fqe.run(logs, actions, show)
        values.append(group_values)
        history.append(group_history)
    return rank(names, np.concatenate(values), np.concatenate(history), dataset, states, options)


def rank(
    names: list[str],
    values: np.ndarray,
    history: np.ndarray,
    dataset: Dataset,
    states: States,
    options: FQEOptions,
) -> Ranking:
    """The ranking from values [names, critics, states]; the first name is the behaviour's."""
    limits = attainable(dataset.rewards, bool(dataset.terminals.any()), options.discount)
    troubles = [trouble(history[i], values[i].mean(1), limits) for i in range(len(names))]
    sound = np.asarray([t is None or not t.startswith("diverged") for t in troubles])
    means = resampled_means(np.where(sound[:, None], values.mean(1), 0.0), states.groups)
    contest = np.where(sound[1:, None], means[1:], -np.inf)
    firsts = np.bincount(contest.argmax(0), minlength=len(names) - 1) / contest.shape[1] * sound[1:].any()
    limits_of = interval(means)
    estimates = [
        Estimate(
            name,
            float(values[i].mean()),
            float(limits_of[i, 0]) if sound[i] else np.nan,
            float(limits_of[i, 1]) if sound[i] else np.nan,
            values[i].mean(1).tolist(),
            history[i].tolist(),
            float(firsts[i - 1]) if i else 0.0,
            troubles[i],
        )
        for i, name in enumerate(names)
    ]
    order = sorted(estimates[1:], key=lambda e: (e.diverged, -e.value))
    return Ranking(
        dataset.name, options.discount, len(states.rows), order, estimates[0], monte_carlo(dataset, states, options)
    )


def trouble(history: np.ndarray, critics: np.ndarray, limits: tuple[float, float]) -> str | None:
    """Why an estimate should not be believed, if something says so."""
    if not (np.isfinite(history).all() and np.isfinite(critics).all()):
        return "diverged: the critics became NaN or infinite"
    margin = 0.05 * (limits[1] - limits[0]) + 0.01 * max(map(abs, limits)) + 1e-9  # critics are no exact numbers
    if critics.min() < limits[0] - margin or critics.max() > limits[1] + margin:
        return f"diverged: no policy can be worth it, values lie between {limits[0]:.4g} and {limits[1]:.4g}"
    before = history[int(0.75 * (len(history) - 1))]
    if abs(history[-1] - before) > UNSETTLED * max(abs(history[-1]), 0.01 * (limits[1] - limits[0])):
        return "has not settled: give more --steps"
    return None


def monte_carlo(dataset: Dataset, states: States, options: FQEOptions) -> dict[str, float] | None:
    """The mean logged discounted return at the states whose return the log shows (nearly) whole; None without any."""
    returns = returns_to_go(dataset, options.discount)
    shown = returns.trusted[states.rows]
    if not shown.any():
        return None
    values = returns.returns[states.rows[shown]]
    _, groups = np.unique(states.groups[shown], return_inverse=True)
    low, high = interval(resampled_means(values[None], groups))[0]
    return {
        "value": float(values.mean()),
        "low": float(low),
        "high": float(high),
        "states": int(shown.sum()),
        "of": len(shown),
    }
