"""Settings of runs that take a second, and logs to train on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tiny import make_dataset

SMALL = {"actor_hidden_dim": 8, "batch_size": 8, "log_every": 40, "checkpoint_every": 40, "quiet": True}
SHORT = {**SMALL, "steps": 80, "tensorboard": False}


def write_logs(path: Path) -> Path:
    data = make_dataset()
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    np.savez(path, **{name: getattr(data, name) for name in names})
    return path
