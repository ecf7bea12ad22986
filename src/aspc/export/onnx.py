"""Export a policy as an ONNX graph, by running `aspc.policy_memory.step_or_nan` on symbols.

A `Symbol` stands for an array: every operation on it adds a node to the graph. It carries an example value that
determines its shape. The example's batch size never enters the graph, whose batch axis stays dynamic.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from aspc.errors import MissingExtra
from aspc.policy import Policy
from aspc.policy_choices import choice_indices
from aspc.policy_kinds import compute_logits
from aspc.policy_memory import step_or_nan

Axis = int | tuple[int, ...]

OPSET, IR_VERSION = 17, 8  # from 2022, so that deployed runtimes support them
EXAMPLE_BATCH = 2


def onnx_model(policy: Policy, metadata: dict[str, Any]) -> Any:
    """Return the checked `onnx.ModelProto`: inputs `observations` and the policy's noise, output `actions`.

    A policy with memory also has the input `memory` and the output `next_memory`. A policy with discrete actions also
    has the outputs `logits` and `choices`, the indices of the chosen options (−1 if none is allowed). A graph cannot
    raise an error, so an observation with NaN or infinity results in a NaN action.
    """
    try:
        import onnx
    except ImportError as error:
        raise MissingExtra("Writing ONNX", "onnx") from error

    graph = Graph(onnx)
    observations = graph.input("observations", (None, policy.observation_size))
    memory = graph.input("memory", (None, policy.memory_size)) if policy.memory_size else None
    noise = [graph.input(name, draw.shape) for name, draw in policy.noise().items()]
    actions, next_memory = step_or_nan(policy, observations, memory, noise)
    outputs = [graph.output("actions", actions)]
    if memory is not None:
        outputs.append(graph.output("next_memory", next_memory))
    if policy.kind == "categorical" and any(policy.settings["factors"]):
        chosen = graph.node(
            "Cast", lambda x: x.astype(np.int64), choice_indices(policy, actions), to=onnx.TensorProto.INT64
        )
        outputs += [
            graph.output("logits", compute_logits(policy, observations)),
            graph.output("choices", chosen, onnx.TensorProto.INT64),
        ]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(graph.nodes, "policy", graph.inputs, outputs, graph.initializers),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="aspc",
    )
    onnx.helper.set_model_props(
        model, {name: value if isinstance(value, str) else json.dumps(value) for name, value in metadata.items()}
    )
    onnx.checker.check_model(model, full_check=True)
    return model


class Graph:
    """The nodes, inputs and weights of a graph under construction."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.initializers: list[Any] = []

    def input(self, name: str, shape: tuple[int | None, ...]) -> Symbol:
        """Add an input; None in the shape is the batch axis."""
        dims = ["batch" if size is None else size for size in shape]
        self.inputs.append(self.onnx.helper.make_tensor_value_info(name, self.onnx.TensorProto.FLOAT, dims))
        example = np.zeros([EXAMPLE_BATCH if size is None else size for size in shape], np.float32)
        return Symbol(self, name, example)

    def output(self, name: str, symbol: Symbol, dtype: int | None = None) -> Any:
        """Name a result and return its description as an output [batch, size]; `dtype` defaults to float."""
        result = self.node("Identity", np.copy, symbol, name=name)
        dtype = self.onnx.TensorProto.FLOAT if dtype is None else dtype
        return self.onnx.helper.make_tensor_value_info(name, dtype, ["batch", result.shape[1]])

    def constant(self, value: Any) -> str:
        """Add a constant and return its name. Integers become int64, all other values float32."""
        array = np.asarray(value)
        array = np.ascontiguousarray(array, np.int64 if array.dtype.kind in "iu" else np.float32)
        name = f"constant{len(self.initializers)}"
        self.initializers.append(self.onnx.numpy_helper.from_array(array.reshape(np.shape(value)), name))
        return name

    def node(
        self,
        op: str,
        compute: Callable[..., Any],
        *inputs: Any,
        extra: tuple[Any, ...] = (),
        name: str = "",
        **options: Any,
    ) -> Symbol:
        """Add a node. `compute` applies its operation to the examples of `inputs`; only the node receives `extra`."""
        name = name or f"{op.lower()}{len(self.nodes)}"
        names = [x.name if isinstance(x, Symbol) else self.constant(x) for x in (*inputs, *extra)]
        self.nodes.append(self.onnx.helper.make_node(op, names, [name], **options))
        return Symbol(self, name, compute(*(x.example if isinstance(x, Symbol) else x for x in inputs)))


