"""A profile of a training step: time in the critic, actor, scale, sampling and optimizer.

The parts are named scopes (`jax.named_scope`). The compiler keeps the names in its instructions, and JAX's profiler
measures the time of each instruction. A fused instruction is attributed to the part of its last operation.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import jax

from aspc.lab.speed.measure import SpeedBenchmark

# An instruction in several scopes is attributed to the first of these.
PARTS = ("sampling", "scale", "optimizer", "targets", "actor", "critic")
FUSED = "fused networks"  # their kernels have the same name in every part
OTHER = "not attributed"


class PartTime(NamedTuple):
    """The time of one part of a step: `share` of the busy time, and this share of the step's `milliseconds`."""

    part: str
    milliseconds: float
    share: float


class Profile(NamedTuple):
    """The time of a step, by part."""

    parts: list[PartTime]
    milliseconds: float
    """Wall-clock time of one step of all runs."""
    kernels_per_step: float | None
    """Kernel launches on a GPU; None on other devices."""


def profile(benchmark: SpeedBenchmark) -> Profile:
    """Profile the training of one chunk."""
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
    """Return nanoseconds by instruction (see `normalize_name`), and the number of kernels that a GPU ran."""
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
                if is_gpu:  # a captured graph hides the instruction, but its kernel has the same name
                    kernels += 1
                    busy[normalize_name(event.name)] += int(event.duration_ns)
                elif "hlo_op" in stats:
                    busy[normalize_name(str(stats["hlo_op"]))] += int(event.duration_ns)
    return busy, kernels


def parts_by_instruction(hlo: str) -> dict[str, str]:
    """Return the part of each instruction of a compiled program."""
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
