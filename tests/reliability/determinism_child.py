"""Train each algorithm for a few steps with small networks, and print hashes of the resulting states.

python determinism_child.py NAME...        prints NAME and a hash for each of two seeds
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np

from aspc import algorithms
from aspc.training.compiled_loop import Loop, RowRange, start_runs
from aspc.training.prepared_data import PreparedDataset
from aspc.training.run_config import TrainOptions
from tiny import make_dataset

STEPS = 21  # a block of the longest schedule, and the first step of the next


def small(algorithm: Any) -> Any:
    if algorithm.base is not None:
        return replace(algorithm, base=small(algorithm.base))
    names = {field.name for field in fields(algorithm)}
    sizes = {name: 8 for name in names if name.endswith("hidden_dim")}
    sizes |= {name: 1 for name in names if name.endswith("hidden_layers")}
    sizes |= {name: 2 for name in ("n_actions", "flow_steps", "diffusion_steps") if name in names}
    return replace(algorithm, batch_size=4, **sizes)


def digests(name: str, times: int = 1) -> list[tuple[str, str]]:
    """Train seeds 0 and 1 `times` times; return a hash of each state: all weights and optimizer moments."""
    algorithm = small(algorithms.default(name))
    problem = PreparedDataset.of(make_dataset(rows=100), algorithm, TrainOptions())
    loop = Loop(algorithm, problem.spec, problem.layout, vectorize=False)
    assert problem.rows is not None
    source = RowRange(jnp.zeros(2, jnp.int32), jnp.full(2, len(problem.rows), jnp.int32))
    runs = start_runs(algorithm, problem.spec, jnp.asarray([0, 1]), source)
    table, first, steps = jnp.asarray(problem.rows), jnp.asarray(0), jnp.asarray(STEPS)
    found = []
    for _ in range(times):
        start = jax.tree.map(jnp.copy, runs.state)  # training takes its memory
        found.append(_hashes(loop.run_steps(start, runs._replace(state=None), table, first, steps)[0]))
    return found


def _hashes(state: Any) -> tuple[str, str]:
    hashes = hashlib.sha256(), hashlib.sha256()
    for leaf in jax.tree.leaves(state):
        for of_seed, values in zip(hashes, np.asarray(leaf), strict=True):
            of_seed.update(values.tobytes())
    return hashes[0].hexdigest(), hashes[1].hexdigest()


if __name__ == "__main__":
    # Compiled anew: what another process has compiled is not taken from its cache.
    jax.config.update("jax_enable_compilation_cache", False)
    for word in sys.argv[1:]:
        print(word, *digests(word)[0], flush=True)
