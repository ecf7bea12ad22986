"""The command `aspc verify`: replay reference traces."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aspc.cli.parsing import Flag, parse_options
from aspc.errors import AspcError


@dataclass(frozen=True)
class VerifyArgs:
    """Replay reference traces through the training code in float64, and print the errors.

    Errors are relative: the largest error of each quantity is divided by its largest magnitude, and the error of the
    learned scale (such as alpha) by its largest change. The exit code is 1 if any error exceeds 1e-6.
    """

    traces: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TRACE [TRACE ...]", help_behavior_hint="")
    ]
    """Trace files (.npz)."""
    all: Flag = False
    """Print all quantities, not only the ones with the largest errors."""


def main(argv: list[str]) -> int:
    """Run the command and return its exit code."""
    args = parse_options(VerifyArgs, argv, "aspc verify")
    if not args.traces:
        raise AspcError("Pass at least one trace file, for example (in a checkout): aspc verify tests/golden/*.npz")

    from aspc.lab.reference.replay import TOLERANCE
    from aspc.lab.reference.verification import verify

    has_passed = True
    for path in args.traces:
        checks = sorted(verify(path), key=lambda check: -check.error)
        failed = [check for check in checks if not check.passes]
        has_passed = has_passed and not failed
        verdict = "FAILS" if failed else "passes"
        print(f"{path.name}: {verdict}; {len(checks)} quantities, largest error {checks[0].error:.1e}")
        for check in checks if args.all else failed[:10] or checks[:3]:
            print(f"    {check.error:9.2e}  {check.quantity}")
    if not has_passed:
        print(f"At least one quantity differs by more than {TOLERANCE:.0e}.", file=sys.stderr)
    return 0 if has_passed else 1
