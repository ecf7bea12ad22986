"""Policies as programs: lists of array operations that run with NumPy alone.

`aspc.algorithms.policy_tracing` derives such a list from any JAX function, so that a policy with a user-supplied
network can be saved, evaluated and exported without the user's code. `aspc export` runs the same list on JAX arrays or
the symbols of an ONNX graph to build the exported program.

    settings["steps"]   [[operation, register of the result, [inputs], {options}], …]
    settings["noise"]   {name: {"distribution": "normal", "shape": [null, 2]}}, where null stands for the batch

An input is a register ("#3"; the first registers hold the observations and the noise), the name of an array, a number
or a nested list of numbers. The result of the last step is the action.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

MAX_STEPS = 20_000
MAX_RESULT = 1_000_000  # maximum number of entries in a step's result, per observation


def run_program(
    arrays: Mapping[str, Any], steps: Sequence[Any], inputs: Sequence[Any], max_result: float = math.inf
) -> Any:
    """Run a program and return its last result.

    Args:
        arrays: The weights by name.
        steps: The operations.
        inputs: The observations [batch, obs] and the noise.
        max_result: The maximum number of entries in a result; all results together can have 100 times as many.

    Raises:
        ValueError: The results exceed these limits.
    """
    registers, result, total = dict(enumerate(inputs)), inputs[0], 0
    for operation, target, references, options in steps:
        values = [_value(arrays, registers, reference) for reference in references]
        if max_result < math.inf:
            size = _result_size(operation, [np.shape(v) for v in values], options)
            total += size
            if size > max_result or total > 100 * max_result:
                raise ValueError(f"the result of {operation} is too large")
        foreign = [v for v in values if not isinstance(v, np.ndarray | np.generic | float)]
        xp = foreign[0].__array_namespace__() if foreign else np
        registers[target] = result = OPERATIONS[operation](xp, *values, **options)
    return result


def _value(arrays: Mapping[str, Any], registers: Mapping[int, Any], reference: Any) -> Any:
    if isinstance(reference, str):
        return registers[int(reference[1:])] if reference.startswith("#") else arrays[reference]
    return np.asarray(reference, np.float32) if isinstance(reference, list) else float(reference)


def _result_size(operation: str, shapes: Sequence[tuple[int, ...]], options: Mapping[str, Any]) -> int:
    """Return the number of entries of a result, or an upper bound, without computing the result."""
    if operation == "concatenate":
        return sum(math.prod(shape) for shape in shapes)
    if operation == "matmul":
        lead = np.broadcast_shapes(shapes[0][:-2], shapes[1][:-2])
        return math.prod(lead) * shapes[0][-2] * shapes[1][-1]
    if operation == "broadcast":
        return math.prod(options["shape"])
    return math.prod(np.broadcast_shapes(*shapes))


# ---------------------------------------------------------------------------------------------------------------
# Operations: functions of the array namespace and the inputs
# ---------------------------------------------------------------------------------------------------------------


def _elementwise(name: str) -> Callable[..., Any]:
    return lambda xp, *values: getattr(xp, name)(*values)


def _slice(xp: Any, x: Any, start: Sequence[int], stop: Sequence[int | None]) -> Any:
    """Slice every axis; None means the end of the axis."""
    return x[tuple(slice(first or None, last) for first, last in zip(start, stop, strict=True))]


ELEMENTWISE = (
    *("add", "subtract", "multiply", "divide", "power", "maximum", "minimum"),
    *("exp", "log", "tanh", "sqrt", "abs", "sin", "cos", "floor", "sign"),
    *("equal", "less", "less_equal", "logical_and", "logical_or", "logical_not", "where"),
)
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: _elementwise(name) for name in ELEMENTWISE},
    "matmul": lambda xp, x, y: x @ y,
    "sum": lambda xp, x, axis: x.sum(axis=tuple(axis)),
    "max": lambda xp, x, axis: x.max(axis=tuple(axis)),
    "min": lambda xp, x, axis: x.min(axis=tuple(axis)),
    "argmax": lambda xp, x, axis: xp.argmax(x, axis=axis).astype(np.float32),
    "to_float": lambda xp, x: xp.where(x, np.float32(1), np.float32(0)),
    "reshape": lambda xp, x, shape: x.reshape([-1 if size is None else size for size in shape]),
    "transpose": lambda xp, x, axes: x.transpose(axes),
    "broadcast": lambda xp, x, shape: xp.broadcast_to(x, shape),
    "slice": _slice,
    "concatenate": lambda xp, *parts, axis: xp.concatenate(parts, axis=axis),
}
