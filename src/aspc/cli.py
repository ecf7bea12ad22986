"""The commands `train`, `eval`, `verify-run` and `verify`: their options, and what they print.

Options come from the same dataclasses that the library uses (tyro), so a hyper-parameter's sentence is written once.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from aspc import algorithms
from aspc.data.commands import Source
from aspc.errors import AspcError
from aspc.options import read_options
from aspc.plugins import load_asked
from aspc.training.config import TrainOptions, flat_values, replace_fields

if TYPE_CHECKING:
    from aspc.training.folder import Run


def parse(kind: Any, argv: list[str], prog: str, description: str = "", **defaults: Any) -> Any:
    """Options from the command line; bad ones end in a sentence and exit code 2, as everywhere.

    `defaults` are those that are not the class's own.
    """
    return read_options(
        kind,
        argv,
        f"aspc {prog}",
        description=description or None,  # the docstring of `kind`
        **({"default": kind(**defaults)} if defaults else {}),
    )


def values_of(argv: list[str], name: str) -> list[str]:
    """The values of `--name VALUE` and `--name=VALUE`, looked up before the options are parsed; as there an underscore
    is a hyphen."""
    found = []
    for i, word in enumerate(argv):
        given, equals, value = word.partition("=")
        if given.startswith("--") and given.replace("_", "-") == f"--{name}":
            found += [value] if equals else argv[i + 1 : i + 2]
    return found


def option(argv: list[str], name: str) -> str | None:
    """The last of these values counts, as it does when options are parsed."""
    return next(reversed(values_of(argv, name)), None)


# ---------------------------------------------------------------------------------------------------------------
# train
# ---------------------------------------------------------------------------------------------------------------


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


def train(argv: list[str]) -> int:
    load_asked(values_of(argv, "plugin"))
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

    from aspc.training.problem import load_recorded, load_source
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
    from aspc.training.folder import Run
    from aspc.training.run import A_FUNCTION, recorded_options

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
    from aspc.training.folder import Run

    scale = final_scale(Run(path))
    if scale is None:
        raise AspcError(f"{path} has learned no scale; give a run of aspc, or of any algorithm with +aspc.")
    return scale


def final_scale(run: Run) -> float | None:
    """The mean over seeds of the scale at the end of a run; None where there is none."""
    from aspc.training.fleet import last_finite

    metrics = run.metrics
    if "scale" not in metrics:
        return None
    scales = [last_finite(metrics["scale"][metrics["seed"] == seed]) for seed in run.seeds]
    known = [scale for scale in scales if scale is not None]
    return sum(known) / len(known) if known else None


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


def environment_asked_for(env: str | None) -> str | None:
    """What `--env` says, as `train` takes it."""
    return "auto" if env is None else None if env == "none" else env


def print_result(run: Run) -> None:
    """The last lines of a training: what the data scored, what the policy scores, where things are."""
    result, data = run.result or {}, run.config["dataset"]
    rows = _last_evaluation(run)
    unit = "score" if "last_score" in result else "return"
    seeds = "1 seed" if len(run.seeds) == 1 else f"{len(run.seeds)} seeds"
    print(f"{run.config['algo']} on {data['name']}: {result['steps']:,} steps, {seeds}")
    behaviour = data[f"behaviour_{unit}"]
    if behaviour is not None:
        print(f"  behaviour data {unit:7s} {behaviour:8.1f}")
    if rows:
        spread = _spread(rows, unit)
        episodes = int(sum(r["episodes"] for r in rows))
        print(f"  policy {unit:15s} {result[f'last_{unit}']:8.1f} ± {spread:.1f} over {episodes} episodes (last)")
        print(f"  best evaluation        {result[f'best_{unit}']:8.1f}")
    if (scale := final_scale(run)) is not None:
        print(f"  final {run.config['scale_name']:16s} {scale:8.3g}")
    print(f"  figure  {run.path / 'curves.png'}")
    print(f"  policy  {run.path / 'policy' / f'seed{run.seeds[0]}'}")


def _last_evaluation(run: Run) -> list[dict[str, float]]:
    table = run.evaluations
    if not table:
        return []
    last = table["step"] == table["step"].max()
    return [{name: column[i] for name, column in table.items()} for i in last.nonzero()[0]]


def _spread(rows: list[dict[str, float]], unit: str) -> float:
    """Standard deviation over all episodes of all seeds: within seeds and between them."""
    means = [r[f"{unit}_mean"] for r in rows]
    centre = sum(means) / len(means)
    return (sum(r[f"{unit}_std"] ** 2 + (r[f"{unit}_mean"] - centre) ** 2 for r in rows) / len(rows)) ** 0.5


# ---------------------------------------------------------------------------------------------------------------
# eval
# ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evaluate:
    """Roll the policies of a run out again, in episodes that training did not use."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder, or with --env that of a policy by itself (a bench's, say)."""
    episodes: int = 100
    """Episodes for each seed."""
    env: str | None = None
    """Another environment than the run's own."""
    json: bool = False
    """Print one JSON object instead of a table."""


