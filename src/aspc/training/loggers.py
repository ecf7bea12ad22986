"""Loggers of a run besides its CSV files: TensorBoard, Weights & Biases and MLflow.

Their own environment variables configure them: WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY; MLFLOW_TRACKING_URI,
MLFLOW_EXPERIMENT_NAME.
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
class LoggedRun:
    """The description of a run for its loggers."""

    folder: Path
    """The folder of the fleet."""
    name: str
    """The run's name in the fleet."""
    settings: Mapping[str, Any]
    """Algorithm, dataset, seed and hyperparameters, as plain values by name."""
    started: str
    first_step: int

    @property
    def identity(self) -> str:
        """An identifier that a resumed run keeps, so that its curves continue."""
        return hashlib.sha256(f"{self.folder.absolute()} {self.name} {self.started}".encode()).hexdigest()[:16]


class Logger(Protocol):
    """A sink for the metrics of one run."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values by name. Steps need not be in order, since evaluations arrive late."""

    def close(self) -> None:
        """Flush and close."""


def require(name: LoggerName) -> None:
    """Raise a `MissingExtra` if a logger is not installed."""
    if name != "none":
        _load(name)


def open_loggers(tensorboard: bool, name: LoggerName, run: LoggedRun) -> list[Logger]:
    """Open the loggers of one run."""
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
    """TensorBoard events in the run folder."""

    def __init__(self, run: LoggedRun) -> None:
        from tensorboardX import SummaryWriter

        # Events from this step on are purged; those of the step from which a run continues are kept.
        purge_step = run.first_step + 1 if run.first_step else None
        self._writer = SummaryWriter(str(run.folder / "tensorboard" / run.name), purge_step=purge_step)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        try:
            self._writer.close()
        except OSError:
            # The disk is full, which the run reports. The writer would try again at exit and print a traceback.
            events = self._writer.file_writer.event_writer
            events._worker.stop()
            events._closed = True
            raise


class WandB:
    """A run of Weights & Biases."""

    def __init__(self, run: LoggedRun) -> None:
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
        # W&B's own step cannot decrease, but evaluations arrive late, so the step is logged as a value.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({**values, "step": step})

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of MLflow."""

    def __init__(self, run: LoggedRun) -> None:
        mlflow = _load("mlflow")
        self._metric = importlib.import_module("mlflow.entities").Metric
        self._client = mlflow.MlflowClient()
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "aspc")
        known = self._client.get_experiment_by_name(experiment)
        experiment_id = known.experiment_id if known is not None else self._client.create_experiment(experiment)
        earlier = self._client.search_runs([experiment_id], f"tags.aspc_run = '{run.identity}'")
        if earlier:
            self._id = earlier[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {"aspc_run": run.identity}
        run_name = f"{run.folder.name}/{run.name}"
        self._id = self._client.create_run(experiment_id, tags=tags, run_name=run_name).info.run_id
        for name, value in run.settings.items():
            self._client.log_param(self._id, name, value)

    def log(self, values: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(self._id, metrics=[self._metric(name, v, now, step) for name, v in values.items()])

    def close(self) -> None:
        self._client.set_terminated(self._id)
