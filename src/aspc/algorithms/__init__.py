"""Algorithms: `register` adds one, `names` lists them, `default` makes one."""

from aspc.algorithms.registry import (
    WITH_BC_TERM,
    BCTerm,
    check_algorithm,
    default,
    names,
    register,
    registered_as,
    same_classes,
)

__all__ = [
    "WITH_BC_TERM",
    "BCTerm",
    "check_algorithm",
    "default",
    "names",
    "register",
    "registered_as",
    "same_classes",
]
