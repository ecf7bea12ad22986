"""What a run leaves behind: a policy that acts with NumPy alone.

A policy is a folder of two files, never a pickle:

    weights.safetensors   the arrays, and as metadata the header: format version, kind, sizes, normaliser,
                          action bounds, where it came from. One file, so that it is replaced whole or not at all
    policy.json           the header once more, for people

    policy = aspc.load_policy("runs/maze/policy/seed0")
    action = policy.act(observation)        # in the units of your logs, inside your action bounds
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from aspc.errors import AspcError
from aspc.policy_kinds import KINDS

FORMAT_VERSION = 1
HEADER, WEIGHTS = "policy.json", "weights.safetensors"


@dataclass(frozen=True, eq=False)
class Policy:
    """A trained policy: normaliser, network and action bounds."""

    kind: str
    arrays: dict[str, np.ndarray]
    settings: dict[str, Any]
    observation_mean: np.ndarray
    observation_std: np.ndarray
    action_low: np.ndarray
    action_high: np.ndarray
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def observation_size(self) -> int:
        return len(self.observation_mean)

    @property
    def action_size(self) -> int:
        return len(self.action_low)

    def act(self, observations: np.ndarray, rng: np.random.Generator | int | None = 0) -> np.ndarray:
        """Actions for one observation [obs] or a batch [batch, obs], in the units of the logs.

        `rng` matters only for policies that sample (diffusion, flow); an integer is a seed.
        """
        x = np.asarray(observations, np.float32)
        if x.shape[-1:] != self.observation_mean.shape or x.ndim > 2:
            raise AspcError(
                f"This policy takes observations of {self.observation_size} numbers, [{self.observation_size}] or "
                f"[batch, {self.observation_size}], but got an array of shape {x.shape}."
            )
        rows = (x if x.ndim == 2 else x[None]) - self.observation_mean
        rows /= self.observation_std
        unit = KINDS[self.kind](self.arrays, self.settings, rows, _generator(rng))
        actions = self.action_low + (unit + 1) * (0.5 * (self.action_high - self.action_low))
        # The map from ±1 can leave the bounds by a rounding error; the user's actuator should not see that.
        actions = np.minimum(np.maximum(actions, self.action_low), self.action_high).astype(np.float32)
        return actions if x.ndim == 2 else actions[0]

    # -- on disk -----------------------------------------------------------------------------------------------
    def header(self) -> dict[str, Any]:
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
        }

    def save(self, folder: str | Path) -> Path:
        """Write the policy. An older one at the same place is replaced in one atomic step."""
        from safetensors.numpy import save

        folder, header = Path(folder), self.header()
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: np.ascontiguousarray(a, np.float32) for name, a in self.arrays.items()}
        write_atomically(folder / WEIGHTS, save(weights, metadata={"aspc": json.dumps(header)}))
        write_atomically(folder / HEADER, (json.dumps(header, indent=1) + "\n").encode())
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Policy:
        """Read a policy's folder. Nothing in it is executed."""
        from safetensors import SafetensorError, safe_open

        path = Path(folder) / WEIGHTS
        if not path.is_file():
            raise AspcError(f"There is no policy in {folder}: {WEIGHTS} is missing.")
        try:
            with safe_open(path, framework="numpy") as file:
                header = json.loads((file.metadata() or {})["aspc"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except (SafetensorError, OSError, KeyError, ValueError, RecursionError) as error:
            raise AspcError(f"{path} is not a whole policy file of this library; it may be damaged.") from error
        if not isinstance(header, dict) or header.get("format") != FORMAT_VERSION:
            found = header.get("format") if isinstance(header, dict) else None
            raise AspcError(
                f"{path} has format {found!r} and this version reads format {FORMAT_VERSION}; "
                "load it with the aspc version that its header names, or save it again."
            )
        vectors = ("observation_mean", "observation_std", "action_low", "action_high")
        try:
            mean, std, low, high = (np.asarray(header[name], np.float32) for name in vectors)
            policy = cls(header["kind"], arrays, dict(header["settings"]), mean, std, low, high, dict(header["info"]))
        except (KeyError, TypeError, ValueError) as error:
            raise AspcError(f"{path} is damaged: its header is not whole.") from error
        policy._check(path)
        return policy

    def _check(self, path: Path) -> None:
        """Act once, so that a policy whose parts do not fit is refused now and not when it is needed."""
        if self.kind not in KINDS:
            raise AspcError(f"{path} is a policy of kind {self.kind!r}, which this version does not know.")
        try:
            with np.errstate(all="ignore"):
                action = self.act(np.zeros(self.observation_size, np.float32))
            sound = action.shape == self.action_low.shape == self.action_high.shape and self.observation_mean.ndim == 1
        except (KeyError, ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError, MemoryError):
            sound = False
        if not sound:
            raise AspcError(f"{path} is damaged: its arrays do not fit together.")


def load_policy(path: str | Path, seed: int | None = None) -> Policy:
    """The policy of a run (`seed` picks among several) or of a policy's own folder."""
    path = Path(path)
    if (path / WEIGHTS).exists():
        return Policy.load(path)
    found = sorted((path / "policy").glob("seed*")) if (path / "policy").is_dir() else []
    if not found:
        raise AspcError(f"There is no policy in {path}; give a run's folder or a policy's own folder.")
    if seed is None:
        return Policy.load(found[0])
    wanted = path / "policy" / f"seed{seed}"
    if wanted not in found:
        raise AspcError(f"{path} has no policy of seed {seed}; it has {', '.join(f.name[4:] for f in found)}.")
    return Policy.load(wanted)


def write_atomically(path: Path, content: bytes) -> None:
    """The file appears whole or not at all: written under another name, flushed to disk, then renamed."""
    with tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent, delete=False) as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _generator(rng: np.random.Generator | int | None) -> np.random.Generator:
    return rng if isinstance(rng, np.random.Generator) else np.random.default_rng(rng)
