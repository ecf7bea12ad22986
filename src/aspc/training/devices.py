"""The devices of this machine that train the runs, and the cache of compiled programs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree
from platformdirs import user_cache_dir

from aspc.errors import AspcError
from aspc.training.compiled_loop import COMPILER_OPTIONS, BlocksResult, Loop, Runs, StepsResult

SHARDED = PartitionSpec("runs")  # type: ignore[no-untyped-call]  # the leading axis is divided among the devices
REPLICATED = PartitionSpec()  # type: ignore[no-untyped-call]


def use_compilation_cache() -> None:
    """Cache compiled programs in the user's cache folder, so that later starts are faster.

    The environment variable ASPC_COMPILATION_CACHE can name another folder; JAX's own setting takes precedence.
    """
    if jax.config.values["jax_compilation_cache_dir"] is None:
        folder = os.environ.get("ASPC_COMPILATION_CACHE") or os.path.join(user_cache_dir("aspc"), "compiled")
        jax.config.update("jax_compilation_cache_dir", folder)  # type: ignore[no-untyped-call]
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)  # type: ignore[no-untyped-call]


def out_of_memory_error(loop: Loop, runs: int, rows: int) -> AspcError:
    """Return an out-of-memory error that states the sizes of a fleet's data and networks."""
    state = jax.eval_shape(lambda key: loop.algorithm.init(key, loop.spec), jax.random.key(0))
    bytes_per_run = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    return AspcError(
        f"The device is out of memory: the data takes {4 * rows * loop.layout.width / 2**20:,.1f} MiB and the "
        f"networks {runs} × {bytes_per_run / 2**20:,.1f} MiB, plus temporary arrays. "
        "Train fewer seeds at once, use a smaller --batch-size, or stream the data (aspc data convert) with a smaller "
        "--memory-budget-mb."
    )


class Devices:
    """The devices that train the runs. Each device trains some of the runs, without communication.

    If the runs cannot be divided evenly, the last one is repeated, and the results of the copies are dropped.

    Args:
        loop: The training loop.
        runs: The number of runs.
        devices: The devices to use. Default: all devices of this machine.
    """

    def __init__(self, loop: Loop, runs: int, devices: Sequence[jax.Device] | None = None) -> None:
        devices = list(devices or jax.local_devices())[:runs]
        self.loop, self.runs, self.copies = loop, runs, -runs % len(devices)
        self.mesh = Mesh(np.asarray(devices), ("runs",)) if len(devices) > 1 else None
        # Programs for several devices, built on first use.
        self._sharded_blocks: dict[int, Callable[..., Any]] = {}
        self._sharded_steps: Callable[..., Any] | None = None

    def shard(self, tree: PyTree) -> PyTree:
        """Divide arrays with a leading axis of runs among the devices."""
        if self.mesh is None:
            return jax.tree.map(jnp.asarray, tree)
        if self.copies:
            tree = jax.tree.map(lambda x: jnp.concatenate([x, *[x[-1:]] * self.copies]), tree)
        return jax.device_put(tree, NamedSharding(self.mesh, SHARDED))

    def replicate(self, array: np.ndarray) -> jax.Array:
        """Copy an array to every device."""
        return jnp.asarray(array) if self.mesh is None else jax.device_put(array, NamedSharding(self.mesh, REPLICATED))

    def fetch(self, tree: PyTree) -> PyTree:
        """Return the results of the runs as NumPy arrays, without the results of copies."""
        return jax.tree.map(lambda x: np.asarray(x)[: self.runs], jax.device_get(tree))

    def run_blocks(self, state: PyTree, runs: Runs, table: Array, first_block: Array, *, blocks: int) -> BlocksResult:
        """Call `Loop.run_blocks` on all devices."""
        result: BlocksResult
        if self.mesh is None:
            result = self.loop.run_blocks(state, runs, table, first_block, blocks=blocks)
            return result
        if blocks not in self._sharded_blocks:
            program = partial(_unwrap(type(self.loop).run_blocks), self.loop, blocks=blocks)
            self._sharded_blocks[blocks] = self._shard_program(program, scalars=1, compiler_options=COMPILER_OPTIONS)
        result = self._sharded_blocks[blocks](state, runs, table, first_block)
        return result

    def run_steps(self, state: PyTree, runs: Runs, table: Array, first_step: Array, steps: Array) -> StepsResult:
        """Call `Loop.run_steps` on all devices."""
        result: StepsResult
        if self.mesh is None:
            result = self.loop.run_steps(state, runs, table, first_step, steps)
            return result
        if self._sharded_steps is None:
            self._sharded_steps = self._shard_program(partial(_unwrap(type(self.loop).run_steps), self.loop), scalars=2)
        result = self._sharded_steps(state, runs, table, first_step, steps)
        return result

    def _shard_program(self, program: Callable[..., Any], scalars: int, **options: Any) -> Callable[..., Any]:
        """Compile a program that takes (state, runs, table, *scalars); each device applies it to its own runs."""
        inputs = (SHARDED, SHARDED, REPLICATED, *[REPLICATED] * scalars)
        # The devices do not communicate, so there is nothing to check.
        sharded = jax.shard_map(program, mesh=self.mesh, in_specs=inputs, out_specs=SHARDED, check_vma=False)
        return jax.jit(sharded, donate_argnums=0, **options)


def _unwrap(program: Any) -> Callable[..., Any]:
    """Return the Python function inside a jitted function, to be compiled as part of a larger program."""
    function: Callable[..., Any] = program.__wrapped__
    return function
