"""Data larger than memory: a packed folder on disk, read through a shuffled window of blocks.

`pack` writes transitions as fixed-width rows into one file. `StreamingDataset.windows` gives tables of a fixed number
of rows, each made of many small blocks from all over the file, so that training draws its minibatches from a window as
it would from the whole, with the same compiled program; the next window is read by a thread meanwhile. Window k
depends on (seed, k) alone, so a resumed run sees the same ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import queue
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from aspc import tasks
from aspc.data import cache, files
from aspc.data.dataset import Dataset, Transitions, action_bounds, checked_flags, episode_ends
from aspc.data.files import KeyMap
from aspc.data.readers.limited_reader import LimitedReader
from aspc.data.readers.limits import read_json, size_text
from aspc.errors import AspcError
from aspc.io import replace_durably, write_atomically

META, ROWS = "packed.json", "rows.f32"
FORMAT = 1
BLOCK_ROWS = 32  # consecutive transitions that are read together: fewer mix better, more read faster
SLAB_ROWS = 65_536  # rows that packing and preparing hold at once
SHA256 = re.compile("[0-9a-f]{64}")
COPIES = 4  # tables alive at the worst moment: in use, on its way to the device, waiting, and being filled

Prepare = Callable[[Transitions], np.ndarray]


def is_packed(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder that `pack` wrote."""
    return (Path(path) / META).is_file()


def _columns(observation: int, action: int) -> dict[str, slice]:
    """Where each field of `Transitions` lies in a packed row."""
    widths = {
        "observations": observation,
        "actions": action,
        "rewards": 1,
        "next_observations": observation,
        "terminals": 1,
        "next_actions": action,
        "discounts": 1,
    }
    ends = np.cumsum(list(widths.values())).tolist()
    return {key: slice(end - width, end) for (key, width), end in zip(widths.items(), ends, strict=True)}


def _as_table(transitions: Transitions) -> np.ndarray:
    parts = [field if field.ndim == 2 else field[:, None] for field in transitions]
    return np.concatenate(parts, axis=1).astype("<f4", copy=False)


# ── packing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class _Moments:
    """Mean and spread of what is packed, merged slab by slab (Chan, Golub and LeVeque 1983).

    Sums of squares would lose the spread of numbers that are large beside it, as a clock's or a pressure's are.
    """

    rows: int = 0
    mean: Any = 0.0
    squares: Any = 0.0  # of the distances from the mean

    def add(self, observations: np.ndarray) -> None:
        if len(observations) == 0:
            return
        wide = observations.astype(np.float64)
        mean, rows = wide.mean(axis=0), self.rows + len(wide)
        apart, share = mean - self.mean, len(wide) / rows
        self.squares = self.squares + np.square(wide - mean).sum(axis=0) + np.square(apart) * self.rows * share
        self.mean = self.mean + apart * share
        self.rows = rows

    @property
    def std(self) -> np.ndarray:
        return np.sqrt(self.squares / self.rows)


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
    max_episode_steps: int | None = None,
    strict: bool = False,
) -> StreamingDataset:
    """Write a packed folder from a dataset, or from an HDF5 file of any size (only its flags must fit in memory)."""
    folder = Path(folder)
    if folder.exists():
        raise AspcError(f"{folder} is there already; choose another folder or remove that one.")
    if isinstance(source, Dataset):
        return _write_packed(folder, _Reader.of_dataset(source), n_step, discount, strict)
    options = {"action_low": action_low, "action_high": action_high, "max_episode_steps": max_episode_steps}
    with _open_hdf5(Path(source), files.checked_map(key_map or {}), env, **options) as reader:
        return _write_packed(folder, reader, n_step, discount, strict)


