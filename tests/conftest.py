"""Fixtures of all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

# Tests check results, not speed: compile without optimization, and kernels with the old emitter, which creates no MLIR
# context per kernel. In a single LLVM module it gives the bits of the emitter that users have.
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0 "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)
# For programs that tests start (here NumPy is loaded already): matrices are small, and idle threads of OpenBLAS spin.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import jax
import pytest

from aspc import ui
from aspc.data import Dataset
from aspc.training.devices import use_compilation_cache
from tiny import make_dataset

MAX_MEMORY_MAPS = 20_000


def pytest_collection_finish() -> None:
    """Collect garbage less often: tracing creates many objects, and each full collection visits all modules."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture
def tiny() -> Dataset:
    return make_dataset()


@pytest.fixture(autouse=True, scope="session")
def default_signals() -> Iterator[None]:
    """Handle SIGINT and SIGTERM as in a terminal, here and in the programs that tests start.

    A background job of a shell script (`nohup make test &`, many CI systems) is started with SIGINT ignored.
    """
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in defaults.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="session")
def private_caches(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep tests away from the user's caches."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    # Shared by all workers and subprocesses, so that each program is compiled once.
    os.environ["ASPC_COMPILATION_CACHE"] = str(shared / "compiled")
    use_compilation_cache()


@pytest.fixture(autouse=True, scope="module")
def few_memory_maps() -> Iterator[None]:
    """Free compiled programs before their memory maps reach the system's limit (65,530), where XLA crashes."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MAX_MEMORY_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(autouse=True)
def no_notes_on_slow_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a read can be slow enough for a notice, and tests count the lines of an error."""
    monkeypatch.setattr(ui, "NOTICE_SECONDS", 3600.0)
