"""What a run leaves behind: a policy that acts with NumPy alone.

A policy is a folder of two files, never a pickle:

    weights.safetensors   the arrays, and as metadata the header: format version, kind, sizes, normaliser,
                          action bounds, where it came from. One file, so that it is replaced whole or not at all
    policy.json           the header once more, for people

    policy = aspc.load_policy("runs/maze/policy/seed0")
    action = policy.act(observation)        # in the units of your logs, inside your action bounds
"""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from aspc.errors import AspcError
from aspc.io import write_atomically
from aspc.policy_kinds import KINDS, ON_INVALID, Draw, checked_act, sample, whole_act, whole_noise

FORMAT_VERSION = 1
HEADER, WEIGHTS = "policy.json", "weights.safetensors"


@dataclass(frozen=True, eq=False)
class Policy:
    """A trained policy: normaliser, network and action bounds. It acts with NumPy alone.

    `info` says where it came from: algorithm, dataset, step, seed, versions, and the names of the log's columns.
    `on_invalid` is what `act` does with an observation that is not made of numbers.
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
        """How many numbers an observation has."""
        return len(self.observation_mean)

    @property
    def action_size(self) -> int:
        """How many numbers an action has."""
        return len(self.action_low)

    def act(
        self, observations: Any, rng: np.random.Generator | int | None = 0, on_invalid: str | None = None
    ) -> np.ndarray:
        """Return actions in the units of the logs.

        Args:
            observations: One observation [obs] or a batch [batch, obs]. Where the log's columns had names, a table, one
                of its rows or a dictionary with these will do, in any order.
            rng: A generator or a seed, for policies that sample (diffusion, flow).
            on_invalid: What to do where an observation has NaN, infinity, None or a masked entry; by default what the
                policy says. "raise" an error; "hold" the last action, of the same row in a batch; or return a "nan"
                action. "hold" remembers one stream of observations: use a policy object of its own for each.

        Raises:
            AspcError: If an observation does not fit or is invalid, or if there is no action to hold yet.
        """
        return checked_act(
            lambda rows: whole_act(self, rows, sample(self.noise(), len(rows), rng)),
            observations,
            self.info.get("observation_names") or (),
            self.observation_mean.shape[0],
            self.on_invalid if on_invalid is None else on_invalid,
            self._held,
            AspcError,
        )

    def with_on_invalid(self, on_invalid: str) -> Policy:
        """Return a copy that treats invalid observations differently; see `act`. Saving it records the choice."""
        if on_invalid not in ON_INVALID:
            raise AspcError(f"on_invalid is one of {', '.join(ON_INVALID)}, not {on_invalid!r}.")
        return dataclasses.replace(self, on_invalid=on_invalid)

    def __repr__(self) -> str:
        sizes = f"{self.observation_size} observation and {self.action_size} action numbers"
        source = [f"{key} {self.info[key]}" for key in ("algo", "dataset", "step", "seed") if key in self.info]
        return f"Policy({', '.join([self.kind, sizes, *source])})"

    def noise(self) -> dict[str, Draw]:
        """The random numbers that acting takes, by name; none for a deterministic policy."""
        return whole_noise(self)

    # -- on disk -----------------------------------------------------------------------------------------------
    def header(self) -> dict[str, Any]:
        """All but the weights, as JSON has it: what policy.json holds."""
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
        """Write the policy. An older one at the same place is replaced in one atomic step."""
        from safetensors.numpy import save

        folder, header = Path(folder), self.header()
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: np.ascontiguousarray(a, np.float32) for name, a in self.arrays.items()}
        write_atomically(folder / WEIGHTS, save(weights, metadata={"aspc": json.dumps(header)}))
        write_atomically(folder / HEADER, (json.dumps(header, indent=1) + "\n").encode())
        return folder

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Read a policy's folder (or its weights' file). Nothing in it is executed, and nothing is read into memory
        before the sizes in its header were held against the file's."""
        path = Path(path) if Path(path).is_file() else Path(path) / WEIGHTS
        if not path.is_file():
            raise AspcError(f"There is no policy in {path.parent}: {WEIGHTS} is missing.")
        header, arrays = _read(path)
        try:
            with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused
                mean, std, low, high = (np.asarray(header[name], np.float32) for name in VECTORS)
            settings, info = dict(header["settings"]), dict(header["info"])
            on_invalid = header.get("on_invalid", "raise")  # policies of older versions do not state it
            policy = cls(header["kind"], arrays, settings, mean, std, low, high, info, on_invalid)
            sizes = [(header["observation_size"],)] * 2 + [(header["action_size"],)] * 2
            fits = [vector.shape for vector in (mean, std, low, high)] == sizes and policy._sound()
        except (KeyError, TypeError, ValueError, IndexError, ArithmeticError) as error:
            raise AspcError(f"{path} is damaged: its header is not whole.") from error
        if not fits:
            raise AspcError(f"{path} is damaged: its arrays do not fit together, or hold numbers that are not finite.")
        return policy

    def _sound(self) -> bool:
        """Whether the parts fit, so that a policy that cannot act is refused now and not when it is needed."""
        vectors = (self.observation_mean, self.observation_std, self.action_low, self.action_high)
        return (
            self.on_invalid in ON_INVALID
            and all(np.isfinite(array).all() for array in (*vectors, *self.arrays.values()))
            and bool((self.observation_std > 0).all() and (self.action_low < self.action_high).all())
            and KINDS[self.kind].check(self.arrays, self.settings, self.observation_size, self.action_size)
        )


