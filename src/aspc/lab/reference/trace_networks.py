"""Networks from the arrays of a trace, by the names that each framework gives them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aspc.data.files import natural
from aspc.errors import AspcError
from aspc.networks import MLP, Ensemble, LayerNorm, Linear

Arrays = Mapping[str, np.ndarray]
Loader = Callable[[Arrays], Any]


def float64(array: np.ndarray) -> Any:
    return jnp.asarray(array, jnp.float64)


def under(arrays: Arrays, prefix: str) -> Arrays:
    """The arrays whose names start with `prefix`, without it."""
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}


def layer_names(arrays: Arrays) -> list[str]:
    return sorted({name.rpartition(".")[0] for name in arrays}, key=natural)


def torch_mlp(arrays: Arrays, activation: Callable = jax.nn.relu) -> MLP:
    """A PyTorch network whose layers are numbered in order. A matrix [out, in] is a Linear layer, a vector a norm."""
    layers, norms = [], []
    for layer in layer_names(arrays):
        weight, bias = float64(arrays[f"{layer}.weight"]), float64(arrays[f"{layer}.bias"])
        if weight.ndim == 2:
            layers.append(Linear(weight.T, bias))
        else:
            norms.append(LayerNorm(weight, bias))
    return MLP(tuple(layers), tuple(norms), activation)


def torch_sequence(arrays: Arrays, layers: Sequence[str], activation: Callable = jax.nn.relu) -> MLP:
    """A PyTorch network from layers in the given order, where their names do not tell it."""
    ordered = {
        f"{i}.{part}": arrays[f"{layer}.{part}"] for i, layer in enumerate(layers) for part in ("weight", "bias")
    }
    return torch_mlp(ordered, activation)


def torch_halves(arrays: Arrays) -> tuple[Arrays, Arrays]:
    """Two equal networks in one module, `l1` … `l3` and `l4` … `l6`: the first and the second half of its layers."""
    layers = layer_names(arrays)
    first = {f"{layer}." for layer in layers[: len(layers) // 2]}
    halves: tuple[dict, dict] = ({}, {})
    for name, array in arrays.items():
        halves[not name.startswith(tuple(first))][name] = array
    return halves


def flax_mlp(arrays: Arrays, activation: Callable = jax.nn.relu, eps: float = 1e-6) -> MLP:
    """A Flax network, `Dense_0`, `LayerNorm_0`, …; arrays of an ensemble keep their leading axis."""
    parts: dict[tuple[str, int], dict[str, Any]] = {}
    for name, array in arrays.items():
        kind, index, part = re.fullmatch(r"(?:.*\.)?(Dense|LayerNorm)_(\d+)\.(\w+)", name).groups()  # type: ignore[union-attr]
        parts.setdefault((kind, int(index)), {})[part] = float64(array)
    layers = tuple(Linear(p["kernel"], p["bias"]) for (kind, _), p in sorted(parts.items()) if kind == "Dense")
    norms = tuple(LayerNorm(p["scale"], p["bias"], eps) for (kind, _), p in sorted(parts.items()) if kind != "Dense")
    return MLP(layers, norms, activation)


def stack(*networks: Any) -> Ensemble:
    """Separate networks as one ensemble."""
    shapes = [[leaf.shape for leaf in jax.tree.leaves(network)] for network in networks]
    if any(shape != shapes[0] for shape in shapes):
        raise AspcError("The twin critics of this trace have different sizes; here twins are one ensemble of equals.")
    return Ensemble(jax.tree.map(lambda *leaves: jnp.stack(leaves), *networks))
