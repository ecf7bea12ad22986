"""Build networks from the arrays of a trace, whose names follow PyTorch or Flax."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aspc.errors import AspcError
from aspc.networks import MLP, Ensemble, LayerNorm, Linear
from aspc.text import natural_sort_key

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Activation = Callable[[jax.Array], jax.Array]
Loader = Callable[[Arrays], Any]


def float64(array: Array) -> jax.Array:
    """Convert an array to a float64 JAX array."""
    return jnp.asarray(array, jnp.float64)


def strip_prefix(arrays: Arrays, prefix: str) -> Arrays:
    """Return the arrays whose names start with `prefix`, by name without the prefix."""
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}


def layer_names(arrays: Arrays) -> list[str]:
    """Return the names of the layers in natural order, so that layer 10 follows layer 9."""
    return sorted({name.rpartition(".")[0] for name in arrays}, key=natural_sort_key)


def torch_mlp(arrays: Arrays, activation: Activation = jax.nn.relu) -> MLP:
    """Build an MLP from the arrays of a PyTorch network with numbered layers.

    A layer whose weight is a matrix [out, in] is linear; a layer whose weight is a vector is a LayerNorm.
    """
    layers, norms = [], []
    for layer in layer_names(arrays):
        weight, bias = float64(arrays[f"{layer}.weight"]), float64(arrays[f"{layer}.bias"])
        if weight.ndim == 2:
            layers.append(Linear(weight.T, bias))
        else:
            norms.append(LayerNorm(weight, bias))
    return MLP(tuple(layers), tuple(norms), activation)


def torch_sequence(arrays: Arrays, layers: Sequence[str], activation: Activation = jax.nn.relu) -> MLP:
    """Build an MLP from the arrays of a PyTorch network, with its layers in the given order."""
    ordered = {
        f"{i}.{part}": arrays[f"{layer}.{part}"] for i, layer in enumerate(layers) for part in ("weight", "bias")
    }
    return torch_mlp(ordered, activation)


def split_twin_module(arrays: Arrays) -> tuple[Arrays, Arrays]:
    """Split the arrays of a module with two networks of equal size, such as layers `l1` … `l3` and `l4` … `l6`."""
    layers = layer_names(arrays)
    first = {f"{layer}." for layer in layers[: len(layers) // 2]}
    halves: tuple[dict[str, Array], dict[str, Array]] = ({}, {})
    for name, array in arrays.items():
        halves[not name.startswith(tuple(first))][name] = array
    return halves


def flax_mlp(arrays: Arrays, activation: Activation = jax.nn.relu, eps: float = 1e-6) -> MLP:
    """Build an MLP from the arrays of a Flax network with layers `Dense_0`, `LayerNorm_0`, …

    Arrays of an ensemble keep their leading axis.
    """
    parts: dict[tuple[str, int], dict[str, Any]] = {}
    for name, array in arrays.items():
        match = re.fullmatch(r"(?:.*\.)?(Dense|LayerNorm)_(\d+)\.(\w+)", name)
        if match is None:
            raise ValueError(f"unknown array {name}")
        kind, index, part = match.groups()
        parts.setdefault((kind, int(index)), {})[part] = float64(array)
    layers = tuple(Linear(p["kernel"], p["bias"]) for (kind, _), p in sorted(parts.items()) if kind == "Dense")
    norms = tuple(LayerNorm(p["scale"], p["bias"], eps) for (kind, _), p in sorted(parts.items()) if kind != "Dense")
    return MLP(layers, norms, activation)


def stack(*networks: Any) -> Ensemble:
    """Combine networks into one ensemble.

    Raises:
        AspcError: Their sizes differ.
    """
    shapes = [[leaf.shape for leaf in jax.tree.leaves(network)] for network in networks]
    if any(shape != shapes[0] for shape in shapes):
        raise AspcError("The twin critics in the trace have different sizes. Only critics of equal size are supported.")
    return Ensemble(jax.tree.map(lambda *leaves: jnp.stack(leaves), *networks))
