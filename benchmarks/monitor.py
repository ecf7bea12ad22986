"""What the theory monitor costs: its own time, fetched to the host, over that of the 1,000 steps between two looks.

    python benchmarks/monitor.py --algo aspc td3_bc

Both are timed in turn in one process, on synthetic data of halfcheetah's sizes with the paper's networks, and medians
are compared. The difference of two whole runs would drown in the noise of the runs. Exits with 1 above 5 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import jax
import jax.numpy as jnp

from aspc import algorithms
from aspc.algorithms.interface import Spec
from aspc.lab.speed.measure import ROWS, synthetic_table
from aspc.training.compiled_loop import Loop, Source, on_accelerator, start_runs
from aspc.training.packed_table import Layout

LIMIT = 0.05


def measure(algo: str, interval: int, rounds: int, seeds: int) -> tuple[float, float, float]:
    """Median seconds of `interval` steps and of one look at their end; seconds to compile the look."""
    algorithm, spec = algorithms.default(algo), Spec(17, 6)
    layout = Layout(spec.obs_dim, spec.act_dim, bool(getattr(algorithm, "uses_next_actions", False)))
    loop = Loop(algorithm, spec, layout, vectorise=on_accelerator())
    table = synthetic_table(layout)
    source = Source(jnp.zeros(seeds, jnp.int32), jnp.full(seeds, ROWS, jnp.int32))
    runs = start_runs(algorithm, spec, jnp.arange(seeds), source)
    state, runs = runs.state, runs._replace(state=None)
    blocks = interval // loop.block_steps

    began = time.perf_counter()
    loop.theory_on.lower(loop, state, runs, table, jnp.asarray(0)).compile()
    compiling = time.perf_counter() - began
    steps: list[float] = []
    looks: list[float] = []
    for i in range(rounds + 1):  # the first round warms up
        began = time.perf_counter()
        state, metrics = loop.run_blocks(state, runs, table, jnp.asarray(i * blocks), blocks=blocks)
        jax.device_get(metrics)
        steps.append(time.perf_counter() - began)
        began = time.perf_counter()
        jax.device_get(loop.theory_on(state, runs, table, jnp.asarray(i)))
        looks.append(time.perf_counter() - began)
    return statistics.median(steps[1:]), statistics.median(looks[1:]), compiling


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo", nargs="+", default=["aspc", "td3_bc"])
    parser.add_argument("--interval", type=int, default=1_000, help="steps between two looks")
    parser.add_argument("--rounds", type=int, default=5, help="timings of which the median counts")
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args()
    device = jax.devices()[0]
    print(f"{device.platform}: {device.device_kind}, {asked.seeds} seed(s), every {asked.interval:,} steps")
    print(f"{'':16s} {'steps/s':>9s} {'one look':>10s} {'cost':>8s} {'compiles in':>12s}")
    worst = 0.0
    for algo in asked.algo:
        chunk, look, compiling = measure(algo, asked.interval, asked.rounds, asked.seeds)
        worst = max(worst, look / chunk)
        rate = asked.interval * asked.seeds / chunk
        print(
            f"{algo:16s} {rate:9,.0f} {1e3 * look:7.1f} ms {100 * look / chunk:6.2f} % {compiling:10.1f} s", flush=True
        )
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
