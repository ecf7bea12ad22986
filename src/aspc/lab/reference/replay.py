"""Replay reference traces to verify that an algorithm matches its authors' implementation.

A trace contains batches, noise, initial weights, and the quantities that the reference trainer computed at every step.
The replay runs the same `update` function that training uses. The modules in `adapters` map the names in each
trainer's traces to this library's networks and metrics.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from aspc.adaptive_scale import AdaptiveScale
from aspc.algorithms.interface import INNER, SCALE, Algorithm, Batch, Noise, Parts, Schedule
from aspc.errors import AspcError

TOLERANCE = 1e-6
State = TypeVar("State")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Trace:
    """The content of a trace file: the trainer's settings (`meta`) and all arrays by name."""

    path: Path
    meta: dict[str, Any]
    arrays: Mapping[str, Array]

    def group(self, prefix: str) -> dict[str, Array]:
        """Return the arrays whose names start with `prefix/`, by name without the prefix."""
        return {k[len(prefix) + 1 :]: v for k, v in self.arrays.items() if k.startswith(prefix + "/")}

    @property
    def steps(self) -> int:
        """Number of training steps in the trace."""
        return len(self.arrays["batch/rewards"])


def read_trace(path: str | Path) -> Trace:
    """Read a trace file.

    Raises:
        AspcError: The file does not exist, is damaged, or is not a trace.
    """
    path = Path(path)
    if not path.is_file():
        raise AspcError(f"Trace file {path} does not exist. Pass the path of an .npz trace.")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as z:
            arrays = {k: z[k] for k in z.files if k != "meta"}
            meta = ast.literal_eval(str(z["meta"]))
        if not isinstance(meta, dict) or "algo" not in meta or "batch/rewards" not in arrays:
            raise ValueError
    except (OSError, ValueError, KeyError, SyntaxError, EOFError, RuntimeError) as error:
        raise AspcError(
            f"{path} is not a reference trace: it must contain `meta` with `algo`, `batch/` and `out/`."
        ) from error
    except Exception as error:  # zipfile raises its own exceptions for damaged archives
        raise AspcError(f"{path} cannot be read as an .npz file; it may be damaged.") from error
    return Trace(path, meta, arrays)


@dataclass(frozen=True)
class TraceCheck:
    """The result of comparing one quantity: its name and its relative error (see `relative_error`)."""

    quantity: str
    error: float

    @property
    def passes(self) -> bool:
        """True if the error is within the tolerance."""
        return self.error <= TOLERANCE


def relative_error(ours: Any, theirs: Any, origin: float = 0.0) -> float:
    """Return max|ours − theirs| / max|theirs − origin|, or infinity if shapes or NaN positions differ.

    If an origin is given, errors are relative to the change from it. This makes errors visible in a scale that hardly
    changes.
    """
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if ours.shape != theirs.shape or not np.array_equal(np.isnan(ours), np.isnan(theirs)):
        return float("inf")
    known = ~np.isnan(theirs)
    if not known.any():
        return 0.0
    largest = np.abs(theirs[known] - origin).max()
    difference = np.abs(ours[known] - theirs[known]).max()
    return float(difference / largest) if largest > 0 else float(difference)


def parts_of_steps(schedule: Schedule, steps: int) -> list[Parts]:
    """Return the parts that each of the first `steps` steps of a schedule updates."""
    cycle = [parts for segment in schedule for parts in segment.steps * segment.repeats]
    return [cycle[i % len(cycle)] for i in range(steps)]


def to_device(array: Array) -> jax.Array:
    """Convert an array of a trace to a JAX array: floats become float64, integers (diffusion steps) become int32."""
    return jnp.asarray(array, jnp.float64 if array.dtype.kind == "f" else jnp.int32)


def get_batch(trace: Trace, i: int) -> Batch:
    """Return the minibatch of a step."""
    arrays = {name: to_device(rows[i]) for name, rows in trace.group("batch").items()}
    return Batch(masks=1.0 - arrays.pop("terminals"), **arrays)


Row = dict[str, Any]  # metrics, probed quantities and norms of one step, by name
CompiledSteps = dict[Any, Any]  # compiled updates, by algorithm and parts


def replay(
    algorithm: Algorithm[State],
    state: State,
    trace: Trace,
    probe: Callable[[State, Batch, Noise, Parts], Row],
    observe: Callable[[State], Row],
    compiled: CompiledSteps | None = None,
) -> tuple[State, list[Row]]:
    """Run every step of a trace through `algorithm.update`.

    Args:
        algorithm: The algorithm with the trace's settings.
        state: The initial state.
        trace: The trace to replay.
        probe: Function that computes intermediate quantities of a step from the state before it.
        observe: Function that computes quantities from the state after a step.
        compiled: Cache of compiled steps, shared between replays.

    Returns:
        The final state and one row per step.
    """
    compiled = {} if compiled is None else compiled
    # The outer loss affects only steps that update the scale, so the compiled other steps are shared between losses.
    shared = replace(algorithm, outer_loss="L1") if isinstance(algorithm, AdaptiveScale) else algorithm
    all_noise = trace.group("noise")
    rows: list[Row] = []
    inner_steps = 0
    for i, parts in enumerate(parts_of_steps(algorithm.schedule(), trace.steps)):
        program = (algorithm if SCALE in parts else shared, parts)
        if program not in compiled:

            def step(state: State, batch: Batch, noise: Noise, parts: Parts = parts) -> tuple[State, Row]:
                new, metrics = algorithm.update(state, batch, noise, parts)
                return new, {**metrics, **probe(state, batch, noise, parts), **observe(new)}

            compiled[program] = jax.jit(step)
        noise = {name: to_device(draws[i]) for name, draws in all_noise.items() if len(draws) == trace.steps}
        if INNER in parts:
            # Some trainers draw noise only at inner steps: row j belongs to the j-th inner step.
            noise |= {n: to_device(draws[inner_steps]) for n, draws in all_noise.items() if n not in noise}
            inner_steps += 1
        state, row = compiled[program](state, get_batch(trace, i), noise)
        rows.append({**row, "step": i})
    return state, jax.device_get(rows)