@dataclass
class _Reader:
    """Rows of a log, a slab at a time, with what is known of the whole."""

    name: str
    env: str | None
    flags: tuple[np.ndarray, np.ndarray]  # terminals and timeouts of all rows
    read: Callable[[str, slice], np.ndarray]
    has_next: bool
    bounds: tuple[np.ndarray, np.ndarray]
    notes: tuple[str, ...]
    names: dict[str, Any]  # of columns, by `files.NAMES`, where they are known
    close: Callable[[], None] = lambda: None

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def of_dataset(cls, dataset: Dataset) -> _Reader:
        return cls(
            name=dataset.name,
            env=dataset.env,
            flags=(dataset.terminals, dataset.timeouts),
            read=lambda key, rows: getattr(dataset, key)[rows],
            has_next=dataset.next_observations is not None,
            bounds=(dataset.action_low, dataset.action_high),
            notes=dataset.notes,
            names={key: getattr(dataset, key) for key in files.NAMES},
        )

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
    max_episode_steps: int | None,
) -> _Reader:
    """Open an HDF5 file in a process with limits; its flags are read, and its bounds become known."""
    with contextlib.ExitStack() as opened:
        child = opened.enter_context(LimitedReader())

        def read(key: str, rows: slice) -> np.ndarray:
            start, stop, _ = rows.indices(length)
            return child.call("read_hdf5_rows", path, key=key, start=start, stop=stop).arrays["rows"]

        stated, flags = child.call("open_hdf5", path, key_map=dict(key_map))
        length, facts, notes = stated["rows"], stated["facts"], stated["notes"]
        flags, on_order = files.complete_flags(flags, length, path.name)
        if env is None:
            facts, refused = files.without_refused_env(facts)
            env, notes = facts.get("env"), [*notes, *refused]
        action_low = facts.get("action_low") if action_low is None else action_low
        action_high = facts.get("action_high") if action_high is None else action_high
        if env is None:
            env = tasks.name_from_stem(path.stem, stated["observation_size"], stated["action_size"])
        elif env == "none":
            env = None
        terminals = checked_flags("terminals", flags["terminals"], path.name)
        logged = checked_flags("timeouts", flags["timeouts"], path.name) if "timeouts" in flags else None
        timeouts, on_limit = episode_ends(terminals, logged, max_episode_steps, env)
        extremes = _extremes(partial(read, "actions"), length)
        low, high, on_bounds = action_bounds(extremes, action_low, action_high, env, path.name)
        return _Reader(
            name=path.stem,
            env=env,
            flags=(terminals, timeouts),
            read=read,
            has_next="next_observations" in stated["keys"],
            bounds=(low, high),
            notes=(*notes, *on_order, *on_limit, *on_bounds),
            names={key: facts[key] for key in files.NAMES if key in facts},
            close=opened.pop_all().close,
        )


def _extremes(actions: Callable[[slice], np.ndarray], length: int) -> np.ndarray:
    """Two rows, the smallest and the largest value of each action dimension."""
    low, high = np.inf, -np.inf
    for start in range(0, length, SLAB_ROWS):
        part = actions(slice(start, start + SLAB_ROWS))
        low, high = np.minimum(low, part.min(axis=0)), np.maximum(high, part.max(axis=0))
    return np.stack([low, high]).astype(np.float32)


def _check_disk_space(folder: Path, needed_bytes: int) -> None:
    """Raise an `AspcError` where a packed folder does not fit on its disk: a compressed file can state any size."""
    free = shutil.disk_usage(folder.parent).free
    if needed_bytes > free:
        raise AspcError(
            f"{folder} needs {size_text(needed_bytes)}, but its disk has {size_text(free)} left; make room, or choose "
            "a folder on another disk."
        )


