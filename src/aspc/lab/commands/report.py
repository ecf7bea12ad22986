"""The command `aspc report`: create figures and an HTML page from results."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import tyro

from aspc.cli.parsing import Flag, parse_options
from aspc.errors import AspcError, MissingExtra

REQUIRED_PACKAGES = ("pandas", "plotly", "pyarrow", "rliable")


@dataclass(frozen=True)
class ReportArgs:
    """Create figures and a self-contained HTML page, index.html, from result folders."""

    results: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RESULTS [RESULTS ...]", help_behavior_hint="")
    ]
    """Result folders written by `aspc bench` or merged by `aspc results --out`."""
    out: Path = Path("report")
    """Output folder (created if missing)."""
    figures: bool = True
    """Also write figures as PNG and SVG."""
    quiet: Flag = False
    """Hide progress."""


def main(argv: list[str]) -> int:
    """Run the command and return its exit code."""
    args = parse_options(ReportArgs, argv, "aspc report")
    if not args.results:
        raise AspcError("Pass at least one result folder, for example: aspc report results --out report.")
    if not all(find_spec(package) for package in REQUIRED_PACKAGES):
        raise MissingExtra("A report", "report")

    from aspc.io import write_atomically
    from aspc.lab import results
    from aspc.lab.report import content, html_page, plots

    def notify(stage: str) -> None:
        if not args.quiet:
            print(f"aspc report: {stage} …", file=sys.stderr)

    notify("reading results")
    tables = results.read(*args.results)
    try:
        args.out.mkdir(parents=True, exist_ok=True)  # fail early
        found = content.build(tables, notify)
        names: list[str] = []
        if args.figures:
            notify("figures")
            names = plots.write_figures(found, args.out / "figures")
        notify("page")
        write_atomically(args.out / "index.html", html_page.render_page(found, names).encode("utf-8", "replace"))
    except OSError as error:
        raise AspcError(f"Cannot write the report to {args.out}: {error.strerror or error}.") from error
    print(args.out / "index.html")
    return 0
