"""The implementation of `aspc bench`: plan the runs, show the plan or train it, and print a summary."""

from __future__ import annotations

import shlex
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from aspc.data import downloaded_file
from aspc.errors import AspcError
from aspc.interrupts import Terminated
from aspc.lab import suites
from aspc.lab.bench_folder import bench_lock, collect_groups, record_entries
from aspc.lab.commands.bench import BenchArgs, Cluster
from aspc.lab.cost import Rates, compute_costs, compute_evaluation_cost, format_costs
from aspc.lab.dataset_files import find_dataset_files
from aspc.lab.engines.interface import Engine
from aspc.lab.engines.local import LocalEngine
from aspc.lab.engines.processes import ProcessesEngine
from aspc.lab.engines.ray import RayEngine
from aspc.lab.engines.slurm import SlurmEngine
from aspc.lab.groups import RunGroup
from aspc.lab.plan import BenchPlan, make_plan
from aspc.lab.recorded_runs import (
    RecordedRun,
    check_data_unchanged,
    code_change_warning,
    read_recorded_runs,
    select_settled_runs,
)
from aspc.lab.results import find_result_folders
from aspc.lab.run_rows import describe_machine
from aspc.lab.scheduler import Scheduler, to_interrupted
from aspc.lab.time_estimates import TimeEstimator
from aspc.text import count_noun, join_limited
from aspc.training import compiled_loop
from aspc.training.run_config import software_facts

CPU_GROUP_SIZE, ACCELERATOR_GROUP_SIZE = 4, 64
MAX_LISTED_GROUPS = 30
MAX_LISTED_ERRORS = 5
MAX_LISTED_DATASETS = 10
RESERVED_SECONDS, RESERVED_FRACTION = 30.0, 0.1  # of a time budget, for final evaluations and a checkpoint


def run_bench(args: BenchArgs, argv: list[str], start_time: float) -> int:
    """Plan the runs of the requested suites, then train them or only show the plan.

    Args:
        args: The parsed options.
        argv: The unparsed options, recorded with the results.
        start_time: Time at which the command started, on the monotonic clock.

    Returns:
        The exit code: 1 if runs have failed.
    """
    data = {} if args.data is None else find_dataset_files(args.data)
    options = {
        "eval_every": args.eval_every,
        "eval_episodes": args.eval_episodes,
        "history": args.history,
        "history_actions": args.history_actions or None,
    }
    plan = make_plan(
        suites.expand(args.suites),
        steps=args.steps,
        seeds=args.seeds,
        only=args.only,
        data=data,
        options={name: value for name, value in options.items() if value is not None},
    )
    if plan.missing_datasets:
        print(f"skipped datasets that are neither known by name nor in --data: {', '.join(plan.missing_datasets)}")
    for folder in args.reuse:
        if not find_result_folders(folder):
            raise AspcError(f"The --reuse folder {folder} contains no results. Omit it, or pass a result folder.")
    folders = [args.out, *args.reuse]
    if args.dry_run:
        recorded = read_recorded_runs(folders)
        settled = select_settled_runs(plan, recorded, data, args.retry_failed)
        print(code_change_warning(plan, settled), end="")
        show_plan(args, plan, data, recorded, settled)
        return 0
    with bench_lock(args.out), graceful_shutdown():
        recorded = read_recorded_runs(folders)
        settled = select_settled_runs(plan, recorded, data, args.retry_failed)
        check_data_unchanged(plan, settled, data)
        print(code_change_warning(plan, settled), end="")
        record_entries(args.out, plan)
        groups = plan_groups(args, plan, data, settled)
        print(f"{format_state(plan, recorded, groups)}\n{download_notice(groups)}", end="", flush=True)
        if groups:
            deadline, command = compute_deadline(start_time, args.budget), shlex.join(["aspc", "bench", *argv])
            settled = train_groups(args, plan, groups, settled, deadline, command)
        return print_summary(args, plan, settled)


def compute_deadline(start_time: float, budget_minutes: float | None) -> float | None:
    """Return the time at which training must stop to stay within the budget, or None without a budget."""
    if budget_minutes is None:
        return None
    seconds = 60 * budget_minutes
    return start_time + seconds - min(RESERVED_SECONDS, seconds * RESERVED_FRACTION)


def plan_groups(
    args: BenchArgs, plan: BenchPlan, data: Mapping[str, Path], settled: Mapping[str, RecordedRun]
) -> list[RunGroup]:
    """Return the groups of all runs that still need training."""
    size = args.group_size
    if size is None:
        size = ACCELERATOR_GROUP_SIZE if uses_accelerator(args.cluster) else CPU_GROUP_SIZE
    plugin = None if args.plugin is None else str(args.plugin.absolute())
    pending = [run_id for run_id in plan.runs if run_id not in settled]
    return collect_groups(args.out, plan, pending, size, data, plugin)


def uses_accelerator(cluster: Cluster) -> bool:
    """Return whether groups train on an accelerator."""
    return compiled_loop.on_accelerator() if cluster.engine == "local" else cluster.gpus_per_group > 0


