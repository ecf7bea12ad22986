"""Where the time of a training step goes: critic, actor, scale, sampling, optimiser.

The parts are named in the code (`jax.named_scope`), the compiler carries the names into its instructions, and JAX's
profiler says how long each instruction ran. A fused instruction counts where its last operation belongs.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import jax

from aspc.lab.speed.measure import Prepared

# An instruction inside several scopes counts for the first of these.
PARTS = ("sampling", "scale", "optimiser", "targets", "actor", "critic")
FUSED = "networks as one kernel"  # their kernels carry one name wherever they run
OTHER = "not attributed"


class PartTime(NamedTuple):
    """A part's share of the busy time, and the milliseconds of a step that it stands for."""

    part: str
    milliseconds: float
    share: float


class Profile(NamedTuple):
    parts: list[PartTime]
    milliseconds: float
    """Of one step of all runs, by the clock."""
    kernels_per_step: float | None
    """Launched on a GPU; None elsewhere."""


def profile(prepared: Prepared) -> Profile:
    """Train one chunk under the profiler."""
    step_ms = 1000 * prepared.chunk() / prepared.steps
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            prepared.chunk()
        (file,) = Path(folder).rglob("*.xplane.pb")
        busy, kernels = time_by_instruction(jax.profiler.ProfileData.from_file(str(file)))
    part_of = parts_by_instruction(prepared.program.as_text() or "")
    by_part: Counter[str] = Counter()
    for name, nanoseconds in busy.items():
        by_part[part_of.get(name) or (FUSED if name.startswith("mlp_") else OTHER)] += nanoseconds
    total = sum(by_part.values()) or 1
    shares = [(part, by_part[part] / total) for part in (*PARTS, FUSED, OTHER) if by_part[part]]
    parts = [PartTime(part, share * step_ms, share) for part, share in shares]
    return Profile(parts, step_ms, kernels / prepared.steps if kernels else None)


def time_by_instruction(data: Any) -> tuple[Counter[str], int]:
    """Nanoseconds by name of instruction (dots as underscores), and how many kernels a GPU ran."""
    on_gpu = any("/device:GPU" in plane.name for plane in data.planes)
    busy: Counter[str] = Counter()
    kernels = 0
    for plane in data.planes:
        if on_gpu and "/device:GPU" not in plane.name:
            continue
        for line in plane.lines:
            if on_gpu and not line.name.startswith("Stream"):
                continue  # other lines show the same events again, by module or by name
            for event in line.events:
                stats = dict(event.stats)
                if on_gpu:  # a captured graph hides the instruction, but the kernel is named after it
                    kernels += 1
                    busy[plain(event.name)] += int(event.duration_ns)
                elif "hlo_op" in stats:
                    busy[plain(str(stats["hlo_op"]))] += int(event.duration_ns)
    return busy, kernels


def parts_by_instruction(hlo: str) -> dict[str, str]:
    """The part that each instruction of a compiled program belongs to, by its name."""
    found = {}
    for match in re.finditer(r"^\s*(?:ROOT )?%?([\w.-]+) = .*?op_name=\"([^\"]*)\"", hlo, flags=re.MULTILINE):
        scopes = set(re.split(r"[/()]", match[2]))
        part = next((part for part in PARTS if part in scopes), None)
        if part:
            found[plain(match[1])] = part
    return found


def plain(name: str) -> str:
    return re.sub(r"[.-]", "_", name)
