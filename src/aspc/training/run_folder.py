"""The run folder: everything a run leaves behind, readable with ordinary tools.

run/
  config.json          what was run: dataset, algorithm, every hyper-parameter, versions, machine
  metrics.csv          a row for each chunk and seed
  evaluations.csv      a row for each evaluation and seed
  result.json          written at the end: last and best scores, time
  status.json          the seconds so far, for a run that is resumed
  curves.png           score, scale, Q and BC loss over steps
  policy/seed0/        the policy (see aspc.policy)
  checkpoints/         what --resume continues from
  checksums.json       SHA-256 of all of these, which `aspc verify-run` compares (see aspc.training.checksums)
  tensorboard/seed0/   the same numbers for TensorBoard
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
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from aspc.envs.allowed import problem_with_name
from aspc.errors import DISK_ERRORS, AspcError, DiskFailure, printable
from aspc.io import flush, write_atomically
from aspc.policy import Policy, load_policy, without_nan

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
ONLINE = "online.f32"  # every row that a fine-tuning collected, packed, as bare float32: its ring is filled from it

Row = dict[str, float]


class RowDigest:
    """A running SHA-256 of the numbers in a table's rows, which columns that are added later do not change."""

    def __init__(self) -> None:
        self.rows = 0
        self.columns: list[str] = []
        self._digest = hashlib.sha256()

    def add(self, row: Row) -> None:
        # NaN is what earlier rows have in a new column.
        known = sorted((name, _number(value)) for name, value in row.items() if not math.isnan(value))
        self._digest.update(json.dumps(known).encode())
        self.rows += 1
        self.columns = list(dict.fromkeys([*self.columns, *row]))

    def record(self) -> dict[str, Any]:
        return {"rows": self.rows, "columns": self.columns, "sha256": self._digest.hexdigest()}

    def matches(self, recorded: Any) -> bool:
        """Return whether a record is of these rows; they may have more columns by now."""
        if not isinstance(recorded, dict) or not isinstance(recorded.get("columns"), list):
            return False
        return {**self.record(), "columns": self.columns[: len(recorded["columns"])]} == recorded


class RowFile:
    """A CSV file that grows by rows, and by columns where a later row has more. A cut last line is dropped."""

    def __init__(self, path: Path, up_to_step: int | None = None) -> None:
        """Rows already there are kept up to `up_to_step` (all, if None)."""
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
        """Flush the rows to disk and return the checksum of those up to a step, which never goes back."""
        flush(self.path)
        while self._undigested and self._undigested[0]["step"] <= up_to_step:
            self._digest.add(self._undigested.popleft())
        return self._digest.record()


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def read_rows(path: Path) -> list[Row]:
    """Return the complete rows of a CSV file of numbers; a line that a kill cut short is left out."""
    if not path.exists():
        return []
    rows: list[Row] = []
    try:
        text = path.read_text()
        for row in csv.DictReader(text[: text.rfind("\n") + 1].split("\n")):
            rows.append({name: float(value) for name, value in row.items()})
            rows[-1]["step"]  # every table of a run has steps
    except (TypeError, ValueError, KeyError, csv.Error):
        raise AspcError(f"{path} is damaged: line {len(rows) + 2} is not a row of numbers.") from None
    return rows


def table(path: Path, needed: Iterable[str]) -> dict[str, np.ndarray]:
    """A CSV file as arrays by column (none, if it has no rows); without the columns that it needs it is damaged."""
    rows = read_rows(path)
    missing = [name for name in needed if rows and name not in rows[0]]
    if missing:
        raise AspcError(f"{path} is damaged: it has no column {missing[0]!r}.")
    return columns(rows)


def columns(rows: list[Row]) -> dict[str, np.ndarray]:
    """Rows as arrays by column: `pandas.DataFrame(run.metrics)` works as it is."""
    return {name: np.asarray([row[name] for row in rows]) for name in (rows[0] if rows else ())}


