"""Groups as jobs of Slurm, through submitit. All machines must see the bench's folder.

A job that runs into its time limit, or is preempted, is put into the queue again and goes on from its checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aspc.errors import AspcError, DiskFailure, ExternalFailure, MissingExtra, first_line
from aspc.io import write_atomically
from aspc.lab.engines.local import Ended, Watching
from aspc.lab.groups import Group, group_folder, part_file, run_group
from aspc.training.trainer import Interrupted

DEFAULT_MINUTES = 24 * 60
ANY_NUMBER_OF_TIMES = 1_000_000  # that a job may run into its time limit
STOPPED = "stopped"  # a file of a group whose job was told to stop


class GroupJob:
    """What a job does; submitit asks `checkpoint` what to do with one that is cut off."""

    def __call__(self, bench: str, group_id: str) -> None:
        mark = group_folder(Path(bench), group_id) / STOPPED
        mark.unlink(missing_ok=True)
        try:
            run_group(Path(bench), group_id)
        except Interrupted as interruption:
            # SIGTERM, as before a preemption: the checkpoint is saved. Without a result the job can be begun again.
            mark.touch()
            os._exit(interruption.exit_code)

    def checkpoint(self, bench: str, group_id: str) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, bench, group_id)


def slurm_settings(words: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE as submitit takes it; `time` is in minutes."""
    settings: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier() or not value:
            raise AspcError(f"--slurm takes NAME=VALUE, for example partition=gpu time=720, not {word!r}.")
        settings[f"slurm_{name}"] = int(value) if value.isdigit() else value
    return {"slurm_time": DEFAULT_MINUTES, **settings}


class SlurmEngine(Watching):
    """The queue of Slurm. `cluster="local"` runs jobs as processes of this machine, which the tests do."""

    look_seconds = 2.0  # files and queue

    def __init__(
        self, bench: Path, cpus: float = 1, gpus: float = 0, words: Sequence[str] = (), cluster: str = "slurm"
    ) -> None:
        super().__init__()
        try:
            import submitit
        except ImportError as error:
            raise MissingExtra("--engine slurm", "slurm") from error
        if int(cpus) != cpus or int(gpus) != gpus:
            raise AspcError("Slurm gives whole cores and GPUs: give whole numbers.")
        settings = slurm_settings(words)
        try:
            self._executor = submitit.AutoExecutor(
                folder=bench / "slurm", cluster=cluster, slurm_max_num_timeout=ANY_NUMBER_OF_TIMES
            )
        except RuntimeError as error:
            raise AspcError(f"Slurm cannot be used from here: {error}.") from error
        try:
            self._executor.update_parameters(name="aspc", cpus_per_task=int(cpus), gpus_per_node=int(gpus), **settings)
        except NameError as error:  # submitit's own for a name that it does not know
            raise AspcError(f"submitit does not know a setting of --slurm: {first_line(error)}.") from error
        self._job_kind = submitit.LocalJob if cluster == "local" else submitit.SlurmJob
        self.bench = bench

    def has_room(self, group: Group) -> bool:
        return True  # the queue is Slurm's

    def start(self, group: Group) -> None:
        job = self._still_running(group) or self._executor.submit(GroupJob(), str(self.bench), group.group_id)
        write_atomically(self._job_file(group), str(job.job_id).encode())
        self._jobs[group.group_id] = (group, job)

    def _job_file(self, group: Group) -> Path:
        return group_folder(self.bench, group.group_id) / "slurm_job"

    def _still_running(self, group: Group) -> Any:
        """The job that an earlier `aspc bench` submitted for this group, if it is not over; else None."""
        file = self._job_file(group)
        if not file.exists():
            return None
        job: Any = self._job_kind(folder=self.bench / "slurm", job_id=file.read_text())
        return None if job.done(force_check=True) else job

    def _ended(self, group: Group, job: Any) -> Ended | None:
        over = job.done()  # asked first: results are written before a job ends
        if part_file(self.bench, group.group_id).exists():
            return Ended(group)
        if not over:
            return None
        stopped = group_folder(self.bench, group.group_id) / STOPPED
        if stopped.exists() and not str(job.state).startswith("CANCELLED"):  # not by us or the user: by the cluster
            stopped.unlink()
            self.start(group)
            return None
        said = f"The job {job.job_id} ended without results; its log is {job.paths.stderr}"
        failure = str(job.exception())
        if DiskFailure.__name__ in failure:  # no fault of the run: the bench stops, and can go on
            raise DiskFailure(f"{said}; it could not write, so make room, and the same command goes on.")
        if ExternalFailure.__name__ in failure:
            raise ExternalFailure(f"{said}; when what it says is mended, the same command goes on.")
        return Ended(group, said)

    def close(self) -> None:
        """Jobs that are still wanted go on without us; the next `aspc bench` finds their results."""
