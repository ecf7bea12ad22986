"""Measure the cost of the theory monitor relative to the 1,000 steps between two monitored updates.

    python benchmarks/monitor.py --algo aspc td3_bc

The time of a monitored update includes the transfer of its metrics to the host. Monitored updates and training steps
are timed alternately in one process, on synthetic data with halfcheetah's dimensions and with the paper's networks.
Their medians are compared, because the difference between two complete runs would be smaller than the noise. The exit
code is 1 if the cost exceeds 5 %.
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
from aspc.training.compiled_loop import Loop, RowRange, on_accelerator, start_runs
from aspc.training.packed_table import Layout

LIMIT = 0.05


def measure(algo: str, interval: int, rounds: int, seeds: int) -> tuple[float, float, float]:
    """Return the median times of `interval` steps and of a monitored update, and the monitor's compile time."""
    algorithm, spec = algorithms.default(algo), Spec(17, 6)
    layout = Layout(spec.obs_dim, spec.act_dim, bool(getattr(algorithm, "uses_next_actions", False)))
    loop = Loop(algorithm, spec, layout, vectorize=on_accelerator())
    table = synthetic_table(layout)
    source = RowRange(jnp.zeros(seeds, jnp.int32), jnp.full(seeds, ROWS, jnp.int32))
    runs = start_runs(algorithm, spec, jnp.arange(seeds), source)
    state, runs = runs.state, runs._replace(state=None)
    blocks = interval // loop.block_steps

    began = time.perf_counter()
    loop.theory_metrics.lower(loop, state, runs, table, jnp.asarray(0)).compile()
    compile_seconds = time.perf_counter() - began
    steps: list[float] = []
    monitored: list[float] = []
    for i in range(rounds + 1):  # the first round is a warm-up
        began = time.perf_counter()
        state, metrics = loop.run_blocks(state, runs, table, jnp.asarray(i * blocks), blocks=blocks)
        jax.device_get(metrics)
        steps.append(time.perf_counter() - began)
        began = time.perf_counter()
        jax.device_get(loop.theory_metrics(state, runs, table, jnp.asarray(i)))
        monitored.append(time.perf_counter() - began)
    return statistics.median(steps[1:]), statistics.median(monitored[1:]), compile_seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo", nargs="+", default=["aspc", "td3_bc"])
    parser.add_argument("--interval", type=int, default=1_000, help="steps between two monitored updates")
    parser.add_argument("--rounds", type=int, default=5, help="number of timings per median")
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    device = jax.devices()[0]
    print(f"{device.platform}: {device.device_kind}, {args.seeds} seed(s), every {args.interval:,} steps")
    print(f"{'':16s} {'steps/s':>9s} {'one update':>10s} {'cost':>8s} {'compile':>12s}")
    worst = 0.0
    for algo in args.algo:
        chunk, update, compile_seconds = measure(algo, args.interval, args.rounds, args.seeds)
        worst = max(worst, update / chunk)
        rate = args.interval * args.seeds / chunk
        print(
            f"{algo:16s} {rate:9,.0f} {1e3 * update:7.1f} ms {100 * update / chunk:6.2f} % {compile_seconds:10.1f} s",
            flush=True,
        )
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
