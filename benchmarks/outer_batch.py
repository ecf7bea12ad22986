"""Measure the derivative of L1 with respect to alpha, both on the inner step's own batch and on an independent batch.

    python benchmarks/outer_batch.py DATA/hopper-medium.hdf5 DATA/halfcheetah-medium.hdf5

After training ASPC, the script evaluates the derivative on many batches in the final state. A negative derivative makes
alpha rise.

With inner gradients g = −α·∇q̂ + ∇c on a batch, dL1/dα ≈ η·g_outer·P·∇q̂_inner, where P is Adam's preconditioner. On the
same batch, both factors contain the same noise, which adds about −η·α·E‖noise of ∇q̂‖²_P in every state. On an
independent batch, this term has mean zero. Therefore, if the policy is optimal for the current alpha (E g = 0), an
independent batch leaves alpha unchanged, and the same batch makes it rise. docs/theory.md contains the measurements.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aspc import algorithms, data
from aspc.adaptive_scale import AdaptiveScale
from aspc.algorithms.interface import CRITIC, INNER, SCALE, Spec, schedule_length
from aspc.training.normalizer import ObservationNormalizer
from aspc.training.packed_table import Layout, pack

ALL = frozenset({CRITIC, INNER, SCALE})
SCHEDULES = 50  # number of update cycles per call of the compiled program


def measure(path: str, steps: int, batches: int, seed: int) -> dict[str, Any]:
    """Return the mean derivative on a dataset, its standard error, and the fraction of batches that make alpha rise."""
    dataset = data.load(path)
    layout = Layout(dataset.observation_size, dataset.action_size)
    rows = jnp.asarray(pack(dataset.transitions(), layout, ObservationNormalizer.of(dataset.observations), 0.99))
    algorithm = algorithms.default("aspc")
    assert isinstance(algorithm, AdaptiveScale)
    state = train(algorithm, rows, layout, steps, seed)
    found: dict[str, Any] = {"dataset": Path(path).stem, "steps": steps, "alpha": float(state.scale.scale)}
    for outer in ("same", "independent"):
        values = derivatives(replace(algorithm, outer_batch=outer), state, rows, layout, batches, seed)
        error = values.std(ddof=1) / np.sqrt(len(values))
        found[outer] = {"mean": float(values.mean()), "error": float(error), "rises": float((values < 0).mean())}
    return found


def train(algorithm: AdaptiveScale[Any], rows: jax.Array, layout: Layout, steps: int, seed: int) -> Any:
    """Train for about `steps` steps and return the final state."""
    spec = Spec(layout.obs_dim, layout.act_dim)

    def one_schedule(carry: tuple[Any, jax.Array], _: None) -> tuple[tuple[Any, jax.Array], None]:
        state, key = carry
        for segment in algorithm.schedule():
            for parts in segment.steps * segment.repeats:
                key, draw = jax.random.split(key)
                state, _metrics = algorithm.update(state, *sample(algorithm, draw, rows, layout), parts)
        return (state, key), None

    @jax.jit
    def run_schedules(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        return jax.lax.scan(one_schedule, (state, key), None, SCHEDULES)[0]

    key, init = jax.random.split(jax.random.key(seed))
    state = algorithm.init(init, spec)
    for _ in range(max(steps // (SCHEDULES * schedule_length(algorithm.schedule())), 1)):
        state, key = run_schedules(state, key)
    return state


def sample(algorithm: Any, key: jax.Array, rows: jax.Array, layout: Layout) -> tuple[Any, dict[str, jax.Array]]:
    """Draw a batch and the noise of a step."""
    key_rows, *keys = jax.random.split(key, 16)
    batch = layout.unpack(rows[jax.random.randint(key_rows, (algorithm.batch_size,), 0, len(rows))])
    draws = algorithm.noise(Spec(layout.obs_dim, layout.act_dim), algorithm.batch_size)
    return batch, {name: draw.sample(k, 1)[0] for (name, draw), k in zip(draws.items(), keys, strict=False)}


def derivatives(algorithm: Any, state: Any, rows: jax.Array, layout: Layout, batches: int, seed: int) -> np.ndarray:
    """Return dL1/dα on many batches, all in the same state."""

    def one(key: jax.Array) -> jax.Array:
        _, metrics = algorithm.update(state, *sample(algorithm, key, rows, layout), ALL)
        return jnp.asarray(metrics["dl1_dscale"])

    return np.asarray(jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(jax.random.key(seed + 1), batches)))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    found = []
    print(f"{'dataset':28s} {'alpha':>6s}  {'same batch: dL1/dα':>30s}  {'independent: dL1/dα':>30s}", flush=True)
    for path in args.datasets:
        one = measure(path, args.steps, args.batches, args.seed)
        found.append(one)
        cells = [
            f"{one[k]['mean']:+.2e} ± {one[k]['error']:.0e} ({100 * one[k]['rises']:3.0f} % < 0)"
            for k in ("same", "independent")
        ]
        print(f"{one['dataset']:28s} {one['alpha']:6.2f}  {cells[0]:>30s}  {cells[1]:>30s}", flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps({one.pop("dataset"): one for one in found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
