"""Many runs as one compiled program: seeds × datasets × settings that differ in numbers or numbered choices only.

    members = [Member(f"{name}-{seed}", name, seed) for name in ("hopper-medium-v2", …) for seed in range(4)]
    fleet = train_fleet("aspc", aspc.algorithms.default("aspc"), members, TrainOptions(steps=1_000_000), Path("out"))
    fleet.result["members"]["hopper-medium-v2-0"]["last_score"]

fleet/
  config.json          members, datasets, hyper-parameters, versions, machine
  metrics.csv          one row per chunk and run (`run` is the index of the member)
  evaluations.csv      one row per evaluation and run
  result.json          written at the end: the results of each member
  policy/NAME/         the policy of each member that did not fail
  checkpoints/         the state from which the same call continues
  status.json          failures so far, and the elapsed seconds
  checksums.json       SHA-256 of all of these (see aspc.training.checksums)
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from aspc.algorithms.fields import with_horizon
from aspc.algorithms.interface import Algorithm
from aspc.algorithms.registry import split_bc_term
from aspc.data import Dataset
from aspc.errors import AspcError, ExternalFailure, unknown_name
from aspc.io import read_json
from aspc.policy import Policy
from aspc.training import run_folder
from aspc.training.grouping import as_json, group_key, numbered_choices, variable_fields
from aspc.training.hyperparameters import coerce_fields, flat_settings, flat_values, replace_fields
from aspc.training.launch import check_settings, execute, prepare_task
from aspc.training.prepared_data import Data, dataset_facts, load_source, preprocessing_key
from aspc.training.run_config import (
    LARGEST_SEED,
    FleetConfig,
    FleetDataset,
    FleetMember,
    TrainOptions,
    env_name,
    from_json,
    software_facts,
    timestamp,
    to_json,
)
from aspc.training.run_folder import Row, columns, read_rows
from aspc.training.trainer import Trainer
from aspc.training.training_plan import Outcome, RunSpec, Task, TrainingPlan

SCORES = ("return", "score")
# Options that do not change what is learned, so that the same fleet can be continued with others.
UNRELATED_OPTIONS = {"seeds", "checkpoint_every", "checkpoints_to_keep", "memory_budget_mb", "tensorboard", "logger"}


class Member(NamedTuple):
    """One run of a fleet."""

    name: str
    """Unique in the fleet; a file name."""
    dataset: str | Dataset
    """A name, a path or a dataset, as `train` takes it."""
    seed: int
    settings: Mapping[str, Any] = {}
    """Hyper-parameters that differ from the fleet's algorithm, by plain or dotted name."""


# ---------------------------------------------------------------------------------------------------------------
# Training
# ---------------------------------------------------------------------------------------------------------------


