"""Compare the ranking of policies by fitted-Q evaluation (FQE) with the ranking by their real returns.

    python benchmarks/fqe_ranking.py maze2d-umaze?steps=200000 --out benchmarks/results/fqe_maze2d.json
    python benchmarks/fqe_ranking.py hopper.hdf5 --env hopper-medium-replay-v2 --out benchmarks/results/fqe_hopper.json

The script trains small policies of very different quality, with several algorithms and training lengths. It rolls out
each policy in the environment, estimates its value with FQE from the dataset alone, and compares the two rankings by
Spearman's rank correlation, with a bootstrap interval over policies.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import aspc
from aspc import data, envs
from aspc.assessment import FQEOptions, choose_states, fitted_q_evaluation
from aspc.data import Dataset
from aspc.policy import Policy
from aspc.ui import Progress

SMALL = {"actor_hidden_dim": 64, "critic_hidden_dim": 64, "batch_size": 128}
# Name → algorithm and settings that differ from its defaults. The last recipe is the least constrained.
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "bc": ("bc", {"actor_hidden_dim": 64, "batch_size": 128}),
    "iql": ("iql", {"hidden_dim": 64, "batch_size": 128}),
    "td3_bc": ("td3_bc", SMALL),
    "aspc": ("aspc", SMALL),
    "alpha=20": ("td3_bc", {**SMALL, "alpha": 20.0}),
}


def make_policies(dataset: Dataset, lengths: list[int], recipes: list[str], folder: Path) -> dict[str, Policy]:
    """Train every recipe for every number of steps, and return the policies by name."""
    policies = {}
    for name in recipes:
        algo, settings = RECIPES[name]
        for steps in lengths:
            options: dict[str, Any] = {
                "horizon": max(lengths),
                "log_every": 500,
                "tensorboard": False,
                "quiet": True,
                "env": None,
            }
            run = aspc.train(dataset, algo, out=folder / f"{name}-{steps}", steps=steps, **options, **settings)
            policies[f"{name} @ {steps:,}"] = run.policy
            print(f"trained {name} for {steps:,} steps", file=sys.stderr, flush=True)
    return policies


def real_returns(policy: Policy, env: str, episodes: int, discount: float) -> dict[str, float]:
    """Return the mean discounted and undiscounted returns of a policy over episodes, and their standard errors."""
    instances = [envs.make_env(env) for _ in range(episodes)]
    observations = {i: instance.reset(seed=10_000 + i)[0] for i, instance in enumerate(instances)}
    returns, step, memory = np.zeros((2, episodes)), 0, policy.initial_memory(episodes)
    while observations:
        running = list(observations)
        rows = np.stack(list(observations.values())).astype(np.float32)
        actions, memory[running] = policy.step(rows, memory[running], step)
        for i, action in zip(running, actions, strict=True):
            observations[i], reward, terminated, truncated, _ = instances[i].step(action)
            returns[:, i] += np.asarray([discount**step, 1.0]) * float(reward)
            if terminated or truncated:
                del observations[i]
        step += 1
    for instance in instances:
        instance.close()
    errors = returns.std(1) / np.sqrt(episodes)
    names = ("discounted", "undiscounted")
    return {n: float(r.mean()) for n, r in zip(names, returns, strict=True)} | {
        f"{n}_standard_error": float(e) for n, e in zip(names, errors, strict=True)
    }


def ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks that start at 1. Equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def spearman(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.corrcoef(ranks(one), ranks(other))[0, 1])


def spearman_interval(one: np.ndarray, other: np.ndarray, resamples: int = 5_000) -> tuple[float, float]:
    """Return the 95 % bootstrap interval over policies, ignoring resamples in which all values are equal."""
    rng, found = np.random.default_rng(0), []
    for _ in range(resamples):
        rows = rng.integers(0, len(one), len(one))
        if len(np.unique(one[rows])) > 1 and len(np.unique(other[rows])) > 1:
            found.append(spearman(one[rows], other[rows]))
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="name or path of the dataset")
    parser.add_argument("--env", help="environment, if DATASET is a file that does not name one")
    parser.add_argument("--lengths", type=int, nargs="+", default=[500, 5_000, 30_000])
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--episodes", type=int, default=20, help="number of episodes per policy in the environment")
    parser.add_argument("--fqe-steps", type=int, default=15_000)
    parser.add_argument("--hidden-dim", type=int, default=128, help="width of FQE's critics")
    parser.add_argument("--discount", type=float, default=0.99)
    parser.add_argument("--seed", type=int, default=0, help="seed of FQE")
    parser.add_argument(
        "--policies", type=Path, help="save the policies to this folder, or load them from it if it exists"
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    dataset = data.load(args.dataset, **({"env": args.env} if args.env else {}))
    if dataset.env is None:
        parser.error(f"{args.dataset} does not name its environment. Pass --env.")
    env = dataset.env
    began = time.monotonic()
    if args.policies is not None and args.policies.is_dir():
        kept = sorted(args.policies.glob("*/policy.json"))
        policies = {f.parent.name: Policy.load(f.parent) for f in kept}
    else:
        with tempfile.TemporaryDirectory() as folder:
            policies = make_policies(dataset, args.lengths, args.recipes, Path(folder))
        if args.policies is not None:
            for name, policy in policies.items():
                policy.save(args.policies / name)
    trained = time.monotonic()
    truth = {name: real_returns(p, env, args.episodes, args.discount) for name, p in policies.items()}
    rolled = time.monotonic()
    options = FQEOptions(discount=args.discount, steps=args.fqe_steps, hidden_dim=args.hidden_dim, seed=args.seed)
    progress = Progress(options.steps)
    ranking = fitted_q_evaluation(policies, dataset, choose_states(dataset, "auto"), options, progress)
    progress.close()
    estimated = time.monotonic()

    estimates = {e.name: e for e in ranking.policies}
    # Diverged estimates are ranked last, as by `aspc fqe`.
    estimated_values = np.asarray([-np.inf if estimates[n].has_diverged else estimates[n].value for n in policies])
    candidates = {
        "mean": estimated_values,
        "lowest": np.minimum(estimated_values, [min(estimates[n].critics) for n in policies]),
    }
    correlations = {}
    for critics, which in itertools.product(candidates, ("discounted", "undiscounted")):
        real = np.asarray([truth[n][which] for n in policies])
        low, high = spearman_interval(candidates[critics], real)
        found = {"spearman": spearman(candidates[critics], real), "low": low, "high": high}
        correlations[f"{critics} of the critics, {which} return"] = found
    chosen, best = ranking.policies[0].name, max(truth, key=lambda n: truth[n]["discounted"])
    device = jax.devices()[0]
    result = {
        "dataset": dataset.name,
        "env": dataset.env,
        "transitions": len(dataset),
        "policies": len(policies),
        "correlation": correlations,
        "chosen": {"name": chosen, **truth[chosen]},
        "really_best": {"name": best, **truth[best]},
        "mean_of_all": {w: float(np.mean([t[w] for t in truth.values()])) for w in ("discounted", "undiscounted")},
        "behavior": {"fqe": ranking.behavior.value, "monte_carlo": ranking.monte_carlo},
        "each": [
            {"name": n, "fqe": estimates[n].value, "low": estimates[n].low, "high": estimates[n].high}
            | {"critics": estimates[n].critics, "trouble": estimates[n].warning, "real": truth[n]}
            for n in sorted(policies, key=lambda n: -truth[n]["discounted"])
        ],
        "fqe_options": dataclasses.asdict(options),
        "episodes": args.episodes,
        "seconds": {
            "training": round(trained - began),
            "rollouts": round(rolled - trained),
            "fqe": round(estimated - rolled),
        },
        "device": f"{device.platform}: {device.device_kind}",
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{'policy':20s} {'real (discounted)':>18s} {'FQE':>10s}  critics")
    for row in result["each"]:
        critics = " ".join(f"{c:.4g}" for c in row["critics"])
        print(
            f"{row['name']:20s} {row['real']['discounted']:18.4g} {row['fqe']:10.4g}  {critics}  {row['trouble'] or ''}"
        )
    for which, c in correlations.items():
        print(f"Spearman, {which}: {c['spearman']:.2f} [{c['low']:.2f}, {c['high']:.2f}]")
    print(f"FQE chose {chosen}: {truth[chosen]['discounted']:.4g}; the best is {best}: {truth[best]['discounted']:.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
