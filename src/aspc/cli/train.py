"""The command `aspc train`.

Options come from the same dataclasses that the library uses (tyro), so a hyper-parameter's sentence is written once.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from aspc import algorithms
from aspc.cli.data import Source
from aspc.cli.shared import environment_asked_for, final_scale, option, parse, print_result, values_of
from aspc.errors import AspcError
from aspc.plugins import load_plugins
from aspc.training.run_config import TrainOptions, flat_values, replace_fields

if TYPE_CHECKING:
    pass


TRAIN_HELP = f"""Train a policy on a dataset; without one, on the embedded maze, which is generated here.

Algorithms (--algo): {", ".join(algorithms.names())}. The last group of options are the hyper-parameters of the
algorithm that is named; their defaults are the paper's, the same for every dataset."""


@dataclass(frozen=True)
class Train:
    """What `aspc train` takes besides the hyper-parameters of the algorithm."""

    dataset: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[DATASET]")] = "maze2d-umaze"
    """A name (`aspc data list` shows them) or the path of a file with your own logs."""
    algo: str = "aspc"
    """The algorithm, by its name."""
    bc: algorithms.BCTerm = "plain"
    """Weight of the samples in the BC term of aspc and td3_bc; "advantage_weighted" is ASPC+AW."""
    preset: str | None = None
    """Per-dataset settings of a tuned algorithm: "paper", "corl" or "authors"; what is given here goes before."""
    scale_from: Path | None = None
    """A run whose final scale is scale_target, for --scale-mode converged or linear."""
    out: Path | None = None
    """Folder for the run; made anew. Default: runs/DATASET_ALGO_TIME."""
    resume: Path | None = None
    """Continue the run in this folder, from its last checkpoint. Only --steps and --env can be changed, and --dataset
    says where its data are now."""
    repeat: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Repeat the run in this folder: its data, algorithm, settings and seeds are the defaults of all options here."""
    plugin: Path | None = None
    """A Python file that registers an algorithm of your own."""
    quiet: bool = False
    """Show no progress, and no notes on the data (`aspc data info` has them)."""
    source: tyro.conf.OmitArgPrefixes[Source] = field(default_factory=Source)
    training: tyro.conf.OmitArgPrefixes[TrainOptions] = field(default_factory=TrainOptions)


def main(argv: list[str]) -> int:
    load_plugins(values_of(argv, "plugin"))
    if option(argv, "resume"):
        return _resume(argv)
    model = _model(Path(repeated), option(argv, "env")) if (repeated := option(argv, "from")) else {}
    name, bc = option(argv, "algo") or model.get("algo", "aspc"), option(argv, "bc") or model.get("bc", "plain")
    algorithm = algorithms.default(name, bc)  # type: ignore[arg-type]
    if model and (name, bc) == (model["algo"], model["bc"]):
        algorithm = replace_fields(algorithm, model["hyperparameters"])
    defaults = {key: model[key] for key in ("dataset", "algo", "bc", "preset", "source", "training") if key in model}
    if scale_from := option(argv, "scale-from"):
        algorithm = replace_fields(algorithm, {"scale_target": scale_of(Path(scale_from))})
    asked = parse(_with_algorithm(algorithm), argv, "train", TRAIN_HELP, **defaults)
    if option(argv, "preset"):  # the preset's settings become the defaults of a second reading
        from aspc.presets import overrides

        preset = overrides(name, asked.dataset, asked.preset)
        asked = parse(_with_algorithm(replace_fields(algorithm, preset)), argv, "train", TRAIN_HELP, **defaults)

    given, default = flat_values(asked.algorithm), flat_values(algorithm)
    if moved := [name for name in given if name.endswith("horizon") and given[name] != default[name]]:
        flag = moved[0].rpartition(".")[2].replace("_", "-")
        raise AspcError(f"--{flag} follows from the length of the run; set it with --horizon.")

    from aspc.training.prepared_data import load_recorded, load_source
    from aspc.training.run import start_run

    env, options = asked.source.env, asked.source.options()
    environment = environment_asked_for(env)
    if model and not option(argv, "env"):
        environment = model["run"].env
    if not Path(asked.dataset).exists():
        options.pop("env", None)  # a name has its environment; another one is only evaluated in
    is_recorded = bool(model) and asked.dataset == model["dataset"]
    run = start_run(
        name,
        asked.algorithm,
        (load_recorded if is_recorded else load_source)(asked.dataset, options),
        asked.training,
        source=asked.dataset,
        source_options=options,
        variant={"bc": asked.bc, "preset": asked.preset},
        out=asked.out,
        env=environment,
        repeats=Path(repeated) if repeated else None,
        quiet=asked.quiet,
    )
    print_result(run)
    return 0


def _model(path: Path, typed_env: str | None = None) -> dict[str, Any]:
    """Return what `--from` takes from a recorded run."""
    from aspc.training.run import A_FUNCTION, recorded_options
    from aspc.training.run_folder import Run

    run = Run(path)
    config, data = run.config, run.config["dataset"]
    if "finetuned_from" in config:
        raise AspcError(f"{path} was trained online; repeat the run it came from, {config['finetuned_from']['run']}.")
    if data["source"] is None or config["env"] == A_FUNCTION:
        raise AspcError(f"{path} was made by a program, from arrays or with an environment of its own: run that again.")
    return {
        **{key: config.get(key) for key in ("algo", "preset", "hyperparameters")},
        "run": run,
        "bc": config.get("bc", "plain"),
        "dataset": data["source"],
        "source": Source.stated(run.data_options(typed_env)),
        "training": recorded_options(config),
    }


def scale_of(path: Path) -> float:
    """The final scale of a run in a folder."""
    from aspc.training.run_folder import Run

    scale = final_scale(Run(path))
    if scale is None:
        raise AspcError(f"{path} has learned no scale; give a run of aspc, or of any algorithm with +aspc.")
    return scale


def _with_algorithm(algorithm: Any) -> Any:
    """`Train` with the hyper-parameters of one algorithm as further options."""
    kind: Any = type(algorithm)
    if hasattr(algorithm, "base"):  # a wrapper: the options of what it wraps are options too
        kind = kind[type(algorithm.base)]
    flat: Any = tyro.conf.OmitArgPrefixes
    return dataclasses.make_dataclass(
        "Train", [("algorithm", flat[kind], field(default=algorithm))], bases=(Train,), frozen=True
    )


@dataclass(frozen=True)
class Resume:
    """Continue a run from its last checkpoint; it keeps its data, algorithm and settings."""

    resume: Path
    """The run's folder."""
    steps: int | None = None
    """Steps in all, if more than it was begun with."""
    env: str | None = None
    """The environment, where it is a function of your own (module:Env); "none" evaluates no more."""
    dataset: str | None = None
    """Where its data are now, if they were moved; they have to be the same."""
    plugin: Path | None = None
    """A Python file that registers an algorithm of your own."""
    quiet: bool = False
    """Show no progress, and no notes on the data (`aspc data info` has them)."""


def refuse_settings(argv: list[str]) -> None:
    """A resumed run keeps what it was begun with."""
    allowed = {"--help", *(f"--{f.name}" for f in dataclasses.fields(Resume))}
    others = [word for word in argv if word.startswith("--") and word.split("=")[0] not in allowed]
    if others:
        raise AspcError(
            "A resumed run keeps its settings; only --steps, --env and --dataset can be given, "
            f"not {', '.join(others)}."
        )


def _resume(argv: list[str]) -> int:
    refuse_settings(argv)
    asked = parse(Resume, argv, "train")

    from aspc.training.run import resume_run

    if asked.steps is not None and asked.steps < 1:
        raise AspcError(f"--steps must be at least 1, not {asked.steps}.")
    print_result(
        resume_run(asked.resume, asked.dataset, "", environment_asked_for(asked.env), asked.steps, asked.quiet)
    )
    return 0
