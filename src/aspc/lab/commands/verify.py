"""The command `aspc verify`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aspc.cli.shared import parse
from aspc.errors import AspcError


@dataclass(frozen=True)
class Verify:
    """Replay reference traces in float64 through the very code that trains.

    Prints, for each quantity, the largest difference relative to the quantity's largest value (the scale by its
    displacement from the start). Exit code 1 if any is above 1e-6.
    """

    traces: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TRACE [TRACE ...]")]
    """Trace files (.npz)."""
    all: bool = False
    """Print every quantity, not only the worst ones."""


def main(argv: list[str]) -> int:
    asked = parse(Verify, argv, "verify")
    if not asked.traces:
        raise AspcError("Give the trace files to replay, for example: aspc verify tests/golden/*.npz (in the sdist).")

    from aspc.lab.reference.replay import TOLERANCE
    from aspc.lab.reference.replay import verify as replay

    good = True
    for path in asked.traces:
        checks = sorted(replay(path), key=lambda check: -check.error)
        failed = [check for check in checks if not check.ok]
        good = good and not failed
        verdict = "FAILS" if failed else "passes"
        print(f"{path.name}: {verdict}; {len(checks)} quantities, largest difference {checks[0].error:.1e}")
        for check in checks if asked.all else failed[:10] or checks[:3]:
            print(f"    {check.error:9.2e}  {check.quantity}")
    if not good:
        print(f"At least one quantity differs by more than {TOLERANCE:.0e}.", file=sys.stderr)
    return 0 if good else 1
