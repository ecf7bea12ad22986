"""Measure the speed of training on this machine, and compare it with a bound set by the matrix products.

The bound is the time that a step would take if everything except its matrix products took no time. The shapes and the
number of the products are read from the step's program, and each product is timed alone in the same process.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.interpreters import partial_eval

from aspc import algorithms
from aspc.algorithms.interface import Algorithm, Batch, Metrics, Noise, Parts, Spec
from aspc.errors import AspcError
from aspc.training.compiled_loop import Loop, RowRange, Runs, on_accelerator, start_runs, tree_index
from aspc.training.hyperparameters import replace_fields
from aspc.training.packed_table import Layout
from aspc.ui import notify_if_slow

ROWS = 100_000  # in the synthetic dataset
REPEATS = 3  # number of timings, of which the median is reported
COMPARE_ROUNDS = 7

State = TypeVar("State")


class MatrixProduct(NamedTuple):
    """A matrix product: the shapes of its operands, and their contracted and batched axes."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    dimension_numbers: Any

    @property
    def flops(self) -> float:
        """Number of floating-point operations; a multiply-add counts as two."""
        (_, contracted), (_, batched) = self.dimension_numbers
        free_right = [n for axis, n in enumerate(self.right) if axis not in (*contracted, *batched)]
        return 2.0 * float(np.prod(self.left)) * float(np.prod(free_right))


def count_products(jaxpr: Jaxpr, times: float = 1.0) -> dict[MatrixProduct, float]:
    """Count the matrix products in a program. Products inside a loop are counted once per iteration."""
    counts: defaultdict[MatrixProduct, float] = defaultdict(float)
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            left, right = (cast(ShapedArray, variable.aval).shape for variable in equation.invars)
            counts[MatrixProduct(left, right, equation.params["dimension_numbers"])] += times
        iterations = (equation.params.get("length") or 1) if equation.primitive.name == "scan" else 1
        for inner in _inner_programs(equation.params):
            _add_counts(counts, count_products(inner, times * iterations))
    return counts


def _inner_programs(params: Mapping[str, Any]) -> Iterator[Jaxpr]:
    """Yield the programs among the parameters of an operation."""
    for value in params.values():
        for item in value if isinstance(value, list | tuple) else [value]:
            if isinstance(item, ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, Jaxpr):
                yield item


def _add_counts(
    counts: defaultdict[MatrixProduct, float], others: Mapping[MatrixProduct, float], factor: float = 1.0
) -> None:
    for product, count in others.items():
        counts[product] += factor * count


def count_step_products(
    algorithm: Algorithm[State], state: State, inputs: tuple[Batch, Noise]
) -> dict[MatrixProduct, float]:
    """Count the matrix products in an average step of the schedule."""
    schedule = algorithm.schedule()
    steps = [parts for segment in schedule for parts in segment.steps * segment.repeats]
    counts: defaultdict[MatrixProduct, float] = defaultdict(float)
    for parts, repeats in Counter(steps).items():
        update = partial(_update, algorithm, parts)
        program = eliminate_dead_code(jax.make_jaxpr(update)(state, inputs).jaxpr)
        _add_counts(counts, count_products(program), repeats / len(steps))
    return counts


def _update(
    algorithm: Algorithm[State], parts: Parts, state: State, inputs: tuple[Batch, Noise]
) -> tuple[State, Metrics]:
    return algorithm.update(state, *inputs, parts)


def eliminate_dead_code(jaxpr: Jaxpr) -> Jaxpr:
    """Remove unused operations, as the compiler does."""
    program: Jaxpr = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]
    return program


def time_product(product: MatrixProduct, runs: int, per_iteration: int, min_seconds: float = 0.05) -> float:
    """Return the time that one matrix product takes in a compiled loop, in seconds.

    Args:
        product: The matrix product to time.
        runs: The number of vectorized runs, whose products are computed together.
        per_iteration: Number of products per loop iteration. On a GPU, the overhead of an iteration exceeds the time of
            one product, so that several products are needed.
        min_seconds: Minimum duration of the measurement.
    """
    dims = product.dimension_numbers
    keys = jax.random.split(jax.random.key(0))
    left = jax.random.normal(keys[0], (per_iteration, runs, *product.left))
    right = jax.random.normal(keys[1], (runs, *product.right))
    if runs == 1:
        left, right = left[:, 0], right[0]

    def multiply_one(left: jax.Array, right: jax.Array) -> jax.Array:
        return jax.lax.dot_general(left, right, dims)

    multiply = multiply_one if runs == 1 else jax.vmap(multiply_one)

    def body(_: Any, left: jax.Array) -> jax.Array:
        # The next iteration uses a result, so that the compiler can neither remove products nor hoist them.
        products = [multiply(left[i], right) for i in range(per_iteration)]
        results = jax.lax.optimization_barrier(products)  # type: ignore[no-untyped-call]
        return left.at[(0,) * left.ndim].set(results[-1].ravel()[0] * 1e-30)

    @jax.jit
    def repeated(left: jax.Array, times: jax.Array) -> jax.Array:
        result: jax.Array = jax.lax.fori_loop(0, times, body, left)
        return result

    repeated(left, 1).block_until_ready()
    times = 8
    while True:
        begin = time.perf_counter()
        repeated(left, times).block_until_ready()
        seconds = time.perf_counter() - begin
        if seconds >= min_seconds:
            return seconds / times / per_iteration
        times *= 4


