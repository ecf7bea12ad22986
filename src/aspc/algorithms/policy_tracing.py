"""Convert a policy's JAX function to a program of `aspc.policy_programs`, which runs without JAX or user code. This
module has more than 400 lines because every supported JAX primitive needs a rule.

The function is traced with a symbolic batch size. Its primitives are mapped to a few operations. Calls are inlined,
loops with a fixed number of iterations are unrolled, and expressions that depend on neither weights nor inputs are
constant-folded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.extend import core
from jaxtyping import Array, PyTree

from aspc.algorithms.interface import Algorithm, PolicyExport
from aspc.errors import AspcError, first_line
from aspc.policy_kinds import KINDS, NoiseInput
from aspc.policy_programs import MAX_STEPS

LARGEST = float(np.finfo(np.float32).max)
BOOLEAN = {"equal", "less", "less_equal", "logical_and", "logical_or", "logical_not"}
MAX_LITERALS = 256  # largest size of a constant that is stored inline; larger ones become arrays

Shape = tuple[int | None, ...]  # None is the batch size, or a size derived from it


class Ref(NamedTuple):
    """A reference to a computed value, an array or an input of the program."""

    name: str
    shape: Shape
    is_bool: bool = False


Value = Ref | np.ndarray  # an array is a constant


def traced_policy(
    act: Callable[..., Array],
    weights: PyTree,
    observation_size: int,
    noise: Mapping[str, NoiseInput] | None = None,
) -> PolicyExport:
    """Export a policy from its JAX function, so that it runs with NumPy alone.

    Args:
        act: (weights, normalized observations [batch, obs], *noise) → actions [batch, act] in [-1, 1]. The function
            can use any network, but its loops must have a fixed number of iterations.
        weights: A pytree of floating-point arrays.
        observation_size: The dimension of an observation.
        noise: The random inputs by name, in the order of `act`'s arguments.

    Raises:
        AspcError: The function uses a primitive that a program cannot compute.
    """
    draws = dict(noise or {})
    paths, structure = jax.tree_util.tree_flatten_with_path(weights)
    leaves = {_array_name(path): leaf for path, leaf in paths}
    (batch,) = export.symbolic_shape("batch")
    shapes: list[Shape] = [(None, observation_size), *(draw.shape for draw in draws.values())]
    dtype = jnp.result_type(*leaves.values()) if leaves else jnp.result_type(float)
    sizes = [(leaf.shape, leaf.dtype) for leaf in leaves.values()]
    sizes += [(tuple(batch if n is None else n for n in shape), dtype) for shape in shapes]
    inputs = [jax.ShapeDtypeStruct(*size) for size in sizes]  # type: ignore[no-untyped-call]

    def function(*values: Array) -> Array:
        return act(jax.tree.unflatten(structure, values[: len(leaves)]), *values[len(leaves) :])

    try:
        jaxpr = jax.make_jaxpr(function)(*inputs)
    except AspcError:
        raise
    except Exception as error:  # user code can raise any exception
        raise AspcError(
            f"The policy's function failed for a batch of unknown size ({type(error).__name__}: {first_line(error)}). "
            "Write x.shape[0] instead of len(x), and keep the batch as the first axis."
        ) from error
    tracer = ProgramTracer(len(shapes))
    known = [Ref(name, leaf.shape) for name, leaf in leaves.items()]
    known += [Ref(f"#{i}", shape) for i, shape in enumerate(shapes)]
    (actions,) = tracer.inline(jaxpr, known)
    steps = tracer.finish(actions)
    used = {reference for _, _, references, _ in steps for reference in references if isinstance(reference, str)}
    return PolicyExport(
        "program",
        {name: array for name, array in (leaves | tracer.constants).items() if name in used},
        {
            "steps": steps,
            "noise": {name: {"distribution": d.distribution, "shape": list(d.shape)} for name, d in draws.items()},
        },
        lambda *inputs: act(weights, *inputs),
    )


class PolicyKind(NamedTuple):
    """A user-registered policy kind (see `register_policy_kind`)."""

    act: Callable[..., Array]
    noise: Callable[..., dict[str, NoiseInput]]


_KINDS: dict[str, PolicyKind] = {}
Act = TypeVar("Act", bound=Callable[..., Any])


def _no_noise(arrays: Mapping[str, Array], settings: Mapping[str, Any], observation_size: int) -> dict[str, NoiseInput]:
    return {}


def register_policy_kind(name: str, noise: Callable[..., dict[str, NoiseInput]] = _no_noise) -> Callable[[Act], Act]:
    """Register a policy kind, so that an algorithm's `policy()` can return a `PolicyExport` of this kind.

    The decorated function maps (arrays, settings, normalized observations, *noise) to actions in [-1, 1]. It can use
    JAX or the observations' array namespace. It is traced when a policy is exported, so a saved policy needs neither
    the function nor JAX.

    Args:
        name: The name of the kind.
        noise: (arrays, settings, observation size) → the random inputs by name. Default: no inputs.

    Raises:
        AspcError: The name is already registered.
    """

    def add(act: Act) -> Act:
        if name in KINDS or name in _KINDS:
            raise AspcError(f"A policy kind named {name!r} already exists; choose another name.")
        _KINDS[name] = PolicyKind(act, noise)
        return act

    return add


def export_policy(algorithm: Algorithm[Any], state: PyTree, observation_size: int) -> PolicyExport:
    """Return the policy of a training state. A user-registered kind is converted to a program."""
    policy = algorithm.policy(state)
    if not isinstance(policy, PolicyExport) or policy.kind not in _KINDS:
        return policy
    kind, settings = _KINDS[policy.kind], policy.settings
    noise = kind.noise(policy.arrays, settings, observation_size)
    program = traced_policy(
        lambda arrays, *inputs: kind.act(arrays, settings, *inputs), policy.arrays, observation_size, noise
    )
    return program if policy.act is None else program._replace(act=policy.act)


def policy_kinds() -> list[str]:
    """Return the names of all policy kinds."""
    return sorted({*KINDS, *_KINDS})


def _array_name(path: tuple[Any, ...]) -> str:
    """Return a readable name for a leaf, such as weights.net.layers.0.weight."""
    parts = [getattr(key, "name", getattr(key, "idx", getattr(key, "key", ""))) for key in path]
    return ".".join(map(str, ["weights", *parts]))


# ---------------------------------------------------------------------------------------------------------------
# From equations to steps
# ---------------------------------------------------------------------------------------------------------------


class ProgramTracer:
    """The steps of a program, collected while tracing. Each step gets a new register; `finish` reuses registers."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.steps: list[tuple[str, str, list[Any], dict[str, Any]]] = []
        self.constants: dict[str, np.ndarray] = {}

    def emit(self, operation: str, values: Sequence[Value | float], result: Shape, **options: Any) -> Ref:
        """Add a step whose result has the shape `result`; return a reference to that result."""
        if len(self.steps) >= MAX_STEPS:
            raise AspcError(f"The policy's function has more than {MAX_STEPS:,} operations; simplify it.")
        is_moved = operation in ("reshape", "transpose", "slice", "concatenate", "broadcast")
        is_bool = operation in BOOLEAN or (is_moved and isinstance(values[0], Ref) and values[0].is_bool)
        ref = Ref(f"#{self.inputs + len(self.steps)}", result, is_bool)
        self.steps.append((operation, ref.name, [self._reference(value) for value in values], options))
        return ref

    def _reference(self, value: Value | float) -> Any:
        if isinstance(value, Ref):
            return value.name
        array = np.asarray(value, np.float64)
        array = np.clip(array, -LARGEST, LARGEST)  # JSON has no infinity
        if array.size <= MAX_LITERALS:
            return array.tolist()
        name = f"constants.{len(self.constants)}"
        self.constants[name] = array.astype(np.float32)
        return name

    def finish(self, result: Value) -> list[list[Any]]:
        """Return the steps that are needed to compute the result, with registers reused."""
        if not isinstance(result, Ref) or result.name not in {step[1] for step in self.steps[-1:]}:
            result = self.emit("add", [result, 0.0], result.shape)  # the last step must produce the result
        needed, kept = {result.name}, []
        for step in reversed(self.steps):
            if step[1] in needed:
                needed.update(reference for reference in step[2] if isinstance(reference, str))
                kept.append(step)
        kept.reverse()
        last_use = {reference: i for i, step in enumerate(kept) for reference in step[2] if isinstance(reference, str)}
        register = {f"#{i}": i for i in range(self.inputs)}
        count, free, steps = self.inputs, list[int](), list[list[Any]]()
        for i, (operation, name, references, options) in enumerate(kept):
            own = [r for r in references if isinstance(r, str) and r in register]
            located = [f"#{register[r]}" if r in own else r for r in references]
            free += [register.pop(r) for r in dict.fromkeys(own) if last_use[r] == i]
            if not free:
                free.append(count)
                count += 1
            register[name] = free.pop()
            if any(not isinstance(r, str) and np.isnan(r).any() for r in references):
                raise AspcError("The policy's function contains a NaN constant; remove it.")
            steps.append([operation, register[name], located, options])
        return steps

    def inline(self, closed: Any, inputs: Sequence[Value]) -> list[Value]:
        """Add the steps of a closed jaxpr and return its results."""
        jaxpr = closed.jaxpr
        env: dict[Any, Value] = dict(zip(jaxpr.constvars, map(np.asarray, closed.consts), strict=True))
        env |= zip(jaxpr.invars, inputs, strict=True)

        def read(var: Any) -> Value:
            return np.asarray(var.val) if isinstance(var, core.Literal) else env[var]

        for eqn in jaxpr.eqns:
            env |= zip(eqn.outvars, self.apply(eqn, [read(var) for var in eqn.invars]), strict=True)
        return [read(var) for var in jaxpr.outvars]

    def apply(self, eqn: Any, values: list[Value]) -> list[Value]:
        """Add the steps of one equation and return its results."""
        name, params, result = eqn.primitive.name, eqn.params, _shape(eqn.outvars[0].aval.shape)
        if name == "scan":
            return list(self.unroll(params, values))
        inner = params.get("jaxpr", params.get("call_jaxpr"))
        if inner is not None and name not in ("while", "cond"):
            return self.inline(inner if hasattr(inner, "consts") else core.ClosedJaxpr(inner, ()), values)
        if all(isinstance(value, np.ndarray) for value in values) and None not in result:
            with jax.ensure_compile_time_eval():
                computed = eqn.primitive.bind(*values, **params)
            return [np.asarray(x) for x in (computed if eqn.primitive.multiple_results else [computed])]
        if name == "split":
            ends = np.cumsum(params["sizes"]).tolist()
            return [self.take(values[0], params["axis"], a, b) for a, b in zip([0, *ends], ends, strict=False)]
        if name not in RULES:
            raise AspcError(
                f"The policy's function uses the JAX primitive {name}, which an exported policy cannot compute. Write "
                "it with sums, products, exp, tanh, where, reshape, constant indices and loops of fixed length."
            )
        return [RULES[name](self, values, params, result)]

    def unroll(self, params: Mapping[str, Any], values: list[Value]) -> Iterator[Value]:
        """Add the steps of a scan, iteration by iteration."""
        first, last = params["num_consts"], params["num_consts"] + params["num_carry"]
        fixed, carry, scanned = values[:first], values[first:last], values[last:]
        rows: list[list[Value]] = []
        order = range(params["length"])
        for i in reversed(order) if params["reverse"] else order:
            row = [self.reshape(self.take(x, 0, i, i + 1), x.shape[1:]) for x in scanned]
            results = self.inline(params["jaxpr"], [*fixed, *carry, *row])
            carry, row = results[: len(carry)], results[len(carry) :]
            rows.append(row)
        yield from carry
        for parts in zip(*(rows[::-1] if params["reverse"] else rows), strict=True):
            yield self.concatenate([self.reshape(part, (1, *part.shape)) for part in parts], 0)

    # -- steps shared by several rules --------------------------------------------------------------------------
    def reshape(self, x: Value, shape: Shape) -> Value:
        """Reshape a value that has at most one unknown size."""
        if x.shape == shape:
            return x
        if isinstance(x, np.ndarray):
            return x.reshape([n for n in shape if n is not None])
        if shape.count(None) > 1:
            raise AspcError("The policy's function has an array with two batch axes; keep one of them.")
        return self.emit("reshape", [x], shape, shape=list(shape))

    def take(self, x: Value, axis: int, start: int, stop: int) -> Value:
        """Slice one axis."""
        starts, stops = [0] * len(x.shape), list[int | None]([None] * len(x.shape))
        starts[axis], stops[axis] = start, stop
        return self.slice(x, starts, stops)

    def slice(self, x: Value, start: list[int], stop: list[int | None]) -> Value:
        """Slice every axis; None means the end of the axis."""
        ranges = list(zip(x.shape, start, stop, strict=True))
        if isinstance(x, np.ndarray):
            return np.asarray(x[tuple(slice(a, b) for _, a, b in ranges)])
        shape = tuple(n if b is None and not a else (n if b is None else b) - a for n, a, b in ranges)
        return x if shape == x.shape else self.emit("slice", [x], shape, start=start, stop=stop)

    def transpose(self, x: Value, axes: Sequence[int]) -> Value:
        """Permute the axes."""
        if list(axes) == sorted(axes):
            return x
        if isinstance(x, np.ndarray):
            return x.transpose(axes)
        return self.emit("transpose", [x], tuple(x.shape[i] for i in axes), axes=list(axes))

    def concatenate(self, parts: Sequence[Value], axis: int) -> Value:
        """Join values along an axis."""
        sizes = [part.shape[axis] for part in parts]
        total = None if None in sizes else sum(n for n in sizes if n is not None)
        shape = (*parts[0].shape[:axis], total, *parts[0].shape[axis + 1 :])
        return parts[0] if len(parts) == 1 else self.emit("concatenate", parts, shape, axis=axis)

    def broadcast(self, x: Value, shape: Shape) -> Value:
        """Broadcast a value to a shape of the same rank; the unknown size is the batch size."""
        if x.shape != shape and isinstance(x, Ref) and x.is_bool:
            return self.emit("less", [0.0, self.broadcast(self.emit("to_float", [x], x.shape), shape)], shape)
        static = tuple(1 if n is None else n for n in shape)
        if None in x.shape:
            grows = any(n == 1 != m for n, m in zip(x.shape, static, strict=True))
            return self.emit("add", [x, np.zeros(static)], shape) if grows else x
        if x.shape != static:
            x = self.emit("broadcast", [x], static, shape=list(static))
        if None in shape:  # adding one zero per row repeats the value for every row
            zeros = self.emit("multiply", [self.take(Ref("#0", (None, 2)), 1, 0, 1), 0.0], (None, 1))
            x = self.emit("add", [x, self.reshape(zeros, tuple(1 if n else None for n in shape))], shape)
        return x


