"""Rows of the result tables: one row per run, and one row per point of its curves."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from aspc.algorithms.registry import split_bc_term
from aspc.data import Dataset
from aspc.lab.groups import GroupMember
from aspc.lab.plan import short_hash
from aspc.training.fleet import Fleet
from aspc.training.hyperparameters import recorded_values

MAX_POINTS = 100  # per curve, not counting evaluations


Rows = list[dict[str, Any]]


def describe_run(member: GroupMember) -> dict[str, Any]:
    """Return the columns that describe a run, regardless of its outcome."""
    run, algorithm = member.run, member.algorithm()
    options = run.train_options().program_settings()
    algo, bc = split_bc_term(run.algo)  # kept as separate fields for compatibility with published results
    config = {
        "algo": algo,
        "bc": bc,
        "hyperparameters": recorded_values(algorithm),
        "dataset": run.dataset,
        "seed": run.seed,
        "options": options,
        "scale_of": run.scale_of,
    }
    return {
        "run_id": run.run_id,
        "suite": member.suite,
        "variant": member.variant,
        "algo": run.algo,
        "dataset": run.dataset,
        "seed": run.seed,
        "steps": run.steps,
        "settings": member.settings,
        "config": config,
        "config_hash": short_hash(config),
        "scale_name": algorithm.scale_name,
        "matmul_precision": options["matmul_precision"],
    }


def failed_row(member: GroupMember, error: str) -> dict[str, Any]:
    """Return the row of a run that failed."""
    return {**describe_run(member), "status": "failed", "error": error}


def build_rows(fleet: Fleet, member: GroupMember, data: Dataset, together: int) -> tuple[dict[str, Any], Rows]:
    """Return a run's row and the points of its curves.

    Args:
        fleet: The fleet that trained the run.
        member: The run.
        data: The run's dataset.
        together: Number of runs that trained together.
    """
    assert fleet.result is not None
    outcome = fleet.result["members"][member.run.run_id]
    initial = member.algorithm().initial_scale
    row = {
        **describe_run(member),
        "status": outcome["status"],
        "error": outcome["error"],
        **{f"{name}_{which}": outcome[f"{which}_{name}"] for name in ("score", "return") for which in ("last", "best")},
        "success_last": outcome["success"],
        "episodes": outcome["episodes"],
        "scale_initial": initial,
        "scale_last": initial if outcome["final_scale"] is None else outcome["final_scale"],
        "behaviour_score": data.behavior_score(),
        "seconds": outcome["seconds"],
        "steps_per_second": outcome["steps_per_second"],
        "runs_together": together,
        "device": fleet.config.software.device,
        "versions": fleet.config.software.versions,
        "folder": os.path.join("groups", *fleet.path.parts[-2:]),
    }
    points = build_curve(fleet.metrics(member.run.run_id), fleet.evaluations(member.run.run_id))
    return row, [{"run_id": member.run.run_id, **point} for point in points]


# Metrics for each column of the curves table. The first metric that the algorithm reports is used.
CURVE_METRICS = {
    "scale": ("scale",),
    "q": ("actor_q_mean", "q_mean", "q_min"),
    "bc_loss": ("bc_loss", "distillation_loss", "penalty"),
    "critic_loss": ("critic_loss",),
    "l1": ("l1",),
    "l2": ("l2",),
    "l3": ("l3",),
}


def build_curve(metrics: Mapping[str, Any], evaluations: Mapping[str, Any]) -> Rows:
    """Return one point per evaluation, plus at most `MAX_POINTS` points of metrics at other steps."""
    points: dict[int, dict[str, Any]] = {}
    names = {"score": "score_mean", "return": "return_mean", "success_rate": "success_rate"}
    for i, step in enumerate(evaluations.get("step", ())):
        points[int(step)] = {column: float(evaluations[name][i]) for column, name in names.items()}
    steps = metrics.get("step", ())
    chosen = {column: name for column, known in CURVE_METRICS.items() for name in reversed(known) if name in metrics}
    every = -(-len(steps) // MAX_POINTS)
    for i, step in enumerate(steps):
        if int(step) in points or (len(steps) - 1 - i) % max(every, 1) == 0:
            values = {column: float(metrics[name][i]) for column, name in chosen.items()}
            points.setdefault(int(step), {}).update(values)
    return [{"step": step, **points[step]} for step in sorted(points)]


def utc_now() -> str:
    """Return the current UTC time in ISO 8601 format, rounded to seconds."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def describe_environment() -> dict[str, Any]:
    """Return the columns that describe the machine and the code."""
    return {"machine": describe_machine(), "git_revision": read_git_revision()}


@cache
def describe_machine() -> str:
    """Return the operating system, processor model and number of cores, but not the host name."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{platform.system()} {platform.machine()}, {model}, {os.cpu_count()} cores"


@cache
def read_git_revision() -> str | None:
    """Return the code's revision from the environment variable ASPC_REVISION or from Git; None if it is unknown."""
    if revision := os.environ.get("ASPC_REVISION"):
        return revision
    here = Path(__file__).parents[3]
    if not (here / ".git").exists():
        return None

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", here, *words], capture_output=True, text=True, timeout=30, check=True
        ).stdout

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "src").strip()
        return git("rev-parse", "HEAD").strip() + ("+changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
