"""A policy that needs only NumPy.

    import policy                        # this file; weights.npz is in the same folder
    policy.act(observation)              # [obs] or [batch, obs] → actions in the units of the logs
    policy.act(table)                    # columns by name, in any order, if the logs were a table
    policy.act(observation, rng=7)       # stochastic policies: a seed or a numpy.random.Generator
    policy.act(observation, on_invalid="hold")  # repeat the last action if a sensor reports NaN
    policy.reset()                       # call this at the start of an episode
    policy.choose(observation)           # discrete actions: the names of the chosen options
    policy.logits(observation)           # discrete actions: the logits
    policy.METADATA["observation_size"]  # origin, sizes and versions

`python policy.py 0.1 0.2 …` prints the action for one observation.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from aspc.history import History
from aspc.policy_choices import choice_names
from aspc.policy_guards import WHITENING, complete_guards, guards_from_json
from aspc.policy_inputs import LoggedRange, Stream, act_in_stream, check_rows
from aspc.policy_kinds import compute_logits, noise_draws, sample_noise
from aspc.policy_memory import memory_start, step


class LoadedPolicy:
    """The arrays and settings in weights.npz."""

    def __init__(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(file["header"].tobytes())
            self.arrays = {name[7:]: file[name] for name in file.files if name.startswith("arrays.")}
            self.observation_mean, self.observation_std = file["observation_mean"], file["observation_std"]
            self.action_low, self.action_high = file["action_low"], file["action_high"]
            whitening = file[WHITENING] if WHITENING in file.files else None
        self.kind: str = header["kind"]
        self.history = History(*header["history"])
        self.settings: dict[str, Any] = header["settings"]
        self.metadata: dict[str, Any] = header["metadata"]
        logged = (self.metadata.get(name) for name in ("observation_low", "observation_high"))
        self.observation_low, self.observation_high = (None if x is None else np.array(x, np.float32) for x in logged)
        guards = self.metadata.get("guards")
        self.guards = None if guards is None else complete_guards(guards_from_json(guards, whitening), self)

    def logged_range(self) -> LoggedRange:
        has_score = self.guards is not None and self.guards.ood is not None
        vectors = self.observation_low, self.observation_high, self.observation_mean, self.observation_std
        return LoggedRange.of(*vectors, has_score)


POLICY = LoadedPolicy(Path(__file__).with_name("weights.npz"))
METADATA = POLICY.metadata
MEMORY_START, LOGGED, STREAM = memory_start(POLICY), POLICY.logged_range(), Stream()


def act(observations: Any, rng: np.random.Generator | int | None = 0, on_invalid: str | None = None) -> np.ndarray:
    """Return actions in the units of the logs.

    Args:
        observations: One observation [obs] or a batch [batch, obs], as an array or keyed by the log's column names.
        rng: A generator or a seed, for policies that sample.
        on_invalid: The behavior for NaN, infinite, None or masked entries: "raise" a ValueError, "hold" the last action
            (per row of a batch), or return a "nan" action. Default: METADATA["on_invalid"].

    The first observation that is far outside the logged range causes a warning, unless a guard reacts to it. The module
    keeps state between calls, separately for each row of a batch; call `reset` when a new episode starts.
    """
    return act_in_stream(
        lambda rows, memory: step(POLICY, rows, memory, sample_noise(noise_draws(POLICY), len(rows), rng)),
        MEMORY_START,
        LOGGED,
        observations,
        METADATA.get("observation_names") or (),
        POLICY.observation_mean.shape[0],
        METADATA["on_invalid"] if on_invalid is None else on_invalid,
        STREAM,
    )


def reset() -> None:
    """Clear the state that `act` keeps. Call this at the start of an episode."""
    STREAM.reset()


def choose(observations: Any, on_invalid: str | None = None) -> Any:
    """Return the name of the chosen option, or a dictionary of names and numbers if the action has several dimensions.

    Raises:
        ValueError: All actions of the policy are continuous, or an observation has the wrong shape or is invalid.
    """
    return choice_names(METADATA, act(observations, on_invalid=on_invalid))


def logits(observations: Any) -> np.ndarray:
    """Return the logits. The option with the largest logit is chosen.

    For continuous action dimensions, return the values before tanh.

    Raises:
        ValueError: The policy has no logits, or an observation has the wrong shape or is invalid.
    """
    if POLICY.kind != "categorical":
        raise ValueError("This policy has no logits. Call act instead.")
    names, size = METADATA.get("observation_names") or (), POLICY.observation_mean.shape[0]
    rows = check_rows(observations, names, size)
    scores: np.ndarray = compute_logits(POLICY, np.atleast_2d(rows))
    return scores if rows.ndim == 2 else np.asarray(scores[0])


if __name__ == "__main__":
    print(*act([float(word) for word in sys.argv[1:]]).tolist())
