"""`aspc finetune`: continue a run online, in its environment.

The whole state is kept: networks, targets, optimizers, and ASPC's scale, which keeps adapting. The training loop is in
`aspc.training.online`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from aspc.algorithms.fields import with_horizon
from aspc.assessment.trained_runs import Trained
from aspc.data import Dataset
from aspc.errors import AspcError
from aspc.training import run_folder
from aspc.training.callbacks import Callback, check_callbacks
from aspc.training.hyperparameters import recorded_values
from aspc.training.launch import is_finished, train_run
from aspc.training.online import OnlineTrainer
from aspc.training.prepared_data import load_again
from aspc.training.run import default_folder
from aspc.training.run_config import (
    ENV_FUNCTION,
    OnlineOptions,
    Origin,
    RunConfig,
    TrainOptions,
    env_name,
    software_facts,
    timestamp,
    to_json,
)
from aspc.training.run_folder import Run
from aspc.training.training_plan import Task


def finetune(
    run: str | Path | Run,
    env: str | Callable[[], Any] | None = None,
    *,
    seed: int | None = None,
    dataset: Dataset | str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    callbacks: Iterable[Callback] = (),
    **settings: Any,
) -> Run:
    """Continue one seed of a run online, in a new run folder.

        online = aspc.training.finetune.finetune("runs/maze", steps=10_000)

    Args:
        run: A run with a checkpoint.
        env: The environment. Default: the run's environment.
        seed: The seed to continue. Default: the first.
        dataset: The offline data; needed if the run was trained on arrays or on a file that has moved.
        out: Folder of the new run. Default: runs/DATASET_ALGO_online_TIME.
        quiet: Hide progress.
        callbacks: As for `aspc.train`; a chunk has `collect` steps.
        **settings: Fields of `OnlineOptions`.

    Returns:
        The fine-tuned run.
    """
    callbacks = check_callbacks(callbacks)
    offline, online = run if isinstance(run, Run) else Run(run), OnlineOptions(**settings)
    config = offline.config
    if config.finetuned_from is not None:
        raise AspcError(f"{offline.path} is already fine-tuned; continue with: aspc finetune --resume {offline.path}.")
    seed = offline.seeds[0] if seed is None else seed
    if seed not in offline.seeds:
        raise AspcError(f"{offline.path} has no seed {seed}; choose from {', '.join(map(str, offline.seeds))}.")
    environment = _environment_of(offline, env)
    trained = _load_offline(offline, dataset, env)
    steps = trained.checkpoint_steps()
    if not steps:
        raise AspcError(f"{offline.path} has no checkpoint to continue from; train it with aspc train.")
    horizon = online.horizon or steps[-1] + online.steps * online.updates
    trained = dataclasses.replace(trained, algorithm=with_horizon(trained.algorithm, horizon))
    path = Path(out) if out is not None else default_folder(trained.dataset.name, f"{config.algo}_online")
    config = msgspec.structs.replace(
        config,
        hyperparameters=recorded_values(trained.algorithm),
        env=env_name(environment),
        options=_train_options(config.options, online, seed, horizon),
        online=online,
        finetuned_from=Origin(run=str(offline.path.absolute()), seed=seed, step=steps[-1]),
        started=timestamp(),
        software=software_facts(),
    )
    run_folder.create(path, to_json(config))
    with run_folder.rollback_on_early_failure(path):
        return _train_online(path, config, trained, environment, 0, online.steps, quiet, callbacks)


def resume(
    path: str | Path,
    steps: int | None = None,
    env: str | Callable[[], Any] | None = None,
    *,
    dataset: Dataset | str | None = None,
    quiet: bool = False,
    callbacks: Iterable[Callback] = (),
) -> Run:
    """Continue a fine-tuned run from its newest checkpoint to `steps`; by default, to the number originally requested.

    The environment's state is not saved, so the run continues with a new episode.
    """
    callbacks = check_callbacks(callbacks)
    run = Run(path)
    if run.config.finetuned_from is None or run.config.online is None:
        raise AspcError(f"{run.path} was trained offline; continue it with aspc train --resume, or fine-tune it.")
    last_step = steps or run.config.options.steps
    if is_finished(run, last_step, quiet):
        return run
    trained = _load_offline(run, dataset, env)
    environment = _environment_of(run, env)
    return _train_online(run.path, run.config, trained, environment, None, last_step, quiet, callbacks)


def _environment_of(run: Run, env: str | Callable[[], Any] | None) -> str | Callable[[], Any]:
    environment = env or run.env
    if environment is None or environment == ENV_FUNCTION:
        raise AspcError(f"No environment is recorded in {run.path}; pass one with --env.")
    return environment


def _load_offline(run: Run, dataset: Dataset | str | None, env: str | Callable[[], Any] | None) -> Trained:
    """Return the algorithm of a run and its offline data, prepared as in the run."""
    source, options = run.config.dataset.source, run.data_options(env)
    data = load_again(run.path, source, dataset, options, "finetune(…, dataset=…)")
    if not isinstance(data, Dataset):
        raise AspcError(f"{run.path} was trained on streamed data; fine-tuning needs data that fits in memory.")
    trained = Trained.of(run, data)
    if not trained.same_data:
        raise AspcError(f"The data differs from the data that {run.path} was trained on. Pass the original data.")
    return trained


def _train_options(offline: TrainOptions, online: OnlineOptions, seed: int, horizon: int) -> TrainOptions:
    """Return the trainer's options, with the preprocessing of the offline run."""
    names = {field.name for field in dataclasses.fields(TrainOptions)}
    shared = {name: value for name, value in dataclasses.asdict(online).items() if name in names}
    return TrainOptions(
        **{**shared, "horizon": horizon},
        seeds=(seed,),
        log_every=online.collect,
        holdout=offline.holdout,
        n_step=offline.n_step,
        history=offline.history,
        history_actions=offline.history_actions,
        matmul_precision=offline.matmul_precision,
    )


def _train_online(
    path: Path,
    config: RunConfig,
    trained: Trained,
    env: str | Callable[[], Any],
    first_step: int | None,
    last_step: int,
    quiet: bool,
    callbacks: Sequence[Callback],
) -> Run:
    online, origin = config.online, config.finetuned_from
    assert online is not None
    assert origin is not None
    return train_run(
        path,
        config,
        trained.algorithm,
        Task(trained.dataset, trained.prepared, env),
        lambda plan, first, last: OnlineTrainer(plan, first, last, online, origin, trained, quiet, callbacks),
        first_step,
        last_step,
    )
