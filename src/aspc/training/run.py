"""`train`: a dataset in, a run folder with a policy out."""

from __future__ import annotations

import dataclasses
import datetime
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from aspc import algorithms, envs, theory
from aspc.algorithms.interface import lost_horizons, with_horizon
from aspc.data.cache import notify_if_slow, sanitize_file_name
from aspc.errors import AspcError, unknown_name
from aspc.policy import WEIGHTS, Policy
from aspc.presets import overrides
from aspc.training import checksums, loggers, run_figure, run_folder
from aspc.training.evaluation import Evaluator, WorkerFailed, episode_seeds
from aspc.training.prepared_data import (
    Data,
    PreparedDataset,
    dataset_facts,
    load_again,
    load_source,
    preprocessing_key,
    recorded_score_of,
)
from aspc.training.run_config import (
    TrainOptions,
    all_field_names,
    check_values,
    environment_facts,
    replace_fields,
    to_plain,
    with_kinds,
)
from aspc.training.run_folder import Row, Run
from aspc.training.trainer import Diverged, Interrupted, Plan, RunSpec, Task, Trainer, use_compilation_cache

__all__ = ["Diverged", "Interrupted", "evaluate", "resume_run", "start_run", "train", "use_compilation_cache"]

READING = ("key_map", "action_low", "action_high", "max_episode_steps", "strict")  # options of `aspc.data.load`
A_FUNCTION = "a Python function"  # what the config says of an environment that has no name


