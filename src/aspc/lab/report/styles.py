"""One color and dash per series, in all charts. The colors suit light and dark pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import NamedTuple

COLORS = {
    "ASPC": "#d55e00",
    "TD3+BC": "#0072b2",
    "wPC": "#2f9fd8",
    "A2PR": "#c2589a",
    "IQL": "#00916e",
    "ReBRAC": "#b98a00",
    "CQL": "#8a7a4f",
    "Diffusion-QL": "#a3486b",
    "FQL": "#6466cf",
    "BC": "#80868c",
}
# For all other series: at least 0.08 apart in OKLab, from each other and from those above; visible on white and black.
SPARE_COLORS = (
    "#0fc378",
    "#5a5a00",
    "#b4a5b4",
    "#a5b400",
    "#7887ff",
    "#5a4b96",
    "#c396ff",
    "#69a587",
    "#00694b",
    "#b41e2d",
    "#e169c3",
    "#5aa54b",
)
MAX_DRAWN = 12  # series shown per chart and on a newly opened page: more cannot be distinguished at a glance
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
QUALITY_COLORS = {  # from better to worse data
    "expert": "#7d5fc9",
    "medium-expert": "#2b6ca3",
    "medium": "#1f9e89",
    "medium-replay": "#5aae3c",
    "full-replay": "#b98a00",
    "random": "#c9662b",
}
TASK_COLORS = ("#d55e00", "#b98a00", "#0072b2", "#00916e", "#a3486b", "#6466cf", "#2f9fd8", "#8a7a4f", "#80868c")


class SeriesStyle(NamedTuple):
    """Color and dash of a line. Bars have the same color, and a hatch instead of the dash."""

    color: str
    dash: str


def cycle_styles(colors: Sequence[str]) -> Iterator[SeriesStyle]:
    """Yield all colors with the first dash, then all with the next one, and so on: six distinct styles per color."""
    return cycle(SeriesStyle(color, dash) for dash in DASHES for color in colors)


def assign_styles(series: Sequence[str]) -> dict[str, SeriesStyle]:
    """Return the style of each series on a page.

    An algorithm has the same color on every page, and X+ASPC has X's color, dashed. Other series get spare colors in
    order, so that neighbors differ in color.
    """
    out: dict[str, SeriesStyle] = {}
    spare = cycle_styles(SPARE_COLORS)
    for name in series:
        base, plus, rest = name.partition("+ASPC")
        algorithm = name.partition(", ")[0]
        if name in COLORS:
            out[name] = _solid_style(name)
        elif plus and not rest and base in COLORS:
            out[name] = SeriesStyle(COLORS[base], "dash")
        # A variant takes its algorithm's color if the algorithm is not on the page.
        elif algorithm in COLORS and algorithm not in series and _solid_style(algorithm) not in out.values():
            out[name] = _solid_style(algorithm)
        else:
            out[name] = next(spare)
    return out


def _solid_style(algorithm: str) -> SeriesStyle:
    return SeriesStyle(COLORS[algorithm], "solid")