def _shape(shape: Sequence[Any]) -> Shape:
    return tuple(n if isinstance(n, int) else None for n in shape)


# ---------------------------------------------------------------------------------------------------------------
# One rule for each primitive
# ---------------------------------------------------------------------------------------------------------------

Rule = Callable[[ProgramTracer, list[Value], Mapping[str, Any], Shape], Value]


def _same(operation: str, swap: bool = False, invert: bool = False) -> Rule:
    """Return the rule for an element-wise operation, optionally with swapped inputs or an inverted result."""

    def rule(t: ProgramTracer, values: list[Value], params: Mapping[str, Any], result: Shape) -> Value:
        ref = t.emit(operation, values[::-1] if swap else values, result)
        return t.emit("logical_not", [ref], result) if invert else ref

    return rule


def _composed(function: Callable[..., Array]) -> Rule:
    """Return the rule for a primitive that `function` expresses with other JAX operations."""

    def rule(t: ProgramTracer, values: list[Value], params: Mapping[str, Any], result: Shape) -> Value:
        symbols = iter(export.symbolic_shape(", ".join(f"n{i}" for i in range(8))))
        sizes: dict[int, Any] = {}

        def struct(value: Value) -> jax.ShapeDtypeStruct:
            axes = [n if n is not None else sizes.setdefault(i, next(symbols)) for i, n in enumerate(value.shape)]
            return jax.ShapeDtypeStruct(tuple(axes), np.float32)  # type: ignore[no-untyped-call]

        options = {name: params[name] for name in ("y",) if name in params}
        closed = jax.make_jaxpr(lambda *x: function(*x, **options))(*map(struct, values))
        return t.inline(closed, values)[0]

    return rule


