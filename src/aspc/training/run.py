"""Train an algorithm on a dataset, resume a run, or evaluate the policies of a run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from aspc import algorithms
from aspc.algorithms.component_names import name_components, resolve_components
from aspc.algorithms.fields import RunLength, declared_fields, overwritten_horizons, with_horizon
from aspc.algorithms.interface import Algorithm
from aspc.data.cache import sanitize_file_name
from aspc.envs.facts import check_sizes, env_sizes
from aspc.errors import AspcError, unknown_name
from aspc.interrupts import Interrupted
from aspc.policy import WEIGHTS, Policy
from aspc.presets import overrides
from aspc.training import checksums, run_folder
from aspc.training.callbacks import Callback, check_callbacks
from aspc.training.devices import use_compilation_cache
from aspc.training.divergence import Diverged
from aspc.training.evaluation import Evaluator, WorkerFailed, episode_seeds
from aspc.training.hyperparameters import all_field_names, coerce_fields, recorded_values, replace_fields
from aspc.training.launch import check_settings, is_finished, prepare_task, train_run
from aspc.training.prepared_data import (
    Data,
    dataset_facts,
    load_again,
    load_source,
    preprocessing_key,
    recorded_score_of,
)
from aspc.training.run_config import (
    ENV_FUNCTION,
    DatasetFacts,
    RunConfig,
    TrainOptions,
    env_name,
    software_facts,
    timestamp,
    to_json,
)
from aspc.training.run_folder import Row, Run
from aspc.training.trainer import Trainer
from aspc.ui import notify_if_slow

__all__ = ["Diverged", "Interrupted", "evaluate", "resume_run", "start_run", "train", "use_compilation_cache"]

LOAD_OPTIONS = (
    *("reward", "kpis", "one_hot", "categorical", "continuous", "missing", "max_gap", "resample", "interval"),
    "key_map",
    "action_low",
    "action_high",
    "action_margin",
    "max_episode_steps",
    "strict",
)  # options of `aspc.data.load`


def train(
    dataset: Data | str | os.PathLike[str] | None = None,
    algo: Algorithm[Any] | str | None = None,
    *,
    out: str | Path | None = None,
    env: str | Callable[[], Any] | None = "auto",
    resume: str | os.PathLike[str] | None = None,
    quiet: bool = False,
    callbacks: Iterable[Callback] = (),
    **settings: Any,
) -> Run:
    """Train an algorithm on a dataset and write a run folder.

        run = aspc.train("maze2d-umaze", algo="aspc", steps=20_000, seeds=[0, 1])
        run.policy.act(observation)

    Args:
        dataset: A name, a path or a Dataset.
        algo: An algorithm or its name. Default: "aspc".
        out: Folder of the run. Default: runs/DATASET_ALGO_TIME.
        env: A name, or a function that makes the environment. "auto" uses the dataset's environment; None trains
            without evaluation, for example on logs without a simulator.
        resume: Folder of a run to continue.
        quiet: Hide progress.
        callbacks: Instances of `Callback` subclasses, called every `log_every` steps and after evaluations and
            checkpoints. Pass them again to resume the run.
        **settings: Fields of `TrainOptions` (steps, seeds, eval_every, …) or hyperparameters of the algorithm (alpha,
            discount, k_alpha, …).

    Returns:
        The finished run.
    """
    if algo is not None:
        _check_algo(algo)
    callbacks = check_callbacks(callbacks)
    names = {field.name for field in dataclasses.fields(TrainOptions)}
    given: dict[str, Any] = {k: v for k, v in settings.items() if k in names}
    hyper = {k: v for k, v in settings.items() if k not in names}
    if resume is not None:
        if set(given) - {"steps"} or hyper:
            raise AspcError("A resumed run keeps its settings; only steps can be passed with resume.")
        return resume_run(Path(resume), dataset, algo, env, given.get("steps"), quiet, callbacks)
    if dataset is None:
        raise AspcError("train needs a dataset: a name, a path, or a Dataset.")
    for name in hyper:
        if name == "bc":
            raise AspcError('bc= has been removed. Use algo="aspc_aw" or algo="td3_bc_aw".')
        if name in LOAD_OPTIONS:
            call = f"aspc.train(aspc.data.load(PATH, {name}=…))"
            raise AspcError(f"{name} is an option for loading data; pass it to the loader: {call}.")
    options = TrainOptions(**given)
    algo = "aspc" if algo is None else algo
    chosen = _select_by_name(algo, hyper) if isinstance(algo, str) else _select_object(algo, hyper, options)
    horizons = {name.rpartition(".")[2] for name in declared_fields(chosen.algorithm, RunLength)}
    if fixed := [name for name in hyper if name.rpartition(".")[2] in horizons]:
        raise _fixed_horizon(fixed[0])
    known = {*names, *all_field_names(chosen.algorithm), "preset"}
    if unknown := [name for name in hyper if "." not in name and name not in {*known, "base"}]:
        raise unknown_name("setting", unknown[0], known)
    data = load_source(dataset, {})
    source = os.fspath(dataset) if isinstance(dataset, str | os.PathLike) else None
    if chosen.preset is not None:
        hyper = {**overrides(chosen.name, data.name, chosen.preset), **hyper}
    return start_run(
        chosen.name,
        replace_fields(chosen.algorithm, hyper),
        data,
        options,
        source=source,
        preset=chosen.preset,
        out=out,
        env=env,
        quiet=quiet,
        callbacks=callbacks,
    )


class SelectedAlgorithm(NamedTuple):
    """An algorithm with the names under which a config records it."""

    name: str
    algorithm: Algorithm[Any]
    preset: str | None


def _select_by_name(name: str, hyper: dict[str, Any]) -> SelectedAlgorithm:
    """Return a registered algorithm, and remove `preset` from the settings."""
    preset = hyper.pop("preset", None)
    return SelectedAlgorithm(name, algorithms.default(name), preset)


def _select_object(algorithm: Algorithm[Any], hyper: Mapping[str, Any], options: TrainOptions) -> SelectedAlgorithm:
    """Return an algorithm object with its registered name, or its class name if it is not registered."""
    if "preset" in hyper:
        raise AspcError("preset requires the name of an algorithm; an algorithm object already has its settings.")
    if options.horizon is None and (lost := overwritten_horizons(algorithm, options.steps)):
        raise _fixed_horizon(lost[0])
    name = algorithms.registered_as(algorithm) or type(algorithm).__name__
    return SelectedAlgorithm(name, coerce_fields(algorithm), None)


def _check_algo(algo: object) -> None:
    if isinstance(algo, str):
        return
    if not dataclasses.is_dataclass(algo):
        raise AspcError(f"algo must be an algorithm or a name ({', '.join(algorithms.names())}), not {algo!r}.")
    algorithms.check_algorithm(algo)


def _fixed_horizon(name: str) -> AspcError:
    return AspcError(f"{name} cannot be set directly: it always equals the length of the run. Pass horizon=… instead.")


def start_run(
    name: str,
    algorithm: Algorithm[Any],
    data: Data,
    options: TrainOptions,
    *,
    source: str | None = None,
    source_options: Mapping[str, Any] | None = None,
    preset: str | None = None,
    out: str | Path | None = None,
    env: str | Callable[[], Any] | None = "auto",
    repeats: Path | None = None,
    quiet: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Start a new run of `algorithm`.

    Args:
        name: The name of the algorithm in the config.
        algorithm: The algorithm with all its hyperparameters.
        data: The dataset.
        options: Options of the run.
        source: Name or path from which the data can be loaded again.
        source_options: Options with which the data was loaded.
        preset: The preset that the config records.
        out: Folder of the run. Default: runs/DATASET_ALGO_TIME.
        env: As for `train`.
        repeats: Folder of a run to repeat. If source and preprocessing are the same, the data must be the same.
        quiet: Hide progress.
        callbacks: As for `train`.
    """
    check_settings(name, [algorithm], options)
    algorithm = with_horizon(algorithm, options.horizon or options.steps)
    task = prepare_task(data, algorithm, options, env)
    if isinstance(task.env, str):
        check_sizes(task.env, env_sizes(task.env), (data.observation_size, data.action_size))
    facts = dataset_facts(data, source, source_options or {}, task.prepared)
    if repeats is not None:
        _check_same_data(Run(repeats), facts, algorithm, options)
    path = Path(out) if out is not None else default_folder(data.name, name)
    config = RunConfig(
        algo=name,
        preset=preset,
        scale_name=algorithm.scale_name,
        hyperparameters=recorded_values(algorithm),
        dataset=facts,
        env=env_name(task.env),
        options=options,
        started=timestamp(),
        software=software_facts(),
    )
    run_folder.create(path, to_json(config))
    with run_folder.rollback_on_early_failure(path):
        make_trainer = partial(Trainer, quiet=quiet, callbacks=callbacks)
        return train_run(path, config, algorithm, task, make_trainer, 0, options.steps)


