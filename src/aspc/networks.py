"""Networks: an MLP, the layers it is made of, and an ensemble of equal networks.

A network is a pytree, so `critic(s, actor(s))` reads as the paper writes Q(s, π(s)), and every network takes whole
batches. Layers are Linear → activation → LayerNorm (the norm, where there is one, comes after the activation).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

Activation = Callable[[Array], Array]


class Linear(eqx.Module):
    weight: Float[Array, "in out"]
    bias: Float[Array, "out"]

    def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        return x @ self.weight + self.bias


class LayerNorm(eqx.Module):
    scale: Float[Array, "dim"]
    bias: Float[Array, "dim"]
    eps: float = eqx.field(static=True, default=1e-5)

    def __call__(self, x: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
        centred = x - x.mean(-1, keepdims=True)
        variance = jnp.square(centred).mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(variance + self.eps) * self.scale + self.bias


# ---------------------------------------------------------------------------------------------------------------
# Initial weights, one rule a lineage of trainers
# ---------------------------------------------------------------------------------------------------------------


class Init(Protocol):
    """(key, fan_in, fan_out, is it the last layer?) → weight [in, out] and bias [out]."""

    def __call__(self, key: PRNGKeyArray, fan_in: int, fan_out: int, last: bool) -> tuple[Array, Array]: ...


def uniform(key: PRNGKeyArray, shape: Sequence[int], bound: float) -> Array:
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)


def fan_in_init(key: PRNGKeyArray, fan_in: int, fan_out: int, last: bool) -> tuple[Array, Array]:
    """PyTorch's default: weights and biases U(±1/√fan_in)."""
    key_w, key_b = jax.random.split(key)
    bound = fan_in**-0.5
    return uniform(key_w, (fan_in, fan_out), bound), uniform(key_b, (fan_out,), bound)


def small_last_init(last_bound: float) -> Init:
    """Hidden weights U(±1/√fan_in), hidden biases 0.1, the last layer U(±last_bound): the robust critic's."""

    def init(key: PRNGKeyArray, fan_in: int, fan_out: int, last: bool) -> tuple[Array, Array]:
        key_w, key_b = jax.random.split(key)
        if last:
            return uniform(key_w, (fan_in, fan_out), last_bound), uniform(key_b, (fan_out,), last_bound)
        return uniform(key_w, (fan_in, fan_out), fan_in**-0.5), jnp.full((fan_out,), 0.1)

    return init


robust_critic_init = small_last_init(3e-3)


# ---------------------------------------------------------------------------------------------------------------
# The MLP and what is built from it
# ---------------------------------------------------------------------------------------------------------------


class MLP(eqx.Module):
    """Linear → activation (→ LayerNorm), `len(hidden)` times, then Linear."""

    layers: tuple[Linear, ...]
    norms: tuple[LayerNorm, ...]
    activation: Activation = eqx.field(static=True)

    def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        for i, layer in enumerate(self.layers[:-1]):
            x = self.activation(layer(x))
            if self.norms:
                x = self.norms[i](x)
        return self.layers[-1](x)


def mlp(
    key: PRNGKeyArray,
    in_dim: int,
    hidden: Sequence[int],
    out_dim: int,
    *,
    init: Init = fan_in_init,
    activation: Activation = jax.nn.relu,
    layer_norm: bool = False,
    layer_norm_eps: float = 1e-5,
) -> MLP:
    """A fresh MLP with the given sizes and rule for its initial weights."""
    sizes = [in_dim, *hidden, out_dim]
    keys = jax.random.split(key, len(sizes) - 1)
    layers = tuple(Linear(*init(keys[i], sizes[i], sizes[i + 1], i == len(hidden))) for i in range(len(sizes) - 1))
    norms = tuple(LayerNorm(jnp.ones(h), jnp.zeros(h), layer_norm_eps) for h in hidden) if layer_norm else ()
    return MLP(layers, norms, activation)


class DeterministicActor(eqx.Module):
    """π(s) = max_action · tanh(MLP(s))."""

    net: MLP
    max_action: float = eqx.field(static=True)

    def __call__(self, observations: Float[Array, "*batch obs"]) -> Float[Array, "*batch act"]:
        return self.max_action * jnp.tanh(self.net(observations))


class Critic(eqx.Module):
    """Q(s, a), one number a row."""

    net: MLP

    def __call__(
        self, observations: Float[Array, "*batch obs"], actions: Float[Array, "*batch act"]
    ) -> Float[Array, "*batch"]:
        return self.net(jnp.concatenate([observations, actions], -1))[..., 0]


class Value(eqx.Module):
    """V(s), one number a row."""

    net: MLP

    def __call__(self, observations: Float[Array, "*batch obs"]) -> Float[Array, "*batch"]:
        return self.net(observations)[..., 0]


class Ensemble(eqx.Module):
    """Equal networks with a leading axis on every array: `ensemble(s, a)` is [members, batch]."""

    members: Any

    def __call__(self, *inputs: Array) -> Array:
        return jax.vmap(lambda member: member(*inputs))(self.members)

    def __getitem__(self, index: int) -> Any:
        """One member, e.g. `critics[0]` is the paper's Q."""
        return jax.tree.map(lambda leaf: leaf[index], self.members)


def ensemble(make: Callable[[PRNGKeyArray], Any], key: PRNGKeyArray, size: int = 2) -> Ensemble:
    """`size` networks made by `make`, each from its own key."""
    return Ensemble(jax.vmap(make)(jax.random.split(key, size)))


def polyak(target: Any, online: Any, tau: float | Array) -> Any:
    """target ← (1 − τ)·target + τ·online."""
    return jax.tree.map(lambda t, o: (1 - tau) * t + tau * o, target, online)
