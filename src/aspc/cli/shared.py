"""Parts that several commands share: reading options, and printing the result of a training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aspc.cli.parsing import read_options

if TYPE_CHECKING:
    from aspc.training.run_folder import Run


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


def final_scale(run: Run) -> float | None:
    """The mean over seeds of the scale at the end of a run; None where there is none."""
    from aspc.training.fleet import last_finite

    metrics = run.metrics
    if "scale" not in metrics:
        return None
    scales = [last_finite(metrics["scale"][metrics["seed"] == seed]) for seed in run.seeds]
    known = [scale for scale in scales if scale is not None]
    return sum(known) / len(known) if known else None
