"""Networks: MLPs, actors, critics and other networks built from them, and ensembles.

A network is a pytree, so `critic(s, actor(s))` reads like the paper's Q(s, π(s)). Every network takes whole batches.
Layers are Linear → activation → LayerNorm (the optional norm comes after the activation).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from aspc import kernels
from aspc.custom_networks import CustomNetwork

Activation = Callable[[Array], Array]
# The names match those in `aspc.policy_kinds`; an exported policy supports only these activations.
ACTIVATIONS: dict[str, Activation] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "mish": jax.nn.mish,
    "silu": jax.nn.silu,
    "elu": jax.nn.elu,
    "leaky_relu": jax.nn.leaky_relu,
    "tanh": jnp.tanh,
}
jvp_compatible_networks = kernels.jvp_compatible_networks


class Linear(eqx.Module):
    """x·W + b."""

    weight: Float[Array, "in out"]
    bias: Float[Array, "out"]

    def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        return kernels.linear(x, self.weight, self.bias)


class LayerNorm(eqx.Module):
    """Normalization over the last axis, with a learned scale and offset."""

    scale: Float[Array, "dim"]
    bias: Float[Array, "dim"]
    eps: float = eqx.field(static=True, default=1e-5)

    def __call__(self, x: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
        centered = x - x.mean(-1, keepdims=True)
        variance = jnp.square(centered).mean(-1, keepdims=True)
        return centered * jax.lax.rsqrt(variance + self.eps) * self.scale + self.bias


# ---------------------------------------------------------------------------------------------------------------
# Initial weights, one initializer per reference implementation
# ---------------------------------------------------------------------------------------------------------------


@runtime_checkable
class Init(Protocol):
    """An initializer of one layer; `last` marks the output layer."""

    def __call__(self, key: PRNGKeyArray, fan_in: int, fan_out: int, last: bool) -> tuple[Array, Array]:
        """Return the weight [in, out] and the bias [out]."""


def uniform(key: PRNGKeyArray, shape: Sequence[int], bound: float) -> Array:
    """Draw from U(±bound)."""
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)


def fan_in_init(key: PRNGKeyArray, fan_in: int, fan_out: int, last: bool) -> tuple[Array, Array]:
    """Initialize like PyTorch's default: weights and biases U(±1/√fan_in)."""
    key_w, key_b = jax.random.split(key)
    bound = fan_in**-0.5
    return uniform(key_w, (fan_in, fan_out), bound), uniform(key_b, (fan_out,), bound)


def small_last_init(last_bound: float) -> Init:
    """Return the robust critic's initializer: hidden U(±1/√fan_in) with biases 0.1, last layer U(±last_bound)."""

    def init(key: PRNGKeyArray, fan_in: int, fan_out: int, last: bool) -> tuple[Array, Array]:
        key_w, key_b = jax.random.split(key)
        if last:
            return uniform(key_w, (fan_in, fan_out), last_bound), uniform(key_b, (fan_out,), last_bound)
        return uniform(key_w, (fan_in, fan_out), fan_in**-0.5), jnp.full((fan_out,), 0.1, dtype=float)

    return init


robust_critic_init = small_last_init(3e-3)


def glorot_uniform(key: PRNGKeyArray, fan_in: int, fan_out: int, gain: float = 1.0) -> Array:
    """Draw from U(±gain·√(6/(fan_in + fan_out)))."""
    return uniform(key, (fan_in, fan_out), gain * (6 / (fan_in + fan_out)) ** 0.5)


def glorot_init(key: PRNGKeyArray, fan_in: int, fan_out: int, last: bool) -> tuple[Array, Array]:
    """Initialize like FQL's Flax networks: weights U(±√(6/(fan_in + fan_out))), biases 0."""
    return glorot_uniform(key, fan_in, fan_out), jnp.zeros(fan_out)


def small_glorot_last_init(key: PRNGKeyArray, fan_in: int, fan_out: int, last: bool) -> tuple[Array, Array]:
    """Initialize like PyTorch, except for the last layer (Glorot, gain 0.01), so that Gaussian actors start near 0."""
    if last:
        return glorot_uniform(key, fan_in, fan_out, gain=0.01), jnp.zeros(fan_out)
    return fan_in_init(key, fan_in, fan_out, last)


def orthogonal_init(key: PRNGKeyArray, fan_in: int, fan_out: int, last: bool) -> tuple[Array, Array]:
    """Initialize orthogonal weights with gain √2 (last layer: 0.01), biases 0."""
    gain = 0.01 if last else 2**0.5
    return jax.nn.initializers.orthogonal(gain)(key, (fan_in, fan_out)), jnp.zeros(fan_out)


