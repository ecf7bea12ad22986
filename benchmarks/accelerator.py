"""Everything about speed on an accelerator, in one run of a few minutes.

    python benchmarks/accelerator.py --json benchmarks/results/NAME.json [--only rates overhead …]

Each part is printed and saved when it is done, so a run that is cut off keeps what it has:

rates       steps a second, compile seconds and peak memory for 1, 4 and 64 runs together (a table of a million rows)
overhead    ASPC's time over TD3+BC's, chunks in turn
restart     compile seconds of a second process that finds the program in the persistent cache
equal       two trainings with equal seeds give equal bits
evaluation  wall time with 10 episodes every 5,000 steps over training alone, and the interval that hides evaluation
profile     shares of a step and kernels launched, for 1 and 64 runs
sweep       1 to 256 runs
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
from aspc.policy import write_atomically
from aspc.training import speed
from aspc.training.profile import profile

SIZES = (17, 6, 256)  # HalfCheetah's observation and action, the paper's batch
MILLION = 1_000_000


def rates(steps: int) -> list[dict[str, Any]]:
    rows = []
    for runs in (64, 4, 1):  # the largest first: the peak of memory is the process's
        row = speed.measured(speed.Prepared("aspc", *SIZES, runs, steps, rows=MILLION), bound=runs == 1)
        rows.append(row)
        print(f"  {runs} runs: {row['steps_per_second']:,.0f} steps/s, compiled in {row['compile_seconds']:.1f} s")
    return rows


def overhead(steps: int) -> list[dict[str, Any]]:
    return speed.compare(["td3_bc", "aspc"], *SIZES, 1, steps)


def restart(steps: int) -> dict[str, Any]:
    """The first process fills the cache, the second finds it; both say how long they took to compile."""
    command = [sys.executable, "-m", "aspc", "speed", "--cache", "--sweep-seeds", "1", "--json", "--steps", str(steps)]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "ASPC_COMPILATION_CACHE": cache, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        seconds = []
        for _ in range(2):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            seconds.append(json.loads(done.stdout)[0]["compile_seconds"])
    return {"first_seconds": seconds[0], "second_seconds": seconds[1]}


def equal(steps: int) -> dict[str, Any]:
    """Chunks of two programs that were made from the same seeds."""
    states = []
    for _ in range(2):
        prepared = speed.Prepared("aspc", *SIZES, 4, steps)
        prepared.chunk()
        states.append(jax.device_get(prepared.state))
    pairs = zip(jax.tree.leaves(states[0]), jax.tree.leaves(states[1]), strict=True)
    return {"equal_bits": all(np.array_equal(a, b) for a, b in pairs)}


def evaluation(steps: int) -> dict[str, Any]:
    """HalfCheetah never ends an episode early, so its evaluations are the longest."""
    data = synthetic_dataset(17, 6, 100_000)
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, env in (("warm up", None), ("alone", None), ("with evaluation", "halfcheetah-medium-v2")):
            begin = time.perf_counter()
            run = aspc.train(data, env=env, steps=steps, eval_every=5_000, out=Path(folder) / name, quiet=True)
            seconds[name] = time.perf_counter() - begin
        result = run.result or {}
    return {
        "steps": steps,
        "alone_seconds": seconds["alone"],
        "with_evaluation_seconds": seconds["with evaluation"],
        "ratio": seconds["with evaluation"] / seconds["alone"],
        "evaluation_seconds": result.get("evaluation_seconds"),
        "hidden_eval_every": result.get("hidden_eval_every"),
    }


def synthetic_dataset(obs_dim: int, act_dim: int, rows: int) -> aspc.Dataset:
    """Random rows as episodes of 1,000."""
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


def profiles(steps: int) -> list[dict[str, Any]]:
    found = []
    for runs in (1, 64):
        prepared = speed.Prepared("aspc", *SIZES, runs, steps)
        seen = profile(prepared)
        parts = [part._asdict() for part in seen.parts]
        found.append({**prepared.facts(), "kernels_per_step": seen.kernels_per_step, "parts": parts})
    return found


def sweep(steps: int) -> list[dict[str, Any]]:
    rows = []
    for row in speed.sweep("aspc", *SIZES, [1, 2, 4, 8, 16, 32, 64, 128, 256], steps):
        rows.append(row)
        print(f"  {row['seeds']} runs: {row['steps_per_second']:,.0f} steps/s", flush=True)
    return rows


PARTS: dict[str, tuple[Callable[[int], Any], int]] = {
    "rates": (rates, 2_000),
    "overhead": (overhead, 10_000),
    "restart": (restart, 2_000),
    "equal": (equal, 1_000),
    "evaluation": (evaluation, 100_000),
    "profile": (profiles, 1_000),
    "sweep": (sweep, 1_000),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="where the figures go; parts that are there are kept")
    parser.add_argument("--only", nargs="*", choices=list(PARTS), help="only these parts")
    parser.add_argument("--steps", type=int, help="steps to time, instead of each part's own")
    asked = parser.parse_args()
    device = jax.devices()[0]
    found: dict[str, Any] = json.loads(asked.json.read_text()) if asked.json.exists() else {}
    found["machine"] = f"{device.device_kind}; {os.cpu_count()} cores, Python {platform.python_version()}"
    found["jax"] = jax.__version__
    for name in asked.only or PARTS:
        part, steps = PARTS[name]
        print(f"{name} ...", flush=True)
        found[name] = part(asked.steps or steps)
        print(f"  {json.dumps(found[name])[:300]}", flush=True)
        write_atomically(asked.json, (json.dumps(found, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
