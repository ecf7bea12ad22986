"""The command `aspc bench`: its options, and what it prints."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from aspc.cli.parsing import read_options
from aspc.cli.shared import values_of
from aspc.data import downloaded_file
from aspc.errors import AspcError
from aspc.lab import suites
from aspc.plugins import load_plugins

if TYPE_CHECKING:
    from aspc.lab.engines.local import Engine, Known, TimeEstimator
    from aspc.lab.groups import Group
    from aspc.lab.plan import Plan

TOGETHER_ON_CPU, TOGETHER_ON_ACCELERATOR = 4, 64
SHOWN_GROUPS = 30  # of a plan
SHOWN_CAUSES = 5  # of failures
SHOWN_DATASETS = 10  # of those that are to be downloaded
ENDING_SECONDS, ENDING_SHARE = 30.0, 0.1  # of a budget, kept for the last evaluations and a checkpoint


@dataclass(frozen=True)
class Cluster:
    """Where groups are trained."""

    engine: Literal["local", "ray", "slurm"] = "local"
    """This machine, a Ray cluster, or Slurm (docs/cluster.md)."""
    at_once: int = 1
    """Groups that this machine trains at the same time, each in a process of its own: one trains while another
    compiles or evaluates (with --engine local)."""
    address: str | None = None
    """Of the Ray cluster, as `ray start` printed it; without one Ray is started on this machine."""
    cpus_per_group: float = 1
    """Cores that a group gets on a cluster."""
    gpus_per_group: float = 0
    """GPUs that a group gets on a cluster; 0.5 puts two groups on one."""
    shared_storage: bool = True
    """Whether all machines see the folder --out. If not, Ray brings results back, and a lost group starts again."""
    slurm: tuple[str, ...] = ()
    """Further settings of Slurm jobs, NAME=VALUE, for example partition=gpu time=720."""


@dataclass(frozen=True)
class Asked:
    """Run suites: tables and figures of the paper, or your own. Started again, it goes on where it was.

    Finished runs are never repeated, whichever suite asked for them; a half run is resumed from its checkpoint.
    `aspc bench --list` shows the suites; `aspc report OUT` makes a page from the results.
    """

    suites: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[SUITE ...]")] = ()
    """Names of suites."""
    list: bool = False
    """Show the suites and end."""
    dry_run: bool = False
    """Show what would be run and end; with --rate also how long it takes."""
    only: tuple[str, ...] = ()
    """Keep the runs whose dataset, algorithm or variant matches (patterns such as hopper-* work)."""
    steps: int | None = None
    """Steps of every run, instead of what the suite declares."""
    seeds: int | None = None
    """How many seeds, instead of what the suite declares."""
    eval_every: int | None = None
    """Steps between evaluations, instead of what the suite declares."""
    eval_episodes: int | None = None
    """Episodes of each evaluation, instead of what the suite declares."""
    out: Path = Path("runs/bench")
    """Folder of the results; suites that share one share their runs."""
    known: tuple[Path, ...] = ()
    """Further folders of results: runs that are finished there are not repeated."""
    data: Path | None = None
    """Folder of files in D4RL's or OGBench's layout. A file's name is its dataset's; the single tasks of an OGBench
    environment share one file (antmaze-large-navigate-v0.npz)."""
    budget: float | None = None
    """Stop before this many minutes are over; the same command goes on another day."""
    fill: bool = False
    """Also begin a group that will not end within --budget: it saves a checkpoint, and the same command goes on from
    there, if --out is kept."""
    retry_failed: bool = False
    """Try runs again that failed before."""
    group_size: int | None = None
    """Most runs that train together; by default 4 on a CPU and 64 on an accelerator."""
    rate: tuple[str, ...] = ()
    """For --dry-run: steps per second of one device, all its runs together: NUMBER, ALGO=NUMBER, or a JSON file with
    measured rates; a file with ALGO=NUMBER is scaled to that."""
    devices: int = 1
    """For --dry-run: how many devices share the groups."""
    plugin: Path | None = None
    """A Python file that registers algorithms or suites of your own."""
    quiet: bool = False
    """Show no progress."""
    cluster: tyro.conf.OmitArgPrefixes[Cluster] = field(default_factory=Cluster)


def main(argv: list[str]) -> int:
    began = time.monotonic()
    load_plugins(values_of(argv, "plugin"))
    asked: Asked = read_options(Asked, argv, "aspc bench")
    if asked.list or not asked.suites:
        print(listing())
        return 0
    for name in ("steps", "seeds", "eval_every", "eval_episodes", "group_size", "devices"):
        if getattr(asked, name) is not None and getattr(asked, name) < 1:
            raise AspcError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(asked, name)}.")
    if asked.budget is not None and not asked.budget > 0:
        raise AspcError(f"--budget is in minutes, above 0, not {asked.budget:g}.")

    use_processes(asked.cluster)
    from aspc.lab.engines.local import bench_lock, known_runs, other_code, refuse_other_data, remember
    from aspc.lab.plan import files_of, make_plan
    from aspc.lab.results import result_folders

    data = {} if asked.data is None else files_of(asked.data)
    changes = {name: getattr(asked, name) for name in ("eval_every", "eval_episodes") if getattr(asked, name)}
    plan = make_plan(
        suites.expanded(asked.suites),
        steps=asked.steps,
        seeds=asked.seeds,
        only=asked.only,
        data=data,
        options=changes,
    )
    if plan.left_out:
        print(f"left out, as they are neither known nor in --data: {', '.join(plan.left_out)}")
    for folder in asked.known:
        if not result_folders(folder):
            raise AspcError(
                f"There are no results in {folder} (--known); leave it out, or name a folder that has some."
            )
    folders = [asked.out, *asked.known]
    if asked.dry_run:
        known = known_runs(folders)
        print(other_code(plan, settled_runs(plan, known, data, asked.retry_failed)), end="")
        show_plan(asked, plan, data, known)
        return 0
    with bench_lock(asked.out), graceful_shutdown():
        known = known_runs(folders)
        settled = settled_runs(plan, known, data, asked.retry_failed)
        refuse_other_data(plan, settled, data)
        print(other_code(plan, settled), end="")
        remember(asked.out, plan)
        stop_at, command = stopping_time(began, asked.budget), shlex.join(["aspc", "bench", *argv])
        return run(asked, plan, data, known, stop_at, command)


def use_processes(cluster: Cluster) -> None:
    """See whether groups can train at once, and leave a device's memory to their processes: JAX would take it now."""
    if cluster.at_once < 1:
        raise AspcError(f"--at-once must be at least 1, not {cluster.at_once}.")
    if cluster.at_once > 1 and cluster.engine != "local":
        raise AspcError("--at-once is for --engine local; on a cluster, --gpus-per-group 0.5 puts two groups on a GPU.")
    if cluster.at_once > 1:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def stopping_time(began: float, budget: float | None) -> float | None:
    """When a training must be told to stop, so that all is over within the budget."""
    if budget is None:
        return None
    return began + 60 * budget - min(ENDING_SECONDS, 60 * budget * ENDING_SHARE)


