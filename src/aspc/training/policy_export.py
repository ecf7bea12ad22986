"""Export policies from the states of training runs, and compare them with the actors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PyTree

from aspc.algorithms.interface import Algorithm, PolicyExport, Spec
from aspc.algorithms.policy_tracing import export_policy
from aspc.errors import AspcError
from aspc.policy import Policy
from aspc.policy_kinds import KINDS
from aspc.training.devices import Devices
from aspc.training.hyperparameters import replace_fields
from aspc.training.training_plan import TrainingPlan

COMPARED_OBSERVATIONS = 16
MAX_DIFFERENCE = 1e-5  # largest difference between actions in [-1, 1]
ROUNDING_FACTOR = 10  # maximum ratio of the actor's rounding error to that of the exported policy


class ExportedArrays(NamedTuple):
    """The arrays of all policies, with a leading axis over runs, and the actors' actions for a few observations."""

    arrays: dict[str, Array]
    actions: Float[Array, "runs observations act"] | None
    """Actions in [-1, 1] or logits; None if the algorithm provides no actor to compare with."""


class PolicyExporter:
    """An exporter of the policies of a plan's runs."""

    def __init__(self, plan: TrainingPlan, spec: Spec, devices: Devices) -> None:
        self.plan, self.spec, self.devices = plan, spec, devices
        per_task = [task.prepared.sample_observations(COMPARED_OBSERVATIONS) for task in plan.tasks]
        self.observations = np.stack([per_task[run_spec.task] for run_spec in plan.run_specs])

    def check(self, step: int, state: PyTree, overrides: Mapping[str, ArrayLike]) -> None:
        """Compare the exported policies of all runs with their actors.

        Raises:
            AspcError: The actions of a policy and its actor differ.
        """
        exported = self.export_arrays(state, overrides)
        for _ in self.build_policies(step, exported, range(len(self.plan.run_specs))):
            pass

    def export_arrays(self, state: PyTree, overrides: Mapping[str, ArrayLike]) -> ExportedArrays:
        """Return the arrays of all policies and start copying them to the host."""
        states = len(jax.tree.leaves(state)[0])  # with several devices, the last run may be repeated as padding
        observations = self.observations[np.minimum(np.arange(states), len(self.observations) - 1)]
        exported: ExportedArrays = _export_arrays(self.plan.algorithm, state, overrides, observations)
        for array in jax.tree.leaves(exported):
            array.copy_to_host_async()
        return exported

    def build_policies(self, step: int, exported: ExportedArrays, runs: Iterable[int]) -> Iterator[tuple[int, Policy]]:
        """Yield the index and policy of each selected run.

        Raises:
            AspcError: The actions of a policy and its actor differ.
        """
        stacked, actions = self.devices.fetch(exported)
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
            policy = task.prepared.policy(export, task.data, info)
            if actions is not None:
                _compare(self.plan.algo, policy, self.observations[run], actions[run])
            yield run, policy


def _compare(algo: str, policy: Policy, observations: np.ndarray, expected: np.ndarray) -> None:
    """Check that a policy computes the same actions as its actor for normalized observations.

    Different programs round large network activations differently. The rounding error is estimated by computing the
    policy in float64 as well.

    Raises:
        AspcError: The actions differ by more than the rounding error explains.
    """
    kind, settings = KINDS[policy.kind], policy.settings
    noise = _comparison_noise(policy.kind, policy.arrays, settings, observations.shape[-1])
    act = kind.logits or kind.act  # near a tie, rounding can select different options
    actions = act(policy.arrays, settings, observations, *noise)
    precise = {name: array.astype(np.float64) for name, array in policy.arrays.items()}
    rounding = np.abs(act(precise, settings, observations.astype(np.float64), *noise) - actions).max()
    difference = np.abs(actions - expected).max()
    if difference > MAX_DIFFERENCE + ROUNDING_FACTOR * rounding:
        described = ", ".join(f"{name} {value}" for name, value in settings.items() if isinstance(value, str | float))
        raise AspcError(
            f"The exported policy of {algo} differs from its actor by {difference:.2g} (actions in [-1, 1]). It is "
            f"exported as {policy.kind} with {described}, but the actor computes something else. Make policy() "
            "return a PolicyExport that matches the actor."
        )


def _comparison_noise(kind: str, arrays: Mapping[str, Any], settings: Mapping[str, Any], obs: int) -> list[np.ndarray]:
    """Return fixed random inputs for comparing a policy with its actor.

    Gumbel noise always selects the first candidate, because rounding could select different candidates near a tie.
    """
    rng = np.random.default_rng(0)
    noise = []
    for draw in KINDS[kind].noise(arrays, settings, obs).values():
        values = draw.sample(rng, COMPARED_OBSERVATIONS)
        if draw.distribution == "gumbel":
            values = np.zeros_like(values)
            values[..., 0] = 1e9
        noise.append(values)
    return noise


class RunStates:
    """The states of all runs at a step. Copies are made on request and must be requested before the next chunk starts.

    Args:
        exporter: The exporter of the runs' policies.
        step: The current step.
        state: The states of all runs, on the devices or on the host.
    """

    def __init__(self, exporter: PolicyExporter, step: int, state: PyTree) -> None:
        self.exporter, self.step, self._state = exporter, step, state

    def policy(self, run: int) -> Policy:
        """Return the policy of a run."""
        ((_, policy),) = self.exporter.build_policies(self.step, self._arrays, [run])
        return policy

    def state(self, run: int) -> PyTree:
        """Return a copy of a run's state as read-only NumPy arrays."""
        return jax.tree.map(lambda leaf: _read_only(np.array(leaf[run])), self._fetched)

    @cached_property
    def _fetched(self) -> PyTree:
        return self.exporter.devices.fetch(self._state)

    @cached_property
    def _arrays(self) -> ExportedArrays:
        return self.exporter.export_arrays(self._fetched, self.exporter.plan.overrides)


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


@cache
def _policy_kind(algorithm: Algorithm[Any], spec: Spec) -> tuple[str, dict[str, Any]]:
    """Return the kind and settings of an algorithm's policy, determined by tracing."""
    exports: list[PolicyExport] = []
    jax.eval_shape(
        lambda key: exports.append(export_policy(algorithm, algorithm.init(key, spec), spec.obs_dim)), jax.random.key(0)
    )
    return exports[0].kind, exports[0].settings


def _copy_policy_arrays(
    algorithm: Algorithm[Any], state: PyTree, overrides: Mapping[str, Array], observations: np.ndarray
) -> ExportedArrays:
    def export_run(state: PyTree, overrides: Mapping[str, Array], observations: Array) -> ExportedArrays:
        traced = replace_fields(algorithm, overrides, coerce=False)
        export = export_policy(traced, state, observations.shape[-1])
        compared = export.logits or export.act
        if compared is None:
            return ExportedArrays(export.arrays, None)
        noise = _comparison_noise(export.kind, export.arrays, export.settings, observations.shape[-1])
        with jax.default_matmul_precision("highest"):  # the precision of the exported policy
            return ExportedArrays(export.arrays, compared(observations, *noise))

    # Copy the arrays, because the next chunk reuses the memory of the state.
    exported: ExportedArrays = jax.vmap(export_run)(state, overrides, jnp.asarray(observations))
    return ExportedArrays(*jax.tree.map(jnp.copy, tuple(exported)))


_export_arrays = jax.jit(_copy_policy_arrays, static_argnums=0)
