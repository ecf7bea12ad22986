"""Networks and formulas for discrete actions: a product policy, and critics with one output per combination.

The dimensions of an action, its *factors*, are discrete (one of several options) or continuous. A *combination* is one
option for each discrete factor; j is the index of a combination. Actions are the columns of `aspc.action_space`,
rescaled to [-1, 1]: 1 for the chosen option, −1 for the others.

    policy       π(a|s) = Π_f π_f(a_f|s) for discrete factors (softmax over allowed options);   π_c(s) = tanh(·)
                 for continuous factors
    constraint   c(s, a) = −Σ_f log π_f(a_f|s) + mean (π_c(s) − a_c)²                  cross-entropy plus squared error
    value        E_π[Q](s) = Σ_j π(j|s)·Q(s, π_c(s))[j]

The ASPC paper covers only continuous actions. The unweighted sum in c and the deterministic policy for continuous
factors are this library's interpretation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from aspc.action_space import factor_slices, joint_options
from aspc.algorithms.component_names import NetworkChoice
from aspc.algorithms.components import make_network
from aspc.algorithms.interface import PolicyExport, Spec
from aspc.algorithms.policy_tracing import traced_policy
from aspc.algorithms.td_learning import mlp_arrays, mlp_settings
from aspc.custom_networks import CustomNetwork
from aspc.errors import AspcError
from aspc.networks import MLP, Ensemble, ensemble
from aspc.policy_choices import FORBIDDEN

MAX_COMBINATIONS = 1_024


class Factors(eqx.Module):
    """The static description of an action: the options per factor (0 if continuous) and the masked columns."""

    sizes: tuple[int, ...] = eqx.field(static=True)
    masked: tuple[int, ...] = eqx.field(static=True)

    @classmethod
    def of(cls, spec: Spec) -> Factors:
        """Return the factors of a task's actions, which are all continuous if the task does not list any.

        Raises:
            AspcError: There are more than `MAX_COMBINATIONS` combinations; the critics need one output for each.
        """
        factors = cls(spec.factors or (0,) * spec.act_dim, spec.masked)
        if (count := int(np.prod([max(size, 1) for size in factors.sizes], dtype=float))) > MAX_COMBINATIONS:
            raise AspcError(
                f"The discrete actions have {count:,} combinations of options, but critics support at most "
                f"{MAX_COMBINATIONS:,}. Select fewer action columns with --map actions=NAMES."
            )
        return factors

    @property
    def options(self) -> np.ndarray:
        """All combinations as actions [combinations, act], with 1 for the chosen options."""
        return joint_options(self.sizes)

    @property
    def number_columns(self) -> np.ndarray:
        """The column indices of continuous factors."""
        blocks = factor_slices(self.sizes)
        return np.array([block.start for size, block in zip(self.sizes, blocks, strict=True) if not size], int)

    @property
    def choice_blocks(self) -> list[slice]:
        """The columns of each discrete factor."""
        return [block for size, block in zip(self.sizes, factor_slices(self.sizes), strict=True) if size]

    def numbers(self, actions: Float[Array, "*batch act"]) -> Float[Array, "*batch numbers"]:
        """Return the continuous factors of actions."""
        return actions[..., self.number_columns]

    def combination(self, actions: Float[Array, "*batch act"]) -> Float[Array, "*batch combinations"]:
        """Return the combinations chosen by actions in [-1, 1], as one-hot vectors."""
        chosen = (actions + 1) / 2
        return self.over_choices(chosen, jnp.multiply, 1.0)

    def over_choices(self, columns: Float[Array, "*batch act"], combine: Any, start: float) -> Array:
        """Reduce the columns of each combination's options with `combine`, to [*batch, combinations]."""
        total: Array = jnp.full((*columns.shape[:-1], len(self.options)), start, columns.dtype)
        for block in self.choice_blocks:
            index = block.start + self.options[:, block].argmax(1)
            total = combine(total, columns[..., index])
        return total

    def allowed(self, observations: Float[Array, "*batch obs"]) -> Bool[Array, "*batch act"]:
        """Return, per column, whether it is allowed by the masks (the last entries of an observation)."""
        allowed = jnp.ones((*observations.shape[:-1], factor_slices(self.sizes)[-1].stop), bool)
        if not self.masked:
            return allowed
        masks = observations[..., observations.shape[-1] - len(self.masked) :] >= 0.5
        return allowed.at[..., np.array(self.masked)].set(masks)

    def allowed_combinations(self, observations: Float[Array, "*batch obs"]) -> Bool[Array, "*batch combinations"]:
        """Return, per combination, whether it is allowed by the masks."""
        return self.over_choices(self.allowed(observations).astype(observations.dtype), jnp.minimum, 1.0) > 0


