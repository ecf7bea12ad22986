"""The command `aspc train`.

Tyro builds the options from the library's own dataclasses, so a hyperparameter's help is written only once.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from aspc import algorithms
from aspc.algorithms.fields import RunLength, declared_fields
from aspc.algorithms.interface import Algorithm
from aspc.cli.data_options import DataOptions
from aspc.cli.parsing import Flag, Unset, parse_options
from aspc.cli.shared import (
    final_scale,
    last_option_value,
    option_values,
    print_result,
    reject_settings,
    resolve_environment,
)
from aspc.errors import AspcError
from aspc.plugins import load_callbacks, load_plugins
from aspc.training.hyperparameters import flat_values, replace_fields
from aspc.training.run_config import ENV_FUNCTION, TrainOptions

HELP = f"""Train a policy on a dataset; by default on the built-in maze, which is generated locally.

Algorithms (--algo): {", ".join(algorithms.names())}. Their hyperparameters default to published values, the same
for every dataset; `aspc train --algo NAME --help-all` shows them.

The scale balances the algorithm's two objectives: maximizing Q and staying close to the data. In TD3+BC and ASPC it is
called alpha; a larger alpha puts more weight on Q. rapo and the algorithms with "aspc" in their names learn it,
starting from the base algorithm's value; the others keep it fixed."""

COMMON_OPTIONS = "algo preset map env steps seeds eval-every holdout out resume"  # shown by --help


@dataclass(frozen=True)
class Train:
    """The options of `aspc train` except the algorithm's hyperparameters."""

    dataset: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[DATASET]")] = "maze2d-umaze"
    """Dataset name (see `aspc data list`) or path of a file with your own logs."""
    algo: str = "aspc"
    """Algorithm to train."""
    preset: Unset[str] = None
    """Use the algorithm's published per-dataset hyperparameters: "paper", "corl" or "authors". Explicit options take
    precedence."""
    scale_from: Unset[Path] = None
    """Use the final scale of this run as scale_target, for --scale-mode converged or linear."""
    out: Unset[Path] = None
    """Output folder (created if missing). Default: runs/DATASET_ALGO_TIME."""
    resume: Unset[Path] = None
    """Continue the run in this folder from its last checkpoint. Only --steps and --env can be changed. If
    the data has moved, pass its new location with --dataset."""
    repeat: Annotated[Path | None, tyro.conf.arg(name="from", help_behavior_hint="")] = None
    """Repeat the run in this folder with its data, algorithm, settings and seeds. Explicit options take precedence."""
    plugin: Unset[Path] = None
    """Load a Python file that registers your own algorithm."""
    callback: Unset[Path] = None
    """Load a Python file that defines subclasses of aspc.Callback. They are called every --log-every steps and after
    evaluations and checkpoints. Can be repeated."""
    quiet: Flag = False
    """Hide progress and the notes on the data (`aspc data info` shows them)."""
    source: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)
    training: tyro.conf.OmitArgPrefixes[TrainOptions] = field(default_factory=TrainOptions)


def main(argv: list[str]) -> int:
    """Run `aspc train`."""
    load_plugins(option_values(argv, "plugin"))
    if last_option_value(argv, "bc") is not None:
        raise AspcError("--bc has been removed. Use --algo aspc_aw or --algo td3_bc_aw.")
    if last_option_value(argv, "resume"):
        return _resume(argv)
    repeated = last_option_value(argv, "from")
    recorded = recorded_defaults(Path(repeated), last_option_value(argv, "env")) if repeated else {}
    args, algorithm = _parse(argv, recorded)

    values, defaults = flat_values(args.algorithm), flat_values(algorithm)
    for name in values:
        if name in declared_fields(algorithm, RunLength) and values[name] != defaults[name]:
            flag = name.rpartition(".")[2].replace("_", "-")
            raise AspcError(
                f"--{flag} cannot be set directly: it always equals the length of the run. Pass --horizon instead."
            )

    callbacks = load_callbacks(option_values(argv, "callback"))
    from aspc.training.prepared_data import load_recorded, load_source
    from aspc.training.run import start_run

    options = args.source.options()
    environment = resolve_environment(args.source.env)
    if recorded and not last_option_value(argv, "env"):
        environment = recorded["run"].env
    if not Path(args.dataset).exists():
        options.pop("env", None)  # a named dataset has its own environment; --env is only for evaluation
    is_recorded = bool(recorded) and args.dataset == recorded["dataset"]
    run = start_run(
        args.algo,
        args.algorithm,
        (load_recorded if is_recorded else load_source)(args.dataset, options),
        args.training,
        source=args.dataset,
        source_options=options,
        preset=args.preset,
        out=args.out,
        env=environment,
        repeats=Path(repeated) if repeated else None,
        quiet=args.quiet,
        callbacks=callbacks,
    )
    print_result(run)
    return 0


