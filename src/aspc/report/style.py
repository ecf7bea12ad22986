"""One colour and dash for each series, everywhere. Colours are told apart with colour blindness, on light and dark."""

from __future__ import annotations

import zlib
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
OTHERS = ("#5a9e4b", "#4e79a7", "#7f6db0", "#3f8f8a", "#a35d6a", "#6b8e23", "#8c6d4f", "#5f7fbf", "#b0607f", "#708090")
DASHES = ("solid", "dash", "dot", "dashdot")
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
    colour: str
    dash: str


def style_of(series: str) -> Style:
    """An algorithm's own colour; X+ASPC has X's, dashed; any other name has the same one on every page."""
    base, plus, rest = series.partition("+ASPC")
    if series in COLOURS:
        return Style(COLOURS[series], "solid")
    if plus and not rest and base in COLOURS:
        return Style(COLOURS[base], "dash")
    number = zlib.crc32(series.encode())
    return Style(OTHERS[number % len(OTHERS)], DASHES[1 + number // len(OTHERS) % 3])


def styles(series: list[str]) -> dict[str, Style]:
    """Styles of the series on one page: others that fall on the same colour are moved apart while colours last."""
    out: dict[str, Style] = {}
    used: set[str] = set()
    for name in series:
        style, algorithm = style_of(name), name.partition(", ")[0]
        # A variant has the colour of its algorithm where that one is not on the page itself.
        if algorithm in COLOURS and algorithm not in series and COLOURS[algorithm] not in used:
            style = Style(COLOURS[algorithm], "solid")
        if style.colour in used and style.colour in OTHERS:
            free = next((c for c in OTHERS if c not in used), style.colour)
            style = style._replace(colour=free)
        used.add(style.colour)
        out[name] = style
    return out
