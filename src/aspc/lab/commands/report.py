"""The command `aspc report`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import tyro

from aspc.cli.parsing import read_options
from aspc.errors import AspcError, MissingExtra

NEEDED = ("pandas", "plotly", "pyarrow", "rliable")


@dataclass(frozen=True)
class Report:
    """Make figures and one self-contained page, index.html, from folders of results."""

    results: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RESULTS [RESULTS ...]")]
    """Folders that `aspc bench` has written, or merged ones."""
    out: Path = Path("report")
    """Folder for the page and the figures."""
    figures: bool = True
    """Also write figures as PNG and SVG."""
    quiet: bool = False
    """Show no progress."""


def main(argv: list[str]) -> int:
    asked: Report = read_options(Report, argv, "aspc report")
    if not asked.results:
        raise AspcError("Give at least one folder of results, for example: aspc report results --out report.")
    if not all(find_spec(package) for package in NEEDED):
        raise MissingExtra("A report", "report")

    from aspc.io import write_atomically
    from aspc.lab import results
    from aspc.lab.report import content, html_page, plots

    def say(what: str) -> None:
        if not asked.quiet:
            print(f"aspc report: {what} …", file=sys.stderr)

    say("reading results")
    tables = results.read(*asked.results)
    try:
        asked.out.mkdir(parents=True, exist_ok=True)  # before all the work
        found = content.build(tables, say)
        names: list[str] = []
        if asked.figures:
            say("figures")
            names = plots.write_figures(found, asked.out / "figures")
        say("page")
        write_atomically(asked.out / "index.html", html_page.page(found, names).encode("utf-8", "replace"))
    except OSError as error:
        raise AspcError(f"The report cannot be written to {asked.out}: {error.strerror or error}.") from error
    print(asked.out / "index.html")
    return 0