def listing() -> str:
    """The suites, each with the part of the paper it belongs to."""
    lines = ["suites (aspc bench NAME; those that look at the same runs share them):"]
    width = max(len(name) for name in suites.names())
    for name in suites.names():
        suite = suites.get(name)
        lines.append(f"  {name:{width}s}  {suite.title} [{suite.source}]")
        if suite.note:
            lines.append(f"  {'':{width}s}    {suite.note}")
    return "\n".join(lines)


def settled_runs(plan: Plan, known: dict[str, Known], data: Mapping[str, Path], retry_failed: bool) -> dict[str, Known]:
    """The runs of the plan that are not run again. One that failed before its data were read is, once their file has
    come."""

    def is_settled(run_id: str) -> bool:
        found, dataset = known[run_id], plan.runs[run_id].dataset
        if found.status == "done" or retry_failed:
            return found.status == "done"
        had_data = found.data_fingerprint is not None
        return had_data or not has_come_since(data.get(dataset, downloaded_file(dataset)), found.finished)

    return {run_id: known[run_id] for run_id in plan.runs if run_id in known and is_settled(run_id)}


def has_come_since(file: Path | None, when: str | None) -> bool:
    """Whether a file was written, copied or moved to its place after a time."""
    if file is None or when is None or not file.exists():
        return False
    return file.stat().st_ctime > datetime.fromisoformat(when).timestamp() + 1  # times in results are whole seconds