VECTORS = ("observation_mean", "observation_std", "action_low", "action_high")


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a policy's file, after its format was found to be one that this version reads."""
    from safetensors import SafetensorError, safe_open

    damaged = AspcError(f"{path} is not a whole policy file of this library; it may be damaged.")
    try:
        # Opening compares every size that the file claims with its length.
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
    """Formats so far: 1. A change that older versions cannot read counts it up, and the older ones stay readable."""
    found, kind = header.get("format"), header.get("kind")
    if isinstance(found, int) and found > FORMAT_VERSION:
        raise AspcError(f"{path} was made by a newer aspc (its format is {found}, ours {FORMAT_VERSION}); update aspc.")
    if found != FORMAT_VERSION or not isinstance(kind, str) or kind not in KINDS:
        raise AspcError(
            f"{path} has format {found!r} and kind {kind!r}, which this version does not know; "
            "save the policy again with aspc train."
        )


def find_policy(path: str | Path, seed: int | None = None) -> Path:
    """The policy's own folder: in a run (`seed` picks among several, by default the first), or the path itself."""
    path = Path(path)
    if (path / WEIGHTS).exists():
        return path
    folders = (path / "policy").glob("seed*") if (path / "policy").is_dir() else []
    given = [f"seed{seed}" for seed in _seeds_of(path)]
    # As they were given; without that, seed 2 before seed 10.
    found = sorted(folders, key=lambda f: (given.index(f.name) if f.name in given else len(given), len(f.name), f.name))
    if not found and given:
        raise AspcError(
            f"{path} has not finished, so it has no policy yet: go on with aspc train --resume {path}, or take one of "
            f"its checkpoints, aspc fqe {path} --checkpoints --select FOLDER."
        )
    if not found:
        raise AspcError(f"There is no policy in {path}; give a run's folder or a policy's own folder.")
    if seed is None:
        return found[0]
    wanted = path / "policy" / f"seed{seed}"
    if wanted not in found:
        raise AspcError(f"{path} has no policy of seed {seed}; it has {', '.join(f.name[4:] for f in found)}.")
    return wanted


def _seeds_of(run: Path) -> list[Any]:
    """The seeds of a run in the order in which they were given, so far as its folder says."""
    try:
        seeds = json.loads((run / "config.json").read_text("utf-8"))["seeds"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return seeds if isinstance(seeds, list) else []


def load_policy(path: str | Path, seed: int | None = None) -> Policy:
    """The policy of a run (`seed` picks among several) or of a policy's own folder."""
    return Policy.load(find_policy(path, seed))


def without_nan(value: Any, instead: Callable[[float], Any] = lambda number: None) -> Any:
    """JSON has no NaN and no infinity: null, or what `instead` makes of the number, takes their place."""
    if isinstance(value, Mapping):
        return {key: without_nan(item, instead) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item, instead) for item in value]
    number = isinstance(value, float | np.floating)
    return instead(float(value)) if number and not math.isfinite(value) else value


def make_room(path: Path, *suffixes: str) -> None:
    """The folder that a file will be written into, made and tried now: before the work, not after it, one learns if it
    cannot. The name has to say what will be in the file, so that no log is written over by a mistake."""
    if path.suffix.lower() not in suffixes:
        raise AspcError(f"{path} cannot be written: give it a name that ends in {' or '.join(suffixes)}.")
    if path.is_dir():
        raise AspcError(f"{path} is a folder; choose another name for the file.")
    make_folder_for(path)


def make_folder_for(path: Path) -> None:
    """The folder of what will be written, made now, and a file made in it, which says whether that can be done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise AspcError(f"{path} cannot be written: {error.strerror}; choose another place.") from error
