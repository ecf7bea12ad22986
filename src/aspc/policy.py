"""A trained policy, saved without pickle and evaluated with NumPy alone.

A policy is a folder of two files:

    weights.safetensors   the arrays, with a header as metadata: format version, kind, sizes, normalizer, action
                          bounds and origin. One file holds both, so that they are replaced atomically
    policy.json           a readable copy of the header

    policy = aspc.load_policy("runs/maze/policy/seed0")
    action = policy.act(observation)        # in the units of your logs, within your action bounds
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from aspc.action_space import ActionSpace
from aspc.errors import AspcError
from aspc.history import NEWEST_ONLY, History
from aspc.io import write_atomically
from aspc.policy_choices import choice_names
from aspc.policy_file import FORMAT_VERSION, UNGUARDED_FORMAT, read_policy_file
from aspc.policy_guards import WHITENING, Guards, complete_guards, describe_guards, guards_from_json, guards_to_json
from aspc.policy_inputs import ON_INVALID, LoggedRange, Stream, act_in_stream, check_rows
from aspc.policy_kinds import KINDS, NoiseInput, compute_logits, noise_draws, sample_noise
from aspc.policy_memory import initial_memory, memory_start, step

HEADER, WEIGHTS = "policy.json", "weights.safetensors"
OPTIONAL_VECTORS = ("observation_low", "observation_high")  # absent in policies of older versions
VECTORS = ("observation_mean", "observation_std", "action_low", "action_high")


@dataclass(frozen=True, eq=False)
class Policy:
    """A trained policy: normalizer, network and action bounds. It needs only NumPy to act.

    `info` holds its origin: algorithm, dataset, step, seed, versions, and the column names of the log. `on_invalid`
    sets how `act` treats an observation with NaN, infinite or missing entries. `guards` limit its actions. A policy
    with a rate limit or a `history` has a memory, because its actions depend on earlier steps. `act` updates the
    memory; call `reset` to clear it at the start of an episode.
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
    history: History = NEWEST_ONLY
    guards: Guards | None = None
    observation_low: np.ndarray | None = None
    """Lowest logged observation, [obs]; None if it was not recorded."""
    observation_high: np.ndarray | None = None
    """Highest logged observation."""
    _stream: Stream = field(default_factory=Stream, init=False, repr=False)

    @property
    def observation_size(self) -> int:
        """The dimension of an observation."""
        return len(self.observation_mean)

    @property
    def action_size(self) -> int:
        """The dimension of an action."""
        return len(self.action_low)

    @property
    def action_names(self) -> tuple[str, ...]:
        """The names of the log's action columns; empty if the log had none."""
        names: Any = self.info.get("action_names")  # may have any type if it comes from a file
        is_valid = (
            isinstance(names, list) and len(names) == self.action_size and all(isinstance(name, str) for name in names)
        )
        return tuple(names) if is_valid else ()

    @cached_property
    def _memory_start(self) -> np.ndarray:
        return memory_start(self)

    @cached_property
    def _logged_range(self) -> LoggedRange:
        has_score = self.guards is not None and self.guards.ood is not None
        vectors = self.observation_low, self.observation_high, self.observation_mean, self.observation_std
        return LoggedRange.of(*vectors, has_score)

    @property
    def input_size(self) -> int:
        """The size of the network's input: an observation and its history."""
        return self.history.size(self.observation_size, self.action_size)

    @property
    def memory_size(self) -> int:
        """The size of the memory; 0 for a policy whose action depends only on the observation."""
        return len(self._memory_start)

    def act(
        self, observations: Any, rng: np.random.Generator | int | None = 0, on_invalid: str | None = None
    ) -> np.ndarray:
        """Return actions in the units of the logs.

        The first observation that is far outside the logged range causes a warning, unless a guard reacts to it.

        Args:
            observations: One observation [obs] or a batch [batch, obs]. If the log's columns had names, also a table,
                a table row or a dictionary with these names, in any order.
            rng: A generator or a seed, for policies that sample (diffusion, flow).
            on_invalid: The behavior for NaN, infinite, None or masked entries (default: the policy's `on_invalid`):
                "raise" an error, "hold" the last action (per row of a batch), or return a "nan" action.

        With "hold" or a memory, the policy keeps state between calls, separately for each row of a batch. Use a
        separate policy object for each stream of observations, and call `reset` when a new episode starts.

        Raises:
            AspcError: An observation has the wrong shape or is invalid, there is no action to hold yet, or the batch
                size changes while the policy keeps state.
        """
        return act_in_stream(
            lambda rows, memory: step(self, rows, memory, sample_noise(self.noise(), len(rows), rng)),
            self._memory_start,
            self._logged_range,
            observations,
            self.info.get("observation_names") or (),
            self.observation_mean.shape[0],
            self.on_invalid if on_invalid is None else on_invalid,
            self._stream,
            AspcError,
        )

    def reset(self) -> None:
        """Clear the state that `act` keeps. Call this at the start of an episode."""
        self._stream.reset()

    def initial_memory(self, batch: int) -> np.ndarray:
        """Return the memory [batch, memory_size] to pass to the first `step` of an episode."""
        return initial_memory(self, batch)

    def step(
        self, observations: np.ndarray, memory: np.ndarray, rng: np.random.Generator | int | None = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return actions [batch, act] and the next memory: `act` as a pure function, which leaves the policy unchanged.

        Args:
            observations: A batch of finite float32 observations [batch, obs].
            memory: The memory of each row [batch, memory_size]; initially `initial_memory(batch)`.
            rng: A generator or a seed, for policies that sample.
        """
        actions, memory = step(self, observations, memory, sample_noise(self.noise(), len(observations), rng))
        return np.asarray(actions), memory

    def check_actions(self, actions: np.ndarray) -> None:
        """Check that no guard returned NaN, which an evaluation cannot use.

        Raises:
            AspcError: An action contains NaN.
        """
        if self.guards is not None and np.isnan(actions).any():
            count = int(np.isnan(actions).any(axis=-1).sum())
            raise AspcError(
                f"The policy's guards return NaN for {count:,} of {len(actions):,} observations, which are out of "
                "distribution, but an evaluation needs an action for each. Export the policy with --ood fallback, or "
                "with --ood hold and --start-action."
            )

    def with_guards(self, guards: Guards | None) -> Policy:
        """Return a copy whose actions obey the guards; None removes all guards. `save` records the guards.

        Raises:
            AspcError: A guard is invalid for this policy.
        """
        try:
            checked = None if guards is None else complete_guards(guards, self)
        except ValueError as error:
            raise AspcError(f"Invalid guards: {error}") from error
        return dataclasses.replace(self, guards=checked)

    @property
    def action_space(self) -> ActionSpace | None:
        """The action space with its discrete factors; None if all actions are continuous."""
        content = self.info.get("action_space")
        return None if content is None else ActionSpace.from_json(content)

    def choose(self, observations: Any, on_invalid: str | None = None) -> Any:
        """Return the name of the chosen option, or a dictionary of names and numbers if the action has several factors.

        Args:
            observations: As for `act`. For a batch, the result is a list.
            on_invalid: As for `act`.

        Raises:
            AspcError: All actions of the policy are continuous, or an observation has the wrong shape or is invalid.
        """
        if self.action_space is None:
            raise AspcError("All actions of this policy are continuous. Call act instead.")
        return choice_names(self.info, self.act(observations, on_invalid=on_invalid), AspcError)

    def logits(self, observations: Any) -> np.ndarray:
        """Return the logits. The option with the largest logit is chosen.

        For continuous factors, return the values before tanh.

        Raises:
            AspcError: The policy has no logits, or an observation has the wrong shape or is invalid.
        """
        if KINDS[self.kind].logits is None:
            raise AspcError(f"Policies of kind {self.kind!r} have no logits. Call act instead.")
        names, size = self.info.get("observation_names") or (), self.observation_size
        rows = check_rows(observations, names, size, AspcError)
        scores: np.ndarray = compute_logits(self, np.atleast_2d(rows))
        return scores if rows.ndim == 2 else np.asarray(scores[0])

    def with_on_invalid(self, on_invalid: str) -> Policy:
        """Return a copy with a different default for `on_invalid` (see `act`), which `save` records."""
        if on_invalid not in ON_INVALID:
            raise AspcError(f"on_invalid must be 'raise', 'hold' or 'nan', not {on_invalid!r}.")
        return dataclasses.replace(self, on_invalid=on_invalid)

    def __repr__(self) -> str:
        sizes = f"{self.observation_size} observation and {self.action_size} action dimensions"
        origin = [f"{key} {self.info[key]}" for key in ("algo", "dataset", "step", "seed") if key in self.info]
        guards = (
            [] if self.guards is None else ["guards: " + "; ".join(describe_guards(self.guards, self.action_names))]
        )
        history = [] if self.history == NEWEST_ONLY else [f"a history of {self.history.describe()}"]
        return f"Policy({', '.join([self.kind, sizes, *history, *origin, *guards])})"

    def noise(self) -> dict[str, NoiseInput]:
        """Return the random inputs of the policy by name; empty for a deterministic policy."""
        return noise_draws(self)

    def header(self) -> dict[str, Any]:
        """Return everything except the arrays as JSON values: the content of policy.json."""
        added: dict[str, Any] = {} if self.guards is None else {"guards": guards_to_json(self.guards)}
        if self.history != NEWEST_ONLY:
            added["history"] = self.history._asdict()
        logged = {name: getattr(self, name) for name in OPTIONAL_VECTORS}
        logged = {name: array.tolist() for name, array in logged.items() if array is not None}
        return {
            "format": FORMAT_VERSION if added else UNGUARDED_FORMAT,
            "kind": self.kind,
            "observation_size": self.observation_size,
            "action_size": self.action_size,
            "observation_mean": self.observation_mean.tolist(),
            "observation_std": self.observation_std.tolist(),
            "action_low": self.action_low.tolist(),
            "action_high": self.action_high.tolist(),
            **logged,
            "settings": self.settings,
            "info": self.info,
            "on_invalid": self.on_invalid,
            **added,
        }

    def save(self, folder: str | Path) -> Path:
        """Write the policy into a folder (created if missing), replacing any older policy there atomically."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files().items():
            write_atomically(folder / name, content)
        return folder

    def files(self) -> dict[str, bytes]:
        """Return the contents of a policy's files by name."""
        from safetensors.numpy import save

        header = self.header()
        arrays = self.arrays if self.guards is None else {**self.arrays, **guard_arrays(self.guards)}
        weights = {name: np.ascontiguousarray(a, np.float32) for name, a in arrays.items()}
        return {
            WEIGHTS: save(weights, metadata={"aspc": json.dumps(header)}),
            HEADER: (json.dumps(header, indent=1) + "\n").encode(),
        }

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Load a policy from its folder or its weights file. No code in the file is executed.

        Raises:
            AspcError: The policy is missing or damaged. Sizes are checked before arrays are read.
        """
        path = Path(path) if Path(path).is_file() else Path(path) / WEIGHTS
        if not path.is_file():
            raise AspcError(f"There is no policy in {path.parent}: {WEIGHTS} is missing.")
        header, arrays = read_policy_file(path)
        try:
            with np.errstate(over="ignore"):  # too-large numbers become infinite and are rejected below
                mean, std, low, high = (_vector(header[name]) for name in VECTORS)
            settings, info = dict(header["settings"]), dict(header["info"])
            on_invalid = header.get("on_invalid", "raise")  # absent in policies of older versions
            history = History(**header.get("history", {}))
            logged = {name: _vector(header[name]) for name in OPTIONAL_VECTORS if header.get(name) is not None}
            whitening = arrays.pop(WHITENING, None)
            kind = header["kind"]
            policy = cls(kind, arrays, settings, mean, std, low, high, info, on_invalid, history, None, **logged)
            sizes = [(header["observation_size"],)] * 2 + [(header["action_size"],)] * 2
            is_valid = [vector.shape for vector in (mean, std, low, high)] == sizes and policy._is_valid()
            if is_valid and header.get("guards") is not None:
                guards = guards_from_json(header["guards"], whitening)
                policy = dataclasses.replace(policy, guards=complete_guards(guards, policy))
        except (KeyError, TypeError, ValueError, IndexError, ArithmeticError, AttributeError) as error:
            raise AspcError(f"{path} is damaged: its header is incomplete.") from error
        if not is_valid:
            raise AspcError(f"{path} is damaged: its arrays are inconsistent or not finite.")
        _ = policy._memory_start, policy._logged_range  # cached, so that the first action is as fast as the others
        return policy

    def _is_valid(self) -> bool:
        """Return whether arrays, sizes and settings are consistent, so that `load` can reject an unusable policy."""
        vectors = (self.observation_mean, self.observation_std, self.action_low, self.action_high)
        return (
            self.on_invalid in ON_INVALID
            and self.history.is_valid()
            and all(np.isfinite(array).all() for array in (*vectors, *self.arrays.values()))
            and bool((self.observation_std > 0).all() and (self.action_low < self.action_high).all())
            and self._has_valid_range()
            and KINDS[self.kind].is_valid(self.arrays, self.settings, self.input_size, self.action_size)
        )

    def _has_valid_range(self) -> bool:
        low, high = self.observation_low, self.observation_high
        if low is None or high is None:
            return low is high
        is_finite = np.isfinite(low).all() and np.isfinite(high).all()
        return bool(low.shape == high.shape == self.observation_mean.shape and is_finite and (low <= high).all())


def guard_arrays(guards: Guards) -> dict[str, np.ndarray]:
    """Return the arrays of guards that are stored with the weights instead of in the header."""
    return {} if guards.ood is None else {WHITENING: guards.ood.whitening}


def _vector(values: ArrayLike) -> np.ndarray:
    return np.asarray(values, np.float32)


def find_policy(path: str | Path, seed: int | None = None) -> Path:
    """Return the folder of a policy.

    Args:
        path: A run's folder or a policy's own folder.
        seed: The seed of the policy in a run. Default: the run's first seed.

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
        raise AspcError(f"{path} has no policy for seed {seed}. Choose from {', '.join(f.name[4:] for f in found)}.")
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
