"""Shared by all tests."""

from __future__ import annotations

import os

# Tests ask what a program computes, benchmarks how fast: here less time goes into making machine code better.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=1"

import pytest

from aspc.data import Dataset
from aspc.training.run import use_compilation_cache
from tiny import make_dataset


@pytest.fixture
def tiny() -> Dataset:
    return make_dataset()


@pytest.fixture(autouse=True, scope="session")
def private_caches(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing of the user's own caches is read or written by tests."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    # One cache for all workers and for the programs that tests start: the same program is compiled once.
    os.environ["ASPC_COMPILATION_CACHE"] = str(shared / "compiled")
    use_compilation_cache()
