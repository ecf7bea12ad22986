"""A policy as a StableHLO program, by way of `jax.export`: for JAX on any device, of another version, with no aspc.

The file is a zip archive of `program` (what `jax.export.deserialize` reads; the weights are in it) and
`metadata.json`.
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
from aspc.policy import Policy
from aspc.policy_kinds import Draw, checked_act, nan_where_invalid, sample, whole_act

PROGRAM, METADATA = "program", "metadata.json"
PLATFORMS = ("cpu", "cuda", "tpu")

Act = Callable[..., np.ndarray]


def stablehlo_archive(policy: Policy, metadata: dict[str, Any]) -> bytes:
    """Return the file's content: `program(observations, *noise) → actions`, with a batch axis of any size.

    The program is a pure function, so an invalid observation gives NaN; what `load` returns obeys `on_invalid`.
    """
    import jax
    from jax import export

    (batch,) = export.symbolic_shape("batch")
    shapes = [(None, policy.observation_size), *(draw.shape for draw in policy.noise().values())]
    inputs = [
        jax.ShapeDtypeStruct(tuple(batch if size is None else size for size in shape), np.float32) for shape in shapes
    ]
    program = jax.jit(lambda rows, *noise: nan_where_invalid(whole_act(policy, rows, noise), rows))
    with jax.default_matmul_precision("highest"):  # the policy's own numbers on every device
        serialised = export.export(program, platforms=PLATFORMS)(*inputs).serialize()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(PROGRAM, bytes(serialised))
        archive.writestr(METADATA, json.dumps(metadata, indent=1))
    return buffer.getvalue()


def load(path: Path) -> Act:
    """`act(observations, rng=0)` of an exported policy, as `Policy.act` has it; `act.metadata` says what it is."""
    import jax
    from jax import export

    try:
        with zipfile.ZipFile(path) as archive:
            metadata = json.loads(archive.read(METADATA))
            program = export.deserialize(bytearray(archive.read(PROGRAM)))
    except FileNotFoundError as error:
        raise AspcError(f"There is no file {path}.") from error
    except Exception as error:  # a boundary: the errors of a damaged program share no class
        raise AspcError(f"{path} is not a whole StableHLO export of this library; export the policy again.") from error
    draws = {
        name: Draw(noise["distribution"], tuple(None if n == "batch" else n for n in noise["shape"]))
        for name, noise in metadata["noise"].items()
    }
    call = jax.jit(program.call)

    held: dict[str, np.ndarray] = {}

    def act(observations: Any, rng: np.random.Generator | int | None = 0, on_invalid: str | None = None) -> np.ndarray:
        return checked_act(
            lambda rows: np.asarray(call(rows, *sample(draws, len(rows), rng))),
            observations,
            metadata.get("observation_names") or (),
            metadata["observation_size"],
            metadata.get("on_invalid", "raise") if on_invalid is None else on_invalid,
            held,
            AspcError,
        )

    act.metadata = metadata  # type: ignore[attr-defined]
    return act
