"""`aspc speed`: its options, and what it prints, saves and draws."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aspc.cli.shared import parse
from aspc.errors import AspcError
from aspc.io import write_atomically
from aspc.policy import make_room


@dataclass(frozen=True)
class Speed:
    """Measure training on synthetic data, on the default device.

    Prints compile seconds, steps per second, floating-point operations a step, the machine's measured rate at the
    step's own matrix shapes, and the share of it that training reaches. Or one of: a profile of a step, a comparison
    of algorithms, a sweep over how many runs train together.
    """

    algo: str = "aspc"
    """The algorithm."""
    obs_dim: int = 17
    """Size of an observation."""
    act_dim: int = 6
    """Size of an action."""
    batch: int = 256
    """Size of a minibatch."""
    seeds: int = 1
    """Runs to train together."""
    steps: int = 2_000
    """Steps to time, after compilation."""
    profile: bool = False
    """Milliseconds and share of a step by part, and kernels a step on a GPU."""
    compare: str | None = None
    """Algorithms to time in turn, as td3_bc,aspc; times are relative to the first."""
    sweep_seeds: str | None = None
    """Numbers of runs to train together, as 1,2,4,8."""
    cache: bool = False
    """Use the persistent compilation cache, as training does: a second start shows what it saves."""
    json: bool = False
    """Print JSON instead of a table."""
    save: Path | None = None
    """Also write the JSON to this file."""
    plot: Path | None = None
    """Also draw the comparison or the sweep to this file (PNG or SVG)."""


def main(argv: list[str]) -> int:
    asked = parse(Speed, argv, "speed")
    if sum([asked.profile, asked.compare is not None, asked.sweep_seeds is not None]) > 1:
        raise AspcError("Give one of --profile, --compare and --sweep-seeds at a time.")
    if asked.plot and asked.compare is None and asked.sweep_seeds is None:
        raise AspcError("--plot draws a comparison or a sweep; give --compare or --sweep-seeds too.")
    if asked.save:
        make_room(asked.save, ".json")
    if asked.plot:
        make_room(asked.plot, ".png", ".svg")
    if asked.cache:
        from aspc.training.run import use_compilation_cache

        use_compilation_cache()
    result = _profile(asked) if asked.profile else _rows(asked)
    text = json.dumps(result, indent=1)
    if asked.json:
        print(text)
    if asked.save:
        write_atomically(asked.save, (text + "\n").encode())
    if asked.plot:
        assert isinstance(result, list)
        draw(result, asked.plot)
    return 0


def _rows(asked: Speed) -> dict[str, Any] | list[dict[str, Any]]:
    from aspc.lab.speed import measure

    sizes = (asked.obs_dim, asked.act_dim, asked.batch)
    if asked.compare is not None:
        names = [name.strip() for name in asked.compare.split(",")]
        rows = measure.compare(names, *sizes, asked.seeds, asked.steps)
        _line(asked, ["algorithm", "steps/s", "time over the first's"])
        for row in rows:
            _line(asked, [row["algo"], f"{row['steps_per_second']:,.0f}", f"{row['relative_time']:.3f}"])
        return rows
    if asked.sweep_seeds is not None:
        rows, together = [], _numbers(asked.sweep_seeds)
        _line(asked, ["runs", "steps/s in all", "steps/s a run", "compile s", "device MiB"])
        for row in measure.sweep(asked.algo, *sizes, together, asked.steps):
            rows.append(row)
            memory = row.get("peak_device_memory_mib")
            rate = row["steps_per_second"]
            columns = [f"{row['seeds']}", f"{rate:,.0f}", f"{rate / row['seeds']:,.0f}"]
            columns += [f"{row['compile_seconds']:.1f}", f"{memory:,.0f}" if memory else "-"]
            _line(asked, columns)
        return rows
    result = measure.measure(asked.algo, *sizes, asked.seeds, asked.steps)
    for name, value in result.items():
        shown = f"{value:,.4g}" if isinstance(value, float) else str(value)
        if not asked.json:
            print(f"{name.replace('_', ' '):40s} {shown}")
    return result


def _profile(asked: Speed) -> dict[str, Any]:
    from aspc.lab.speed.measure import Prepared
    from aspc.lab.speed.profile import profile

    prepared = Prepared(asked.algo, asked.obs_dim, asked.act_dim, asked.batch, asked.seeds, asked.steps)
    seen = profile(prepared)
    _line(asked, ["part", "ms a step", "share"])
    for part in seen.parts:
        _line(asked, [part.part, f"{part.milliseconds:.3f}", f"{100 * part.share:.1f} %"])
    _line(asked, ["all", f"{seen.milliseconds:.3f}", "100 %"])
    if seen.kernels_per_step is not None and not asked.json:
        print(f"{seen.kernels_per_step:.1f} kernels a step")
    return {
        **prepared.facts(),
        "milliseconds": seen.milliseconds,
        "kernels_per_step": seen.kernels_per_step,
        "parts": [part._asdict() for part in seen.parts],
    }


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise AspcError(f"--sweep-seeds takes whole numbers with commas, as 1,2,4,8; not {text!r}.") from None


def _line(asked: Speed, columns: Sequence[str]) -> None:
    if not asked.json:
        print(f"{columns[0]:24s}" + "".join(f"{column:>22s}" for column in columns[1:]), flush=True)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """A comparison of algorithms as bars; a sweep of runs as a curve, beside what it would be if runs cost nothing."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    if "relative_time" in rows[0]:
        axes.barh([row["algo"] for row in rows], [row["steps_per_second"] for row in rows], color="#0072b2")
        axes.invert_yaxis()
        axes.set_xlabel("steps a second")
    else:
        runs, rates = [row["seeds"] for row in rows], [row["steps_per_second"] for row in rows]
        axes.loglog(runs, rates, "o-", color="#0072b2", label=rows[0]["algo"])
        axes.loglog(
            runs, [rates[0] * n / runs[0] for n in runs], ":", color="0.5", label="if each run cost nothing more"
        )
        for n, rate in zip(runs, rates, strict=True):
            axes.annotate(f"{rate:,.0f}", (n, rate), (0, -14), textcoords="offset points", ha="center", fontsize=8)
        axes.set_xticks(runs, [str(n) for n in runs])
        axes.minorticks_off()
        axes.margins(y=0.12)
        axes.set_xlabel("runs together")
        axes.set_ylabel("steps a second, in all")
        axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(rows[0]["device"], fontsize=10, loc="left")
    figure.savefig(path, dpi=150)
