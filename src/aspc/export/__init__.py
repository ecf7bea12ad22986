"""Export a policy to run without this library: as ONNX, StableHLO, or a folder that needs only NumPy.

Each format includes the normalizer and the action bounds and accepts any batch size. A stochastic policy takes its
random numbers as inputs, so that the program is a pure function; the metadata lists their shapes. For the same reason,
the memory of a policy is an input and an output of its program.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from aspc import __version__
from aspc.assessment.trained_runs import home_of, with_origin
from aspc.errors import AspcError, unknown_name
from aspc.history import NEWEST_ONLY
from aspc.io import write_atomically, write_folder_atomically
from aspc.policy import HEADER, OPTIONAL_VECTORS, WEIGHTS, Policy, find_policy
from aspc.policy_guards import Guards, guards_to_json
from aspc.policy_memory import memory_parts, memory_start

__all__ = ["export", "load_stablehlo"]

Format = Literal["onnx", "stablehlo", "numpy", "policy"]
OnInvalid = Literal["raise", "hold", "nan"]
DEFAULT_NAMES = {"onnx": "policy.onnx", "stablehlo": "policy.stablehlo", "numpy": "numpy", "policy": ""}
FOLDER_FILES = {"numpy": {"policy.py", "weights.npz", "__pycache__"}, "policy": {HEADER, WEIGHTS}}


def export(
    run: str | Path,
    format: Format,
    out: str | Path | None = None,
    seed: int | None = None,
    force: bool = False,
    on_invalid: OnInvalid | None = None,
    guards: Guards | None = None,
) -> Path:
    """Export a policy and return the path of the export.

    Args:
        run: The folder of a run or of a single policy.
        format: "onnx", "stablehlo", "numpy", or "policy", a folder for `aspc.load_policy`.
        out: The output path; by default inside the policy's folder. Required for "policy".
        seed: The seed of the run to export; by default the run's first seed.
        force: Replace an existing export.
        on_invalid: The handling of observations with NaN, infinite or missing entries, as in `Policy.act`; by default
            the policy's own setting. An ONNX export always returns NaN.
        guards: Limits on the actions, which replace those saved with the policy.

    Raises:
        AspcError: The policy does not exist, or the export cannot be written.
    """
    if format == "onnx" and on_invalid not in (None, "nan"):
        raise AspcError(
            f"An ONNX graph does not support --on-invalid {on_invalid}: an invalid observation gives a NaN action. "
            "Omit the option and check for NaN, or use --format numpy."
        )
    if format not in DEFAULT_NAMES:
        raise unknown_name("export format", str(format), DEFAULT_NAMES)
    if format == "policy" and out is None:
        raise AspcError("--format policy needs an output folder. Pass --out.")
    folder = find_policy(run, seed)
    policy = Policy.load(folder)
    if on_invalid is not None:
        policy = policy.with_on_invalid(on_invalid)
    if guards is not None:
        policy = policy.with_guards(guards)
    if format == "policy" and home_of(folder) is not None:
        policy = with_origin(policy, str(folder), {"by": "aspc export"})
    target = Path(out) if out is not None else folder / DEFAULT_NAMES[format]
    if target.exists() and not force:
        raise AspcError(f"{target} already exists. Choose another --out, or replace it with --force.")
    if target.is_dir() and not {f.name for f in target.iterdir()} <= FOLDER_FILES.get(format, set()):
        raise AspcError(f"{target} is not an exported {format} policy and will not be replaced. Choose another --out.")
    if format in FOLDER_FILES and target.is_file():
        raise AspcError(f"{target} is a file, but an export to {format} is a folder. Choose another --out.")
    files = render_files(policy, format)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if format in FOLDER_FILES:
            write_folder_atomically(target, files)
        else:
            write_atomically(target, files[""])
    except OSError as error:
        raise AspcError(f"{target} cannot be written: {error.strerror}. Choose another --out.") from error
    return target


def render_files(policy: Policy, format: Format) -> dict[str, bytes]:
    """Return the contents of an export's files by name. The file of a single-file export has an empty name."""
    if format == "policy":
        return policy.files()
    if format == "onnx":
        from aspc.export.onnx import onnx_model

        model: bytes = onnx_model(policy, {**metadata(policy), "on_invalid": "nan"}).SerializeToString()
        return {"": model}
    if format == "stablehlo":
        from aspc.export.stablehlo import stablehlo_archive

        return {"": stablehlo_archive(policy, metadata(policy))}
    from aspc.export.numpy_folder import numpy_files

    return numpy_files(policy, metadata(policy))


def metadata(policy: Policy) -> dict[str, Any]:
    """Return the metadata of an export: the origin of the policy, its sizes, its inputs and its guards.

    At the start of an episode, every row of the memory equals `initial_memory`. `memory` lists the names and sizes of
    the memory's parts in order.
    """
    extra: dict[str, Any] = {} if policy.guards is None else {"guards": guards_to_json(policy.guards)}
    if policy.history != NEWEST_ONLY:
        extra["history"] = policy.history._asdict()
    logged = {name: getattr(policy, name) for name in OPTIONAL_VECTORS}
    extra |= {name: array.tolist() for name, array in logged.items() if array is not None}
    if policy.memory_size:
        extra["initial_memory"] = memory_start(policy).tolist()
        extra["memory"] = [{"name": part.name, "size": len(part.initial)} for part in memory_parts(policy)]
    return {
        **policy.info,
        "kind": policy.kind,
        "observation_size": policy.observation_size,
        "action_size": policy.action_size,
        "action_low": policy.action_low.tolist(),
        "action_high": policy.action_high.tolist(),
        "on_invalid": policy.on_invalid,
        "noise": {
            name: {"distribution": draw.distribution, "shape": ["batch" if n is None else n for n in draw.shape]}
            for name, draw in policy.noise().items()
        },
        **extra,
        "exported_by": f"aspc {__version__}",
    }


def load_stablehlo(path: str | Path) -> Any:
    """Load a StableHLO export as a function with the signature of `Policy.act`. This needs JAX."""
    from aspc.export.stablehlo import load

    return load(Path(path))
