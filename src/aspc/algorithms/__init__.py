"""The registry of algorithms: `register` adds one, `names` lists all, and `default` creates one by name."""

from aspc.algorithms.registry import (
    check_algorithm,
    default,
    join_bc_term,
    names,
    register,
    registered_as,
    same_classes,
    split_bc_term,
)

__all__ = [
    "check_algorithm",
    "default",
    "join_bc_term",
    "names",
    "register",
    "registered_as",
    "same_classes",
    "split_bc_term",
]