# ---------------------------------------------------------------------------------------------------------------
# The MLP and the networks built from it
# ---------------------------------------------------------------------------------------------------------------


class MLP(eqx.Module):
    """Linear → activation (→ LayerNorm), `len(hidden)` times, then Linear."""

    layers: tuple[Linear, ...]
    norms: tuple[LayerNorm, ...]
    activation: Activation = eqx.field(static=True)
    member: int | None = eqx.field(static=True, default=None)
    """Index of this network in the ensemble whose arrays it holds; None if its arrays are not shared."""

    @property
    def in_size(self) -> int:
        """The size of the input."""
        return self.layers[0].weight.shape[-2]

    @property
    def out_size(self) -> int:
        """The size of the output."""
        return self.layers[-1].bias.shape[-1]

    def __call__(
        self, x: Float[Array, "*batch in"], dropout: Float[Array, "layers *batch hidden"] | None = None
    ) -> Float[Array, "*batch out"]:
        """Apply the network; `dropout` multiplies hidden units: 0 for a dropped unit, 1/(1 − p) for a kept unit."""
        if dropout is not None:
            return self._apply(x, dropout)
        layers = kernels.Layers(
            tuple(layer.weight for layer in self.layers),
            tuple(layer.bias for layer in self.layers),
            tuple(norm.scale for norm in self.norms),
            tuple(norm.bias for norm in self.norms),
        )
        eps = self.norms[0].eps if self.norms else 0.0
        return kernels.apply_mlp(layers, x, self.activation, eps=eps, member=self.member, plain=self._apply)

    def _apply(self, x: Array, dropout: Array | None = None) -> Array:
        """Apply the layers one by one."""
        if self.member is not None:
            members = dataclasses.replace(self, member=None)
            return kernels.apply_member(lambda net: net(x, dropout), members, self.member)
        for i, layer in enumerate(self.layers[:-1]):
            x = self.activation(layer(x))
            if self.norms:
                x = self.norms[i](x)
            if dropout is not None:
                x = x * dropout[i]
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
    """Initialize an MLP with the given sizes."""
    sizes = [in_dim, *hidden, out_dim]
    keys = jax.random.split(key, len(sizes) - 1)
    layers = tuple(Linear(*init(keys[i], sizes[i], sizes[i + 1], i == len(hidden))) for i in range(len(sizes) - 1))
    norms = tuple(LayerNorm(jnp.ones(h), jnp.zeros(h), layer_norm_eps) for h in hidden) if layer_norm else ()
    return MLP(layers, norms, activation)


class DeterministicActor(eqx.Module):
    """π(s) = max_action · tanh(MLP(s))."""

    net: MLP | CustomNetwork
    max_action: float = eqx.field(static=True, default=1.0)

    def __call__(
        self, observations: Float[Array, "*batch obs"], dropout: Float[Array, "layers *batch hidden"] | None = None
    ) -> Float[Array, "*batch act"]:
        return self.max_action * jnp.tanh(self.net(observations, dropout))


LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class GaussianActor(eqx.Module):
    """N(mean(s), σ²) with one σ for all states; calling it returns the mean."""

    mean: DeterministicActor
    log_std: Float[Array, "act"]

    def __call__(
        self, observations: Float[Array, "*batch obs"], dropout: Float[Array, "layers *batch hidden"] | None = None
    ) -> Float[Array, "*batch act"]:
        return self.mean(observations, dropout)

    def log_prob(self, mean: Float[Array, "*batch act"], actions: Float[Array, "*batch act"]) -> Float[Array, "*batch"]:
        """Compute log N(a; mean, σ²), summed over action dimensions."""
        log_std = jnp.clip(self.log_std, -20.0, 2.0)
        z = (actions - mean) * jnp.exp(-log_std)
        return (-0.5 * jnp.square(z) - log_std - LOG_SQRT_2PI).sum(-1)


