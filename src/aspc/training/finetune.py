"""`aspc finetune`: go on from a run in its environment, offline to online.

The whole state goes on: networks, targets, optimisers, and ASPC's scale, which keeps adapting. How is in
`aspc.training.online`.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aspc.algorithms.interface import with_horizon
from aspc.assessment.trained_runs import Trained
from aspc.data import Dataset
from aspc.errors import AspcError
from aspc.training import run_folder
from aspc.training.online import OnlineOptions, OnlineTrainer
from aspc.training.prepared_data import load_again
from aspc.training.run import A_FUNCTION, default_folder, is_finished, leave_result
from aspc.training.run_config import TrainOptions, environment_facts, to_plain
from aspc.training.run_folder import Run
from aspc.training.trainer import Plan, RunSpec, Task

# ---------------------------------------------------------------------------------------------------------------
# From the library
# ---------------------------------------------------------------------------------------------------------------


def finetune(
    run: str | Path | Run,
    env: str | Callable[[], Any] | None = None,
    *,
    seed: int | None = None,
    dataset: Dataset | str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Go on from the checkpoint of a run, for one of its seeds; leaves a run folder of its own behind.

    `env` is by default the run's own. `settings` are fields of `OnlineOptions`. `dataset` has to be given only where
    the run was trained on arrays, or on a file that is elsewhere now.

        online = aspc.training.finetune.finetune("runs/maze", steps=10_000)
    """
    offline, online = run if isinstance(run, Run) else Run(run), OnlineOptions(**settings)
    if "finetuned_from" in offline.config:
        raise AspcError(f"{offline.path} is online already; go on with: aspc finetune --resume {offline.path}.")
    seed = offline.seeds[0] if seed is None else seed
    if seed not in offline.seeds:
        raise AspcError(f"{offline.path} has no seed {seed}; it has {', '.join(map(str, offline.seeds))}.")
    environment = environment_of(offline, env)
    trained = offline_part(offline, dataset, env)
    steps = trained.checkpoint_steps()
    if not steps:
        raise AspcError(f"{offline.path} keeps no checkpoint to go on from; train it with aspc train.")
    horizon = online.horizon or steps[-1] + online.steps * online.updates
    algorithm = with_horizon(trained.algorithm, horizon)
    options = train_options(offline, online, seed, horizon)
    path = Path(out) if out is not None else default_folder(trained.dataset.name, f"{offline.config['algo']}_online")
    config = {
        **offline.config,
        "hyperparameters": to_plain(algorithm),
        "env": environment if isinstance(environment, str) else A_FUNCTION,
        **dataclasses.asdict(options),
        "online": dataclasses.asdict(online),
        "finetuned_from": {"run": str(offline.path.absolute()), "seed": seed, "step": steps[-1]},
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **environment_facts(),
    }
    run_folder.create(path, config)
    with run_folder.rollback_on_early_failure(path):
        return _go(path, config, trained, algorithm, environment, online, options, online.steps, quiet)


def resume(
    path: str | Path,
    steps: int | None = None,
    env: str | Callable[[], Any] | None = None,
    *,
    dataset: Dataset | str | None = None,
    quiet: bool = False,
) -> Run:
    """Continue a fine-tuning from its newest checkpoint, to its own end or to `steps`.

    Everything but the environment itself was saved, so it begins with a fresh episode.
    """
    run = Run(path)
    if "finetuned_from" not in run.config:
        raise AspcError(f"{run.path} was trained offline; continue it with aspc train --resume, or fine-tune it.")
    if is_finished(run, steps or run.config["steps"], quiet):
        return run
    online = OnlineOptions(**run.config["online"])
    options = train_options(run, online, run.seeds[0], run.config["horizon"])
    trained = offline_part(run, dataset, env)
    last_step = steps or online.steps
    return _go(
        run.path,
        run.config,
        trained,
        trained.algorithm,
        environment_of(run, env),
        online,
        options,
        last_step,
        quiet,
        resuming=True,
    )


def environment_of(run: Run, env: str | Callable[[], Any] | None) -> str | Callable[[], Any]:
    found = env or run.env
    if found is None or found == A_FUNCTION:
        raise AspcError(f"{run.path} names no environment to go on in; give one with --env.")
    return found


def offline_part(run: Run, dataset: Dataset | str | None, env: Any) -> Trained:
    """The run's algorithm, and its data made ready as it was."""
    how, call = run.data_options(env), "finetune(…, dataset=…)"
    data = load_again(run.path, run.config["dataset"]["source"], dataset, how, call)
    if not isinstance(data, Dataset):
        raise AspcError(f"{run.path} was trained on streamed data; fine-tuning needs data that fits in memory.")
    trained = Trained.of(run, data)
    if not trained.same_data:
        raise AspcError(f"The data is not what {run.path} was trained on (its content differs).")
    return trained


def train_options(run: Run, online: OnlineOptions, seed: int, horizon: int) -> TrainOptions:
    """What the trainer needs to know; how rows are made of data stays as it was."""
    kept = {name: run.config[name] for name in ("holdout", "n_step", "matmul_precision")}
    names = {field.name for field in dataclasses.fields(TrainOptions)}
    shared = {name: value for name, value in dataclasses.asdict(online).items() if name in names}
    return TrainOptions(**{**kept, **shared, "horizon": horizon}, seeds=(seed,), log_every=online.collect)


def _go(
    path: Path,
    config: dict[str, Any],
    trained: Trained,
    algorithm: Any,
    env: str | Callable[[], Any],
    online: OnlineOptions,
    options: TrainOptions,
    last_step: int,
    quiet: bool,
    resuming: bool = False,
) -> Run:
    (seed,) = options.seeds
    plan = Plan(
        path,
        config["algo"],
        algorithm,
        [Task(trained.dataset, trained.prepared, env)],
        [RunSpec(f"seed{seed}", seed, 0, algorithm, {"seed": seed}, f"seed {seed}")],
        {},
        options,
        config,
        resume_with=run_folder.resume_command("finetune", path, env, last_step if last_step != online.steps else None),
    )
    with run_folder.written(path, plan.resume_with):
        outcome = OnlineTrainer(plan, online, trained, quiet).go(None if resuming else 0, last_step)
        steps = {
            "steps": outcome.step,
            "updates": outcome.step * online.updates,
            "offline_steps": config["finetuned_from"]["step"],
        }
        return leave_result(path, steps, outcome.seconds, options)
