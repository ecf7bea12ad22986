"""What is asked of an algorithm, looked at before the first step, so that a slip does not show after the last."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from aspc.algorithms.interface import PolicyExport
from aspc.errors import AspcError, first_line, unknown_name
from aspc.policy_kinds import KINDS
from aspc.training.compiled_loop import Loop, all_parts

FUNCTIONS = ("init", "noise", "schedule", "update", "policy")  # that every algorithm has (`aspc.algorithms.interface`)
PACKAGE = Path(__file__).parents[1]


def check_contract(name: str, algorithm: Any, loop: Loop) -> None:
    """Refuses an algorithm that lacks a function, or whose policy or metrics are not what they must be. Nothing is
    computed, only traced."""
    missing = [function for function in FUNCTIONS if not callable(getattr(algorithm, function, None))]
    if missing:
        raise AspcError(
            f"The algorithm {name} has no function {missing[0]}; add it to its class, {type(algorithm).__name__}."
        )
    state = jax.eval_shape(lambda key: algorithm.init(key, loop.spec), jax.random.key(0))
    _check_policy(name, algorithm, state, loop)
    if not _is_ours(algorithm):  # tracing an update takes up to half a second, and ours are tested
        _check_metrics(name, algorithm, state, loop)


def _check_policy(name: str, algorithm: Any, state: Any, loop: Loop) -> None:
    exports: list[Any] = []

    def arrays_of(state: Any) -> Any:
        exports.append(algorithm.policy(state))
        return exports[0].arrays if isinstance(exports[0], PolicyExport) else None

    try:
        arrays = jax.eval_shape(arrays_of, state)
    except AspcError:
        raise
    except Exception as error:  # a boundary: it is the user's code
        said = f"{type(error).__name__}: {first_line(error)}{_place_of(error)}"
        raise AspcError(f"The algorithm {name} can make no policy of its first state ({said}); mend policy.") from error
    (made,) = exports
    if not isinstance(made, PolicyExport):
        raise AspcError(f"policy of the algorithm {name} gives a {type(made).__name__}; it must give a PolicyExport.")
    if made.kind not in KINDS:
        raise unknown_name(f"kind of policy of the algorithm {name}", str(made.kind), KINDS)
    sizes = loop.spec.obs_dim, loop.spec.act_dim
    try:
        settings = json.loads(json.dumps(made.settings))  # as its file will have them
        fits = KINDS[made.kind].check(arrays, settings, *sizes)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        fits = False
    if not fits:
        raise AspcError(
            f"The arrays or settings that policy of the algorithm {name} gives are no {made.kind} policy for "
            f"{sizes[0]} observation and {sizes[1]} action numbers; compare them with those of "
            "aspc.algorithms.td_learning.deterministic_policy."
        )


def _check_metrics(name: str, algorithm: Any, state: Any, loop: Loop) -> None:
    def metrics_of(state: Any, parts: frozenset[str]) -> Any:
        batch = loop.layout.unpack(jnp.zeros((algorithm.batch_size, loop.layout.width)))
        noise = loop.draw_noise(algorithm, jax.random.key(0), algorithm.batch_size)
        updated = algorithm.update(state, batch, noise, parts)
        pair = isinstance(updated, tuple | list) and len(updated) == 2 and isinstance(updated[1], Mapping)
        if not pair:
            raise AspcError(f"update of the algorithm {name} must give the next state and a dictionary of metrics.")
        return updated[1]

    for parts in all_parts(algorithm):
        for metric, value in jax.eval_shape(lambda state, parts=parts: metrics_of(state, parts), state).items():
            if value.shape:
                raise AspcError(
                    f"The metric {metric} of the algorithm {name} has the shape {value.shape}; make it a single "
                    "number, for instance with .mean()."
                )


def _is_ours(algorithm: Any) -> bool:
    """Whether it, and what it wraps, is this library's own."""
    inner = getattr(algorithm, "base", None)
    return type(algorithm).__module__.startswith("aspc.") and (inner is None or _is_ours(inner))


def _place_of(error: Exception) -> str:
    """The last line of the user's own code that an error came by, if any."""
    others = {PACKAGE, Path(jax.__file__).parents[1]}
    frames = [f for f in traceback.extract_tb(error.__traceback__) if others.isdisjoint(Path(f.filename).parents)]
    return f", {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
