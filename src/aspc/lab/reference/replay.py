"""Replay of reference traces in float64: the proof that an algorithm is the one its authors run.

A trace holds batches, noise, initial weights and, step by step, what the reference trainer computed. It is fed to
the very `update` that training uses; nothing is re-implemented here. `adapters` knows the names that each trainer
gave its arrays.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aspc.algorithms.interface import INNER, SCALE, Batch, Noise, Parts, Schedule
from aspc.errors import AspcError, first_line

TOLERANCE = 1e-6


@dataclass(frozen=True)
class Trace:
    """A trace file: `meta` is what the trainer was set to, `arrays` everything else, by its name in the file."""

    path: Path
    meta: dict[str, Any]
    arrays: Mapping[str, np.ndarray]

    def group(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays below `prefix/`, with the prefix removed."""
        return {k[len(prefix) + 1 :]: v for k, v in self.arrays.items() if k.startswith(prefix + "/")}

    @property
    def steps(self) -> int:
        return len(self.arrays["batch/rewards"])


def read_trace(path: str | Path) -> Trace:
    path = Path(path)
    if not path.is_file():
        raise AspcError(f"There is no trace file at {path}; give the path of an .npz trace.")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as z:
            arrays = {k: z[k] for k in z.files if k != "meta"}
            meta = ast.literal_eval(str(z["meta"]))
        if not isinstance(meta, dict) or "algo" not in meta or "batch/rewards" not in arrays:
            raise ValueError
    except (OSError, ValueError, KeyError, SyntaxError, EOFError, RuntimeError) as error:
        raise AspcError(f"{path} is not a reference trace: it needs `meta` with `algo`, batches and `out/`.") from error
    except Exception as error:  # zipfile raises its own kinds on a damaged archive
        raise AspcError(f"{path} could not be read as an .npz file; it may be damaged.") from error
    return Trace(path, meta, arrays)


@dataclass(frozen=True)
class Check:
    """One compared quantity: the largest difference relative to its largest value."""

    quantity: str
    error: float

    @property
    def ok(self) -> bool:
        return self.error <= TOLERANCE


def relative_error(ours: Any, theirs: Any, origin: float = 0.0) -> float:
    """max|ours − theirs| / max|theirs − origin|; infinite where the shapes or the NaN positions differ.

    With an origin it is the displacement that is compared: a scale that hardly moves would otherwise hide an error.
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
    """The schedule written out: the parts of each of the first `steps` steps."""
    cycle = [parts for segment in schedule for parts in segment.steps * segment.repeats]
    return [cycle[i % len(cycle)] for i in range(steps)]


def as_float64(array: np.ndarray) -> Any:
    """An array of a trace on the device; integers (a diffusion step) stay integers."""
    return jnp.asarray(array, jnp.float64 if array.dtype.kind == "f" else jnp.int32)


def batch_of_step(trace: Trace, i: int) -> Batch:
    arrays = {name: as_float64(rows[i]) for name, rows in trace.group("batch").items()}
    return Batch(masks=1.0 - arrays.pop("terminals"), **arrays)


Row = dict[str, Any]  # what one step left: metrics, probes and norms by name
Compiled = dict[Any, Any]  # updates that are compiled already, by algorithm and parts


def replay(
    algorithm: Any,
    state: Any,
    trace: Trace,
    probe: Callable[[Any, Any, Batch, Noise, Parts], Row],
    observe: Callable[[Any], Row],
    compiled: Compiled | None = None,
) -> tuple[Any, list[Row]]:
    """Run every step of the trace through `algorithm.update`. Returns the final state and a row for each step.

    `probe` looks at what an update computes on the way (it may call the algorithm's pieces on the state before the
    step), `observe` at the state after it. `compiled` shares programs between replays.
    """
    compiled = {} if compiled is None else compiled
    # The outer loss of ASPC matters only to the steps that update the scale; all others are common to its settings.
    common = replace(algorithm, outer_loss="L1") if hasattr(algorithm, "outer_loss") else algorithm
    all_noise = trace.group("noise")
    rows: list[Row] = []
    inner_steps = 0
    for i, parts in enumerate(parts_of_steps(algorithm.schedule(), trace.steps)):
        program = (algorithm if SCALE in parts else common, parts)
        if program not in compiled:

            def step(state: Any, batch: Batch, noise: Noise, parts: Parts = parts) -> tuple[Any, Row]:
                new, metrics = algorithm.update(state, batch, noise, parts)
                return new, {**metrics, **probe(algorithm, state, batch, noise, parts), **observe(new)}

            compiled[program] = jax.jit(step)
        noise = {name: as_float64(draws[i]) for name, draws in all_noise.items() if len(draws) == trace.steps}
        if INNER in parts:
            # Some trainers draw only on inner steps: row j of such noise belongs to the j-th of them.
            noise |= {n: as_float64(draws[inner_steps]) for n, draws in all_noise.items() if n not in noise}
            inner_steps += 1
        state, row = compiled[program](state, batch_of_step(trace, i), noise)
        rows.append({**row, "step": i})
    return state, jax.device_get(rows)


def verify(path: str | Path) -> list[Check]:
    """Replay one trace file in float64 and compare every quantity it holds."""
    from aspc.lab.reference.adapters import check_for

    trace = read_trace(path)
    with jax.enable_x64(True):
        try:
            checks = check_for(trace)(trace)
        except KeyError as missing:
            raise AspcError(f"{path} lacks {missing}, which a {trace.meta['algo']} trace has.") from missing
        except (TypeError, ValueError, IndexError) as error:
            what = f"its arrays do not fit a {trace.meta['algo']} trace"
            raise AspcError(f"{path} cannot be replayed: {what} ({first_line(error)}).") from error
    if not checks:
        raise AspcError(f"{path} holds no results to compare with; a trace has them under out/.")
    return checks
