"""The compiled training loop: an algorithm's schedule as nested scans, with runs as a leading axis.

A *block* is the algorithm's schedule, repeated until it has at least `MIN_BLOCK_STEPS` steps; a longer schedule is
run twice. The minibatch indices and the noise of a block are each sampled in one call, and one gather on the device
fetches its rows.
A *chunk* is a sequence of blocks; the host synchronizes with the device once per chunk. The random numbers of step t
depend only on (run key, t), so resuming a run or changing its chunks does not change them.

If a chunk is not a whole number of blocks, a second, small program runs the remaining steps one by one. It branches on
the step counter, which all runs share, so `vmap` does not turn the branch into a select. There are never more than
these two programs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from aspc import theory
from aspc.algorithms.interface import SCALE, Algorithm, Batch, Metrics, Noise, Parts, Segment, Spec, schedule_length
from aspc.kernels import KernelChoice, default_kernels, fused
from aspc.training.hyperparameters import replace_fields
from aspc.training.packed_table import Layout

T = TypeVar("T")
BlocksResult = tuple[PyTree, Metrics]
StepsResult = tuple[PyTree, Metrics, dict[str, Array]]

MIN_BLOCK_STEPS = 20
MAX_HELD_OUT_ROWS = 4096
# Run independent kernels of a captured graph concurrently, because a single run is a chain of small kernels.
COMPILER_OPTIONS = {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"}
THEORY_STREAM = 2**32 - 1  # folded into a run's key like a block number, which never gets this large


class RowRange(NamedTuple):
    """The rows of a run in a table that several datasets can share: `size` rows starting at `offset`."""

    offset: Int[Array, "*runs"]
    size: Int[Array, "*runs"]


class Runs(NamedTuple):
    """Everything that differs between the runs of one program; every leaf has a leading axis of runs."""

    state: PyTree
    key: PRNGKeyArray
    source: RowRange
    overrides: Mapping[str, Array]  # numeric hyperparameters that differ between runs, by dotted field name


def on_accelerator() -> bool:
    """Return whether JAX's default device is an accelerator."""
    return str(jax.devices()[0].platform) != "cpu"


def start_runs(
    algorithm: Algorithm[Any],
    spec: Spec,
    seeds: Int[Array, "runs"],
    source: RowRange,
    overrides: Mapping[str, Array] | None = None,
) -> Runs:
    """Initialize one run per seed."""
    overrides = dict(overrides or {})

    def start(seed: Array, run_overrides: Mapping[str, Array]) -> tuple[PyTree, PRNGKeyArray]:
        key_init, key_run = jax.random.split(jax.random.key(seed))
        return replace_fields(algorithm, run_overrides, coerce=False).init(key_init, spec), key_run

    # This program runs only once. On a CPU, optimizing its many random draws would quadruple the compilation time.
    options = None if on_accelerator() else {"xla_backend_optimization_level": 1}
    state, keys = jax.jit(jax.vmap(start), compiler_options=options)(jnp.asarray(seeds), overrides)
    # A weak type (from a Python scalar) would become strong after one chunk and cause a recompilation.
    state = jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), state)
    return Runs(state, keys, source, overrides)


