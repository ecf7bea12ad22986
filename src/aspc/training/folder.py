"""The run folder: everything a run leaves behind, readable with ordinary tools.

run/
  config.json          what was run: dataset, algorithm, every hyper-parameter, versions, machine
  metrics.csv          a row for each chunk and seed
  evaluations.csv      a row for each evaluation and seed
  result.json          written at the end: last and best scores, time
  curves.png           score, scale, Q and BC loss over steps
  policy/seed0/        the policy (see aspc.policy)
  checkpoints/         what --resume continues from
  tensorboard/seed0/   the same numbers for TensorBoard
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from aspc.errors import AspcError
from aspc.policy import Policy, load_policy, write_atomically

CONFIG, METRICS, EVALUATIONS, RESULT, FIGURE, STATUS = (
    "config.json",
    "metrics.csv",
    "evaluations.csv",
    "result.json",
    "curves.png",
    "status.json",
)

Row = dict[str, float]


class RowFile:
    """A CSV file that grows by rows. Columns are those of the first row; a cut last line is dropped on opening."""

    def __init__(self, path: Path, up_to_step: int | None = None) -> None:
        """Rows already there are kept up to `up_to_step` (all, if None)."""
        self.path = path
        kept = [r for r in read_rows(path) if up_to_step is None or r["step"] <= up_to_step]
        self.columns = list(kept[0]) if kept else None
        write_atomically(path, (self._lines(kept) if kept else "").encode())

    def _lines(self, rows: Iterable[Row], header: bool = True) -> str:
        assert self.columns is not None
        lines = [",".join(self.columns)] if header else []
        lines += [",".join(_number(row.get(column, math.nan)) for column in self.columns) for row in rows]
        return "\n".join(lines) + "\n"

    def append(self, rows: list[Row]) -> None:
        if not rows:
            return
        header = self.columns is None
        if self.columns is None:
            self.columns = list(rows[0])
        with open(self.path, "a") as file:
            file.write(self._lines(rows, header))


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def read_rows(path: Path) -> list[Row]:
    """The whole rows of a CSV file of numbers; a line that a kill cut short is left out."""
    if not path.exists():
        return []
    text = path.read_text()
    rows = []
    for row in csv.DictReader(text[: text.rfind("\n") + 1].splitlines()):
        try:
            rows.append({name: float(value) for name, value in row.items()})
        except (TypeError, ValueError):
            raise AspcError(f"{path} is damaged: line {len(rows) + 2} is not a row of numbers.") from None
    return rows


def columns(rows: list[Row]) -> dict[str, np.ndarray]:
    """Rows as arrays by column: `pandas.DataFrame(run.metrics)` works as it is."""
    return {name: np.asarray([row[name] for row in rows]) for name in (rows[0] if rows else ())}


class Run:
    """A run on disk, finished or not."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not (self.path / CONFIG).is_file():
            raise AspcError(f"There is no run in {self.path}: it has no {CONFIG}.")
        self.config: dict[str, Any] = read_json(self.path / CONFIG)
        if "members" in self.config:
            raise AspcError(f"{self.path} holds a fleet of runs, not one: read it with aspc.training.fleet.Fleet.")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {self.config['algo']} on {self.config['dataset']['name']})"

    @property
    def seeds(self) -> list[int]:
        return self.config["seeds"]

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        return columns(read_rows(self.path / METRICS))

    @property
    def evaluations(self) -> dict[str, np.ndarray]:
        return columns(read_rows(self.path / EVALUATIONS))

    @property
    def result(self) -> dict[str, Any] | None:
        """What the run came to; None while it is not finished."""
        return read_json(self.path / RESULT, None)

    @property
    def policy(self) -> Policy:
        """The policy of the first seed."""
        return self.policy_of(self.seeds[0])

    def policy_of(self, seed: int) -> Policy:
        return load_policy(self.path, seed)


def lock(path: Path) -> FileLock:
    """Held while a process trains in the folder. The kernel frees it when its owner dies."""
    guard = FileLock(path / ".lock")
    try:
        guard.acquire(timeout=0)
    except Timeout:
        raise AspcError(f"Another process is training in {path}; wait for it, or choose another --out.") from None
    return guard


def create(path: Path, config: Mapping[str, Any]) -> None:
    """Make a new run folder. One that holds anything already is refused: nothing on disk is ever overwritten."""
    if (path / CONFIG).exists():
        raise AspcError(f"{path} already holds a run; choose another --out, or continue it with --resume {path}.")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise AspcError(f"{path} exists and is not empty; choose another --out.")
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / CONFIG, config)
    except OSError as error:
        raise AspcError(f"The run folder {path} cannot be written: {error.strerror}; choose another --out.") from error


def read_json(path: Path, *default: Any) -> Any:
    """A file of JSON; `default`, where one is given, if there is no such file."""
    if default and not path.exists():
        return default[0]
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise AspcError(f"{path} cannot be read as JSON; it may be damaged.") from error


def write_json(path: Path, content: Any) -> None:
    write_atomically(path, (json.dumps(content, indent=2, default=_plain) + "\n").encode())


def _plain(value: Any) -> Any:
    """NumPy numbers and paths, as JSON has them."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return str(value)


def summary(evaluations: list[Row], seeds: list[int]) -> dict[str, Any]:
    """Last and best evaluation, averaged over seeds (best: of each seed's own mean scores)."""
    if not evaluations:
        return {}
    out: dict[str, Any] = {}
    per_seed = {s: [r for r in evaluations if r["seed"] == s] for s in seeds}
    for name in ("return", "score"):
        curves = [[r[f"{name}_mean"] for r in rows] for rows in per_seed.values() if rows]
        if np.isnan(curves[0][0]):
            continue
        for which, pick in (("last", [c[-1] for c in curves]), ("best", [max(c) for c in curves])):
            out[f"{which}_{name}"] = float(np.mean(pick))
            out[f"{which}_{name}_std_over_seeds"] = float(np.std(pick))
    return out