class SquashedGaussianActor(eqx.Module):
    """max_action · tanh(x), x ~ N(mean(s), σ(s)²): SAC's policy, with a trained multiplier and offset of log σ."""

    net: MLP | CustomNetwork
    log_std_multiplier: Float[Array, ""]
    log_std_offset: Float[Array, ""]
    max_action: float = eqx.field(static=True, default=1.0)

    def sample(
        self, observations: Float[Array, "batch obs"], epsilon: Float[Array, "batch *samples act"]
    ) -> tuple[Float[Array, "batch *samples act"], Float[Array, "batch *samples"]]:
        """Return actions from standard normal draws (several per state if `epsilon` has that axis) and their log π."""
        mean, log_std = jnp.split(self.net(observations), 2, axis=-1)
        log_std = jnp.clip(self.log_std_multiplier * log_std + self.log_std_offset, -20.0, 2.0)
        if epsilon.ndim > mean.ndim:
            mean, log_std = mean[:, None], log_std[:, None]
        x = mean + jnp.exp(log_std) * epsilon
        log_normal = -0.5 * jnp.square(epsilon) - log_std - LOG_SQRT_2PI
        log_tanh_slope = 2 * (math.log(2) - x - jax.nn.softplus(-2 * x))  # log(1 − tanh²x), stable for large |x|
        return self.max_action * jnp.tanh(x), (log_normal - log_tanh_slope).sum(-1)


class Critic(eqx.Module):
    """Q(s, a), one scalar per row."""

    net: MLP | CustomNetwork

    def __call__(
        self, observations: Float[Array, "*batch obs"], actions: Float[Array, "*batch act"]
    ) -> Float[Array, "*batch"]:
        return self.net(jnp.concatenate([observations, actions], -1))[..., 0]


class Value(eqx.Module):
    """V(s), one scalar per row."""

    net: MLP

    def __call__(self, observations: Float[Array, "*batch obs"]) -> Float[Array, "*batch"]:
        return self.net(observations)[..., 0]


class Flow(eqx.Module):
    """A map from concatenated inputs to one vector per row, such as a velocity v(s, x, t) or a policy μ(s, z)."""

    net: MLP | CustomNetwork

    def __call__(self, *inputs: Float[Array, "*batch _"]) -> Float[Array, "*batch out"]:
        return self.net(jnp.concatenate(inputs, -1))


class NoiseModel(eqx.Module):
    """ε(x, t, s): the noise in a noisy action x at diffusion step t, with a sinusoidal embedding of t."""

    time_net: MLP
    net: MLP | CustomNetwork
    max_action: float = eqx.field(static=True, default=1.0)

    def embed(self, t: Int[Array, "*batch"]) -> Float[Array, "*batch time"]:
        """Embed the diffusion step t."""
        half = self.time_net.layers[0].weight.shape[0] // 2
        frequencies = np.exp(-np.arange(half) * math.log(10_000) / (half - 1))
        angles = t[..., None] * jnp.asarray(frequencies, dtype=self.time_net.layers[0].weight.dtype)
        return self.time_net(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1))

    def __call__(
        self, x: Float[Array, "batch act"], t: Int[Array, "*batch"], observations: Float[Array, "batch obs"]
    ) -> Float[Array, "batch act"]:
        """Predict the noise; `t` is one step per row, or one step for all rows."""
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
        """Return mean and log σ of the latent."""
        mean, log_std = jnp.split(self.encoder(jnp.concatenate([observations, actions], -1)), 2, axis=-1)
        return mean, jnp.clip(log_std, -4.0, 15.0)

    def decode(
        self, observations: Float[Array, "batch obs"], latent: Float[Array, "batch latent"]
    ) -> Float[Array, "batch act"]:
        """Return the action for a latent."""
        return self.max_action * jnp.tanh(self.decoder(jnp.concatenate([observations, latent], -1)))


class Ensemble(eqx.Module):
    """Networks of equal shape, stacked along the first axis of every array. Calling it returns [members, batch]."""

    members: Any

    def __call__(self, *inputs: Array) -> Array:
        outputs: Array = jax.vmap(lambda member: member(*inputs))(self.members)
        return outputs

    def __getitem__(self, index: int) -> Callable[..., Array]:
        """Return one member, e.g. `critics[0]` for the paper's Q, as a callable that shares the ensemble's arrays."""

        def select(part: Any) -> Any:
            return dataclasses.replace(part, member=index) if isinstance(part, MLP) else part[index]

        member: Callable[..., Array] = jax.tree.map(select, self.members, is_leaf=lambda part: isinstance(part, MLP))
        return member

    def cut(self, index: int) -> Any:
        """Return one member with its own arrays."""
        return jax.tree.map(lambda leaf: leaf[index], self.members)


def ensemble(make: Callable[[PRNGKeyArray], Any], key: PRNGKeyArray, size: int = 2) -> Ensemble:
    """Initialize `size` networks with `make`, each with a different key."""
    return Ensemble(jax.vmap(make)(jax.random.split(key, size)))
