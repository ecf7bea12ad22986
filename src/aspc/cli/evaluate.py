"""The command `aspc eval`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aspc.cli.shared import parse
from aspc.errors import AspcError


@dataclass(frozen=True)
class Evaluate:
    """Roll the policies of a run out again, in episodes that training did not use."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder, or with --env that of a policy by itself (a bench's, say)."""
    episodes: int = 100
    """Episodes for each seed."""
    env: str | None = None
    """Another environment than the run's own."""
    json: bool = False
    """Print one JSON object instead of a table."""


def main(argv: list[str]) -> int:
    asked = parse(Evaluate, argv, "eval")

    from aspc.policy import without_nan
    from aspc.training.run import evaluate as evaluate_run

    if asked.episodes < 1:
        raise AspcError("--episodes must be at least 1.")
    rows = evaluate_run(asked.run, asked.episodes, env=asked.env)
    if asked.json:
        print(json.dumps(without_nan(rows)))
        return 0
    for row in rows:
        line = f"seed {row['seed']}: return {row['return_mean']:.1f} ± {row['return_std']:.1f}"
        if row["score_mean"] == row["score_mean"]:
            line += f", score {row['score_mean']:.1f} ± {row['score_std']:.1f}"
        if row["success_rate"] == row["success_rate"]:
            line += f", success {100 * row['success_rate']:.0f} %"
        print(f"{line} ({row['episodes']} episodes)")
    return 0
