"""Assertions that two benches have the same results."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from aspc.lab import results

# Columns that depend on the clock, the command and the checkout.
VARIABLE_COLUMNS = ["seconds", "steps_per_second", "started", "finished", "git_revision", "command"]


def assert_same_results(found: Path, expected: Path) -> None:
    """Compare runs and curves exactly."""
    a, b = results.read(found), results.read(expected)
    ours, theirs = (x.runs.drop(columns=VARIABLE_COLUMNS) for x in (a, b))
    pd.testing.assert_frame_equal(ours, theirs, check_exact=True)
    pd.testing.assert_frame_equal(a.curves, b.curves, check_exact=True)


def assert_each_run_once(bench: Path) -> None:
    """Check that no run is in two parts, and that no chunk of a run was logged twice."""
    parts = [results.read_table(path, "runs").column("run_id").to_pylist() for path in (bench / "runs").iterdir()]
    ids = [run_id for part in parts for run_id in part]
    assert len(ids) == len(set(ids))
    for path in (bench / "groups").glob("*/fleet-*/*.csv"):
        steps = pd.read_csv(path)[["step", "run"]]
        assert not steps.duplicated().any(), path
