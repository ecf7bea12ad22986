"""`TrainingPlan`, the input of a `Trainer`, assigns runs to tasks; `Outcome` is the result of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aspc.algorithms.interface import Algorithm
from aspc.training.divergence import Failure
from aspc.training.evaluation import EnvFactory
from aspc.training.prepared_data import Data, PreparedDataset
from aspc.training.run_config import FleetConfig, RunConfig, TrainOptions
from aspc.training.run_folder import Row


class Task(NamedTuple):
    """A prepared dataset, and the environment in which its policies are evaluated (None for no evaluation)."""

    data: Data
    prepared: PreparedDataset
    env: str | EnvFactory | None


class RunSpec(NamedTuple):
    """One run of a compiled program."""

    name: str
    """Name of the run's policy folder and of its log."""
    seed: int
    task: int
    """Index of the run's task in the plan."""
    algorithm: Algorithm[Any]
    """The algorithm with the run's own hyperparameters."""
    labels: Row
    """The columns that identify the run in the CSV files."""
    title: str
    """The name of the run in messages."""


@dataclass(frozen=True)
class TrainingPlan:
    """The runs of a fleet, which share a compiled program and a folder."""

    path: Path
    algo: str
    algorithm: Algorithm[Any]
    """The algorithm that all runs share; `overrides` holds the values that differ."""
    tasks: Sequence[Task]
    run_specs: Sequence[RunSpec]
    overrides: Mapping[str, np.ndarray]
    """Hyperparameters that differ between runs, by dotted field name, one value per run."""
    options: TrainOptions
    config: RunConfig | FleetConfig
    """The content of config.json."""
    resume_with: str
    """The command that continues training, for messages."""
    vectorize: bool | None = None
    """Compute runs in parallel (True) or sequentially (False); None selects the faster option on the device."""
    isolate: bool = False
    """Record a diverged run in status.json and continue without it; if False, a diverged run ends training."""


@dataclass(frozen=True)
class Outcome:
    """The result of training a plan."""

    step: int
    seconds: float
    steps_per_second: float | None
    """Steps per second of each run, excluding compilation and evaluation; None if there was only one chunk."""
    failures: Mapping[int, Failure]
    evaluation_seconds: float | None
    """Time that the workers need to evaluate all runs once; None without evaluation."""
    min_free_eval_every: int | None
    """The smallest `eval_every` at which evaluation costs no training time; None if not measured."""
    signal: int | None = None
    """A signal that arrived in the last chunk, for the caller to handle."""
    stopped: str | None = None
    """The reason that a callback gave for stopping training early; None if no callback did."""
