"""Verify a trace file: replay it in float64 and compare every quantity."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax

from aspc.errors import AspcError, first_line, unknown_name
from aspc.lab.reference.adapter import check_trace, require
from aspc.lab.reference.adapters.aspc import check_aspc
from aspc.lab.reference.adapters.cql import cql
from aspc.lab.reference.adapters.diffusion_ql import diffusion_ql
from aspc.lab.reference.adapters.fql import fql
from aspc.lab.reference.adapters.iql import iql
from aspc.lab.reference.adapters.td3_family import a2pr, rebrac, td3_bc, wpc
from aspc.lab.reference.replay import Trace, TraceCheck, read_trace

CHECKS: dict[str, Callable[[Trace], list[TraceCheck]]] = {
    "aspc": check_aspc,
    "td3_bc": partial(check_trace, td3_bc),
    "wpc": partial(check_trace, wpc),
    "wpc_original": partial(check_trace, wpc),
    "iql": partial(check_trace, iql),
    "rebrac": partial(check_trace, rebrac),
    "a2pr": partial(check_trace, a2pr),
    "fql": partial(check_trace, fql),
    "cql": partial(check_trace, cql),
    "diffusion_ql": partial(check_trace, diffusion_ql),
}


def verify(path: str | Path) -> list[TraceCheck]:
    """Replay a trace file in float64 and return one check per quantity that it contains.

    Raises:
        AspcError: The file is damaged, or its algorithm or settings are not supported.
    """
    trace = read_trace(path)
    algo = str(trace.meta["algo"])
    if algo not in CHECKS:
        raise unknown_name("algorithm of a trace", algo, CHECKS)
    require(trace.meta, adam=(0.9, 0.999, 1e-08))
    with jax.enable_x64(True):
        try:
            checks = CHECKS[algo](trace)
        except KeyError as missing:
            raise AspcError(f"{path} is missing {missing}, which is required in a trace of {algo}.") from missing
        except (TypeError, ValueError, IndexError) as error:
            problem = f"its arrays are not valid for the algorithm {algo}"
            raise AspcError(f"{path} cannot be replayed: {problem} ({first_line(error)}).") from error
    if not checks:
        raise AspcError(f"{path} contains no results to compare. A trace must have arrays under out/.")
    return checks