class Run:
    """A run on disk, finished or not: what `aspc.train` returns, and `Run("runs/my-run")` opens.

    Tables are NumPy arrays by column, so that `pandas.DataFrame(run.metrics)` works as it is.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not (self.path / CONFIG).is_file():
            raise AspcError(f"There is no run in {self.path}: it has no {CONFIG}.")
        self.config: dict[str, Any] = read_json(self.path / CONFIG)
        if "members" in self.config:
            raise AspcError(f"{self.path} holds a fleet of runs, not one: read it with aspc.training.fleet.Fleet.")
        check_form(self.path / CONFIG, self.config, CONFIG_FORM)
        check_form(self.path / CONFIG, self.config["dataset"], DATASET_FORM, later=LATER)
        if not self.seeds or any(type(seed) is not int or seed < 0 for seed in self.seeds):
            raise AspcError(f"{self.path / CONFIG} is damaged: its seeds are not whole numbers.")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {self.config['algo']} on {self.config['dataset']['name']})"

    def __fspath__(self) -> str:
        """A run stands for its folder wherever a path is taken."""
        return str(self.path)

    @property
    def seeds(self) -> list[int]:
        """The seeds that were trained together."""
        return self.config["seeds"]

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """Losses, Q and the scale over steps: a row for each chunk and seed."""
        return table(self.path / METRICS, ("step", "seed"))

    @property
    def evaluations(self) -> dict[str, np.ndarray]:
        """Returns and scores in the environment: a row for each evaluation and seed; empty where there was none."""
        return table(self.path / EVALUATIONS, ("step", "seed", *EVALUATION_COLUMNS))

    @property
    def result(self) -> dict[str, Any] | None:
        """What the run came to; None while it is not finished."""
        result = read_json(self.path / RESULT, None)
        if result is not None:
            check_form(self.path / RESULT, result, {"steps": int, "seconds": (int, float)})
        return result

    @property
    def env(self) -> str | None:
        """The environment that the run names."""
        return safe_env(self.path, self.config["env"])

    def data_options(self, trusted_env: Any = None) -> dict[str, Any]:
        """How its data is loaded. An environment that would be imported has to be named again by who trusts it."""
        options = self.config["dataset"]["options"]
        if options.get("env") != trusted_env:
            safe_env(self.path, options.get("env"))
        return options

    @property
    def policy(self) -> Policy:
        """The policy of the first seed."""
        return self.policy_of(self.seeds[0])

    def policy_of(self, seed: int) -> Policy:
        """The policy of one of the seeds."""
        return load_policy(self.path, seed)


def check_form(path: Path, content: Any, form: Mapping[str, Any], later: Container[str] = ()) -> None:
    """Refuses what was read from a file if a value that others rely on is not there, or not of its kind. Names that
    came `later` may be missing where they may be null."""
    if not isinstance(content, dict):
        raise AspcError(f"{path} is damaged: it is not a table of names and values.")
    for name, kinds in form.items():
        value, there = content.get(name), name in content or name in later
        if not there or not isinstance(value, kinds) or isinstance(value, bool):
            raise AspcError(f"{path} is damaged: {name} is missing or wrong.")


def safe_env(path: Path, env: Any) -> str | None:
    """Return the environment that a file names.

    Raises:
        AspcError: If a file cannot choose it (see `aspc.envs.allowed`).
    """
    if env is None:
        return None
    problem = problem_with_name(env) if isinstance(env, str) else "it is not a name"
    if problem is not None:
        again = f" {shlex.quote(printable(env[:80]))}" if isinstance(env, str) else ""
        raise AspcError(
            f"{path} names the environment {str(env)[:80]!r}, which is not taken from a file ({problem}); "
            f"if you trust it, give it again: --env{again}."
        )
    return env


NOTHING = type(None)
CONFIG_FORM: dict[str, Any] = {
    "algo": str,
    "hyperparameters": dict,
    "dataset": dict,
    "env": (str, NOTHING),
    "seeds": list,
    "steps": int,
    "scale_name": (str, NOTHING),
}
DATASET_FORM: dict[str, Any] = {
    "name": str,
    "source": (str, NOTHING),
    "options": dict,
    "fingerprint": str,
    "observation_size": int,
    "action_size": int,
    "ref_env": (str, NOTHING),
    "ref_min": (int, float, NOTHING),
    "ref_max": (int, float, NOTHING),
    "behaviour_return": (int, float, NOTHING),
    "behaviour_score": (int, float, NOTHING),
}
LATER = ("ref_env", "ref_min", "ref_max")  # of a dataset: runs of older versions do not have them
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
    """How to go on with a run, for a shell: with the end that was asked for, if it is not the run's own, and with an
    environment of the user's own, which is not taken from a file."""
    words = ["aspc", command, "--resume", str(path)]
    if isinstance(env, str) and problem_with_name(env) is not None:
        words += ["--env", env]
    if steps is not None:
        words += ["--steps", str(steps)]
    return shlex.join(words)


