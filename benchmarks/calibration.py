"""Measure how reliable the verdicts of `aspc assess` are, on tasks for which a simulator provides the true values.

    python benchmarks/calibration.py --out FOLDER                              20 generated mazes
    python benchmarks/calibration.py hopper.hdf5 antmaze.hdf5 --out FOLDER     datasets that name their environment

Per dataset: hold out episodes, train several algorithms × seeds briefly, assess all their checkpoints on the held-out
episodes, and roll every policy out in the environment. The true value of a policy is the difference between its
discounted return and that of the logged controller. In Maze2d and OGBench's navigation tasks, whose state can be set,
both returns begin in the first states of held-out episodes. In other tasks, both begin in the environment's initial
states, as the logged episodes do. Both omit rewards whose discount is below 0.5 %.

A dataset takes two processes: one trains the policies and rolls them out, on one CPU core (`--workers` at a time); one
assesses them, on an accelerator if there is one (`--assessors` at a time). Both keep their results in FOLDER, so an
interrupted command continues. FOLDER/calibration.json and the printed table summarize all results: per estimator and
for their combination, means over datasets with 90 % intervals over resampled datasets.

  estimates      fraction of policies for which the estimator gives an estimate
  coverage       fraction of true differences inside the nominal 90 % intervals, which allow for the error of the truth
  Spearman       rank correlation of estimated and true differences
  regret@1       true value lost by deploying the policy ranked first, as a fraction of the policies' range
  worse          fraction of datasets where that policy is worse than the logged controller; for "selection", where the
                 policy that `aspc assess --select` saves (if it saves one) is worse
  SharpeRatio@3  (best true value of the first three − the controller's) / their standard deviation
  factor         factor by which the width of the intervals must be multiplied for a coverage of 90 %
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import aspc
from aspc import data, envs, tasks
from aspc.assessment.assess_options import AssessOptions
from aspc.assessment.trained_runs import checkpoint_policies
from aspc.data import Dataset
from aspc.io import read_json, write_json
from aspc.policy import Policy
from aspc.training.evaluation import available_cores
from fqe_ranking import RECIPES, spearman

HOLDOUT, LEVEL, Z90 = 0.3, 0.9, 1.6449
DISCOUNT = 0.99
HORIZON = math.ceil(math.log(0.005) / math.log(DISCOUNT))  # steps whose rewards count
COMBINATION, SELECTION = "combination", "selection"
RUNS = "runs"  # folder of the trained policies and their true returns
OWN_ARGUMENTS = ("out", "only", "truth", "workers", "assessors")  # do not affect results
MAZES = [
    f"maze2d-{maze}{suffix}?steps={steps}&seed={seed}"
    for maze, steps in (("umaze", 60_000), ("medium", 120_000))
    for suffix in ("", "-clean")
    for seed in range(5)
]

# ---------------------------------------------------------------------------------------------------------------
# One dataset
# ---------------------------------------------------------------------------------------------------------------


def load(name: str) -> Dataset:
    dataset = data.load(name)
    if dataset.env is None:
        raise SystemExit(f"{name} names no environment, so the truth is unknown; use a dataset that does.")
    return dataset


def runs_of(args: argparse.Namespace, name: str) -> list[Path]:
    """Return the run folder of every recipe."""
    return [args.out / RUNS / file_of(args.out, name).stem / recipe for recipe in args.recipes]


def measure_truth(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Train the policies of one dataset and roll their checkpoints out."""
    dataset = load(name)
    training: dict[str, Any] = {
        "steps": args.steps,
        "seeds": tuple(range(args.seeds)),
        "holdout": HOLDOUT,
        "checkpoint_every": args.steps // args.checkpoints,
        "checkpoints_to_keep": args.checkpoints,
        "log_every": args.steps // args.checkpoints,
        "eval_every": args.steps // args.checkpoints,
        "tensorboard": False,
        "env": None,
        "quiet": True,
    }
    for recipe, folder in zip(args.recipes, runs_of(args, name), strict=True):
        algo, settings = RECIPES[recipe]
        shutil.rmtree(folder, ignore_errors=True)  # of an interrupted command
        aspc.train(name, algo, out=folder, **training, **settings)
        print(f"{name}: trained {recipe}", file=sys.stderr, flush=True)
    _, held_out = dataset.split(HOLDOUT, seed=0)
    truth = {}
    for candidate in checkpoint_policies(runs_of(args, name), dataset):
        returns = policy_returns(candidate.policy, held_out, args.episodes)
        truth[candidate.name] = {"mean": float(returns.mean()), "error": standard_error(returns)}
    controller = controller_returns(dataset, held_out)
    print(f"{name}: rolled out {len(truth)} policies", file=sys.stderr, flush=True)
    return {"mean": float(controller.mean()), "error": standard_error(controller), "policies": truth}


