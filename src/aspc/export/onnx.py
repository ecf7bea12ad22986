"""Export a policy as an ONNX graph, by running `aspc.policy_kinds` on symbols.

A `Symbol` stands for an array: every operation on it adds a node to the graph. It carries an example value, which
gives its shape; the example's batch size never enters the graph, where that axis stays dynamic.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from aspc.errors import MissingExtra
from aspc.policy import Policy
from aspc.policy_kinds import compute_actions, propagate_invalid

OPSET, IR_VERSION = 17, 8  # of 2022, so that deployed runtimes support them
EXAMPLE_BATCH = 2


def onnx_model(policy: Policy, metadata: dict[str, Any]) -> Any:
    """Return the checked `onnx.ModelProto`: inputs `observations` and the policy's noise, output `actions`.

    A graph cannot raise an error or keep state: an observation with NaN or infinity gives a NaN action.
    """
    try:
        import onnx
    except ImportError as error:
        raise MissingExtra("Writing ONNX", "onnx") from error

    graph = Graph(onnx)
    observations = graph.input("observations", (None, policy.observation_size))
    noise = [graph.input(name, draw.shape) for name, draw in policy.noise().items()]
    computed = propagate_invalid(compute_actions(policy, observations, noise), observations)
    actions = graph.node("Identity", np.copy, computed, name="actions")
    out = onnx.helper.make_tensor_value_info(actions.name, onnx.TensorProto.FLOAT, ["batch", policy.action_size])
    model = onnx.helper.make_model(
        onnx.helper.make_graph(graph.nodes, "policy", graph.inputs, [out], graph.initializers),
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
        """Add an input; None in the shape is the batch."""
        dims = ["batch" if size is None else size for size in shape]
        self.inputs.append(self.onnx.helper.make_tensor_value_info(name, self.onnx.TensorProto.FLOAT, dims))
        example = np.zeros([EXAMPLE_BATCH if size is None else size for size in shape], np.float32)
        return Symbol(self, name, example)

    def constant(self, value: Any) -> str:
        """Add a constant and return its name. Integers become int64, all else float32."""
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
        """Add a node. `compute` does the same to the examples; `extra` are additional inputs of the node only."""
        name = name or f"{op.lower()}{len(self.nodes)}"
        names = [x.name if isinstance(x, Symbol) else self.constant(x) for x in (*inputs, *extra)]
        self.nodes.append(self.onnx.helper.make_node(op, names, [name], **options))
        return Symbol(self, name, compute(*(x.example if isinstance(x, Symbol) else x for x in inputs)))


def _operator(op: str, compute: Callable[..., Any]) -> tuple[Callable[..., Symbol], Callable[..., Symbol]]:
    """Return a binary operator and its reflected version, with numbers as float32."""
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

    def mean(self, axis: int, keepdims: bool = False) -> Symbol:
        return self._reduce("ReduceMean", np.mean, axis, keepdims)

    def min(self, axis: int, keepdims: bool = False) -> Symbol:
        return self._reduce("ReduceMin", np.min, axis, keepdims)

    def _reduce(self, op: str, compute: Callable[..., Any], axis: int, keepdims: bool) -> Symbol:
        return self.graph.node(
            op, lambda x: compute(x, axis=axis, keepdims=keepdims), self, axes=[axis], keepdims=int(keepdims)
        )

    def __getitem__(self, key: Any) -> Symbol:
        """Index as in NumPy, with full slices, `...`, new axes and integers."""
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
                raise TypeError(f"a symbol cannot be indexed with {part!r}")
            axis += 1
        return result

    def _with_axis(self, axis: int) -> Symbol:
        return self.graph.node("Unsqueeze", lambda x: np.expand_dims(x, axis), self, extra=(np.array([axis]),))

    def _at(self, axis: int, index: int) -> Symbol:
        return self.graph.node("Gather", lambda x: x.take(index, axis), self, extra=(np.array(index),), axis=axis)

    def __array_namespace__(self) -> type[Functions]:
        return Functions


class Functions:
    """NumPy's functions for symbols."""

    @staticmethod
    def tanh(x: Symbol) -> Symbol:
        return x.graph.node("Tanh", np.tanh, x)

    @staticmethod
    def exp(x: Symbol) -> Symbol:
        return x.graph.node("Exp", np.exp, x)

    @staticmethod
    def sqrt(x: Symbol) -> Symbol:
        return x.graph.node("Sqrt", np.sqrt, x)

    @staticmethod
    def maximum(x: Symbol, y: Any) -> Symbol:
        return x.graph.node("Max", np.maximum, x, _float(y))

    @staticmethod
    def minimum(x: Symbol, y: Any) -> Symbol:
        return x.graph.node("Min", np.minimum, x, _float(y))

    @staticmethod
    def argmax(x: Symbol, axis: int) -> Symbol:
        return x.graph.node("ArgMax", lambda value: np.argmax(value, axis=axis), x, axis=axis, keepdims=0)

    @staticmethod
    def take_along_axis(x: Symbol, index: Symbol, axis: int) -> Symbol:
        """Gather along an axis. An index of size 1 on other axes is repeated, except on the first (the batch)."""
        sizes = np.array([1, *(1 if i == axis else size for i, size in enumerate(x.shape) if i)])
        repeated = index.graph.node("Expand", lambda i: np.broadcast_to(i, (len(i), *sizes[1:])), index, extra=(sizes,))
        return x.graph.node(
            "GatherElements", lambda value, i: np.take_along_axis(value, i, axis), x, repeated, axis=axis
        )