def _erf(x: Array) -> Array:
    """Approximate erf with Abramowitz and Stegun's formula 7.1.26, whose error is below 1.5e-7."""
    t = 1 / (1 + 0.3275911 * jnp.abs(x))
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return jnp.sign(x) * (1 - series * jnp.exp(-jnp.minimum(x * x, 80.0)))


def _integer_pow(x: Array, y: int) -> Array:
    product = x
    for _ in range(abs(y) - 1):
        product = product * x
    return product if y > 0 else 1 / product


def _convert(t: ProgramTracer, values: list[Value], params: Mapping[str, Any], result: Shape) -> Value:
    """Convert booleans to floats. Other conversions do nothing, because all numbers in a program are floats."""
    (x,) = values
    is_bool = isinstance(x, Ref) and x.is_bool
    return t.emit("to_float", [x], result) if is_bool and params["new_dtype"] != np.bool_ else x


def _select(t: ProgramTracer, values: list[Value], params: Mapping[str, Any], result: Shape) -> Value:
    condition, *choices = values
    if isinstance(condition, np.ndarray) and condition.all() == condition.any():  # constant, as with constant indices
        return choices[int(condition.all())]
    return t.emit("where", [condition, *reversed(choices)], result)


def _broadcast_in_dim(t: ProgramTracer, values: list[Value], params: Mapping[str, Any], result: Shape) -> Value:
    x, axes = values[0], list(params["broadcast_dimensions"])
    placed = tuple(x.shape[axes.index(i)] if i in axes else 1 for i in range(len(result)))
    return t.broadcast(t.reshape(x, placed), result)