def train_fleet(
    algo: str,
    algorithm: Algorithm[Any],
    members: Sequence[Member],
    options: TrainOptions,
    out: str | Path,
    *,
    env: str | Callable[[], Any] | None = "auto",
    vectorise: bool | None = None,
    quiet: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Fleet:
    """Train all members together and write a fleet folder.

    The same call continues an interrupted fleet, and returns at once if it is finished. A member with NaN or infinite
    values is marked as failed; the others continue.

    Args:
        algo: The name of the algorithm in the config.
        algorithm: The algorithm; members override its hyper-parameters.
        members: The runs.
        options: Options of all runs; `options.seeds` is ignored.
        out: Folder of the fleet.
        env: As for `train`, for all datasets.
        vectorise: Run members side by side or one after the other. Default: whichever suits the device.
        quiet: Show no progress.
        on_progress: Called with the current and the last step after each chunk.
    """
    out = Path(out)
    algorithm = coerce_fields(algorithm)
    algorithms = [_member_algorithm(algorithm, member, options) for member in members]
    check_settings(algo, algorithms, options)
    _check_names([member.name for member in members])
    _check_seeds(members)
    request = _request_hash(algo, members, algorithms, options, env)
    fleet = Fleet(out) if (out / run_folder.CONFIG).exists() else None
    if fleet is not None:
        if fleet.config.asked != request:
            raise AspcError(f"{out} holds another fleet; choose another folder.")
        if fleet.result is not None and all(_is_dataset_name(member.dataset) for member in members):
            return fleet
    tasks, task_of = _prepare_tasks(members, algorithms, options, env)
    varying = _varying_values(algorithm, members, algorithms, tasks, task_of, options)
    datasets = [_fleet_dataset(members[task_of.index(i)], task) for i, task in enumerate(tasks)]
    if fleet is None:
        config = FleetConfig(
            algo=algo,
            scale_name=algorithm.scale_name,
            hyperparameters=dataclasses.asdict(algorithms[0]),
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
                raise ExternalFailure(f"{found.name} is not what {out} was trained on (its content differs).")
        if fleet.result is not None:
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
        vectorise=vectorise,
        isolate=True,
    )
    outcome = execute(plan, lambda: Trainer(plan, None, options.steps, quiet, on_progress), fleet.summarise)
    fleet.signal = outcome.signal
    return fleet


def _member_algorithm(algorithm: Algorithm[Any], member: Member, options: TrainOptions) -> Algorithm[Any]:
    return with_horizon(replace_fields(algorithm, member.settings), options.horizon or options.steps)


def _check_names(names: Sequence[str]) -> None:
    if not names:
        raise AspcError("A fleet needs at least one member.")
    for name in names:
        if name in ("", ".", "..") or set(name) & set('/\\:*?"<>|\0'):
            raise AspcError(f"A member's name is used as a folder name, so it cannot be {name!r}.")
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise AspcError(f"Duplicate member name {duplicates[0]!r}; give each member a different name.")


def _check_seeds(members: Sequence[Member]) -> None:
    for member in members:
        is_integer = isinstance(member.seed, int | np.integer) and not isinstance(member.seed, bool)
        if not is_integer or not 0 <= member.seed <= LARGEST_SEED:
            raise AspcError(
                f"The seed of {member.name} must be an integer from 0 to {LARGEST_SEED:,}, not {member.seed!r}."
            )


def _is_dataset_name(dataset: str | Dataset) -> bool:
    """Return whether a dataset is given by a name, whose content does not change, and not by a file or arrays."""
    return isinstance(dataset, str) and not Path(dataset).exists()


def _request_hash(
    algo: str,
    members: Sequence[Member],
    algorithms: Sequence[Algorithm[Any]],
    options: TrainOptions,
    env: str | Callable[[], Any] | None,
) -> str:
    """Return a hash of the arguments of `train_fleet`; the content of datasets is compared by its fingerprint."""
    requested = [
        [
            member.name,
            member.dataset if isinstance(member.dataset, str) else member.dataset.name,
            member.seed,
            sorted(member.settings),
            dataclasses.asdict(own),
        ]
        for member, own in zip(members, algorithms, strict=True)
    ]
    shared = {name: value for name, value in dataclasses.asdict(options).items() if name not in UNRELATED_OPTIONS}
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
        raise AspcError("A streamed dataset cannot be trained together with others; train it in a separate fleet.")
    return list(tasks.values()), task_of


def _varying_values(
    algorithm: Algorithm[Any],
    members: Sequence[Member],
    algorithms: Sequence[Algorithm[Any]],
    tasks: Sequence[Task],
    task_of: Sequence[int],
    options: TrainOptions,
) -> dict[str, np.ndarray]:
    """Return the hyper-parameters that any member sets, one value per member.

    A number that one member sets is an input of the program for all members. So a member computes the same bits in a
    separate fleet as among others that set the same numbers.

    Raises:
        AspcError: If the members cannot share a program.
    """
    values = [flat_values(own) for own in algorithms]
    free = variable_fields(algorithms[0])
    for member, own, task in zip(members, values, task_of, strict=True):
        if tasks[task].prepared.layout != tasks[0].prepared.layout:
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


# ---------------------------------------------------------------------------------------------------------------
# On disk
# ---------------------------------------------------------------------------------------------------------------


class Fleet:
    """A fleet on disk, finished or not."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.signal: int | None = None
        """A signal that arrived during the last chunk; the caller should obey it."""
        file = self.path / run_folder.CONFIG
        content = read_json(file, {})
        if isinstance(content, dict) and "members" not in content:
            raise AspcError(f"There is no fleet in {self.path}.")
        self.config = from_json(file, content, FleetConfig)
        for member in self.config.members:
            if not 0 <= member.dataset < len(self.config.datasets):
                raise AspcError(f"{file} is damaged: {member.name!r} has a dataset that is not there.")
        self._names = [member.name for member in self.config.members]
        _check_names(self._names)
        self._rows_read: dict[str, tuple[int, dict[int, list[Row]]]] = {}

    def __repr__(self) -> str:
        return f"Fleet({str(self.path)!r}: {self.config.algo}, {len(self._names)} runs)"

    @property
    def members(self) -> list[Member]:
        """The members, with the names of their datasets."""
        datasets = [data.source or data.name for data in self.config.datasets]
        return [Member(m.name, datasets[m.dataset], m.seed, m.settings) for m in self.config.members]

    def metrics(self, name: str) -> dict[str, np.ndarray]:
        """Return the metrics of a member as arrays by column, one row per chunk."""
        return columns(self._rows(run_folder.METRICS, name))

    def evaluations(self, name: str) -> dict[str, np.ndarray]:
        """Return the evaluations of a member as arrays by column."""
        return columns(self._rows(run_folder.EVALUATIONS, name))

    @property
    def result(self) -> dict[str, Any] | None:
        """The results of the fleet; None until it is finished."""
        file = self.path / run_folder.RESULT
        result: dict[str, Any] | None = read_json(file, None)
        if result is not None:
            run_folder.check_form(file, result, {"steps": int, "members": dict})
            for name in self._names:
                own = result["members"].get(name)
                run_folder.check_form(file, own, {"status": str, "steps": int, "seconds": (int, float)})
        return result

    def policy(self, name: str) -> Policy:
        """Return the policy of a member that did not fail."""
        self._index(name)
        return Policy.load(self.path / "policy" / name)

    def summarise(self, outcome: Outcome) -> dict[str, Any]:
        """Return the content of result.json."""
        metrics, evaluations = (self._rows_by_run(file) for file in (run_folder.METRICS, run_folder.EVALUATIONS))
        shared = {
            "seconds": round(outcome.seconds, 3),
            "steps_per_second": outcome.steps_per_second,
            "runs_together": len(self._names),
        }
        members = {}
        for i, name in enumerate(self._names):
            failure = outcome.failures.get(i)
            members[name] = {
                "name": name,
                "status": "done" if failure is None else "failed",
                "error": failure and failure.message,
                "steps": outcome.step if failure is None else failure.step,
                **_scores(evaluations.get(i, [])),
                "final_scale": last_finite(row.get("scale") for row in metrics.get(i, ())),
                **shared,
            }
        return {
            "steps": outcome.step,
            **shared,
            "matmul_precision": self.config.options.matmul_precision,
            "evaluation_seconds": outcome.evaluation_seconds,
            "hidden_eval_every": outcome.hidden_eval_every,
            "members": members,
        }

    def _rows(self, file: str, name: str) -> list[Row]:
        return self._rows_by_run(file).get(self._index(name), [])

    def _rows_by_run(self, file: str) -> dict[int, list[Row]]:
        """Return the rows of each run; a file that has grown is read again."""
        path = self.path / file
        size = path.stat().st_size if path.exists() else 0
        if file not in self._rows_read or self._rows_read[file][0] != size:
            found: dict[int, list[Row]] = {}
            for row in read_rows(path):
                if not row.get("run", math.nan).is_integer():
                    raise AspcError(f"{path} is damaged: a row has no valid run.")
                found.setdefault(int(row["run"]), []).append(row)
            self._rows_read[file] = size, found
        return self._rows_read[file][1]

    def _index(self, name: str) -> int:
        if name not in self._names:
            raise unknown_name("member", name, self._names)
        return self._names.index(name)


def last_finite(values: Iterable[float | None]) -> float | None:
    """Return the last finite value: a chunk without a policy update has no scale."""
    return next((value for value in reversed([*values]) if value is not None and np.isfinite(value)), None)


def _scores(rows: Sequence[Row]) -> dict[str, float | int | None]:
    """Return the last and the best evaluation of one run; None for unknown values."""
    known = {name: [row[f"{name}_mean"] for row in rows if not np.isnan(row[f"{name}_mean"])] for name in SCORES}
    last = rows[-1] if rows else None
    return {
        **{f"last_{name}": values[-1] if values else None for name, values in known.items()},
        **{f"best_{name}": max(values, default=None) for name, values in known.items()},
        "success": None if last is None or np.isnan(last["success_rate"]) else last["success_rate"],
        "episodes": None if last is None else int(last["episodes"]),
    }
