"""Where a run's numbers also go: TensorBoard events, Weights & Biases, MLflow. The CSV files are written in any case.

Each of them is told by its own environment variables where to write: WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY;
MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from aspc.errors import MissingExtra

LoggerName = Literal["none", "wandb", "mlflow"]
TITLES = {"wandb": "Logging to Weights & Biases", "mlflow": "Logging to MLflow"}


@dataclass(frozen=True)
class Logged:
    """What a logger is told of a run when it starts."""

    folder: Path
    """Of the training that the run is part of."""
    name: str
    """Of the run in it."""
    settings: Mapping[str, Any]
    """Algorithm, dataset, seed, hyper-parameters: plain values by name."""
    started: str
    first_step: int

    @property
    def identity(self) -> str:
        """The same when a run is continued, so that its curves are too."""
        return hashlib.sha256(f"{self.folder.absolute()} {self.name} {self.started}".encode()).hexdigest()[:16]


class Logger(Protocol):
    def log(self, values: Mapping[str, float], step: int) -> None:
        """Numbers by name. Steps need not come in order: evaluations arrive late."""
        ...

    def close(self) -> None: ...


def require(name: LoggerName) -> None:
    """Says what to install before anything is trained."""
    if name != "none":
        _load(name)


def open_loggers(tensorboard: bool, name: LoggerName, run: Logged) -> list[Logger]:
    """The loggers of one run."""
    return [
        *([TensorBoard(run)] if tensorboard else []),
        *([WandB(run)] if name == "wandb" else []),
        *([MLflow(run)] if name == "mlflow" else []),
    ]


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(TITLES[name], "loggers") from error


class TensorBoard:
    def __init__(self, run: Logged) -> None:
        from tensorboardX import SummaryWriter

        # What is purged begins with that step, and the row of the step that a run goes on from is kept.
        purged = run.first_step + 1 if run.first_step else None
        self._writer = SummaryWriter(str(run.folder / "tensorboard" / run.name), purge_step=purged)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        try:
            self._writer.close()
        except OSError:
            # The disk is full, which the run will say; the writer would try again at exit and print a traceback.
            events = self._writer.file_writer.event_writer
            events._worker.stop()
            events._closed = True
            raise


class WandB:
    def __init__(self, run: Logged) -> None:
        wandb = _load("wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "aspc"),
            name=f"{run.folder.name}/{run.name}",
            group=run.folder.name,
            id=run.identity,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.settings),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        # W&B's own step only goes forward, and evaluations arrive late: the step is a value like the others.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({**values, "step": step})

    def close(self) -> None:
        self._run.finish()


class MLflow:
    def __init__(self, run: Logged) -> None:
        mlflow = _load("mlflow")
        self._metric = importlib.import_module("mlflow.entities").Metric
        self._client = mlflow.MlflowClient()
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "aspc")
        known = self._client.get_experiment_by_name(experiment)
        number = known.experiment_id if known is not None else self._client.create_experiment(experiment)
        before = self._client.search_runs([number], f"tags.aspc_run = '{run.identity}'")
        if before:
            self._id = before[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {"aspc_run": run.identity}
        self._id = self._client.create_run(number, tags=tags, run_name=f"{run.folder.name}/{run.name}").info.run_id
        for name, value in run.settings.items():
            self._client.log_param(self._id, name, value)

    def log(self, values: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(self._id, metrics=[self._metric(name, v, now, step) for name, v in values.items()])

    def close(self) -> None:
        self._client.set_terminated(self._id)
