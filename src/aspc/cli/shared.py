"""Functions that several commands share: looking up options before they are parsed, and printing results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from aspc.cli.parsing import HELP_FLAGS
from aspc.errors import AspcError
from aspc.io import prepare_parent

if TYPE_CHECKING:
    from aspc.training.run_folder import Run

RESUME_OPTIONS = ("--resume", "--steps", "--env", "--dataset", "--plugin", "--callback", "--quiet")


def option_values(argv: list[str], name: str) -> list[str]:
    """Return the values of `--name VALUE` and `--name=VALUE` in unparsed arguments; underscores count as hyphens."""
    found = []
    for i, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if flag.startswith("--") and flag.replace("_", "-") == f"--{name}":
            found += [value] if equals else argv[i + 1 : i + 2]
    return found


def last_option_value(argv: list[str], name: str) -> str | None:
    """Return the last value of an option in unparsed arguments; the parser also uses the last one."""
    return next(reversed(option_values(argv, name)), None)


def reject_settings(argv: list[str]) -> None:
    """Reject options that cannot be changed when a run is resumed.

    Raises:
        AspcError: One of these options was given.
    """
    others = [
        word for word in argv if word.startswith("--") and word.split("=")[0] not in (*RESUME_OPTIONS, *HELP_FLAGS)
    ]
    if others:
        raise AspcError(
            f"A resumed run keeps its settings; only --steps, --env and --dataset can be changed. "
            f"Remove {', '.join(others)}."
        )


def prepare_selection(folder: Path) -> None:
    """Check that a policy can be saved in a folder, and create its parent folder.

    Raises:
        AspcError: The folder exists and is not empty.
    """
    if folder.exists() and (folder.is_file() or any(folder.iterdir())):
        raise AspcError(f"{folder} already exists. Choose a new folder for --select.")
    prepare_parent(folder)


def resolve_environment(env: str | None) -> str | None:
    """Return the `env` argument of `aspc.train` for a value of `--env`."""
    return "auto" if env is None else None if env == "none" else env


def print_result(run: Run) -> None:
    """Print the result of a run: the scores of the data and of the policy, and the paths of the outputs."""
    result, data = run.result or {}, run.config.dataset
    rows = _last_evaluation(run)
    unit = "score" if "last_score" in result else "return"
    seeds = "1 seed" if len(run.seeds) == 1 else f"{len(run.seeds)} seeds"
    print(f"{run.config.algo} on {data.name}: {result['steps']:,} steps, {seeds}")
    behavior = data.behavior_score if unit == "score" else data.behavior_return
    if behavior is not None:
        print(f"  behavior data {unit:7s} {behavior:8.1f}")
    if rows:
        std = _pooled_std(rows, unit)
        episodes = int(sum(r["episodes"] for r in rows))
        print(f"  policy {unit:15s} {result[f'last_{unit}']:8.1f} ± {std:.1f} over {episodes} episodes (last)")
        print(f"  best evaluation        {result[f'best_{unit}']:8.1f}")
    if (scale := final_scale(run)) is not None:
        print(f"  final {run.config.scale_name:16s} {scale:8.3g}")
    if "stopped" in result:
        print(f"  stopped early: {result['stopped']}")
    print(f"  figure  {run.path / 'curves.png'}")
    print(f"  policy  {run.path / 'policy' / f'seed{run.seeds[0]}'}")


def _last_evaluation(run: Run) -> list[dict[str, float]]:
    table = run.evaluations
    if not table:
        return []
    is_last = table["step"] == table["step"].max()
    return [{name: column[i] for name, column in table.items()} for i in is_last.nonzero()[0]]


def _pooled_std(rows: list[dict[str, float]], unit: str) -> float:
    """Return the standard deviation over all episodes of all seeds, including the variance between seeds."""
    means = [r[f"{unit}_mean"] for r in rows]
    center = sum(means) / len(means)
    variance = sum(r[f"{unit}_std"] ** 2 + (r[f"{unit}_mean"] - center) ** 2 for r in rows) / len(rows)
    return float(variance**0.5)


def final_scale(run: Run) -> float | None:
    """Return the last finite scale of a run, averaged over seeds, or None if the run has none."""
    from aspc.training.fleet_folder import last_finite

    metrics = run.metrics
    if "scale" not in metrics:
        return None
    scales = [last_finite(metrics["scale"][metrics["seed"] == seed]) for seed in run.seeds]
    known = [scale for scale in scales if scale is not None]
    return sum(known) / len(known) if known else None
