"""The command `aspc inspect`, which writes the trust report."""

from __future__ import annotations

import json
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from aspc.cli.data_options import DataOptions
from aspc.cli.parsing import Flag, Unset, parse_options
from aspc.cli.shared import option_values
from aspc.errors import printable
from aspc.io import prepare_output_file, replace_nonfinite, write_atomically
from aspc.plugins import load_plugins
from aspc.policy import find_policy

if TYPE_CHECKING:
    from aspc.assessment.trust_report import TrustReport

COMMON_OPTIONS = "dataset seed states out plugin json quiet map env"  # shown by --help


@dataclass(frozen=True)
class Inspect:
    """Write a one-page trust report on a policy: distance from the data, critic values and critic disagreement.

    Needs the logs but no simulator. docs/trust.md explains what each check can and cannot show.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, or the folder of a single policy."""
    dataset: Unset[str] = None
    """Name or path of the data to compare with. Default: the data that the run was trained on."""
    seed: Unset[int] = None
    """Seed of the run to inspect. Default: the run's first seed."""
    states: int = 2_000
    """Number of logged states to sample."""
    out: Path = Path("trust.html")
    """Output file."""
    plugin: Unset[Path] = None
    """Load a Python file that registers the run's algorithm."""
    json: Flag = False
    """Print one JSON object instead of a table."""
    quiet: Flag = False
    """Hide progress."""
    source: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)


def main(argv: list[str]) -> int:
    """Run `aspc inspect`."""
    args = parse_options(Inspect, argv, "aspc inspect", common=COMMON_OPTIONS)
    load_plugins(option_values(argv, "plugin"))
    prepare_output_file(args.out, ".html")

    from aspc.assessment.inspected_policy import InspectedPolicy
    from aspc.assessment.trained_runs import dataset_of
    from aspc.assessment.trust_page import render_page
    from aspc.assessment.trust_report import assess_policy
    from aspc.training.run import use_compilation_cache

    use_compilation_cache()
    folder = find_policy(args.run, args.seed)
    dataset = dataset_of([folder], args.dataset, args.source.options())
    inspected = InspectedPolicy.load(folder, dataset, args.states)

    def notify(text: str) -> None:
        if not args.quiet:
            print(text, file=sys.stderr, flush=True)

    report = assess_policy(inspected, notify)
    write_atomically(args.out, render_page(report, inspected.observations).encode())
    if args.json:
        print(json.dumps(to_json(report) | {"page": str(args.out)}))
    else:
        print(format_report(report))
        print(f"page  {args.out}")
    return 0


def to_json(report: TrustReport) -> dict[str, Any]:
    """Return the report as JSON values; NaN becomes null."""
    return {
        "verdict": report.verdict,
        "findings": [{"level": c.level, "about": c.topic, "text": c.text} for c in report.checks],
        "facts": dict(report.description),
        "numbers": replace_nonfinite(report.numbers),
    }


def format_report(report: TrustReport) -> str:
    """Format the report for a terminal."""
    from aspc.assessment.trust_page import MARKS

    lines = [report.verdict, ""]
    width = max(len(check.topic) for check in report.checks)
    for check in report.checks:
        first = f"{MARKS[check.level]} {check.topic:{width}s}  "
        lines += textwrap.wrap(check.text, 110, initial_indent=first, subsequent_indent=" " * len(first))
    lines += ["", *(f"{name:15s} {value}" for name, value in report.description)]
    return "\n".join(printable(line) for line in lines)
