"""Callbacks that log a run in addition to its CSV files: TensorBoard, Weights & Biases and MLflow.

Environment variables configure Weights & Biases (WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY) and MLflow
(MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME).
"""

from __future__ import annotations

import hashlib
import importlib
import math
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aspc.errors import MissingExtra
from aspc.training.callbacks import Callback, TrainingEvent

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


class Logger(Callback):
    """A callback that logs the metrics and evaluations of each run. Subclasses open, write and close one run's log."""

    def __init__(self) -> None:
        self._logs: dict[str, Any] = {}

    def open_log(self, run: LoggedRun) -> Any:
        """Return the log of a run."""
        raise NotImplementedError

    def write(self, log: Any, values: Mapping[str, float], step: int) -> None:
        """Write values by name. Steps can be out of order, since evaluations arrive late."""
        raise NotImplementedError

    def close_log(self, log: Any) -> None:
        """Flush and close a log."""
        raise NotImplementedError

    def on_start(self, event: TrainingEvent) -> None:
        try:
            for run in event.runs:
                facts = {"algo": event.algo, "dataset": run.dataset, "seed": run.seed, **run.hyperparameters}
                logged = LoggedRun(event.path, run.name, facts, event.started, event.first_step)
                self._logs[run.name] = self.open_log(logged)
        except BaseException:
            self._close()
            raise

    def on_chunk(self, event: TrainingEvent) -> None:
        for run in event.runs:
            self._log(run.name, "train", run.metrics, event.step)

    def on_evaluation(self, event: TrainingEvent) -> None:
        for run in event.runs:
            shown = {name: run.evaluation[name] for name in ("score_mean", "return_mean", "success_rate")}
            self._log(run.name, "evaluation", shown, event.step)

    def on_end(self, event: TrainingEvent) -> None:
        self._close()

    def _log(self, run: str, group: str, values: Mapping[str, float], step: int) -> None:
        known = {f"{group}/{name}": value for name, value in values.items() if not math.isnan(value)}
        self.write(self._logs[run], known, step)

    def _close(self) -> None:
        with ExitStack() as stack:  # close the remaining logs if one fails
            for log in self._logs.values():
                stack.callback(self.close_log, log)
            self._logs = {}


def require(name: LoggerName) -> None:
    """Raise a `MissingExtra` if a logger is not installed."""
    if name != "none":
        _load(name)


def make_loggers(tensorboard: bool, name: LoggerName) -> list[Logger]:
    """Return the loggers that a run's options request."""
    return [
        *([TensorBoard()] if tensorboard else []),
        *([WandB()] if name == "wandb" else []),
        *([MLflow()] if name == "mlflow" else []),
    ]


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(TITLES[name], "loggers") from error


class TensorBoard(Logger):
    """TensorBoard events in the run folder."""

    def open_log(self, run: LoggedRun) -> Any:
        from tensorboardX import SummaryWriter

        # Purge events after the step from which the run continues, and keep the events at that step.
        purge_step = run.first_step + 1 if run.first_step else None
        return SummaryWriter(str(run.folder / "tensorboard" / run.name), purge_step=purge_step)

    def write(self, log: Any, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            log.add_scalar(name, value, step)

    def close_log(self, log: Any) -> None:
        try:
            log.close()
        except OSError:
            # The disk is full, and the run reports it. The writer would try again at exit and print a traceback.
            events = log.file_writer.event_writer
            events._worker.stop()
            events._closed = True
            raise


class WandB(Logger):
    """Weights & Biases runs."""

    def open_log(self, run: LoggedRun) -> Any:
        wandb = _load("wandb")
        log = wandb.init(
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
        log.define_metric("step")
        log.define_metric("*", step_metric="step")
        return log

    def write(self, log: Any, values: Mapping[str, float], step: int) -> None:
        log.log({**values, "step": step})

    def close_log(self, log: Any) -> None:
        log.finish()


class MLflow(Logger):
    """MLflow runs; a log is an MLflow run id."""

    def __init__(self) -> None:
        super().__init__()
        mlflow = _load("mlflow")
        self._metric = importlib.import_module("mlflow.entities").Metric
        self._client = mlflow.MlflowClient()

    def open_log(self, run: LoggedRun) -> str:
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "aspc")
        known = self._client.get_experiment_by_name(experiment)
        experiment_id = known.experiment_id if known is not None else self._client.create_experiment(experiment)
        earlier = self._client.search_runs([experiment_id], f"tags.aspc_run = '{run.identity}'")
        if earlier:
            found: str = earlier[0].info.run_id
            self._client.update_run(found, status="RUNNING")
            return found
        tags = {"aspc_run": run.identity}
        run_name = f"{run.folder.name}/{run.name}"
        log: str = self._client.create_run(experiment_id, tags=tags, run_name=run_name).info.run_id
        for name, value in run.settings.items():
            self._client.log_param(log, name, value)
        return log

    def write(self, log: str, values: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(log, metrics=[self._metric(name, v, now, step) for name, v in values.items()])

    def close_log(self, log: str) -> None:
        self._client.set_terminated(log)
