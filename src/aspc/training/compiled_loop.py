"""The training loop as one compiled program: schedule → nested scans → jit, with runs as a leading axis.

A *block* is the algorithm's schedule repeated to at least `MIN_BLOCK` steps (a longer one: twice). All minibatch
indices and noise of a block are drawn in one call each and its rows are gathered in one go, on the device. A *chunk* is
a number of blocks; the host sees the device once a chunk. The draws of step t depend on (run key, t) alone, so a run
that is cut and resumed, or whose chunks end elsewhere, sees the same ones.

Where a chunk is no multiple of the block, a second, small program runs the odd steps one by one: it branches on the
step counter, which is shared by all runs and so stays a real branch. There are never more than these two programs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from aspc import kernels, theory
from aspc.algorithms.interface import SCALE, Batch, Metrics, Noise, Parts, Spec, schedule_length
from aspc.training.packed_table import Layout

MIN_BLOCK = 20
LARGEST_VALIDATION = 4096  # rows of held-out data that are looked at
# Kernels of a captured graph that do not depend on each other run side by side: one run is a chain of small ones.
COMPILER_OPTIONS = {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"}
MONITOR = 2**32 - 1  # folded into a run's key where blocks fold in their number, which never gets so far


class Source(NamedTuple):
    """Where a run's transitions lie in the table: `size` rows from `offset` on. Several datasets can share a table."""

    offset: Int[Array, "*runs"]
    size: Int[Array, "*runs"]


class Runs(NamedTuple):
    """Everything that differs between the runs of one program; every leaf has a leading axis of runs."""

    state: Any
    key: PRNGKeyArray
    source: Source
    overrides: Mapping[str, Array]  # hyper-parameters that differ only in number, by dotted field name


def on_accelerator() -> bool:
    """Whether what is compiled here runs on something other than this machine's processor."""
    return jax.devices()[0].platform != "cpu"


def with_overrides(algorithm: Any, overrides: Mapping[str, Any]) -> Any:
    """The algorithm with fields replaced; `base.alpha` reaches into a wrapped algorithm."""
    for name, value in overrides.items():
        head, _, rest = name.partition(".")
        if rest:
            value = with_overrides(getattr(algorithm, head), {rest: value})
        algorithm = dataclasses.replace(algorithm, **{head: value})
    return algorithm


def start_runs(
    algorithm: Any,
    spec: Spec,
    seeds: Int[Array, "runs"],
    source: Source,
    overrides: Mapping[str, Array] | None = None,
) -> Runs:
    """Fresh runs, one for each seed."""
    overrides = dict(overrides or {})

    def start(seed: Array, run_overrides: Mapping[str, Array]) -> tuple[Any, PRNGKeyArray]:
        key_init, key_run = jax.random.split(jax.random.key(seed))
        return with_overrides(algorithm, run_overrides).init(key_init, spec), key_run

    # It runs once: on a CPU, optimising all these random draws takes four times as long as compiling them.
    options = None if on_accelerator() else {"xla_backend_optimization_level": 1}
    state, keys = jax.jit(jax.vmap(start), compiler_options=options)(jnp.asarray(seeds), overrides)
    # A weak type (a Python number that became an array) would come back strong after one chunk and recompile.
    state = jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), state)
    return Runs(state, keys, source, overrides)


