"""Export a policy as a StableHLO program with `jax.export`; JAX runs it on any device without this library.

The file is a zip archive of `program` (for `jax.export.deserialize`, including the weights) and `metadata.json`.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from aspc.errors import AspcError
from aspc.policy import OPTIONAL_VECTORS, Policy
from aspc.policy_choices import choice_names
from aspc.policy_inputs import LoggedRange, Stream, act_in_stream
from aspc.policy_kinds import NoiseInput, compute_logits, sample_noise
from aspc.policy_memory import propagate_invalid, step_or_nan

PROGRAM, LOGITS, METADATA = "program", "logits", "metadata.json"
PLATFORMS = ("cpu", "cuda", "tpu")

Act = Callable[..., np.ndarray]


def stablehlo_archive(policy: Policy, metadata: dict[str, Any]) -> bytes:
    """Return the archive, whose `program(observations, *noise) → actions` accepts a batch axis of any size.

    With memory, the signature is `program(observations, memory, *noise) → actions, next_memory`. The program is a pure
    function, so invalid observations result in NaN actions; the function that `load` returns applies `on_invalid`
    instead.
    """
    import jax
    from jax import export

    (batch,) = export.symbolic_shape("batch")
    has_memory = policy.memory_size > 0
    memory = [(None, policy.memory_size)] if has_memory else []
    shapes = [(None, policy.observation_size), *memory, *(draw.shape for draw in policy.noise().values())]
    dynamic = [tuple(batch if size is None else size for size in shape) for shape in shapes]
    inputs = [jax.ShapeDtypeStruct(shape, np.float32) for shape in dynamic]  # type: ignore[no-untyped-call]
    program = jax.jit(
        (lambda rows, memory, *noise: step_or_nan(policy, rows, memory, noise))
        if has_memory
        else (lambda rows, *noise: step_or_nan(policy, rows, None, noise)[0])
    )
    with jax.default_matmul_precision("highest"):  # so that actions are the same on every device
        serialized = export.export(program, platforms=PLATFORMS)(*inputs).serialize()
        scores = None
        if policy.kind == "categorical":
            logits = jax.jit(lambda rows: propagate_invalid(compute_logits(policy, rows), rows))
            scores = export.export(logits, platforms=PLATFORMS)(inputs[0]).serialize()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(PROGRAM, bytes(serialized))
        if scores is not None:
            archive.writestr(LOGITS, bytes(scores))
        archive.writestr(METADATA, json.dumps(metadata, indent=1))
    return buffer.getvalue()


def load(path: Path) -> Act:
    """Load an exported policy as `act(observations, rng=0)`, like `Policy.act`, with its metadata in `act.metadata`.

    `act.reset()` clears the state between calls, like `Policy.reset`. For discrete actions, `act.logits(observations)`
    returns the logits and `act.choose(observations)` the names of the chosen options.
    """
    import jax
    from jax import export

    try:
        with zipfile.ZipFile(path) as archive:
            metadata = json.loads(archive.read(METADATA))
            program = export.deserialize(bytearray(archive.read(PROGRAM)))
            has_logits = LOGITS in archive.namelist()
            scores = export.deserialize(bytearray(archive.read(LOGITS))) if has_logits else None
    except FileNotFoundError as error:
        raise AspcError(f"{path} does not exist.") from error
    except Exception as error:  # errors of a damaged program have no common class
        raise AspcError(f"{path} is not a valid StableHLO export of this library. Export the policy again.") from error
    draws = {
        name: NoiseInput(noise["distribution"], tuple(None if n == "batch" else n for n in noise["shape"]))
        for name, noise in metadata["noise"].items()
    }
    call = jax.jit(program.call)
    logged = _logged_range(metadata)
    memory_start, stream = np.asarray(metadata.get("initial_memory", ()), np.float32), Stream()

    def step(rows: np.ndarray, memory: np.ndarray | None, noise: list[np.ndarray]) -> tuple[np.ndarray, Any]:
        if memory is None:
            return np.asarray(call(rows, *noise)), None
        actions, following = call(rows, memory, *noise)
        return np.asarray(actions), np.asarray(following)

    def act(observations: Any, rng: np.random.Generator | int | None = 0, on_invalid: str | None = None) -> np.ndarray:
        return act_in_stream(
            lambda rows, memory: step(rows, memory, sample_noise(draws, len(rows), rng)),
            memory_start,
            logged,
            observations,
            metadata.get("observation_names") or (),
            metadata["observation_size"],
            metadata.get("on_invalid", "raise") if on_invalid is None else on_invalid,
            stream,
            AspcError,
        )

    act.metadata = metadata  # type: ignore[attr-defined]
    act.reset = stream.reset  # type: ignore[attr-defined]
    act.choose = lambda observations: choice_names(metadata, act(observations), AspcError)  # type: ignore[attr-defined]
    if scores is not None:
        act.logits = lambda observations: np.asarray(jax.jit(scores.call)(observations))  # type: ignore[attr-defined]
    return act


def _logged_range(metadata: dict[str, Any]) -> LoggedRange:
    """Return the range of the logged observations, which is unlimited if it was not recorded."""
    size = metadata["observation_size"]
    vectors = (metadata.get(name) for name in OPTIONAL_VECTORS)
    low, high = (None if values is None else np.asarray(values, np.float32) for values in vectors)
    has_score = "ood" in metadata.get("guards", {})
    return LoggedRange.of(low, high, np.zeros(size, np.float32), np.ones(size, np.float32), has_score)
