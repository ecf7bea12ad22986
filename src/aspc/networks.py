"""Networks: an MLP, the layers it is made of, and an ensemble of equal networks.

A network is a pytree, so `critic(s, actor(s))` reads as the paper writes Q(s, π(s)), and every network takes whole
batches. Layers are Linear → activation → LayerNorm (the norm, where there is one, comes after the activation).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from aspc import kernels

Activation = Callable[[Array], Array]


class Linear(eqx.Module):
    weight: Float[Array, "in out"]
    bias: Float[Array, "out"]

    def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        if kernels.in_force() is not None and x.ndim == 2:
            return kernels.linear(x, self.weight, self.bias)
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
        return uniform(key_w, (fan_in, fan_out), fan_in**-0.5), jnp.full((fan_out,), 0.1, dtype=float)

    return init


robust_critic_init = small_last_init(3e-3)


def glorot_uniform(key: PRNGKeyArray, fan_in: int, fan_out: int, gain: float = 1.0) -> Array:
    return uniform(key, (fan_in, fan_out), gain * (6 / (fan_in + fan_out)) ** 0.5)


def glorot_init(key: PRNGKeyArray, fan_in: int, fan_out: int, last: bool) -> tuple[Array, Array]:
    """Flax's habit in FQL: weights U(±√(6/(fan_in + fan_out))), biases 0."""
    return glorot_uniform(key, fan_in, fan_out), jnp.zeros(fan_out)


def small_glorot_last_init(key: PRNGKeyArray, fan_in: int, fan_out: int, last: bool) -> tuple[Array, Array]:
    """PyTorch's default, but a last layer 100 times smaller than Glorot's: a Gaussian actor that starts near 0."""
    if last:
        return glorot_uniform(key, fan_in, fan_out, gain=0.01), jnp.zeros(fan_out)
    return fan_in_init(key, fan_in, fan_out, last)


def orthogonal_init(key: PRNGKeyArray, fan_in: int, fan_out: int, last: bool) -> tuple[Array, Array]:
    """Orthogonal weights with gain √2 (the last layer: 0.01), biases 0."""
    gain = 0.01 if last else 2**0.5
    return jax.nn.initializers.orthogonal(gain)(key, (fan_in, fan_out)), jnp.zeros(fan_out)


# ---------------------------------------------------------------------------------------------------------------
# The MLP and what is built from it
# ---------------------------------------------------------------------------------------------------------------


class MLP(eqx.Module):
    """Linear → activation (→ LayerNorm), `len(hidden)` times, then Linear."""

    layers: tuple[Linear, ...]
    norms: tuple[LayerNorm, ...]
    activation: Activation = eqx.field(static=True)
    member: int | None = eqx.field(static=True, default=None)
    """Which network this is, if the arrays are still those of an ensemble: they are cut where they are used."""

    def __call__(
        self, x: Float[Array, "*batch in"], dropout: Float[Array, "layers *batch hidden"] | None = None
    ) -> Float[Array, "*batch out"]:
        """`dropout` multiplies the hidden layers: 0 where a unit is dropped, 1/(1 − p) where it is kept."""
        if dropout is None and (fused := self._fused(x)) is not None:
            return fused
        if self.member is not None:
            return self._cut(x, dropout)
        for i, layer in enumerate(self.layers[:-1]):
            x = self.activation(layer(x))
            if self.norms:
                x = self.norms[i](x)
            if dropout is not None:
                x = x * dropout[i]
        return self.layers[-1](x)

    def _cut(self, x: Array, dropout: Array | None) -> Array:
        """The plain network of a member."""
        everyone = dataclasses.replace(self, member=None)
        if isinstance(kernels.in_force(), kernels.Products):
            # The others' products run beside its own, where a copy of its weights would come before.
            outputs: Array = jax.vmap(lambda net: net(x, dropout))(everyone)
            return outputs[self.member]
        own: MLP = jax.tree.map(lambda leaf: leaf[self.member], everyone)
        return own(x, dropout)

    def _fused(self, x: Array) -> Array | None:
        """The same by kernels that compute all layers at once, where these are in force and fit."""
        layers = kernels.Layers(
            tuple(layer.weight for layer in self.layers),
            tuple(layer.bias for layer in self.layers),
            tuple(norm.scale for norm in self.norms),
            tuple(norm.bias for norm in self.norms),
        )
        tiles = kernels.tiles_for(layers, x, self.activation)
        if tiles is None:
            return None
        return kernels.mlp(kernels.Setting(tiles, self.norms[0].eps if self.norms else 0.0, self.member), layers, x)


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
    max_action: float = eqx.field(static=True, default=1.0)

    def __call__(
        self, observations: Float[Array, "*batch obs"], dropout: Float[Array, "layers *batch hidden"] | None = None
    ) -> Float[Array, "*batch act"]:
        return self.max_action * jnp.tanh(self.net(observations, dropout))


LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class GaussianActor(eqx.Module):
    """N(mean(s), σ²) with one σ for all states; calling it gives the mean."""

    mean: DeterministicActor
    log_std: Float[Array, "act"]

    def __call__(
        self, observations: Float[Array, "*batch obs"], dropout: Float[Array, "layers *batch hidden"] | None = None
    ) -> Float[Array, "*batch act"]:
        return self.mean(observations, dropout)

    def log_prob(self, mean: Float[Array, "*batch act"], actions: Float[Array, "*batch act"]) -> Float[Array, "*batch"]:
        """log N(a; mean, σ²), summed over action dimensions."""
        log_std = jnp.clip(self.log_std, -20.0, 2.0)
        z = (actions - mean) * jnp.exp(-log_std)
        return (-0.5 * jnp.square(z) - log_std - LOG_SQRT_2PI).sum(-1)


