"""Colors of algorithms, which are the same in every figure and legible on light and dark backgrounds."""

from __future__ import annotations

from collections.abc import Mapping

ALGORITHM_COLORS: Mapping[str, str] = {
    "aspc": "#d55e00",
    "aspc_plus": "#00916e",
    "td3_bc": "#0072b2",
    "wpc": "#2f9fd8",
    "a2pr": "#d0589f",
    "rebrac": "#b98a00",
    "iql": "#7d55b8",
    "cql": "#8f7a3f",
    "diffusion_ql": "#9c4a63",
    "fql": "#7887ff",
    "mcep": "#6b6b00",
    "rapo": "#c22b35",
    "bc": "#80868c",
}
# Variants that serve as experimental controls have the color of the algorithm that they modify.
CONTROLS = {"aspc_aw": "aspc", "aspc_averaged": "aspc", "td3_bc_aw": "td3_bc", "td3_bc_two_policies": "td3_bc"}
OTHER_COLOR = "#2b6cb0"  # color for figures of a single algorithm that has no color of its own


def algorithm_color(algo: str) -> str | None:
    """Return the color of an algorithm by name, or None for a user-supplied algorithm.

    `X+aspc`, `discrete_X` and the variants of X in `CONTROLS` have the color of X.
    """
    base = algo.removesuffix("+aspc").removeprefix("discrete_")
    return ALGORITHM_COLORS.get(CONTROLS.get(base, base))