def evaluate(argv: list[str]) -> int:
    asked = parse(Evaluate, argv, "eval")

    from aspc.policy import without_nan
    from aspc.training.run import evaluate as evaluate_run

    if asked.episodes < 1:
        raise AspcError("--episodes must be at least 1.")
    rows = evaluate_run(asked.run, asked.episodes, env=asked.env)
    if asked.json:
        print(json.dumps(without_nan(rows)))
        return 0
    for row in rows:
        line = f"seed {row['seed']}: return {row['return_mean']:.1f} ± {row['return_std']:.1f}"
        if row["score_mean"] == row["score_mean"]:
            line += f", score {row['score_mean']:.1f} ± {row['score_std']:.1f}"
        if row["success_rate"] == row["success_rate"]:
            line += f", success {100 * row['success_rate']:.0f} %"
        print(f"{line} ({row['episodes']} episodes)")
    return 0


# ---------------------------------------------------------------------------------------------------------------
# verify-run
# ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VerifyRun:
    """Compare the files and checkpoints of a run with the checksums that were written with them.

    Exit code 2 if one is missing or damaged.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder."""


def verify_run(argv: list[str]) -> int:
    asked = parse(VerifyRun, argv, "verify-run")

    from aspc.training import checksums
    from aspc.training.checkpoint import Checkpoints
    from aspc.training.folder import CHECKPOINTS

    verified = checksums.verify(asked.run)
    known: list[bool] = []
    if (asked.run / CHECKPOINTS).is_dir():
        checkpoints = Checkpoints(asked.run / CHECKPOINTS, read_only=True)
        known = [checkpoints.verify(step) for step in checkpoints.all_steps()]
        checkpoints.close()
    print(f"{asked.run}: {verified.files} files and {sum(known)} checkpoints match their checksums.")
    if not all(known):
        print(f"  {known.count(False)} checkpoints of an older version have no checksum.")
    if not verified.finished:
        print(f"  The run is not finished: rows after step {verified.step:,} are not covered.")
    return 0


# ---------------------------------------------------------------------------------------------------------------
# verify
# ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verify:
    """Replay reference traces in float64 through the very code that trains.

    Prints, for each quantity, the largest difference relative to the quantity's largest value (the scale by its
    displacement from the start). Exit code 1 if any is above 1e-6.
    """

    traces: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TRACE [TRACE ...]")]
    """Trace files (.npz)."""
    all: bool = False
    """Print every quantity, not only the worst ones."""


def verify(argv: list[str]) -> int:
    asked = parse(Verify, argv, "verify")
    if not asked.traces:
        raise AspcError("Give the trace files to replay, for example: aspc verify tests/golden/*.npz (in the sdist).")

    from aspc.verify import TOLERANCE
    from aspc.verify import verify as replay

    good = True
    for path in asked.traces:
        checks = sorted(replay(path), key=lambda check: -check.error)
        failed = [check for check in checks if not check.ok]
        good = good and not failed
        verdict = "FAILS" if failed else "passes"
        print(f"{path.name}: {verdict}; {len(checks)} quantities, largest difference {checks[0].error:.1e}")
        for check in checks if asked.all else failed[:10] or checks[:3]:
            print(f"    {check.error:9.2e}  {check.quantity}")
    if not good:
        print(f"At least one quantity differs by more than {TOLERANCE:.0e}.", file=sys.stderr)
    return 0 if good else 1
