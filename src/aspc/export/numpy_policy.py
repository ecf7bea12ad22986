"""A policy that needs NumPy alone.

    import policy                        # this file; weights.npz lies beside it
    policy.act(observation)              # [obs] or [batch, obs] → actions in the units of the logs
    policy.act(table)                    # where the logs were a table: its columns by name, in any order
    policy.act(observation, rng=7)       # policies that sample: a seed or a numpy.random.Generator
    policy.act(observation, on_invalid="hold")  # where a sensor says NaN: the last action instead of an error
    policy.METADATA["observation_size"]  # where it came from, its sizes and versions

`python policy.py 0.1 0.2 …` prints the action for one observation.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from aspc.policy_kinds import checked_act, sample, whole_act, whole_noise


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


HELD: dict[str, np.ndarray] = {}


def act(observations: Any, rng: np.random.Generator | int | None = 0, on_invalid: str | None = None) -> np.ndarray:
    """Return actions for one observation [obs] or a batch [batch, obs]: arrays, or by the names of the log's columns.

    `on_invalid` is what an observation with NaN, infinity, None or a masked entry gives: "raise" a ValueError, "hold"
    the last action (of the same row in a batch), or a "nan" action; by default METADATA["on_invalid"].
    """
    return checked_act(
        lambda rows: whole_act(POLICY, rows, sample(whole_noise(POLICY), len(rows), rng)),
        observations,
        METADATA.get("observation_names") or (),
        POLICY.observation_mean.shape[0],
        METADATA["on_invalid"] if on_invalid is None else on_invalid,
        HELD,
    )


if __name__ == "__main__":
    print(*act([float(word) for word in sys.argv[1:]]).tolist())