def resume_run(
    path: Path,
    dataset: Data | str | os.PathLike[str] | None,
    algo: Algorithm[Any] | str | None,
    env: str | Callable[[], Any] | None,
    steps: int | None,
    quiet: bool,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Continue a run from its newest checkpoint, up to its requested steps or `steps`."""
    run = Run(path)
    config = run.config
    if config.finetuned_from is not None:
        command = run_folder.resume_command("finetune", path, None)
        raise AspcError(f"{path} was trained online; continue it with: {command}")
    if algo:
        _check_same_algorithm(run, algo)
    algorithm = recorded_algorithm(config, None if isinstance(algo, str) else algo)
    steps = steps or config.options.steps
    if is_finished(run, steps, quiet):
        return run
    data = load_again(path, config.dataset.source, dataset, run.data_options(env), "train(dataset, resume=…)")
    task = prepare_task(data, algorithm, config.options, run.env if env == "auto" else env)
    if task.prepared.fingerprint != config.dataset.fingerprint:
        raise AspcError(
            f"The data differs from the data that {path} was trained on. Pass the original data, or start a new run."
        )
    if task.env == ENV_FUNCTION:
        raise AspcError(f"{path} was evaluated in an environment made by a Python function; pass it again as env=….")
    make_trainer = partial(Trainer, quiet=quiet, callbacks=callbacks)
    return train_run(path, config, algorithm, task, make_trainer, None, steps)


def _check_same_algorithm(run: Run, algo: Algorithm[Any] | str) -> None:
    """Raise an AspcError if `algo` is not the algorithm of a run. Any object matches an unregistered algorithm."""
    recorded = run.config.algo
    if isinstance(algo, str):
        same, given = algo == recorded, algo
    else:
        known = recorded in algorithms.names()
        same = not known or algorithms.same_classes(algorithms.default(recorded), algo)
        given = type(algo).__name__
    if not same:
        raise AspcError(
            f"{run.path} is a run of {recorded}, not of {given}; a resumed run keeps its algorithm. Omit algo, or "
            "start a new run."
        )


def _check_same_data(run: Run, facts: DatasetFacts, algorithm: Algorithm[Any], options: TrainOptions) -> None:
    """Raise an AspcError if a repeated run would use different data with the same name."""
    config, recorded = run.config, run.config.dataset
    same_source = (recorded.source, recorded.reading_options()) == (facts.source, facts.reading_options())
    recorded_key = preprocessing_key(recorded_algorithm(config), config.options)
    same_preprocessing = recorded_key == preprocessing_key(algorithm, options)
    if same_source and same_preprocessing and recorded.fingerprint != facts.fingerprint:
        raise AspcError(
            f"{recorded.source} differs from the data that {run.path} was trained on. Restore the original data, or "
            "start a new run without --from."
        )


def recorded_algorithm(config: RunConfig, algorithm: Algorithm[Any] | None = None) -> Algorithm[Any]:
    """Return the algorithm of a run with its hyperparameters.

    Args:
        config: The config of the run.
        algorithm: An algorithm of the same class; needed if it is not registered.
    """
    name = config.algo
    if algorithm is None and name not in algorithms.names():
        raise AspcError(
            f"The run's algorithm, {name}, is not registered. Pass it again as algo=… from Python, or register it as "
            f"{name!r} in a file and pass that file with --plugin."
        )
    if algorithm is not None:
        name_components(algorithm)  # so that the recorded names of its networks and optimizers are known
    algorithm = algorithm or algorithms.default(name)
    try:
        return resolve_components(replace_fields(algorithm, config.hyperparameters))
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise AspcError(f"The run's {run_folder.CONFIG} is damaged: invalid hyperparameters.") from error


def default_folder(dataset: str, algo: str) -> Path:
    """Create and return a new folder; runs started in the same second get different folders."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        path = Path("runs") / sanitize_file_name(f"{dataset}_{algo}_{stamp}{suffix}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise AspcError(f"Cannot create the folder {path}: {error.strerror}; choose another --out.") from error
        return path
    raise AspcError("Too many runs started in the same second. Pass a different --out for each run.")


def evaluate(
    run: Run | str | os.PathLike[str], episodes: int = 100, seeds: Sequence[int] | None = None, env: str | None = None
) -> list[Row]:
    """Evaluate the saved policies of a run in new episodes.

    Args:
        run: A run, its folder, or the folder of a single policy.
        episodes: Episodes per policy.
        seeds: Seeds whose policies are evaluated. Default: all seeds of the run.
        env: The environment. Default: the run's environment; required for a single policy.

    Returns:
        One row of returns and scores per policy.
    """
    if not isinstance(run, str | os.PathLike):
        raise AspcError(f"evaluate takes a run or the path of its folder, not {type(run).__name__}.")
    facts: DatasetFacts | None = None
    if (Path(run) / WEIGHTS).exists():
        policy = Policy.load(Path(run))
        seed = policy.info.get("seed")
        policies, environment = {seed if isinstance(seed, int) and seed >= 0 else 0: policy}, env
    else:
        run = run if isinstance(run, Run) else Run(run)
        policies = {seed: run.policy_of(seed) for seed in seeds or run.seeds}
        environment, facts = env or run.env, run.config.dataset
    if environment is None or environment == ENV_FUNCTION:
        raise AspcError(f"No environment is recorded in {Path(run)}; pass one with --env.")
    if (Path(run) / run_folder.CHECKSUMS).exists():  # runs of older versions have no checksums
        checksums.verify(Path(run))
    rows: list[Row] = []
    score = recorded_score_of(facts, environment)
    notice = notify_if_slow(f"Evaluating {len(policies)} policies over {episodes:,} episodes each …")
    with notice, Evaluator(environment) as evaluator:
        for seed, policy in policies.items():
            pending = evaluator.evaluate(policy, episode_seeds(seed, -1 % 2**32, episodes))
            try:
                evaluation = pending.result()
            except WorkerFailed as failure:
                raise AspcError(f"The evaluation failed: {failure}") from failure
            rows.append({"seed": seed, **evaluation.to_row(score)})
    return rows
