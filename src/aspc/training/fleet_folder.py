"""The fleet folder: the files of runs that were trained together.

fleet/
  config.json          members, datasets, hyperparameters, versions, machine
  metrics.csv          one row per chunk and run (`run` is the index of the member)
  evaluations.csv      one row per evaluation and run
  result.json          written at the end: the results of each member
  policy/NAME/         the policy of each member that did not fail
  checkpoints/         the state from which the same call resumes training
  status.json          failures so far, and the elapsed seconds
  checksums.json       SHA-256 of all files (see aspc.training.checksums)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from aspc.data import Dataset
from aspc.errors import AspcError, unknown_name
from aspc.io import read_json
from aspc.policy import Policy
from aspc.training import run_folder
from aspc.training.run_config import FleetConfig, from_json
from aspc.training.run_folder import Row, columns, read_rows

if TYPE_CHECKING:
    from aspc.training.training_plan import Outcome

SCORES = ("return", "score")


class Member(NamedTuple):
    """One run of a fleet."""

    name: str
    """Name of the run, unique in the fleet and valid as a folder name."""
    dataset: str | Dataset
    """Name, path or dataset, as accepted by `train`."""
    seed: int
    settings: Mapping[str, Any] = {}
    """Hyperparameters that override those of the fleet's algorithm, by plain or dotted name."""


class Fleet:
    """A fleet on disk, finished or not."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.signal: int | None = None
        """A signal that arrived during the last chunk; the caller should handle it."""
        file = self.path / run_folder.CONFIG
        content = read_json(file, {})
        if isinstance(content, dict) and "members" not in content:
            raise AspcError(f"There is no fleet in {self.path}.")
        self.config = from_json(file, content, FleetConfig)
        for member in self.config.members:
            if not 0 <= member.dataset < len(self.config.datasets):
                raise AspcError(f"{file} is damaged: {member.name!r} refers to a missing dataset.")
        self._names = [member.name for member in self.config.members]
        check_member_names(self._names)
        self._rows_read: dict[str, tuple[int, dict[int, list[Row]]]] = {}

    def __repr__(self) -> str:
        return f"Fleet({str(self.path)!r}: {self.config.algo}, {len(self._names)} runs)"

    @property
    def members(self) -> list[Member]:
        """The members, with the names of their datasets."""
        datasets = [data.source or data.name for data in self.config.datasets]
        return [Member(m.name, datasets[m.dataset], m.seed, m.settings) for m in self.config.members]

    def metrics(self, name: str) -> dict[str, np.ndarray]:
        """Return the metrics of a member as arrays by column, one row per chunk."""
        return columns(self._rows(run_folder.METRICS, name))

    def evaluations(self, name: str) -> dict[str, np.ndarray]:
        """Return the evaluations of a member as arrays by column."""
        return columns(self._rows(run_folder.EVALUATIONS, name))

    @property
    def result(self) -> dict[str, Any] | None:
        """The results of the fleet; None until it is finished."""
        file = self.path / run_folder.RESULT
        result: dict[str, Any] | None = read_json(file, None)
        if result is not None:
            run_folder.check_form(file, result, {"steps": int, "members": dict})
            for name in self._names:
                own = result["members"].get(name)
                run_folder.check_form(file, own, {"status": str, "steps": int, "seconds": (int, float)})
        return result

    def policy(self, name: str) -> Policy:
        """Return the policy of a member that did not fail."""
        self._index(name)
        return Policy.load(self.path / "policy" / name)

    def summarize(self, outcome: Outcome) -> dict[str, Any]:
        """Return the content of result.json."""
        metrics, evaluations = (self._rows_by_run(file) for file in (run_folder.METRICS, run_folder.EVALUATIONS))
        shared = {
            "seconds": round(outcome.seconds, 3),
            "steps_per_second": outcome.steps_per_second,
            "runs_together": len(self._names),
        }
        members = {}
        for i, name in enumerate(self._names):
            failure = outcome.failures.get(i)
            members[name] = {
                "name": name,
                "status": "done" if failure is None else "failed",
                "error": failure and failure.message,
                "steps": outcome.step if failure is None else failure.step,
                **_scores(evaluations.get(i, [])),
                "final_scale": last_finite(row.get("scale") for row in metrics.get(i, ())),
                **shared,
            }
        return {
            "steps": outcome.step,
            **({} if outcome.stopped is None else {"stopped": outcome.stopped}),
            **shared,
            "matmul_precision": self.config.options.matmul_precision,
            "evaluation_seconds": outcome.evaluation_seconds,
            "hidden_eval_every": outcome.min_free_eval_every,
            "members": members,
        }

    def _rows(self, file: str, name: str) -> list[Row]:
        return self._rows_by_run(file).get(self._index(name), [])

    def _rows_by_run(self, file: str) -> dict[int, list[Row]]:
        """Return the rows of each run; reread the file if its size has changed."""
        path = self.path / file
        size = path.stat().st_size if path.exists() else 0
        if file not in self._rows_read or self._rows_read[file][0] != size:
            found: dict[int, list[Row]] = {}
            for row in read_rows(path):
                if not row.get("run", math.nan).is_integer():
                    raise AspcError(f"{path} is damaged: a row has no valid run index.")
                found.setdefault(int(row["run"]), []).append(row)
            self._rows_read[file] = size, found
        return self._rows_read[file][1]

    def _index(self, name: str) -> int:
        if name not in self._names:
            raise unknown_name("member", name, self._names)
        return self._names.index(name)


def last_finite(values: Iterable[float | None]) -> float | None:
    """Return the last finite value, or None. A chunk without a policy update, for example, has no scale."""
    return next((value for value in reversed([*values]) if value is not None and np.isfinite(value)), None)


def _scores(rows: Sequence[Row]) -> dict[str, float | int | None]:
    """Return the last and the best evaluation of one run; None for unknown values."""
    known = {name: [row[f"{name}_mean"] for row in rows if not np.isnan(row[f"{name}_mean"])] for name in SCORES}
    last = rows[-1] if rows else None
    return {
        **{f"last_{name}": values[-1] if values else None for name, values in known.items()},
        **{f"best_{name}": max(values, default=None) for name, values in known.items()},
        "success": None if last is None or np.isnan(last["success_rate"]) else last["success_rate"],
        "episodes": None if last is None else int(last["episodes"]),
    }


def check_member_names(names: Sequence[str]) -> None:
    """Raise an AspcError if there are no names, or a name is duplicated or invalid as a folder name."""
    if not names:
        raise AspcError("A fleet needs at least one member.")
    for name in names:
        if name in ("", ".", "..") or set(name) & set('/\\:*?"<>|\0'):
            raise AspcError(f"A member's name is used as a folder name, so it cannot be {name!r}.")
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise AspcError(f"Duplicate member name {duplicates[0]!r}; give each member a different name.")
