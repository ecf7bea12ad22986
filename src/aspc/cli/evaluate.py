"""The command `aspc eval`."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aspc.cli.parsing import Flag, Unset, parse_options
from aspc.errors import AspcError
from aspc.io import replace_nonfinite


@dataclass(frozen=True)
class Evaluate:
    """Re-evaluate a run's policies over many episodes, with seeds that training did not use."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, or the folder of a single policy, which requires --env."""
    episodes: int = 100
    """Number of episodes per seed."""
    env: Unset[str] = None
    """Environment to use instead of the run's environment."""
    json: Flag = False
    """Print one JSON object instead of a table."""


def main(argv: list[str]) -> int:
    """Run `aspc eval`."""
    args = parse_options(Evaluate, argv, "aspc eval")

    from aspc.training.run import evaluate as evaluate_run

    if args.episodes < 1:
        raise AspcError(f"--episodes must be at least 1, not {args.episodes}.")
    rows = evaluate_run(args.run, args.episodes, env=args.env)
    if args.json:
        print(json.dumps(replace_nonfinite(rows)))
        return 0
    for row in rows:
        line = f"seed {row['seed']}: return {row['return_mean']:.1f} ± {row['return_std']:.1f}"
        if not math.isnan(row["score_mean"]):
            line += f", score {row['score_mean']:.1f} ± {row['score_std']:.1f}"
        if not math.isnan(row["success_rate"]):
            line += f", success {100 * row['success_rate']:.0f} %"
        print(f"{line} ({row['episodes']} episodes)")
    return 0
