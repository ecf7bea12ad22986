"""The command `aspc fqe`: rank policies, print and draw the ranking, and save the best policy."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from aspc.assessment.fqe_options import FQEOptions
from aspc.assessment.trained_runs import (
    Candidate,
    changed_since,
    checkpoint_policies,
    dataset_of,
    save_selected,
    saved_policies,
    with_bounds_of,
)
from aspc.cli.data_options import DataOptions
from aspc.cli.parsing import Flag, Unset, parse_options
from aspc.cli.shared import option_values, prepare_selection
from aspc.errors import AspcError, printable
from aspc.io import prepare_output_file, replace_nonfinite, write_atomically
from aspc.plugins import load_plugins
from aspc.ui import Progress

if TYPE_CHECKING:
    from aspc.assessment.ranking import Estimate, Ranking
    from aspc.data import Dataset

HELP = """Rank policies by fitted-Q evaluation, which estimates their returns from logs, without a simulator.

Prints the policies from best to worst, each with its expected discounted return from the first states of logged
episodes, and the return of the data itself. docs/trust.md explains the limits of the estimates."""

COMMON_OPTIONS = "dataset checkpoints states select figure json discount steps seed quiet"  # shown by --help


@dataclass(frozen=True)
class Fqe:
    """The options of `aspc fqe`."""

    runs: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="")
    ]
    """Run folders, fleet folders (runs trained together) or policy folders."""
    dataset: Unset[str] = None
    """Name or path of the data to evaluate on. Default: the data that the runs were trained on."""
    checkpoints: Flag = False
    """Rank the checkpoints of the runs instead of their final policies."""
    states: Literal["auto", "start", "all"] = "auto"
    """Average the value over the first states of episodes (start) or over all logged states (all). auto: start, unless
    the log is a single episode."""
    select: Unset[Path] = None
    """Save the best policy in this folder, which must be new or empty."""
    figure: Path = Path("fqe.png")
    """Output file for the figure of the ranking."""
    plugin: Unset[Path] = None
    """Load a Python file that registers the runs' algorithm (for --checkpoints)."""
    json: Flag = False
    """Print one JSON object instead of a table."""
    quiet: Flag = False
    """Hide progress."""
    fqe: tyro.conf.OmitArgPrefixes[FQEOptions] = field(default_factory=FQEOptions)
    source: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)


def main(argv: list[str]) -> int:
    """Run `aspc fqe`."""
    args = parse_options(Fqe, argv, "aspc fqe", description=HELP, common=COMMON_OPTIONS)
    load_plugins(option_values(argv, "plugin"))
    if not args.runs:
        raise AspcError("aspc fqe needs at least one run folder, for example: aspc fqe runs/*.")
    prepare_output_file(args.figure, ".png")
    if args.select is not None:
        prepare_selection(args.select)

    from aspc.assessment.fqe import fitted_q_evaluation
    from aspc.assessment.returns import choose_states
    from aspc.training.run import use_compilation_cache

    use_compilation_cache()
    paths = list(dict.fromkeys(args.runs))
    saved = [] if args.checkpoints else saved_policies(paths)  # before the data is read, to fail early
    dataset = dataset_of(paths, args.dataset, args.source.options())
    candidates = saved or checkpoint_policies(paths, dataset)
    if args.dataset is None:
        for run in changed_since(paths, dataset):
            print(f"note: the rows of {dataset.name} differ from those that {run} was trained on", file=sys.stderr)
    dataset = with_bounds_of(dataset, (c.policy for c in candidates), args.source.options())
    states = choose_states(dataset, args.states)
    progress = Progress(args.fqe.steps, quiet=args.quiet)
    try:
        policies = {c.name: c.policy for c in candidates}
        ranking = fitted_q_evaluation(policies, dataset, states, args.fqe, progress)
    finally:
        progress.close()
    write_atomically(args.figure, draw_ranking(ranking))
    outside = describe_outside_policies(candidates, dataset)
    result = to_json(ranking, candidates) | {"figure": str(args.figure), "outside_the_data": outside}
    if args.select is not None:
        result["selected"] = str(save_best(ranking, candidates, args.select))
    print(json.dumps(result) if args.json else format_ranking(ranking, result))
    return 0


# ---------------------------------------------------------------------------------------------------------------
# Outputs
# ---------------------------------------------------------------------------------------------------------------


def save_best(ranking: Ranking, candidates: list[Candidate], folder: Path) -> Path:
    """Save the best policy unchanged, with a note on how it was chosen."""
    best = ranking.best
    chosen = next(c for c in candidates if c.name == best.name)
    note = {
        "by": "fitted-Q evaluation",
        "among": len(candidates),
        "dataset": ranking.dataset,
        "discount": ranking.discount,
        "value": best.value,
        "interval": [best.low, best.high],
        "value_of_the_data": ranking.behavior.value,
    }
    return save_selected(chosen, note, folder)


def describe_outside_policies(candidates: list[Candidate], dataset: Dataset) -> dict[str, str]:
    """Return a description of each policy that acts outside the data, where estimates are unreliable."""
    if len(dataset) < 2:
        return {}
    from aspc.assessment.device_policy import longest_history
    from aspc.assessment.support import LoggedNeighbors

    neighbors = LoggedNeighbors.of(dataset, history=longest_history(c.policy for c in candidates))
    supports = {c.name: neighbors.measure_policy(c.policy) for c in candidates}
    return {name: support.describe() for name, support in supports.items() if support.is_outside}


