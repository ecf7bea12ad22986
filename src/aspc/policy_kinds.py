"""How each kind of policy acts, in NumPy: (arrays, settings, normalised observations, rng) → actions in ±1.

The arrays are those that an algorithm's `policy(state)` exports: an MLP is `layers.0.weight` [in, out],
`layers.0.bias`, … and, where it has LayerNorm, `norms.0.weight`, …, each with a prefix where there are several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
Kind = Callable[[Arrays, dict[str, Any], np.ndarray, np.random.Generator], np.ndarray]


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0, out=x)


def gelu(x: np.ndarray) -> np.ndarray:
    """The tanh approximation."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def mish(x: np.ndarray) -> np.ndarray:
    """x·tanh(log(1 + eˣ)) with one exponential: tanh(log(1 + e)) = n/(n + 2), n = e·(e + 2)."""
    e = np.exp(np.minimum(x, 20.0))  # above 20 the factor is 1 in float32
    n = e * (e + 2)
    return x * (n / (n + 2))


ACTIVATIONS = {"relu": relu, "gelu": gelu, "mish": mish}


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + eps) * weight + bias


def mlp(arrays: Arrays, settings: dict[str, Any], x: np.ndarray, prefix: str = "") -> np.ndarray:
    """Linear → activation (→ LayerNorm) …, Linear. Weights [members, in, out] are an ensemble: [members, rows, out]."""
    activation = ACTIVATIONS[settings["activation"]]
    i = 0
    while True:
        x = x @ arrays[f"{prefix}layers.{i}.weight"] + arrays[f"{prefix}layers.{i}.bias"][..., None, :]
        if f"{prefix}layers.{i + 1}.weight" not in arrays:
            return x
        x = activation(x)
        if f"{prefix}norms.{i}.weight" in arrays:
            weight, bias = (arrays[f"{prefix}norms.{i}.{part}"][..., None, :] for part in ("weight", "bias"))
            x = layer_norm(x, weight, bias, settings["layer_norm_eps"])
        i += 1


def deterministic(
    arrays: Arrays, settings: dict[str, Any], observations: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """tanh(MLP(s)); of a Gaussian policy, its mean."""
    return np.tanh(mlp(arrays, settings, observations))


def flow(arrays: Arrays, settings: dict[str, Any], observations: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """clip(MLP(s, z), ±1) with z ~ N(0, 1) for each state: FQL's one-step policy."""
    z = rng.standard_normal((len(observations), settings["latent_size"]), np.float32)
    return np.clip(mlp(arrays, settings, np.concatenate([observations, z], -1)), -1, 1)


def diffusion(
    arrays: Arrays, settings: dict[str, Any], observations: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Diffusion-QL: several candidates a state, one of them drawn with the softmax of the smaller target Q."""
    n, candidates = len(settings["alphas_cumprod"]), settings["candidates"]
    rows = np.repeat(observations, candidates, axis=0)
    shape = (len(rows), arrays["noise.layers.0.weight"].shape[0] - rows.shape[1] - time_size(arrays))
    noise = rng.standard_normal((n + 1, *shape), np.float32)
    actions = denoise(arrays, settings, rows, noise[0], noise[1:])
    q = mlp(arrays, settings, np.concatenate([rows, actions], -1), "critics.").min(0).reshape(-1, candidates)
    # argmax(q + Gumbel noise) is a draw from softmax(q).
    chosen = np.argmax(q + rng.gumbel(size=q.shape), axis=1)
    return actions.reshape(*q.shape, -1)[np.arange(len(q)), chosen]


def time_size(arrays: Arrays) -> int:
    """Size of the embedding of the diffusion step."""
    return arrays["time.layers.0.weight"].shape[0]


def denoise(
    arrays: Arrays, settings: dict[str, Any], observations: np.ndarray, x: np.ndarray, steps: np.ndarray
) -> np.ndarray:
    """Actions from noise x, with the noise `steps` [n, rows, act] of the n denoising steps."""
    n, half = len(settings["alphas_cumprod"]), time_size(arrays) // 2
    frequencies = np.exp(-np.arange(half) * math.log(10_000) / (half - 1))
    angles = (np.arange(n)[:, None] * frequencies).astype(np.float32)
    embedded = mlp(arrays, settings, np.concatenate([np.sin(angles), np.cos(angles)], -1), "time.")
    for t, epsilon in zip(reversed(range(n)), steps, strict=True):
        time = np.broadcast_to(embedded[t], (len(x), embedded.shape[1]))
        predicted = mlp(arrays, settings, np.concatenate([x, time, observations], -1), "noise.")
        kept = settings["alphas_cumprod"][t]
        x0 = np.clip(math.sqrt(1 / kept) * x - math.sqrt(1 / kept - 1) * predicted, -1, 1)
        x = settings["posterior_mean_coef1"][t] * x0 + settings["posterior_mean_coef2"][t] * x
        x = x + settings["posterior_std"][t] * epsilon
    return np.clip(x, -1, 1)


KINDS: dict[str, Kind] = {"deterministic": deterministic, "flow": flow, "diffusion": diffusion}
