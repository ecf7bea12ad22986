"""The input and the outcome of a `Trainer`: which runs to train on which tasks."""

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
    """A prepared dataset, and the environment in which its policies are evaluated (None: no evaluation)."""

    data: Data
    prepared: PreparedDataset
    env: str | EnvFactory | None


class RunSpec(NamedTuple):
    """One run of a compiled program."""

    name: str
    """The name of its policy's folder and of its log."""
    seed: int
    task: int
    """The index of its task."""
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
    """The algorithm that all runs share; `overrides` holds what differs."""
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
    """Compute runs side by side or one after the other; None for whichever is faster on the device."""
    isolate: bool = False
    """Continue without a run that diverges, and record it in status.json; otherwise it ends training."""


@dataclass(frozen=True)
class Outcome:
    """The result of training a plan."""

    step: int
    seconds: float
    steps_per_second: float | None
    """Of each run, without compilation and evaluation; None if there was only one chunk."""
    failures: Mapping[int, Failure]
    evaluation_seconds: float | None
    """Time that the workers need to evaluate all runs once; None without evaluation."""
    min_free_eval_every: int | None
    """The smallest `eval_every` at which evaluation costs no training time; None if not measured."""
    signal: int | None = None
    """A signal that arrived in the last chunk, for the caller to handle."""
    stopped: str | None = None
    """The reason for which a callback stopped training early."""
