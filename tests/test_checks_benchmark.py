"""The benchmark of set-up, tests, checks and demo, on a repository whose commands take no time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[1] / "benchmarks" / "checks.py"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose `make test` needs a set-up and whose `make demo` must not find one."""
    folder = tmp_path / "repository"
    (folder / ".ci").mkdir(parents=True)
    (folder / "Makefile").write_text("setup:\n\ttouch ready\ntest:\n\ttest -e ready\ndemo:\n\ttest ! -e ready\n")
    (folder / ".ci" / "run").write_text("#!/bin/sh\nexit 3\n")
    (folder / ".ci" / "run").chmod(0o755)
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "-A"], [*author, "commit", "-q", "-m", "Add commands"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


def run(repository: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARK), "--repository", str(repository), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_each_command_runs_in_a_new_clone(repository: Path, tmp_path: Path) -> None:
    result = run(repository, "--only", "setup", "test", "demo", "--json", str(tmp_path / "checks.json"))
    assert result.returncode == 0, result.stderr
    found = json.loads((tmp_path / "checks.json").read_text())
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert [check["command"] for check in found["checks"]] == ["make setup", "make test", "make demo"]
    for check in found["checks"]:
        assert check["exit_code"] == 0
        assert check["cpu_seconds"] > 0
        assert 0 < check["seconds"] < check["goal_seconds"]
        assert check["others"] >= 0
    table = result.stdout.splitlines()[2:]
    assert len(table) == 5
    assert all(row.count("|") == 7 for row in table)


def test_a_failed_command_is_reported(repository: Path) -> None:
    result = run(repository, "--only", "ci")
    assert result.returncode == 1
    assert "| `.ci/run` (exit code 3) |" in result.stdout