def _write_packed(folder: Path, reader: _Reader, n_step: int, discount: float, strict: bool) -> StreamingDataset:
    """Write slab by slab beside the folder, then move it there whole."""
    temporary = cache.temporary_name(folder)
    length = len(reader.flags[0])
    moments, content, clipped, reward_sum, sizes = _Moments(), hashlib.sha256(), 0, 0.0, (0, 0)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        cache.remove_stale(folder)
        temporary.mkdir()
        with open(temporary / ROWS, "wb") as file, cache.progress(f"Packing {reader.name}", length) as advance:
            for start in range(0, length, SLAB_ROWS):
                stop = min(start + SLAB_ROWS, length)
                # n_step rows more, so that no return is cut at the slab's edge; they belong to the next slab
                slab = reader.slab(slice(start, min(stop + n_step, length)), strict)
                if start == 0:
                    _check_disk_space(
                        folder, length * 4 * _columns(slab.observation_size, slab.action_size)["discounts"].stop
                    )
                rows, _ = slab.transition_rows(n_step)
                if len(rows):
                    transitions = slab.transitions(n_step=n_step, discount=discount)
                    own = int(np.searchsorted(rows, stop - start))
                    table = _as_table(Transitions(*(field[:own] for field in transitions))).tobytes()
                    file.write(table)
                    content.update(table)
                    moments.add(transitions.observations[:own])
                reward_sum += float(slab.rewards[: stop - start].sum(dtype=np.float64))
                raw = np.asarray(reader.read("actions", slice(start, stop)))
                clipped += int(((raw < reader.bounds[0]) | (raw > reader.bounds[1])).any(axis=1).sum())
                sizes = (slab.observation_size, slab.action_size)
                advance(stop)
            file.flush()
            os.fsync(file.fileno())
        if moments.rows == 0:
            raise AspcError(f"{reader.name}: no transition is left; episodes need at least two rows.")
        notes = list(reader.notes)
        if clipped:
            notes.append(f"{clipped:,} of {length:,} actions reach beyond the bounds and were clipped.")
        meta = {
            "format": FORMAT,
            "name": reader.name,
            "env": reader.env,
            "rows": moments.rows,
            "sha256": content.hexdigest(),
            "logged_rows": length,
            "episodes": int((reader.flags[0] | reader.flags[1]).sum()),
            "mean_reward": reward_sum / length,
            "observation_size": sizes[0],
            "action_size": sizes[1],
            "n_step": n_step,
            "discount": discount,
            "action_low": reader.bounds[0].tolist(),
            "action_high": reader.bounds[1].tolist(),
            **reader.names,
            "observation_mean": moments.mean.tolist(),
            "observation_std": moments.std.tolist(),
            "notes": notes,
        }
        write_atomically(temporary / META, json.dumps(meta, indent=1).encode())
        replace_durably(temporary, folder)
    except OSError as error:
        raise AspcError(f"{folder} could not be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return StreamingDataset.open(folder)


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class StreamingDataset:
    """Transitions in a packed folder; like a `Dataset`, it knows its sizes, bounds, environment and statistics."""

    folder: Path
    name: str
    env: str | None
    rows: int
    observation_size: int
    action_size: int
    n_step: int
    discount: float  # of the n-step sums; of no meaning where n_step is 1
    action_low: np.ndarray
    action_high: np.ndarray
    observation_mean: np.ndarray  # float64, of the transitions' observations
    observation_std: np.ndarray
    mean_reward: float
    notes: tuple[str, ...]
    observation_names: tuple[str, ...] = ()  # the log's columns, in the order of the numbers
    action_names: tuple[str, ...] = ()
    sha256: str | None = None  # of the rows when they were packed; older folders do not say it

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> StreamingDataset:
        """Open a folder that `pack` wrote."""
        folder = Path(folder)
        try:
            meta = read_json(folder / META)
            if meta["format"] != FORMAT:
                raise AspcError(f"{folder} is packed in format {meta['format']}, but this version reads {FORMAT}.")
            if not all(0 < meta[f"{name}_size"] < 2**31 for name in ("observation", "action")):
                raise ValueError("it states sizes that nothing has")
            width = _columns(meta["observation_size"], meta["action_size"])["discounts"].stop
            size = (folder / ROWS).stat().st_size
            stated = files.checked_facts({"env": meta["env"], **{key: meta.get(key) for key in files.NAMES}})
            facts, refused = files.without_refused_env(stated)
            with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused
                dataset = cls(
                    folder=folder,
                    name=str(meta["name"]),
                    env=facts.get("env"),
                    rows=int(meta["rows"]),
                    observation_size=int(meta["observation_size"]),
                    action_size=int(meta["action_size"]),
                    n_step=int(meta["n_step"]),
                    discount=float(meta["discount"]),
                    action_low=np.asarray(meta["action_low"], dtype=np.float32),
                    action_high=np.asarray(meta["action_high"], dtype=np.float32),
                    observation_mean=np.asarray(meta["observation_mean"], dtype=np.float64),
                    observation_std=np.asarray(meta["observation_std"], dtype=np.float64),
                    mean_reward=float(meta["mean_reward"]),
                    notes=(*map(str, meta["notes"]), *refused),
                    sha256=meta.get("sha256"),
                    **{key: tuple(facts.get(key, ())) for key in files.NAMES},
                )
            vectors = (dataset.action_low, dataset.action_high, dataset.observation_mean, dataset.observation_std)
            sizes = [(dataset.action_size,)] * 2 + [(dataset.observation_size,)] * 2
            fits = [vector.shape for vector in vectors] == sizes and all(np.isfinite(v).all() for v in vectors)
            fits &= len(dataset.observation_names) in (0, dataset.observation_size)
            fits &= len(dataset.action_names) in (0, dataset.action_size)
            fits &= dataset.sha256 is None or SHA256.fullmatch(dataset.sha256) is not None
            if not fits or not (dataset.action_low < dataset.action_high).all() or dataset.n_step < 1:
                raise ValueError("its vectors do not fit")
        except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
            raise AspcError(f"{folder} is not a whole packed folder; pack the data again.") from error
        if dataset.rows < 1 or size != dataset.rows * width * 4:
            raise AspcError(f"{folder / ROWS} has {size:,} bytes, not the {dataset.rows * width * 4:,} that it should.")
        return dataset

    def __len__(self) -> int:
        return self.rows

    @property
    def width(self) -> int:
        """Numbers in a packed row."""
        return _columns(self.observation_size, self.action_size)["discounts"].stop

    @property
    def row_bytes(self) -> int:
        """Bytes of one transition on disk."""
        return 4 * self.width

    def window_rows(self, budget: int) -> int:
        """How many rows a window may have so that all its copies stay within a budget of bytes."""
        rows = min(budget // (COPIES * self.row_bytes), self.rows)
        if rows < BLOCK_ROWS:
            raise AspcError(
                f"A budget of {budget:,} bytes is too small for {self.name}; "
                f"{COPIES * BLOCK_ROWS * self.row_bytes:,} is the least."
            )
        return int(rows)

    def split(self, table: np.ndarray) -> Transitions:
        """Packed rows as named arrays (views, no copies)."""
        fields = {key: table[:, part] for key, part in _columns(self.observation_size, self.action_size).items()}
        return Transitions(
            **{k: v[:, 0] if k in ("rewards", "terminals", "discounts") else v for k, v in fields.items()}
        )

    def blocks_of_window(self, k: int, blocks: int, block_rows: int, seed: int) -> np.ndarray:
        """First rows of the blocks that window k is made of.

        Blocks come in the order of one shuffle of the file after another; each shuffle cuts the file into blocks at
        another offset (and round the end), so that in the long run every row comes equally often.
        """
        in_file = -(-self.rows // block_rows)
        first, starts = k * blocks, list[int]()
        while len(starts) < blocks:
            shuffle, position = divmod(first + len(starts), in_file)
            rng = np.random.default_rng((seed, shuffle))
            offset = int(rng.integers(self.rows))
            order = rng.permutation(in_file)[position : position + blocks - len(starts)]
            starts.extend(((offset + order * block_rows) % self.rows).tolist())
        return np.array(starts)

    def windows(
        self,
        rows: int,
        *,
        seed: int = 0,
        start: int = 0,
        prepare: Prepare | None = None,
        block_rows: int = BLOCK_ROWS,
    ) -> Windows:
        """Windows `start`, `start` + 1, ... without end: tables of `rows` rows (less the remainder of a block).

        `prepare` turns transitions into the rows that training wants (normalised, packed its way); it runs in the
        reading thread. Without it rows are as packed; `split` names their columns.
        """
        block_rows = min(block_rows, self.rows)
        blocks = max(1, min(rows, self.rows) // block_rows)
        return Windows(self, blocks, block_rows, seed, start, prepare)


def _own_pages(rows: int, width: int) -> np.ndarray:
    """An empty table on pages of its own, which go back to the system with its last reference.

    The C library's allocator would keep them for the thread that asked, and memory would grow window by window.
    """
    pages = mmap.mmap(-1, 4 * rows * width, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, dtype=np.float32).reshape(rows, width)


class Windows(Iterator[np.ndarray]):
    """An endless iterator over windows that reads one ahead; use it in a `with` block, or `close` it."""

    def __init__(
        self, data: StreamingDataset, blocks: int, block_rows: int, seed: int, start: int, prepare: Prepare | None
    ) -> None:
        self._data, self._blocks, self._block_rows, self._seed = data, blocks, block_rows, seed
        self._prepare = prepare
        self._ready: queue.Queue[np.ndarray | BaseException] = queue.Queue(maxsize=1)
        self._stop = threading.Event()
        self._taken = threading.Semaphore(1)  # a window is filled only when the one before was taken
        self._thread = threading.Thread(target=self._fill, args=(start,), name="aspc-windows", daemon=True)
        self._thread.start()

    @property
    def rows(self) -> int:
        return self._blocks * self._block_rows

    def __next__(self) -> np.ndarray:
        if self._stop.is_set():
            raise StopIteration
        item = self._ready.get()
        if isinstance(item, BaseException):
            self.close()
            if isinstance(item, OSError):
                raise AspcError(f"{self._data.folder / ROWS} could not be read: {item}") from item
            raise item
        self._taken.release()
        return item

    def __enter__(self) -> Windows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading ahead."""
        self._stop.set()
        self._taken.release()
        self._thread.join()

    def _fill(self, k: int) -> None:
        try:
            with open(self._data.folder / ROWS, "rb", buffering=0) as file:
                while True:
                    self._taken.acquire()
                    if self._stop.is_set():
                        return
                    self._ready.put(self._read_window(file.fileno(), k))
                    k += 1
        except BaseException as error:  # whatever it is, who waits for the next window has to know
            self._ready.put(error)

    def _read_window(self, file: int, k: int) -> np.ndarray:
        data, size = self._data, self._block_rows
        starts = data.blocks_of_window(k, self._blocks, size, self._seed)
        at_once = max(1, SLAB_ROWS // 8 // size)  # blocks that are prepared together: few, so that they stay in cache
        slab = np.empty((at_once * size, data.width), dtype="<f4")
        table = np.empty((0, 0), dtype=np.float32)
        for first in range(0, self._blocks, at_once):
            group = starts[first : first + at_once]
            for i, row in enumerate(group.tolist()):
                self._read_rows(file, row, slab[i * size : (i + 1) * size])
            part = slab[: len(group) * size]
            prepared = part if self._prepare is None else self._prepare(data.split(part))
            if first == 0:
                table = _own_pages(self.rows, prepared.shape[1])
            table[first * size : first * size + len(part)] = prepared
            if self._stop.is_set():
                break
        return table

    def _read_rows(self, file: int, row: int, into: np.ndarray) -> None:
        """Fill an array with the rows from `row` on, round the end of the file.

        Plain reads instead of a mapping: a mapping's pages count as this process's memory, and the kernel maps far
        more around each block than was asked for; and a file that was cut meanwhile is an error, not a crash.
        """
        whole = min(len(into), self._data.rows - row)
        for part, offset in ((into[:whole], row), (into[whole:], 0)):
            if len(part) and os.preadv(file, [part.data], offset * self._data.row_bytes) != part.nbytes:
                raise OSError("the file has become shorter")
