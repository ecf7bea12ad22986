"""An engine that trains groups as Slurm jobs, submitted with submitit. All machines must share the output folder.

A job that is preempted or reaches its time limit is resubmitted and continues from its checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aspc.errors import AspcError, DiskFailure, ExternalFailure, MissingExtra, first_line
from aspc.interrupts import Interrupted
from aspc.io import write_atomically
from aspc.lab.engines.interface import FinishedGroup, PollingEngine
from aspc.lab.group_training import run_group
from aspc.lab.groups import RunGroup, group_path, results_path

DEFAULT_MINUTES = 24 * 60
MAX_TIMEOUTS = 1_000_000  # effectively unlimited
STOPPED = "stopped"  # marker file in a group's folder, created when the job has received SIGTERM


class GroupJob:
    """The callable that a job runs. When the job reaches its time limit, submitit calls `checkpoint`."""

    def __call__(self, bench: str, group_id: str) -> None:
        """Train a group in the shared folder."""
        mark = group_path(Path(bench), group_id) / STOPPED
        mark.unlink(missing_ok=True)
        try:
            run_group(Path(bench), group_id)
        except Interrupted as interruption:
            # The job received SIGTERM, for example before a preemption. It has saved a checkpoint, and the engine
            # resubmits the group.
            mark.touch()
            os._exit(interruption.exit_code)

    def checkpoint(self, bench: str, group_id: str) -> Any:
        """Return the submission that resumes this job."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, bench, group_id)


def parse_slurm_settings(words: Sequence[str]) -> dict[str, Any]:
    """Convert NAME=VALUE words to arguments of submitit; `time` is in minutes."""
    settings: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier() or not value:
            raise AspcError(f"--slurm takes NAME=VALUE, for example partition=gpu time=720, not {word!r}.")
        settings[f"slurm_{name}"] = int(value) if value.isdigit() else value
    return {"slurm_time": DEFAULT_MINUTES, **settings}


class SlurmEngine(PollingEngine[Any]):
    """An engine that submits groups to Slurm. In tests, `cluster="local"` runs jobs as processes on this machine."""

    poll_seconds = 2.0

    def __init__(
        self, bench: Path, cpus: float = 1, gpus: float = 0, words: Sequence[str] = (), cluster: str = "slurm"
    ) -> None:
        super().__init__()
        try:
            import submitit
        except ImportError as error:
            raise MissingExtra("--engine slurm", "slurm") from error
        if int(cpus) != cpus or int(gpus) != gpus:
            raise AspcError(
                "Slurm allocates whole cores and GPUs. Pass whole numbers to --cpus-per-group and --gpus-per-group."
            )
        settings = parse_slurm_settings(words)
        try:
            self._executor = submitit.AutoExecutor(
                folder=bench / "slurm", cluster=cluster, slurm_max_num_timeout=MAX_TIMEOUTS
            )
        except RuntimeError as error:
            raise AspcError(f"Slurm cannot be used from this machine: {error}.") from error
        try:
            self._executor.update_parameters(name="aspc", cpus_per_task=int(cpus), gpus_per_node=int(gpus), **settings)
        except NameError as error:  # raised by submitit for unknown settings
            raise AspcError(f"Unknown --slurm setting: {first_line(error)}.") from error
        self._job_kind = submitit.LocalJob if cluster == "local" else submitit.SlurmJob
        self.bench = bench

    def has_room(self, group: RunGroup) -> bool:
        """Return True, because Slurm queues jobs."""
        return True

    def start(self, group: RunGroup) -> None:
        """Submit a group, or adopt the unfinished job that an earlier `aspc bench` submitted for it."""
        job = self._find_queued_job(group) or self._executor.submit(GroupJob(), str(self.bench), group.group_id)
        write_atomically(self._job_file(group), str(job.job_id).encode())
        self._jobs[group.group_id] = (group, job)

    def _job_file(self, group: RunGroup) -> Path:
        return group_path(self.bench, group.group_id) / "slurm_job"

    def _find_queued_job(self, group: RunGroup) -> Any:
        """Return the unfinished job that an earlier `aspc bench` submitted for this group, or None."""
        file = self._job_file(group)
        if not file.exists():
            return None
        job: Any = self._job_kind(folder=self.bench / "slurm", job_id=file.read_text())
        return None if job.done(force_check=True) else job

    def _poll(self, group: RunGroup, job: Any) -> FinishedGroup | None:
        is_done = job.done()  # checked before the results: a job writes them before it ends
        if results_path(self.bench, group.group_id).exists():
            return FinishedGroup(group)
        if not is_done:
            return None
        stopped = group_path(self.bench, group.group_id) / STOPPED
        if stopped.exists() and not str(job.state).startswith("CANCELLED"):  # stopped by the cluster
            stopped.unlink()
            self.start(group)
            return None
        message = f"Job {job.job_id} ended without results (log: {job.paths.stderr})"
        failure = str(job.exception())
        if DiskFailure.__name__ in failure:  # not caused by the run: stop all groups
            raise DiskFailure(f"{message} because writing failed. Free some space, then run the same command again.")
        if ExternalFailure.__name__ in failure:
            raise ExternalFailure(f"{message}. Fix the problem reported in the log, then run the same command again.")
        return FinishedGroup(group, message)

    def close(self) -> None:
        """Do nothing: jobs continue without this process, and the next `aspc bench` finds their results."""
