"""Where runs live: all on one device, or spread evenly over several devices of this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from aspc.training.compiled_loop import COMPILER_OPTIONS, Loop

RUNS = PartitionSpec("runs")  # an array's leading axis is cut into shares, one for each device
EVERYWHERE = PartitionSpec()


class Devices:
    """The devices that train `runs` runs. Each trains its own share and never talks to the others.

    Where the runs cannot be shared out evenly, the last one is repeated; what the copies compute is thrown away.
    """

    def __init__(self, loop: Loop, runs: int, devices: Sequence[Any] | None = None) -> None:
        devices = list(devices or jax.local_devices())[:runs]
        self.loop, self.runs, self.copies = loop, runs, -runs % len(devices)
        self.mesh = Mesh(np.asarray(devices), ("runs",)) if len(devices) > 1 else None
        # The programs of several devices, made when they are first needed; they live as long as one training.
        self._shared_blocks: dict[int, Callable[..., Any]] = {}
        self._shared_steps: Callable[..., Any] | None = None

    # -- there and back ----------------------------------------------------------------------------------------
    def spread(self, tree: Any) -> Any:
        """Arrays with a leading axis of runs, shared out."""
        if self.mesh is None:
            return jax.tree.map(jnp.asarray, tree)
        if self.copies:
            tree = jax.tree.map(lambda x: jnp.concatenate([x, *[x[-1:]] * self.copies]), tree)
        return jax.device_put(tree, NamedSharding(self.mesh, RUNS))

    def everywhere(self, array: Any) -> jax.Array:
        """An array that every device needs whole."""
        return jnp.asarray(array) if self.mesh is None else jax.device_put(array, NamedSharding(self.mesh, EVERYWHERE))

    def fetch(self, tree: Any) -> Any:
        """Results of the runs as NumPy arrays, without those of copies."""
        return jax.tree.map(lambda x: np.asarray(x)[: self.runs], jax.device_get(tree))

    # -- the loop's two programs -------------------------------------------------------------------------------
    def run_blocks(self, state: Any, runs: Any, table: Any, first_block: Any, *, blocks: int) -> Any:
        if self.mesh is None:
            return self.loop.run_blocks(state, runs, table, first_block, blocks=blocks)
        if blocks not in self._shared_blocks:
            program = partial(_plain(type(self.loop).run_blocks), self.loop, blocks=blocks)
            self._shared_blocks[blocks] = self._shared(program, numbers=1, compiler_options=COMPILER_OPTIONS)
        return self._shared_blocks[blocks](state, runs, table, first_block)

    def run_steps(self, state: Any, runs: Any, table: Any, first_step: Any, steps: Any) -> Any:
        if self.mesh is None:
            return self.loop.run_steps(state, runs, table, first_step, steps)
        if self._shared_steps is None:
            self._shared_steps = self._shared(partial(_plain(type(self.loop).run_steps), self.loop), numbers=2)
        return self._shared_steps(state, runs, table, first_step, steps)

    def _shared(self, program: Callable[..., Any], numbers: int, **options: Any) -> Callable[..., Any]:
        """A program of state, runs, table and some numbers, run by each device on its share of the runs."""
        inputs = (RUNS, RUNS, EVERYWHERE, *[EVERYWHERE] * numbers)
        # No device sees another's runs, so there is nothing for the check of what varies over devices to find.
        shared = jax.shard_map(program, mesh=self.mesh, in_specs=inputs, out_specs=RUNS, check_vma=False)
        return jax.jit(shared, donate_argnums=0, **options)


def _plain(program: Any) -> Callable[..., Any]:
    """The function behind a compiled one: what is compiled here is the program around it."""
    return program.__wrapped__
