"""Train many runs as one compiled program.

The runs can differ in seed, dataset and hyperparameters that are numbers or values of a `Literal`.

Example::

    members = [Member(f"{name}-{seed}", name, seed) for name in ("hopper-medium-v2", …) for seed in range(4)]
    fleet = train_fleet("aspc", aspc.algorithms.default("aspc"), members, TrainOptions(steps=1_000_000), Path("out"))
    fleet.result["members"]["hopper-medium-v2-0"]["last_score"]
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from aspc.algorithms.fields import with_horizon
from aspc.algorithms.interface import Algorithm
from aspc.algorithms.registry import split_bc_term
from aspc.data import Dataset
from aspc.errors import AspcError, ExternalFailure
from aspc.training import run_folder
from aspc.training.callbacks import Callback, check_callbacks
from aspc.training.fleet_folder import Fleet, Member, check_member_names
from aspc.training.grouping import as_json, group_key, numbered_choices, variable_fields
from aspc.training.hyperparameters import coerce_fields, flat_settings, flat_values, recorded_values, replace_fields
from aspc.training.launch import check_settings, execute, prepare_task
from aspc.training.prepared_data import Data, dataset_facts, load_source, preprocessing_key
from aspc.training.run_config import (
    LARGEST_SEED,
    FleetConfig,
    FleetDataset,
    FleetMember,
    TrainOptions,
    env_name,
    software_facts,
    timestamp,
    to_json,
)
from aspc.training.trainer import Trainer
from aspc.training.training_plan import RunSpec, Task, TrainingPlan

__all__ = ["Fleet", "Member", "train_fleet"]

# Options that do not affect learning, so a fleet can be continued with different values of them.
UNRELATED_OPTIONS = {"checkpoint_every", "checkpoints_to_keep", "memory_budget_mb", "tensorboard", "logger"}


def train_fleet(
    algo: str,
    algorithm: Algorithm[Any],
    members: Sequence[Member],
    options: TrainOptions,
    out: str | Path,
    *,
    env: str | Callable[[], Any] | None = "auto",
    vectorize: bool | None = None,
    quiet: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
    callbacks: Iterable[Callback] = (),
) -> Fleet:
    """Train all members together and write a fleet folder.

    The same call continues an interrupted fleet, and returns immediately if the fleet is finished. A member with NaN or
    infinite values is marked as failed; the other members continue. A fleet that a callback stopped counts as
    finished: the same call returns it, but a call without callbacks trains it to the end.

    Args:
        algo: The name of the algorithm in the config.
        algorithm: The algorithm; members override its hyperparameters.
        members: The runs.
        options: Options of all runs; `options.seeds` is ignored.
        out: Folder of the fleet.
        env: Environment of all datasets, as for `train`.
        vectorize: Run members in parallel instead of one after the other. Default: chosen for the device.
        quiet: Hide progress.
        on_progress: Called with the current and the last step after each chunk.
        callbacks: As for `train`. They receive the events of all members; a requested stop ends the whole fleet.
    """
    out, callbacks = Path(out), check_callbacks(callbacks)
    algorithm = coerce_fields(algorithm)
    algorithms = [_member_algorithm(algorithm, member, options) for member in members]
    check_settings(algo, algorithms, options)
    check_member_names([member.name for member in members])
    _check_seeds(members)
    request = _request_hash(algo, members, algorithms, options, env)
    fleet = Fleet(out) if (out / run_folder.CONFIG).exists() else None
    if fleet is not None:
        if fleet.config.asked != request:
            raise AspcError(f"{out} already contains a different fleet; choose another folder.")
        if _is_finished(fleet, callbacks) and all(_is_dataset_name(member.dataset) for member in members):
            return fleet
    tasks, task_of = _prepare_tasks(members, algorithms, options, env)
    varying = _varying_values(algorithm, members, algorithms, tasks, task_of, options)
    datasets = [_fleet_dataset(members[task_of.index(i)], task) for i, task in enumerate(tasks)]
    if fleet is None:
        config = FleetConfig(
            algo=algo,
            scale_name=algorithm.scale_name,
            hyperparameters=recorded_values(algorithms[0]),
            varying=sorted(varying),
            members=[
                FleetMember(name=member.name, seed=member.seed, dataset=task, settings=dict(member.settings))
                for member, task in zip(members, task_of, strict=True)
            ],
            datasets=datasets,
            options=options,
            asked=request,
            started=timestamp(),
            software=software_facts(),
        )
        run_folder.create(out, to_json(config))
        fleet = Fleet(out)
    else:
        for recorded, found in zip(fleet.config.datasets, datasets, strict=True):
            if recorded.fingerprint != found.fingerprint:
                raise ExternalFailure(
                    f"{found.name} differs from the data that {out} was trained on. Restore the original data, or "
                    "choose another folder."
                )
        if _is_finished(fleet, callbacks):
            return fleet
    plan = TrainingPlan(
        out,
        algo,
        algorithms[0],
        tasks,
        [
            RunSpec(member.name, member.seed, task, own, {"run": i, "seed": member.seed}, member.name)
            for i, (member, task, own) in enumerate(zip(members, task_of, algorithms, strict=True))
        ],
        varying,
        options,
        fleet.config,
        resume_with="the same call",
        vectorize=vectorize,
        isolate=True,
    )
    outcome = execute(plan, lambda: Trainer(plan, None, options.steps, quiet, on_progress, callbacks), fleet.summarize)
    fleet.signal = outcome.signal
    return fleet


def _is_finished(fleet: Fleet, callbacks: Sequence[Callback]) -> bool:
    """Return whether a fleet is finished. If a callback stopped it, a call without callbacks trains it further."""
    result = fleet.result
    return result is not None and ("stopped" not in result or bool(callbacks))


def _member_algorithm(algorithm: Algorithm[Any], member: Member, options: TrainOptions) -> Algorithm[Any]:
    return with_horizon(replace_fields(algorithm, member.settings), options.horizon or options.steps)


def _check_seeds(members: Sequence[Member]) -> None:
    for member in members:
        is_integer = isinstance(member.seed, int | np.integer) and not isinstance(member.seed, bool)
        if not is_integer or not 0 <= member.seed <= LARGEST_SEED:
            raise AspcError(
                f"The seed of {member.name} must be an integer from 0 to {LARGEST_SEED:,}, not {member.seed!r}."
            )


def _is_dataset_name(dataset: str | Dataset) -> bool:
    """Return whether a dataset is given by name, which fixes its content, rather than as a file or arrays."""
    return isinstance(dataset, str) and not Path(dataset).exists()


def _request_hash(
    algo: str,
    members: Sequence[Member],
    algorithms: Sequence[Algorithm[Any]],
    options: TrainOptions,
    env: str | Callable[[], Any] | None,
) -> str:
    """Return a hash of the arguments of `train_fleet`, except dataset content, which is compared by fingerprint."""
    requested = [
        [
            member.name,
            member.dataset if isinstance(member.dataset, str) else member.dataset.name,
            member.seed,
            sorted(member.settings),
            recorded_values(own),
        ]
        for member, own in zip(members, algorithms, strict=True)
    ]
    shared = {name: value for name, value in options.program_settings().items() if name not in UNRELATED_OPTIONS}
    return hashlib.sha256(as_json([split_bc_term(algo)[0], requested, shared, env_name(env)]).encode()).hexdigest()[:16]


def _prepare_tasks(
    members: Sequence[Member],
    algorithms: Sequence[Algorithm[Any]],
    options: TrainOptions,
    env: str | Callable[[], Any] | None,
) -> tuple[list[Task], list[int]]:
    """Return the distinct tasks of the members, and the index of each member's task."""
    loaded: dict[str | int, Data] = {}
    tasks: dict[tuple[Any, ...], Task] = {}
    task_of = []
    for member, algorithm in zip(members, algorithms, strict=True):
        dataset = member.dataset if isinstance(member.dataset, str) else id(member.dataset)
        if dataset not in loaded:
            loaded[dataset] = load_source(member.dataset, {})
        key = (dataset, *preprocessing_key(algorithm, options))
        if key not in tasks:
            tasks[key] = prepare_task(loaded[dataset], algorithm, options, env)
        task_of.append(list(tasks).index(key))
    if len(tasks) > 1 and any(task.prepared.stream is not None for task in tasks.values()):
        raise AspcError("A streamed dataset cannot share a fleet with other datasets; train on it in a separate fleet.")
    return list(tasks.values()), task_of


