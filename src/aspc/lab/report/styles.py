"""One colour and dash for each series, everywhere. Colours are for light and dark pages alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import NamedTuple

COLOURS = {
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
# For all other series: at least 0.08 (in OKLab) from each other and from those above, and seen on white and on black.
OTHERS = (
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
MOST_DRAWN = 12  # series in one picture, or on the page at its start: more cannot be told apart at a glance
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
QUALITY_COLOURS = {  # dark is better data
    "expert": "#7d5fc9",
    "medium-expert": "#2b6ca3",
    "medium": "#1f9e89",
    "medium-replay": "#5aae3c",
    "full-replay": "#b98a00",
    "random": "#c9662b",
}
TASK_COLOURS = ("#d55e00", "#b98a00", "#0072b2", "#00916e", "#a3486b", "#6466cf", "#2f9fd8", "#8a7a4f", "#80868c")


class Style(NamedTuple):
    """Of lines. Bars have the colour, and a hatch for the dash."""

    colour: str
    dash: str


def in_turn(colours: Sequence[str]) -> Iterator[Style]:
    """All colours, then all of them again with the next dash: no two alike for six times as many as there are."""
    return cycle(Style(colour, dash) for dash in DASHES for colour in colours)


def styles(series: Sequence[str]) -> dict[str, Style]:
    """Styles of the series on one page. An algorithm has its own colour on every page, X+ASPC has X's, dashed; other
    names have what comes next, so that those which stand together differ in colour."""
    out: dict[str, Style] = {}
    spare = in_turn(OTHERS)
    for name in series:
        base, plus, rest = name.partition("+ASPC")
        algorithm = name.partition(", ")[0]
        if name in COLOURS:
            out[name] = _solid(name)
        elif plus and not rest and base in COLOURS:
            out[name] = Style(COLOURS[base], "dash")
        # A variant has the colour of its algorithm where that one is not on the page itself.
        elif algorithm in COLOURS and algorithm not in series and _solid(algorithm) not in out.values():
            out[name] = _solid(algorithm)
        else:
            out[name] = next(spare)
    return out


def _solid(algorithm: str) -> Style:
    return Style(COLOURS[algorithm], "solid")
