"""`aspc fqe`: its options, the table and figure it makes, and the policy it can choose."""

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
    data_of,
    dataset_of,
    saved_policies,
    with_bounds_of,
)
from aspc.cli.data import Source
from aspc.errors import AspcError, printable
from aspc.io import write_atomically
from aspc.policy import make_folder_for, make_room, without_nan

if TYPE_CHECKING:
    from aspc.assessment.fqe import Estimate, Ranking

HELP = """Which policy is best? Fitted-Q evaluation estimates it from logs, with no simulator.

Prints the policies from best to worst with the discounted return that each is expected to have from the first states
of logged episodes, beside that of the data itself. docs/trust.md says how far to believe it."""


@dataclass(frozen=True)
class Fqe:
    """What `aspc fqe` takes."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")]
    """Folders of runs, of fleets, or of single policies."""
    dataset: str | None = None
    """A name or path of the data to judge on; by default what the runs were trained on."""
    checkpoints: bool = False
    """Judge the checkpoints that the runs keep, instead of their final policies."""
    states: Literal["auto", "start", "all"] = "auto"
    """Value policies at the first states of episodes, at all logged states, or (auto) as the log has episodes."""
    select: Path | None = None
    """Write the best policy into this new folder."""
    figure: Path = Path("fqe.png")
    """Where to draw the ranking."""
    plugin: Path | None = None
    """A Python file that registers the algorithm, where it is your own (for --checkpoints)."""
    json: bool = False
    """Print one JSON object instead of a table."""
    quiet: bool = False
    """Show no progress."""
    fqe: tyro.conf.OmitArgPrefixes[FQEOptions] = field(default_factory=FQEOptions)
    source: tyro.conf.OmitArgPrefixes[Source] = field(default_factory=Source)


def main(argv: list[str]) -> int:
    from aspc.cli.shared import parse, values_of
    from aspc.plugins import load_plugins

    asked: Fqe = parse(Fqe, argv, "fqe", HELP)
    load_plugins(values_of(argv, "plugin"))
    if not asked.runs:
        raise AspcError("Give at least one run's folder, for example: aspc fqe runs/*.")
    if asked.select is not None and asked.select.exists() and (asked.select.is_file() or any(asked.select.iterdir())):
        raise AspcError(f"{asked.select} exists already; choose a new folder for --select.")

    make_room(asked.figure, ".png")
    if asked.select is not None:
        make_folder_for(asked.select)

    from aspc.assessment.fqe import fitted_q_evaluation
    from aspc.assessment.returns import choose_states
    from aspc.training.run import use_compilation_cache
    from aspc.ui import Progress

    use_compilation_cache()
    paths = list(dict.fromkeys(asked.runs))
    saved = [] if asked.checkpoints else saved_policies(paths)  # before the data is read: mistakes show at once
    dataset = dataset_of(paths, asked.dataset, asked.source.options())
    candidates = saved or checkpoint_policies(paths, dataset)
    if asked.dataset is None:
        for run in changed_since(paths, dataset):
            print(f"note: {dataset.name} is not, row by row, the data that {run} was trained on", file=sys.stderr)
    dataset = with_bounds_of(dataset, (c.policy for c in candidates), asked.source.options())
    states = choose_states(dataset, asked.states)
    progress = Progress(asked.fqe.steps, quiet=asked.quiet)
    try:
        policies = {c.name: c.policy for c in candidates}
        ranking = fitted_q_evaluation(policies, dataset, states, asked.fqe, progress)
    finally:
        progress.close()
    write_atomically(asked.figure, picture(ranking))
    result = plain(ranking, candidates) | {"figure": str(asked.figure)}
    if asked.select is not None:
        result["selected"] = str(select(ranking, candidates, asked.select))
    print(json.dumps(result) if asked.json else text(ranking, result))
    return 0


# ---------------------------------------------------------------------------------------------------------------
# What comes out
# ---------------------------------------------------------------------------------------------------------------


def select(ranking: Ranking, candidates: list[Candidate], folder: Path) -> Path:
    """Write the best policy: as it was, with a note of how it was chosen."""
    best = ranking.best
    chosen = next(c for c in candidates if c.name == best.name)
    note = {
        "by": "fitted-Q evaluation",
        "from": chosen.source,
        "among": len(candidates),
        "dataset": ranking.dataset,
        "data": data_of(chosen.source),
        "discount": ranking.discount,
        "value": best.value,
        "interval": [best.low, best.high],
        "value_of_the_data": ranking.behaviour.value,
    }
    policy = dataclasses.replace(chosen.policy, info={**chosen.policy.info, "chosen": note})
    return policy.save(folder)


def plain(ranking: Ranking, candidates: list[Candidate]) -> dict[str, Any]:
    """The ranking as JSON has it: NaN is null."""
    sources = {c.name: c.source for c in candidates}

    def row(estimate: Estimate) -> dict[str, Any]:
        return {**dataclasses.asdict(estimate), "diverged": estimate.diverged}

    return without_nan(
        {
            "dataset": ranking.dataset,
            "discount": ranking.discount,
            "states": ranking.states,
            "policies": [{**row(e), "source": sources[e.name]} for e in ranking.policies],
            "behaviour": row(ranking.behaviour),
            "monte_carlo": ranking.monte_carlo,
        }
    )


def text(ranking: Ranking, result: dict[str, Any]) -> str:
    """The table that a person reads."""
    rows = [(printable(e.name), e) for e in (*ranking.policies, ranking.behaviour)]
    width = max(len(name) for name, _ in rows)
    lines = [
        f"Discounted return (γ = {ranking.discount:g}) on {printable(ranking.dataset)}, "
        f"over {ranking.states:,} states; 95 % intervals over episodes",
        f"{'':{width}s} {'estimate':>10s} {'interval':>21s} {'critics from/to':>21s} {'first in':>9s}",
    ]
    for name, e in rows:
        span, critics = f"{e.low:.4g} to {e.high:.4g}", f"{min(e.critics):.4g} to {max(e.critics):.4g}"
        first = "" if e is ranking.behaviour else f"{100 * e.first_in:.0f} %"
        lines.append(f"{name:{width}s} {e.value:10.4g} {span:>21s} {critics:>21s} {first:>9s}")
        if e.trouble:
            lines.append(f"{'':{width}s}   {e.trouble}")
    mc = ranking.monte_carlo
    if mc is None:
        lines.append("Logged returns of the data: every episode is cut too early to know them.")
    else:
        lines.append(
            f"Logged returns of the data: {mc['value']:.4g} ({mc['low']:.4g} to {mc['high']:.4g}), from the "
            f"{mc['states']:,} of {mc['of']:,} states whose return the log shows whole (or all but 5 % of it)."
        )
        if gap := yardstick_gap(ranking):
            lines.append(gap)
    lines.append(f"figure    {result['figure']}")
    if "selected" in result:
        though = f", though its estimate {ranking.best.trouble}" if ranking.best.trouble else ""
        lines.append(f"selected  {printable(ranking.best.name)} → {result['selected']}{though}")
    return "\n".join(lines)


def yardstick_gap(ranking: Ranking) -> str | None:
    """A warning where the method misses even the one value that the log shows."""
    mc, value = ranking.monte_carlo, ranking.behaviour.value
    if mc is None or mc["states"] < mc["of"] / 2:
        return None
    slack = (mc["high"] - mc["low"]) / 2 + 0.1 * abs(mc["value"])
    if mc["low"] - slack <= value <= mc["high"] + slack:
        return None
    return (
        f"warning: the data's own value is {mc['value']:.4g}, but FQE estimates it as {value:.4g}; "
        "the other estimates deserve no more trust (try more --steps)."
    )


def picture(ranking: Ranking) -> bytes:
    """The ranking as a PNG: estimates with intervals, each critic as a dot, the data as a line."""
    from matplotlib.figure import Figure

    shown = [e for e in ranking.policies if not e.diverged]
    lost = len(ranking.policies) - len(shown)
    figure = Figure(figsize=(8, 1.6 + 0.3 * max(len(shown), 1)), layout="constrained")
    axes = figure.subplots()
    places = range(len(shown), 0, -1)
    for place, e in zip(places, shown, strict=True):
        axes.plot([e.low, e.high], [place, place], color="#2b6cb0", lw=3, alpha=0.6, solid_capstyle="butt")
        axes.plot(e.critics, [place] * len(e.critics), "|", color="#4a5568", ms=9)
        axes.plot([e.value], [place], "o", color="#2b6cb0")
    if not ranking.behaviour.diverged:
        axes.axvline(ranking.behaviour.value, color="#888", ls="--", lw=1, label="data, by FQE")
    if ranking.monte_carlo is not None:
        axes.axvline(ranking.monte_carlo["value"], color="#888", ls=":", lw=1, label="data, logged returns")
    # Names are shown as they are: a dollar sign in one is no formula.
    axes.set_yticks(list(places), [printable(e.name) for e in shown], parse_math=False, fontsize=8)
    axes.set_xlabel(f"estimated discounted return (γ = {ranking.discount:g}); ticks: single critics")
    axes.set_title(
        f"Fitted-Q evaluation on {printable(ranking.dataset)}" + (f" ({lost} diverged, not shown)" if lost else ""),
        parse_math=False,
    )
    axes.set_ylim(0.3, len(shown) + 0.7)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()
