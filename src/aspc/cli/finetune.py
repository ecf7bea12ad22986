"""The command `aspc finetune`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from aspc.cli.shared import parse, print_result, values_of
from aspc.cli.train import refuse_settings
from aspc.errors import AspcError
from aspc.plugins import load_plugins
from aspc.training.finetune import finetune, resume
from aspc.training.online import OnlineOptions


@dataclass(frozen=True)
class Finetune:
    """Go on from a run in its environment: collect with the current policy, learn from old and new rows.

    Networks, optimisers and the scale go on from the run's last checkpoint. Leaves a run folder of its own behind,
    whose step 0 is the offline policy.
    """

    run: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = None
    """The offline run's folder."""
    env: str | None = None
    """The environment; by default the run's own."""
    dataset: str | None = None
    """Where the run's data are now, if they were moved since."""
    seed: int | None = None
    """Which of the run's seeds; by default the first."""
    out: Path | None = None
    """Folder for the new run. Default: runs/DATASET_ALGO_online_TIME."""
    resume: Path | None = None
    """Continue the fine-tuning in this folder (instead of RUN). Only --steps, --env and --dataset can be given."""
    plugin: Path | None = None
    """A Python file that registers the algorithm, where it is your own."""
    quiet: bool = False
    """Show no progress."""
    online: tyro.conf.OmitArgPrefixes[OnlineOptions] = field(default_factory=OnlineOptions)


def main(argv: list[str]) -> int:
    asked = parse(Finetune, argv, "finetune")
    if (asked.run is None) == (asked.resume is None):
        raise AspcError("Give the folder of a run to go on from, or --resume and the folder of a fine-tuning.")
    load_plugins(values_of(argv, "plugin"))
    if asked.resume is not None:
        refuse_settings(argv)
        steps = asked.online.steps if any(word.split("=")[0] == "--steps" for word in argv) else None
        print_result(resume(asked.resume, steps, asked.env, dataset=asked.dataset, quiet=asked.quiet))
        return 0
    settings = {entry.name: getattr(asked.online, entry.name) for entry in dataclasses.fields(asked.online)}
    settings |= {"seed": asked.seed, "dataset": asked.dataset, "out": asked.out, "quiet": asked.quiet}
    print_result(finetune(asked.run, asked.env, **settings))
    return 0
