"""Small logs, and the folder of real files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np


def make_log(rows: int = 60, observation: int = 3, action: int = 2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    ends = np.arange(rows) % 10 == 9
    odd = (np.arange(rows) // 10) % 2 == 1
    return {
        "observations": rng.normal(size=(rows, observation)).astype(np.float32),
        "actions": rng.uniform(-0.9, 0.9, (rows, action)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminals": ends & odd,
        "timeouts": ends & ~odd,
    }


def shared_folder() -> Path | None:
    """Return the folder of real files outside of the repository, if it exists."""
    root = Path(__file__).resolve().parents[2]
    chosen = os.environ.get("ASPC_SHARED")
    folder = Path(chosen) if chosen else root.parent / "shared"
    return folder if (folder / "real").is_dir() else None