def _operator(op: str, compute: Callable[..., Any]) -> tuple[Callable[..., Symbol], Callable[..., Symbol]]:
    """Return a binary operator and its reflected version, which convert other operands to float32."""
    return (
        lambda self, other: self.graph.node(op, compute, self, _float(other)),
        lambda self, other: self.graph.node(op, compute, _float(other), self),
    )


def _float(value: Any) -> Any:
    return value if isinstance(value, Symbol) else np.asarray(value, np.float32)


class Symbol:
    """An array in a graph, with the operations that `aspc.policy_kinds` uses."""

    __array_ufunc__ = None  # so that NumPy defers `array + symbol` to this class

    def __init__(self, graph: Graph, name: str, example: np.ndarray) -> None:
        self.graph, self.name, self.example = graph, name, example

    @property
    def shape(self) -> tuple[int, ...]:
        return self.example.shape

    @property
    def ndim(self) -> int:
        return self.example.ndim

    __add__, __radd__ = _operator("Add", np.add)
    __sub__, __rsub__ = _operator("Sub", np.subtract)
    __mul__, __rmul__ = _operator("Mul", np.multiply)
    __truediv__, __rtruediv__ = _operator("Div", np.divide)
    __matmul__, __rmatmul__ = _operator("MatMul", np.matmul)

    def mean(self, axis: Axis, keepdims: bool = False) -> Symbol:
        return self._reduce("ReduceMean", np.mean, axis, keepdims)

    def min(self, axis: Axis, keepdims: bool = False) -> Symbol:
        return self._reduce("ReduceMin", np.min, axis, keepdims)

    def max(self, axis: Axis, keepdims: bool = False) -> Symbol:
        return self._reduce("ReduceMax", np.max, axis, keepdims)

    def sum(self, axis: Axis) -> Symbol:
        axes = np.array(axis).reshape(-1)  # an input of the node, not an attribute as in the other reductions
        return self.graph.node("ReduceSum", lambda x: x.sum(axis=axis), self, extra=(axes,), keepdims=0)

    def _reduce(self, op: str, compute: Callable[..., Any], axis: Axis, keepdims: bool) -> Symbol:
        axes = [axis] if isinstance(axis, int) else list(axis)
        return self.graph.node(
            op, lambda x: compute(x, axis=axis, keepdims=keepdims), self, axes=axes, keepdims=int(keepdims)
        )

    def reshape(self, shape: list[int]) -> Symbol:
        return self.graph.node("Reshape", lambda x: x.reshape(shape), self, extra=(np.array(shape, np.int64),))

    def transpose(self, axes: list[int]) -> Symbol:
        return self.graph.node("Transpose", lambda x: x.transpose(axes), self, perm=axes)

    def astype(self, dtype: type[np.float32]) -> Symbol:
        return self.graph.node("Cast", lambda x: x.astype(dtype), self, to=self.graph.onnx.TensorProto.FLOAT)

    def __getitem__(self, key: Any) -> Symbol:
        """Index as in NumPy, with slices, `...`, new axes and integers."""
        parts = list(key) if isinstance(key, tuple) else [key]
        if Ellipsis in parts:
            i = parts.index(Ellipsis)
            rest = self.ndim - sum(part is not None for part in parts) + 1
            parts[i : i + 1] = [slice(None)] * rest
        result, axis = self, 0
        for part in parts:
            if part is None:
                result = result._with_axis(axis)
            elif isinstance(part, int):
                result = result._at(axis, part)
                continue
            elif part != slice(None):
                result = result._range(axis, part)
            axis += 1
        return result

    def _range(self, axis: int, part: Any) -> Symbol:
        if not isinstance(part, slice) or part.step is not None:
            raise TypeError(f"a symbol cannot be indexed with {part!r}")
        last = np.iinfo(np.int64).max if part.stop is None else part.stop
        extra = tuple(np.array([n]) for n in (part.start or 0, last, axis))
        index = (*(slice(None),) * axis, part)
        return self.graph.node("Slice", lambda x: x[index], self, extra=extra)

    def _with_axis(self, axis: int) -> Symbol:
        return self.graph.node("Unsqueeze", lambda x: np.expand_dims(x, axis), self, extra=(np.array([axis]),))

    def _at(self, axis: int, index: int) -> Symbol:
        return self.graph.node("Gather", lambda x: x.take(index, axis), self, extra=(np.array(index),), axis=axis)

    def __array_namespace__(self) -> type[Functions]:
        return Functions


