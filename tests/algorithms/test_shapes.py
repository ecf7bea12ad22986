"""The shapes in the annotations of the mathematics hold at run time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from aspc import algorithms


def test_annotated_shapes_hold_for_every_algorithm() -> None:
    child = Path(__file__).with_name("shape_child.py")
    done = subprocess.run([sys.executable, child], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [*algorithms.names(), "a wrong shape is an error"]
