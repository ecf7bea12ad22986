"""Many runs as one compiled program: seeds × datasets × settings that differ in numbers only, or in numbered choices.

    members = [Member(f"{name}-{seed}", name, seed) for name in ("hopper-medium-v2", …) for seed in range(4)]
    fleet = train_fleet("aspc", aspc.algorithms.default("aspc"), members, TrainOptions(steps=1_000_000), Path("out"))
    fleet.result["members"]["hopper-medium-v2-0"]["last_score"]

fleet/
  config.json          what was trained: members, datasets, hyper-parameters, versions, machine
  metrics.csv          a row for each chunk and run (`run` counts the members from 0)
  evaluations.csv      a row for each evaluation and run
  result.json          written at the end: what each member came to
  policy/NAME/         the policy of each member that did not fail
  checkpoints/         what the same call continues from
  status.json          who has failed so far, and how long it took
  checksums.json       SHA-256 of all of these (see aspc.training.checksums)
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from aspc import theory
from aspc.algorithms.interface import Spec, with_horizon
from aspc.data import Dataset
from aspc.errors import AspcError, ExternalFailure
from aspc.policy import Policy
from aspc.training import checksums, loggers, run_folder
from aspc.training.compiled_loop import all_parts, with_overrides
from aspc.training.packed_table import Layout
from aspc.training.prepared_data import Data, PreparedDataset, dataset_facts, load_source, preprocessing_key
from aspc.training.run import A_FUNCTION
from aspc.training.run_config import (
    LARGEST_SEED,
    TrainOptions,
    check_values,
    choices_of,
    environment_facts,
    flat_settings,
    flat_values,
    full_name,
    replace_fields,
    to_plain,
    with_kinds,
)
from aspc.training.run_folder import Row, columns, read_json, read_rows
from aspc.training.trainer import Outcome, Plan, RunSpec, Task, Trainer

SCORES = ("return", "score")
# Options that change nothing in what is learned: another fleet is not another one for these.
OUTSIDE = {"seeds", "checkpoint_every", "checkpoints_to_keep", "memory_budget_mb", "tensorboard", "logger"}


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
# What can share a program
# ---------------------------------------------------------------------------------------------------------------


def traceable(algorithm: Any, name: str) -> bool:
    """Whether this hyper-parameter can be a number that differs between the runs of one program.

    It can if the algorithm's functions accept a number in its place whose value is not known: nothing is computed.
    """
    return full_name(algorithm, name) in numbers(algorithm)


_NUMBERS: dict[str, frozenset[str]] = {}


def numbers(algorithm: Any) -> frozenset[str]:
    """The dotted names of all hyper-parameters that can differ between the runs of one program.

    These are numbers that the algorithm need not know, and choices that it takes by number.
    """
    values = flat_values(algorithm)
    floats = [name for name, value in values.items() if isinstance(value, float)]
    # Values of other numbers play no part in it: a program either accepts an unknown number in a place or does not.
    key = _as_json([_kinds(algorithm), {name: v for name, v in values.items() if name not in floats}, floats])
    if key not in _NUMBERS:
        together = _accepts(algorithm, floats)
        _NUMBERS[key] = frozenset(floats if together else (name for name in floats if _accepts(algorithm, [name])))
    return _NUMBERS[key] | choices(algorithm).keys()


def choices(algorithm: Any) -> dict[str, tuple[Any, ...]]:
    """The choices that an algorithm, or whatever it wraps, takes by number (`Algorithm.numbered`), by dotted name."""
    kind: Any = type(algorithm)
    found = {name: choices_of(kind)[name] for name in getattr(kind, "numbered", ())}
    for field in dataclasses.fields(algorithm):
        if dataclasses.is_dataclass(inner := getattr(algorithm, field.name)):
            found |= {f"{field.name}.{name}": values for name, values in choices(inner).items()}
    return found


def _accepts(algorithm: Any, names: Sequence[str]) -> bool:
    """Whether `init`, every kind of `update`, and `policy` can be traced with unknown numbers in these tasks."""
    spec = Spec(3, 2)
    layout = Layout(3, 2, bool(getattr(algorithm, "uses_next_actions", False)))

    def program(key: Any, values: Mapping[str, Any]) -> list[Any]:
        one = with_overrides(algorithm, values)
        states = [one.init(key, spec)]
        batch = layout.unpack(jnp.zeros((one.batch_size, layout.width)))
        noise = {name: draw.sample(key, 1)[0] for name, draw in one.noise(spec, one.batch_size).items()}
        for parts in all_parts(one):
            states.append(one.update(states[0], batch, noise, parts)[0])
        one.policy(states[-1])
        return states

    try:
        before, *after = jax.eval_shape(program, jax.random.key(0), {name: jnp.zeros(()) for name in names})
    except Exception:  # whatever a function does with a number that it needs to know
        return False
    kinds = [[(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)] for state in (before, *after)]
    return all(kind == kinds[0] for kind in kinds)


def group_key(algorithm: Any, sizes: Sequence[float], options: TrainOptions) -> Hashable:
    """Runs with equal keys can train together.

    `algorithm` has the run's own settings, `sizes` are the problem's (observation, action). Equal keys mean: the same
    algorithm but for numbers that can differ, the same sizes, the same options (seeds do not matter).
    """
    free = numbers(algorithm)
    fixed = {name: value for name, value in flat_values(algorithm).items() if name not in free}
    shared = {name: value for name, value in dataclasses.asdict(options).items() if name != "seeds"}
    return _as_json([_kinds(algorithm), fixed, list(sizes)[:2], shared])


def _kinds(algorithm: Any) -> list[str]:
    """The classes of an algorithm and of whatever it wraps."""
    inner = [getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)]
    own = f"{type(algorithm).__module__}.{type(algorithm).__qualname__}"
    return [own, *(kind for value in inner if dataclasses.is_dataclass(value) for kind in _kinds(value))]


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


# ---------------------------------------------------------------------------------------------------------------
# Training
# ---------------------------------------------------------------------------------------------------------------


def train_fleet(
    algo: str,
    algorithm: Any,
    members: Sequence[Member],
    options: TrainOptions,
    out: str | Path,
    *,
    bc: str | Mapping[str, Any] = "plain",
    env: str | Callable[[], Any] | None = "auto",
    vectorise: bool | None = None,
    quiet: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Fleet:
    """Train all members together, and leave a fleet's folder behind.

    The same call continues a fleet that was cut short, and returns at once if it is finished. A member whose numbers
    become NaN or infinite is marked as failed and the others go on. `options.seeds` is not looked at. `bc` (or a
    mapping of further facts) goes into the config; `env` is as in `train`, for all datasets. `vectorise` puts runs
    side by side or one after the other, if not as the device likes it best.
    """
    out = Path(out)
    algorithm = with_kinds(algorithm)
    algorithms = [_own_algorithm(algorithm, member, options) for member in members]
    for own in algorithms:
        check_values(own)
    _check_names(members)
    _check_seeds(members)
    asked = _asked(algo, members, algorithms, options, env)
    if (out / run_folder.CONFIG).exists():
        fleet = Fleet(out)
        if fleet.config["asked"] != asked:
            raise AspcError(f"{out} holds another fleet; choose another folder.")
        if fleet.result is not None and all(_is_name(member.dataset) for member in members):
            return fleet
    loggers.require(options.logger)
    if options.monitor_every and not theory.can_monitor(algorithm):
        raise AspcError(f"--monitor-every looks at the step that a scale governs; {algo} has no scale.")
    tasks, at = _tasks(members, algorithms, options, env)
    varying = _varying(algorithm, members, algorithms, tasks, at, options)
    config = {
        "format": 1,
        "algo": algo,
        **({"bc": bc} if isinstance(bc, str) else bc),
        "scale_name": getattr(algorithm, "scale_name", None),
        "hyperparameters": to_plain(algorithms[0]),
        "varying": sorted(varying),
        "members": [
            {"name": member.name, "seed": member.seed, "dataset": task, "settings": dict(member.settings)}
            for member, task in zip(members, at, strict=True)
        ],
        "datasets": [_facts(member, task) for member, task in zip(_first_of(members, at), tasks, strict=True)],
        **{name: value for name, value in dataclasses.asdict(options).items() if name != "seeds"},
        "asked": asked,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **environment_facts(),
    }
    if (out / run_folder.CONFIG).exists():
        for before, now in zip(fleet.config["datasets"], config["datasets"], strict=True):
            if before["fingerprint"] != now["fingerprint"]:
                raise ExternalFailure(f"{now['name']} is not what {out} was trained on (its content differs).")
        if fleet.result is not None:
            return fleet
        config = fleet.config
    else:
        run_folder.create(out, config)
    plan = Plan(
        out,
        algo,
        algorithms[0],
        tasks,
        [
            RunSpec(member.name, member.seed, task, own, {"run": i, "seed": member.seed}, member.name)
            for i, (member, task, own) in enumerate(zip(members, at, algorithms, strict=True))
        ],
        varying,
        options,
        config,
        resume_with="the same call",
        vectorise=vectorise,
        isolate=True,
    )
    with run_folder.written(out, plan.resume_with):
        outcome = Trainer(plan, quiet, on_progress).go(None, options.steps)
        run_folder.write_json(out / run_folder.RESULT, _result(Fleet(out), outcome))
        checksums.finish(out)
    fleet = Fleet(out)
    fleet.signal = outcome.signal
    return fleet


def _own_algorithm(algorithm: Any, member: Member, options: TrainOptions) -> Any:
    return with_horizon(replace_fields(algorithm, member.settings), options.horizon or options.steps)


def _check_names(members: Sequence[Member]) -> None:
    if not members:
        raise AspcError("A fleet needs at least one member.")
    names = [member.name for member in members]
    bad = [name for name in names if name in ("", ".", "..") or set(name) & set('/\\:*?"<>|\0')]
    if bad:
        raise AspcError(f"A member's name is the name of a folder, so it cannot be {bad[0]!r}.")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise AspcError(f"Two members of the fleet are called {twice[0]!r}; give each a name of its own.")


def _check_seeds(members: Sequence[Member]) -> None:
    for member in members:
        whole = isinstance(member.seed, int | np.integer) and not isinstance(member.seed, bool)
        if not whole or not 0 <= member.seed <= LARGEST_SEED:
            raise AspcError(
                f"The seed of {member.name} must be a whole number, 0 to {LARGEST_SEED:,}, not {member.seed!r}."
            )


def _is_name(dataset: Any) -> bool:
    """Whether the dataset is known by a name, which stands for its content; files and arrays do not."""
    return isinstance(dataset, str) and not Path(dataset).exists()


def _asked(algo: str, members: Sequence[Member], algorithms: Sequence[Any], options: TrainOptions, env: Any) -> str:
    """A hash of everything that was asked for; that the data is the same is checked by its own fingerprint."""
    own_facts = [
        [m.name, m.dataset if isinstance(m.dataset, str) else m.dataset.name, m.seed, sorted(m.settings), to_plain(own)]
        for m, own in zip(members, algorithms, strict=True)
    ]
    shared = {name: value for name, value in dataclasses.asdict(options).items() if name not in OUTSIDE}
    facts = [algo, own_facts, shared, env if isinstance(env, str | None) else A_FUNCTION]
    return hashlib.sha256(_as_json(facts).encode()).hexdigest()[:16]


def _tasks(
    members: Sequence[Member], algorithms: Sequence[Any], options: TrainOptions, env: Any
) -> tuple[list[Task], list[int]]:
    """The datasets as the algorithm sees them, each once, and which of them every member learns from."""
    loaded: dict[Any, Data] = {}
    tasks: dict[Any, Task] = {}
    at = []
    for member, algorithm in zip(members, algorithms, strict=True):
        dataset = member.dataset if isinstance(member.dataset, str) else id(member.dataset)
        if dataset not in loaded:
            loaded[dataset] = load_source(member.dataset, {})
        data, key = loaded[dataset], (dataset, *preprocessing_key(algorithm, options))
        if key not in tasks:
            prepared = PreparedDataset.of(data, algorithm, options)
            tasks[key] = Task(data, prepared, data.env if env == "auto" else env)
        at.append(list(tasks).index(key))
    if len(tasks) > 1 and any(task.prepared.stream is not None for task in tasks.values()):
        raise AspcError("A streamed dataset cannot share a table with others; train it in a fleet of its own.")
    return list(tasks.values()), at


def _varying(
    algorithm: Any,
    members: Sequence[Member],
    algorithms: Sequence[Any],
    tasks: Sequence[Task],
    at: Sequence[int],
    options: TrainOptions,
) -> dict[str, np.ndarray]:
    """The numbers that members set for themselves; refuses members that cannot share a program.

    A number that any member sets is a number of the run in all of them. So a member gives the same bits in a fleet
    of its own as among others that set the same numbers.
    """
    values = [flat_values(own) for own in algorithms]
    free = numbers(algorithms[0])
    for member, own, task in zip(members, values, at, strict=True):
        if tasks[task].prepared.layout != tasks[0].prepared.layout:
            raise AspcError(f"{members[0].name} and {member.name} have data of different sizes; they need two fleets.")
        for name in own:
            if name not in free and _as_json(own[name]) != _as_json(values[0][name]):
                raise AspcError(
                    f"{name} is {values[0][name]} for {members[0].name} and {own[name]} for {member.name}, and it "
                    f"cannot differ between runs of one program; they need two fleets."
                )
    key = group_key(algorithms[0], tasks[0].prepared.spec, options)
    assert all(group_key(own, tasks[i].prepared.spec, options) == key for own, i in zip(algorithms, at, strict=True))
    named = {name for member in members for name in flat_settings(algorithm, member.settings)}
    numbered = choices(algorithm)

    def as_numbers(name: str) -> np.ndarray:
        if name in numbered:
            return np.asarray([numbered[name].index(own[name]) for own in values], np.int32)
        return np.asarray([own[name] for own in values], np.float32)

    return {name: as_numbers(name) for name in sorted(named & free)}


def _first_of(members: Sequence[Member], at: Sequence[int]) -> list[Member]:
    """The first member at each task."""
    return [members[at.index(task)] for task in range(max(at) + 1)]


def _facts(member: Member, task: Task) -> dict[str, Any]:
    source = member.dataset if isinstance(member.dataset, str) else None
    env = task.env if isinstance(task.env, str | None) else A_FUNCTION
    return {**dataset_facts(task.data, source, {}, task.prepared), "env": env}


# ---------------------------------------------------------------------------------------------------------------
# What is left behind
# ---------------------------------------------------------------------------------------------------------------


class Fleet:
    """A fleet on disk, finished or not."""

    signal: int | None = None
    """A signal to stop that came when the last of it was being trained; whoever trains several is to obey."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config: dict[str, Any] = read_json(self.path / run_folder.CONFIG, {})
        if "members" not in self.config:
            raise AspcError(f"There is no fleet in {self.path}.")
        self._check()
        self._read: dict[str, tuple[int, dict[int, list[Row]]]] = {}

    def _check(self) -> None:
        """Refuses a damaged config."""
        path = self.path / run_folder.CONFIG
        run_folder.check_form(path, self.config, {"algo": str, "members": list, "datasets": list, "asked": str})
        for data in self.config["datasets"]:
            run_folder.check_form(path, data, {"name": str, "source": (str, type(None)), "fingerprint": str})
        for member in self.config["members"]:
            run_folder.check_form(path, member, {"name": str, "seed": int, "dataset": int, "settings": dict})
            if not 0 <= member["dataset"] < len(self.config["datasets"]):
                raise AspcError(f"{path} is damaged: {member['name']!r} has a dataset that is not there.")
        _check_names(self.members)

    def __repr__(self) -> str:
        return f"Fleet({str(self.path)!r}: {self.config['algo']}, {len(self.members)} runs)"

    @property
    def members(self) -> list[Member]:
        """The members, with the names of their datasets."""
        datasets = self.config["datasets"]
        return [
            Member(
                m["name"], datasets[m["dataset"]]["source"] or datasets[m["dataset"]]["name"], m["seed"], m["settings"]
            )
            for m in self.config["members"]
        ]

    def metrics(self, name: str) -> dict[str, np.ndarray]:
        """What was logged of a member, a row for each chunk, as arrays by column."""
        return columns(self._rows(run_folder.METRICS, name))

    def evaluations(self, name: str) -> dict[str, np.ndarray]:
        """The evaluations of a member, as arrays by column."""
        return columns(self._rows(run_folder.EVALUATIONS, name))

    @property
    def result(self) -> dict[str, Any] | None:
        """What the fleet came to; None while it is not finished."""
        result = read_json(self.path / run_folder.RESULT, None)
        if result is not None:
            run_folder.check_form(self.path / run_folder.RESULT, result, {"steps": int, "members": dict})
            for member in self.config["members"]:
                own = result["members"].get(member["name"])
                run_folder.check_form(
                    self.path / run_folder.RESULT, own, {"status": str, "steps": int, "seconds": (int, float)}
                )
        return result

    def policy(self, name: str) -> Policy:
        """The policy of a member that did not fail."""
        self._index(name)
        return Policy.load(self.path / "policy" / name)

    def _rows(self, file: str, name: str) -> list[Row]:
        return self._by_run(file).get(self._index(name), [])

    def _by_run(self, file: str) -> dict[int, list[Row]]:
        """The rows of each run; a file is read again when it has grown."""
        path = self.path / file
        size = path.stat().st_size if path.exists() else 0
        if file not in self._read or self._read[file][0] != size:
            found: dict[int, list[Row]] = {}
            for row in read_rows(path):
                if not row.get("run", math.nan).is_integer():
                    raise AspcError(f"{path} is damaged: it does not say which run a row belongs to.")
                found.setdefault(int(row["run"]), []).append(row)
            self._read[file] = size, found
        return self._read[file][1]

    def _index(self, name: str) -> int:
        names = [member["name"] for member in self.config["members"]]
        if name not in names:
            raise AspcError(f"{self.path} has no member {name!r}; it has {', '.join(names[:8])}.")
        return names.index(name)