def _varying_values(
    algorithm: Algorithm[Any],
    members: Sequence[Member],
    algorithms: Sequence[Algorithm[Any]],
    tasks: Sequence[Task],
    task_of: Sequence[int],
    options: TrainOptions,
) -> dict[str, np.ndarray]:
    """Return the hyperparameters that any member sets, one value per member.

    A hyperparameter that any member sets becomes an input of the program for all members. A member's results are
    therefore bitwise identical in all fleets whose members set the same hyperparameters, including a fleet of only this
    member.

    Raises:
        AspcError: If the members cannot share a program.
    """
    values = [flat_values(own) for own in algorithms]
    free = variable_fields(algorithms[0])
    for member, own, task in zip(members, values, task_of, strict=True):
        prepared, first = tasks[task].prepared, tasks[0].prepared
        if (prepared.layout, prepared.spec) != (first.layout, first.spec):
            raise AspcError(
                f"{members[0].name} and {member.name} have data of different sizes; train them in separate fleets."
            )
        for name in own:
            if name not in free and as_json(own[name]) != as_json(values[0][name]):
                raise AspcError(
                    f"{name} is {values[0][name]} for {members[0].name} and {own[name]} for {member.name}, but it "
                    f"cannot differ between runs of one program; train them in separate fleets."
                )
    keys = {group_key(own, tasks[i].prepared.spec, options) for own, i in zip(algorithms, task_of, strict=True)}
    assert len(keys) == 1
    named = {name for member in members for name in flat_settings(algorithm, member.settings)}
    numbered = numbered_choices(algorithm)

    def as_array(name: str) -> np.ndarray:
        if name in numbered:
            return np.asarray([numbered[name].index(own[name]) for own in values], np.int32)
        return np.asarray([own[name] for own in values], np.float32)

    return {name: as_array(name) for name in sorted(named & free)}


def _fleet_dataset(member: Member, task: Task) -> FleetDataset:
    source = member.dataset if isinstance(member.dataset, str) else None
    facts = dataset_facts(task.data, source, {}, task.prepared)
    return FleetDataset(**msgspec.structs.asdict(facts), env=env_name(task.env))
