"""The options of `aspc export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aspc.cli.shared import parse
from aspc.export import Format, OnInvalid, export


@dataclass(frozen=True)
class Export:
    """Write a policy as ONNX, StableHLO or plain NumPy, with its normaliser and action bounds inside."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run's folder, or a policy's own folder."""
    format: Format
    """onnx: a graph for ONNX Runtime and its kin; stablehlo: a program for JAX; numpy: a folder with a Python module
    that needs NumPy alone."""
    out: Path | None = None
    """Where to write it. Default: policy.onnx, policy.stablehlo or numpy/ in the policy's folder."""
    seed: int | None = None
    """Which of a run's seeds; by default the first."""
    force: bool = False
    """Replace what is there."""
    on_invalid: OnInvalid | None = None
    """Action for an observation with NaN, infinity or missing entries: raise an error, hold the last action, or return
    NaN. Default: what the policy says (raise, unless you saved it otherwise). ONNX always returns NaN."""


def main(argv: list[str]) -> int:
    asked = parse(Export, argv, "export")
    path = export(asked.run, asked.format, asked.out, asked.seed, asked.force, asked.on_invalid)
    size = sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]))
    print(f"{path} ({size / 1e6:.2f} MB)")
    return 0