def train(
    dataset: Data | str | os.PathLike[str] | None = None,
    algo: Any = None,
    *,
    out: str | Path | None = None,
    env: str | Callable[[], Any] | None = "auto",
    resume: str | os.PathLike[str] | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Train an algorithm on a dataset and leave a run folder behind.

    `algo` is a name or an algorithm, by default "aspc". `settings` are fields of `TrainOptions` (steps, seeds,
    eval_every, …) or hyper-parameters of the algorithm (alpha, discount, k_alpha, …). `env` is a name or a function
    that makes the environment; "auto" takes the dataset's own, None trains without evaluation, as for logs that have
    no simulator. `resume` continues a run.

        run = aspc.train("maze2d-umaze", algo="aspc", steps=20_000, seeds=[0, 1])
        run.policy.act(observation)
    """
    if algo is not None:
        _check_algo(algo)
    names = {field.name for field in dataclasses.fields(TrainOptions)}
    given: dict[str, Any] = {k: v for k, v in settings.items() if k in names}
    hyper = {k: v for k, v in settings.items() if k not in names}
    if resume is not None:
        if set(given) - {"steps"} or hyper:
            raise AspcError("A resumed run keeps its settings; only steps can be given with resume.")
        return resume_run(Path(resume), dataset, algo, env, given.get("steps"), quiet)
    if dataset is None:
        raise AspcError("train needs a dataset: a name, a path, or a Dataset.")
    for name in hyper:
        if name in READING:
            call = f"aspc.train(aspc.data.load(PATH, {name}=…))"
            raise AspcError(f"{name} says how data are read, so it is given there: {call}.")
        if name.endswith("horizon"):
            raise _follows_from_the_length(name)
    options = TrainOptions(**given)
    algo = "aspc" if algo is None else algo
    chosen = _from_name(algo, hyper) if isinstance(algo, str) else _from_object(algo, hyper, options)
    known = {*names, *all_field_names(chosen.algorithm), "bc", "preset"}
    if unknown := [name for name in hyper if "." not in name and name not in {*known, "base"}]:
        raise unknown_name("setting", unknown[0], known)
    data = load_source(dataset, {})
    source = os.fspath(dataset) if isinstance(dataset, str | os.PathLike) else None
    if chosen.variant["preset"] is not None:
        hyper = {**overrides(chosen.name, data.name, chosen.variant["preset"]), **hyper}
    return start_run(
        chosen.name,
        replace_fields(chosen.algorithm, hyper),
        data,
        options,
        source=source,
        variant=chosen.variant,
        out=out,
        env=env,
        quiet=quiet,
    )


class Chosen(NamedTuple):
    """The algorithm of a new run before its settings, and what the run's config calls it."""

    name: str
    algorithm: Any
    variant: dict[str, Any]


def _from_name(name: str, hyper: dict[str, Any]) -> Chosen:
    """Takes what chooses among the forms of an algorithm out of the settings."""
    bc, preset = hyper.pop("bc", "plain"), hyper.pop("preset", None)
    return Chosen(name, algorithms.default(name, bc), {"bc": bc, "preset": preset})


def _from_object(algorithm: Any, hyper: Mapping[str, Any], options: TrainOptions) -> Chosen:
    """An object is called by the name of its like in the registry, by which the run can be found again."""
    if by_name := [name for name in ("bc", "preset") if name in hyper]:
        raise AspcError(f"{by_name[0]} goes with the name of an algorithm; an object has its settings already.")
    if options.horizon is None and (lost := lost_horizons(algorithm, options.steps)):
        raise _follows_from_the_length(lost[0])
    name, bc = algorithms.registered_as(algorithm) or (_own_name(algorithm), "plain")
    return Chosen(name, with_kinds(algorithm), {"bc": bc, "preset": None})


def _own_name(algorithm: Any) -> str:
    """What an algorithm is called that is registered nowhere."""
    return getattr(algorithm, "name", type(algorithm).__name__)


def _check_algo(algo: Any) -> None:
    if isinstance(algo, str):
        return
    if not dataclasses.is_dataclass(algo):
        raise AspcError(f"algo is an algorithm or the name of one ({', '.join(algorithms.names())}), not {algo!r}.")
    algorithms.check_algorithm(algo)


def _follows_from_the_length(name: str) -> AspcError:
    return AspcError(f"{name} follows from the length of the run; set it with horizon=….")


def start_run(
    name: str,
    algorithm: Any,
    data: Data,
    options: TrainOptions,
    *,
    source: str | None = None,
    source_options: Mapping[str, Any] | None = None,
    variant: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    env: str | Callable[[], Any] | None = "auto",
    repeats: Path | None = None,
    quiet: bool = False,
) -> Run:
    """A new run of `algorithm`, called `name`. `source` says where the data can be loaded from again, and `repeats`
    names a run that this one repeats: where nothing was changed that the data depends on, it must be the same."""
    loggers.require(options.logger)
    if options.monitor_every and not theory.can_monitor(algorithm):
        raise AspcError(f"--monitor-every looks at the step that a scale governs; {name} has no scale.")
    check_values(algorithm)
    algorithm = with_horizon(algorithm, options.horizon or options.steps)
    prepared = PreparedDataset.of(data, algorithm, options)
    environment = data.env if env == "auto" else env
    if isinstance(environment, str):
        envs.check_sizes(environment, envs.sizes(environment), (data.observation_size, data.action_size))
    facts = dataset_facts(data, source, source_options or {}, prepared)
    if repeats is not None:
        _check_same_data(Run(repeats), facts, algorithm, options)
    path = Path(out) if out is not None else default_folder(data.name, name)
    config = {
        "format": 1,
        "algo": name,
        **(variant or {}),
        "scale_name": getattr(algorithm, "scale_name", None),
        "hyperparameters": to_plain(algorithm),
        "dataset": facts,
        "env": environment if isinstance(environment, str) or environment is None else A_FUNCTION,
        **dataclasses.asdict(options),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **environment_facts(),
    }
    run_folder.create(path, config)
    task = Task(data, prepared, environment)
    with run_folder.rollback_on_early_failure(path):
        return _train(path, config, algorithm, task, options, quiet, 0, options.steps)


def resume_run(path: Path, dataset: Any, algo: Any, env: Any, steps: int | None, quiet: bool) -> Run:
    """Continue a run from its newest checkpoint, to its own end or further."""
    run = Run(path)
    config = run.config
    if "finetuned_from" in config:
        raise AspcError(
            f"{path} was trained online; continue it with: {run_folder.resume_command('finetune', path, None)}"
        )
    if algo:
        _check_same_algorithm(run, algo)
    algorithm = recorded_algorithm(config, None if isinstance(algo, str) else algo)
    options = recorded_options(config)
    steps = steps or options.steps
    if is_finished(run, steps, quiet):
        return run
    how, call = run.data_options(env), "train(dataset, resume=…)"
    data = load_again(path, config["dataset"]["source"], dataset, how, call)
    prepared = PreparedDataset.of(data, algorithm, options)
    if prepared.fingerprint != config["dataset"]["fingerprint"]:
        raise AspcError(f"The data is not what {path} was trained on (its content differs); a run cannot change data.")
    environment = run.env if env == "auto" else env
    if environment == A_FUNCTION:
        raise AspcError(f"{path} was evaluated in an environment made by a Python function: give it again as env=….")
    return _train(path, config, algorithm, Task(data, prepared, environment), options, quiet, None, steps)


def is_finished(run: Run, steps: int, quiet: bool) -> bool:
    """Return whether a run has all of its `steps`, and report it: resuming it again is then no error."""
    if run.result is None or run.result["steps"] < steps:
        return False
    if not quiet:
        done = f"{run.path} has already finished its {run.result['steps']:,} steps"
        print(f"{done}; to train longer, pass more with --steps.", file=sys.stderr)
    return True


def _check_same_algorithm(run: Run, algo: Any) -> None:
    """Refuses to continue a run with another algorithm. Where the run's is not registered, an object is believed."""
    recorded = run.config["algo"]
    if isinstance(algo, str):
        same, given = algo == recorded, algo
    else:
        known = recorded in algorithms.names()
        same = not known or algorithms.same_classes(algorithms.default(recorded, run.config.get("bc", "plain")), algo)
        given = type(algo).__name__
    if not same:
        raise AspcError(f"{run.path} is a run of {recorded}, not of {given}; a resumed run keeps its algorithm.")


def _check_same_data(run: Run, facts: Mapping[str, Any], algorithm: Any, options: TrainOptions) -> None:
    """Refuses to repeat a run with data that has changed behind its name."""
    before = run.config["dataset"]
    same_source = all(before[key] == facts[key] for key in ("source", "options"))
    same_wishes = preprocessing_key(recorded_algorithm(run.config), recorded_options(run.config)) == preprocessing_key(
        algorithm, options
    )
    if same_source and same_wishes and before["fingerprint"] != facts["fingerprint"]:
        raise AspcError(f"{before['source']} is not what {run.path} was trained on (its content differs).")


def recorded_options(config: Mapping[str, Any]) -> TrainOptions:
    """The options of a run; those that its version did not have yet are the defaults."""
    names = {field.name for field in dataclasses.fields(TrainOptions)}
    with _whole("the options"):
        return replace_fields(TrainOptions(), {name: value for name, value in config.items() if name in names})


def recorded_algorithm(config: Mapping[str, Any], algorithm: Any = None) -> Any:
    """The algorithm of a run with its hyper-parameters; one that is not registered has to be given."""
    name = config["algo"]
    if algorithm is None and name not in algorithms.names():
        raise AspcError(
            f"The run's algorithm, {name}, is none of this library's; give it again as algo=… from Python, or "
            f"register it as {name!r} in a file and name that with --plugin."
        )
    algorithm = algorithm or algorithms.default(name, config.get("bc", "plain"))
    with _whole("the hyper-parameters"):
        return replace_fields(algorithm, config["hyperparameters"])


@contextmanager
def _whole(what: str) -> Iterator[None]:
    """Values of the wrong kind in a file are said to be that."""
    try:
        yield
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise AspcError(f"The run's {run_folder.CONFIG} is damaged: {what} cannot be what it says.") from error


def default_folder(dataset: str, algo: str) -> Path:
    """A new folder, made at once: runs that are started in the same second have different ones."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    for end in ("", *(f"-{number}" for number in range(2, 1000))):
        path = Path("runs") / sanitize_file_name(f"{dataset}_{algo}_{stamp}{end}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise AspcError(f"The folder {path} cannot be made: {error.strerror}; choose another --out.") from error
        return path
    raise AspcError("There are too many runs of this second; give each a folder with --out.")


def _train(
    path: Path,
    config: Mapping[str, Any],
    algorithm: Any,
    task: Task,
    options: TrainOptions,
    quiet: bool,
    first_step: int | None,
    last_step: int,
) -> Run:
    """Train the seeds of a run, and write down what they came to."""
    plan = Plan(
        path,
        config["algo"],
        algorithm,
        [task],
        [RunSpec(f"seed{seed}", seed, 0, algorithm, {"seed": seed}, f"seed {seed}") for seed in options.seeds],
        {},
        options,
        config,
        resume_with=run_folder.resume_command(
            "train", path, task.env, last_step if last_step != options.steps else None
        ),
    )
    with run_folder.written(path, plan.resume_with):
        outcome = Trainer(plan, quiet).go(first_step, last_step)
        return leave_result(path, {"steps": outcome.step}, outcome.seconds, options)


def leave_result(path: Path, steps: Mapping[str, int], seconds: float, options: TrainOptions) -> Run:
    """What a training leaves when it is finished: what it came to, and its figure."""
    result = {
        **steps,
        "seconds": round(seconds, 3),
        "matmul_precision": options.matmul_precision,
        **run_folder.summary(run_folder.read_rows(path / run_folder.EVALUATIONS), list(options.seeds)),
    }
    run = Run(path)
    run_figure.draw(run)
    run_folder.write_json(path / run_folder.RESULT, result)
    checksums.finish(path)
    return run


def evaluate(
    run: Run | str | os.PathLike[str], episodes: int = 100, seeds: Sequence[int] | None = None, env: str | None = None
) -> list[Row]:
    """Roll the saved policies of a run (or of the run in that folder) out again, in episodes that training did not
    use. The path may also be that of a policy by itself, which names no environment, so that `env` has to."""
    if not isinstance(run, str | os.PathLike):
        raise AspcError(f"evaluate takes a run or the path of its folder, not {type(run).__name__}.")
    if (Path(run) / WEIGHTS).exists():
        alone = Policy.load(Path(run))
        seed = alone.info.get("seed")
        policies, environment = {seed if isinstance(seed, int) and seed >= 0 else 0: alone}, env
        facts: Mapping[str, Any] = {}
    else:
        run = run if isinstance(run, Run) else Run(run)
        policies = {seed: run.policy_of(seed) for seed in seeds or run.seeds}
        environment, facts = env or run.env, run.config["dataset"]
    if environment is None or environment == A_FUNCTION:
        raise AspcError(f"{Path(run)} names no environment to evaluate in; give one with --env.")
    if (Path(run) / run_folder.CHECKSUMS).exists():  # runs of older versions have none
        checksums.verify(Path(run))
    rows: list[Row] = []
    score = recorded_score_of(facts, environment)
    said = notify_if_slow(f"Rolling out {len(policies)} policies, {episodes:,} episodes each …")
    with said, Evaluator(environment) as evaluator:
        for seed, policy in policies.items():
            pending = evaluator.evaluate(policy, episode_seeds(seed, -1 % 2**32, episodes))
            try:
                evaluation = pending.result()
            except WorkerFailed as failure:
                raise AspcError(f"The evaluation failed: {failure}") from failure
            rows.append({"seed": seed, **evaluation.row(score)})
    return rows
