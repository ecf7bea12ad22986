"""The run folder: the files of a run, readable with ordinary tools.

run/
  config.json          dataset, algorithm, every hyperparameter, versions, machine
  metrics.csv          one row per chunk and seed
  evaluations.csv      one row per evaluation and seed
  result.json          written at the end: last and best scores, time
  status.json          elapsed seconds and failed runs, for resuming
  curves.png           score, scale, Q and BC loss over steps
  policy/seed0/        the policy (see aspc.policy)
  checkpoints/         the states from which --resume continues
  checksums.json       SHA-256 of all files, for `aspc verify-run` (see aspc.training.checksums)
  tensorboard/seed0/   the metrics for TensorBoard
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import shlex
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aspc.envs.allowed import problem_with_name
from aspc.errors import DISK_ERRORS, AspcError, DiskFailure, printable
from aspc.io import exclusive_lock, flush, read_json, write_atomically, write_json
from aspc.policy import Policy, load_policy
from aspc.training.run_config import RunConfig, from_json

LOCK = ".lock"
CONFIG, METRICS, EVALUATIONS, RESULT, FIGURE, STATUS = (
    "config.json",
    "metrics.csv",
    "evaluations.csv",
    "result.json",
    "curves.png",
    "status.json",
)
CHECKSUMS = "checksums.json"
CHECKPOINTS, EVENTS, POLICY = "checkpoints", "tensorboard", "policy"
ONLINE = "online.f32"  # all packed rows that fine-tuning collected, as float32 without a header

Row = dict[str, float]


class RunRow(NamedTuple):
    """A row of a table, and the index of the run that it belongs to."""

    run: int
    values: Row


class RowDigest:
    """A running SHA-256 of the values in a table's rows. Adding columns later does not change it."""

    def __init__(self) -> None:
        self.rows = 0
        self.columns: list[str] = []
        self._digest = hashlib.sha256()

    def add(self, row: Row) -> None:
        # Skip NaN, since earlier rows have NaN in a new column.
        known = sorted((name, _number(value)) for name, value in row.items() if not math.isnan(value))
        self._digest.update(json.dumps(known).encode())
        self.rows += 1
        self.columns = list(dict.fromkeys([*self.columns, *row]))

    def record(self) -> dict[str, Any]:
        return {"rows": self.rows, "columns": self.columns, "sha256": self._digest.hexdigest()}

    def matches(self, recorded: Any) -> bool:
        """Return whether a record describes these rows, apart from columns that were added later."""
        if not isinstance(recorded, dict) or not isinstance(recorded.get("columns"), list):
            return False
        return {**self.record(), "columns": self.columns[: len(recorded["columns"])]} == recorded


