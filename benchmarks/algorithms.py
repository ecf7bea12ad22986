"""Measure the training speed of every algorithm and the cost of the learned scale.

    python benchmarks/algorithms.py [--json FILE]

The script prints two Markdown tables. The first lists steps per second, floating-point operations per step, the
FLOP/s that the step's matrix products reach in isolation, and the fraction of that rate that training reaches. The
second lists the time of base+ASPC relative to the base with a fixed scale. Chunks of both are timed alternately, so
that other load on the machine affects both equally.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from typing import Any

from aspc.lab.speed.measure import SpeedBenchmark, measure

# Steps per timed chunk. A chunk takes about a second on two cores.
ALGORITHMS = {
    "bc": 2000,
    "td3_bc": 200,
    "aspc": 200,
    "aspc_plus": 200,
    "wpc": 200,
    "a2pr": 100,
    "iql": 200,
    "rebrac": 200,
    "cql": 40,
    "diffusion_ql": 40,
    "fql": 40,
}
PAIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "aspc": ("td3_bc", {}),
    "aspc_plus": ("td3_bc", {}),
    "wpc+aspc": ("wpc", {}),
    "rebrac+aspc": ("rebrac", {}),
    "iql+aspc": ("iql", {}),
    "cql+aspc": ("cql", {}),
    "diffusion_ql+aspc": ("diffusion_ql", {}),
    "fql+aspc": ("fql", {"scale_on": "q", "normalize_q": True}),  # appendix D's objective at a fixed scale
}
ROUNDS = {"fast": 41, "slow": 9}  # short chunks and many rounds average out other load on the machine


def measure_speeds(names: list[str]) -> list[dict[str, Any]]:
    print("| algorithm | batch | steps/s | MFLOP per step | measured matmul GFLOP/s | fraction of it |")
    print("|---|---|---|---|---|---|")
    rows = []
    for name in names:
        row = measure(name, 17, 6, None, 1, ALGORITHMS[name])
        rows.append(row)
        print(
            f"| {name} | {row['batch']} | {row['steps_per_second']:.0f} | {row['flops_per_step'] / 1e6:.0f} | "
            f"{row['matmul_flops_per_second'] / 1e9:.0f} | {100 * row['share_of_matmul_bound']:.0f} % |",
            flush=True,
        )
    return rows


def measure_costs(names: list[str]) -> list[dict[str, Any]]:
    print("\n| with ASPC | over | k_alpha = 10 | k_alpha = 30 |")
    print("|---|---|---|---|")
    rows = []
    for name in names:
        base, same_objective = PAIRS[name]
        # Chunks contain complete update cycles of the scale, so that each has its share of outer updates.
        steps, rounds = (120, ROUNDS["fast"]) if ALGORITHMS[base] > 40 else (60, ROUNDS["slow"])
        programs = {
            "base": SpeedBenchmark(base, 17, 6, None, 1, steps, **same_objective),
            10: SpeedBenchmark(name, 17, 6, None, 1, steps, k_alpha=10),
            30: SpeedBenchmark(name, 17, 6, None, 1, steps, k_alpha=30),
        }
        ratios: dict[int, list[float]] = {10: [], 30: []}
        for _ in range(rounds):
            seconds = {key: program.time_chunk() / program.steps for key, program in programs.items()}
            for k in ratios:
                ratios[k].append(seconds[k] / seconds["base"])
        row = {"algo": name, "base": base, **{f"k_alpha_{k}": statistics.median(v) for k, v in ratios.items()}}
        rows.append(row)
        print(f"| {name} | {base} | {row['k_alpha_10']:.3f} | {row['k_alpha_30']:.3f} |", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="also write the results to this file")
    parser.add_argument("--only", nargs="*", help="measure only these algorithms")
    args = parser.parse_args()
    chosen = {name for name in (*ALGORITHMS, *PAIRS) if not args.only or name in args.only}
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{machine}; observation size 17, action size 6, float32, the algorithms' own batch sizes\n")
    result = {
        "machine": machine,
        "speeds": measure_speeds([name for name in ALGORITHMS if name in chosen]),
        "costs": measure_costs([name for name in PAIRS if name in chosen]),
    }
    if args.json:
        with open(args.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
