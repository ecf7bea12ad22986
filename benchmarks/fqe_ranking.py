"""Does fitted-Q evaluation put policies in the right order? Measured where the truth can be had.

    python benchmarks/fqe_ranking.py maze2d-umaze?steps=200000 --out benchmarks/results/fqe_maze2d.json
    python benchmarks/fqe_ranking.py hopper.hdf5 --env hopper-medium-replay-v2 --out benchmarks/results/fqe_hopper.json

Trains policies of very different quality (algorithms × lengths of training, small networks), rolls each out in the
environment, estimates each with FQE from the dataset alone, and compares the two orders by Spearman's rank
correlation. Its interval comes from resampling the policies: with so few of them it is wide, and it says so.
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

import jax
import numpy as np

import aspc
from aspc import data, envs
from aspc.assessment.fqe import FQEOptions, fitted_q_evaluation
from aspc.assessment.returns import choose_states
from aspc.data import Dataset
from aspc.policy import Policy
from aspc.ui import Progress

SMALL = {"actor_hidden_dim": 64, "critic_hidden_dim": 64, "batch_size": 128}
# name → algorithm and what differs from its defaults; the last one is free to leave the data.
RECIPES = {
    "bc": ("bc", {"actor_hidden_dim": 64, "batch_size": 128}),
    "iql": ("iql", {"hidden_dim": 64, "batch_size": 128}),
    "td3_bc": ("td3_bc", SMALL),
    "aspc": ("aspc", SMALL),
    "alpha=20": ("td3_bc", {**SMALL, "alpha": 20.0}),
}


def make_policies(dataset: Dataset, lengths: list[int], recipes: list[str], folder: Path) -> dict[str, Policy]:
    """Every recipe at every length of training."""
    policies = {}
    for name in recipes:
        algo, settings = RECIPES[name]
        for steps in lengths:
            options = {"horizon": max(lengths), "log_every": 500, "tensorboard": False, "quiet": True, "env": None}
            run = aspc.train(dataset, algo, out=folder / f"{name}-{steps}", steps=steps, **options, **settings)
            policies[f"{name} @ {steps:,}"] = run.policy
            print(f"trained {name} for {steps:,} steps", file=sys.stderr, flush=True)
    return policies


def real_returns(policy: Policy, env: str, episodes: int, discount: float) -> dict[str, float]:
    """Means over episodes of the discounted and the plain return, and their standard errors."""
    worlds = [envs.make_env(env) for _ in range(episodes)]
    seen = {i: world.reset(seed=10_000 + i)[0] for i, world in enumerate(worlds)}
    returns, step = np.zeros((2, episodes)), 0
    while seen:
        running = list(seen)
        for i, action in zip(running, policy.act(np.stack(list(seen.values())), step), strict=True):
            seen[i], reward, terminated, truncated, _ = worlds[i].step(action)
            returns[:, i] += np.asarray([discount**step, 1.0]) * float(reward)
            if terminated or truncated:
                del seen[i]
        step += 1
    for world in worlds:
        world.close()
    errors = returns.std(1) / np.sqrt(episodes)
    names = ("discounted", "undiscounted")
    return {n: float(r.mean()) for n, r in zip(names, returns, strict=True)} | {
        f"{n}_standard_error": float(e) for n, e in zip(names, errors, strict=True)
    }


def ranks(values: np.ndarray) -> np.ndarray:
    """1, 2, …; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def spearman(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.corrcoef(ranks(one), ranks(other))[0, 1])


def spearman_interval(one: np.ndarray, other: np.ndarray, resamples: int = 5_000) -> tuple[float, float]:
    """The central 95 % over resamples of the policies (those in which all are equal say nothing and are left out)."""
    rng, found = np.random.default_rng(0), []
    for _ in range(resamples):
        rows = rng.integers(0, len(one), len(one))
        if len(np.unique(one[rows])) > 1 and len(np.unique(other[rows])) > 1:
            found.append(spearman(one[rows], other[rows]))
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="name or path")
    parser.add_argument("--env", help="environment of a file")
    parser.add_argument("--lengths", type=int, nargs="+", default=[500, 5_000, 30_000])
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--episodes", type=int, default=20, help="real episodes of each policy")
    parser.add_argument("--fqe-steps", type=int, default=15_000)
    parser.add_argument("--hidden-dim", type=int, default=128, help="of the evaluation's critics")
    parser.add_argument("--discount", type=float, default=0.99)
    parser.add_argument("--seed", type=int, default=0, help="of the evaluation")
    parser.add_argument("--policies", type=Path, help="keep the policies here, and take them from here if there")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()

    dataset = data.load(asked.dataset, **({"env": asked.env} if asked.env else {}))
    began = time.monotonic()
    if asked.policies is not None and asked.policies.is_dir():
        kept = sorted(asked.policies.glob("*/policy.json"))
        policies = {f.parent.name: Policy.load(f.parent) for f in kept}
    else:
        with tempfile.TemporaryDirectory() as folder:
            policies = make_policies(dataset, asked.lengths, asked.recipes, Path(folder))
        if asked.policies is not None:
            for name, policy in policies.items():
                policy.save(asked.policies / name)
    trained = time.monotonic()
    truth = {name: real_returns(p, dataset.env, asked.episodes, asked.discount) for name, p in policies.items()}
    rolled = time.monotonic()
    options = FQEOptions(discount=asked.discount, steps=asked.fqe_steps, hidden_dim=asked.hidden_dim, seed=asked.seed)
    progress = Progress(options.steps)
    ranking = fitted_q_evaluation(policies, dataset, choose_states(dataset, "auto"), options, progress)
    progress.close()
    estimated = time.monotonic()

    estimates = {e.name: e for e in ranking.policies}
    # One that diverged is ranked below all others, as the command does.
    guess = np.asarray([-np.inf if estimates[n].diverged else estimates[n].value for n in policies])
    guesses = {"mean": guess, "lowest": np.minimum(guess, [min(estimates[n].critics) for n in policies])}
    correlations = {}
    for critics, which in itertools.product(guesses, ("discounted", "undiscounted")):
        real = np.asarray([truth[n][which] for n in policies])
        low, high = spearman_interval(guesses[critics], real)
        found = {"spearman": spearman(guesses[critics], real), "low": low, "high": high}
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
        "behaviour": {"fqe": ranking.behaviour.value, "monte_carlo": ranking.monte_carlo},
        "each": [
            {"name": n, "fqe": estimates[n].value, "low": estimates[n].low, "high": estimates[n].high}
            | {"critics": estimates[n].critics, "trouble": estimates[n].trouble, "real": truth[n]}
            for n in sorted(policies, key=lambda n: -truth[n]["discounted"])
        ],
        "fqe_options": dataclasses.asdict(options),
        "episodes": asked.episodes,
        "seconds": {
            "training": round(trained - began),
            "rollouts": round(rolled - trained),
            "fqe": round(estimated - rolled),
        },
        "device": f"{device.platform}: {device.device_kind}",
    }
    asked.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{'policy':20s} {'real (discounted)':>18s} {'FQE':>10s}  critics")
    for row in result["each"]:
        critics = " ".join(f"{c:.4g}" for c in row["critics"])
        print(
            f"{row['name']:20s} {row['real']['discounted']:18.4g} {row['fqe']:10.4g}  {critics}  {row['trouble'] or ''}"
        )
    for which, c in correlations.items():
        print(f"Spearman, {which}: {c['spearman']:.2f} [{c['low']:.2f}, {c['high']:.2f}]")
    print(f"FQE chose {chosen}: really {truth[chosen]['discounted']:.4g}; best {best}: {truth[best]['discounted']:.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
