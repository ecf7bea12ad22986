"""Set up and execute training. A run is a fleet with one member per seed; fine-tuning adds a collector."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from aspc import theory
from aspc.algorithms.component_names import resolve_components
from aspc.algorithms.interface import Algorithm
from aspc.errors import AspcError
from aspc.io import write_json
from aspc.training import checksums, loggers, run_figure, run_folder
from aspc.training.hyperparameters import check_values
from aspc.training.prepared_data import Data, PreparedDataset
from aspc.training.run_config import RunConfig, TrainOptions
from aspc.training.run_folder import Run
from aspc.training.trainer import Trainer
from aspc.training.training_plan import Outcome, RunSpec, Task, TrainingPlan


def check_settings(name: str, algorithms: Iterable[Algorithm[Any]], options: TrainOptions) -> None:
    """Raise an AspcError if algorithms cannot be trained with these options or hyperparameters."""
    loggers.require(options.logger)
    for algorithm in algorithms:
        if options.monitor_every and not theory.can_monitor(algorithm):
            raise AspcError(f"--monitor-every needs an algorithm with a scale, but {name} has none.")
        check_values(algorithm)
        resolve_components(algorithm)
        algorithm.validate()


def prepare_task(
    data: Data, algorithm: Algorithm[Any], options: TrainOptions, env: str | Callable[[], Any] | None
) -> Task:
    """Return a dataset prepared for an algorithm, with its environment ("auto": the dataset's own)."""
    return Task(data, PreparedDataset.of(data, algorithm, options), data.env if env == "auto" else env)


def train_run(
    path: Path,
    config: RunConfig,
    algorithm: Algorithm[Any],
    task: Task,
    make_trainer: Callable[[TrainingPlan, int | None, int], Trainer],
    first_step: int | None,
    last_step: int,
) -> Run:
    """Train the seeds of a run in its folder from `first_step`, or from the newest checkpoint if it is None."""
    command = "train" if config.finetuned_from is None else "finetune"
    steps = last_step if last_step != config.options.steps else None
    plan = TrainingPlan(
        path,
        config.algo,
        algorithm,
        [task],
        [RunSpec(f"seed{seed}", seed, 0, algorithm, {"seed": seed}, f"seed {seed}") for seed in config.options.seeds],
        {},
        config.options,
        config,
        resume_with=run_folder.resume_command(command, path, task.env, steps),
    )
    run = Run(path)
    execute(
        plan,
        lambda: make_trainer(plan, first_step, last_step),
        lambda outcome: _summarize_run(run, outcome),
    )
    return run


def execute(
    plan: TrainingPlan, make_trainer: Callable[[], Trainer], summarize: Callable[[Outcome], dict[str, Any]]
) -> Outcome:
    """Train, then write the result that `summarize` returns and the final checksums."""
    with run_folder.explain_disk_errors(plan.path, plan.resume_with):
        with make_trainer() as trainer:
            outcome = trainer.train()
        write_json(plan.path / run_folder.RESULT, summarize(outcome))
        checksums.finish(plan.path)
    return outcome


def _summarize_run(run: Run, outcome: Outcome) -> dict[str, Any]:
    """Draw the figure of a finished run and return its result."""
    config = run.config
    result: dict[str, Any] = {"steps": outcome.step}
    if outcome.stopped is not None:
        result["stopped"] = outcome.stopped
    if config.online is not None and config.finetuned_from is not None:
        result |= {"updates": outcome.step * config.online.updates, "offline_steps": config.finetuned_from.step}
    rows = run_folder.read_rows(run.path / run_folder.EVALUATIONS)
    run_figure.draw(run)
    return {
        **result,
        "seconds": round(outcome.seconds, 3),
        "matmul_precision": config.options.matmul_precision,
        **run_folder.summary(rows, run.seeds),
    }


def is_finished(run: Run, steps: int, quiet: bool) -> bool:
    """Return whether a run has completed `steps` steps; if so, print a note unless `quiet`."""
    result = run.result
    if result is None or result["steps"] < steps:
        return False
    if not quiet:
        done = f"{run.path} has already finished its {result['steps']:,} steps"
        print(f"{done}; to train longer, pass a larger --steps.", file=sys.stderr)
    return True
