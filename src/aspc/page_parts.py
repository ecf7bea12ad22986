"""Shared parts of the HTML pages for datasets and trust reports: a style, a template loader and figures."""

from __future__ import annotations

import base64
import io
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from aspc.data.roles import strip_unit, unit_of
from aspc.data.validation import is_pinned
from aspc.errors import printable
from aspc.text import format_number

if TYPE_CHECKING:
    from jinja2 import Environment

ACCENT_COLOR = "#2b6cb0"
MAX_ACTION_PANELS = 12
PANEL_COLUMNS = 4

Subject = TypeVar("Subject")


class Picture(NamedTuple):
    """A figure of a page: its caption and its PNG image in base64."""

    caption: str
    png: str


def template_environment(package: str) -> Environment:
    """Return a Jinja environment for a package's `templates` folder. It escapes values and rejects undefined ones."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render_template(name: str, **values: Any) -> str:
    """Render a template of `aspc/templates`."""
    return template_environment("aspc").get_template(name).render(**values)


def draw_png(draw: Callable[[Any, Subject], None], subject: Subject) -> str:
    """Call `draw(figure, subject)` and return the figure as a PNG image in base64."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.4), layout="constrained")
    draw(figure, subject)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def action_histograms(
    figure: Any,
    names: Sequence[str],
    bounds: tuple[np.ndarray, np.ndarray],
    layers: Sequence[tuple[np.ndarray, str, float]],
    rows: str,
) -> None:
    """Draw one histogram per action, for the first actions only, each over the range of its bounds.

    Args:
        figure: The figure.
        names: Names of the actions, or an empty sequence.
        bounds: The lowest and the highest values.
        layers: Actions [N, act] with a color and an opacity.
        rows: Label of the counted rows.
    """
    shown = min(len(bounds[0]), MAX_ACTION_PANELS)
    columns = min(shown, PANEL_COLUMNS)
    figure.set_size_inches(10, max(3.4, 1.9 * -(-shown // columns)))
    panels = figure.subplots(-(-shown // columns), columns, squeeze=False).flat
    for i, axes in enumerate(panels):
        if i >= shown:
            axes.set_axis_off()
            continue
        name, (low, high) = printable(names[i]) if names else f"action {i + 1}", (bound[i] for bound in bounds)
        # A column's name can look like a formula.
        axes.set_title(textwrap.fill(strip_unit(name), 28), fontsize=8, parse_math=False)
        if is_pinned(low, high):  # too narrow for bins
            axes.text(0.5, 0.5, f"always {format_number(low)}", ha="center", va="center", fontsize=8)
            axes.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(0, 1))
            continue
        for actions, color, opacity in layers:
            axes.hist(actions[:, i], bins=40, range=(float(low), float(high)), color=color, alpha=opacity)
        axes.set_xlabel(unit_of(name), fontsize=8, parse_math=False)
        axes.set_ylabel(rows if i % columns == 0 else "", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.locator_params(nbins=3)  # more labels would overlap in narrow panels


def principal_components(observations: np.ndarray) -> np.ndarray:
    """Project standardized observations onto their first two principal components, [N, 2]."""
    wide = observations.astype(np.float64)
    standardized = (wide - wide.mean(axis=0)) / (wide.std(axis=0) + 1e-9)
    values, vectors = np.linalg.eigh(standardized.T @ standardized / len(standardized))
    points = standardized @ vectors[:, np.argsort(values)[::-1][:2]]
    return points if points.shape[1] == 2 else np.concatenate([points, np.zeros_like(points)], axis=1)
