"""Measure how reliable the verdicts of `aspc assess` are, on tasks for which a simulator provides the true values.

    python benchmarks/calibration.py --out FOLDER                              20 generated mazes
    python benchmarks/calibration.py hopper.hdf5 antmaze.hdf5 --out FOLDER     datasets that name their environment
    python benchmarks/calibration.py --policies POLICIES --out FOLDER          D4RL's four domains and OGBench

The last command generates 22 datasets: mazes, and datasets of `study_data.py` at the fraction `--scale` of their full
sizes. POLICIES is the folder with the behavior policies (see docs/study_data.md). For example, on a machine with 16
cores and an accelerator:

    python benchmarks/calibration.py --policies POLICIES --out FOLDER --episodes 50 --assessors 4

For each dataset, the script holds out episodes, briefly trains several algorithms with several seeds, assesses all
their checkpoints on the held-out episodes, and rolls out every policy in the environment. `true_returns.py` defines the
true difference between a policy and the logged controller.

Each dataset needs two processes. One trains the policies and rolls them out on one CPU core (`--workers` at a time).
The other assesses them, on an accelerator if there is one (`--assessors` at a time). FOLDER/calibration.json is updated
after every dataset and contains all results. To continue after an interruption, run the same command again; this file
alone is sufficient. `--reassess` keeps the policies and their true returns but repeats the assessment, for example
after a change to the estimators.

The printed table (`calibration_summary.py`) lists means over datasets, with 90 % bootstrap intervals over datasets:

  estimates         fraction of policies for which the estimator gives an estimate; in the selection rows, fraction of
                    datasets on which a policy is selected
  coverage          fraction of true differences inside the nominal 90 % intervals without a systematic error; the
                    intervals allow for the error of the truth
  cross-val.        the same, but with the systematic error estimated from the other datasets
  Spearman          rank correlation between estimated and true differences
  regret@1          true value lost by deploying the policy that is ranked first, as a fraction of the policies' range
  worse             fraction of datasets on which that policy is worse than the logged controller
  SharpeRatio@3     (best true value of the first three policies − the controller's) / their standard deviation
  systematic error  the error that must be added to the standard error to cover 90 % of the true differences, in
                    standard deviations of the logged returns from all states

The selection rows refer to the policy that `aspc assess --select` saves, if any: first with the systematic error
estimated from the other datasets, then without the correction for several policies, and finally also without a
systematic error.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import aspc
from aspc import data
from aspc.assessment.assess_options import AssessOptions
from aspc.assessment.trained_runs import checkpoint_policies
from aspc.data import Dataset
from aspc.io import read_json, replace_nonfinite, write_json
from aspc.training.evaluation import available_cores
from calibration_summary import LEVEL, print_summary, summarize
from fqe_ranking import RECIPES
from true_returns import controller_returns, discount_of, policy_returns, standard_error

HOLDOUT = 0.3
RUNS, DATA, SUMMARY = "runs", "data", "calibration.json"
# Arguments that do not affect the results.
OWN_ARGUMENTS = ("datasets", "out", "policies", "only", "truth", "core", "workers", "assessors", "reassess")
MAZES = [
    f"maze2d-{maze}{suffix}?steps={steps}&seed={seed}"
    for maze, steps in (("umaze", 60_000), ("medium", 120_000))
    for suffix in ("", "-clean")
    for seed in range(5)
]
# Datasets of study_data.py. The library itself generates the mazes.
STUDY = (
    *(
        f"{task}-{quality}"
        for task in ("hopper", "walker2d")
        for quality in ("medium", "medium-replay", "medium-expert")
    ),
    *(f"halfcheetah-{quality}" for quality in ("medium", "medium-replay", "medium-expert")),
    *(f"antmaze-{maze}" for maze in ("umaze", "umaze-diverse", "medium-play")),
    *(f"{task}-expert" for task in ("pen", "door", "hammer")),
)
STUDY_MAZES = (*MAZES[::5], "maze2d-large?steps=160000&seed=0")
OGBENCH = ("pointmaze-medium-navigate", "pointmaze-large-navigate")  # tasks whose states can be set

# ---------------------------------------------------------------------------------------------------------------
# One dataset
# ---------------------------------------------------------------------------------------------------------------


def load(name: str) -> Dataset:
    dataset = data.load(name)
    if dataset.env is None:
        raise SystemExit(f"{name} does not name its environment, so true returns are unknown. Use a dataset that does.")
    return dataset


def runs_of(args: argparse.Namespace, name: str) -> list[Path]:
    """Return the run folders of all recipes."""
    return [args.out / RUNS / file_of(args.out, name).stem / recipe for recipe in args.recipes]


def measure_truth(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Train the policies of one dataset, roll out their checkpoints, and return the true returns."""
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
        shutil.rmtree(folder, ignore_errors=True)  # left behind by an interrupted command
        aspc.train(name, algo, out=folder, **training, **settings)
        print(f"{name}: trained {recipe}", file=sys.stderr, flush=True)
    rows, controller = controller_returns(dataset, dataset.split(HOLDOUT, seed=0)[1])
    starts = dataset.observations[rows[np.linspace(0, len(rows) - 1, args.episodes).astype(int)]]
    truth = {}
    for candidate in checkpoint_policies(runs_of(args, name), dataset):
        returns = policy_returns(candidate.policy, dataset, starts, discount_of(dataset))
        truth[candidate.name] = {"mean": float(returns.mean()), "error": standard_error(returns)}
    print(f"{name}: rolled out {len(truth)} policies", file=sys.stderr, flush=True)
    return {"mean": float(controller.mean()), "error": standard_error(controller), "policies": truth}


