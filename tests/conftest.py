"""Shared by all tests: a small dataset and small networks, so that what is tested is the code and not the machine."""

from __future__ import annotations

import os

import numpy as np
import pytest

from aspc.data import Dataset
from aspc.training.run import use_compilation_cache

TINY = {"actor_hidden_dim": 16, "critic_hidden_dim": 16, "batch_size": 16}


def make_dataset(rows: int = 600, obs: int = 4, act: int = 2, seed: int = 0, **changes: object) -> Dataset:
    """Episodes of 50 rows of a noisy linear system that pays for actions near a linear policy."""
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(rows, obs)).astype(np.float32)
    best = np.tanh(observations @ rng.normal(size=(obs, act)))
    actions = np.clip(best + 0.3 * rng.normal(size=(rows, act)), -1, 1)
    timeouts = np.zeros(rows, bool)
    timeouts[49::50] = True
    arrays = {
        "observations": observations,
        "actions": actions,
        "rewards": -np.square(actions - best).sum(1),
        "terminals": rng.random(rows) < 0.02,
        "timeouts": timeouts,
        "action_low": -np.ones(act),
        "action_high": np.ones(act),
        "name": "tiny",
    }
    return Dataset.from_arrays(**{**arrays, **changes})


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
