"""The configuration of a run or a fleet: typed, versioned, and stored as config.json.

The file is one flat JSON object: the fields of `options` and `software` are stored next to all other fields.
"""

from __future__ import annotations

import hashlib
import platform
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import msgspec
import numpy as np

from aspc import plugins
from aspc.algorithms.registry import join_bc_term
from aspc.data.readers.formats import CSV_SUFFIXES, EXCEL_SUFFIXES, TABLE_SUFFIXES
from aspc.errors import AspcError
from aspc.history import History
from aspc.text import join_choices
from aspc.training.loggers import LoggerName

TABLES = (*TABLE_SUFFIXES, *CSV_SUFFIXES, *EXCEL_SUFFIXES)
FORMAT = 1
ENV_FUNCTION = "a Python function"  # recorded for an environment without a name
MatmulPrecision = Literal["default", "high", "highest"]
COUNTS = ("steps", "eval_every", "eval_episodes", "log_every", "n_step", "history", "checkpoints_to_keep")
LARGEST_SEED = 2**31 - 1


@dataclass(frozen=True)
class TrainOptions:
    """Training options that are independent of the algorithm."""

    steps: int = 1_000_000
    """Training steps (critic updates)."""
    seeds: tuple[int, ...] = (0,)
    """Seeds to train together, one run per seed."""
    eval_every: int = 5_000
    """Steps between evaluations in the environment."""
    eval_episodes: int = 10
    """Episodes per evaluation."""
    final_episodes: int | None = None
    """Episodes in the last evaluation. Default: eval_episodes."""
    log_every: int = 1_000
    """Steps over which logged metrics are averaged. If this does not divide eval_every, eval_every is used instead."""
    checkpoint_every: int = 0
    """Steps between checkpoints; 0 saves about one per minute."""
    checkpoints_to_keep: int = 2
    """Number of most recent checkpoints to keep; `aspc fqe RUN --checkpoints` ranks them."""
    holdout: float = 0.0
    """Fraction of the episodes to hold out. Losses on the held-out episodes are logged as valid_*."""
    n_step: int = 1
    """Number of steps n in the critic's n-step returns."""
    history: int = 1
    """Number of most recent observations given to the policy and the critics; use more than 1 if the state is only
    partially observed (docs/history.md)."""
    history_actions: bool = False
    """With --history, also give the policy and the critics the actions between the observations."""
    horizon: int | None = None
    """Steps over which schedules decay, such as the scale's learning rate. Default: steps."""
    memory_budget_mb: int = 1024
    """Memory budget in MiB for the rows of a dataset that is streamed from disk."""
    matmul_precision: MatmulPrecision = "default"
    """Precision of matrix products: JAX's default for the device (TF32 on recent GPUs), or "highest" for float32."""
    monitor_every: int = 0
    """Steps between evaluations of the paper's theoretical bounds, which are logged as theory_* (docs/theory.md).
    0 disables them."""
    tensorboard: bool = True
    """Also write metrics as TensorBoard events."""
    logger: LoggerName = "none"
    """Also log metrics to Weights & Biases or MLflow, which are configured by their environment variables."""

    def __post_init__(self) -> None:
        for name in (*COUNTS, "checkpoint_every", "memory_budget_mb", "monitor_every", "final_episodes", "horizon"):
            object.__setattr__(self, name, _to_int(name, getattr(self, name)))
        seeds = self.seeds if isinstance(self.seeds, Iterable) else (self.seeds,)
        object.__setattr__(self, "seeds", tuple(_to_int("seeds", seed) for seed in seeds))
        for name in COUNTS:
            if getattr(self, name) < 1:
                raise AspcError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}.")
        for name in ("final_episodes", "horizon"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise AspcError(f"--{name.replace('_', '-')} must be at least 1, not {value}.")
        if self.matmul_precision not in get_args(MatmulPrecision):
            raise AspcError(
                f"--matmul-precision must be {join_choices(get_args(MatmulPrecision))}, not {self.matmul_precision!r}."
            )
        for name, zero in (("monitor_every", "0: never"), ("checkpoint_every", "0: about one per minute")):
            if getattr(self, name) < 0:
                raise AspcError(f"--{name.replace('_', '-')} must be at least 0 ({zero}), not {getattr(self, name)}.")
        if self.history_actions and self.history == 1:
            raise AspcError("--history-actions needs at least two observations; add --history 2 or higher.")
        distinct = len(set(self.seeds)) == len(self.seeds) > 0
        if not distinct or min(self.seeds) < 0 or max(self.seeds) > LARGEST_SEED:
            raise AspcError(
                f"--seeds must be distinct integers from 0 to {LARGEST_SEED:,}, for example --seeds 0 1 2 3."
            )
        if not 0 <= self.holdout < 1:
            raise AspcError(f"--holdout must be at least 0 and below 1, not {self.holdout}.")

    @property
    def frames(self) -> History:
        """The history of observations and actions."""
        return History(self.history, self.history_actions)

    def program_settings(self) -> dict[str, Any]:
        """Return the options that distinguish programs: all except the seeds and a history of 1.

        Hashes of older versions do not include the history, so a history of 1 must not change the hash.
        """
        hidden = {"seeds"} if self.history > 1 else {"seeds", "history", "history_actions"}
        return {name: value for name, value in asdict(self).items() if name not in hidden}

    @property
    def chunk_steps(self) -> int:
        """Steps per chunk: log_every if it divides eval_every, otherwise eval_every."""
        return self.log_every if self.eval_every % self.log_every == 0 else self.eval_every


def _to_int(name: str, value: Any) -> Any:
    """Convert a NumPy integer or an integral float (1e6) to int; keep None."""
    if value is None or type(value) is int:
        return value
    try:
        if not isinstance(value, bool) and int(value) == value:
            return int(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise AspcError(f"--{name.replace('_', '-')} must be an integer, not {value!r}.")


@dataclass(frozen=True)
class OnlineOptions:
    """Options for online fine-tuning."""

    steps: int = 10_000
    """Number of environment steps."""
    collect: int = 100
    """Environment steps collected between updates; must divide eval_every."""
    updates: int = 1
    """Number of updates per collected step."""
    noise: float | None = None
    """Standard deviation of Gaussian action noise, as a fraction of half the action range. Default: 0.1 for
    deterministic policies, 0 for policies that sample (diffusion, flow)."""
    offline_share: float = 0.5
    """Fraction of each minibatch drawn from the offline data."""
    buffer: int | None = None
    """Number of most recent online steps to keep. Default: all."""
    horizon: int | None = None
    """Total steps (offline and online) over which schedules decay, such as the scale's learning rate. Default: offline
    steps plus all online updates."""
    eval_every: int = 1_000
    """Steps between evaluations."""
    eval_episodes: int = 10
    """Episodes per evaluation."""
    final_episodes: int | None = None
    """Episodes in the last evaluation. Default: eval_episodes."""
    tensorboard: bool = True
    """Also write metrics as TensorBoard events."""
    logger: LoggerName = "none"
    """Also log metrics to Weights & Biases or MLflow, which are configured by their environment variables."""

    def __post_init__(self) -> None:
        for name in ("steps", "collect", "updates", "eval_every", "eval_episodes"):
            if getattr(self, name) < 1:
                raise AspcError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}.")
        if self.eval_every % self.collect:
            raise AspcError(f"--eval-every must be a multiple of --collect, but {self.eval_every} is not.")
        if not 0 <= self.offline_share <= 1:
            raise AspcError(f"--offline-share must be between 0 and 1, not {self.offline_share}.")
        if self.noise is not None and not 0 <= self.noise < np.inf:
            raise AspcError(f"--noise must be finite and at least 0, not {self.noise}.")
        if self.buffer is not None and self.buffer < self.collect:
            raise AspcError(f"--buffer must be at least --collect ({self.collect}), not {self.buffer}.")

    def capacity(self, steps: int) -> int:
        """Return the ring buffer's size for `steps` steps: a multiple of `collect`, so that no chunk wraps around."""
        return -(-min(self.buffer or steps, steps) // self.collect) * self.collect


# ---------------------------------------------------------------------------------------------------------------
# config.json
# ---------------------------------------------------------------------------------------------------------------


class DatasetFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset as recorded in a config. Fields with a default can be missing in configs of older versions."""

    name: str
    source: str | None
    """Name or path to load it from; None if it was given as arrays."""
    options: dict[str, Any]
    """Options of `aspc.data.load`."""
    fingerprint: str
    """Hash of the prepared rows."""
    transitions: int = 0
    observation_size: int
    action_size: int
    has_choices: bool = False
    """True if any action is discrete; False in configs of older versions, which read all actions as continuous."""
    ref_env: str | None = None
    """The environment that `ref_min` and `ref_max` belong to."""
    ref_min: float | None = None
    ref_max: float | None = None
    # The file keeps the spelling of version 0.1.
    behavior_return: float | None = msgspec.field(name="behaviour_return")
    behavior_score: float | None = msgspec.field(name="behaviour_score")
    notes: list[str] = []

    def reading_options(self) -> dict[str, Any]:
        """Return the options for loading the data again, so that actions of older runs stay continuous."""
        is_table = self.source is not None and self.source.lower().endswith(TABLES)
        is_decided = self.has_choices or not {"categorical", "continuous"}.isdisjoint(self.options)
        return self.options if is_decided or not is_table else {**self.options, "continuous": ["*"]}


class FleetDataset(DatasetFacts, frozen=True, kw_only=True):
    """A dataset of a fleet, with the environment in which its policies are evaluated."""

    env: str | None = None


class FleetMember(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a fleet; `dataset` is an index into the datasets of the fleet."""

    name: str
    seed: int
    dataset: int
    settings: dict[str, Any]


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint that a fine-tuned run started from."""

    run: str
    seed: int
    step: int


class SoftwareFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Versions, machine and command line of a run."""

    python: str = ""
    platform: str = ""
    device: str = ""
    versions: dict[str, str | None] = {}
    command: str = ""


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a run."""

    format: int = FORMAT
    algo: str
    preset: str | None = None
    scale_name: str | None
    hyperparameters: dict[str, Any]
    dataset: DatasetFacts
    env: str | None
    options: TrainOptions
    started: str = ""
    software: SoftwareFacts
    online: OnlineOptions | None = None
    """Options of a fine-tuned run."""
    finetuned_from: Origin | None = None


class FleetConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a fleet. The seeds in `options` are unused and not stored."""

    format: int = FORMAT
    algo: str
    scale_name: str | None = None
    hyperparameters: dict[str, Any] = {}
    varying: list[str] = []
    """Dotted names of the hyperparameters that differ between members."""
    members: list[FleetMember]
    datasets: list[FleetDataset]
    options: TrainOptions
    asked: str
    """Hash of the request; repeating the request continues the fleet."""
    started: str = ""
    software: SoftwareFacts


AnyConfig = TypeVar("AnyConfig", RunConfig, FleetConfig)
FLAT = {
    "options": [field.name for field in fields(TrainOptions)],
    "software": [field.name for field in msgspec.structs.fields(SoftwareFacts)],
}


def to_json(config: RunConfig | FleetConfig) -> dict[str, Any]:
    """Return the content of config.json for a config."""
    content: dict[str, Any] = {}
    for name, value in msgspec.to_builtins(config, enc_hook=_to_builtin).items():
        if name in FLAT:
            content |= value
        elif value is not None or name not in ("online", "finetuned_from"):
            content[name] = value
    if isinstance(config, FleetConfig):
        del content["seeds"]
    return content


def _to_builtin(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)


def from_json(path: Path, content: Any, kind: type[AnyConfig]) -> AnyConfig:
    """Convert the content of a config.json, of this or an older version, to a config.

    Args:
        path: Path of the file, for error messages.
        content: The parsed JSON.
        kind: RunConfig or FleetConfig.

    Raises:
        AspcError: If the content is damaged or was written by a newer version.
    """
    if not isinstance(content, dict):
        raise AspcError(f"{path} is damaged: it is not a JSON object.")
    if type(stored := content.get("format", FORMAT)) is int and stored > FORMAT:
        raise AspcError(f"{path} was written by a newer version of aspc (format {stored}); update aspc to read it.")
    required = ("steps", "seeds") if kind is RunConfig else ()
    if missing := [name for name in required if name not in content]:
        raise AspcError(f"{path} is damaged: {missing[0]} is missing or invalid.")
    nested = {part: {name: content[name] for name in names if name in content} for part, names in FLAT.items()}
    try:
        config = msgspec.convert({**content, **nested}, kind)
        # Older versions recorded aspc_aw and td3_bc_aw as an algorithm and a separate BC term.
        return msgspec.structs.replace(config, algo=join_bc_term(config.algo, content.get("bc", "plain")))
    except (msgspec.ValidationError, RecursionError) as error:
        raise AspcError(f"{path} is damaged: {_field_in(str(error))} is missing or invalid.") from error
    except AspcError as error:
        raise AspcError(f"{path} is damaged: {error}") from error


def _field_in(message: str) -> str:
    """Return the name of the field in a msgspec error message."""
    missing = re.search(r"missing required field `(\w+)`", message)
    wrong = re.findall(r"\.(\w+)", message.rpartition(" - at ")[2])
    return missing[1] if missing else wrong[-1] if wrong else "a value"


def env_name(env: str | Callable[[], Any] | None) -> str | None:
    """Return the name under which a config records an environment."""
    return env if isinstance(env, str | None) else ENV_FUNCTION


def timestamp() -> str:
    """Return the current time in the format of config.json."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def fingerprint(*arrays: np.ndarray) -> str:
    """Return a short hash of arrays, which identifies a dataset."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(str((array.shape, array.dtype)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


def software_facts() -> SoftwareFacts:
    """Return the software versions, device and command line of this process."""
    import jax

    packages = ("aspc", "jax", "jaxlib", "equinox", "optax", "numpy", "gymnasium", "mujoco")
    versions: dict[str, str | None] = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    plugin = plugins.loaded()
    if plugin is not None and (plugin.algorithms or plugin.components):  # suites do not change training
        versions["plugin"] = plugin.fingerprint
    device = jax.devices()[0]
    return SoftwareFacts(
        python=platform.python_version(),
        platform=platform.platform(),
        device=f"{device.platform}: {device.device_kind}",
        versions=versions,
        command=" ".join(sys.argv),
    )
