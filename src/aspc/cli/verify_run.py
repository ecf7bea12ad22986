"""The command `aspc verify-run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aspc.cli.parsing import parse_options


@dataclass(frozen=True)
class VerifyRun:
    """Check the files and checkpoints of a run against their checksums.

    The exit code is 2 if a file is missing or damaged.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder."""


def main(argv: list[str]) -> int:
    """Run `aspc verify-run`."""
    args = parse_options(VerifyRun, argv, "aspc verify-run")

    from aspc.training import checksums
    from aspc.training.checkpoints import CheckpointStore
    from aspc.training.run_folder import CHECKPOINTS

    verified = checksums.verify(args.run)
    has_checksum: list[bool] = []
    if (args.run / CHECKPOINTS).is_dir():
        checkpoints = CheckpointStore(args.run / CHECKPOINTS, read_only=True)
        has_checksum = [checkpoints.verify(step) for step in checkpoints.all_steps()]
        checkpoints.close()
    print(f"{args.run}: {verified.files} files and {sum(has_checksum)} checkpoints match their checksums.")
    if not all(has_checksum):
        print(f"  Checkpoints without a checksum, from an older version: {has_checksum.count(False)}.")
    if not verified.finished:
        print(f"  The run is not finished: metrics after step {verified.step:,} have no checksums yet.")
    return 0
