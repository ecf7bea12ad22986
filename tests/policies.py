"""Policies of every algorithm with random weights; nothing is compiled or trained."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import jax
import numpy as np

from aspc import algorithms
from aspc.algorithms.interface import Spec
from aspc.policy import Policy

INFO = {"algo": "?", "dataset": "random", "step": 7, "seed": 3, "versions": {"aspc": "0"}}


def policy_of(algorithm: Any, obs: int = 5, act: int = 3, gain: float = 1.0, **info: Any) -> Policy:
    """Return a policy with weights N(0, gain²/in), so that no output is near 0, and a non-trivial normalizer."""
    exports: list[Any] = []

    def arrays(key: Any) -> dict[str, Any]:
        exports.append(algorithm.policy(algorithm.init(key, Spec(obs, act))))
        return exports[0].arrays

    shapes = jax.eval_shape(arrays, jax.random.key(0))
    rng = np.random.default_rng(0)
    weights = {
        name: rng.normal(0, gain * (a.shape[-2] if a.ndim > 1 else 25) ** -0.5, a.shape).astype(np.float32)
        for name, a in shapes.items()
    }
    low = rng.uniform(-3, 0, act).astype(np.float32)
    return Policy(
        exports[0].kind,
        weights,
        exports[0].settings,
        rng.normal(size=obs).astype(np.float32),
        rng.uniform(0.5, 2, obs).astype(np.float32),
        low,
        low + rng.uniform(1, 4, act).astype(np.float32),
        {**INFO, **info},
    )


def narrow(algorithm: Any, width: int = 32) -> Any:
    """Return the algorithm with narrow networks."""
    if algorithm.base is not None:
        return replace(algorithm, base=narrow(algorithm.base, width))
    return replace(algorithm, **{f.name: width for f in fields(algorithm) if f.name.endswith("hidden_dim")})


def policy_named(name: str, **sizes: Any) -> Policy:
    """Return a policy of a registered algorithm with narrow networks."""
    return policy_of(narrow(algorithms.default(name)), algo=name, **sizes)