class RowFile:
    """An append-only CSV file. Later rows can add columns, and an incomplete last line is dropped."""

    def __init__(self, path: Path, up_to_step: int | None = None) -> None:
        """Open or create a file, and keep only its rows up to `up_to_step` (None keeps all)."""
        self.path = path
        kept = [r for r in read_rows(path) if up_to_step is None or r["step"] <= up_to_step]
        self.columns = list(kept[0]) if kept else None
        self._digest, self._undigested = RowDigest(), deque(kept)
        write_atomically(path, (self._lines(kept) if kept else "").encode())

    def _lines(self, rows: Iterable[Row], header: bool = True) -> str:
        assert self.columns is not None
        lines = [",".join(self.columns)] if header else []
        lines += [",".join(_number(row.get(column, math.nan)) for column in self.columns) for row in rows]
        return "\n".join(lines) + "\n"

    def append(self, rows: list[Row]) -> None:
        if not rows:
            return
        self._undigested.extend(rows)
        before = self.columns or []
        self.columns = list(dict.fromkeys([*before, *(name for row in rows for name in row)]))
        if len(self.columns) > len(before):
            write_atomically(self.path, self._lines([*read_rows(self.path), *rows]).encode())
            return
        with open(self.path, "a") as file:
            file.write(self._lines(rows, header=False))

    def record(self, up_to_step: int) -> dict[str, Any]:
        """Flush the rows to disk and return the checksum of rows up to a step, which must never decrease."""
        flush(self.path)
        while self._undigested and self._undigested[0]["step"] <= up_to_step:
            self._digest.add(self._undigested.popleft())
        return self._digest.record()


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a CSV file of numbers; an incomplete last line is ignored."""
    if not path.exists():
        return []
    rows: list[Row] = []
    try:
        text = path.read_text()
        for row in csv.DictReader(text[: text.rfind("\n") + 1].split("\n")):
            rows.append({name: float(value) for name, value in row.items()})
            rows[-1]["step"]  # required in every table
    except (TypeError, ValueError, KeyError, csv.Error):
        raise AspcError(f"{path} is damaged: line {len(rows) + 2} is not a row of numbers.") from None
    return rows


def table(path: Path, needed: Iterable[str]) -> dict[str, np.ndarray]:
    """Read a CSV file as arrays by column (empty if it has no rows).

    Raises:
        AspcError: The file is damaged, or a column in `needed` is missing.
    """
    rows = read_rows(path)
    missing = [name for name in needed if rows and name not in rows[0]]
    if missing:
        raise AspcError(f"{path} is damaged: it has no column {missing[0]!r}.")
    return columns(rows)


def columns(rows: list[Row]) -> dict[str, np.ndarray]:
    """Return rows as arrays by column."""
    return {name: np.asarray([row[name] for row in rows]) for name in (rows[0] if rows else ())}


class Run:
    """A run on disk, finished or not. `aspc.train` returns it, and `Run("runs/my-run")` opens it.

    Tables are NumPy arrays by column, so that `pandas.DataFrame(run.metrics)` works.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not (self.path / CONFIG).is_file():
            raise AspcError(f"There is no run in {self.path}: it has no {CONFIG}.")
        content = read_json(self.path / CONFIG)
        if isinstance(content, dict) and "members" in content:
            raise AspcError(f"{self.path} holds a fleet of runs; read it with aspc.training.fleet.Fleet.")
        self.config = from_json(self.path / CONFIG, content, RunConfig)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {self.config.algo} on {self.config.dataset.name})"

    def __fspath__(self) -> str:
        """Return the folder, so that a run can be used as a path."""
        return str(self.path)

    @property
    def seeds(self) -> list[int]:
        """The seeds that were trained together."""
        return list(self.config.options.seeds)

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """Losses, Q and the scale over steps, one row per chunk and seed."""
        return table(self.path / METRICS, ("step", "seed"))

    @property
    def evaluations(self) -> dict[str, np.ndarray]:
        """Returns and scores in the environment, one row per evaluation and seed."""
        return table(self.path / EVALUATIONS, ("step", "seed", *EVALUATION_COLUMNS))

    @property
    def result(self) -> dict[str, Any] | None:
        """The content of result.json; None while the run is not finished."""
        result: dict[str, Any] | None = read_json(self.path / RESULT, None)
        if result is not None:
            check_form(self.path / RESULT, result, {"steps": int, "seconds": (int, float)})
        return result

    @property
    def env(self) -> str | None:
        """The environment of the run."""
        return safe_env(self.path, self.config.env)

    def data_options(self, trusted_env: Any = None) -> dict[str, Any]:
        """Return the options for loading the run's data.

        Raises:
            AspcError: They name an environment that is not safe to load from a file and is not `trusted_env`.
        """
        options = self.config.dataset.options
        if options.get("env") != trusted_env:
            safe_env(self.path, options.get("env"))
        return self.config.dataset.reading_options()

    @property
    def policy(self) -> Policy:
        """The policy of the first seed."""
        return self.policy_of(self.seeds[0])

    def policy_of(self, seed: int) -> Policy:
        """Return the policy of one of the seeds."""
        return load_policy(self.path, seed)


def check_form(path: Path, content: Any, form: Mapping[str, Any]) -> None:
    """Raise an `AspcError` if a value of `form` is missing from a JSON file or has the wrong type."""
    if not isinstance(content, dict):
        raise AspcError(f"{path} is damaged: it is not a JSON object.")
    for name, types in form.items():
        if not isinstance(content.get(name), types) or isinstance(content[name], bool):
            raise AspcError(f"{path} is damaged: {name} is missing or invalid.")


def safe_env(path: Path, env: Any) -> str | None:
    """Return the environment that a file specifies.

    Raises:
        AspcError: The environment is not safe to load from a file (see `aspc.envs.allowed`).
    """
    if env is None:
        return None
    problem = problem_with_name(env) if isinstance(env, str) else "it is not a name"
    if isinstance(env, str) and problem is None:
        return env
    again = f" {shlex.quote(printable(env[:80]))}" if isinstance(env, str) else ""
    raise AspcError(
        f"{path} specifies the environment {str(env)[:80]!r}, which is not loaded for safety ({problem}). "
        f"If you trust it, pass it explicitly: --env{again}."
    )


EVALUATION_COLUMNS = (
    "return_mean",
    "return_std",
    "score_mean",
    "score_std",
    "success_rate",
    "length_mean",
    "episodes",
)


