"""Checkpoints of a training state (Orbax): written beside the last one, then renamed, so that a kill loses nothing.

The state goes in as a flat dictionary of arrays named by their place in the state, e.g. `.base.actor.net.layers[0]…`:
what is in a checkpoint can be read without this library.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from aspc.errors import DISK_ERRORS, AspcError
from aspc.training.run_folder import check_place

CHECKSUM, BYTES = "sha256", "bytes"  # in the metadata of a checkpoint


def flatten(state: Any) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def unflatten(arrays: dict[str, Any], like: Any) -> Any:
    """The state whose shapes `like` has, with the values of `arrays`."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(like)
    names = [jax.tree_util.keystr(path) for path, _ in leaves]
    missing = [name for name in names if name not in arrays]
    if missing or len(arrays) != len(names):
        raise AspcError("The checkpoint belongs to another algorithm or version; start a new run instead.")
    return jax.tree_util.tree_unflatten(treedef, [arrays[name] for name in names])


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, keep: int = 2, read_only: bool = False) -> None:
        """The newest `keep` are kept. `read_only` changes nothing, so that a run can be looked at while it trains."""
        # Orbax logs at INFO level, warns about sharding it is not told of, and logs the traceback of every error that
        # it raises too; none of that is the user's concern here.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        import orbax.checkpoint as ocp

        check_place(folder)
        if not isinstance(sys.unraisablehook, _WithoutAfterwords):
            sys.unraisablehook = _WithoutAfterwords(sys.unraisablehook)
        self._ocp, self._folder = ocp, folder
        # Folders are made before the threads that write into them start: on a full disk threads that wait for a folder
        # would wait for minutes, and keep the process from exiting.
        folders_first = ocp.AsyncOptions(create_directories_asynchronously=False)
        writing = {"max_to_keep": keep, "create": True, "async_options": folders_first}
        how: dict[str, Any] = {"read_only": True} if read_only else writing
        try:
            with _said_by_the_system(folder):
                self._manager = ocp.CheckpointManager(
                    folder.absolute(),
                    options=ocp.CheckpointManagerOptions(**how),
                    item_handlers=ocp.StandardCheckpointHandler(),
                )
        except OSError:
            raise
        except Exception as error:  # a damaged checkpoint can make Orbax fail in any way
            raise AspcError(
                f"A checkpoint in {folder} is damaged; remove the newest to go on from the one before."
            ) from error

    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def save(self, step: int, state: Any) -> None:
        """Copies the state to the host at once; the writing goes on in the background."""
        arrays = jax.tree.map(np.asarray, jax.device_get(flatten(state)))
        with _said_by_the_system(self._folder):
            self._manager.save(
                step,
                args=self._ocp.args.StandardSave(arrays),
                custom_metadata={CHECKSUM: _digest(arrays), BYTES: sum(array.nbytes for array in arrays.values())},
                force=True,
            )

    def restore(self, step: int, like: Any) -> Any:
        shapes = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), flatten(like))
        with self._reading(step):
            claimed = self._manager.item_metadata(step)
            if claimed is None or _sizes(claimed) != _sizes(shapes):
                raise AspcError("The checkpoint belongs to another algorithm or version; start a new run instead.")
            return unflatten(self._read(step, shapes), like)

    def verify(self, step: int) -> bool:
        """Compare a checkpoint with its checksum; return False if it has none, as those of older versions.

        Raises:
            AspcError: The checkpoint is damaged.
        """
        with self._reading(step):
            recorded = self._recorded(step)
            if CHECKSUM not in recorded:
                return False
            claimed = _sizes(self._manager.item_metadata(step))
            size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in claimed.values())
            if size != recorded[BYTES]:  # before memory is taken
                raise self._damaged(step, "it has another size than it was saved with")
            self._read(step, {name: np.zeros(shape, dtype) for name, (shape, dtype) in claimed.items()})
        return True

    @contextmanager
    def _reading(self, step: int) -> Iterator[None]:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*[Ss]harding.*")
                yield
        except AspcError:
            raise
        except Exception as error:  # a damaged checkpoint can make Orbax fail in any way
            raise self._damaged(step, "it cannot be read") from error

    def _read(self, step: int, shapes: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return the arrays of a checkpoint, compared with their checksum where it has one."""
        arrays = self._manager.restore(step, args=self._ocp.args.StandardRestore(shapes))
        found = _digest(arrays)
        if self._recorded(step).get(CHECKSUM, found) != found:
            raise self._damaged(step, "its numbers differ from its checksum")
        return arrays

    def _recorded(self, step: int) -> dict[str, Any]:
        return dict(self._manager.metadata(step).custom_metadata or {})

    def _damaged(self, step: int, what: str) -> AspcError:
        return AspcError(
            f"The checkpoint {self._folder / str(step)} is damaged: {what}; remove it to continue from the one before, "
            f"or start a new run."
        )

    def all_steps(self) -> list[int]:
        return sorted(self._manager.all_steps())

    def close(self) -> None:
        """Waits until what was saved is on disk."""
        with _said_by_the_system(self._folder):
            self._manager.close()


class _WithoutAfterwords:
    """Says what nobody could raise, but for this: where one array cannot be written or read, the threads that have the
    others find nobody waiting and print a traceback each, at any time until the program ends."""

    def __init__(self, before: Callable[[Any], None]) -> None:
        self.before = before

    def __call__(self, said: Any) -> None:
        if "Event loop is closed" not in str(said.exc_value):
            self.before(said)


def _digest(arrays: dict[str, Any]) -> str:
    """Return the SHA-256 of named arrays."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        array = np.ascontiguousarray(array)
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.view(np.uint8).data)
    return digest.hexdigest()


def _sizes(arrays: Any) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    return {name: (tuple(array.shape), np.dtype(array.dtype)) for name, array in arrays.items()}


@contextmanager
def _said_by_the_system(folder: Path) -> Iterator[None]:
    """Raise the system's error where Orbax raises a ValueError with the system's words in it."""
    try:
        yield
    except ValueError as error:
        for number in DISK_ERRORS:
            if os.strerror(number) in str(error):
                raise OSError(number, os.strerror(number), str(folder)) from error
        raise
