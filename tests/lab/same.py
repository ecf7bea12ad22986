"""What it means that two benches came to the same."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from aspc.lab import results

# What depends on the clock and the call (and on whether somebody commits meanwhile).
CIRCUMSTANCES = ["seconds", "steps_per_second", "started", "finished", "git_revision", "command"]


def assert_same_results(found: Path, expected: Path) -> None:
    a, b = results.read(found), results.read(expected)
    ours, theirs = (x.runs.drop(columns=CIRCUMSTANCES) for x in (a, b))
    pd.testing.assert_frame_equal(ours, theirs, check_exact=True)
    pd.testing.assert_frame_equal(a.curves, b.curves, check_exact=True)


def assert_each_run_once(bench: Path) -> None:
    """No run is in two parts, and no chunk of a training was logged twice."""
    parts = [results.read_table(path, "runs").column("run_id").to_pylist() for path in (bench / "runs").iterdir()]
    ids = [run_id for part in parts for run_id in part]
    assert len(ids) == len(set(ids))
    for path in (bench / "groups").glob("*/fleet-*/*.csv"):
        steps = pd.read_csv(path)[["step", "run"]]
        assert not steps.duplicated().any(), path
