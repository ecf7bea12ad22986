"""How each kind of policy acts, in NumPy: (arrays, settings, normalised observations [batch, obs], rng) → ±1 actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
Kind = Callable[[Arrays, dict[str, Any], np.ndarray, np.random.Generator], np.ndarray]


def relu_mlp(arrays: Arrays, x: np.ndarray, prefix: str = "") -> np.ndarray:
    """`{prefix}layers.0.weight`, … : ReLU between layers, the last one linear."""
    last = sum(name.startswith(f"{prefix}layers.") and name.endswith(".weight") for name in arrays) - 1
    for i in range(last):
        x = x @ arrays[f"{prefix}layers.{i}.weight"] + arrays[f"{prefix}layers.{i}.bias"]
        np.maximum(x, 0, out=x)
    return x @ arrays[f"{prefix}layers.{last}.weight"] + arrays[f"{prefix}layers.{last}.bias"]


def deterministic(
    arrays: Arrays, settings: dict[str, Any], observations: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """tanh(MLP(s))."""
    return np.tanh(relu_mlp(arrays, observations))


KINDS: dict[str, Kind] = {"deterministic": deterministic}
