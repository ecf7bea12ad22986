"""Declarations for the fields of an algorithm: value ranges, horizons, and values that can differ between runs.

A field declares these in its type, as `Annotated` metadata. Aliases cover the common cases:

    batch_size: Count = 256                                       # at least 1
    tau: Fraction = 5e-3                                          # between 0 and 1; can differ between runs
    max_weight: Annotated[float, Range(0, exclusive_min=True)] = 100.0
    lr_horizon: Horizon = 1_000_000                               # set to the length of the run
"""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeGuard, TypeVar, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

AlgorithmT = TypeVar("AlgorithmT")


@dataclasses.dataclass(frozen=True)
class Range:
    """The valid range of a number."""

    min: float
    max: float = math.inf
    exclusive_min: bool = False
    exclusive_max: bool = False
    even: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.min if self.exclusive_min else value >= self.min
        below = value < self.max if self.exclusive_max else value <= self.max
        return above and below and not (self.even and value % 2)

    def __str__(self) -> str:
        if self.even:
            return f"an even number of at least {self.min:g}"
        if self.max == math.inf:
            return f"above {self.min:g}" if self.exclusive_min else f"at least {self.min:g}"
        return (
            f"at least {self.min:g} and below {self.max:g}"
            if self.exclusive_max
            else f"between {self.min:g} and {self.max:g}"
        )


class PerRun:
    """Marker for a hyperparameter that can differ between the runs of one compiled program.

    The algorithm's functions then receive a traced number: the value, or the index of the choice for a `Literal`.
    """


class RunLength:
    """Marker for a number of steps that is set to the length of the run, such as the horizon of a decay."""


Scalar = Annotated[float, PerRun()]
NonNegative = Annotated[float, Range(0), PerRun()]
Fraction = Annotated[float, Range(0, 1), PerRun()]
Count = Annotated[int, Range(1)]
Depth = Annotated[int, Range(0)]
Horizon = Annotated[int, RunLength()]


def is_dataclass_instance(value: object) -> TypeGuard[DataclassInstance]:
    """Return whether a value is an instance of a dataclass, such as a wrapped algorithm, and not the class itself."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


@cache
def type_hints(kind: type) -> dict[str, Any]:
    """Return the annotations of a class with their metadata.

    Annotations that cannot be resolved are omitted, for example those of a class defined inside a function.
    """
    try:
        return get_type_hints(kind, include_extras=True)
    except (NameError, TypeError):
        return {name: hint for parent in reversed(kind.__bases__) for name, hint in type_hints(parent).items()}


def declared(kind: type, name: str, mark: type[Any]) -> Any:
    """Return the metadata of type `mark` that a field declares, or None."""
    metadata = getattr(type_hints(kind).get(name), "__metadata__", ())
    return next((entry for entry in metadata if isinstance(entry, mark)), None)


def plain_type(kind: type, name: str) -> Any:
    """Return the type of a field without metadata, or None if it is unknown."""
    hint = type_hints(kind).get(name)
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def literal_choices(kind: type) -> dict[str, tuple[Any, ...]]:
    """Return the choices of every `Literal` field of a class."""
    types = {name: plain_type(kind, name) for name in type_hints(kind)}
    return {name: get_args(hint) for name, hint in types.items() if get_origin(hint) is Literal}


def declared_fields(algorithm: Any, mark: type[Any]) -> list[str]:
    """Return the dotted names of all fields that declare `mark`, including those of a wrapped algorithm."""
    names = []
    for field in dataclasses.fields(algorithm):
        if is_dataclass_instance(inner := getattr(algorithm, field.name)):
            names += [f"{field.name}.{name}" for name in declared_fields(inner, mark)]
        elif declared(type(algorithm), field.name, mark):
            names.append(field.name)
    return names


def with_horizon(algorithm: AlgorithmT, steps: int) -> AlgorithmT:
    """Set every `Horizon` of an algorithm, and of the algorithm it wraps, to the length of the run."""
    made: Any = algorithm
    if made.base is not None:
        made = dataclasses.replace(made, base=with_horizon(made.base, steps))
    own = [name for name in declared_fields(made, RunLength) if "." not in name]
    changed: AlgorithmT = dataclasses.replace(made, **dict.fromkeys(own, steps))
    return changed


def overwritten_horizons(algorithm: Any, steps: int) -> list[str]:
    """Return the names of the horizons whose user-supplied values `with_horizon` would replace."""
    inner = [] if algorithm.base is None else overwritten_horizons(algorithm.base, steps)
    own = [f for f in dataclasses.fields(algorithm) if declared(type(algorithm), f.name, RunLength)]
    return [*inner, *(f.name for f in own if getattr(algorithm, f.name) not in (f.default, steps))]