class SpeedBenchmark:
    """An algorithm that is compiled for synthetic data and can be timed in chunks of steps."""

    def __init__(
        self,
        algo: str,
        obs_dim: int,
        act_dim: int,
        batch: int | None,
        seeds: int,
        steps: int,
        rows: int = ROWS,
        **hyper: Any,
    ) -> None:
        sizes = {"obs-dim": obs_dim, "act-dim": act_dim, "batch": 1 if batch is None else batch, "seeds": seeds}
        for name, value in sizes.items():
            if value < 1:
                raise AspcError(f"--{name} must be at least 1.")
        batch_size = {} if batch is None else {"batch_size": batch}
        self.algorithm = replace_fields(algorithms.default(algo), {**batch_size, **hyper})
        self.algo, self.seeds, self.device = algo, seeds, jax.devices()[0]
        # An algorithm for discrete actions is timed with one choice among `act_dim` options.
        self.has_choices = self.algorithm.handles_choices
        spec = Spec(obs_dim, act_dim, factors=(act_dim,) if self.has_choices else ())
        layout = Layout(obs_dim, act_dim, self.algorithm.uses_next_actions)
        self.loop = Loop(self.algorithm, spec, layout, vectorize=on_accelerator())
        if steps < self.loop.block_steps:
            raise AspcError(f"--steps must be at least {self.loop.block_steps} for {algo}.")
        self.blocks = steps // self.loop.block_steps
        self.steps = self.blocks * self.loop.block_steps
        self.table = synthetic_table(layout, rows, self.has_choices)
        self.restart()
        with notify_if_slow(f"compiling {algo} for {seeds} run{'s' * (seeds > 1)} …"):
            begin = time.perf_counter()
            self.program = self.loop.run_blocks.lower(
                self.loop, self.state, self.runs, self.table, jnp.asarray(0), blocks=self.blocks
            ).compile()
            self.compile_seconds = time.perf_counter() - begin
        self.time_chunk()  # warm up

    def restart(self) -> None:
        """Restart all runs from their initial states, with the same seeds."""
        source = RowRange(jnp.zeros(self.seeds, jnp.int32), jnp.full(self.seeds, len(self.table), jnp.int32))
        runs = start_runs(self.algorithm, self.loop.spec, jnp.arange(self.seeds), source)
        self.state, self.runs, self.done = runs.state, runs._replace(state=None), 0

    def describe(self) -> dict[str, Any]:
        """Return the algorithm, the sizes and the device as columns of the results."""
        return {
            "algo": self.algo,
            "device": f"{self.device.platform}: {self.device.device_kind}",
            "matmul_precision": str(jax.config.values["jax_default_matmul_precision"] or "default"),
            "obs_dim": self.loop.spec.obs_dim,
            "act_dim": self.loop.spec.act_dim,
            **({"actions": "one choice"} if self.has_choices else {}),
            "batch": self.algorithm.batch_size,
            "seeds": self.seeds,
        }

    def time_chunk(self) -> float:
        """Train all runs for one chunk and return its duration in seconds."""
        with notify_if_slow(f"timing {self.steps * self.seeds:,} steps of {self.algo} …"):
            begin = time.perf_counter()
            first_block = jnp.asarray(self.done * self.blocks)
            outputs = self.program(self.state, self.runs, self.table, first_block)
            self.state, _ = jax.block_until_ready(outputs)  # type: ignore[no-untyped-call]
            self.done += 1
            return time.perf_counter() - begin

    def count_products(self) -> dict[MatrixProduct, float]:
        """Count the matrix products in an average step of one run."""
        one = Runs(None, *tree_index(tuple(self.runs)[1:], 0))
        inputs = tree_index(self.loop.sample_block(self.algorithm, self.table, one, jnp.asarray(0)), 0)
        return count_step_products(self.algorithm, tree_index(self.state, 0), inputs)

    def bound_seconds(self) -> float:
        """Return the time that the matrix products of one run take per step, in seconds."""
        runs = self.seeds if self.loop.vectorize else 1
        per_iteration = max(16 // runs, 1) if on_accelerator() else 1
        return (
            sum(n * time_product(product, runs, per_iteration) for product, n in self.count_products().items()) / runs
        )

    def flops(self) -> float:
        """Return the number of floating-point operations in the matrix products of an average step of one run."""
        return sum(n * product.flops for product, n in self.count_products().items())


def measure(
    algo: str, obs_dim: int, act_dim: int, batch: int | None, seeds: int, steps: int, bound: bool = True, **hyper: Any
) -> dict[str, Any]:
    """Measure the speed of an algorithm on synthetic data and return the measurements that `aspc speed` prints.

    Args:
        algo: The algorithm's name.
        obs_dim: Observation size.
        act_dim: Action size.
        batch: Minibatch size, or None for the algorithm's default.
        seeds: Number of runs that train together.
        steps: Number of steps to time.
        bound: Whether to also time the matrix products alone.
        hyper: Additional hyperparameters.
    """
    return measure_benchmark(SpeedBenchmark(algo, obs_dim, act_dim, batch, seeds, steps, **hyper), bound)


def measure_benchmark(benchmark: SpeedBenchmark, bound: bool = True) -> dict[str, Any]:
    """Time a benchmark and return the measurements that `aspc speed` prints."""
    seconds = statistics.median(benchmark.time_chunk() for _ in range(REPEATS))
    rate = benchmark.steps * benchmark.seeds / seconds
    result = {
        **benchmark.describe(),
        "steps": benchmark.steps,
        "compile_seconds": benchmark.compile_seconds,
        "steps_per_second": rate,
    }
    memory = benchmark.device.memory_stats() or {}
    if "peak_bytes_in_use" in memory:
        result["peak_device_memory_mib"] = memory["peak_bytes_in_use"] / 2**20
    if not bound:
        return result
    with notify_if_slow("timing the matrix products alone …"):
        flops, bound_seconds = benchmark.flops(), benchmark.bound_seconds()
    return {
        **result,
        "flops_per_step": flops,
        "matmul_flops_per_second": flops / bound_seconds,
        "matmul_bound_steps_per_second": 1 / bound_seconds,
        "share_of_matmul_bound": rate * bound_seconds,
    }


def compare(
    algos: Sequence[str], obs_dim: int, act_dim: int, batch: int, seeds: int, steps: int
) -> list[dict[str, Any]]:
    """Time several algorithms and return one row per algorithm, with its time relative to the first one.

    The algorithms are timed in turn, so that changes in the machine's load affect all of them equally.
    """
    benchmarks = [SpeedBenchmark(algo, obs_dim, act_dim, batch, seeds, steps) for algo in algos]
    seconds = [[b.time_chunk() / b.steps for b in benchmarks] for _ in range(COMPARE_ROUNDS)]
    rows = []
    for i, benchmark in enumerate(benchmarks):
        relative = statistics.median(round_[i] / round_[0] for round_ in seconds)
        rate = seeds / statistics.median(round_[i] for round_ in seconds)
        rows.append({**benchmark.describe(), "steps_per_second": rate, "relative_time": relative})
    return rows


def sweep(
    algo: str, obs_dim: int, act_dim: int, batch: int, many_seeds: Sequence[int], steps: int, rows: int = ROWS
) -> Iterator[dict[str, Any]]:
    """Yield the measurements for each given number of runs that train together."""
    for seeds in many_seeds:
        yield measure(algo, obs_dim, act_dim, batch, seeds, steps, bound=False, rows=rows)


def synthetic_table(layout: Layout, rows: int = ROWS, has_choices: bool = False) -> jax.Array:
    """Return random rows without terminal states.

    Actions are in [-1, 1] or, with `has_choices`, one-hot encoded options.
    """
    table = np.random.default_rng(0).standard_normal((rows, layout.width), dtype=np.float32)
    obs, act = layout.obs_dim, layout.act_dim
    actions = table[:, obs : obs + act]
    chosen = actions == actions.max(axis=1, keepdims=True)
    table[:, obs : obs + act] = np.where(chosen, 1, -1) if has_choices else np.tanh(actions)
    table[:, obs + act + 1] = 1.0
    return jnp.asarray(table)
