"""Write packed folders, which `aspc.data.streaming` reads: transitions as rows of fixed width in one file."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from aspc import tasks
from aspc.action_space import ActionSpace
from aspc.data.columns import KeyMap, check_key_map
from aspc.data.dataset import Dataset
from aspc.data.metadata import NAME_KEYS, drop_forbidden_env
from aspc.data.readers.contents import complete_flags
from aspc.data.readers.limited_reader import LimitedReader
from aspc.data.readers.limits import size_text
from aspc.data.streaming import EPISODES, FORMAT, META, ROWS, SLAB_ROWS, StreamingDataset, packed_layout
from aspc.data.validation import action_bounds, check_flags, episode_ends
from aspc.data.writers import dataset_arrays
from aspc.errors import AspcError
from aspc.io import atomic_output, write_atomically
from aspc.ui import progress_bar

WHOLE_KEYS = ("costs", "times", "kpis")  # keys of a key map that need all rows at once


def can_pack_in_parts(options: Mapping[str, Any]) -> bool:
    """Return whether these options of `aspc.data.load` allow packing an HDF5 file in parts."""
    parameters = inspect.signature(pack).parameters
    key_map = check_key_map(options.get("key_map", {}))
    return set(options) <= set(parameters) and not set(key_map) & set(WHOLE_KEYS)


@dataclass
class _Moments:
    """Running mean and standard deviation over slabs (Chan, Golub and LeVeque 1983).

    Plain sums of squares would lose the spread of columns with a large mean, such as a clock or a pressure.
    """

    rows: int = 0
    mean: Any = 0.0
    squares: Any = 0.0  # sum of squared differences from the mean

    def add(self, observations: np.ndarray) -> None:
        if len(observations) == 0:
            return
        wide = observations.astype(np.float64)
        mean, rows = wide.mean(axis=0), self.rows + len(wide)
        difference, fraction = mean - self.mean, len(wide) / rows
        self.squares = self.squares + np.square(wide - mean).sum(axis=0) + np.square(difference) * self.rows * fraction
        self.mean = self.mean + difference * fraction
        self.rows = rows

    @property
    def std(self) -> np.ndarray:
        return np.asarray(np.sqrt(self.squares / self.rows))


def pack(
    source: Dataset | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    n_step: int = 1,
    discount: float = 0.99,
    key_map: KeyMap | None = None,
    env: str | None = None,
    action_low: Any = None,
    action_high: Any = None,
    action_margin: float | None = None,
    max_episode_steps: int | None = None,
    strict: bool = False,
) -> StreamingDataset:
    """Write a packed folder from a dataset, or from an HDF5 file of any size.

    Args:
        source: A dataset, or the path of an HDF5 file. Only the file's flags need to fit in memory.
        folder: The new folder.
        n_step: Number of steps in the n-step returns.
        discount: Discount factor of the n-step returns.
        key_map: Stored names by array (see `aspc.data.file_loader.load`). This option and those below
            apply only to files.
        env: The environment, or "none".
        action_low: Lowest action, one number or one per dimension.
        action_high: Highest action, one number or one per dimension.
        action_margin: Fraction of the logged range by which bounds taken from the data are widened on either side.
        max_episode_steps: Step limit of an episode, if no timeouts were logged.
        strict: Raise an error for actions outside the bounds instead of clipping them.

    Raises:
        AspcError: The folder exists, the data is invalid, or the disk is full.
    """
    folder = Path(folder)
    if folder.exists():
        raise AspcError(f"{folder} already exists; choose another folder or remove it.")
    if isinstance(source, Dataset):
        return _write_packed(folder, _Log.from_dataset(source), n_step, discount, strict)
    if not can_pack_in_parts({"key_map": key_map or {}}):
        raise AspcError(
            f"{source}: costs, times and kpis cannot be mapped when a file is packed in parts. Load the file first, "
            "and pack the loaded dataset."
        )
    options = {
        "action_low": action_low,
        "action_high": action_high,
        "action_margin": action_margin,
        "max_episode_steps": max_episode_steps,
    }
    with _open_hdf5(Path(source), check_key_map(key_map or {}), env, **options) as log:
        return _write_packed(folder, log, n_step, discount, strict)


@dataclass
class _Log:
    """A log read in slabs, with the metadata of all rows."""

    name: str
    env: str | None
    flags: tuple[np.ndarray, np.ndarray]  # terminals and timeouts of all rows
    read: Callable[[str, slice], np.ndarray]
    has_next: bool
    bounds: tuple[np.ndarray, np.ndarray]
    notes: tuple[str, ...]
    names: dict[str, Any]  # column names, by `metadata.NAME_KEYS`
    action_space: ActionSpace | None = None
    close: Callable[[], None] = lambda: None

    def __enter__(self) -> _Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def from_dataset(cls, dataset: Dataset) -> _Log:
        arrays = dataset_arrays(dataset)
        return cls(
            name=dataset.name,
            env=dataset.env,
            flags=(dataset.terminals, dataset.timeouts),
            read=lambda key, rows: arrays[key][rows],
            has_next=dataset.next_observations is not None,
            bounds=(dataset.action_low, dataset.action_high),
            notes=dataset.notes,
            names={"observation_names": dataset.observation_names, "action_names": dataset.action_names},
            action_space=dataset.action_space,
        )

    def episode_starts(self) -> np.ndarray:
        """Return the first transition of each episode that has transitions."""
        stops = np.flatnonzero(self.flags[0] | self.flags[1]) + 1
        if len(stops) == 0 or stops[-1] != len(self.flags[0]):
            stops = np.append(stops, len(self.flags[0]))
        has_last = self.flags[0][stops - 1] | self.has_next  # otherwise nothing follows the last row
        counts = np.diff(stops, prepend=0) - ~has_last
        return np.asarray((np.cumsum(counts) - counts)[counts > 0])

    def slab(self, rows: slice, strict: bool) -> Dataset:
        keys = ("observations", "actions", "rewards", *(("next_observations",) if self.has_next else ()))
        arrays: dict[str, Any] = {key: self.read(key, rows) for key in keys}
        return Dataset.from_arrays(
            **arrays,
            terminals=self.flags[0][rows],
            timeouts=self.flags[1][rows],
            action_low=self.bounds[0],
            action_high=self.bounds[1],
            **self.names,
            action_space=self.action_space,
            name=f"{self.name}, rows from {rows.start + 1:,}",
            strict=strict,
        )


def _open_hdf5(
    path: Path,
    key_map: KeyMap,
    env: str | None,
    *,
    action_low: Any,
    action_high: Any,
    action_margin: float | None,
    max_episode_steps: int | None,
) -> _Log:
    """Open an HDF5 file in a memory-limited child process, and read its flags and action bounds."""
    with contextlib.ExitStack() as opened:
        child = opened.enter_context(LimitedReader())

        def read(key: str, rows: slice) -> np.ndarray:
            start, stop, _ = rows.indices(length)
            return child.call("read_hdf5_rows", path, key=key, start=start, stop=stop).arrays["rows"]

        stated, flags = child.call(
            "open_hdf5", path, key_map=dict(key_map), needs_no_ends=max_episode_steps is not None
        )
        length, metadata, notes = stated["rows"], stated["metadata"], stated["notes"]
        flags, order_notes = complete_flags(flags, length, path.name)
        if env is None:
            metadata, env_notes = drop_forbidden_env(metadata)
            env, notes = metadata.get("env"), [*notes, *env_notes]
        action_low = metadata.get("action_low") if action_low is None else action_low
        action_high = metadata.get("action_high") if action_high is None else action_high
        if env is None:
            env = tasks.name_from_stem(path.stem, stated["observation_size"], stated["action_size"])
        elif env == "none":
            env = None
        terminals = check_flags("terminals", flags["terminals"], path.name)
        logged = check_flags("timeouts", flags["timeouts"], path.name) if "timeouts" in flags else None
        timeouts, limit_notes = episode_ends(terminals, logged, max_episode_steps, env)
        if read("actions", slice(0, 1)).dtype.kind in "iub":
            raise AspcError(
                f"{path.name}: the actions are integers, so they are discrete. A file with discrete actions cannot be "
                'packed in parts: pass --categorical "*", so that it is loaded first.'
            )
        extremes = _extremes(partial(read, "actions"), length)
        bounds = action_bounds(extremes, action_low, action_high, env, path.name, action_margin)
        return _Log(
            name=path.stem,
            env=env,
            flags=(terminals, timeouts),
            read=read,
            has_next="next_observations" in stated["keys"],
            bounds=(bounds.low, bounds.high),
            notes=(*notes, *order_notes, *limit_notes, *bounds.notes),
            names={key: metadata[key] for key in NAME_KEYS if key in metadata},
            action_space=ActionSpace.from_text(metadata["action_space"]) if "action_space" in metadata else None,
            close=opened.pop_all().close,
        )


def _extremes(actions: Callable[[slice], np.ndarray], length: int) -> np.ndarray:
    """Return two rows: the smallest and the largest value per action dimension."""
    low, high = np.inf, -np.inf
    for start in range(0, length, SLAB_ROWS):
        part = actions(slice(start, start + SLAB_ROWS))
        low, high = np.minimum(low, part.min(axis=0)), np.maximum(high, part.max(axis=0))
    return np.stack([low, high]).astype(np.float32)


def _check_disk_space(folder: Path, needed_bytes: int) -> None:
    """Raise an `AspcError` if a packed folder does not fit on its disk. A compressed file can declare any size."""
    free = shutil.disk_usage(folder.parent).free
    if needed_bytes > free:
        raise AspcError(
            f"{folder} needs {size_text(needed_bytes)}, but its disk has {size_text(free)} left. Free some space, or "
            "choose a folder on another disk."
        )


def _write_packed(folder: Path, log: _Log, n_step: int, discount: float, strict: bool) -> StreamingDataset:
    """Write a packed folder slab by slab, atomically."""
    length = len(log.flags[0])
    moments, content, clipped, reward_sum, sizes = _Moments(), hashlib.sha256(), 0, 0.0, (0, 0)
    with atomic_output(folder) as temporary:
        temporary.mkdir()
        with open(temporary / ROWS, "wb") as file, progress_bar(f"Packing {log.name}", length) as advance:
            for start in range(0, length, SLAB_ROWS):
                stop = min(start + SLAB_ROWS, length)
                # Read n_step extra rows from the next slab, so that no n-step return is cut at the slab's edge.
                slab = log.slab(slice(start, min(stop + n_step, length)), strict)
                if start == 0:
                    layout = packed_layout(slab.observation_size, slab.action_size)
                    _check_disk_space(folder, length * 4 * layout.width)
                rows, _ = slab.transition_rows(n_step)
                if len(rows):
                    transitions = slab.transitions(n_step=n_step, discount=discount)
                    own = int(np.searchsorted(rows, stop - start))
                    fields = {key: field[:own] for key, field in transitions._asdict().items()}
                    table = layout.pack(fields).astype("<f4", copy=False).tobytes()
                    file.write(table)
                    content.update(table)
                    moments.add(transitions.observations[:own])
                reward_sum += float(slab.rewards[: stop - start].sum(dtype=np.float64))
                raw = np.asarray(log.read("actions", slice(start, stop)))
                clipped += int(((raw < log.bounds[0]) | (raw > log.bounds[1])).any(axis=1).sum())
                sizes = (slab.observation_size, slab.action_size)
                advance(stop)
            file.flush()
            os.fsync(file.fileno())
        if moments.rows == 0:
            raise AspcError(f"{log.name}: there are no transitions; an episode needs at least two rows.")
        write_atomically(temporary / EPISODES, log.episode_starts().astype("<i8").tobytes())
        notes = list(log.notes)
        if clipped:
            notes.append(f"{clipped:,} of {length:,} actions are outside the bounds and were clipped.")
        meta = {
            "format": FORMAT,
            "name": log.name,
            "env": log.env,
            "rows": moments.rows,
            "sha256": content.hexdigest(),
            "logged_rows": length,
            "episodes": int((log.flags[0] | log.flags[1]).sum()),
            "mean_reward": reward_sum / length,
            "observation_size": sizes[0],
            "action_size": sizes[1],
            "n_step": n_step,
            "discount": discount,
            "action_low": log.bounds[0].tolist(),
            "action_high": log.bounds[1].tolist(),
            **log.names,
            "action_space": None if log.action_space is None else log.action_space.to_text(),
            "observation_mean": moments.mean.tolist(),
            "observation_std": moments.std.tolist(),
            "notes": notes,
        }
        write_atomically(temporary / META, json.dumps(meta, indent=1).encode())
    return StreamingDataset.open(folder)
