"""Profile a training step: measure the time spent on the critic, actor, scale, sampling and optimizer.

The parts of a step are named scopes (`jax.named_scope`). The compiler keeps these names in its instructions, and JAX's
profiler measures the time of each instruction. A fused instruction is attributed to the part that contains its last
operation.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import jax

from aspc.lab.speed.measure import SpeedBenchmark

# An instruction in several scopes is attributed to the first of them in this order.
PARTS = ("sampling", "scale", "optimizer", "targets", "actor", "critic")
FUSED = "fused networks"  # their kernels have the same names in all parts, so the time cannot be divided
OTHER = "not attributed"


class PartTime(NamedTuple):
    """The time of one part of a step.

    `share` is the part's fraction of the device's busy time, and `milliseconds` is this fraction of the step's time.
    """

    part: str
    milliseconds: float
    share: float


class Profile(NamedTuple):
    """The time of a training step, divided into parts."""

    parts: list[PartTime]
    milliseconds: float
    """Wall-clock time of one step of all runs."""
    kernels_per_step: float | None
    """Number of kernel launches per step on a GPU; None on other devices."""


def profile(benchmark: SpeedBenchmark) -> Profile:
    """Train for one chunk and return the time of a step, divided into parts."""
    step_ms = 1000 * benchmark.time_chunk() / benchmark.steps
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            benchmark.time_chunk()
        (file,) = Path(folder).rglob("*.xplane.pb")
        busy, kernels = time_by_instruction(jax.profiler.ProfileData.from_file(str(file)))
    part_of = parts_by_instruction(benchmark.program.as_text() or "")
    by_part: Counter[str] = Counter()
    for name, nanoseconds in busy.items():
        by_part[part_of.get(name) or (FUSED if name.startswith("mlp_") else OTHER)] += nanoseconds
    total = sum(by_part.values()) or 1
    fractions = [(part, by_part[part] / total) for part in (*PARTS, FUSED, OTHER) if by_part[part]]
    parts = [PartTime(part, fraction * step_ms, fraction) for part, fraction in fractions]
    return Profile(parts, step_ms, kernels / benchmark.steps if kernels else None)


def time_by_instruction(data: Any) -> tuple[Counter[str], int]:
    """Return the nanoseconds per instruction (see `normalize_name`), and the number of kernels that ran on a GPU."""
    is_gpu = any("/device:GPU" in plane.name for plane in data.planes)
    busy: Counter[str] = Counter()
    kernels = 0
    for plane in data.planes:
        if is_gpu and "/device:GPU" not in plane.name:
            continue
        for line in plane.lines:
            if is_gpu and not line.name.startswith("Stream"):
                continue  # other lines repeat the same events
            for event in line.events:
                stats = dict(event.stats)
                if is_gpu:  # a captured CUDA graph hides the instruction, but the kernel has the instruction's name
                    kernels += 1
                    busy[normalize_name(event.name)] += int(event.duration_ns)
                elif "hlo_op" in stats:
                    busy[normalize_name(str(stats["hlo_op"]))] += int(event.duration_ns)
    return busy, kernels


def parts_by_instruction(hlo: str) -> dict[str, str]:
    """Return the part of the step to which each instruction of a compiled program belongs."""
    parts = {}
    for match in re.finditer(r"^\s*(?:ROOT )?%?([\w.-]+) = .*?op_name=\"([^\"]*)\"", hlo, flags=re.MULTILINE):
        scopes = set(re.split(r"[/()]", match[2]))
        part = next((part for part in PARTS if part in scopes), None)
        if part:
            parts[normalize_name(match[1])] = part
    return parts


def normalize_name(name: str) -> str:
    """Return an instruction's name with underscores in place of dots and hyphens."""
    return re.sub(r"[.-]", "_", name)