def _reduce(operation: str) -> Rule:
    return lambda t, values, params, result: t.emit(operation, values, result, axis=[int(i) for i in params["axes"]])


def _argmax(t: ProgramTracer, values: list[Value], params: Mapping[str, Any], result: Shape) -> Value:
    return t.emit("argmax", values, result, axis=int(params["axes"][0]))


def _slice(t: ProgramTracer, values: list[Value], params: Mapping[str, Any], result: Shape) -> Value:
    if params["strides"] is not None and set(params["strides"]) != {1}:
        raise AspcError("The policy's function uses a strided slice; use a slice with step 1.")
    stops = [int(n) if isinstance(n, int) else None for n in params["limit_indices"]]
    return t.slice(values[0], [int(n) for n in params["start_indices"]], stops)


def _constant_index(values: Sequence[Value]) -> list[int]:
    """Return constant indices as a list, or raise `AspcError` if an index is computed."""
    constants = [value for value in values if isinstance(value, np.ndarray)]
    if len(constants) < len(values):
        raise AspcError("The policy's function indexes an array with a computed index; use a constant or jnp.where.")
    return [int(i) for value in constants for i in value.reshape(-1)]


def _dynamic_slice(t: ProgramTracer, values: list[Value], params: Mapping[str, Any], result: Shape) -> Value:
    start = _constant_index(values[1:])
    return t.slice(values[0], start, [None if n is None else a + n for a, n in zip(start, result, strict=True)])


