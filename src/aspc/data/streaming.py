"""Data larger than memory: a packed folder on disk, read through shuffled windows of blocks.

`aspc.data.packing.pack` writes transitions as rows of fixed width into one file. `StreamingDataset.windows` yields
tables with a fixed number of rows, each assembled from many small blocks across the file. The compiled program that
draws minibatches from a dataset in memory therefore works on a window, too. A thread prefetches the next window. Window
k depends only on (seed, k), so a resumed run sees the same windows.
"""

from __future__ import annotations

import mmap
import os
import queue
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aspc.action_space import ActionSpace
from aspc.data.dataset import Transitions
from aspc.data.history import BlockStacker
from aspc.data.metadata import NAME_KEYS, drop_forbidden_env, select_valid
from aspc.data.row_layout import RowLayout
from aspc.errors import AspcError
from aspc.history import NEWEST_ONLY, History
from aspc.io import read_bounded_json

META, ROWS, EPISODES = "packed.json", "rows.f32", "episodes.i64"
FORMAT = 1
BLOCK_ROWS = 32  # consecutive transitions per read: small blocks mix better, large blocks are faster to read
SLAB_ROWS = 65_536  # rows processed at once while packing or preparing data
SHA256 = re.compile("[0-9a-f]{64}")
COPIES = 4  # tables that exist at the same time: in use, in transfer to the device, waiting, and being filled

Prepare = Callable[[Transitions], np.ndarray]