@contextmanager
def written(path: Path, resume_with: str) -> Iterator[None]:
    """Turn errors of the disk under a run into one sentence; what was complete before still is."""
    try:
        yield
    except AspcError:
        raise
    except Exception as error:  # in a folder that is gone Orbax fails in many ways
        if not (path / CONFIG).exists():
            raise DiskFailure(
                f"{path} was deleted or moved during training; start again with another --out, or move it back and "
                f"continue with: {resume_with}"
            ) from error
        if not isinstance(error, OSError) or error.errno not in DISK_ERRORS:
            raise
        raise DiskFailure(
            f"{path} cannot be written: {error.strerror}; what was saved before is complete: "
            f"fix that, then continue with: {resume_with}"
        ) from error


def check_place(path: Path) -> None:
    """Refuses a folder whose checkpoints would be written to another one."""
    if "\\" in str(path.absolute()):
        raise AspcError(
            f"The path {path.absolute()} has a backslash in it, which checkpoints take for a slash; rename it."
        )


def lock(path: Path) -> FileLock:
    """Held while a process trains in the folder. The kernel frees it when its owner dies."""
    guard = FileLock(path / LOCK)
    try:
        guard.acquire(timeout=0)
    except Timeout:
        raise AspcError(f"Another process is training in {path}; wait for it, or choose another --out.") from None
    return guard


def create(path: Path, config: Mapping[str, Any]) -> None:
    """Make a new run folder. One that holds anything already is refused: nothing on disk is ever overwritten."""
    check_place(path)
    try:
        _check_free(path)
        path.mkdir(parents=True, exist_ok=True)
        guard = lock(path)
        try:
            _check_free(path)  # another process may have been faster
            write_json(path / CONFIG, config)
        finally:
            guard.release()
    except OSError as error:
        raise AspcError(f"The run folder {path} cannot be written: {error.strerror}; choose another --out.") from error


def _check_free(path: Path) -> None:
    if (path / CONFIG).exists():
        raise AspcError(f"{path} already holds a run; choose another --out, or continue it with --resume {path}.")
    # What a kill has left of writing the config is nothing that anyone misses.
    ours = (f".{CONFIG}.", LOCK)
    if path.exists() and (not path.is_dir() or any(not f.name.startswith(ours) for f in path.iterdir())):
        raise AspcError(f"{path} exists and is not empty; choose another --out.")


@contextmanager
def rollback_on_early_failure(path: Path) -> Iterator[None]:
    """A start that fails before its first number leaves the folder free, so that the same command can be given again.

    Where a disk is in trouble it stays, since that message says to continue; so does what a kill or Ctrl-C has left.
    """
    try:
        yield
    except DiskFailure:
        raise
    except Exception:
        with suppress(AspcError, OSError):  # what failed is the news
            _undo_start(path)
        raise


def _undo_start(path: Path) -> None:
    """Removes what a start writes, if that is all there is: no row, no checkpoint, nothing that we do not know."""
    guard = lock(path)
    try:
        tables = [path / METRICS, path / EVALUATIONS, path / ONLINE]
        checkpoints, events = path / CHECKPOINTS, path / EVENTS
        if {*path.iterdir()} - {path / CONFIG, path / CHECKSUMS, path / LOCK, *tables, checkpoints, events}:
            return
        if any(table.exists() and table.stat().st_size for table in tables):
            return
        if checkpoints.exists():
            checkpoints.rmdir()  # fails where it holds anything
        shutil.rmtree(events, ignore_errors=True)  # without a row of metrics there is no number in them
        for file in (*tables, path / CHECKSUMS, path / CONFIG):  # the config last: without it there is no run
            file.unlink(missing_ok=True)
    finally:
        guard.release()


def read_json(path: Path, *default: Any) -> Any:
    """A file of JSON; `default`, where one is given, if there is no such file."""
    if default and not path.exists():
        return default[0]
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise AspcError(f"{path} cannot be read as JSON; it may be damaged.") from error


def write_json(path: Path, content: Any) -> None:
    """Numbers that JSON does not have are texts ("nan", "inf"), which hyper-parameters take for what they say."""
    text = json.dumps(without_nan(content, str), indent=2, default=_plain, allow_nan=False)
    write_atomically(path, (text + "\n").encode())


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