def _result(fleet: Fleet, outcome: Outcome) -> dict[str, Any]:
    metrics, evaluations = (fleet._by_run(file) for file in (run_folder.METRICS, run_folder.EVALUATIONS))
    shared = {
        "seconds": round(outcome.seconds, 3),
        "steps_per_second": outcome.steps_per_second,
        "runs_together": len(fleet.members),
    }
    members = {}
    for i, member in enumerate(fleet.members):
        failure = outcome.failures.get(i)
        members[member.name] = {
            "name": member.name,
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
        "matmul_precision": fleet.config["matmul_precision"],
        "evaluation_seconds": outcome.evaluation_seconds,
        "hidden_eval_every": outcome.hidden_eval_every,
        "members": members,
    }


def last_finite(values: Iterable[float | None]) -> float | None:
    """The last of them that is a number: a chunk without an update of the policy has no scale."""
    return next((value for value in reversed([*values]) if value is not None and np.isfinite(value)), None)


def _scores(rows: Sequence[Row]) -> dict[str, float | int | None]:
    """Last and best evaluation of one run; None for what is not known."""
    known = {name: [row[f"{name}_mean"] for row in rows if not np.isnan(row[f"{name}_mean"])] for name in SCORES}
    last = rows[-1] if rows else None
    return {
        **{f"last_{name}": values[-1] if values else None for name, values in known.items()},
        **{f"best_{name}": max(values, default=None) for name, values in known.items()},
        "success": None if last is None or np.isnan(last["success_rate"]) else last["success_rate"],
        "episodes": None if last is None else int(last["episodes"]),
    }