def standard_error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5)


def measure(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Assess the policies of one dataset and compare the estimates with the truth."""
    controller = read_json(truth_file(args.out, name))
    options = AssessOptions(
        steps=args.fqe_steps,
        model_steps=args.model_steps,
        hidden_dim=args.hidden_dim,
        level=LEVEL,
        discount=DISCOUNT,
    )
    assessment = aspc.assess(runs_of(args, name), checkpoints=True, options=options)
    selected, rows = assessment.select(), []
    for policy in assessment.policies:
        real, reward = controller["policies"][policy.name], policy.reward
        estimates = {
            e.estimator: {"difference": e.difference, "error": e.standard_error, "silent": e.silent_because}
            for e in policy.of_signal("reward")
        }
        estimates[COMBINATION] = {
            "difference": reward.difference,
            "error": reward.standard_error,
            "silent": None if reward.is_known else "no estimator gives an estimate",
        }
        rows.append(
            {
                "name": policy.name,
                "truth": real["mean"] - controller["mean"],
                "truth_error": math.hypot(real["error"], controller["error"]),
                "verdict": policy.verdict.kind,
                "far": policy.support.far,
                "low": reward.low,
                "estimates": estimates,
            }
        )
    print(f"{name}: assessed {len(rows)} policies", file=sys.stderr, flush=True)
    chosen = None if selected is None else selected.name
    return {"dataset": name, "controller": controller["mean"], "selected": chosen, "policies": rows}


def is_maze(dataset: Dataset) -> bool:
    return dataset.env is not None and dataset.env.startswith("maze2d")


def start_rows(dataset: Dataset) -> np.ndarray:
    return dataset.episode_bounds[0]


def controller_returns(dataset: Dataset, held_out: Dataset) -> np.ndarray:
    """Return the controller's discounted returns from the start states.

    In Maze2d the log is one continuous trajectory: a timeout marks a reached target, and the controller continues.
    """
    continues = is_maze(dataset)
    ends = dataset.terminals if continues else dataset.terminals | dataset.timeouts
    returns, running = np.zeros(len(dataset)), 0.0
    for i in range(len(dataset) - 1, -1, -1):
        running = float(dataset.rewards[i]) + (0.0 if ends[i] else DISCOUNT * running)
        returns[i] = running
    wanted = held_out.observations[start_rows(held_out)], held_out.actions[start_rows(held_out)]
    if not continues and state_setter(held_out) is None:
        return returns[start_rows(dataset)]  # all start states have the same distribution
    keys = {(s.tobytes(), a.tobytes()) for s, a in zip(*wanted, strict=True)}
    enough = len(dataset) - (HORIZON if continues else 0)  # the returns of later rows are truncated
    rows = zip(dataset.observations[:enough], dataset.actions[:enough], strict=True)
    return returns[[i for i, (s, a) in enumerate(rows) if (s.tobytes(), a.tobytes()) in keys]]


def state_setter(dataset: Dataset) -> Callable[[Any, np.ndarray], None] | None:
    """Return a function that puts an environment into the state of an observation; None if observations are partial."""
    assert dataset.env is not None
    if is_maze(dataset):

        def set_maze(env: Any, observation: np.ndarray) -> None:
            env.state = tuple(observation.tolist())

        return set_maze
    if tasks.is_ogbench_task(dataset.env) and dataset.env.split("-")[0] in ("pointmaze", "antmaze"):

        def set_positions(env: Any, observation: np.ndarray) -> None:
            size = env.model.nq  # a point stops at once without an action, so its observation has no velocities
            velocities = observation[size:] if len(observation) > size else np.zeros(env.model.nv)
            env.set_state(observation[:size].astype(float), velocities.astype(float))

        return set_positions
    return None


def policy_returns(policy: Policy, held_out: Dataset, episodes: int) -> np.ndarray:
    """Roll a policy out in the environment; return the discounted return of each episode."""
    assert held_out.env is not None
    instances = [envs.make_env(held_out.env) for _ in range(episodes)]
    observations = [instance.reset(seed=10_000 + i)[0] for i, instance in enumerate(instances)]
    set_state = state_setter(held_out)
    if set_state is not None:
        rows = start_rows(held_out)
        chosen = rows[np.linspace(0, len(rows) - 1, episodes).astype(int)]
        observations = list(held_out.observations[chosen])
        for instance, observation in zip(instances, observations, strict=True):
            set_state(instance.unwrapped, observation)
    rewards_lag = int(is_maze(held_out))  # a maze's log has the reward of the state before the step, not after it
    returns, running, step = np.zeros(episodes), list(range(episodes)), 0
    rng, memory = np.random.default_rng(0), policy.initial_memory(episodes)
    while running and step < HORIZON:
        rows = np.stack([observations[i] for i in running]).astype(np.float32)
        actions, memory[running] = policy.step(rows, memory[running], rng)
        for i, action in zip(list(running), actions, strict=True):
            observations[i], reward, terminated, truncated, _ = instances[i].step(action)
            returns[i] += DISCOUNT ** (step + rewards_lag) * float(reward)
            if terminated or truncated:
                running.remove(i)
        step += 1
    for instance in instances:
        instance.close()
    return returns


# ---------------------------------------------------------------------------------------------------------------
# All datasets
# ---------------------------------------------------------------------------------------------------------------


def summarize(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the measures of every estimator, the combination and the selection, with intervals over datasets."""
    kinds = list(dict.fromkeys(kind for r in results for p in r["policies"] for kind in p["estimates"]))
    table: dict[str, Any] = {}
    for kind in kinds:
        per_dataset = [measures_of(result, kind) for result in results]
        names = list(dict.fromkeys(name for row in per_dataset for name in row))
        table[kind] = {name: mean_over_datasets([row.get(name) for row in per_dataset]) for name in names}
        table[kind]["factor"] = width_factor(results, kind)
    table[SELECTION] = {"worse": mean_over_datasets([selection_is_worse(result) for result in results])}
    table[SELECTION]["selected any"] = mean_over_datasets([float(r["selected"] is not None) for r in results])
    policies = sum(len(result["policies"]) for result in results)
    return {"datasets": len(results), "policies": policies, "level": LEVEL, "estimators": table}


def given_estimates(result: dict[str, Any], kind: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the policies for which an estimator gives an estimate, with the estimates."""
    pairs = [(p, p["estimates"][kind]) for p in result["policies"] if kind in p["estimates"]]
    return [(p, e) for p, e in pairs if e["silent"] is None]


def measures_of(result: dict[str, Any], kind: str) -> dict[str, float]:
    """Return the measures of one estimator on one dataset; those of its ranking need at least three policies."""
    pairs = given_estimates(result, kind)
    found = {"estimates": len(pairs) / len(result["policies"])}
    if not pairs:
        return found
    found["coverage"] = float(np.mean([miss(p, e) <= 1 for p, e in pairs]))
    if len(pairs) < 3:
        return found
    truth, estimate = np.asarray([p["truth"] for p, _ in pairs]), np.asarray([e["difference"] for _, e in pairs])
    found["Spearman"] = spearman(estimate, truth)
    score = np.asarray([ranking_score(p, e, kind) for p, e in pairs])
    order = np.argsort(-score)
    every = np.asarray([p["truth"] for p in result["policies"]])
    found["regret@1"] = float((every.max() - truth[order[0]]) / max(every.max() - every.min(), 1e-9))
    found["worse"] = float(truth[order[0]] < 0)
    first = truth[order[:3]]
    found["SharpeRatio@3"] = float(first.max() / max(first.std(), 1e-9))
    return found


def ranking_score(policy: dict[str, Any], estimate: dict[str, Any], kind: str) -> float:
    """Return the value by which to rank a policy.

    This is the estimate or, for the combination, its lower bound; policies outside the data rank last.
    """
    if kind != COMBINATION:
        return float(estimate["difference"])
    return float(policy["low"]) - (1e9 if policy["verdict"] == "outside the data" else 0)


def miss(policy: dict[str, Any], estimate: dict[str, Any]) -> float:
    """Return the error of an estimate in half-widths of its interval."""
    return abs(estimate["difference"] - policy["truth"]) / (
        Z90 * max(math.hypot(estimate["error"], policy["truth_error"]), 1e-12)
    )


def width_factor(results: list[dict[str, Any]], kind: str) -> float | None:
    misses = [miss(p, e) for result in results for p, e in given_estimates(result, kind)]
    return float(np.quantile(misses, LEVEL)) if misses else None


def selection_is_worse(result: dict[str, Any]) -> float:
    return float(any(p["name"] == result["selected"] and p["truth"] < 0 for p in result["policies"]))


def mean_over_datasets(values: list[float | None]) -> dict[str, float] | None:
    """Return the mean over datasets with its 90 % bootstrap interval; None without values."""
    known = np.asarray([v for v in values if v is not None and math.isfinite(v)])
    if len(known) == 0:
        return None
    rng = np.random.default_rng(0)
    means = known[rng.integers(0, len(known), (2_000, len(known)))].mean(1)
    low, high = np.quantile(means, [0.05, 0.95])
    return {"mean": float(known.mean()), "low": float(low), "high": float(high), "datasets": len(known)}


def print_summary(summary: dict[str, Any]) -> None:
    columns = ("estimates", "coverage", "Spearman", "regret@1", "worse", "SharpeRatio@3")
    print(f"{summary['policies']} policies on {summary['datasets']} datasets; 90 % intervals over datasets")
    print(f"{'':20s}" + "".join(f"{c:>22s}" for c in (*columns, "factor")))
    for kind, found in summary["estimators"].items():
        cells = [found.get(column) for column in columns]
        text = "".join(f"{'' if c is None else '{mean:.2f} [{low:.2f}, {high:.2f}]'.format(**c):>22s}" for c in cells)
        factor = found.get("factor")
        print(f"{kind:20s}{text}{'' if factor is None else f'{factor:.2f}':>22s}")


def file_of(folder: Path, name: str) -> Path:
    return folder / ("".join(c if c.isalnum() or c in "-." else "_" for c in Path(name).name) + ".json")


def truth_file(folder: Path, name: str) -> Path:
    return folder / RUNS / f"truth_{file_of(folder, name).name}"


def measure_all(args: argparse.Namespace, argv: list[str], run: Callable[[list[str], bool], int]) -> int:
    """Measure the datasets without a result, several processes at a time; return the number of failures."""
    waiting = [name for name in args.datasets if not file_of(args.out, name).exists()]
    others = [word for word in argv if word not in args.datasets]
    training, assessing = threading.Semaphore(args.workers), threading.Semaphore(args.assessors)

    def both(name: str) -> int:
        with training:
            code = 0 if truth_file(args.out, name).exists() else run([*others, "--truth", name], True)
        if code == 0:
            with assessing:
                code = run([*others, "--only", name], False)
        return code

    with ThreadPoolExecutor(max(len(waiting), 1)) as pool:
        codes = list(pool.map(both, waiting))
    for name, code in zip(waiting, codes, strict=True):
        if code:
            print(f"{name} failed with exit code {code}; run the command again.", file=sys.stderr)
    return sum(code != 0 for code in codes)


def start_process(words: list[str], on_cpu: bool) -> int:
    """Run this script with other arguments. On a CPU, a process uses one core."""
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if on_cpu:
        environment |= {"JAX_PLATFORMS": "cpu"} | {f"{x}_NUM_THREADS": "1" for x in ("OMP", "OPENBLAS", "MKL")}
    return subprocess.run([sys.executable, __file__, *words], check=False, env=environment).returncode


def use_one_core(name: str) -> None:
    """Restrict this process to a core that depends on the dataset's name: XLA sizes its thread pool by the cores."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[zlib.crc32(name.encode()) % len(cores)]})


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", help="names or paths; default: 20 generated mazes")
    parser.add_argument("--out", type=Path, required=True, help="folder of results (created if missing)")
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--seeds", type=int, default=2, help="seeds per algorithm")
    parser.add_argument("--checkpoints", type=int, default=3, help="policies per seed")
    parser.add_argument("--steps", type=int, default=9_000, help="training steps")
    parser.add_argument("--fqe-steps", type=int, default=10_000)
    parser.add_argument("--model-steps", type=int, default=5_000)
    parser.add_argument("--hidden-dim", type=int, default=256, help="width of critics and models")
    parser.add_argument("--episodes", type=int, default=100, help="episodes per policy in the environment")
    parser.add_argument("--workers", type=int, default=available_cores(), help="datasets trained on at a time")
    parser.add_argument("--assessors", type=int, default=1, help="datasets assessed at a time")
    parser.add_argument("--truth", help=argparse.SUPPRESS)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    args.datasets = args.datasets or MAZES
    (args.out / RUNS).mkdir(parents=True, exist_ok=True)
    if args.truth is not None:
        use_one_core(args.truth)
        write_json(truth_file(args.out, args.truth), measure_truth(args, args.truth))
        return 0
    if args.only is not None:
        write_json(file_of(args.out, args.only), measure(args, args.only))
        return 0
    failures = measure_all(args, argv, start_process)
    files = [file_of(args.out, name) for name in args.datasets]
    results = [json.loads(file.read_text("utf-8")) for file in files if file.exists()]
    if results:
        summary = summarize(results)
        settings = {name: value for name, value in vars(args).items() if name not in OWN_ARGUMENTS}
        write_json(args.out / "calibration.json", summary | {"settings": settings})
        print_summary(summary)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