def is_packed(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a packed folder."""
    return (Path(path) / META).is_file()


def packed_layout(observation_size: int, action_size: int) -> RowLayout:
    """Return the layout of a packed row: the fields of `Transitions` in order."""
    return RowLayout(
        (
            ("observations", observation_size),
            ("actions", action_size),
            ("rewards", None),
            ("next_observations", observation_size),
            ("terminals", None),
            ("next_actions", action_size),
            ("discounts", None),
        )
    )


@dataclass(frozen=True, eq=False)
class StreamingDataset:
    """Transitions in a packed folder, with their sizes, bounds, environment and statistics."""

    folder: Path
    name: str
    env: str | None
    rows: int
    observation_size: int
    action_size: int
    n_step: int
    discount: float  # discount of the n-step returns; unused if n_step is 1
    action_low: np.ndarray
    action_high: np.ndarray
    observation_mean: np.ndarray  # float64, over the transitions' observations
    observation_std: np.ndarray
    mean_reward: float
    notes: tuple[str, ...]
    observation_names: tuple[str, ...] = ()  # column names of the log
    action_names: tuple[str, ...] = ()
    action_space: ActionSpace | None = None  # the options of categorical actions; None if all actions are continuous
    sha256: str | None = None  # checksum of the packed rows; absent in older folders

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> StreamingDataset:
        """Open a folder that `aspc.data.packing.pack` wrote.

        Raises:
            AspcError: The folder is incomplete or damaged.
        """
        folder = Path(folder)
        try:
            meta = read_bounded_json(folder / META)
            if meta["format"] != FORMAT:
                raise AspcError(f"{folder} has format {meta['format']}, but this version reads format {FORMAT}.")
            if not all(0 < meta[f"{name}_size"] < 2**31 for name in ("observation", "action")):
                raise ValueError("invalid sizes")
            size = (folder / ROWS).stat().st_size
            stated = select_valid({key: meta.get(key) for key in ("env", "action_space", *NAME_KEYS)})
            metadata, env_notes = drop_forbidden_env(stated)
            with np.errstate(over="ignore"):  # an overflow becomes infinite and is reported below
                dataset = cls(
                    folder=folder,
                    name=str(meta["name"]),
                    env=metadata.get("env"),
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
                    notes=(*map(str, meta["notes"]), *env_notes),
                    action_space=ActionSpace.from_text(metadata["action_space"])
                    if "action_space" in metadata
                    else None,
                    sha256=meta.get("sha256"),
                    **{key: tuple(metadata.get(key, ())) for key in NAME_KEYS},
                )
            vectors = (dataset.action_low, dataset.action_high, dataset.observation_mean, dataset.observation_std)
            sizes = [(dataset.action_size,)] * 2 + [(dataset.observation_size,)] * 2
            is_valid = [vector.shape for vector in vectors] == sizes and all(np.isfinite(v).all() for v in vectors)
            is_valid &= len(dataset.observation_names) in (0, dataset.observation_size)
            is_valid &= len(dataset.action_names) in (0, dataset.action_size)
            is_valid &= dataset.sha256 is None or SHA256.fullmatch(dataset.sha256) is not None
            if not is_valid or not (dataset.action_low < dataset.action_high).all() or dataset.n_step < 1:
                raise ValueError("invalid vectors")
        except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
            raise AspcError(f"{folder} is not a complete packed folder; pack the data again.") from error
        expected = dataset.rows * dataset.row_bytes
        if dataset.rows < 1 or size != expected:
            raise AspcError(f"{folder / ROWS} has {size:,} bytes instead of {expected:,}; pack the data again.")
        return dataset

    def __len__(self) -> int:
        return self.rows

    @property
    def layout(self) -> RowLayout:
        """Layout of a packed row."""
        return packed_layout(self.observation_size, self.action_size)

    @property
    def row_bytes(self) -> int:
        """Bytes per transition on disk."""
        return 4 * self.layout.width

    def window_rows(self, budget: int, history: History = NEWEST_ONLY) -> int:
        """Return the largest number of rows per window for which all copies fit into a budget in bytes."""
        stacked_size = history.size(self.observation_size, self.action_size)
        row_bytes = 4 * packed_layout(stacked_size, self.action_size).width
        rows = min(budget // (COPIES * row_bytes), self.rows)
        if rows < BLOCK_ROWS:
            raise AspcError(
                f"A budget of {budget:,} bytes is too small for {self.name}; "
                f"it needs at least {COPIES * BLOCK_ROWS * row_bytes:,}."
            )
        return int(rows)

    def episode_starts(self) -> np.ndarray:
        """Return the first row of each episode.

        Raises:
            AspcError: The folder was packed by a version that did not store these rows, or the file is damaged.
        """
        path = self.folder / EPISODES
        if not path.is_file():
            raise AspcError(f"{self.folder} was packed without the starts of its episodes; pack the data again.")
        size = path.stat().st_size
        starts = np.fromfile(path, "<i8") if size <= 8 * self.rows and size % 8 == 0 else np.zeros(0, np.int64)
        if len(starts) == 0 or starts[0] != 0 or starts[-1] >= self.rows or (np.diff(starts) < 1).any():
            raise AspcError(f"{path} is damaged; pack the data again.")
        return starts

    def split(self, table: np.ndarray) -> Transitions:
        """Return packed rows as transitions, without copying."""
        return Transitions(**self.layout.unpack(table))

    def window_blocks(self, k: int, blocks: int, block_rows: int, seed: int) -> np.ndarray:
        """Return the first row of each block of window k.

        Blocks come from successive shuffles of the file. Each shuffle starts its blocks at a different offset and wraps
        around the end, so that all rows are equally frequent in the long run.
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
        history: History = NEWEST_ONLY,
    ) -> Windows:
        """Return an infinite iterator over windows: tables of `rows` rows, rounded down to complete blocks.

        Args:
            rows: Rows per window.
            seed: Seed of the shuffles.
            start: Index of the first window.
            prepare: Function that converts transitions to rows, called in the reading thread. Default: rows as packed.
            block_rows: Rows per block.
            history: The history to stack into the observations before `prepare` is called.
        """
        block_rows = min(block_rows, self.rows)
        blocks = max(1, min(rows, self.rows) // block_rows)
        return Windows(self, blocks, block_rows, seed, start, prepare, history)


def _mapped_table(rows: int, width: int) -> np.ndarray:
    """Return an uninitialized table whose memory is returned to the system when its last reference is dropped.

    The C library's allocator would keep the memory for the allocating thread, so usage would grow with every window.
    """
    pages = mmap.mmap(-1, 4 * rows * width, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, dtype=np.float32).reshape(rows, width)


class Windows(Iterator[np.ndarray]):
    """An infinite iterator over windows that prefetches one; use it in a `with` block, or `close` it."""

    def __init__(
        self,
        data: StreamingDataset,
        blocks: int,
        block_rows: int,
        seed: int,
        start: int,
        prepare: Prepare | None,
        history: History = NEWEST_ONLY,
    ) -> None:
        self._data, self._blocks, self._block_rows, self._seed = data, blocks, block_rows, seed
        self._prepare = prepare
        self._stacker: BlockStacker | None = None
        if history.observations > 1:
            self._stacker = BlockStacker(history, data.episode_starts(), data.rows, data.n_step, block_rows)
        self._ready: queue.Queue[np.ndarray | BaseException] = queue.Queue(maxsize=1)
        self._stop = threading.Event()
        self._taken = threading.Semaphore(1)  # a window is filled only after the previous one has been taken
        self._thread = threading.Thread(target=self._fill, args=(start,), name="aspc-windows", daemon=True)
        self._thread.start()

    @property
    def rows(self) -> int:
        """Rows per window."""
        return self._blocks * self._block_rows

    def __next__(self) -> np.ndarray:
        if self._stop.is_set():
            raise StopIteration
        item = self._ready.get()
        if isinstance(item, BaseException):
            self.close()
            if isinstance(item, OSError):
                raise AspcError(f"{self._data.folder / ROWS} cannot be read: {item}.") from item
            raise item
        self._taken.release()
        return item

    def __enter__(self) -> Windows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop prefetching."""
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
        except BaseException as error:  # re-raised by `__next__`
            self._ready.put(error)

    def _read_window(self, file: int, k: int) -> np.ndarray:
        data, size = self._data, self._block_rows
        starts = data.window_blocks(k, self._blocks, size, self._seed)
        before, read_rows = (0, size) if self._stacker is None else (self._stacker.before, self._stacker.read_rows)
        at_once = max(1, SLAB_ROWS // 8 // read_rows)  # blocks prepared together; few enough for the CPU cache
        slab = np.empty((at_once * read_rows, data.layout.width), dtype="<f4")
        table = np.empty((0, 0), dtype=np.float32)
        for first in range(0, self._blocks, at_once):
            group = starts[first : first + at_once]
            for i, row in enumerate(group.tolist()):
                self._read_rows(file, row - before, slab[i * read_rows : (i + 1) * read_rows])
            prepared = self._prepare_blocks(slab[: len(group) * read_rows], group)
            if first == 0:
                table = _mapped_table(self.rows, prepared.shape[1])
            table[first * size : first * size + len(prepared)] = prepared
            if self._stop.is_set():
                break
        return table

    def _prepare_blocks(self, rows: np.ndarray, blocks: np.ndarray) -> np.ndarray:
        """Return the prepared rows of the blocks that start at `blocks`."""
        if self._stacker is None:
            return rows if self._prepare is None else self._prepare(self._data.split(rows))
        transitions = self._stacker.stack(self._data.split(rows), blocks)
        if self._prepare is not None:
            return self._prepare(transitions)
        layout = packed_layout(transitions.observations.shape[1], self._data.action_size)
        return layout.pack(transitions._asdict())

    def _read_rows(self, file: int, row: int, into: np.ndarray) -> None:
        """Fill an array with the rows starting at `row`, wrapping around at both ends of the file.

        This uses plain reads instead of a memory map. With a map, the kernel maps far more pages around each block
        than requested, which count as this process's memory, and a truncated file causes a crash instead of an error.
        """
        filled = 0
        while filled < len(into):
            first = (row + filled) % self._data.rows
            part = into[filled : filled + self._data.rows - first]
            if os.preadv(file, [part.data], first * self._data.row_bytes) != part.nbytes:
                raise OSError("the file was truncated")
            filled += len(part)