def _parse(argv: list[str], recorded: dict[str, Any]) -> tuple[Any, Algorithm[Any]]:
    """Return the parsed options, and the algorithm that supplied their defaults."""
    name = last_option_value(argv, "algo") or recorded.get("algo", "aspc")
    algorithm = algorithms.default(name)
    if recorded and name == recorded["algo"]:
        algorithm = replace_fields(algorithm, recorded["hyperparameters"])
    keys = ("dataset", "algo", "preset", "source", "training")
    defaults = {key: recorded[key] for key in keys if key in recorded}
    if scale_from := last_option_value(argv, "scale-from"):
        algorithm = replace_fields(algorithm, {"scale_target": scale_of(Path(scale_from))})
    args = _parse_with(algorithm, argv, defaults)
    if last_option_value(argv, "preset"):
        from aspc.presets import overrides

        # The preset depends on the dataset's name, which is known only after parsing: parse again with its values.
        preset = overrides(name, args.dataset, args.preset)
        args = _parse_with(replace_fields(algorithm, preset), argv, defaults)
    return args, algorithm


def _parse_with(algorithm: Algorithm[Any], argv: list[str], defaults: dict[str, Any]) -> Any:
    """Parse `Train` with the hyperparameters of an algorithm as additional options."""
    kind: Any = type(algorithm)
    if algorithm.base is not None and kind.__parameters__:  # a wrapper is generic in the class that it wraps
        kind = kind[type(algorithm.base)]
    flat: Any = tyro.conf.OmitArgPrefixes
    options: Any = dataclasses.make_dataclass(
        "Train", [("algorithm", flat[kind], field(default=algorithm))], bases=(Train,), frozen=True
    )
    default = options(**defaults)
    return parse_options(options, argv, "aspc train", description=HELP, default=default, common=COMMON_OPTIONS)


def recorded_defaults(path: Path, env: str | None) -> dict[str, Any]:
    """Return the defaults that `--from` takes from a run."""
    from aspc.training.run_folder import Run

    run = Run(path)
    config, data = run.config, run.config.dataset
    if config.finetuned_from is not None:
        raise AspcError(f"{path} was trained online. Pass its offline run instead: {config.finetuned_from.run}.")
    if data.source is None or config.env == ENV_FUNCTION:
        raise AspcError(f"{path} was trained from Python, with arrays or a custom environment. Rerun that program.")
    return {
        "algo": config.algo,
        "preset": config.preset,
        "hyperparameters": config.hyperparameters,
        "run": run,
        "dataset": data.source,
        "source": DataOptions.from_options(run.data_options(env)),
        "training": config.options,
    }


def scale_of(path: Path) -> float:
    """Return the final scale of a run.

    Raises:
        AspcError: If the run has not learned a scale.
    """
    from aspc.training.run_folder import Run

    scale = final_scale(Run(path))
    if scale is None:
        raise AspcError(f"{path} has not learned a scale. Pass a run of aspc or of an algorithm named NAME+aspc.")
    return scale


@dataclass(frozen=True)
class Resume:
    """Continue a run from its last checkpoint with its own data, algorithm and settings."""

    resume: Path
    """Run folder."""
    steps: Unset[int] = None
    """Total number of steps, if more than originally requested."""
    env: Unset[str] = None
    """Environment (module:Env) for a run whose environment is a Python function; "none" disables evaluation."""
    dataset: Unset[str] = None
    """New location of the run's data, if it was moved. Its content must be unchanged."""
    plugin: Unset[Path] = None
    """Load a Python file that registers the run's algorithm."""
    callback: Unset[Path] = None
    """Load a Python file that defines subclasses of aspc.Callback. They are called every --log-every steps and after
    evaluations and checkpoints. Can be repeated."""
    quiet: Flag = False
    """Hide progress and the notes on the data (`aspc data info` shows them)."""


def _resume(argv: list[str]) -> int:
    reject_settings(argv)
    args = parse_options(Resume, argv, "aspc train")

    from aspc.training.run import resume_run

    if args.steps is not None and args.steps < 1:
        raise AspcError(f"--steps must be at least 1, not {args.steps}.")
    callbacks = load_callbacks(option_values(argv, "callback"))
    environment = resolve_environment(args.env)
    print_result(resume_run(args.resume, args.dataset, "", environment, args.steps, args.quiet, callbacks))
    return 0