@dataclasses.dataclass(frozen=True)
class Loop:
    """The compiled training loop of one algorithm on tables of one layout."""

    algorithm: Any
    spec: Spec
    layout: Layout
    vectorise: bool
    """Runs side by side (`vmap`: best on an accelerator) or one after the other (best on a CPU)."""
    way: kernels.Way | Literal["usual"] | None = "usual"
    """How networks are computed (see `kernels`): as is usual for so many runs here; None is plain JAX."""

    # -- block -------------------------------------------------------------------------------------------------
    @property
    def repeats(self) -> int:
        length = schedule_length(self.algorithm.schedule())
        # A long schedule is repeated as well: on a CPU its steps are faster inside a loop than beside the drawing.
        return 2 if length > MIN_BLOCK else -(-MIN_BLOCK // length)

    @property
    def block_steps(self) -> int:
        return self.repeats * schedule_length(self.algorithm.schedule())

    def draw_rows(self, key: PRNGKeyArray, source: Source, shape: tuple[int, ...]) -> Int[Array, "..."]:
        """Rows of the table for minibatches: uniform over those that are the run's."""
        return source.offset + jax.random.randint(key, shape, 0, source.size)

    def draw_block(
        self, algorithm: Any, table: Float[Array, "rows width"], run: Runs, block: Int[Array, ""]
    ) -> tuple[Batch, Noise]:
        """Batches and noise of all steps of a block, with a leading axis of steps."""
        steps, batch_size = self.block_steps, algorithm.batch_size
        key_rows, key_noise = jax.random.split(jax.random.fold_in(run.key, block))
        rows = self.draw_rows(key_rows, run.source, (steps, batch_size))
        draws = algorithm.noise(self.spec, batch_size)
        keys = jax.random.split(key_noise, max(len(draws), 1))
        noise = {name: draw.sample(key, steps) for key, (name, draw) in zip(keys, draws.items(), strict=False)}
        # The indices are in range by construction: "promise_in_bounds" spares the gather its checks.
        return self.layout.unpack(table.at[rows].get(mode="promise_in_bounds")), noise

    def run_block(self, algorithm: Any, state: Any, batches: Batch, noise: Noise) -> tuple[Any, Metrics]:
        """All steps of a block. Returns each metric as it was the last time it was computed."""
        # An update is traced once and then written out wherever it is called: tracing is what a second start waits for.
        one_step = {
            parts: jax.jit(partial(update_with, algorithm, parts), inline=True) for parts in all_parts(algorithm)
        }
        first_inputs = at((batches, noise), 0)
        names = {parts: list(metrics_of(step, state, first_inputs)) for parts, step in one_step.items()}

        def one_schedule(state: Any, inputs: Any) -> tuple[Any, Metrics]:
            metrics: Metrics = {}
            first = 0
            schedule = algorithm.schedule()
            for i, segment in enumerate(schedule):
                here = {n for parts in segment.steps for n in names[parts]}
                later = {n for s in schedule[i + 1 :] for parts in s.steps for n in names[parts]}

                def one_segment(
                    state: Any, inputs: Any, segment: Any = segment, wanted: set[str] = here - later
                ) -> tuple[Any, Metrics]:
                    metrics: Metrics = {}
                    for j, parts in enumerate(segment.steps):
                        state, seen = one_step[parts](state, at(inputs, j))
                        metrics |= {n: v for n, v in seen.items() if n in wanted}
                    return state, metrics

                length = len(segment.steps)
                rows = part_of(inputs, first, first + length * segment.repeats)
                state, seen = repeat(one_segment, segment.repeats, state, rows)
                metrics |= seen
                first += length * segment.repeats
            return state, metrics

        return repeat(one_schedule, self.repeats, state, (batches, noise))

    # -- the two programs --------------------------------------------------------------------------------------
    def over_runs(self, one_run: Callable[[Runs], Any], runs: Runs) -> Any:
        return jax.vmap(one_run)(runs) if self.vectorise else jax.lax.map(one_run, runs)

    def train_runs(self, one_run: Callable[[Runs], Any], runs: Runs) -> Any:
        """`over_runs` with networks computed as is fastest here."""
        way = kernels.usual_way(len(runs.key)) if self.way == "usual" else self.way
        with kernels.fused(way):
            return self.over_runs(one_run, runs)

    @partial(jax.jit, static_argnames=("self", "blocks"), donate_argnames=("state",), compiler_options=COMPILER_OPTIONS)
    def run_blocks(
        self, state: Any, runs: Runs, table: Float[Array, "rows width"], first_block: Int[Array, ""], *, blocks: int
    ) -> tuple[Any, Metrics]:
        """`blocks` whole blocks of every run. Metrics are [runs, blocks]: sampled once a block."""

        def one_run(run: Runs) -> tuple[Any, Metrics]:
            algorithm = with_overrides(self.algorithm, run.overrides)

            def one_block(state: Any, block: Int[Array, ""]) -> tuple[Any, Metrics]:
                with jax.named_scope("sampling"):
                    drawn = self.draw_block(algorithm, table, run, block)
                return self.run_block(algorithm, state, *drawn)

            return jax.lax.scan(one_block, run.state, first_block + jnp.arange(blocks))

        return self.train_runs(one_run, runs._replace(state=state))

    @partial(jax.jit, static_argnames=("self",), donate_argnames=("state",))
    def run_steps(
        self,
        state: Any,
        runs: Runs,
        table: Float[Array, "rows width"],
        first_step: Int[Array, ""],
        steps: Int[Array, ""],
    ) -> tuple[Any, Metrics, dict[str, Array]]:
        """`steps` single steps from anywhere in a block.

        Returns the state, each metric as it was last [runs], and whether any of these steps computed it [runs].
        """
        kinds = all_parts(self.algorithm)
        cycle = [parts for s in self.algorithm.schedule() for parts in s.steps * s.repeats]
        kind_of_step = jnp.asarray([kinds.index(parts) for parts in cycle])

        def one_run(run: Runs) -> tuple[Any, Metrics, dict[str, Array]]:
            algorithm = with_overrides(self.algorithm, run.overrides)

            def branch(parts: Parts, carry: Any, inputs: Any) -> Any:
                state, metrics, seen = carry
                state, new = algorithm.update(state, *inputs, parts)
                return state, metrics | new, seen | dict.fromkeys(new, jnp.array(True))

            def one_step(drawn: Any, step: Int[Array, ""], carry: Any) -> Any:
                branches = [partial(branch, parts) for parts in kinds]
                inputs = at(drawn, step % self.block_steps)
                return jax.lax.switch(kind_of_step[step % len(cycle)], branches, carry, inputs)

            def part_of_block(block: Int[Array, ""], carry: Any) -> Any:
                """Those of a block's steps that are asked for. It is drawn once: that costs as much as some steps."""
                drawn = self.draw_block(algorithm, table, run, block)
                first, last = block * self.block_steps, (block + 1) * self.block_steps
                inside = jnp.maximum(first, first_step), jnp.minimum(last, first_step + steps)
                return jax.lax.fori_loop(*inside, partial(one_step, drawn), carry)

            first_inputs = jax.eval_shape(lambda: at(self.draw_block(algorithm, table, run, first_step), 0))
            updates = [partial(update_with, algorithm, parts) for parts in kinds]
            given = {n: m for update in updates for n, m in metrics_of(update, run.state, first_inputs).items()}
            nothing_yet = {n: jnp.zeros((), m.dtype) for n, m in given.items()}, dict.fromkeys(given, jnp.array(False))
            touched = first_step // self.block_steps, -(-(first_step + steps) // self.block_steps)
            return jax.lax.fori_loop(*touched, part_of_block, (run.state, *nothing_yet))

        return self.train_runs(one_run, runs._replace(state=state))

    @partial(jax.jit, static_argnames=("self",))
    def losses_on(self, state: Any, runs: Runs, table: Float[Array, "rows width"]) -> Metrics:
        """Losses of every run on rows it was not trained on: one update whose result is thrown away."""
        rows = min(len(table), LARGEST_VALIDATION)

        def one_run(run: Runs) -> Metrics:
            algorithm = with_overrides(self.algorithm, run.overrides)
            keys = jax.random.split(jax.random.key(0), 2)
            batch = self.layout.unpack(table[jax.random.permutation(keys[0], len(table))[:rows]])
            noise = self.draw_noise(algorithm, keys[1], rows)
            return algorithm.update(run.state, batch, noise, all_but_scale(algorithm))[1]

        return self.over_runs(one_run, runs._replace(state=state))

    @partial(jax.jit, static_argnames=("self",))
    def theory_on(self, state: Any, runs: Runs, table: Float[Array, "rows width"], step: Int[Array, ""]) -> Metrics:
        """The theory's quantities for every run on a fresh batch: one more update, whose result is thrown away."""

        def one_run(run: Runs) -> Metrics:
            algorithm = with_overrides(self.algorithm, run.overrides)
            keys = jax.random.split(jax.random.fold_in(jax.random.fold_in(run.key, MONITOR), step), 2)
            rows = self.draw_rows(keys[0], run.source, (algorithm.batch_size,))
            noise = self.draw_noise(algorithm, keys[1], algorithm.batch_size)
            return theory.monitor(
                algorithm, run.state, self.layout.unpack(table[rows]), noise, all_but_scale(algorithm)
            )

        return self.over_runs(one_run, runs._replace(state=state))

    def draw_noise(self, algorithm: Any, key: PRNGKeyArray, batch_size: int) -> Noise:
        """The noise of one step, drawn by itself."""
        draws = algorithm.noise(self.spec, batch_size)
        keys = jax.random.split(key, max(len(draws), 1))
        return {name: draw.sample(k, 1)[0] for k, (name, draw) in zip(keys, draws.items(), strict=False)}


class Piece(NamedTuple):
    """A stretch of a chunk that one call runs: `blocks` whole blocks, or (blocks = 0) `steps` single steps."""

    first_step: int
    steps: int
    blocks: int


def plan_chunk(first_step: int, last_step: int, block_steps: int, usual_blocks: int) -> list[Piece]:
    """Cut [first_step, last_step) into single steps, `usual_blocks` whole blocks, and single steps again.

    The number of blocks is part of the compiled program, so every chunk uses the same number or none at all.
    """
    head_end = min(-(-first_step // block_steps) * block_steps, last_step)
    whole = (last_step - head_end) // block_steps
    if usual_blocks == 0 or whole < usual_blocks:
        return [Piece(first_step, last_step - first_step, 0)]
    body_end = head_end + usual_blocks * block_steps
    pieces = [
        Piece(first_step, head_end - first_step, 0),
        Piece(head_end, usual_blocks * block_steps, usual_blocks),
        Piece(body_end, last_step - body_end, 0),
    ]
    return [piece for piece in pieces if piece.steps]


def run_chunk(
    programs: Any, state: Any, runs: Runs, table: Array, pieces: list[Piece], block_steps: int
) -> tuple[Any, list[tuple[Piece, Any]]]:
    """The pieces of a chunk one after the other, by the two programs of a `Loop` (or of `Devices`).

    Returns the state and what each piece's program gave besides, still on the device.
    """
    results: list[tuple[Piece, Any]] = []
    for piece in pieces:
        if piece.blocks:
            first_block = jnp.asarray(piece.first_step // block_steps)
            state, metrics = programs.run_blocks(state, runs, table, first_block, blocks=piece.blocks)
        else:
            first_step, steps = jnp.asarray(piece.first_step), jnp.asarray(piece.steps)
            state, *metrics = programs.run_steps(state, runs, table, first_step, steps)
        results.append((piece, metrics))
    return state, results


def usual_blocks(chunk_steps: int, block_steps: int) -> int:
    """How many whole blocks every chunk of that length holds, wherever it starts."""
    whole, odd = divmod(chunk_steps, block_steps)
    # A chunk that does not start on a block's edge loses up to one block to the odd steps at its two ends.
    return whole if odd == 0 else max(whole - 1, 0)


# -- small pieces ----------------------------------------------------------------------------------------------


def all_parts(algorithm: Any) -> list[Parts]:
    """The distinct kinds of update in the schedule, in order of appearance."""
    return list(dict.fromkeys(parts for segment in algorithm.schedule() for parts in segment.steps))


def all_but_scale(algorithm: Any) -> Parts:
    """An update with everything that the algorithm ever does in one step, but for the scale's."""
    return max(all_parts(algorithm), key=lambda parts: len(parts - {SCALE})) - {SCALE}


def update_with(algorithm: Any, parts: Parts, state: Any, inputs: tuple[Batch, Noise]) -> tuple[Any, Metrics]:
    updated: tuple[Any, Metrics] = algorithm.update(state, *inputs, parts)
    return updated


def metrics_of(update: Callable[[Any, Any], tuple[Any, Metrics]], state: Any, inputs: Any) -> dict[str, Any]:
    """The metrics that an update gives, as shapes; nothing is computed."""
    metrics: dict[str, Any] = jax.eval_shape(update, state, inputs)[1]
    return metrics


def at(tree: Any, index: int | Array) -> Any:
    """Row `index` of every array."""
    return jax.tree.map(lambda x: x[index], tree)


def part_of(tree: Any, first: int, last: int) -> Any:
    """Rows first, …, last − 1 of every array."""
    return jax.tree.map(lambda x: x[first:last], tree)


def repeat(body: Callable[[Any, Any], tuple[Any, Metrics]], times: int, state: Any, inputs: Any) -> tuple[Any, Metrics]:
    """Run `body` `times` times, each on its share of the inputs' rows; keep the last metrics.

    Metrics travel in the carry: stacked outputs would cost a write for each of them at every step.
    """
    if times == 1:
        return body(state, inputs)
    shares = jax.tree.map(lambda x: x.reshape(times, -1, *x.shape[1:]), inputs)
    shapes = jax.eval_shape(lambda: body(state, at(shares, 0))[1])
    metrics = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    (state, metrics), _ = jax.lax.scan(lambda c, x: (body(c[0], x), None), (state, metrics), shares)
    return state, metrics
