"""config.json: older versions are readable, damaged and newer files give one sentence."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from aspc.errors import AspcError
from aspc.training.run_config import RunConfig, from_json, to_json

DATASET = {
    "name": "tiny",
    "source": None,
    "options": {},
    "fingerprint": "0123456789abcdef",
    "transitions": 600,
    "observation_size": 4,
    "action_size": 2,
    "behaviour_return": -1.5,
    "behaviour_score": None,
}
OLD: dict[str, Any] = {  # as written before reference scores, checkpoints_to_keep and aspc_aw existed
    "format": 1,
    "algo": "aspc",
    "bc": "advantage_weighted",
    "preset": None,
    "scale_name": "alpha",
    "hyperparameters": {"base": {"alpha": 2.5}, "scale_target": "nan"},
    "dataset": DATASET,
    "env": None,
    "steps": 120,
    "seeds": [0, 1],
    "eval_every": 40,
    "matmul_precision": "default",
    "started": "2026-01-01T00:00:00+00:00",
    "device": "cpu: cpu",
    "versions": {"aspc": "0.1", "mujoco": None},
}


def read(content: Any) -> RunConfig:
    return from_json(Path("config.json"), content, RunConfig)


def test_config_of_an_older_version_is_read_and_written() -> None:
    config = read(OLD)
    assert config.algo == "aspc_aw"
    assert (config.options.steps, config.options.seeds, config.options.checkpoints_to_keep) == (120, (0, 1), 2)
    assert (config.dataset.observation_size, config.dataset.ref_env) == (4, None)
    assert config.software.versions == {"aspc": "0.1", "mujoco": None}
    assert config.finetuned_from is None
    written = to_json(config)
    assert OLD.keys() - {"bc"} <= written.keys()
    assert written.keys().isdisjoint({"options", "software", "finetuned_from", "online"})
    assert read(written) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, r"written by a newer version of aspc \(format 2\)"),
        ({"algo": 3}, "damaged: algo is missing or invalid"),
        ({"steps": 0}, "damaged: --steps must be at least 1"),
        ({"seeds": "0"}, "damaged: seeds is missing or invalid"),
        ({"seeds": [-1]}, "damaged: --seeds must be distinct integers"),
        ({"hyperparameters": []}, "damaged: hyperparameters is missing or invalid"),
        ({"versions": [1]}, "damaged: versions is missing or invalid"),
        ({"dataset": {**DATASET, "fingerprint": None}}, "damaged: fingerprint is missing or invalid"),
    ],
)
def test_damaged_config(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AspcError, match=message):
        read({**deepcopy(OLD), **changes})


def test_config_that_is_not_an_object() -> None:
    with pytest.raises(AspcError, match="damaged: it is not a JSON object"):
        read([OLD])
