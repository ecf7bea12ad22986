"""Grouping of runs that can share one compiled program, because they differ only in inputs of the program."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from aspc.algorithms.fields import PerRun, declared, declared_fields, is_dataclass_instance, literal_choices
from aspc.algorithms.interface import Algorithm
from aspc.training.hyperparameters import flat_values, full_name
from aspc.training.run_config import TrainOptions

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def can_vary(algorithm: Algorithm[Any], name: str) -> bool:
    """Return whether a hyperparameter can differ between the runs of one program."""
    return full_name(algorithm, name) in variable_fields(algorithm)


def variable_fields(algorithm: Algorithm[Any]) -> frozenset[str]:
    """Return the dotted names of all hyperparameters that are declared `PerRun`."""
    return frozenset(declared_fields(algorithm, PerRun))


def numbered_choices(algorithm: DataclassInstance) -> dict[str, tuple[Any, ...]]:
    """Return the values of all `Literal` fields declared `PerRun`, by dotted name; programs take a value's index."""
    choices = literal_choices(type(algorithm))
    found = {name: values for name, values in choices.items() if declared(type(algorithm), name, PerRun)}
    for field in dataclasses.fields(algorithm):
        if is_dataclass_instance(inner := getattr(algorithm, field.name)):
            found |= {f"{field.name}.{name}": values for name, values in numbered_choices(inner).items()}
    return found


def group_key(algorithm: Algorithm[Any], sizes: Sequence[Any], options: TrainOptions) -> Hashable:
    """Return a key that is equal for runs that can train together.

    Args:
        algorithm: The run's algorithm with its settings; fields that can vary do not affect the key.
        sizes: Observation and action size, or a `Spec`, whose discrete factors also affect the key.
        options: The run's options; seeds do not affect the key.
    """
    free = variable_fields(algorithm)
    fixed = {name: value for name, value in flat_values(algorithm).items() if name not in free}
    shape = [*list(sizes)[:2], *filter(None, sizes[3:])]
    return as_json([_class_names(algorithm), fixed, shape, options.program_settings()])


def _class_names(algorithm: DataclassInstance) -> list[str]:
    """Return the class names of an algorithm and of the algorithms it wraps."""
    inner = [getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)]
    own = f"{type(algorithm).__module__}.{type(algorithm).__qualname__}"
    return [own, *(name for value in inner if is_dataclass_instance(value) for name in _class_names(value))]


def as_json(value: Any) -> str:
    """Return canonical JSON text for comparing or hashing a value."""
    return json.dumps(value, sort_keys=True, default=str)
