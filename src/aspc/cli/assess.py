"""The command `aspc assess`: compare policies with the controller that produced the logs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from aspc.assessment.assess_options import AssessOptions
from aspc.cli.data_options import DataOptions
from aspc.cli.parsing import Flag, Unset, parse_options
from aspc.cli.shared import option_values, prepare_selection
from aspc.errors import AspcError, printable
from aspc.io import prepare_output_file, replace_nonfinite, write_atomically
from aspc.plugins import load_plugins
from aspc.ui import Progress

if TYPE_CHECKING:
    from aspc.assessment.assess import Assessment

NONE_SELECTED = 1  # exit code

HELP = """Estimate from logs whether a policy performs better than the controller that produced them.

Uses the episodes held out from training (aspc train --holdout). Prints a verdict on each policy (better, not
worse, cannot tell, worse, outside the data) with its reason, and writes an HTML page. docs/trust.md explains the
method."""

COMMON_OPTIONS = "dataset checkpoints select out json steps seed level margin kpi"  # shown by --help


@dataclass(frozen=True)
class Assess:
    """The options of `aspc assess`."""

    runs: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="")
    ]
    """Run folders, fleet folders (runs trained together) or policy folders."""
    dataset: Unset[str] = None
    """Name or path of the dataset to evaluate on. Default: the runs' dataset. Episodes that a run was trained on are
    excluded."""
    checkpoints: Flag = False
    """Assess the runs' checkpoints instead of their final policies."""
    on_training_data: Flag = False
    """Use all episodes, including those that the runs were trained on."""
    select: Unset[Path] = None
    """Save the recommended policy in this folder, which must be new or empty. Exit with code 1 if no policy is
    recommended."""
    select_anyway: Flag = False
    """With --select: save the policy with the highest lower bound on the difference, regardless of its verdict."""
    out: Path = Path("assess.html")
    """Output file for the HTML page."""
    plugin: Unset[Path] = None
    """Load a Python file that registers the runs' algorithm (for --checkpoints)."""
    json: Flag = False
    """Print one JSON object instead of text."""
    quiet: Flag = False
    """Hide progress."""
    estimation: tyro.conf.OmitArgPrefixes[AssessOptions] = field(default_factory=AssessOptions)
    source: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)


def main(argv: list[str]) -> int:
    """Run `aspc assess`."""
    args = parse_options(Assess, argv, "aspc assess", description=HELP, common=COMMON_OPTIONS)
    load_plugins(option_values(argv, "plugin"))
    if not args.runs:
        raise AspcError("aspc assess needs at least one run folder, for example: aspc assess runs/*.")
    if args.select_anyway and args.select is None:
        raise AspcError("--select-anyway has no effect without --select. Pass a folder with --select.")
    prepare_output_file(args.out, ".html")
    if args.select is not None:
        prepare_selection(args.select)

    from aspc.assessment.assess import assess
    from aspc.assessment.assessment_page import render_page
    from aspc.assessment.assessment_text import format_assessment, to_json
    from aspc.training.run import use_compilation_cache

    use_compilation_cache()
    options = args.source.options()
    kpis = options.pop("kpis", ())
    with _AssessProgress(args.quiet) as progress:
        assessment = assess(
            args.runs,
            args.dataset,
            kpis=kpis,
            checkpoints=args.checkpoints,
            on_training_data=args.on_training_data,
            options=args.estimation,
            notify=progress.show,
            **options,
        )
    write_atomically(args.out, render_page(assessment).encode())
    result, selection = to_json(assessment) | {"page": str(args.out)}, ""
    if args.select is not None:
        saved, selection = save_selection(assessment, args.select, args.select_anyway)
        result["selected"] = saved
    if args.json:
        print(json.dumps(result))
    else:
        print(format_assessment(assessment))
        print(f"page  {args.out}")
        if selection:
            print(printable(selection))
    return NONE_SELECTED if args.select is not None and result["selected"] is None else 0


def save_selection(assessment: Assessment, folder: Path, anyway: bool) -> tuple[dict[str, Any] | None, str]:
    """Save the selected policy. Return its record (None if no policy was selected) and a message."""
    from aspc.assessment.assessment_text import explain_none
    from aspc.assessment.trained_runs import Candidate, save_selected

    recommended, chosen = assessment.select(), assessment.select(anyway)
    if chosen is None:
        return None, f"selected  no policy: {explain_none(assessment)}. Use --select-anyway to override this."
    overrides = None if chosen is recommended else f"its verdict, {chosen.verdict.kind}: {chosen.verdict.reason}"
    note = {
        "by": "assessment",
        "among": len(assessment.policies),
        "dataset": assessment.dataset,
        "episodes": assessment.episodes,
        "discount": assessment.discount,
        "verdict": chosen.verdict.kind,
        "difference": replace_nonfinite(chosen.reward.difference),
        "interval": replace_nonfinite([chosen.reward.low, chosen.reward.high]),
        "selection_bound": replace_nonfinite(assessment.selection_bound(chosen)),
        "overrides": overrides,
    }
    save_selected(Candidate(chosen.name, chosen.policy, chosen.source), note, folder)
    sentence = f"selected  {chosen.name} → {folder}" + ("" if overrides is None else f" (overrides {overrides})")
    return {"name": chosen.name, "folder": str(folder), "overrides": overrides}, sentence


class _AssessProgress:
    """A progress line that is created once the number of steps is known."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._progress: Progress | None = None

    def __enter__(self) -> _AssessProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.close()

    def show(self, step: int, total: int, part: str) -> None:
        if self._progress is None:
            self._progress = Progress(total, quiet=self._quiet)
        self._progress.show(step, part=part)
