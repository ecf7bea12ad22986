"""Check an algorithm before its first step, so that mistakes surface before training starts."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from aspc.algorithms.component_names import has_network
from aspc.algorithms.interface import Algorithm, Parts, PolicyExport
from aspc.algorithms.policy_tracing import export_policy, policy_kinds
from aspc.errors import AspcError, first_line, unknown_name
from aspc.policy_kinds import KINDS
from aspc.training.compiled_loop import Loop, distinct_parts

PACKAGE = Path(__file__).parents[1]


def check_contract(name: str, algorithm: Algorithm[Any], loop: Loop) -> None:
    """Check the networks, the policy and the metrics of an algorithm by tracing.

    Raises:
        AspcError: One of them is invalid.
    """
    state = jax.eval_shape(lambda key: algorithm.init(key, loop.spec), jax.random.key(0))
    _check_networks(algorithm, state, loop)
    _check_policy(name, algorithm, state, loop)
    if not _is_builtin(algorithm):  # tracing an update takes up to half a second
        _check_metrics(name, algorithm, state, loop)


def _check_networks(algorithm: Algorithm[Any], state: PyTree, loop: Loop) -> None:
    """Check that network factories always return the same structure, since programs are compiled for that structure."""
    if has_network(algorithm):
        again = jax.eval_shape(lambda key: algorithm.init(key, loop.spec), jax.random.key(1))
        structures: list[Any] = [jax.tree.structure(tree) for tree in (state, again)]
        if structures[0] != structures[1]:
            raise AspcError(
                "A network factory returns a different structure each time it is called, perhaps because it creates "
                "a lambda. Define functions outside the factory."
            )


def _check_policy(name: str, algorithm: Algorithm[Any], state: PyTree, loop: Loop) -> None:
    exports: list[Any] = []

    def export_arrays(state: PyTree) -> Any:
        exports.append(export_policy(algorithm, state, loop.spec.obs_dim))
        return exports[0].arrays if isinstance(exports[0], PolicyExport) else None

    try:
        arrays = jax.eval_shape(export_arrays, state)
    except AspcError:
        raise
    except Exception as error:  # user code can raise any exception
        problem = f"{type(error).__name__}: {first_line(error)}{_user_code_line(error)}"
        raise AspcError(f"policy() of the algorithm {name} fails for the initial state: {problem}.") from error
    (export,) = exports
    if not isinstance(export, PolicyExport):
        raise AspcError(
            f"policy() of the algorithm {name} returns a {type(export).__name__}; it must return a PolicyExport."
        )
    if export.kind not in KINDS:
        raise unknown_name("policy kind", str(export.kind), policy_kinds(), f"returned by the algorithm {name}")
    sizes = loop.spec.obs_dim, loop.spec.act_dim
    try:
        settings = json.loads(json.dumps(export.settings))  # as stored in the policy's file
        is_valid = KINDS[export.kind].is_valid(arrays, settings, *sizes)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        is_valid = False
    if not is_valid:
        raise AspcError(
            f"policy() of the algorithm {name} returns arrays or settings that do not form a {export.kind} policy for "
            f"observations of size {sizes[0]} and actions of size {sizes[1]}. Compare them with those of "
            "aspc.algorithms.td_learning.deterministic_policy."
        )


def _check_metrics(name: str, algorithm: Algorithm[Any], state: PyTree, loop: Loop) -> None:
    def metrics_of_update(state: PyTree, parts: Parts) -> Mapping[str, Any]:
        batch = loop.layout.unpack(jnp.zeros((algorithm.batch_size, loop.layout.width)))
        noise = loop.sample_noise(algorithm, jax.random.key(0), algorithm.batch_size)
        updated: Any = algorithm.update(state, batch, noise, parts)
        if not (isinstance(updated, tuple | list) and len(updated) == 2 and isinstance(updated[1], Mapping)):
            raise AspcError(f"update() of the algorithm {name} must return the next state and a dictionary of metrics.")
        return updated[1]

    for parts in distinct_parts(algorithm):
        metrics = jax.eval_shape(lambda state, parts=parts: metrics_of_update(state, parts), state)
        for metric, value in metrics.items():
            if value.shape:
                raise AspcError(
                    f"Metric {metric} of algorithm {name} has shape {value.shape}; make it a scalar, for "
                    "example with .mean()."
                )


def _is_builtin(algorithm: Algorithm[Any]) -> bool:
    """Return whether an algorithm and the algorithm that it wraps, if any, belong to this package."""
    is_own = type(algorithm).__module__.startswith("aspc.")
    return is_own and (algorithm.base is None or _is_builtin(algorithm.base))


def _user_code_line(error: Exception) -> str:
    """Return the last line of user code in a traceback, if any."""
    libraries = {PACKAGE, Path(jax.__file__).parents[1]}
    frames = [f for f in traceback.extract_tb(error.__traceback__) if libraries.isdisjoint(Path(f.filename).parents)]
    return f", {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
