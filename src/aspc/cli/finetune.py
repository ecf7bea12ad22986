"""The command `aspc finetune`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from aspc.cli.parsing import Flag, Unset, parse_options
from aspc.cli.shared import last_option_value, option_values, print_result, reject_settings
from aspc.errors import AspcError
from aspc.plugins import load_callbacks, load_plugins
from aspc.training.run_config import OnlineOptions

COMMON_OPTIONS = "env dataset seed out resume steps collect updates eval-every quiet"  # shown by --help


@dataclass(frozen=True)
class Finetune:
    """Continue training online in the run's environment, on logged and newly collected transitions.

    Networks, optimizers and the scale continue from the run's last checkpoint. The command writes a new run folder, in
    which step 0 is the offline policy.
    """

    run: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = None
    """Folder of the offline run."""
    env: Unset[str] = None
    """Environment to train in. Default: the run's environment."""
    dataset: Unset[str] = None
    """New location of the run's data, if it was moved."""
    seed: Unset[int] = None
    """Seed of the run to continue. Default: the run's first seed."""
    out: Unset[Path] = None
    """Output folder (created if missing). Default: runs/DATASET_ALGO_online_TIME."""
    resume: Unset[Path] = None
    """Continue the fine-tuning run in this folder (omit RUN). Only --steps, --env and --dataset can be changed."""
    plugin: Unset[Path] = None
    """Load a Python file that registers the run's algorithm."""
    callback: Unset[Path] = None
    """Load a Python file that defines subclasses of aspc.Callback. They are called every --collect steps and after
    evaluations and checkpoints. Can be repeated."""
    quiet: Flag = False
    """Hide progress."""
    online: tyro.conf.OmitArgPrefixes[OnlineOptions] = field(default_factory=OnlineOptions)


def main(argv: list[str]) -> int:
    """Run `aspc finetune`."""
    args = parse_options(Finetune, argv, "aspc finetune", common=COMMON_OPTIONS)
    load_plugins(option_values(argv, "plugin"))
    callbacks = load_callbacks(option_values(argv, "callback"))

    from aspc.training.finetune import finetune, resume

    if args.resume is not None and args.run is None:
        reject_settings(argv)
        steps = args.online.steps if last_option_value(argv, "steps") is not None else None
        print_result(resume(args.resume, steps, args.env, dataset=args.dataset, quiet=args.quiet, callbacks=callbacks))
    elif args.run is not None and args.resume is None:
        settings = {entry.name: getattr(args.online, entry.name) for entry in dataclasses.fields(args.online)}
        settings |= {"seed": args.seed, "dataset": args.dataset, "out": args.out, "quiet": args.quiet}
        print_result(finetune(args.run, args.env, callbacks=callbacks, **settings))
    else:
        raise AspcError("Pass either the folder of an offline run, or --resume with the folder of a fine-tuning run.")
    return 0
