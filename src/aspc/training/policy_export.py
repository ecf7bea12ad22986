"""Policies of runs in training, exported from the states of their runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from aspc.algorithms.interface import Algorithm, PolicyExport, Spec
from aspc.policy import Policy
from aspc.training.devices import Devices
from aspc.training.hyperparameters import replace_fields
from aspc.training.training_plan import TrainingPlan


class PolicyExporter:
    """Export the policies of a plan's runs."""

    def __init__(self, plan: TrainingPlan, spec: Spec, devices: Devices) -> None:
        self.plan, self.spec, self.devices = plan, spec, devices

    def export_arrays(self, state: PyTree, overrides: Mapping[str, Array]) -> dict[str, Array]:
        """Return the arrays of all policies, with a leading axis of runs; their copy to the host has started."""
        arrays: dict[str, Array] = _export_arrays(self.plan.algorithm, state, overrides)
        for array in arrays.values():
            array.copy_to_host_async()
        return arrays

    def build_policies(
        self, step: int, arrays: Mapping[str, Array], runs: Iterable[int]
    ) -> Iterator[tuple[int, Policy]]:
        """Yield the policies of some runs with their indices."""
        stacked = self.devices.fetch(arrays)
        for run in runs:
            run_spec = self.plan.run_specs[run]
            task = self.plan.tasks[run_spec.task]
            kind, settings = _policy_kind(run_spec.algorithm, self.spec)
            export = PolicyExport(kind, {name: array[run] for name, array in stacked.items()}, settings)
            info = {
                "algo": self.plan.algo,
                "dataset": task.data.name,
                "step": step,
                "versions": self.plan.config.software.versions,
                "seed": run_spec.seed,
            }
            yield run, task.prepared.policy(export, task.data, info)


@cache
def _policy_kind(algorithm: Algorithm[Any], spec: Spec) -> tuple[str, dict[str, Any]]:
    """Return the kind and the settings of an algorithm's policy, by tracing."""
    exports: list[PolicyExport] = []
    jax.eval_shape(lambda key: exports.append(algorithm.policy(algorithm.init(key, spec))), jax.random.key(0))
    return exports[0].kind, exports[0].settings


def _copy_policy_arrays(algorithm: Algorithm[Any], state: PyTree, overrides: Mapping[str, Array]) -> dict[str, Array]:
    def arrays_of_run(state: PyTree, overrides: Mapping[str, Array]) -> dict[str, Array]:
        return replace_fields(algorithm, overrides, coerce=False).policy(state).arrays

    # Copies: the next chunk reuses the memory of the state.
    arrays: dict[str, Array] = jax.tree.map(jnp.copy, jax.vmap(arrays_of_run)(state, overrides))
    return arrays


_export_arrays = jax.jit(_copy_policy_arrays, static_argnums=0)