def _gather(t: ProgramTracer, values: list[Value], params: Mapping[str, Any], result: Shape) -> Value:
    """Index with constants: slice every axis, then drop the indexed axes."""
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    if len(values[1].shape) != 1 or numbers.operand_batching_dims:
        raise AspcError("The policy's function indexes an array with an array; index with numbers or use jnp.where.")
    start = [0] * len(sizes)
    for axis, position in zip(numbers.start_index_map, _constant_index(values[1:]), strict=True):
        start[axis] = position
    stop = [a + n if isinstance(n, int) else None for a, n in zip(start, sizes, strict=True)]
    return t.reshape(t.slice(values[0], start, stop), result)


def _dot_general(t: ProgramTracer, values: list[Value], params: Mapping[str, Any], result: Shape) -> Value:
    """Emit a matrix product: [batch axes, free axes, contracted axes] · [batch axes, contracted axes, free axes]."""
    (x_sum, y_sum), (x_batch, y_batch) = params["dimension_numbers"]
    x, y = values
    x_free = [i for i in range(len(x.shape)) if i not in (*x_sum, *x_batch)]
    y_free = [i for i in range(len(y.shape)) if i not in (*y_sum, *y_batch)]
    lead = [x.shape[i] if x.shape[i] is not None else y.shape[j] for i, j in zip(x_batch, y_batch, strict=True)]

    def joined(value: Value, axes: Sequence[int]) -> int | None:
        sizes = [value.shape[i] for i in axes]
        return None if None in sizes else math.prod(n for n in sizes if n is not None)

    x = t.reshape(t.transpose(x, [*x_batch, *x_free, *x_sum]), (*lead, joined(x, x_free), joined(x, x_sum)))
    y = t.reshape(t.transpose(y, [*y_batch, *y_sum, *y_free]), (*lead, joined(y, y_sum), joined(y, y_free)))
    return t.reshape(t.emit("matmul", [x, y], (*lead, x.shape[-2], y.shape[-1])), result)


