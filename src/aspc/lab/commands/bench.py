"""Options of the command `aspc bench`, and its list of suites. The module `bench_run` implements the command."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from aspc.cli.parsing import Flag, Several, Unset, parse_options
from aspc.cli.shared import option_values
from aspc.errors import AspcError
from aspc.lab import suites
from aspc.plugins import load_plugins

RENAMED_OPTIONS = {"--at-once": "--parallel-groups", "--known": "--reuse", "--fill": "--use-full-budget"}
COMMON_OPTIONS = "list dry-run only steps seeds out data budget engine parallel-groups"  # shown by --help


@dataclass(frozen=True)
class Cluster:
    """Machines to train on."""

    engine: Literal["local", "ray", "slurm"] = "local"
    """Train on this machine, on a Ray cluster, or with Slurm (docs/cluster.md)."""
    parallel_groups: int = 1
    """Number of groups to train at the same time on this machine, each in its own process. One group can then train
    while another compiles or evaluates. Only with --engine local."""
    address: Unset[str] = None
    """Address of the Ray cluster, as printed by `ray start`. By default, Ray is started on this machine."""
    cpus_per_group: float = 1
    """Cores per group on a cluster."""
    gpus_per_group: float = 0
    """GPUs per group on a cluster; 0.5 puts two groups on one GPU."""
    shared_storage: bool = True
    """Assume that all machines can access the --out folder. Without shared storage, Ray transfers the results, and a
    group starts over if its machine is lost."""
    slurm: Several[str] = ()
    """Additional Slurm job settings as NAME=VALUE, for example partition=gpu time=720."""


@dataclass(frozen=True)
class BenchArgs:
    """Train suites of runs that reproduce the paper's tables and figures, or suites of your own.

    After an interruption, run the same command again to continue. Finished runs are never repeated, even if another
    suite requested them. Interrupted runs resume from their checkpoints.
    A group is a set of runs that train together as one compiled program.
    `aspc bench --list` shows the suites; `aspc report OUT` creates an HTML report from the results.
    """

    suites: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[SUITE ...]", help_behavior_hint="")
    ] = ()
    """Names of the suites to run."""
    list: Flag = False
    """List the suites and exit."""
    dry_run: Flag = False
    """Show the planned groups and exit. With --rate, also estimate the training time."""
    only: Several[str] = ()
    """Train only runs whose dataset, algorithm or variant matches. Patterns such as hopper-* are allowed."""
    steps: Unset[int] = None
    """Steps per run. By default, each suite sets its own."""
    seeds: Unset[int] = None
    """Number of seeds. By default, each suite sets its own."""
    eval_every: Unset[int] = None
    """Steps between evaluations. By default, each suite sets its own."""
    eval_episodes: Unset[int] = None
    """Episodes per evaluation. By default, each suite sets its own."""
    history: Unset[int] = None
    """Number of recent observations that the policy and the critics receive (docs/history.md). By default, each suite
    sets its own."""
    history_actions: Flag = False
    """With --history, also pass the actions taken between these observations to the policy and the critics."""
    out: Path = Path("runs/bench")
    """Output folder (created if missing). Suites that use the same folder share their runs."""
    reuse: Several[Path] = ()
    """Additional result folders whose finished runs are not repeated."""
    data: Unset[Path] = None
    """Folder of dataset files in the D4RL or OGBench layout, each named after its dataset. The singletask variants of
    an OGBench environment share one file (antmaze-large-navigate-v0.npz)."""
    budget: Unset[float] = None
    """Stop within this many minutes; run the same command again to continue."""
    use_full_budget: Flag = False
    """Also start a group that cannot finish within --budget. When the budget is used up, the group saves a checkpoint
    in --out; run the same command again to continue from there."""
    retry_failed: Flag = False
    """Retry runs that failed earlier."""
    group_size: Unset[int] = None
    """Maximum number of runs per group. Default: 4 on a CPU, 64 on an accelerator."""
    rate: Several[str] = ()
    """Total steps per second on one device, for the time estimate of --dry-run: NUMBER, ALGO=NUMBER, or a JSON file of
    measured rates. Combined with a file, ALGO=NUMBER rescales all rates in the file so that the rate of ALGO is
    NUMBER."""
    devices: int = 1
    """Number of devices that share the groups, for the time estimate of --dry-run."""
    plugin: Unset[Path] = None
    """Python file that registers your own algorithms or suites."""
    quiet: Flag = False
    """Hide progress."""
    cluster: tyro.conf.OmitArgPrefixes[Cluster] = field(default_factory=Cluster)


def main(argv: list[str]) -> int:
    """Run the command and return its exit code: 1 if runs have failed."""
    start_time = time.monotonic()
    load_plugins(option_values(argv, "plugin"))
    args = parse_options(BenchArgs, argv, "aspc bench", renamed=RENAMED_OPTIONS, common=COMMON_OPTIONS)
    if args.list or not args.suites:
        print(format_suites())
        return 0
    check_args(args)
    if (
        args.cluster.parallel_groups > 1
    ):  # leave the device's memory to the groups' processes; set before JAX is imported
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

    from aspc.lab.commands.bench_run import run_bench

    return run_bench(args, argv, start_time)


def check_args(args: BenchArgs) -> None:
    """Raise `AspcError` if an option is out of range."""
    counts = {
        "--steps": args.steps,
        "--seeds": args.seeds,
        "--eval-every": args.eval_every,
        "--eval-episodes": args.eval_episodes,
        "--history": args.history,
        "--group-size": args.group_size,
        "--devices": args.devices,
        "--parallel-groups": args.cluster.parallel_groups,
    }
    for name, value in counts.items():
        if value is not None and value < 1:
            raise AspcError(f"{name} must be at least 1, not {value}.")
    if args.budget is not None and not args.budget > 0:
        raise AspcError(f"--budget must be above 0 (minutes), not {args.budget:g}.")
    if args.cluster.parallel_groups > 1 and args.cluster.engine != "local":
        raise AspcError(
            "--parallel-groups requires --engine local. On a cluster, --gpus-per-group 0.5 puts two groups on one GPU."
        )


def format_suites() -> str:
    """Return a list of the suites as text, each with the part of the paper that it reproduces."""
    lines = ["suites (aspc bench NAME; suites that request the same runs share them):"]
    width = max(len(name) for name in suites.names())
    for name in suites.names():
        suite = suites.get(name)
        lines.append(f"  {name:{width}s}  {suite.title} [{suite.source}]")
        if suite.note:
            lines.append(f"  {'':{width}s}    {suite.note}")
    return "\n".join(lines)
