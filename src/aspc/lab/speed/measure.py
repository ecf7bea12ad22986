"""How fast training is on this machine, and how fast matrix products alone would let it be.

The limit: the matrix products of a step are read off its program (shapes and how often), each is timed by itself in
the same process, and their sum is the time that a step takes if all else were free.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from aspc import algorithms
from aspc.algorithms.interface import Spec
from aspc.data.cache import notify_if_slow
from aspc.errors import AspcError
from aspc.training.compiled_loop import Loop, Runs, Source, at, on_accelerator, start_runs
from aspc.training.packed_table import Layout
from aspc.training.run_config import replace_fields

ROWS = 100_000  # of the synthetic dataset
REPEATS = 3  # timings of which the median counts
COMPARE_ROUNDS = 7


class Product(NamedTuple):
    """A matrix product: shapes of its operands and the axes that are contracted and batched."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    dimension_numbers: Any

    @property
    def flops(self) -> float:
        """Two for each multiply-and-add."""
        (_, contracted), (_, batched) = self.dimension_numbers
        free_right = [n for axis, n in enumerate(self.right) if axis not in (*contracted, *batched)]
        return 2.0 * float(np.prod(self.left)) * float(np.prod(free_right))


def products_of(jaxpr: Any, times: float = 1.0) -> Counter[Product]:
    """All matrix products of a program, those inside loops as often as they run."""
    found: Counter[Product] = Counter()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            left, right = (variable.aval.shape for variable in equation.invars)
            found[Product(left, right, equation.params["dimension_numbers"])] += times  # type: ignore[assignment]
        inner_times = times * (equation.params.get("length") or 1) if equation.primitive.name == "scan" else times
        for value in equation.params.values():
            for inner in value if isinstance(value, list | tuple) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    found.update(products_of(inner, inner_times))
    return found


def step_products(loop: Loop, state: Any, inputs: Any) -> dict[Product, float]:
    """The matrix products of an average step of the schedule."""
    schedule = loop.algorithm.schedule()
    steps = [parts for segment in schedule for parts in segment.steps * segment.repeats]
    total: Counter[Product] = Counter()
    for parts, count in Counter(steps).items():
        jaxpr = jax.make_jaxpr(lambda s, x, parts=parts: loop.algorithm.update(s, *x, parts))(state, inputs).jaxpr
        total.update({p: n * count for p, n in products_of(dead_code_removed(jaxpr)).items()})
    return {product: n / len(steps) for product, n in total.items()}


def dead_code_removed(jaxpr: Any) -> Any:
    """What is computed for nothing does not count: the compiler leaves it out too."""
    from jax.interpreters import partial_eval

    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]


def seconds_of(product: Product, runs: int, together: int, at_least: float = 0.05) -> float:
    """Time of one such product (of `runs` at once where runs are vectorised), alone and in a compiled loop.

    `together` products share one turn of the loop: on a GPU the turn itself costs more than a product.
    """
    dims = product.dimension_numbers
    keys = jax.random.split(jax.random.key(0))
    left = jax.random.normal(keys[0], (together, runs, *product.left))
    right = jax.random.normal(keys[1], (runs, *product.right))
    if runs == 1:
        left, right = left[:, 0], right[0]
        multiply: Callable = lambda a, b: jax.lax.dot_general(a, b, dims)  # noqa: E731
    else:
        multiply = jax.vmap(lambda a, b: jax.lax.dot_general(a, b, dims))

    def body(_: Any, left: jax.Array) -> jax.Array:
        # One number of the results goes back in, so that no product can be left out or moved out of the loop.
        results = jax.lax.optimization_barrier([multiply(left[i], right) for i in range(together)])
        return left.at[(0,) * left.ndim].set(results[-1].ravel()[0] * 1e-30)

    @jax.jit
    def repeated(left: jax.Array, times: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, times, body, left)

    repeated(left, 1).block_until_ready()
    times = 8
    while True:
        begin = time.perf_counter()
        repeated(left, times).block_until_ready()
        spent = time.perf_counter() - begin
        if spent >= at_least:
            return spent / times / together
        times *= 4


