"""Fitted-Q evaluation: estimating the value of a policy from logs alone.

    Q_k(s, a) → r + γ·(1 − done)·Q'_k(s', π(s')),      J(π) = E[Q(s₀, π(s₀))] over the first states of episodes

A policy is fixed during its evaluation, so its actions π(s') and π(s₀) are computed once, and an evaluation is a scan
over minibatches of one packed table. All policies see the same minibatches and the same initial networks, so
differences between estimates are due to the policies. Each critic learns from its own target, so the spread
of the critics shows how well the data determines the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from aspc.algorithms.interface import Spec
from aspc.algorithms.td_learning import bootstrap, fit_critics, polyak
from aspc.assessment.device_policy import act_after_rows, act_on_rows, check_fits, longest_history
from aspc.assessment.fqe_options import FQEOptions
from aspc.assessment.ranking import Ranking, rank
from aspc.assessment.returns import States, returns_to_go
from aspc.data import Dataset
from aspc.data.history import stack_dataset
from aspc.errors import AspcError
from aspc.history import NEWEST_ONLY, History
from aspc.networks import Critic, Ensemble, ensemble, mlp, robust_critic_init
from aspc.optim import Adam, cosine_decay
from aspc.policy import Policy
from aspc.training.compiled_loop import on_accelerator
from aspc.training.normalizer import ObservationNormalizer
from aspc.training.packed_table import Layout, pack

BEHAVIOR = "behavior (the data)"
TABLE_BYTES = 2**30  # maximum size of the precomputed actions on the device
Inputs = TypeVar("Inputs")
Outputs = TypeVar("Outputs")
HISTORY_LENGTH = 20  # number of estimates recorded during the fit


# ---------------------------------------------------------------------------------------------------------------
# The data and the policies' actions
# ---------------------------------------------------------------------------------------------------------------


class PolicyActions(NamedTuple):
    """A policy's actions, scaled to [-1, 1].

    One array is for the next state of each transition, the other for the states over which the value is averaged.
    """

    next: np.ndarray  # [N, act]
    start: np.ndarray  # [S, act]


@dataclass(frozen=True, eq=False)
class PackedLogs:
    """A dataset packed for policy evaluation, with rewards scaled by the magnitude of its returns."""

    dataset: Dataset
    states: States
    stacked: Dataset  # the dataset with stacked observations, the states of the critics
    rows: np.ndarray  # [N, width], packed
    row_numbers: np.ndarray  # [N]: the rows of the dataset where the transitions begin
    next_observations: np.ndarray  # [N, obs], as logged, not stacked
    behavior: PolicyActions
    normalizer: ObservationNormalizer
    unit: float  # reward per unit of the critics' output
    initial_value: float  # initial output of the critics: the value if every row were average

    @classmethod
    def from_dataset(
        cls, dataset: Dataset, states: States, options: FQEOptions, history: History = NEWEST_ONLY
    ) -> PackedLogs:
        """Pack a dataset with this history, or `options.max_rows` random transitions if the dataset is larger."""
        stacked = stack_dataset(dataset, history)
        transitions, row_numbers = stacked.transitions(discount=options.discount), stacked.transition_rows()[0]
        if len(transitions.rewards) > options.max_rows:
            rng = np.random.default_rng(options.seed)
            kept = np.sort(rng.choice(len(transitions.rewards), options.max_rows, replace=False))
            transitions = type(transitions)(*(array[kept] for array in transitions))
            row_numbers = row_numbers[kept]
        returns = returns_to_go(dataset, options.discount).returns
        unit = float(np.sqrt(np.square(returns).mean())) or 1.0
        normalizer = ObservationNormalizer.of(dataset.observations).stacked(history, dataset.action_size)
        layout = Layout(stacked.observation_size, stacked.action_size)
        rows: Any = pack(transitions._replace(rewards=transitions.rewards / unit), layout, normalizer, options.discount)
        batch = layout.unpack(rows)
        initial_value = float(batch.rewards.mean() / (1 - options.discount * batch.masks.mean()))
        logged = dataset.scale_actions(dataset.actions[states.rows])
        behavior = PolicyActions(transitions.next_actions, logged)
        following = transitions.next_observations[:, : dataset.observation_size]
        return cls(dataset, states, stacked, rows, row_numbers, following, behavior, normalizer, unit, initial_value)

    @property
    def layout(self) -> Layout:
        return Layout(self.stacked.observation_size, self.stacked.action_size)

    def actions_of(self, policy: Policy, seed: int) -> PolicyActions:
        """Return a policy's actions, scaled to [-1, 1]. Stochastic policies get fixed noise.

        The policy's memory is replayed from the logged steps before each state. If it holds the previous action,
        this is exact: Q(s, a) includes the action a before s', so the next action is a function of (s, a, s').
        """
        rng = np.random.default_rng(seed)
        next_actions = act_after_rows(policy, self.dataset, self.row_numbers, self.next_observations, rng)
        start_actions = act_on_rows(policy, self.dataset, self.states.rows, rng)
        return PolicyActions(self.dataset.scale_actions(next_actions), self.dataset.scale_actions(start_actions))


# ---------------------------------------------------------------------------------------------------------------
# The compiled evaluation
# ---------------------------------------------------------------------------------------------------------------


class FQEState(NamedTuple):
    """Critics, their targets and the state of their optimizer."""

    critics: Ensemble
    critics_target: Ensemble
    critics_opt: Any


@dataclass(frozen=True)
class FQE:
    """The evaluation of several policies as one program; every leaf of its state has a leading axis of policies."""

    options: FQEOptions
    spec: Spec
    layout: Layout
    vectorize: bool
    """Evaluate policies in parallel (`vmap`, faster on an accelerator) or one after the other (faster on a CPU)."""

    def adam(self) -> Adam:
        """Return the critics' optimizer."""
        return Adam(cosine_decay(self.options.learning_rate, self.options.steps))

    def init(self, policies: int, initial_value: float) -> FQEState:
        """Initialize the same networks for every policy.

        Critics start at the average value of the data, because they stay near their initial value where data is absent.
        If they started at 0 and rewards were negative, policies with actions that were never logged would rank first.
        """
        hidden = [self.options.hidden_dim] * self.options.hidden_layers

        def make(key: Any) -> Critic:
            inputs = self.spec.obs_dim + self.spec.act_dim
            net = mlp(key, inputs, hidden, 1, init=robust_critic_init, layer_norm=True)
            return Critic(eqx.tree_at(lambda net: net.layers[-1].bias, net, jnp.full(1, initial_value)))

        critics = ensemble(make, jax.random.key(self.options.seed), self.options.critics)
        state = FQEState(critics, critics, self.adam().init(critics))
        repeated: FQEState = jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], policies, 0), state)
        return repeated

    def over_policies(self, function: Callable[[Inputs], Outputs], inputs: Inputs) -> Outputs:
        """Apply a function to the inputs of every policy."""
        outputs: Outputs = jax.vmap(function)(inputs) if self.vectorize else jax.lax.map(function, inputs)
        return outputs

    @partial(jax.jit, static_argnames=("self", "steps"), donate_argnames=("state",))
    def advance(
        self,
        state: FQEState,
        table: Float[Array, "rows width"],
        next_actions: Float[Array, "policies rows act"],
        first_step: Int[Array, ""],
        weights: Float[Array, "rows critics"] | None = None,
        *,
        steps: int,
    ) -> FQEState:
        """Train on `steps` minibatches for every policy. The rows of a minibatch depend only on the step.

        `weights[i, j]` is the weight of row i in the loss of critic j. Rows with weight 0 are ignored.
        """
        key = jax.random.key(self.options.seed + 1)

        def one_policy(inputs: tuple[FQEState, Array]) -> FQEState:
            state, actions = inputs

            def one_step(state: FQEState, step: Array) -> tuple[FQEState, None]:
                rows = jax.random.randint(jax.random.fold_in(key, step), (self.options.batch_size,), 0, len(table))
                batch = self.layout.unpack(table[rows])
                next_q = state.critics_target(batch.next_observations, actions[rows])  # [critics, batch]
                y = bootstrap(batch, self.options.discount, next_q)
                weight = 1.0 if weights is None else weights[rows].T
                fit = fit_critics(self.adam(), state.critics, state.critics_opt, batch, y, weight)
                target = polyak(state.critics_target, fit.params, self.options.tau)
                return FQEState(fit.params, target, fit.opt_state), None

            return jax.lax.scan(one_step, state, first_step + jnp.arange(steps))[0]

        return self.over_policies(one_policy, (state, next_actions))

    @partial(jax.jit, static_argnames=("self",))
    def values(
        self, state: FQEState, observations: Float[Array, "states obs"], actions: Float[Array, "policies states act"]
    ) -> Float[Array, "policies critics states"]:
        """Return Q(s, π(s)) for every policy and each of its target critics."""

        def one_policy(inputs: tuple[FQEState, Array]) -> Array:
            return inputs[0].critics_target(observations, inputs[1])

        return self.over_policies(one_policy, (state, actions))

    def fit(
        self,
        logs: PackedLogs,
        actions: list[PolicyActions],
        show: Callable[[int, np.ndarray], None],
        weights: np.ndarray | None = None,
    ) -> tuple[FQEState, np.ndarray]:
        """Fit the critics of all policies.

        Args:
            logs: The data.
            actions: The actions of every policy.
            show: Called with the step and the mean values, at most `HISTORY_LENGTH` times.
            weights: Weight [rows, critics] of each row in the loss of each critic.

        Returns:
            The critics, and mean values [policies, time] during the fit.
        """
        table, row_weights = jnp.asarray(logs.rows), None if weights is None else jnp.asarray(weights, jnp.float32)
        next_actions = jnp.asarray(np.stack([policy.next for policy in actions]))
        state, step, history = self.init(len(actions), logs.initial_value), 0, []
        chunk = max(1, -(-self.options.steps // HISTORY_LENGTH))
        while step < self.options.steps:
            size = min(chunk, self.options.steps - step)
            state = self.advance(state, table, next_actions, jnp.asarray(step), row_weights, steps=size)
            step += size
            history.append(self.start_values(logs, actions, state).mean((1, 2)))
            show(step, history[-1])
        return state, np.stack(history, 1)

    def start_values(self, logs: PackedLogs, actions: list[PolicyActions], state: FQEState) -> np.ndarray:
        """Return the values [policies, critics, states] of the states to average over, in units of reward."""
        start = jnp.asarray(logs.normalizer(logs.stacked.observations[logs.states.rows]))
        start_actions = jnp.asarray(np.stack([policy.start for policy in actions]))
        return np.asarray(self.values(state, start, start_actions), np.float64) * logs.unit


# ---------------------------------------------------------------------------------------------------------------
# The evaluation of several policies
# ---------------------------------------------------------------------------------------------------------------


def fitted_q_evaluation(
    policies: Mapping[str, Policy],
    dataset: Dataset,
    states: States,
    options: FQEOptions = FQEOptions(),  # noqa: B008 (frozen)
    progress: Any = None,
    vectorize: bool | None = None,
) -> Ranking:
    """Rank policies by estimated discounted return, with an estimate for the behavior that produced the data.

    The estimate of the behavior can be compared with the logged returns (`Ranking.monte_carlo`). If the two disagree,
    do not rely on the other estimates. docs/trust.md explains the limits of the method.

    Actions are clipped to the dataset's bounds, which can be the physical limits of the machine. If the bounds were
    inferred from data on which the policies were not trained, widen them with
    `aspc.assessment.trained_runs.with_bounds_of`, as `aspc fqe` does.

    Args:
        policies: Policies by name.
        dataset: The logs.
        states: The states where the returns begin; `choose_states(dataset, "auto")` takes the first of each episode.
        options: Options for fitting the critics.
        progress: A progress bar (`aspc.ui.Progress`).
        vectorize: Evaluate policies in parallel. Default: True only on an accelerator.

    Raises:
        AspcError: If a policy's sizes or columns differ from the dataset's.
    """
    if not isinstance(policies, Mapping):
        raise AspcError("fitted_q_evaluation takes policies by name, for example {'mine': policy}.")
    for name, policy in policies.items():
        check_fits(name, policy, dataset)
    logs = PackedLogs.from_dataset(dataset, states, options, longest_history(policies.values()))
    names, values, history = [], [], []
    for group in fit_in_groups(logs, policies, options, progress, vectorize):
        names += group.names
        values.append(group.fqe.start_values(logs, group.actions, group.state))
        history.append(group.history)
    return rank(names, np.concatenate(values), np.concatenate(history), dataset, states, options)


class FittedGroup(NamedTuple):
    """Policies evaluated by one program, with their actions and critics."""

    names: list[str]
    fqe: FQE
    actions: list[PolicyActions]
    state: FQEState
    history: np.ndarray  # [policies, time]


def fit_in_groups(
    logs: PackedLogs,
    policies: Mapping[str, Policy],
    options: FQEOptions,
    progress: Any = None,
    vectorize: bool | None = None,
    weights: np.ndarray | None = None,
) -> Iterator[FittedGroup]:
    """Fit critics to the behavior, then to the policies, as many at a time as fit into memory.

    See `fitted_q_evaluation` for the arguments, and `FQE.fit` for `weights`.
    """
    vectorize = on_accelerator() if vectorize is None else vectorize
    fqe = FQE(options, Spec(logs.layout.obs_dim, logs.layout.act_dim), logs.layout, vectorize)
    at_once = max(1, TABLE_BYTES // max(logs.behavior.next.nbytes, 1))
    names = [BEHAVIOR, *policies]
    for first in range(0, len(names), at_once):
        group = names[first : first + at_once]
        actions = []
        for name in group:
            if progress is not None:
                progress.show(first * options.steps // len(names), policy=name)
            actions.append(logs.behavior if name == BEHAVIOR else logs.actions_of(policies[name], options.seed))

        def show(step: int, means: np.ndarray, first: int = first, count: int = len(group)) -> None:
            if progress is not None:
                done = (first * options.steps + count * step) // len(names)
                progress.show(done, estimates=f"{means.min():.4g} to {means.max():.4g}")

        state, history = fqe.fit(logs, actions, show, weights)
        yield FittedGroup(group, fqe, actions, state, history)