def pending_runs(plan: Plan, known: dict[str, Known], data: Mapping[str, Path], retry_failed: bool) -> list[str]:
    """The runs that are not finished yet, in order."""
    settled = settled_runs(plan, known, data, retry_failed)
    return [run_id for run_id in plan.runs if run_id not in settled]


def to_download(groups: Iterable[Group]) -> str:
    """A line that says which datasets are not here yet; nothing if all are."""
    names = dict.fromkeys(m.run.dataset for group in groups for m in group.members if m.file is None)
    absent = [name for name in names if (file := downloaded_file(name)) is not None and not file.exists()]
    more = f" and {len(absent) - SHOWN_DATASETS} more datasets" if len(absent) > SHOWN_DATASETS else ""
    return f"to be downloaded first: {', '.join(absent[:SHOWN_DATASETS])}{more}\n" if absent else ""


def groups_of(asked: Asked, plan: Plan, data: dict[str, Path], pending: list[str]) -> list[Group]:
    from aspc.lab.engines.local import groups_to_run

    if asked.group_size is None:
        size = TOGETHER_ON_ACCELERATOR if on_accelerator(asked.cluster) else TOGETHER_ON_CPU
    else:
        size = asked.group_size
    plugin = None if asked.plugin is None else str(asked.plugin.absolute())
    return groups_to_run(asked.out, plan, pending, size, data, plugin)


def on_accelerator(cluster: Cluster) -> bool:
    if cluster.engine != "local":
        return cluster.gpus_per_group > 0
    from aspc.training import compiled_loop

    return compiled_loop.on_accelerator()


def state(plan: Plan, known: dict[str, Known], groups: list[Group]) -> str:
    failed = sum(run_id in known and known[run_id].status == "failed" for run_id in plan.runs)
    done = sum(run_id in known for run_id in plan.runs) - failed
    text = f"{len(plan.runs)} runs: {done} done, {failed} failed before"
    to_go = sum(len(group.members) for group in groups)
    text += f", {to_go} to go in {len(groups)} groups" if to_go else ", none to go"
    return f"{text} (--retry-failed tries those that failed again)" if failed else text


def show_plan(asked: Asked, plan: Plan, data: dict[str, Path], known: dict[str, Known]) -> None:
    from aspc.lab.cost import Rates, costs, evaluations, table

    groups = groups_of(asked, plan, data, pending_runs(plan, known, data, asked.retry_failed))
    print(state(plan, known, groups))
    print(to_download(groups), end="")
    for group in groups[:SHOWN_GROUPS]:
        print(f"  {group.group_id}  {group.title}")
    if len(groups) > SHOWN_GROUPS:
        print(f"  and {len(groups) - SHOWN_GROUPS} more")
    if groups:
        rates = Rates.read(asked.rate) if asked.rate else None
        print(table(costs(groups, rates), asked.devices))
        rollouts = evaluations(groups)
        print(
            f"  Evaluations: {rollouts.episodes:,} episodes, at most {rollouts.environment_steps:,} environment steps "
            f"(about {rollouts.core_hours:,.1f} hours of one core)."
        )