def _stack(t: ProgramTracer, values: list[Value], params: Mapping[str, Any], result: Shape) -> Value:
    axis = params["axis"]
    return t.concatenate([t.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in values], axis)


def _tile(t: ProgramTracer, values: list[Value], params: Mapping[str, Any], result: Shape) -> Value:
    x = values[0]
    for axis, repeats in enumerate(params["reps"]):
        x = t.concatenate([x] * repeats, axis)
    return x


RULES: dict[str, Rule] = {
    "add": _same("add"),
    "add_any": _same("add"),
    "sub": _same("subtract"),
    "mul": _same("multiply"),
    "div": _same("divide"),
    "pow": _same("power"),
    "max": _same("maximum"),
    "min": _same("minimum"),
    **{name: _same(name) for name in ("exp", "log", "tanh", "sqrt", "abs", "sin", "cos", "floor", "sign")},
    "eq": _same("equal"),
    "ne": _same("equal", invert=True),
    "lt": _same("less"),
    "le": _same("less_equal"),
    "gt": _same("less", swap=True),
    "ge": _same("less_equal", swap=True),
    "and": _same("logical_and"),
    "or": _same("logical_or"),
    "not": _same("logical_not"),
    "neg": _composed(lambda x: 0.0 - x),
    "square": _composed(lambda x: x * x),
    "rsqrt": _composed(lambda x: 1 / jnp.sqrt(x)),
    "log1p": _composed(lambda x: jnp.log(1 + x)),
    "expm1": _composed(lambda x: jnp.exp(x) - 1),
    "exp2": _composed(lambda x: jnp.exp(x * math.log(2))),
    "logistic": _composed(lambda x: 1 / (1 + jnp.exp(jnp.minimum(0.0 - x, 80.0)))),  # e⁸⁰ does not overflow float32
    "erf": _composed(_erf),
    "erfc": _composed(lambda x: 1 - _erf(x)),
    "integer_pow": _composed(_integer_pow),
    "clamp": _composed(lambda low, x, high: jnp.minimum(jnp.maximum(x, low), high)),
    "is_finite": lambda t, values, params, result: t.emit(
        "less_equal", [t.emit("abs", values, result), LARGEST], result
    ),
    "select_n": _select,
    "convert_element_type": _convert,
    "stop_gradient": lambda t, values, params, result: values[0],
    "copy": lambda t, values, params, result: values[0],
    "reduce_sum": _reduce("sum"),
    "reduce_max": _reduce("max"),
    "reduce_min": _reduce("min"),
    "argmax": _argmax,
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": lambda t, values, params, result: t.reshape(values[0], result),
    "squeeze": lambda t, values, params, result: t.reshape(values[0], result),
    "expand_dims": lambda t, values, params, result: t.reshape(values[0], result),
    "transpose": lambda t, values, params, result: t.transpose(values[0], params["permutation"]),
    "concatenate": lambda t, values, params, result: t.concatenate(values, params["dimension"]),
    "stack": _stack,
    "tile": _tile,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "gather": _gather,
    "dot_general": _dot_general,
}
