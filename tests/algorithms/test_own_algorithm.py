"""The documented example of an algorithm from outside the package."""

from __future__ import annotations

import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import SPEC, run, small

from aspc import algorithms
from aspc.algorithms import registry

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_algorithm.py"


def test_it_registers_and_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    assert len(EXAMPLE.read_text().splitlines()) <= 60
    runpy.run_path(str(EXAMPLE))
    algorithm = small(algorithms.default("crr"))
    start = algorithm.init(jax.random.key(0), SPEC)
    after = run(algorithm, start, 3)
    assert not np.array_equal(start.actor.net.layers[0].weight, after.actor.net.layers[0].weight)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(after))
    assert algorithm.policy(after).kind == "deterministic"
