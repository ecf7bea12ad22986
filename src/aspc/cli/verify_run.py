"""The command `aspc verify-run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aspc.cli.shared import parse


@dataclass(frozen=True)
class VerifyRun:
    """Compare the files and checkpoints of a run with the checksums that were written with them.

    Exit code 2 if one is missing or damaged.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder."""


def main(argv: list[str]) -> int:
    asked = parse(VerifyRun, argv, "verify-run")

    from aspc.training import checksums
    from aspc.training.checkpoints import Checkpoints
    from aspc.training.run_folder import CHECKPOINTS

    verified = checksums.verify(asked.run)
    known: list[bool] = []
    if (asked.run / CHECKPOINTS).is_dir():
        checkpoints = Checkpoints(asked.run / CHECKPOINTS, read_only=True)
        known = [checkpoints.verify(step) for step in checkpoints.all_steps()]
        checkpoints.close()
    print(f"{asked.run}: {verified.files} files and {sum(known)} checkpoints match their checksums.")
    if not all(known):
        print(f"  {known.count(False)} checkpoints of an older version have no checksum.")
    if not verified.finished:
        print(f"  The run is not finished: rows after step {verified.step:,} are not covered.")
    return 0
