"""The trust report: may I trust this policy? (`aspc inspect`)"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from aspc.cli.data import Source

if TYPE_CHECKING:
    from aspc.assessment.trust_report import Report


@dataclass(frozen=True)
class Inspect:
    """May I trust this policy? One page about a run: how far it leaves the data, what its critics say, and where.

    Needs the logs, no simulator. docs/trust.md says what each part can and cannot tell.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder, or a policy's own."""
    dataset: str | None = None
    """A name or path of the data to look at; by default what the run was trained on."""
    seed: int | None = None
    """Which seed of the run; by default its first."""
    states: int = 2_000
    """Logged states to look at."""
    out: Path = Path("trust.html")
    """Where to write the page."""
    plugin: Path | None = None
    """A Python file that registers the algorithm, where it is your own."""
    json: bool = False
    """Print one JSON object instead of a table."""
    quiet: bool = False
    """Show no progress."""
    source: tyro.conf.OmitArgPrefixes[Source] = field(default_factory=Source)


def main(argv: list[str]) -> int:
    from aspc.cli.shared import parse, values_of
    from aspc.plugins import load_plugins

    asked: Inspect = parse(Inspect, argv, "inspect")
    load_plugins(values_of(argv, "plugin"))

    import sys

    from aspc.policy import make_room

    make_room(asked.out, ".html")

    from aspc.assessment.trained_runs import dataset_of
    from aspc.assessment.trust_page import page
    from aspc.assessment.trust_report import Subject, inspect_subject
    from aspc.io import write_atomically
    from aspc.policy import find_policy
    from aspc.training.run import use_compilation_cache

    use_compilation_cache()
    folder = find_policy(asked.run, asked.seed)
    dataset = dataset_of([folder], asked.dataset, asked.source.options())
    subject = Subject.of(folder, dataset, asked.states)

    def say(text: str) -> None:
        if not asked.quiet:
            print(text, file=sys.stderr, flush=True)

    report = inspect_subject(subject, say)
    write_atomically(asked.out, page(report, subject.observations).encode())
    if asked.json:
        print(json.dumps(plain(report) | {"page": str(asked.out)}))
    else:
        print(text(report))
        print(f"page  {asked.out}")
    return 0


def plain(report: Report) -> dict[str, Any]:
    """The report as JSON has it: NaN is null."""
    from aspc.policy import without_nan

    findings = [{"level": f.level, "about": f.about, "text": f.text} for f in report.findings]
    return without_nan(
        {"verdict": report.verdict, "findings": findings, "facts": dict(report.facts), "numbers": report.numbers}
    )


def text(report: Report) -> str:
    """The summary for a terminal."""
    import textwrap

    from aspc.assessment.trust_page import MARKS
    from aspc.errors import printable

    lines = [report.verdict, ""]
    width = max(len(f.about) for f in report.findings)
    for f in report.findings:
        first = f"{MARKS[f.level]} {f.about:{width}s}  "
        lines += textwrap.wrap(f.text, 110, initial_indent=first, subsequent_indent=" " * len(first))
    lines += ["", *(f"{name:15s} {value}" for name, value in report.facts)]
    return "\n".join(printable(line) for line in lines)
