"""Measure the latency and the import time of saved and exported policies, with NumPy on one core.

    python benchmarks/policy_latency.py --json benchmarks/results/policy_latency.json

The script exports policies with random weights and the paper's sizes (17 observations, 6 actions), and measures each in
a separate single-threaded process. It reports the median time per action, and the import time without that of NumPy
(the median of several starts). The exit code is 1 if an action of a 256 × 256 actor takes more than 100 µs, or the
import takes more than 0.15 s.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from aspc.export import export
from aspc.policy import Policy

OBS, ACT = 17, 6
ACTION_LIMIT, IMPORT_LIMIT = 100e-6, 0.15

# Arguments: a statement that defines `act`, and the number of actions.
MEASURE = """
import sys, time
import numpy as np
began = time.perf_counter()
exec(sys.argv[1])
loading = time.perf_counter() - began
observation = np.linspace(-1, 1, 17, dtype=np.float32)
times = []
for _ in range(int(sys.argv[2])):
    began = time.perf_counter()
    act(observation)
    times.append(time.perf_counter() - began)
assert not [name for name in sys.modules if name.partition(".")[0] in ("jax", "jaxlib")]
print(loading, sorted(times)[len(times) // 2], min(times))
"""


def random_mlp(rng: np.random.Generator, sizes: list[int], prefix: str = "", members: int = 0) -> dict[str, np.ndarray]:
    lead = (members,) if members else ()
    arrays = {}
    for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        arrays[f"{prefix}layers.{i}.weight"] = rng.normal(0, inputs**-0.5, (*lead, inputs, outputs)).astype(np.float32)
        arrays[f"{prefix}layers.{i}.bias"] = rng.normal(0, 0.1, (*lead, outputs)).astype(np.float32)
    return arrays


def make_policies() -> dict[str, Policy]:
    """Return a policy with random weights for each kind, by description."""
    rng = np.random.default_rng(0)
    diffusion = {
        **random_mlp(rng, [16, 32, 16], "time."),
        **random_mlp(rng, [ACT + 16 + OBS, 256, 256, 256, ACT], "noise."),
        **random_mlp(rng, [OBS + ACT, 256, 256, 256, 1], "critics.", members=2),
    }
    schedule = {
        name: [0.5] * 5 for name in ("alphas_cumprod", "posterior_std", "posterior_mean_coef1", "posterior_mean_coef2")
    }
    kinds: dict[str, tuple[str, dict[str, np.ndarray], dict[str, object]]] = {
        "256 x 256, ReLU": ("deterministic", random_mlp(rng, [OBS, 256, 256, ACT]), {"activation": "relu"}),
        "512 x 4 flow, GELU": (
            "flow",
            random_mlp(rng, [OBS + ACT, 512, 512, 512, 512, ACT]),
            {"activation": "gelu", "latent_size": ACT},
        ),
        "256 x 3 diffusion, 5 steps, 50 candidates": (
            "diffusion",
            diffusion,
            {"activation": "mish", "candidates": 50, **schedule},
        ),
    }
    zeros, ones = np.zeros(OBS, np.float32), np.ones(OBS, np.float32)
    low, high = -np.ones(ACT, np.float32), np.ones(ACT, np.float32)
    return {name: Policy(*parts, zeros, ones, low, high) for name, parts in kinds.items()}


def measure(statement: str, actions: int, starts: int) -> dict[str, float]:
    """Return the import time and the time per action, in seconds, as medians over several processes."""
    one_thread = {f"{lib}_NUM_THREADS": "1" for lib in ("OMP", "OPENBLAS", "MKL")}
    rows = []
    for _ in range(starts):
        command = [sys.executable, "-c", MEASURE, statement, str(actions)]
        done = subprocess.run(command, env={**os.environ, **one_thread}, capture_output=True, text=True, check=True)
        rows.append([float(word) for word in done.stdout.split()])
    loading, median, least = (statistics.median(column) for column in zip(*rows, strict=True))
    return {"import_seconds": loading, "median_seconds": median, "least_seconds": least}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--actions", type=int, default=2_000, help="number of actions per process for a deterministic policy"
    )
    parser.add_argument("--starts", type=int, default=5, help="number of processes over which medians are taken")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    args = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    print(f"{'':62s} {'one action':>12s} {'import':>9s}")
    with tempfile.TemporaryDirectory() as folder:
        for name, policy in make_policies().items():
            saved = policy.save(Path(folder) / name)
            exported = export(saved, "numpy")
            actions = args.actions if policy.kind == "deterministic" else max(args.actions // 20, 10)
            for how, statement in {
                "aspc.load_policy": f"import aspc; act = aspc.load_policy({str(saved)!r}).act",
                "exported NumPy": f"sys.path.insert(0, {str(exported)!r}); from policy import act",
            }.items():
                row = results[f"{name}: {how}"] = measure(statement, actions, args.starts)
                print(
                    f"{name + ': ' + how:62s} {1e6 * row['median_seconds']:9.0f} µs {row['import_seconds']:7.3f} s",
                    flush=True,
                )
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    small = [row for name, row in results.items() if name.startswith("256 x 256,")]
    return int(any(r["median_seconds"] > ACTION_LIMIT or r["import_seconds"] > IMPORT_LIMIT for r in small))


if __name__ == "__main__":
    sys.exit(main())
