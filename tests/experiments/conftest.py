"""A bench that was never interrupted, and a way to start one as a program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_suites  # noqa: F401  (registers the suites in this process)

from aspc.experiments.commands import bench

PLUGIN = Path(__file__).with_name("tiny_suites.py")


@pytest.fixture(autouse=True, scope="session")
def _own_data(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["ASPC_DATA"] = str(tmp_path_factory.getbasetemp() / "data")


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The suite `tiny`, run from start to end in this process: four groups of two runs."""
    out = tmp_path_factory.mktemp("uninterrupted")
    assert bench(["tiny", "--out", str(out), "--group-size", "2", "--quiet"]) == 0
    return out


@pytest.fixture
def start() -> Callable[..., subprocess.Popen[str]]:
    """`aspc bench …` as a program of its own."""

    def begin(*words: str | Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "aspc", "bench", *map(str, words), "--plugin", str(PLUGIN)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    return begin