def resume_command(command: str, path: Path, env: Any, steps: int | None = None) -> str:
    """Return the shell command that continues a run.

    Args:
        command: The subcommand, "train" or "finetune".
        path: The run folder.
        env: The environment, which the command includes only if it is not safe to load from a file.
        steps: The requested number of steps, if it differs from the run's.
    """
    words = ["aspc", command, "--resume", str(path)]
    if isinstance(env, str) and problem_with_name(env) is not None:
        words += ["--env", env]
    if steps is not None:
        words += ["--steps", str(steps)]
    return shlex.join(words)


@contextmanager
def explain_disk_errors(path: Path, resume_with: str) -> Iterator[None]:
    """Convert disk errors in a run folder to a `DiskFailure` that explains how to continue."""
    try:
        yield
    except Exception as error:
        if not (path / CONFIG).exists():  # Orbax and other libraries fail in many ways if the folder is deleted
            raise DiskFailure(
                f"{path} was deleted or moved during training. Start again with another --out, or move it back and "
                f"continue with: {resume_with}"
            ) from error
        if not isinstance(error, OSError) or error.errno not in DISK_ERRORS or _is_missing_elsewhere(error, path):
            raise
        raise DiskFailure(
            f"{path} cannot be written: {error.strerror}. Earlier checkpoints and metrics are complete. "
            f"Fix the problem, then continue with: {resume_with}"
        ) from error


def _is_missing_elsewhere(error: OSError, path: Path) -> bool:
    """Return whether a file outside the run folder is missing, for example one of an incomplete installation."""
    missing = isinstance(error, FileNotFoundError) and isinstance(error.filename, str)
    return missing and not Path(error.filename).absolute().is_relative_to(path.absolute())


def check_checkpoint_path(path: Path) -> None:
    """Raise an `AspcError` for a path with a backslash, which Orbax treats as a separator."""
    if "\\" in str(path.absolute()):
        raise AspcError(
            f"The path {path.absolute()} contains a backslash, which is treated as a slash in checkpoints; rename it."
        )


def run_lock(path: Path) -> AbstractContextManager[None]:
    """Return the lock that a process holds while it trains in a run folder."""
    busy = f"Another process is training in {path}; wait for it, or choose another --out."
    return exclusive_lock(path / LOCK, timeout_seconds=0, busy_message=busy)


def create(path: Path, config: Mapping[str, Any]) -> None:
    """Create a run folder with its config.

    Raises:
        AspcError: The folder cannot be written or is not empty. Nothing is overwritten.
    """
    check_checkpoint_path(path)
    try:
        _check_empty(path)
        path.mkdir(parents=True, exist_ok=True)
        with run_lock(path):
            _check_empty(path)  # another process may have created a run meanwhile
            write_json(path / CONFIG, config)
    except OSError as error:
        raise AspcError(f"The run folder {path} cannot be written: {error.strerror}; choose another --out.") from error


def _check_empty(path: Path) -> None:
    if (path / CONFIG).exists():
        raise AspcError(f"{path} already holds a run; choose another --out, or continue it with --resume {path}.")
    ignored = (f".{CONFIG}.", LOCK)  # left by a process that was killed while writing the config
    if path.exists() and (not path.is_dir() or any(not f.name.startswith(ignored) for f in path.iterdir())):
        raise AspcError(f"{path} exists and is not empty; choose another --out.")


@contextmanager
def rollback_on_early_failure(path: Path) -> Iterator[None]:
    """Empty a new run folder again if training fails before its first row, so that the same command can be repeated.

    The folder is kept after a `DiskFailure`, whose message explains how to continue the run, and after the process is
    killed or interrupted.
    """
    try:
        yield
    except DiskFailure:
        raise
    except Exception:
        with suppress(AspcError, OSError):  # report the original failure
            _remove_new_run(path)
        raise


def _remove_new_run(path: Path) -> None:
    """Remove the files of a run that has no rows and no checkpoints, unless the folder contains any other file."""
    with run_lock(path):
        tables = [path / METRICS, path / EVALUATIONS, path / ONLINE]
        checkpoints, events = path / CHECKPOINTS, path / EVENTS
        if {*path.iterdir()} - {path / CONFIG, path / CHECKSUMS, path / LOCK, *tables, checkpoints, events}:
            return
        if any(table.exists() and table.stat().st_size for table in tables):
            return
        if checkpoints.exists():
            checkpoints.rmdir()  # fails if there is a checkpoint
        shutil.rmtree(events, ignore_errors=True)  # without metrics, it contains no values
        for file in (*tables, path / CHECKSUMS, path / CONFIG):  # the config last, since it marks the folder as a run
            file.unlink(missing_ok=True)


def summary(evaluations: list[Row], seeds: list[int]) -> dict[str, Any]:
    """Return the last and the best evaluation of each seed, averaged over seeds."""
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