def measure(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Assess the policies of one dataset and return the estimates together with the true returns."""
    controller, dataset = read_json(truth_file(args.out, name)), load(name)
    options = AssessOptions(
        steps=args.fqe_steps,
        model_steps=args.model_steps,
        hidden_dim=args.hidden_dim,
        batch_size=args.batch_size,
        tau=args.tau,
        level=LEVEL,
        discount=discount_of(dataset),
    )
    vectorize = args.vectorize or None
    assessment = aspc.assess(runs_of(args, name), checkpoints=True, options=options, vectorize=vectorize)
    rows = []
    for policy in assessment.policies:
        real = controller["policies"][policy.name]
        estimates = {
            e.estimator: {"difference": e.difference, "error": e.standard_error, "silent": e.silent_because}
            for e in policy.of_signal("reward")
        }
        rows.append(
            {
                "name": policy.name,
                "truth": real["mean"] - controller["mean"],
                "truth_error": float(np.hypot(real["error"], controller["error"])),
                "verdict": policy.verdict.kind,
                "far": policy.support.far,
                "estimates": replace_nonfinite(estimates),
            }
        )
    print(f"{name}: assessed {len(rows)} policies", file=sys.stderr, flush=True)
    spread = assessment.controller["reward"].spread
    return {"dataset": Path(name).name, "controller": controller["mean"], "spread": spread, "policies": rows}


# ---------------------------------------------------------------------------------------------------------------
# All datasets
# ---------------------------------------------------------------------------------------------------------------


def make_study_datasets(args: argparse.Namespace) -> list[str]:
    """Generate the datasets of `study_data.py` in FOLDER/data, and return the names of all datasets."""
    script, folder = Path(__file__).with_name("study_data.py"), args.out / DATA
    for names, target in ((STUDY, folder), (OGBENCH, folder / "ogbench")):
        words = [args.policies, "--out", target, "--scale", args.scale, "--workers", args.workers, "--only", *names]
        subprocess.run([sys.executable, script, *map(str, words)], check=True)
    os.environ["ASPC_DATA"] = str(folder.absolute())
    locomotion = [str(file) for name in STUDY if (file := folder / f"{name}.hdf5").exists()]
    return [*locomotion, *STUDY_MAZES, *(f"{name}-singletask-v0" for name in OGBENCH)]


def file_of(folder: Path, name: str) -> Path:
    return folder / ("".join(c if c.isalnum() or c in "-." else "_" for c in Path(name).name) + ".json")


def truth_file(folder: Path, name: str) -> Path:
    return folder / RUNS / f"truth_{file_of(folder, name).name}"


class Results:
    """The results of all datasets, in one file that is updated after every dataset."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._file, self._lock = args.out / SUMMARY, threading.Lock()
        self._settings = {name: value for name, value in vars(args).items() if name not in OWN_ARGUMENTS}
        stored = read_json(self._file) if self._file.exists() and not args.reassess else {"results": []}
        if stored.get("settings", self._settings) != self._settings:
            raise SystemExit(f"{self._file} was written with other settings. Choose another --out.")
        self.datasets: dict[str, dict[str, Any]] = {result["dataset"]: result for result in stored["results"]}
        for file in [] if args.reassess else map(partial(file_of, args.out), args.datasets):
            if file.exists():  # left behind by a command that was interrupted before it updated the summary
                result = read_json(file)
                self.datasets[result["dataset"]] = result

    def add(self, result: dict[str, Any]) -> None:
        """Add the result of a dataset and update the file."""
        with self._lock:
            self.datasets[result["dataset"]] = result
            write_json(self._file, self.summary() | {"settings": self._settings, "results": self._all()})

    def summary(self) -> dict[str, Any]:
        return summarize(self._all())

    def _all(self) -> list[dict[str, Any]]:
        return [self.datasets[name] for name in sorted(self.datasets)]


def measure_all(
    args: argparse.Namespace, argv: list[str], results: Results, run: Callable[[list[str], bool], int]
) -> int:
    """Measure all datasets that have no results yet, in several processes, and return the number of failures."""
    waiting = [name for name in args.datasets if Path(name).name not in results.datasets]
    others = [word for word in argv if word not in args.datasets]
    assessing = threading.Semaphore(args.assessors)
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for core in range(args.workers):
        free.put(core)

    def both(name: str) -> int:
        core, code = free.get(), 0
        if not truth_file(args.out, name).exists():
            code = run([*others, "--core", str(core), "--truth", name], True)
        free.put(core)
        if code == 0:
            with assessing:
                code = run([*others, "--only", name], False)
        if code == 0:
            results.add(read_json(file_of(args.out, name)))
        return code

    with ThreadPoolExecutor(max(len(waiting), 1)) as pool:
        codes = list(pool.map(both, waiting))
    for name, code in zip(waiting, codes, strict=True):
        if code:
            print(f"{name} failed with exit code {code}. Run the command again to retry.", file=sys.stderr)
    return sum(code != 0 for code in codes)


def start_process(words: list[str], on_cpu: bool) -> int:
    """Run this script with other arguments in a new process, and return its exit code. On a CPU, it uses one core."""
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if on_cpu:
        environment |= {"JAX_PLATFORMS": "cpu"} | {f"{x}_NUM_THREADS": "1" for x in ("OMP", "OPENBLAS", "MKL")}
    return subprocess.run([sys.executable, __file__, *words], check=False, env=environment).returncode


def use_one_core(index: int) -> None:
    """Restrict this process to one core, since XLA chooses the size of its thread pool by the number of cores."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[index % len(cores)]})


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", help="names or paths of datasets (default: 20 generated mazes)")
    parser.add_argument("--out", type=Path, required=True, help="output folder (created if missing)")
    parser.add_argument("--policies", type=Path, help="generate datasets with the behavior policies in this folder")
    parser.add_argument(
        "--scale", type=float, default=0.2, help="fraction of the datasets' full sizes to generate (with --policies)"
    )
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds per algorithm")
    parser.add_argument("--checkpoints", type=int, default=3, help="checkpoints per seed, each of which is a policy")
    parser.add_argument("--steps", type=int, default=9_000, help="number of training steps")
    parser.add_argument("--fqe-steps", type=int, default=10_000)
    parser.add_argument("--model-steps", type=int, default=5_000)
    parser.add_argument("--hidden-dim", type=int, default=256, help="width of the estimators' critics and models")
    parser.add_argument("--batch-size", type=int, default=256, help="batch size of the estimators' critics and models")
    parser.add_argument("--tau", type=float, default=0.05, help="target update rate of the critics")
    parser.add_argument("--vectorize", action="store_true", help="fit all critics in parallel, even on a CPU")
    parser.add_argument("--episodes", type=int, default=100, help="number of episodes in the environment per policy")
    parser.add_argument("--workers", type=int, default=available_cores(), help="datasets to train on in parallel")
    parser.add_argument("--assessors", type=int, default=1, help="datasets to assess in parallel")
    parser.add_argument("--reassess", action="store_true", help="assess the trained policies again")
    parser.add_argument("--truth", help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    (args.out / RUNS).mkdir(parents=True, exist_ok=True)
    if args.truth is not None:
        use_one_core(args.core)
        write_json(truth_file(args.out, args.truth), measure_truth(args, args.truth))
        return 0
    if args.only is not None:
        write_json(file_of(args.out, args.only), measure(args, args.only))
        return 0
    if args.policies is not None:
        args.datasets += make_study_datasets(args)
    args.datasets = args.datasets or MAZES
    results = Results(args)
    failures = measure_all(args, argv, results, start_process)
    if results.datasets:
        print_summary(results.summary())
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
