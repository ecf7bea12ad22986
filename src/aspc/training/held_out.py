"""Losses of the runs on the held-out rows of their tasks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from aspc.training.compiled_loop import Loop, Runs
from aspc.training.devices import Devices
from aspc.training.training_plan import TrainingPlan


class HeldOutLosses:
    """Compute the losses of all runs on held-out rows, which stay on the devices.

    Args:
        plan: The training plan.
        loop: The training loop.
        devices: The devices that train the runs.
    """

    def __init__(self, plan: TrainingPlan, loop: Loop, devices: Devices) -> None:
        self.run_specs, self.loop = plan.run_specs, loop
        rows = [task.prepared.held_out for task in plan.tasks]
        self.rows = [None if part is None else devices.replicate(part) for part in rows]

    def compute(self, state: PyTree, runs: Runs) -> dict[str, Any]:
        """Return each loss as valid_*, with one value per run; empty if there are no held-out rows."""
        if self.rows[0] is None:
            return {}
        if len(self.rows) == 1:
            losses = self.loop.held_out_losses(state, runs, self.rows[0])
            return {f"valid_{name}": value for name, value in losses.items()}
        found: dict[str, Any] = {}
        for task, rows in enumerate(self.rows):
            members = np.asarray([i for i, run_spec in enumerate(self.run_specs) if run_spec.task == task])
            part_state, part_runs = jax.tree.map(lambda x, members=members: x[members], (state, runs))
            assert rows is not None
            for name, value in self.loop.held_out_losses(part_state, part_runs, rows).items():
                losses_of_all = found.get(f"valid_{name}", jnp.zeros(len(self.run_specs), value.dtype))
                found[f"valid_{name}"] = losses_of_all.at[members].set(value)
        return found