def run(
    asked: Asked,
    plan: Plan,
    data: dict[str, Path],
    known: dict[str, Known],
    stop_at: float | None = None,
    command: str | None = None,
) -> int:
    from aspc.lab.engines.local import Bench

    groups = groups_of(asked, plan, data, pending_runs(plan, known, data, asked.retry_failed))
    print(f"{state(plan, known, groups)}\n{to_download(groups)}", end="", flush=True)
    settled = settled_runs(plan, known, data, asked.retry_failed)
    if groups:
        engine = make_engine(asked, stop_at)
        work = Bench(
            asked.out,
            plan,
            groups,
            settled,
            engine,
            quiet=asked.quiet,
            stop_at=stop_at,
            fill=asked.fill,
            pace=pace_of(asked),
            command=command,
        )
        settled = work.run()
    return finish(asked, plan, settled)


def pace_of(asked: Asked) -> TimeEstimator:
    """How long such groups took on this machine before; on a cluster nobody knows which machine it will be."""
    from aspc.lab.engines.local import TimeEstimator, pace_before
    from aspc.lab.groups import machine
    from aspc.training.run_config import environment_facts

    if asked.cluster.engine != "local":
        return TimeEstimator()
    return pace_before([asked.out, *asked.known], environment_facts()["device"], machine())


def make_engine(asked: Asked, stop_at: float | None) -> Engine:
    out, cluster = asked.out.absolute(), asked.cluster
    if cluster.engine == "local" and cluster.at_once > 1:
        from aspc.lab.engines.processes import ProcessesEngine

        return ProcessesEngine(out, cluster.at_once)
    if cluster.engine == "local":
        from aspc.lab.engines.local import LocalEngine

        return LocalEngine(out, asked.quiet, stop_at)
    if cluster.engine == "ray":
        from aspc.lab.engines.ray import RayEngine

        return RayEngine(
            out, cluster.address, cluster.cpus_per_group, cluster.gpus_per_group, shared_storage=cluster.shared_storage
        )
    from aspc.lab.engines.slurm import SlurmEngine

    return SlurmEngine(out, cluster.cpus_per_group, cluster.gpus_per_group, cluster.slurm)


def finish(asked: Asked, plan: Plan, known: dict[str, Known]) -> int:
    """The last lines. The exit code is 1 if runs have failed."""
    failed = {
        run_id: known[run_id].error for run_id in plan.runs if run_id in known and known[run_id].status == "failed"
    }
    done = sum(run_id in known for run_id in plan.runs) - len(failed)
    left = len(plan.runs) - done - len(failed)
    print(f"{done} of {len(plan.runs)} runs done, {len(failed)} failed" + (f", {left} left" if left else ""))
    causes = _counted(failed.values())
    for error, count in causes[:SHOWN_CAUSES]:
        print(f"  failed ({count}): {error}")
    if len(causes) > SHOWN_CAUSES:
        print(f"  and {len(causes) - SHOWN_CAUSES} other causes")
    if failed:
        print("When that is mended, the same command with --retry-failed tries them again.")
    if left:
        print("The same command goes on with what is left.")
    if done:
        # The folder of the results also says which suite the runs of --known belong to.
        folders = [str(asked.out), *(str(folder) for folder in asked.known)]
        print(f"To see the results: aspc report {shlex.join(folders)}")
    return 1 if failed else 0


def _counted(errors: Any) -> list[tuple[str, int]]:
    from collections import Counter

    return Counter(str(error) for error in errors).most_common()


@contextmanager
def graceful_shutdown() -> Iterator[None]:
    """A signal between trainings ends as one during a training does: with a sentence, and nothing half."""
    from aspc.lab.engines.local import Stop, stopped

    def stop(number: int, frame: Any) -> None:
        raise Stop

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except (Stop, KeyboardInterrupt) as signalled:
        raise stopped(signalled) from None
    finally:
        signal.signal(signal.SIGTERM, before)