def train_groups(
    args: BenchArgs,
    plan: BenchPlan,
    groups: list[RunGroup],
    settled: Mapping[str, RecordedRun],
    deadline: float | None,
    command: str,
) -> dict[str, RecordedRun]:
    """Train the groups and return the outcomes of all runs that have ended, by run id."""
    scheduler = Scheduler(
        args.out,
        plan,
        groups,
        settled,
        make_engine(args, deadline),
        quiet=args.quiet,
        deadline=deadline,
        use_full_budget=args.use_full_budget,
        estimator=make_estimator(args),
        command=command,
    )
    return scheduler.run()


def make_estimator(args: BenchArgs) -> TimeEstimator:
    """Return a time estimator based on earlier timings from this machine; on a cluster, it starts without timings.

    The machines of a cluster can differ, so earlier timings may not apply there.
    """
    if args.cluster.engine != "local":
        return TimeEstimator()
    return TimeEstimator.from_results([args.out, *args.reuse], software_facts().device, describe_machine())


def make_engine(args: BenchArgs, deadline: float | None) -> Engine:
    """Return the engine selected by the options."""
    out, cluster = args.out.absolute(), args.cluster
    cpus, gpus = cluster.cpus_per_group, cluster.gpus_per_group
    if cluster.engine == "ray":
        return RayEngine(out, cluster.address, cpus, gpus, shared_storage=cluster.shared_storage)
    if cluster.engine == "slurm":
        return SlurmEngine(out, cpus, gpus, cluster.slurm)
    if cluster.parallel_groups > 1:
        return ProcessesEngine(out, cluster.parallel_groups)
    return LocalEngine(out, args.quiet, deadline)


@contextmanager
def graceful_shutdown() -> Iterator[None]:
    """Raise `Interrupted` on Ctrl-C or SIGTERM between fleets, as training itself does within a fleet."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise to_interrupted(interrupt) from None
    finally:
        signal.signal(signal.SIGTERM, previous)


# ── output ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def show_plan(
    args: BenchArgs,
    plan: BenchPlan,
    data: Mapping[str, Path],
    recorded: Mapping[str, RecordedRun],
    settled: Mapping[str, RecordedRun],
) -> None:
    """Print the groups that would be trained and their cost."""
    groups = plan_groups(args, plan, data, settled)
    print(format_state(plan, recorded, groups))
    print(download_notice(groups), end="")
    for group in groups[:MAX_LISTED_GROUPS]:
        print(f"  {group.group_id}  {group.title}")
    if len(groups) > MAX_LISTED_GROUPS:
        print(f"  and {len(groups) - MAX_LISTED_GROUPS} more")
    if groups:
        rates = Rates.parse(args.rate) if args.rate else None
        print(format_costs(compute_costs(groups, rates), args.devices))
        evaluations = compute_evaluation_cost(groups)
        print(
            f"  Evaluations: {evaluations.episodes:,} episodes, at most {evaluations.environment_steps:,} environment "
            f"steps (about {evaluations.core_hours:,.1f} hours on one core)."
        )


def format_state(plan: BenchPlan, recorded: Mapping[str, RecordedRun], groups: list[RunGroup]) -> str:
    """Return one line that states how many runs are done, failed and pending."""
    failed = sum(run_id in recorded and recorded[run_id].status == "failed" for run_id in plan.runs)
    done = sum(run_id in recorded for run_id in plan.runs) - failed
    text = f"{count_noun(len(plan.runs), 'run')}: {done:,} done, {failed:,} failed earlier"
    pending = sum(len(group.members) for group in groups)
    text += f", {pending:,} pending in {count_noun(len(groups), 'group')}" if pending else ", none pending"
    return f"{text} (pass --retry-failed to retry failed runs)" if failed else text


def download_notice(groups: Iterable[RunGroup]) -> str:
    """Return a line that lists the datasets to download, or an empty string if there are none."""
    names = dict.fromkeys(m.run.dataset for group in groups for m in group.members if m.file is None)
    missing = [name for name in names if (file := downloaded_file(name)) is not None and not file.exists()]
    return f"datasets to download first: {join_limited(missing, MAX_LISTED_DATASETS)}\n" if missing else ""


def print_summary(args: BenchArgs, plan: BenchPlan, recorded: Mapping[str, RecordedRun]) -> int:
    """Print the outcome and return the exit code: 1 if runs have failed."""
    outcomes = [recorded[run_id] for run_id in plan.runs if run_id in recorded]
    errors = [run.error for run in outcomes if run.status == "failed"]
    done, remaining = len(outcomes) - len(errors), len(plan.runs) - len(outcomes)
    rest = f", {remaining:,} left" if remaining else ""
    print(f"{done:,} of {count_noun(len(plan.runs), 'run')} done, {len(errors):,} failed{rest}")
    causes = Counter(str(error) for error in errors).most_common()
    for error, count in causes[:MAX_LISTED_ERRORS]:
        print(f"  failed ({count}): {error}")
    if len(causes) > MAX_LISTED_ERRORS:
        print(f"  and {len(causes) - MAX_LISTED_ERRORS} other causes")
    if errors:
        print("After fixing the cause, run the same command with --retry-failed to retry these runs.")
    if remaining:
        print("Run the same command again to continue with the remaining runs.")
    if done:
        # Include --out even if all runs come from --reuse, because it records which suites they belong to.
        folders = [str(args.out), *(str(folder) for folder in args.reuse)]
        print(f"To see the results: aspc report {shlex.join(folders)}")
    return 1 if errors else 0