def _function(op: str, compute: Callable[..., Any]) -> Any:
    """Return a NumPy function for symbols, which converts other inputs to float32."""

    def apply(*inputs: Any) -> Symbol:
        return _graph_of(inputs).node(op, compute, *map(_float, inputs))

    return staticmethod(apply)


def _graph_of(inputs: Iterable[Any]) -> Graph:
    return next(x.graph for x in inputs if isinstance(x, Symbol))


class Functions:
    """NumPy's functions for symbols."""

    tanh, exp, log, sqrt = (_function(f.__name__.title(), f) for f in (np.tanh, np.exp, np.log, np.sqrt))
    sin, cos, floor, sign = (_function(f.__name__.title(), f) for f in (np.sin, np.cos, np.floor, np.sign))
    abs = _function("Abs", np.abs)
    add, subtract = _function("Add", np.add), _function("Sub", np.subtract)
    multiply, divide = _function("Mul", np.multiply), _function("Div", np.divide)
    power = _function("Pow", np.power)
    maximum, minimum = _function("Max", np.maximum), _function("Min", np.minimum)
    equal, less, less_equal = (
        _function("Equal", np.equal),
        _function("Less", np.less),
        _function("LessOrEqual", np.less_equal),
    )
    logical_and, logical_or = _function("And", np.logical_and), _function("Or", np.logical_or)
    logical_not = _function("Not", np.logical_not)
    where = _function("Where", np.where)

    @staticmethod
    def concatenate(parts: tuple[Any, ...], axis: int) -> Symbol:
        return _graph_of(parts).node(
            "Concat", lambda *values: np.concatenate(values, axis), *map(_float, parts), axis=axis
        )

    @staticmethod
    def broadcast_to(x: Symbol, shape: list[int]) -> Symbol:
        return x.graph.node(
            "Expand", lambda value: np.broadcast_to(value, shape), x, extra=(np.array(shape, np.int64),)
        )

    @staticmethod
    def argmax(x: Symbol, axis: int) -> Symbol:
        return x.graph.node("ArgMax", lambda value: np.argmax(value, axis=axis), x, axis=axis, keepdims=0)

    @staticmethod
    def take_along_axis(x: Symbol, index: Symbol, axis: int) -> Symbol:
        """Gather along an axis. The index is broadcast along other axes of size 1, except the first (the batch)."""
        sizes = np.array([1, *(1 if i == axis else size for i, size in enumerate(x.shape) if i)])
        repeated = index.graph.node("Expand", lambda i: np.broadcast_to(i, (len(i), *sizes[1:])), index, extra=(sizes,))
        return x.graph.node(
            "GatherElements", lambda value, i: np.take_along_axis(value, i, axis), x, repeated, axis=axis
        )
