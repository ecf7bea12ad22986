"""Hyperparameters of an algorithm by name: read, replace, flatten and check the fields of its dataclass."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_origin

import numpy as np

from aspc.algorithms.component_names import Component, name_components
from aspc.algorithms.fields import Range, declared, is_dataclass_instance, literal_choices, plain_type
from aspc.errors import AspcError, unknown_name
from aspc.text import join_choices

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def replace_fields(algorithm: T, values: Mapping[str, Any], *, coerce: bool = True) -> T:
    """Return the algorithm with hyperparameters replaced.

    Args:
        algorithm: A dataclass, possibly with nested dataclasses.
        values: New values by name. Give a field of the wrapped algorithm as a nested mapping, by its dotted name
            (`base.alpha`) or, if only the wrapped algorithm has it, by its plain name (`alpha`).
        coerce: Convert each value to the type of the old one; False for traced values.

    Raises:
        AspcError: For an unknown name or a value of the wrong type.
    """
    changes: dict[str, Any] = {}
    inside: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        head, rest = _first_part(algorithm, name)
        if rest or isinstance(value, Mapping):
            inside.setdefault(head, {}).update({rest: value} if rest else value)
        else:
            is_typed = coerce and declared(type(algorithm), head, Component) is None  # components: names or objects
            changes[head] = _coerce(getattr(algorithm, head), value, head) if is_typed else value
    changes |= {
        head: replace_fields(getattr(algorithm, head), nested, coerce=coerce) for head, nested in inside.items()
    }
    # Replace all at once: some values are valid only together, such as a scale mode and its target.
    return dataclasses.replace(algorithm, **changes)


def check_values(algorithm: DataclassInstance) -> None:
    """Raise an AspcError for an invalid hyperparameter, such as an unknown choice or a discount above 1."""
    kind: Any = type(algorithm)
    choices = literal_choices(kind)
    for field in dataclasses.fields(algorithm):
        name, value = field.name, getattr(algorithm, field.name)
        if is_dataclass_instance(value):
            check_values(value)
        allowed = choices.get(name)
        if allowed is not None and value not in allowed:
            raise AspcError(f"Hyperparameter {name} must be {join_choices(allowed)}, not {value!r}.")
        values = declared(kind, name, Range)
        if values is not None and isinstance(value, int | float) and value not in values:
            raise AspcError(f"Hyperparameter {name} must be {values}, not {value}.")


def coerce_fields(algorithm: T) -> T:
    """Return the algorithm with every value converted to the type of its field's default: 3 to 3.0, a list to a tuple.

    Raises:
        AspcError: If a value cannot be converted.
    """
    kind: Any = type(algorithm)
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(algorithm):
        value = getattr(algorithm, field.name)
        if is_dataclass_instance(value):
            changes[field.name] = coerce_fields(value)
        elif field.init and field.default is not MISSING and not _is_union(plain_type(kind, field.name)):
            changes[field.name] = _coerce(field.default, value, field.name)
    return dataclasses.replace(algorithm, **changes)


def _is_union(hint: Any) -> bool:
    return hint is Any or get_origin(hint) in (Union, UnionType)


def _first_part(algorithm: DataclassInstance, name: str) -> tuple[str, str]:
    """Split a name into its field and the remaining dotted name."""
    head, _, rest = name.partition(".")
    fields = {f.name for f in dataclasses.fields(algorithm)}
    if head not in fields and "base" in fields:
        head, rest = "base", name
    if head not in fields:
        raise unknown_name("hyperparameter", name, all_field_names(algorithm))
    return head, rest


def _coerce(old: Any, new: Any, name: str) -> Any:
    """Convert a value from JSON or from a user (3 for 3.0, a list for a tuple) to the type of the old one."""
    if isinstance(old, bool) or old is None or isinstance(old, str):
        ok = isinstance(new, type(old)) or old is None
    elif isinstance(old, float):
        ok = isinstance(new, int | float | np.number) and not isinstance(new, bool)
        ok = ok or (isinstance(new, str) and new in ("nan", "inf", "-inf"))  # as written to config.json
        new = float(new) if ok else new
        new = math.nan if new != new else new  # one NaN object, so that equal algorithms share compiled programs
    elif isinstance(old, int):
        ok = isinstance(new, int | np.integer) and not isinstance(new, bool)
        new = int(new) if ok else new
    elif isinstance(old, tuple):
        ok = isinstance(new, list | tuple)
        new = tuple(new) if ok else new
    else:
        ok = isinstance(new, type(old))
    if not ok:
        raise AspcError(f"Hyperparameter {name} must be of type {type(old).__name__}, not {new!r}.")
    return new


def full_name(algorithm: DataclassInstance, name: str) -> str:
    """Return the dotted name of a hyperparameter: `base.alpha` for `alpha` if only the wrapped algorithm has it."""
    head, rest = _first_part(algorithm, name)
    return f"{head}.{full_name(getattr(algorithm, head), rest)}" if rest else head


def flat_values(algorithm: DataclassInstance) -> dict[str, Any]:
    """Return every hyperparameter by its dotted name."""
    return dict(_flatten(dataclasses.asdict(name_components(algorithm))))


def recorded_values(algorithm: DataclassInstance) -> dict[str, Any]:
    """Return the hyperparameters in the nested form in which a config records them.

    Networks and optimizers are recorded by name, and only if they are not the default, because configs of older
    versions do not have these fields.

    Raises:
        AspcError: A network or an optimizer has no name.
    """
    values = dataclasses.asdict(name_components(algorithm))
    for field in dataclasses.fields(algorithm):
        if is_dataclass_instance(inner := getattr(algorithm, field.name)):
            values[field.name] = recorded_values(inner)
        elif values[field.name] is None and declared(type(algorithm), field.name, Component):
            del values[field.name]
    return values


def flat_settings(algorithm: DataclassInstance, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted name; like `replace_fields`, accept plain, dotted and nested names."""
    return {full_name(algorithm, name): value for name, value in _flatten(settings)}


def _flatten(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", leaf) for inner, leaf in _flatten(value))
        else:
            yield name, value


def all_field_names(algorithm: DataclassInstance) -> list[str]:
    """Return the plain names of all hyperparameters, including those of wrapped algorithms."""
    names = []
    for field in dataclasses.fields(algorithm):
        value = getattr(algorithm, field.name)
        names += all_field_names(value) if is_dataclass_instance(value) else [field.name]
    return names
