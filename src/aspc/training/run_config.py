"""What is run, as data: options of a run, and algorithms to and from plain dictionaries."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np

from aspc import plugins
from aspc.errors import AspcError, unknown_name
from aspc.training.loggers import LoggerName

MatmulPrecision = Literal["default", "high", "highest"]
COUNTS = ("steps", "eval_every", "eval_episodes", "log_every", "n_step", "checkpoints_to_keep")
LARGEST_SEED = 2**31 - 1


@dataclass(frozen=True)
class TrainOptions:
    """Everything about a run that is not the algorithm's."""

    steps: int = 1_000_000
    """Steps to train: one is one update of the critic."""
    seeds: tuple[int, ...] = (0,)
    """Seeds to train together, each a run of its own."""
    eval_every: int = 5_000
    """Steps between evaluations in the environment."""
    eval_episodes: int = 10
    """Episodes of each evaluation."""
    final_episodes: int | None = None
    """Episodes of the last evaluation, if not the same."""
    log_every: int = 1_000
    """Steps of a chunk: metrics are averaged over it. Where it does not divide eval_every, that is taken instead."""
    checkpoint_every: int = 0
    """Steps between checkpoints; 0 means about once a minute."""
    checkpoints_to_keep: int = 2
    """The newest checkpoints are kept; with more of them `aspc fqe RUN --checkpoints` has more to choose from."""
    holdout: float = 0.0
    """Share of the episodes to hold out; the losses on them are logged as valid_*."""
    n_step: int = 1
    """Steps of the n-step returns that the critic learns from."""
    horizon: int | None = None
    """Steps over which schedules decay (the scale's learning rate, for one); by default the length of the run."""
    memory_budget_mb: int = 1024
    """Memory for the windows of a dataset that is streamed from disk, in MiB."""
    matmul_precision: MatmulPrecision = "default"
    """Precision of matrix products: JAX's default for the device (TF32 on recent GPUs), or "highest" for float32."""
    monitor_every: int = 0
    """Steps between evaluations of the paper's bounds on a batch, logged as theory_* (docs/theory.md); 0: never."""
    tensorboard: bool = True
    """Also write the metrics as TensorBoard events."""
    logger: LoggerName = "none"
    """Also send them to Weights & Biases or MLflow, which their own environment variables configure."""

    def __post_init__(self) -> None:
        for name in (*COUNTS, "checkpoint_every", "memory_budget_mb", "monitor_every", "final_episodes", "horizon"):
            object.__setattr__(self, name, _whole_number(name, getattr(self, name)))
        seeds = self.seeds if isinstance(self.seeds, Iterable) else (self.seeds,)
        object.__setattr__(self, "seeds", tuple(_whole_number("seeds", seed) for seed in seeds))
        for name in COUNTS:
            if getattr(self, name) < 1:
                raise AspcError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}.")
        for name in ("final_episodes", "horizon"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise AspcError(f"--{name.replace('_', '-')} must be at least 1, not {value}.")
        if self.matmul_precision not in get_args(MatmulPrecision):
            names = ", ".join(get_args(MatmulPrecision))
            raise AspcError(f"--matmul-precision is one of {names}, not {self.matmul_precision!r}.")
        for name, zero in (("monitor_every", "never"), ("checkpoint_every", "about once a minute")):
            if getattr(self, name) < 0:
                raise AspcError(f"--{name.replace('_', '-')} must be 0 ({zero}) or more, not {getattr(self, name)}.")
        several = len(set(self.seeds)) == len(self.seeds) > 0
        if not several or min(self.seeds) < 0 or max(self.seeds) > LARGEST_SEED:
            raise AspcError(
                f"--seeds must be different whole numbers, 0 to {LARGEST_SEED:,}, for example --seeds 0 1 2 3."
            )
        if not 0 <= self.holdout < 1:
            raise AspcError(f"--holdout is a share of the episodes, 0 to below 1, not {self.holdout}.")

    @property
    def chunk_steps(self) -> int:
        """The steps of a chunk: log_every, or eval_every where that is shorter or no multiple of it."""
        return self.log_every if self.eval_every % self.log_every == 0 else self.eval_every


def _whole_number(name: str, value: Any) -> Any:
    """A whole number as Python has it, also from NumPy's or from 1e6; None stays None."""
    if value is None or type(value) is int:
        return value
    try:
        if not isinstance(value, bool) and int(value) == value:
            return int(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise AspcError(f"--{name.replace('_', '-')} must be a whole number, not {value!r}.")


def to_plain(algorithm: Any) -> dict[str, Any]:
    """All hyper-parameters, those of a wrapped algorithm below its field's name."""
    return dataclasses.asdict(algorithm)


def replace_fields(algorithm: Any, values: Mapping[str, Any]) -> Any:
    """The algorithm with hyper-parameters replaced. A name may be nested, dotted (`base.alpha`), or, where only the
    wrapped algorithm has it, plain (`alpha`)."""
    changes: dict[str, Any] = {}
    inside: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        head, rest = _first_part(algorithm, name)
        if rest or isinstance(value, Mapping):
            inside.setdefault(head, {}).update({rest: value} if rest else value)
        else:
            changes[head] = _like(getattr(algorithm, head), value, head)
    changes |= {head: replace_fields(getattr(algorithm, head), deeper) for head, deeper in inside.items()}
    # At once, since some values are refused without others: a mode of the scale without its target.
    return dataclasses.replace(algorithm, **changes)


class Rule(NamedTuple):
    """What numbers of certain names can be, in an algorithm of one's own too."""

    names: str
    """Patterns with a space between them."""
    says: str
    holds: Callable[[float], bool]


RULES = (  # for each name the first that fits it
    Rule("time_dim", "an even number, at least 4", lambda x: x >= 4 and x % 2 == 0),
    Rule("batch_size policy_freq diffusion_steps flow_steps ema_every n_actions *_dim", "at least 1", lambda x: x >= 1),
    Rule("max_weight", "above 0", lambda x: x > 0),
    Rule("discount tau *_tau ema ema_rate expectile", "between 0 and 1", lambda x: 0 <= x <= 1),
    Rule("*dropout", "0 or more and below 1", lambda x: 0 <= x < 1),
    # A rate of 0 freezes what it is the rate of, a weight of 0 leaves its term out: both are ways to ask a question.
    Rule("lr *_lr *_ratio", "at least 0", lambda x: x >= 0),
    Rule(
        "alpha cql_alpha evaluation_alpha alpha_multiplier beta* eta temperature *_weight",
        "at least 0",
        lambda x: x >= 0,
    ),
    Rule("policy_noise noise_clip max_grad_norm ema_start *_layers", "at least 0", lambda x: x >= 0),
)


def check_values(algorithm: Any) -> None:
    """Refuses hyper-parameters that no algorithm can have: a choice that is none, a network or a batch of nothing, a
    discount above 1."""
    kind: Any = type(algorithm)
    choices = choices_of(kind)
    for field in dataclasses.fields(algorithm):
        name, value = field.name, getattr(algorithm, field.name)
        if dataclasses.is_dataclass(value):
            check_values(value)
        allowed = choices.get(name)
        if allowed is not None and value not in allowed:
            raise AspcError(f"The hyper-parameter {name} is one of {', '.join(map(str, allowed))}, not {value!r}.")
        if isinstance(value, int | float) and not isinstance(value, bool):
            _check_number(name, value)


def _check_number(name: str, value: float) -> None:
    rule = next((rule for rule in RULES if any(fnmatchcase(name, pattern) for pattern in rule.names.split())), None)
    if rule is not None and not rule.holds(value):
        raise AspcError(f"The hyper-parameter {name} must be {rule.says}, not {value}.")


def with_kinds(algorithm: Any) -> Any:
    """The algorithm with every value of the kind that its field's default has, as values that are given by name are:
    3 becomes 3.0, a list a tuple, and what is of another kind is refused."""
    kind: Any = type(algorithm)
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(algorithm):
        value = getattr(algorithm, field.name)
        if dataclasses.is_dataclass(value):
            changes[field.name] = with_kinds(value)
        elif field.init and field.default is not MISSING and not _takes_several_kinds(_hints(kind).get(field.name)):
            changes[field.name] = _like(field.default, value, field.name)
    return dataclasses.replace(algorithm, **changes)


def _takes_several_kinds(hint: Any) -> bool:
    return hint is Any or get_origin(hint) in (Union, UnionType)


def choices_of(kind: Any) -> dict[str, tuple[Any, ...]]:
    """The fields of an algorithm that have a few choices."""
    return {name: get_args(hint) for name, hint in _hints(kind).items() if get_origin(hint) is Literal}


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """The annotations of an algorithm's fields; none where they are of somebody's own and cannot be looked up."""
    try:
        return get_type_hints(kind)
    except (NameError, TypeError):
        return {}


def _first_part(algorithm: Any, name: str) -> tuple[str, str]:
    """The field that a name begins with, and the rest of the name."""
    head, _, rest = name.partition(".")
    fields = {f.name for f in dataclasses.fields(algorithm)}
    if head not in fields and "base" in fields:
        head, rest = "base", name
    if head not in fields:
        raise unknown_name("hyper-parameter", name, all_field_names(algorithm))
    return head, rest


def _like(old: Any, new: Any, name: str) -> Any:
    """A number where a number is expected, as JSON and people write them (3 for 3.0, lists for tuples)."""
    if isinstance(old, bool) or old is None or isinstance(old, str):
        ok = isinstance(new, type(old)) or old is None
    elif isinstance(old, float):
        ok = isinstance(new, int | float | np.number) and not isinstance(new, bool)
        ok = ok or (isinstance(new, str) and new in ("nan", "inf", "-inf"))  # as a config spells them
        new = float(new) if ok else new
        new = math.nan if new != new else new  # the same object: equal algorithms share their compiled programs
    elif isinstance(old, int):
        ok = isinstance(new, int | np.integer) and not isinstance(new, bool)
        new = int(new) if ok else new
    elif isinstance(old, tuple):
        ok = isinstance(new, list | tuple)
        new = tuple(new) if ok else new
    else:
        ok = isinstance(new, type(old))
    if not ok:
        raise AspcError(f"The hyper-parameter {name} is a {type(old).__name__}, so it cannot be {new!r}.")
    return new


def full_name(algorithm: Any, name: str) -> str:
    """The dotted name of a hyper-parameter: `alpha` is `base.alpha` where only the wrapped algorithm has it."""
    head, rest = _first_part(algorithm, name)
    return f"{head}.{full_name(getattr(algorithm, head), rest)}" if rest else head


def flat_values(algorithm: Any) -> dict[str, Any]:
    """Every hyper-parameter by its dotted name."""
    return dict(_flat(to_plain(algorithm)))


def flat_settings(algorithm: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as `replace_fields` takes them (plain, dotted or nested), by dotted name."""
    return {full_name(algorithm, name): value for name, value in _flat(settings)}


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", leaf) for inner, leaf in _flat(value))
        else:
            yield name, value


def all_field_names(algorithm: Any) -> list[str]:
    names = []
    for field in dataclasses.fields(algorithm):
        value = getattr(algorithm, field.name)
        names += all_field_names(value) if dataclasses.is_dataclass(value) else [field.name]
    return names


def fingerprint(*arrays: np.ndarray) -> str:
    """A short hash of arrays: says whether a dataset is the one that a run began with."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(str((array.shape, array.dtype)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


def environment_facts() -> dict[str, Any]:
    """Versions and machine, for whoever wants to repeat the run."""
    import jax

    packages = ("aspc", "jax", "jaxlib", "equinox", "optax", "numpy", "gymnasium", "mujoco")
    versions: dict[str, str | None] = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    plugin = plugins.loaded()
    if plugin is not None and plugin.algorithms:  # one with suites alone changes nothing of how is trained
        versions["plugin"] = plugin.fingerprint
    device = jax.devices()[0]
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": f"{device.platform}: {device.device_kind}",
        "versions": versions,
        "command": " ".join(sys.argv),
    }
