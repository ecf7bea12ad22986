"""A policy that needs only NumPy.

    import policy                        # this file; weights.npz is in the same folder
    policy.act(observation)              # [obs] or [batch, obs] → actions in the units of the logs
    policy.act(table)                    # columns by name, in any order, if the logs were a table
    policy.act(observation, rng=7)       # stochastic policies: a seed or a numpy.random.Generator
    policy.act(observation, on_invalid="hold")  # repeat the last action if a sensor reports NaN
    policy.choose(observation)           # choices: the names of the chosen options
    policy.logits(observation)           # choices: the scores of the options
    policy.METADATA["observation_size"]  # origin, sizes and versions

`python policy.py 0.1 0.2 …` prints the action for one observation.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from aspc.policy_choices import choice_names
from aspc.policy_kinds import act_on_valid, compute_actions, compute_logits, noise_draws, sample_noise


class LoadedPolicy:
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


POLICY = LoadedPolicy(Path(__file__).with_name("weights.npz"))
METADATA = POLICY.metadata
HELD: dict[str, np.ndarray] = {}


def act(observations: Any, rng: np.random.Generator | int | None = 0, on_invalid: str | None = None) -> np.ndarray:
    """Return actions in the units of the logs.

    Args:
        observations: One observation [obs] or a batch [batch, obs], as an array or keyed by the log's column names.
        rng: A generator or a seed, for policies that sample.
        on_invalid: The reaction to NaN, infinity, None or a masked entry: "raise" a ValueError, "hold" the last action
            (per row of a batch), or return a "nan" action. Default: METADATA["on_invalid"].
    """
    return act_on_valid(
        lambda rows: compute_actions(POLICY, rows, sample_noise(noise_draws(POLICY), len(rows), rng)),
        observations,
        METADATA.get("observation_names") or (),
        POLICY.observation_mean.shape[0],
        METADATA["on_invalid"] if on_invalid is None else on_invalid,
        HELD,
    )


def choose(observations: Any, on_invalid: str | None = None) -> Any:
    """Return the names of the chosen options: a name, or a dictionary for an action of several parts.

    Raises:
        ValueError: The policy has no choices, or an observation does not fit or is invalid.
    """
    return choice_names(METADATA, act(observations, on_invalid=on_invalid))


def logits(observations: Any) -> np.ndarray:
    """Return the scores of the options, the largest of which is chosen; those of numbers precede tanh.

    Raises:
        ValueError: The policy has no scores, or an observation does not fit or is invalid.
    """
    if POLICY.kind != "categorical":
        raise ValueError("This policy has no logits. Call act instead.")
    names, size = METADATA.get("observation_names") or (), POLICY.observation_mean.shape[0]
    return act_on_valid(lambda rows: compute_logits(POLICY, rows), observations, names, size, "raise", {})


if __name__ == "__main__":
    print(*act([float(word) for word in sys.argv[1:]]).tolist())
