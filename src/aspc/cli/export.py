"""The command `aspc export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aspc.cli.parsing import Flag, Unset, parse_options
from aspc.export import Format, OnInvalid, export


@dataclass(frozen=True)
class Export:
    """Export a policy as ONNX, StableHLO or plain NumPy, including its normalizer and action bounds."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, or the folder of a single policy."""
    format: Format
    """Format to write. onnx: a graph for ONNX Runtime and similar; stablehlo: a program for JAX; numpy: a folder with
    a Python module that needs only NumPy."""
    out: Unset[Path] = None
    """Output path. Default: policy.onnx, policy.stablehlo or numpy/ in the policy's folder."""
    seed: Unset[int] = None
    """Seed of the run to export. Default: the run's first seed."""
    force: Flag = False
    """Replace an existing export."""
    on_invalid: Unset[OnInvalid] = None
    """Behavior for observations with NaN, infinite or missing entries: raise an error, hold the last action, or return
    NaN. Default: the setting saved with the policy (raise, unless you changed it). ONNX always returns NaN."""


def main(argv: list[str]) -> int:
    """Run `aspc export`."""
    args = parse_options(Export, argv, "aspc export")
    path = export(args.run, args.format, args.out, args.seed, args.force, args.on_invalid)
    size = sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]))
    print(f"{path} ({size / 1e6:.2f} MB)")
    return 0
