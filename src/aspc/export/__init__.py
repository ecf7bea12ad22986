"""`aspc export`: a policy for where this library is not. ONNX, StableHLO, or a folder that needs NumPy alone.

Each carries the normaliser and the action bounds with it and takes any batch size. Policies that sample take their
random numbers as inputs, so that the program stays a pure function; its metadata names their shapes.
"""

from __future__ import annotations

import os
import secrets
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from aspc.errors import AspcError, unknown_name
from aspc.io import replace_durably, write_atomically
from aspc.policy import Policy, find_policy

__all__ = ["export", "load_stablehlo", "main"]

Format = Literal["onnx", "stablehlo", "numpy"]
OnInvalid = Literal["raise", "hold", "nan"]
DEFAULT_NAMES = {"onnx": "policy.onnx", "stablehlo": "policy.stablehlo", "numpy": "numpy"}


OWN_FILES = {"policy.py", "weights.npz", "__pycache__"}


def export(
    run: str | Path,
    format: Format,
    out: str | Path | None = None,
    seed: int | None = None,
    force: bool = False,
    on_invalid: OnInvalid | None = None,
) -> Path:
    """Write the policy of a run (or of a policy's own folder); returns where it is.

    What is already at `out` is kept, unless `force` is given; then it is replaced whole. `on_invalid` is what the
    export does with an observation that is not made of numbers, by default what the policy says; ONNX returns NaN.
    """
    if format == "onnx" and on_invalid not in (None, "nan"):
        raise AspcError(
            f"An ONNX graph cannot {on_invalid}: an invalid observation gives a NaN action. Leave --on-invalid out and "
            "check for NaN, or export to numpy."
        )
    if format not in DEFAULT_NAMES:
        raise unknown_name("format of an export", str(format), DEFAULT_NAMES)
    folder = find_policy(run, seed)
    policy = Policy.load(folder)
    if on_invalid is not None:
        policy = policy.with_on_invalid(on_invalid)
    target = Path(out) if out is not None else folder / DEFAULT_NAMES[format]
    if target.exists() and not force:
        raise AspcError(f"{target} exists already; choose another --out, or replace it with --force.")
    if target.is_dir() and not (format == "numpy" and {f.name for f in target.iterdir()} <= OWN_FILES):
        raise AspcError(f"{target} is not an exported {format} policy, so it is not replaced; choose another --out.")
    if format == "numpy" and target.is_file():
        raise AspcError(f"{target} is a file, but a NumPy export is a folder; choose another --out.")
    files = contents(policy, format)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if format == "numpy":
            write_folder(target, files)
        else:
            write_atomically(target, files[""])
    except OSError as error:
        raise AspcError(f"{target} cannot be written: {error.strerror}; choose another --out.") from error
    return target


def contents(policy: Policy, format: Format) -> dict[str, bytes]:
    """The files of an exported policy by name; a single file has none."""
    if format == "onnx":
        from aspc.export.onnx import onnx_model

        stated = {**metadata(policy), "on_invalid": "nan"}
        return {"": onnx_model(policy, stated).SerializeToString()}
    if format == "stablehlo":
        from aspc.export.stablehlo import stablehlo_archive

        return {"": stablehlo_archive(policy, metadata(policy))}
    from aspc.export.numpy_folder import numpy_files

    return numpy_files(policy, metadata(policy))


def metadata(policy: Policy) -> dict[str, Any]:
    """What travels with every export: where the policy came from, its sizes, and its inputs."""
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
        "exported_by": f"aspc {version('aspc')}",
    }


def write_folder(target: Path, files: dict[str, bytes]) -> None:
    """The folder appears whole: written under another name, then renamed. One that it replaces goes after that."""
    new, old = (target.with_name(f".{target.name}.{secrets.token_hex(4)}") for _ in range(2))
    try:
        new.mkdir()
        for name, content in files.items():
            write_atomically(new / name, content)
        if target.exists():
            os.rename(target, old)
            replace_durably(new, target)
            shutil.rmtree(old)
        else:
            replace_durably(new, target)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def load_stablehlo(path: str | Path) -> Any:
    """A StableHLO export as a function with the signature of `Policy.act`; needs JAX (`aspc.export.stablehlo`)."""
    from aspc.export.stablehlo import load

    return load(Path(path))