class Prepared:
    """An algorithm compiled on synthetic data, ready to be timed chunk by chunk."""

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
        own_batch = {} if batch is None else {"batch_size": batch}
        self.algorithm = replace_fields(algorithms.default(algo), {**own_batch, **hyper})
        self.algo, self.seeds, self.device = algo, seeds, jax.devices()[0]
        spec = Spec(obs_dim, act_dim)
        layout = Layout(obs_dim, act_dim, bool(getattr(self.algorithm, "uses_next_actions", False)))
        self.loop = Loop(self.algorithm, spec, layout, vectorise=on_accelerator())
        if steps < self.loop.block_steps:
            raise AspcError(f"--steps must be at least {self.loop.block_steps} for {algo}.")
        self.blocks = steps // self.loop.block_steps
        self.steps = self.blocks * self.loop.block_steps
        self.table = synthetic_table(layout, rows)
        self.restart()
        with notify_if_slow(f"compiling {algo} for {seeds} run{'s' * (seeds > 1)} …"):
            begin = time.perf_counter()
            self.program = self.loop.run_blocks.lower(
                self.loop, self.state, self.runs, self.table, jnp.asarray(0), blocks=self.blocks
            ).compile()
            self.compile_seconds = time.perf_counter() - begin
        self.chunk()  # warm up

    def restart(self) -> None:
        """Fresh runs from the same seeds."""
        source = Source(jnp.zeros(self.seeds, jnp.int32), jnp.full(self.seeds, len(self.table), jnp.int32))
        runs = start_runs(self.algorithm, self.loop.spec, jnp.arange(self.seeds), source)
        self.state, self.runs, self.done = runs.state, runs._replace(state=None), 0

    def facts(self) -> dict[str, Any]:
        """What was timed, and on what."""
        return {
            "algo": self.algo,
            "device": f"{self.device.platform}: {self.device.device_kind}",
            "matmul_precision": str(jax.config.values["jax_default_matmul_precision"] or "default"),
            "obs_dim": self.loop.spec.obs_dim,
            "act_dim": self.loop.spec.act_dim,
            "batch": self.algorithm.batch_size,
            "seeds": self.seeds,
        }

    def chunk(self) -> float:
        """Train one chunk of all runs; returns its seconds."""
        with notify_if_slow(f"timing {self.steps * self.seeds:,} steps of {self.algo} …"):
            begin = time.perf_counter()
            first_block = jnp.asarray(self.done * self.blocks)
            self.state, _ = jax.block_until_ready(self.program(self.state, self.runs, self.table, first_block))
            self.done += 1
            return time.perf_counter() - begin

    def products(self) -> dict[Product, float]:
        """The matrix products of an average step of one run."""
        one = Runs(None, *at(tuple(self.runs)[1:], 0))
        inputs = at(self.loop.draw_block(self.algorithm, self.table, one, jnp.asarray(0)), 0)
        return step_products(self.loop, at(self.state, 0), inputs)

    def bound_seconds(self) -> float:
        """Seconds that the matrix products alone take, for a step of one run."""
        runs = self.seeds if self.loop.vectorise else 1
        together = max(16 // runs, 1) if on_accelerator() else 1
        return sum(n * seconds_of(product, runs, together) for product, n in self.products().items()) / runs

    def flops(self) -> float:
        return sum(n * product.flops for product, n in self.products().items())


def measure(
    algo: str, obs_dim: int, act_dim: int, batch: int | None, seeds: int, steps: int, bound: bool = True, **hyper: Any
) -> dict[str, Any]:
    """Train on synthetic data and time it; see `aspc speed --help`. Without a batch size, the algorithm's own.

    The `bound` by matrix products is timed too, unless it is not wanted.
    """
    return measured(Prepared(algo, obs_dim, act_dim, batch, seeds, steps, **hyper), bound)


def measured(prepared: Prepared, bound: bool = True) -> dict[str, Any]:
    """What `aspc speed` says of a prepared algorithm."""
    seconds = statistics.median(prepared.chunk() for _ in range(REPEATS))
    rate = prepared.steps * prepared.seeds / seconds
    result = {
        **prepared.facts(),
        "steps": prepared.steps,
        "compile_seconds": prepared.compile_seconds,
        "steps_per_second": rate,
    }
    memory = prepared.device.memory_stats() or {}
    if "peak_bytes_in_use" in memory:
        result["peak_device_memory_mib"] = memory["peak_bytes_in_use"] / 2**20
    if not bound:
        return result
    with notify_if_slow("timing its matrix products by themselves …"):
        flops, bound_seconds = prepared.flops(), prepared.bound_seconds()
    return {
        **result,
        "flops_per_step": flops,
        "matmul_flops_per_second": flops / bound_seconds,
        "matmul_bound_steps_per_second": 1 / bound_seconds,
        "share_of_matmul_bound": rate * bound_seconds,
    }


def compare(algos: Sequence[str], obs_dim: int, act_dim: int, batch: int, seeds: int, steps: int) -> list[dict]:
    """Several algorithms, timed in turn so that all see the same machine; times are relative to the first one's."""
    prepared = [Prepared(algo, obs_dim, act_dim, batch, seeds, steps) for algo in algos]
    seconds = [[p.chunk() / p.steps for p in prepared] for _ in range(COMPARE_ROUNDS)]
    rows = []
    for i, p in enumerate(prepared):
        relative = statistics.median(round_[i] / round_[0] for round_ in seconds)
        rate = seeds / statistics.median(round_[i] for round_ in seconds)
        rows.append({**p.facts(), "steps_per_second": rate, "relative_time": relative})
    return rows


def sweep(
    algo: str, obs_dim: int, act_dim: int, batch: int, many_seeds: Sequence[int], steps: int, rows: int = ROWS
) -> Iterator[dict[str, Any]]:
    """The rate for each number of runs that train together."""
    for seeds in many_seeds:
        yield measure(algo, obs_dim, act_dim, batch, seeds, steps, bound=False, rows=rows)


def synthetic_table(layout: Layout, rows: int = ROWS) -> jax.Array:
    """Random rows with actions in ±1 and nobody ending."""
    table = np.random.default_rng(0).standard_normal((rows, layout.width), dtype=np.float32)
    obs, act = layout.obs_dim, layout.act_dim
    table[:, obs : obs + act] = np.tanh(table[:, obs : obs + act])
    table[:, obs + act + 1] = 1.0
    return jnp.asarray(table)
