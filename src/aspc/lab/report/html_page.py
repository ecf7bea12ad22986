"""Render the report as a self-contained HTML page from the templates in `templates/`.

Tables and claims are plain HTML and readable without JavaScript. Curves, runs and charts are embedded as JSON, which
page.js draws with an inlined copy of Plotly. Text from files is escaped: by the templates in HTML, and as JSON in
scripts.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from jinja2 import Environment
from markupsafe import Markup

from aspc.errors import MissingExtra
from aspc.lab.report import formatting, page_text
from aspc.lab.report.claims.vocabulary import FAILS, HOLDS, OPEN
from aspc.lab.report.content import ReportContent
from aspc.lab.report.datasets import TASKS
from aspc.lab.report.page_data import build_page_data
from aspc.lab.report.view import MEASURES
from aspc.page_parts import template_environment

SECTIONS = {
    "overall": "Summary",
    "scores": "Scores",
    "claims": "Claims",
    "curves": "Curves",
    "scale": "Scale",
    "ablations": "Ablations",
    "runtime": "Runtime",
    "runs": "Runs",
}
VERDICT_CLASSES = {HOLDS: "holds", FAILS: "fails", OPEN: "open"}
VERDICT_TITLES = {HOLDS: "Holds", FAILS: "Does not hold", OPEN: "Open: not enough data"}
VERDICT_SYMBOLS = {HOLDS: "✓", FAILS: "✕", OPEN: "·"}


def render_page(content: ReportContent, figures: Sequence[str] = ()) -> str:
    """Return the HTML of the page.

    Args:
        content: the parts of the report.
        figures: names of the figures that have been written, to which the page links.
    """
    empty = {
        "overall": content.aggregates is None,
        "scale": content.scale_series is None,
        "ablations": not content.ablations,
        "runtime": not (content.runtimes or content.interval_runtimes),
    }
    return (
        _environment()
        .get_template("page.html")
        .render(
            content=content,
            figures=figures,
            sections={name: title for name, title in SECTIONS.items() if not empty.get(name)},
            data=build_page_data(content),
            style=_read_asset("page.css"),
            script=_read_asset("page.js"),
            plotly=_load_plotly(),
        )
    )


def _environment() -> Environment:
    environment = template_environment("aspc.lab.report")
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters |= {
        "number": formatting.format_number,
        "interval": formatting.format_interval,
        "pluralize": formatting.pluralize,
    }
    environment.globals |= {
        "text": page_text,
        "MEASURES": MEASURES,
        "TASKS": TASKS,
        "VERDICT_CLASSES": VERDICT_CLASSES,
        "VERDICT_SYMBOLS": VERDICT_SYMBOLS,
        "VERDICT_TITLES": VERDICT_TITLES,
    }
    return environment


def _read_asset(name: str) -> Markup:
    return Markup(resources.files("aspc.lab.report").joinpath(name).read_text("utf-8"))


def _load_plotly() -> Markup:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingExtra("A report", "report") from error
    return Markup(get_plotlyjs())