class SquashedGaussianActor(eqx.Module):
    """max_action · tanh(x), x ~ N(mean(s), σ(s)²): SAC's policy, with a trained multiplier and offset of log σ."""

    net: MLP
    log_std_multiplier: Float[Array, ""]
    log_std_offset: Float[Array, ""]
    max_action: float = eqx.field(static=True, default=1.0)

    def sample(
        self, observations: Float[Array, "batch obs"], epsilon: Float[Array, "batch *samples act"]
    ) -> tuple[Float[Array, "batch *samples act"], Float[Array, "batch *samples"]]:
        """Actions from standard normal draws (several for each state, if `epsilon` has them) and their log π."""
        mean, log_std = jnp.split(self.net(observations), 2, axis=-1)
        log_std = jnp.clip(self.log_std_multiplier * log_std + self.log_std_offset, -20.0, 2.0)
        if epsilon.ndim > mean.ndim:
            mean, log_std = mean[:, None], log_std[:, None]
        x = mean + jnp.exp(log_std) * epsilon
        log_normal = -0.5 * jnp.square(epsilon) - log_std - LOG_SQRT_2PI
        log_tanh_slope = 2 * (math.log(2) - x - jax.nn.softplus(-2 * x))  # log(1 − tanh²x), stable for large |x|
        return self.max_action * jnp.tanh(x), (log_normal - log_tanh_slope).sum(-1)


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


class Flow(eqx.Module):
    """A vector for each row of several inputs side by side: a velocity v(s, x, t), a one-step policy μ(s, z)."""

    net: MLP

    def __call__(self, *inputs: Float[Array, "*batch _"]) -> Float[Array, "*batch out"]:
        return self.net(jnp.concatenate(inputs, -1))


class NoiseModel(eqx.Module):
    """ε(x, t, s): the noise in a noisy action x at diffusion step t, with a sinusoidal embedding of t."""

    time_net: MLP
    net: MLP
    max_action: float = eqx.field(static=True, default=1.0)

    def embed(self, t: Int[Array, "*batch"]) -> Float[Array, "*batch time"]:
        half = self.time_net.layers[0].weight.shape[0] // 2
        frequencies = np.exp(-np.arange(half) * math.log(10_000) / (half - 1))
        angles = t[..., None] * jnp.asarray(frequencies, dtype=self.time_net.layers[0].weight.dtype)
        return self.time_net(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1))

    def __call__(
        self, x: Float[Array, "batch act"], t: Int[Array, "*batch"], observations: Float[Array, "batch obs"]
    ) -> Float[Array, "batch act"]:
        """`t` is one step for each row, or one for all."""
        time = self.embed(t)
        time = jnp.broadcast_to(time, (*x.shape[:-1], time.shape[-1]))
        return self.net(jnp.concatenate([x, time, observations], -1))


class VAE(eqx.Module):
    """A conditional variational autoencoder of actions."""

    encoder: MLP
    decoder: MLP
    max_action: float = eqx.field(static=True, default=1.0)

    def encode(
        self, observations: Float[Array, "batch obs"], actions: Float[Array, "batch act"]
    ) -> tuple[Float[Array, "batch latent"], Float[Array, "batch latent"]]:
        """Mean and log σ of the latent."""
        mean, log_std = jnp.split(self.encoder(jnp.concatenate([observations, actions], -1)), 2, axis=-1)
        return mean, jnp.clip(log_std, -4.0, 15.0)

    def decode(
        self, observations: Float[Array, "batch obs"], latent: Float[Array, "batch latent"]
    ) -> Float[Array, "batch act"]:
        return self.max_action * jnp.tanh(self.decoder(jnp.concatenate([observations, latent], -1)))


class Ensemble(eqx.Module):
    """Equal networks with a leading axis on every array: `ensemble(s, a)` is [members, batch]."""

    members: Any

    def __call__(self, *inputs: Array) -> Array:
        return jax.vmap(lambda member: member(*inputs))(self.members)

    def __getitem__(self, index: int) -> Any:
        """One member to call, e.g. `critics[0]` is the paper's Q."""

        def one(part: Any) -> Any:
            return dataclasses.replace(part, member=index) if isinstance(part, MLP) else part[index]

        return jax.tree.map(one, self.members, is_leaf=lambda part: isinstance(part, MLP))

    def cut(self, index: int) -> Any:
        """One member with arrays of its own."""
        return jax.tree.map(lambda leaf: leaf[index], self.members)


def ensemble(make: Callable[[PRNGKeyArray], Any], key: PRNGKeyArray, size: int = 2) -> Ensemble:
    """`size` networks made by `make`, each from its own key."""
    return Ensemble(jax.vmap(make)(jax.random.split(key, size)))


def polyak(target: Any, online: Any, tau: float | Array) -> Any:
    """target ← (1 − τ)·target + τ·online."""
    return jax.tree.map(lambda t, o: (1 - tau) * t + tau * o, target, online)
