"""The command `aspc speed`: measure, print, save and plot training speed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aspc.algorithm_colors import OTHER_COLOR, algorithm_color
from aspc.cli.parsing import Flag, Unset, parse_options
from aspc.errors import AspcError
from aspc.io import prepare_output_file, write_atomically

COMMON_OPTIONS = "algo obs-dim act-dim batch seeds steps profile compare sweep-seeds json"  # shown by --help


@dataclass(frozen=True)
class SpeedArgs:
    """Measure training speed with synthetic data on the default device.

    By default, print the compile time, steps per second, floating-point operations per step, and the training
    speed as a fraction of the speed of the matrix products alone. With other options, profile a step, compare
    algorithms, or sweep over the number of concurrent runs.
    """

    algo: str = "aspc"
    """Algorithm to measure."""
    obs_dim: int = 17
    """Observation dimension."""
    act_dim: int = 6
    """Action dimension, or the number of options if the algorithm's actions are discrete."""
    batch: int = 256
    """Minibatch size."""
    seeds: int = 1
    """Number of concurrent runs."""
    steps: int = 2_000
    """Steps to time after compilation."""
    profile: Flag = False
    """Print the time of each part of a step and, on a GPU, the number of kernels per step."""
    compare: Unset[str] = None
    """Algorithms to compare, separated by commas, such as td3_bc,aspc. Times are relative to the first."""
    sweep_seeds: Unset[str] = None
    """Numbers of concurrent runs to sweep over, such as 1,2,4,8."""
    cache: Flag = False
    """Use the persistent compilation cache, as `aspc train` does."""
    json: Flag = False
    """Print JSON instead of a table."""
    save: Unset[Path] = None
    """Also write the measurements to this file as JSON."""
    plot: Unset[Path] = None
    """Also plot the comparison or the sweep to this file (PNG or SVG)."""


def main(argv: list[str]) -> int:
    """Run the command and return its exit code."""
    args = parse_options(SpeedArgs, argv, "aspc speed", common=COMMON_OPTIONS)
    if sum([args.profile, args.compare is not None, args.sweep_seeds is not None]) > 1:
        raise AspcError("Pass only one of --profile, --compare and --sweep-seeds.")
    if args.plot and args.compare is None and args.sweep_seeds is None:
        raise AspcError("--plot requires --compare or --sweep-seeds.")
    if args.save:
        prepare_output_file(args.save, ".json")
    if args.plot:
        prepare_output_file(args.plot, ".png", ".svg")
    if args.cache:
        from aspc.training.run import use_compilation_cache

        use_compilation_cache()
    result = _profile(args) if args.profile else _measure(args)
    text = json.dumps(result, indent=1)
    if args.json:
        print(text)
    if args.save:
        write_atomically(args.save, (text + "\n").encode())
    if args.plot:
        assert isinstance(result, list)
        draw(result, args.plot)
    return 0


def _measure(args: SpeedArgs) -> dict[str, Any] | list[dict[str, Any]]:
    from aspc.lab.speed import measure

    sizes = (args.obs_dim, args.act_dim, args.batch)
    if args.compare is not None:
        names = [name.strip() for name in args.compare.split(",")]
        rows = measure.compare(names, *sizes, args.seeds, args.steps)
        _print_row(args, ["algorithm", "steps/s", "relative time"])
        for row in rows:
            _print_row(args, [row["algo"], f"{row['steps_per_second']:,.0f}", f"{row['relative_time']:.3f}"])
        return rows
    if args.sweep_seeds is not None:
        rows, counts = [], _parse_counts(args.sweep_seeds)
        _print_row(args, ["runs", "total steps/s", "steps/s per run", "compile s", "device MiB"])
        for row in measure.sweep(args.algo, *sizes, counts, args.steps):
            rows.append(row)
            memory = row.get("peak_device_memory_mib")
            rate = row["steps_per_second"]
            columns = [f"{row['seeds']}", f"{rate:,.0f}", f"{rate / row['seeds']:,.0f}"]
            columns += [f"{row['compile_seconds']:.1f}", f"{memory:,.0f}" if memory else "-"]
            _print_row(args, columns)
        return rows
    result = measure.measure(args.algo, *sizes, args.seeds, args.steps)
    for name, value in result.items():
        shown = f"{value:,.4g}" if isinstance(value, float) else str(value)
        if not args.json:
            print(f"{name.replace('_', ' '):40s} {shown}")
    return result


def _profile(args: SpeedArgs) -> dict[str, Any]:
    from aspc.lab.speed.measure import SpeedBenchmark
    from aspc.lab.speed.profile import profile

    benchmark = SpeedBenchmark(args.algo, args.obs_dim, args.act_dim, args.batch, args.seeds, args.steps)
    result = profile(benchmark)
    _print_row(args, ["part", "ms per step", "share"])
    for part in result.parts:
        _print_row(args, [part.part, f"{part.milliseconds:.3f}", f"{100 * part.share:.1f} %"])
    _print_row(args, ["total", f"{result.milliseconds:.3f}", "100 %"])
    if result.kernels_per_step is not None and not args.json:
        print(f"{result.kernels_per_step:.1f} kernels per step")
    return {
        **benchmark.describe(),
        "milliseconds": result.milliseconds,
        "kernels_per_step": result.kernels_per_step,
        "parts": [part._asdict() for part in result.parts],
    }


def _parse_counts(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise AspcError(f"--sweep-seeds must be comma-separated integers such as 1,2,4,8, not {text!r}.") from None


def _print_row(args: SpeedArgs, columns: Sequence[str]) -> None:
    if not args.json:
        print(f"{columns[0]:24s}" + "".join(f"{column:>22s}" for column in columns[1:]), flush=True)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Plot a comparison of algorithms as a bar chart, or a sweep as a curve next to ideal linear scaling."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    if "relative_time" in rows[0]:
        colors = [algorithm_color(row["algo"]) or OTHER_COLOR for row in rows]
        axes.barh([row["algo"] for row in rows], [row["steps_per_second"] for row in rows], color=colors)
        axes.invert_yaxis()
        axes.set_xlabel("steps per second")
    else:
        runs, rates = [row["seeds"] for row in rows], [row["steps_per_second"] for row in rows]
        color = algorithm_color(rows[0]["algo"]) or OTHER_COLOR
        axes.loglog(runs, rates, "o-", color=color, label=rows[0]["algo"])
        axes.loglog(runs, [rates[0] * n / runs[0] for n in runs], ":", color="0.5", label="linear scaling")
        for n, rate in zip(runs, rates, strict=True):
            axes.annotate(f"{rate:,.0f}", (n, rate), (0, -14), textcoords="offset points", ha="center", fontsize=8)
        axes.set_xticks(runs, [str(n) for n in runs])
        axes.minorticks_off()
        axes.margins(y=0.12)
        axes.set_xlabel("concurrent runs")
        axes.set_ylabel("total steps per second")
        axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(rows[0]["device"], fontsize=10, loc="left")
    figure.savefig(path, dpi=150)
