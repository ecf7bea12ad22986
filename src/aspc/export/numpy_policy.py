"""A policy that needs NumPy alone.

    import policy                        # this file; weights.npz lies beside it
    policy.act(observation)              # [obs] or [batch, obs] → actions in the units of the logs
    policy.act(table)                    # where the logs were a table: its columns by name, in any order
    policy.act(observation, rng=7)       # policies that sample: a seed or a numpy.random.Generator
    policy.METADATA["observation_size"]  # where it came from, its sizes and versions

`python policy.py 0.1 0.2 …` prints the action for one observation.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from aspc.policy_kinds import in_order, sample, whole_act, whole_noise


class Loaded:
    """The arrays and settings in weights.npz."""

    def __init__(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(file["header"].tobytes())
            self.arrays = {name[7:]: file[name] for name in file.files if name.startswith("arrays.")}
            self.observation_mean, self.observation_std = file["observation_mean"], file["observation_std"]
            self.action_low, self.action_high = file["action_low"], file["action_high"]
        self.kind: str = header["kind"]
        self.settings: dict[str, Any] = header["settings"]
        self.metadata: dict[str, Any] = header["metadata"]


POLICY = Loaded(Path(__file__).with_name("weights.npz"))
METADATA = POLICY.metadata


def act(observations: Any, rng: np.random.Generator | int | None = 0) -> np.ndarray:
    """Actions for one observation [obs] or a batch [batch, obs]: arrays, or by the names of the log's columns."""
    x = np.asarray(in_order(METADATA.get("observation_names") or (), observations), np.float32)
    if x.ndim not in (1, 2) or x.shape[-1] != len(POLICY.observation_mean):
        raise ValueError(f"observations have {len(POLICY.observation_mean)} numbers, but the shape here is {x.shape}")
    rows = x if x.ndim == 2 else x[None]
    actions = whole_act(POLICY, rows, sample(whole_noise(POLICY), len(rows), rng))
    return actions if x.ndim == 2 else actions[0]


if __name__ == "__main__":
    print(*act([float(word) for word in sys.argv[1:]]).tolist())
