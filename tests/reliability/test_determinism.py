"""Same seed, same machine, same versions: the same bits, from every algorithm.

That whole runs are repeated to the bit (`aspc train --from`, resumed, alone or among other seeds) is in
tests/training/test_run.py and test_fleet.py.
"""

from __future__ import annotations

import subprocess
import sys

import determinism_child
import pytest

from registries import number_names


def in_a_fresh_process(names: list[str]) -> dict[str, tuple[str, ...]]:
    command = [sys.executable, determinism_child.__file__, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=3600)
    return {name: tuple(hashes) for name, *hashes in map(str.split, done.stdout.splitlines())}


def check(names: list[str]) -> None:
    elsewhere = in_a_fresh_process(names)
    for name in names:
        first, again = determinism_child.digests(name, times=2)
        assert first == again == elsewhere[name], name
        assert first[0] != first[1], name  # else nothing depends on the seed


def test_behavior_cloning_gives_the_same_bits() -> None:
    check(["bc"])


@pytest.mark.slow
def test_every_algorithm_gives_the_same_bits() -> None:
    """Compiles each of them twice, which is what takes its minutes."""
    check(number_names())