@dataclasses.dataclass(frozen=True)
class Loop:
    """The compiled training loop of one algorithm on tables of one layout."""

    algorithm: Algorithm[Any]
    spec: Spec
    layout: Layout
    vectorize: bool
    """Compute runs in parallel (`vmap`, faster on an accelerator) or sequentially (faster on a CPU)."""
    kernels: KernelChoice | Literal["auto"] | None = "auto"
    """Kernels for the networks: "auto" (chosen by the number of runs), specific kernels, or None for plain JAX."""

    # -- block -------------------------------------------------------------------------------------------------
    @property
    def repeats(self) -> int:
        """The number of repetitions of the schedule per block."""
        length = schedule_length(self.algorithm.schedule())
        # A long schedule is repeated too, because on a CPU its steps run faster inside a loop.
        return 2 if length > MIN_BLOCK_STEPS else -(-MIN_BLOCK_STEPS // length)

    @property
    def block_steps(self) -> int:
        return self.repeats * schedule_length(self.algorithm.schedule())

    def sample_minibatch_indices(
        self, key: PRNGKeyArray, source: RowRange, shape: tuple[int, ...]
    ) -> Int[Array, "..."]:
        """Sample row indices for minibatches, uniformly over the run's rows."""
        return source.offset + jax.random.randint(key, shape, 0, source.size)

    def sample_block(
        self, algorithm: Algorithm[Any], table: Float[Array, "rows width"], run: Runs, block: Int[Array, ""]
    ) -> tuple[Batch, Noise]:
        """Sample the batches and the noise of all steps of a block, with a leading axis of steps."""
        steps, batch_size = self.block_steps, algorithm.batch_size
        key_rows, key_noise = jax.random.split(jax.random.fold_in(run.key, block))
        rows = self.sample_minibatch_indices(key_rows, run.source, (steps, batch_size))
        draws = algorithm.noise(self.spec, batch_size)
        keys = jax.random.split(key_noise, max(len(draws), 1))
        noise = {name: draw.sample(key, steps) for key, (name, draw) in zip(keys, draws.items(), strict=False)}
        # The indices are in range by construction, so the gather does not have to check them.
        return self.layout.unpack(table.at[rows].get(mode="promise_in_bounds")), noise

    def run_block(
        self, algorithm: Algorithm[Any], state: PyTree, batches: Batch, noise: Noise
    ) -> tuple[PyTree, Metrics]:
        """Run all steps of a block; return the state and the last value of each metric."""
        # Trace each kind of update once and inline it: when compiled programs are cached, tracing dominates startup.
        one_step = {
            parts: jax.jit(partial(update_state, algorithm, parts), inline=True) for parts in distinct_parts(algorithm)
        }
        first_inputs = tree_index((batches, noise), 0)
        names = {parts: list(metric_shapes(step, state, first_inputs)) for parts, step in one_step.items()}

        def run_schedule(state: PyTree, inputs: PyTree) -> tuple[PyTree, Metrics]:
            metrics: Metrics = {}
            first = 0
            schedule = algorithm.schedule()
            for i, segment in enumerate(schedule):
                here = {n for parts in segment.steps for n in names[parts]}
                later = {n for s in schedule[i + 1 :] for parts in s.steps for n in names[parts]}

                def run_segment(
                    state: PyTree, inputs: PyTree, segment: Segment = segment, wanted: set[str] = here - later
                ) -> tuple[PyTree, Metrics]:
                    metrics: Metrics = {}
                    for j, parts in enumerate(segment.steps):
                        state, new = one_step[parts](state, tree_index(inputs, j))
                        metrics |= {n: v for n, v in new.items() if n in wanted}
                    return state, metrics

                length = len(segment.steps)
                rows = tree_slice(inputs, first, first + length * segment.repeats)
                state, last_metrics = repeat(run_segment, segment.repeats, state, rows)
                metrics |= last_metrics
                first += length * segment.repeats
            return state, metrics

        return repeat(run_schedule, self.repeats, state, (batches, noise))

    # -- the two programs --------------------------------------------------------------------------------------
    def map_runs(self, one_run: Callable[[Runs], T], runs: Runs) -> T:
        """Apply a function of one run to all runs."""
        result: T = jax.vmap(one_run)(runs) if self.vectorize else jax.lax.map(one_run, runs)
        return result

    def map_runs_fused(self, one_run: Callable[[Runs], T], runs: Runs) -> T:
        """Apply a function of one run to all runs, with the networks computed by `kernels`."""
        choice = default_kernels(len(runs.key)) if self.kernels == "auto" else self.kernels
        with fused(choice):
            return self.map_runs(one_run, runs)

    @partial(jax.jit, static_argnames=("self", "blocks"), donate_argnames=("state",), compiler_options=COMPILER_OPTIONS)
    def run_blocks(
        self, state: PyTree, runs: Runs, table: Float[Array, "rows width"], first_block: Int[Array, ""], *, blocks: int
    ) -> BlocksResult:
        """Run `blocks` blocks of every run. Metrics are [runs, blocks]: the last values in each block."""

        def one_run(run: Runs) -> tuple[PyTree, Metrics]:
            algorithm = replace_fields(self.algorithm, run.overrides, coerce=False)

            def one_block(state: PyTree, block: Int[Array, ""]) -> tuple[PyTree, Metrics]:
                with jax.named_scope("sampling"):
                    samples = self.sample_block(algorithm, table, run, block)
                return self.run_block(algorithm, state, *samples)

            return jax.lax.scan(one_block, run.state, first_block + jnp.arange(blocks))

        return self.map_runs_fused(one_run, runs._replace(state=state))

    @partial(jax.jit, static_argnames=("self",), donate_argnames=("state",))
    def run_steps(
        self,
        state: PyTree,
        runs: Runs,
        table: Float[Array, "rows width"],
        first_step: Int[Array, ""],
        steps: Int[Array, ""],
    ) -> StepsResult:
        """Run `steps` single steps, which may start and end inside a block.

        Returns:
            The state, the last value of each metric [runs], and whether any of these steps computed it [runs].
        """
        kinds = distinct_parts(self.algorithm)
        cycle = [parts for s in self.algorithm.schedule() for parts in s.steps * s.repeats]
        kind_of_step = jnp.asarray([kinds.index(parts) for parts in cycle])

        def one_run(run: Runs) -> StepsResult:
            algorithm = replace_fields(self.algorithm, run.overrides, coerce=False)

            def branch(parts: Parts, carry: PyTree, inputs: tuple[Batch, Noise]) -> PyTree:
                state, metrics, computed = carry
                state, new = algorithm.update(state, *inputs, parts)
                return state, metrics | new, computed | dict.fromkeys(new, jnp.array(True))

            def one_step(samples: PyTree, step: Int[Array, ""], carry: PyTree) -> PyTree:
                branches = [partial(branch, parts) for parts in kinds]
                inputs = tree_index(samples, step % self.block_steps)
                return jax.lax.switch(kind_of_step[step % len(cycle)], branches, carry, inputs)

            def part_of_block(block: Int[Array, ""], carry: PyTree) -> PyTree:
                """Run the requested steps of a block. Sampling the whole block costs as much as a few steps."""
                samples = self.sample_block(algorithm, table, run, block)
                first, last = block * self.block_steps, (block + 1) * self.block_steps
                inside = jnp.maximum(first, first_step), jnp.minimum(last, first_step + steps)
                return jax.lax.fori_loop(*inside, partial(one_step, samples), carry)

            first_inputs = jax.eval_shape(lambda: tree_index(self.sample_block(algorithm, table, run, first_step), 0))
            updates = [partial(update_state, algorithm, parts) for parts in kinds]
            shapes = {n: m for update in updates for n, m in metric_shapes(update, run.state, first_inputs).items()}
            no_metrics = {n: jnp.zeros((), m.dtype) for n, m in shapes.items()}, dict.fromkeys(shapes, jnp.array(False))
            touched = first_step // self.block_steps, -(-(first_step + steps) // self.block_steps)
            result: StepsResult = jax.lax.fori_loop(*touched, part_of_block, (run.state, *no_metrics))
            return result

        return self.map_runs_fused(one_run, runs._replace(state=state))

    @partial(jax.jit, static_argnames=("self",))
    def held_out_losses(self, state: PyTree, runs: Runs, table: Float[Array, "rows width"]) -> Metrics:
        """Return the losses of every run on held-out rows, from an update whose result is discarded."""
        rows = min(len(table), MAX_HELD_OUT_ROWS)

        def one_run(run: Runs) -> Metrics:
            algorithm = replace_fields(self.algorithm, run.overrides, coerce=False)
            keys = jax.random.split(jax.random.key(0), 2)
            batch = self.layout.unpack(table[jax.random.permutation(keys[0], len(table))[:rows]])
            noise = self.sample_noise(algorithm, keys[1], rows)
            return algorithm.update(run.state, batch, noise, all_parts_but_scale(algorithm))[1]

        return self.map_runs(one_run, runs._replace(state=state))

    @partial(jax.jit, static_argnames=("self",))
    def theory_metrics(
        self, state: PyTree, runs: Runs, table: Float[Array, "rows width"], step: Int[Array, ""]
    ) -> Metrics:
        """Return the theory's quantities for every run on a new batch, from an update whose result is discarded."""

        def one_run(run: Runs) -> Metrics:
            algorithm = replace_fields(self.algorithm, run.overrides, coerce=False)
            keys = jax.random.split(jax.random.fold_in(jax.random.fold_in(run.key, THEORY_STREAM), step), 2)
            rows = self.sample_minibatch_indices(keys[0], run.source, (algorithm.batch_size,))
            noise = self.sample_noise(algorithm, keys[1], algorithm.batch_size)
            metrics: Metrics = theory.monitor(
                algorithm, run.state, self.layout.unpack(table[rows]), noise, all_parts_but_scale(algorithm)
            )
            return metrics

        return self.map_runs(one_run, runs._replace(state=state))

    def sample_noise(self, algorithm: Algorithm[Any], key: PRNGKeyArray, batch_size: int) -> Noise:
        """Sample the noise of one step."""
        draws = algorithm.noise(self.spec, batch_size)
        keys = jax.random.split(key, max(len(draws), 1))
        return {name: draw.sample(k, 1)[0] for k, (name, draw) in zip(keys, draws.items(), strict=False)}


class Piece(NamedTuple):
    """A part of a chunk that one call computes: `blocks` whole blocks or, if `blocks` is 0, `steps` single steps."""

    first_step: int
    steps: int
    blocks: int


def plan_chunk(first_step: int, last_step: int, block_steps: int, full_blocks: int) -> list[Piece]:
    """Divide [first_step, last_step) into single steps, `full_blocks` whole blocks, and single steps again.

    The number of blocks is a constant of the compiled program, so every chunk has either this number or none.
    """
    head_end = min(-(-first_step // block_steps) * block_steps, last_step)
    whole = (last_step - head_end) // block_steps
    if full_blocks == 0 or whole < full_blocks:
        return [Piece(first_step, last_step - first_step, 0)]
    body_end = head_end + full_blocks * block_steps
    pieces = [
        Piece(first_step, head_end - first_step, 0),
        Piece(head_end, full_blocks * block_steps, full_blocks),
        Piece(body_end, last_step - body_end, 0),
    ]
    return [piece for piece in pieces if piece.steps]


class Programs(Protocol):
    """The two compiled programs, as methods of a `Loop` or of `Devices`."""

    def run_blocks(
        self, state: PyTree, runs: Runs, table: Array, first_block: Array, *, blocks: int
    ) -> BlocksResult: ...

    def run_steps(self, state: PyTree, runs: Runs, table: Array, first_step: Array, steps: Array) -> StepsResult: ...


def run_chunk(
    programs: Programs, state: PyTree, runs: Runs, table: Array, pieces: list[Piece], block_steps: int
) -> tuple[PyTree, list[tuple[Piece, Any]]]:
    """Run the pieces of a chunk; return the state and the metrics of each piece, still on the device."""
    results: list[tuple[Piece, Any]] = []
    for piece in pieces:
        if piece.blocks:
            first_block = jnp.asarray(piece.first_step // block_steps)
            state, metrics = programs.run_blocks(state, runs, table, first_block, blocks=piece.blocks)
            results.append((piece, metrics))
        else:
            first_step, steps = jnp.asarray(piece.first_step), jnp.asarray(piece.steps)
            state, *metrics_and_flags = programs.run_steps(state, runs, table, first_step, steps)
            results.append((piece, metrics_and_flags))
    return state, results


def full_blocks_per_chunk(chunk_steps: int, block_steps: int) -> int:
    """Return the number of whole blocks in every chunk of `chunk_steps` steps, regardless of its first step."""
    whole, rest = divmod(chunk_steps, block_steps)
    # A chunk that does not start at a block boundary loses up to one block to the single steps at its ends.
    return whole if rest == 0 else max(whole - 1, 0)


def crosses_multiple(every: int, step: int, end: int) -> bool:
    """Return whether a multiple of `every` is in (step, end]."""
    return end // every > step // every


def distinct_parts(algorithm: Algorithm[Any]) -> list[Parts]:
    """Return the distinct kinds of update in the schedule, in order of appearance."""
    return list(dict.fromkeys(parts for segment in algorithm.schedule() for parts in segment.steps))


def all_parts_but_scale(algorithm: Algorithm[Any]) -> Parts:
    """Return the parts of the schedule's largest update, without the scale."""
    return max(distinct_parts(algorithm), key=lambda parts: len(parts - {SCALE})) - {SCALE}


def update_state(
    algorithm: Algorithm[Any], parts: Parts, state: PyTree, inputs: tuple[Batch, Noise]
) -> tuple[PyTree, Metrics]:
    """Call `algorithm.update` with its arguments reordered for `functools.partial`."""
    return algorithm.update(state, *inputs, parts)


Update = Callable[[PyTree, PyTree], tuple[PyTree, Metrics]]


def metric_shapes(update: Update, state: PyTree, inputs: PyTree) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of an update's metrics, by tracing."""
    metrics: dict[str, jax.ShapeDtypeStruct] = jax.eval_shape(update, state, inputs)[1]
    return metrics


def tree_index(tree: PyTree, index: int | Array) -> PyTree:
    """Index the leading axis of every leaf."""
    return jax.tree.map(lambda x: x[index], tree)


def tree_slice(tree: PyTree, first: int, last: int) -> PyTree:
    """Slice the leading axis of every leaf."""
    return jax.tree.map(lambda x: x[first:last], tree)


def repeat(body: Update, times: int, state: PyTree, inputs: PyTree) -> tuple[PyTree, Metrics]:
    """Run `body` `times` times, each time on an equal slice of the inputs' leading axis; return the last metrics.

    Metrics are part of the carry: stacked outputs would cost one write per metric and step.
    """
    if times == 1:
        return body(state, inputs)
    shares = jax.tree.map(lambda x: x.reshape(times, -1, *x.shape[1:]), inputs)
    shapes = jax.eval_shape(lambda: body(state, tree_index(shares, 0))[1])
    metrics = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    (state, metrics), _ = jax.lax.scan(lambda c, x: (body(c[0], x), None), (state, metrics), shares)
    return state, metrics
