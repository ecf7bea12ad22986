"""Measure training speed on an accelerator. The script takes a few minutes.

    python benchmarks/accelerator.py --json benchmarks/results/NAME.json [--only rates overhead …]
    python benchmarks/accelerator.py --json benchmarks/results/NAME.json --plot PICTURE

Each measurement is printed and saved when it is done, so an interrupted command keeps its results:

rates       1, 4 and 64 parallel runs on a table of a million rows: steps per second, compile seconds, peak memory,
            share of each part of a step, kernels per step, and whether two runs with equal seeds are bitwise equal
overhead    ASPC's training time relative to TD3+BC's, timed in alternating chunks
restart     compile seconds of a second process that finds the program in the persistent cache
evaluation  wall time with 10 episodes every 5,000 steps relative to training alone, and the smallest evaluation
            interval at which evaluation adds no time
sweep       steps per second of 2 to 256 parallel runs

With `--plot`, the script only plots steps per second against the number of runs, from the results in the file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import aspc
from aspc import algorithms
from aspc.io import write_atomically
from aspc.lab.commands.speed import draw
from aspc.lab.speed import measure
from aspc.lab.speed.profile import profile
from aspc.training.fleet import Member, train_fleet
from aspc.training.run_config import TrainOptions

SIZES = (17, 6, 256)  # HalfCheetah's observation and action, the paper's batch
MILLION = 1_000_000


def measure_rates(steps: int) -> list[dict[str, Any]]:
    rows = []
    for runs in (64, 4, 1):  # start with the largest number, since peak memory is measured per process
        prepared = measure.SpeedBenchmark("aspc", *SIZES, runs, steps, rows=MILLION)
        row = measure.measure_benchmark(prepared, bound=False)
        profiled = profile(prepared)
        row |= {"kernels_per_step": profiled.kernels_per_step, "parts": [part._asdict() for part in profiled.parts]}
        row["equal_bits"] = is_deterministic(prepared)
        rows.append(row)
        print(f"  {runs} runs: {row['steps_per_second']:,.0f} steps/s, compiled in {row['compile_seconds']:.1f} s")
    return rows


def is_deterministic(prepared: measure.SpeedBenchmark) -> bool:
    """Return whether training twice with the same seeds results in bitwise equal states."""
    states = []
    for _ in range(2):
        prepared.restart()
        prepared.time_chunk()
        states.append(jax.device_get(prepared.state))
    pairs = zip(jax.tree.leaves(states[0]), jax.tree.leaves(states[1]), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def measure_overhead(steps: int) -> list[dict[str, Any]]:
    return measure.compare(["td3_bc", "aspc"], *SIZES, 1, steps)


def measure_restart(steps: int) -> dict[str, Any]:
    """Return the compile times of a process that fills the persistent cache and of a second process that uses it."""
    command = [sys.executable, "-m", "aspc", "speed", "--cache", "--sweep-seeds", "1", "--json", "--steps", str(steps)]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "ASPC_COMPILATION_CACHE": cache, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        seconds = []
        for _ in range(2):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            seconds.append(json.loads(done.stdout)[0]["compile_seconds"])
    return {"first_seconds": seconds[0], "second_seconds": seconds[1]}


def measure_evaluation(steps: int) -> dict[str, Any]:
    """Return the cost of evaluations in HalfCheetah, where they take longest because no episode ends early."""
    data, env = synthetic_dataset(17, 6, 100_000), "halfcheetah-medium-v2"
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, own_env in (("warm up", None), ("alone", None), ("with evaluation", env)):
            begin = time.perf_counter()
            aspc.train(data, env=own_env, steps=steps, eval_every=5_000, out=Path(folder) / name, quiet=True)
            seconds[name] = time.perf_counter() - begin
        members = [Member(f"run{seed}", data, seed) for seed in range(64)]
        options = TrainOptions(steps=steps // 5, eval_every=steps // 10)
        algorithm, out = algorithms.default("aspc"), Path(folder) / "fleet"
        together = train_fleet("aspc", algorithm, members, options, out, env=env, quiet=True).result or {}
    return {
        "steps": steps,
        "alone_seconds": seconds["alone"],
        "with_evaluation_seconds": seconds["with evaluation"],
        "ratio": seconds["with evaluation"] / seconds["alone"],
        "of_64_runs_seconds": together["evaluation_seconds"],
        "hidden_eval_every_of_64_runs": together["hidden_eval_every"],
    }


def synthetic_dataset(obs_dim: int, act_dim: int, rows: int) -> aspc.Dataset:
    """Return a dataset of random rows, in episodes of 1,000 steps."""
    rng = np.random.default_rng(0)
    timeouts = np.zeros(rows, bool)
    timeouts[999::1000] = True
    return aspc.Dataset.from_arrays(
        observations=rng.standard_normal((rows, obs_dim), dtype=np.float32),
        actions=np.tanh(rng.standard_normal((rows, act_dim), dtype=np.float32)),
        rewards=rng.standard_normal(rows, dtype=np.float32),
        terminals=np.zeros(rows, bool),
        timeouts=timeouts,
        action_low=-np.ones(act_dim),
        action_high=np.ones(act_dim),
        name="synthetic",
    )


def measure_sweep(steps: int) -> list[dict[str, Any]]:
    rows = []
    for row in measure.sweep("aspc", *SIZES, [2, 16, 128, 256], steps, rows=MILLION):
        rows.append(row)
        print(f"  {row['seeds']} runs: {row['steps_per_second']:,.0f} steps/s", flush=True)
    return rows


PARTS: dict[str, tuple[Callable[[int], Any], int]] = {
    "rates": (measure_rates, 2_000),
    "overhead": (measure_overhead, 10_000),
    "restart": (measure_restart, 2_000),
    "evaluation": (measure_evaluation, 100_000),
    "sweep": (measure_sweep, 1_000),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="output file; its other measurements are kept")
    parser.add_argument("--only", nargs="*", choices=list(PARTS), help="run only these measurements")
    parser.add_argument("--steps", type=int, help="steps to time (default: depends on the measurement)")
    parser.add_argument("--plot", type=Path, help="plot the results in the --json file to this file (PNG or SVG)")
    args = parser.parse_args()
    if args.plot:
        measured = json.loads(args.json.read_text())
        draw(sorted([*measured["rates"], *measured["sweep"]], key=lambda row: row["seeds"]), args.plot)
        return
    device = jax.devices()[0]
    found: dict[str, Any] = json.loads(args.json.read_text()) if args.json.exists() else {}
    found["machine"] = f"{device.device_kind}; {os.cpu_count()} cores, Python {platform.python_version()}"
    found["jax"] = jax.__version__
    for name in args.only or PARTS:
        part, steps = PARTS[name]
        print(f"{name} ...", flush=True)
        found[name] = part(args.steps or steps)
        print(f"  {json.dumps(found[name])[:300]}", flush=True)
        write_atomically(args.json, (json.dumps(found, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
