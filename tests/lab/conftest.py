"""Fixtures: an uninterrupted bench, and a function that starts one as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tiny_suites  # noqa: F401  (registers the suites in this process)
from filelock import FileLock

from aspc import plugins
from aspc.lab.commands.bench import main as bench

PLUGIN = Path(__file__).with_name("tiny_suites.py")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this test run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(autouse=True, scope="session")
def _own_data(shared: Path) -> None:
    os.environ["ASPC_DATA"] = str(shared / "data")


@pytest.fixture(scope="session")
def uninterrupted(shared: Path, _own_data: None) -> Path:
    """The suite `tiny`, run in this process without interruption: four groups of two runs."""
    out = shared / "uninterrupted"
    with FileLock(shared / "uninterrupted.lock"), pytest.MonkeyPatch.context() as patch:  # one worker runs it
        patch.setattr(plugins, "_loaded", None)  # results record the plugin of the process
        assert bench(["tiny", "--out", str(out), "--group-size", "2", "--quiet"]) == 0
    return out


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `aspc bench …` as a process, which is killed at the end of the test."""
    processes: list[subprocess.Popen[str]] = []

    def start_bench(*words: str | Path) -> subprocess.Popen[str]:
        plugin = () if "--plugin" in words else ("--plugin", str(PLUGIN))
        command = [sys.executable, "-m", "aspc", "bench", *map(str, words), *plugin]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return processes[-1]

    yield start_bench
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.communicate()
