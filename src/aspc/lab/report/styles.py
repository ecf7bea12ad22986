"""Assign each series a color and a dash, which are the same in all charts. The colors suit light and dark pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, cycle, islice
from typing import NamedTuple

from aspc.algorithm_colors import algorithm_color
from aspc.lab.report.methods import method

# Colors for algorithms without a fixed color. Their distance from each other and from the fixed colors is at least 0.08
# in OKLab.
SPARE_COLORS = (
    "#0fc378",
    "#e88fcf",
    "#4350b5",
    "#a5b400",
    "#7a4b1e",
    "#b98cff",
    "#00694b",
    "#b4a5b4",
    "#5aa54b",
    "#69a587",
)
MAX_DRAWN = 12  # series per chart and on a newly opened page; more could not be distinguished at a glance
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SHADES = (0.0, -0.35, 0.35)  # shades for variants of an algorithm, towards black (negative) or white (positive)
QUALITY_COLORS = {  # from better to worse data
    "expert": "#7d5fc9",
    "medium-expert": "#2b6ca3",
    "medium": "#1f9e89",
    "medium-replay": "#5aae3c",
    "full-replay": "#c9a400",
    "random": "#c9662b",
}
TASK_COLORS = (*QUALITY_COLORS.values(), "#c2478c", "#8a6d5a", "#6b7a8f")


class SeriesStyle(NamedTuple):
    """The color and dash of a line. A bar has the same color, and a hatch instead of the dash."""

    color: str
    dash: str


def cycle_styles(colors: Sequence[str]) -> Iterator[SeriesStyle]:
    """Yield all colors with the first dash, then all colors with the next dash, and so on: six styles per color."""
    return cycle(SeriesStyle(color, dash) for dash in DASHES for color in colors)


def variant_styles(color: str) -> Iterator[SeriesStyle]:
    """Yield styles based on one color: solid, dashed, and then styles whose neighbors differ in both shade and dash."""
    shades = [mix(color, "#000000" if shade < 0 else "#ffffff", abs(shade)) for shade in SHADES]
    yield from (SeriesStyle(color, dash) for dash in DASHES[:2])
    for i in range(1, len(SHADES) * len(DASHES)):
        yield SeriesStyle(shades[i % len(SHADES)], DASHES[(i + i // len(DASHES)) % len(DASHES)])


def mix(color: str, other: str, share: float) -> str:
    """Mix two colors; `share` is the fraction of the second one."""
    pairs = zip(bytes.fromhex(color[1:]), bytes.fromhex(other[1:]), strict=True)
    return f"#{bytes(round((1 - share) * a + share * b) for a, b in pairs).hex()}"


def assign_styles(algorithms: Mapping[str, str]) -> dict[str, SeriesStyle]:
    """Return the style of each series on a page.

    An algorithm has the same color on every page. The plain algorithm has a solid line, and X+ASPC has a dashed line in
    the color of X. Other variants have shades of their algorithm's color with different dashes. All remaining series
    share a set of spare colors.

    Args:
        algorithms: series → algorithm.
    """
    spare = cycle_styles(SPARE_COLORS)
    variants: dict[str, Iterator[SeriesStyle]] = {}
    out: dict[str, SeriesStyle] = {}
    for series, algo in sorted(algorithms.items(), key=lambda item: item[0] != method(item[1]).name):
        color = algorithm_color(algo)
        if color is None:
            options = spare
        elif algo.endswith("+aspc"):
            options = chain([SeriesStyle(color, "dash")], variants.setdefault(color, variant_styles(color)), spare)
        else:
            options = chain(variants.setdefault(color, variant_styles(color)), spare)
        out[series] = _first_free(options, set(out.values()))
    return {series: out[series] for series in algorithms}


def _first_free(options: Iterator[SeriesStyle], taken: set[SeriesStyle]) -> SeriesStyle:
    """Return the first style that is not taken, or any style if all of them are taken."""
    tried = list(islice(options, 1))
    while tried[-1] in taken and len(tried) < 100:
        tried.append(next(options))
    return tried[-1]
