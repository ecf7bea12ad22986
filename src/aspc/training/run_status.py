"""The file status.json, which records run information that is not part of a checkpoint."""

from __future__ import annotations

import time
from pathlib import Path

from aspc.errors import AspcError
from aspc.io import read_json, write_json
from aspc.training.divergence import DivergenceGuard
from aspc.training.run_folder import STATUS


class RunStatus:
    """The failed runs and the total training time, including the time before the run was resumed.

    Args:
        folder: The run folder.
        guard: The divergence guard, to which recorded failures up to `first_step` are restored.
        first_step: The step from which training continues.

    Raises:
        AspcError: The file is damaged.
    """

    def __init__(self, folder: Path, guard: DivergenceGuard, first_step: int) -> None:
        self.path, self.guard = folder / STATUS, guard
        status = read_json(self.path, {"seconds": 0.0, "failures": {}})
        try:
            guard.restore(status["failures"], first_step)
            earlier = float(status["seconds"]) if first_step else 0.0
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise AspcError(f"{self.path} is damaged; remove it to continue without it.") from error
        self._start_time = time.monotonic() - earlier

    @property
    def seconds(self) -> float:
        """The training time so far, in seconds."""
        return time.monotonic() - self._start_time

    def write(self) -> None:
        """Write status.json."""
        write_json(self.path, {"seconds": round(self.seconds, 3), "failures": self.guard.to_json()})