def to_json(ranking: Ranking, candidates: list[Candidate]) -> dict[str, Any]:
    """Return the ranking as JSON values; NaN becomes null."""
    sources = {c.name: c.source for c in candidates}

    def row(estimate: Estimate) -> dict[str, Any]:
        values = dataclasses.asdict(estimate)
        return {**values, "trouble": values.pop("warning"), "diverged": estimate.has_diverged}

    content = {
        "dataset": ranking.dataset,
        "discount": ranking.discount,
        "states": ranking.states,
        "policies": [{**row(e), "source": sources[e.name]} for e in ranking.policies],
        "behavior": row(ranking.behavior),
        "monte_carlo": ranking.monte_carlo,
    }
    return {key: replace_nonfinite(value) for key, value in content.items()}


def format_ranking(ranking: Ranking, result: dict[str, Any]) -> str:
    """Format the ranking as a table."""
    rows = [(printable(e.name), e) for e in (*ranking.policies, ranking.behavior)]
    width = max(len(name) for name, _ in rows)
    lines = [
        f"Discounted return (γ = {ranking.discount:g}) on {printable(ranking.dataset)}, "
        f"over {ranking.states:,} states; 95 % intervals over episodes",
        f"{'':{width}s} {'estimate':>10s} {'interval':>21s} {'critics from/to':>21s} {'ranks 1st':>9s}",
    ]
    for name, e in rows:
        span, critics = f"{e.low:.4g} to {e.high:.4g}", f"{min(e.critics):.4g} to {max(e.critics):.4g}"
        first = "" if e is ranking.behavior else f"{100 * e.first_in:.0f} %"
        lines.append(f"{name:{width}s} {e.value:10.4g} {span:>21s} {critics:>21s} {first:>9s}")
        if e.warning:
            lines.append(f"{'':{width}s}   {e.warning}")
        if reason := result.get("outside_the_data", {}).get(e.name):
            lines.append(f"{'':{width}s}   outside the data: {reason}; aspc assess never selects it")
    mc = ranking.monte_carlo
    if mc is None:
        lines.append("Mean logged return: unknown, because every episode is truncated too early.")
    else:
        lines.append(
            f"Mean logged return: {mc['value']:.4g} ({mc['low']:.4g} to {mc['high']:.4g}), from the "
            f"{mc['states']:,} of {mc['of']:,} states whose logged return is at least 95 % complete."
        )
        if warning := behavior_warning(ranking):
            lines.append(warning)
    lines.append(f"figure    {result['figure']}")
    if "selected" in result:
        warning = f" (its estimate {ranking.best.warning})" if ranking.best.warning else ""
        lines.append(f"selected  {printable(ranking.best.name)} → {result['selected']}{warning}")
    return "\n".join(lines)


def behavior_warning(ranking: Ranking) -> str | None:
    """Return a warning if the estimate for the behavior policy is far from the logged returns."""
    mc, value = ranking.monte_carlo, ranking.behavior.value
    if mc is None or mc["states"] < mc["of"] / 2:
        return None
    slack = (mc["high"] - mc["low"]) / 2 + 0.1 * abs(mc["value"])
    if mc["low"] - slack <= value <= mc["high"] + slack:
        return None
    return (
        f"warning: the mean logged return is {mc['value']:.4g}, but FQE estimates {value:.4g} for the data. "
        "Do not rely on the other estimates either; try a larger --steps."
    )


def draw_ranking(ranking: Ranking) -> bytes:
    """Draw the ranking as a PNG: estimates with intervals, critics as ticks, and the data as vertical lines."""
    from matplotlib.figure import Figure

    shown = [e for e in ranking.policies if not e.has_diverged]
    diverged = len(ranking.policies) - len(shown)
    figure = Figure(figsize=(8, 1.6 + 0.3 * max(len(shown), 1)), layout="constrained")
    axes = figure.subplots()
    positions = range(len(shown), 0, -1)
    for y, e in zip(positions, shown, strict=True):
        axes.plot([e.low, e.high], [y, y], color="#2b6cb0", lw=3, alpha=0.6, solid_capstyle="butt")
        axes.plot(e.critics, [y] * len(e.critics), "|", color="#4a5568", ms=9)
        axes.plot([e.value], [y], "o", color="#2b6cb0")
    if not ranking.behavior.has_diverged:
        axes.axvline(ranking.behavior.value, color="#888", ls="--", lw=1, label="data, by FQE")
    if ranking.monte_carlo is not None:
        axes.axvline(ranking.monte_carlo["value"], color="#888", ls=":", lw=1, label="data, logged returns")
    # Names are shown verbatim: a dollar sign does not start a formula.
    axes.set_yticks(list(positions), [printable(e.name) for e in shown], parse_math=False, fontsize=8)
    axes.set_xlabel(f"estimated discounted return (γ = {ranking.discount:g}); ticks: individual critics")
    note = f" ({diverged} diverged, not shown)" if diverged else ""
    axes.set_title(f"Fitted-Q evaluation on {printable(ranking.dataset)}{note}", parse_math=False)
    axes.set_ylim(0.3, len(shown) + 0.7)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()