class ProductPolicy(eqx.Module):
    """π(a|s) with independent factors: softmax over the allowed options if discrete, tanh(·) if continuous."""

    net: MLP | CustomNetwork
    factors: Factors

    def __call__(
        self, observations: Float[Array, "*batch obs"], dropout: Float[Array, "layers *batch hidden"] | None = None
    ) -> Float[Array, "*batch act"]:
        """Return log π_f of every option, and the continuous factors."""
        logits = self.masked_logits(observations, dropout)
        parts = [
            jax.nn.log_softmax(logits[..., block]) if size else jnp.tanh(logits[..., block])
            for size, block in zip(self.factors.sizes, factor_slices(self.factors.sizes), strict=True)
        ]
        return jnp.concatenate(parts, -1)

    def masked_logits(self, observations: Array, dropout: Array | None = None) -> Array:
        """Return the network's outputs, minus `FORBIDDEN` for masked options."""
        logits = self.net(observations, dropout)
        return jnp.where(self.factors.allowed(observations), logits, logits - FORBIDDEN)

    def probabilities(self, outputs: Float[Array, "*batch act"]) -> Float[Array, "*batch combinations"]:
        """Compute π(j|s) of every combination from the outputs of `__call__`."""
        return jnp.exp(self.factors.over_choices(outputs, jnp.add, 0.0))

    def constraint(
        self, outputs: Float[Array, "*batch act"], actions: Float[Array, "*batch act"]
    ) -> Float[Array, "*batch"]:
        """Compute c = −Σ_f log π_f(a_f|s) + mean (π_c(s) − a_c)² from the outputs of `__call__` and logged actions."""
        log_probability = sum(
            ((actions[..., block] + 1) / 2 * outputs[..., block]).sum(-1) for block in self.factors.choice_blocks
        )
        if not len(self.factors.number_columns):
            return -jnp.asarray(log_probability)
        return jnp.square(self.factors.numbers(outputs - actions)).mean(-1) - log_probability


class ChoiceCritic(eqx.Module):
    """Q(s, a): a network that takes the state and the continuous factors, with one output per combination."""

    net: MLP | CustomNetwork
    factors: Factors

    def __call__(
        self, observations: Float[Array, "*batch obs"], actions: Float[Array, "*batch act"]
    ) -> Float[Array, "*batch"]:
        """Return the Q-values of actions in [-1, 1]."""
        values = self.values(observations, self.factors.numbers(actions))
        return (values * self.factors.combination(actions)).sum(-1)

    def values(
        self, observations: Float[Array, "*batch obs"], numbers: Float[Array, "*batch numbers"]
    ) -> Float[Array, "*batch combinations"]:
        """Return the Q-values of all combinations for the given continuous factors."""
        values: Array = self.net(jnp.concatenate([observations, numbers], -1))
        return values


class ChoiceCritics(Ensemble):
    """Twin critics for discrete actions. Call `critics(s, a)` for one action, `values` for all combinations."""

    def values(self, *inputs: Array) -> Float[Array, "critics *batch combinations"]:
        """Return the Q-values of all combinations for each critic."""
        outputs: Array = jax.vmap(lambda member: member.values(*inputs))(self.members)
        return outputs


def make_policy(network: NetworkChoice, key: PRNGKeyArray, spec: Spec, hidden: Sequence[int]) -> ProductPolicy:
    """Initialize a product policy."""
    return ProductPolicy(make_network(network, key, spec.obs_dim, hidden, spec.act_dim), Factors.of(spec))


def make_choice_critics(
    key: PRNGKeyArray, spec: Spec, hidden: Sequence[int], network: NetworkChoice = None, **options: Any
) -> ChoiceCritics:
    """Initialize twin critics: MLPs with the options of `mlp`, or another network."""
    factors = Factors.of(spec)
    inputs, outputs = spec.obs_dim + len(factors.number_columns), len(factors.options)
    members = ensemble(
        lambda k: ChoiceCritic(make_network(network, k, inputs, hidden, outputs, **options), factors), key
    )
    return ChoiceCritics(members.members)


def export_product_policy(policy: ProductPolicy) -> PolicyExport:
    """Export the policy that takes the most probable allowed option of each discrete factor."""
    sizes, masked = policy.factors.sizes, policy.factors.masked
    choices = {"factors": list(sizes), "masked": list(masked), "joint": False}
    settings = mlp_settings(policy.net)
    if isinstance(policy.net, MLP) and settings is not None:
        arrays, settings = mlp_arrays(policy.net), {**settings, **choices}
        return PolicyExport("categorical", arrays, settings, partial(_act, policy), policy.masked_logits)
    return traced_policy(_act, policy, policy.net.in_size)


def export_greedy_policy(critics: ChoiceCritics) -> PolicyExport:
    """Export the policy that takes the allowed combination with the largest mean of the critics' values."""
    net, factors = critics.members.net, critics.members.factors

    def scores(critics: ChoiceCritics, s: Array) -> Array:
        q = critics.values(s, s[:, :0]).mean(0)
        return jnp.where(factors.allowed_combinations(s), q, q - FORBIDDEN)

    def act(critics: ChoiceCritics, s: Array) -> Array:
        chosen = jnp.argmax(scores(critics, s), 1)[:, None] == jnp.arange(len(factors.options))
        is_allowed = factors.allowed_combinations(s)
        columns: Array = 2 * (chosen & is_allowed).astype(s.dtype) @ factors.options - 1
        return columns

    settings = mlp_settings(net)
    if isinstance(net, MLP) and settings is not None:
        choices = {"factors": list(factors.sizes), "masked": list(factors.masked), "joint": True}
        arrays, settings = mlp_arrays(net), {**settings, **choices}
        return PolicyExport("categorical", arrays, settings, partial(act, critics), partial(scores, critics))
    return traced_policy(act, critics, net.in_size)


def _act(policy: ProductPolicy, observations: Array) -> Array:
    """Return actions in [-1, 1] with the most probable allowed options."""
    logits, factors, parts = policy.masked_logits(observations), policy.factors, []
    allowed = factors.allowed(observations).astype(logits.dtype)
    for size, block in zip(factors.sizes, factor_slices(factors.sizes), strict=True):
        chosen = (jnp.argmax(logits[:, block], 1)[:, None] == jnp.arange(size)).astype(logits.dtype)
        parts.append(2 * chosen * allowed[:, block] - 1 if size else jnp.tanh(logits[:, block]))
    return jnp.concatenate(parts, 1)
