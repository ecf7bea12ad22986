"""A trained policy, saved without pickle and evaluated with NumPy alone.

A policy is a folder of two files:

    weights.safetensors   the arrays, with a header as metadata: format version, kind, sizes, normalizer, action
                          bounds and origin. A single file can be replaced atomically
    policy.json           a readable copy of the header

    policy = aspc.load_policy("runs/maze/policy/seed0")
    action = policy.act(observation)        # in the units of your logs, inside your action bounds
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from aspc.action_space import ActionSpace
from aspc.errors import AspcError
from aspc.io import write_atomically
from aspc.policy_choices import choice_names
from aspc.policy_kinds import (
    KINDS,
    ON_INVALID,
    NoiseInput,
    act_on_valid,
    compute_actions,
    compute_logits,
    noise_draws,
    sample_noise,
)

FORMAT_VERSION = 1
HEADER, WEIGHTS = "policy.json", "weights.safetensors"
VECTORS = ("observation_mean", "observation_std", "action_low", "action_high")


@dataclass(frozen=True, eq=False)
class Policy:
    """A trained policy: normalizer, network and action bounds. It needs only NumPy to act.

    `info` holds its origin: algorithm, dataset, step, seed, versions, and the column names of the log. `on_invalid`
    decides how `act` treats an observation with NaN, infinite or missing entries.
    """

    kind: str
    arrays: dict[str, np.ndarray]
    settings: dict[str, Any]
    observation_mean: np.ndarray
    observation_std: np.ndarray
    action_low: np.ndarray
    action_high: np.ndarray
    info: dict[str, Any] = field(default_factory=dict)
    on_invalid: str = "raise"
    _held: dict[str, np.ndarray] = field(default_factory=dict, init=False, repr=False)

    @property
    def observation_size(self) -> int:
        """The dimension of an observation."""
        return len(self.observation_mean)

    @property
    def action_size(self) -> int:
        """The dimension of an action."""
        return len(self.action_low)

    def act(
        self, observations: Any, rng: np.random.Generator | int | None = 0, on_invalid: str | None = None
    ) -> np.ndarray:
        """Return actions in the units of the logs.

        Args:
            observations: One observation [obs] or a batch [batch, obs]. If the log's columns had names, also a table,
                a table row or a dictionary with these names, in any order.
            rng: A generator or a seed, for policies that sample (diffusion, flow).
            on_invalid: The reaction to NaN, infinity, None or a masked entry (default: the policy's `on_invalid`).
                "raise" an error, "hold" the last action (per row of a batch), or return a "nan" action. "hold"
                remembers one stream of observations; use a separate policy object for each stream.

        Raises:
            AspcError: An observation does not fit or is invalid, or there is no action to hold yet.
        """
        return act_on_valid(
            lambda rows: compute_actions(self, rows, sample_noise(self.noise(), len(rows), rng)),
            observations,
            self.info.get("observation_names") or (),
            self.observation_mean.shape[0],
            self.on_invalid if on_invalid is None else on_invalid,
            self._held,
            AspcError,
        )

    @property
    def action_space(self) -> ActionSpace | None:
        """The choices among the actions, with their names; None if all actions are numbers."""
        content = self.info.get("action_space")
        return None if content is None else ActionSpace.from_json(content)

    def choose(self, observations: Any, on_invalid: str | None = None) -> Any:
        """Return the names of the chosen options: a name, or a dictionary for an action of several parts.

        Args:
            observations: As for `act`. For a batch, the result is a list.
            on_invalid: As for `act`.

        Raises:
            AspcError: The policy has no choices, or an observation does not fit or is invalid.
        """
        if self.action_space is None:
            raise AspcError("This policy's actions are numbers without named options. Call act instead.")
        return choice_names(self.info, self.act(observations, on_invalid=on_invalid), AspcError)

    def logits(self, observations: Any) -> np.ndarray:
        """Return the scores of the options, the largest of which is chosen; those of numbers precede tanh.

        Raises:
            AspcError: The policy has no scores, or an observation does not fit or is invalid.
        """
        if KINDS[self.kind].logits is None:
            raise AspcError(f"A policy of the kind {self.kind} has no logits. Call act instead.")
        names, size = self.info.get("observation_names") or (), self.observation_size
        return act_on_valid(lambda rows: compute_logits(self, rows), observations, names, size, "raise", {}, AspcError)

    def with_on_invalid(self, on_invalid: str) -> Policy:
        """Return a copy that treats invalid observations differently; see `act`. Saving it records the choice."""
        if on_invalid not in ON_INVALID:
            raise AspcError(f"on_invalid must be one of {', '.join(ON_INVALID)}, not {on_invalid!r}.")
        return dataclasses.replace(self, on_invalid=on_invalid)

    def __repr__(self) -> str:
        sizes = f"{self.observation_size} observation and {self.action_size} action dimensions"
        origin = [f"{key} {self.info[key]}" for key in ("algo", "dataset", "step", "seed") if key in self.info]
        return f"Policy({', '.join([self.kind, sizes, *origin])})"

    def noise(self) -> dict[str, NoiseInput]:
        """Return the random inputs of the policy by name; empty for a deterministic policy."""
        return noise_draws(self)

    def header(self) -> dict[str, Any]:
        """Return everything but the weights, as JSON values: the content of policy.json."""
        return {
            "format": FORMAT_VERSION,
            "kind": self.kind,
            "observation_size": self.observation_size,
            "action_size": self.action_size,
            "observation_mean": self.observation_mean.tolist(),
            "observation_std": self.observation_std.tolist(),
            "action_low": self.action_low.tolist(),
            "action_high": self.action_high.tolist(),
            "settings": self.settings,
            "info": self.info,
            "on_invalid": self.on_invalid,
        }

    def save(self, folder: str | Path) -> Path:
        """Write the policy into a folder (created if missing), replacing any older policy there atomically."""
        from safetensors.numpy import save

        folder, header = Path(folder), self.header()
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: np.ascontiguousarray(a, np.float32) for name, a in self.arrays.items()}
        write_atomically(folder / WEIGHTS, save(weights, metadata={"aspc": json.dumps(header)}))
        write_atomically(folder / HEADER, (json.dumps(header, indent=1) + "\n").encode())
        return folder

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Load a policy from its folder or its weights file. No code in the file is executed.

        Raises:
            AspcError: The policy is missing or damaged. Sizes are checked before arrays are read.
        """
        path = Path(path) if Path(path).is_file() else Path(path) / WEIGHTS
        if not path.is_file():
            raise AspcError(f"There is no policy in {path.parent}: {WEIGHTS} is missing.")
        header, arrays = _read(path)
        try:
            with np.errstate(over="ignore"):  # too-large numbers become infinite and are rejected below
                mean, std, low, high = (_vector(header[name]) for name in VECTORS)
            settings, info = dict(header["settings"]), dict(header["info"])
            on_invalid = header.get("on_invalid", "raise")  # absent in policies of older versions
            policy = cls(header["kind"], arrays, settings, mean, std, low, high, info, on_invalid)
            sizes = [(header["observation_size"],)] * 2 + [(header["action_size"],)] * 2
            is_valid = [vector.shape for vector in (mean, std, low, high)] == sizes and policy._is_valid()
        except (KeyError, TypeError, ValueError, IndexError, ArithmeticError, AttributeError) as error:
            raise AspcError(f"{path} is damaged: its header is incomplete.") from error
        if not is_valid:
            raise AspcError(f"{path} is damaged: its arrays are inconsistent or not finite.")
        return policy

    def _is_valid(self) -> bool:
        """Return whether all parts are consistent, so that an unusable policy is rejected when it is loaded."""
        vectors = (self.observation_mean, self.observation_std, self.action_low, self.action_high)
        return (
            self.on_invalid in ON_INVALID
            and all(np.isfinite(array).all() for array in (*vectors, *self.arrays.values()))
            and bool((self.observation_std > 0).all() and (self.action_low < self.action_high).all())
            and KINDS[self.kind].is_valid(self.arrays, self.settings, self.observation_size, self.action_size)
        )


def _vector(values: ArrayLike) -> np.ndarray:
    return np.asarray(values, np.float32)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read the header and arrays of a weights file, after checking its format version."""
    from safetensors import SafetensorError, safe_open

    damaged = AspcError(f"{path} is not a valid policy file. It may be damaged.")
    try:
        # Opening checks all declared sizes against the file's length.
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {})["aspc"])
            if not isinstance(header, dict):
                raise damaged
            _check_format(path, header)
            names = list(file.keys())
            if any(file.get_slice(name).get_dtype() != "F32" for name in names):
                raise damaged
            return header, {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, KeyError, ValueError, RecursionError) as error:
        raise damaged from error


def _check_format(path: Path, header: dict[str, Any]) -> None:
    """Check the format version. The only version so far is 1; incompatible changes increment it."""
    found, kind = header.get("format"), header.get("kind")
    if isinstance(found, int) and found > FORMAT_VERSION:
        raise AspcError(
            f"{path} was written by a newer aspc (format {found}, this version reads {FORMAT_VERSION}). Update aspc."
        )
    if found != FORMAT_VERSION or not isinstance(kind, str) or kind not in KINDS:
        raise AspcError(
            f"{path} has format {found!r} and kind {kind!r}, which this version does not know. "
            "Save the policy again with aspc train."
        )


def find_policy(path: str | Path, seed: int | None = None) -> Path:
    """Return the folder of a policy.

    Args:
        path: A run's folder or a policy's own folder.
        seed: The seed to choose in a run; by default the first.

    Raises:
        AspcError: There is no such policy.
    """
    path = Path(path)
    if (path / WEIGHTS).exists():
        return path
    folders = (path / "policy").glob("seed*") if (path / "policy").is_dir() else []
    order = [f"seed{seed}" for seed in _recorded_seeds(path)]
    # In the order of the config; without a config, in numerical order (seed 2 before seed 10).
    found = sorted(folders, key=lambda f: (order.index(f.name) if f.name in order else len(order), len(f.name), f.name))
    if not found and order:
        raise AspcError(
            f"{path} has not finished, so it has no policy yet. Continue it with aspc train --resume {path}, or choose "
            f"one of its checkpoints with aspc fqe {path} --checkpoints --select FOLDER."
        )
    if not found:
        raise AspcError(f"There is no policy in {path}. Pass a run's folder or a policy's own folder.")
    if seed is None:
        return found[0]
    wanted = path / "policy" / f"seed{seed}"
    if wanted not in found:
        raise AspcError(f"{path} has no policy of seed {seed}. Choose from {', '.join(f.name[4:] for f in found)}.")
    return wanted


def _recorded_seeds(run: Path) -> list[Any]:
    """Return the seeds in a run's config, or an empty list if it cannot be read."""
    try:
        seeds = json.loads((run / "config.json").read_text("utf-8"))["seeds"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return seeds if isinstance(seeds, list) else []


def load_policy(path: str | Path, seed: int | None = None) -> Policy:
    """Load a policy from a run (`seed` chooses among several) or from a policy's own folder."""
    return Policy.load(find_policy(path, seed))
