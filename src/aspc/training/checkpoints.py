"""Checkpoints of a training state (Orbax), and the writer that saves them during training.

A checkpoint is written under a temporary name and then renamed, so an interruption never damages an existing one. It is
a flat dictionary of arrays, keyed by their path in the state, such as `.base.actor.net.layers[0]…`, and can be read
without this library.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from aspc.errors import DISK_ERRORS, AspcError
from aspc.training.evaluation import EvaluationQueue
from aspc.training.run_folder import check_checkpoint_path

CHECKSUM, BYTES = "sha256", "bytes"  # keys of a checkpoint's metadata
CHECKPOINT_SECONDS = 60.0  # time between checkpoints, unless the interval is set in steps
OTHER_STATE = "The checkpoint belongs to another algorithm or version; start a new run instead."


def flatten(state: PyTree) -> dict[str, Any]:
    """Return the leaves of a state by path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def unflatten(arrays: dict[str, Any], like: PyTree) -> PyTree:
    """Return a state with the structure of `like` and the values of `arrays`.

    Raises:
        AspcError: The names do not match.
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path(like)
    names = [jax.tree_util.keystr(path) for path, _ in leaves]
    missing = [name for name in names if name not in arrays]
    if missing or len(arrays) != len(names):
        raise AspcError(OTHER_STATE)
    return jax.tree_util.tree_unflatten(treedef, [arrays[name] for name in names])


class CheckpointStore:
    """The checkpoints of one run on disk.

    Args:
        folder: The folder of the checkpoints.
        keep: The number of newest checkpoints to keep.
        read_only: Never change the folder, so that a run can be read while it trains.

    Raises:
        AspcError: A checkpoint is damaged.
    """

    def __init__(self, folder: Path, keep: int = 2, read_only: bool = False) -> None:
        # Orbax logs at INFO level, warns about unspecified sharding, and logs a traceback for every error that it also
        # raises. None of that concerns the user.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        import orbax.checkpoint as ocp

        check_checkpoint_path(folder)
        if not isinstance(sys.unraisablehook, _ClosedLoopFilter):
            sys.unraisablehook = _ClosedLoopFilter(sys.unraisablehook)
        self._ocp, self._folder = ocp, folder
        # Create folders before the threads that write into them start: on a full disk, threads that wait for a folder
        # would block for minutes and keep the process from exiting.
        folders_first = ocp.AsyncOptions(create_directories_asynchronously=False)
        writable = {"max_to_keep": keep, "create": True, "async_options": folders_first}
        options: dict[str, Any] = {"read_only": True} if read_only else writable
        try:
            with _system_errors(folder):
                self._manager = ocp.CheckpointManager(
                    folder.absolute(),
                    options=ocp.CheckpointManagerOptions(**options),
                    item_handlers=ocp.StandardCheckpointHandler(),
                )
        except OSError:
            raise
        except Exception as error:  # Orbax can raise any exception for a damaged checkpoint
            raise AspcError(
                f"A checkpoint in {folder} is damaged; remove the newest checkpoint to continue from the previous one."
            ) from error

    def latest_step(self) -> int | None:
        """Return the step of the newest checkpoint, if any."""
        step: int | None = self._manager.latest_step()
        return step

    def save(self, step: int, state: PyTree) -> None:
        """Copy the state to the host and write it in the background."""
        arrays = jax.tree.map(np.asarray, jax.device_get(flatten(state)))
        with _system_errors(self._folder):
            self._manager.save(
                step,
                args=self._ocp.args.StandardSave(arrays),
                custom_metadata={CHECKSUM: _digest(arrays), BYTES: sum(array.nbytes for array in arrays.values())},
                force=True,
            )

    def restore(self, step: int, like: PyTree) -> PyTree:
        """Return the state at a step, with the structure of `like`.

        Raises:
            AspcError: The checkpoint is damaged, or its arrays differ from `like` in name, shape or type.
        """
        shapes = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), flatten(like))
        with self._reading(step):
            claimed = self._manager.item_metadata(step)
            if claimed is None or _sizes(claimed) != _sizes(shapes):
                raise AspcError(OTHER_STATE)
            return unflatten(self._read(step, shapes), like)

    def verify(self, step: int) -> bool:
        """Compare a checkpoint with its checksum; return False if an older version wrote it without one.

        Raises:
            AspcError: The checkpoint is damaged.
        """
        with self._reading(step):
            recorded = self._recorded(step)
            if CHECKSUM not in recorded:
                return False
            claimed = _sizes(self._manager.item_metadata(step))
            size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in claimed.values())
            if size != recorded[BYTES]:  # checked before memory is allocated
                raise self._damaged(step, "its size has changed")
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
        except Exception as error:  # Orbax can raise any exception for a damaged checkpoint
            raise self._damaged(step, "it cannot be read") from error

    def _read(self, step: int, shapes: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return the arrays of a checkpoint after verifying its checksum, if it has one."""
        arrays: dict[str, Any] = self._manager.restore(step, args=self._ocp.args.StandardRestore(shapes))
        found = _digest(arrays)
        if self._recorded(step).get(CHECKSUM, found) != found:
            raise self._damaged(step, "its values do not match its checksum")
        return arrays

    def _recorded(self, step: int) -> dict[str, Any]:
        return dict(self._manager.metadata(step).custom_metadata or {})

    def _damaged(self, step: int, problem: str) -> AspcError:
        return AspcError(
            f"The checkpoint {self._folder / str(step)} is damaged: {problem}. Remove it to continue from the previous "
            f"one, or start a new run."
        )

    def all_steps(self) -> list[int]:
        """Return the steps of all checkpoints."""
        return sorted(self._manager.all_steps())

    def close(self) -> None:
        """Wait until all checkpoints are on disk."""
        with _system_errors(self._folder):
            self._manager.close()


class CheckpointWriter:
    """Save each checkpoint once the evaluations up to its step are on disk, since a resumed run does not repeat them.

    Training continues meanwhile. It waits only if those evaluations are still pending when the next checkpoint is due.

    Args:
        checkpoints: The checkpoints of the run.
        evaluations: The evaluations of the run.
        every_steps: Steps between checkpoints; 0 saves about once per minute.
        before_save: Called with the step before each checkpoint.
        after_save: Called with the step and the state after each checkpoint.
    """

    def __init__(
        self,
        checkpoints: CheckpointStore,
        evaluations: EvaluationQueue,
        every_steps: int,
        before_save: Callable[[int], None],
        after_save: Callable[[int, PyTree], None],
    ) -> None:
        self.checkpoints, self.evaluations, self.every_steps = checkpoints, evaluations, every_steps
        self.before_save, self.after_save = before_save, after_save
        self._last_time = time.monotonic()
        self._pending: tuple[int, PyTree] | None = None

    def is_due(self, first_step: int, last_step: int, force: bool) -> bool:
        """Return whether to save after the chunk from `first_step` to `last_step`; always true with `force`."""
        if self.every_steps:
            is_due = last_step // self.every_steps > first_step // self.every_steps
        else:
            is_due = time.monotonic() - self._last_time > CHECKPOINT_SECONDS
        if is_due or force:
            self._last_time = time.monotonic()
        return is_due or force

    def submit(self, step: int, state: PyTree) -> None:
        """Save a state once its evaluations are done. Wait for any earlier state to be saved first."""
        self._wait_for_pending()
        self._pending = (step, state)

    def save_if_evaluated(self) -> None:
        """Save the submitted state if no evaluation up to its step is pending."""
        if self._pending is None:
            return
        step, state = self._pending
        if not self.evaluations.has_pending(step):
            self.before_save(step)
            self.checkpoints.save(step, state)
            self._pending = None
            self.after_save(step, state)

    def save_before_failure(self) -> None:
        """Try once to save the pending state after a training failure.

        An error while saving is ignored, so that the training failure is reported.
        """
        with suppress(Exception):
            self._wait_for_pending()
        self._pending = None

    def _wait_for_pending(self) -> None:
        if self._pending is not None:
            self.evaluations.collect(wait=True, up_to_step=self._pending[0])
            self.save_if_evaluated()


class _ClosedLoopFilter:
    """An `unraisablehook` that ignores errors of a closed event loop.

    If reading or writing one array fails, the threads that handle the other arrays raise this error, possibly as late
    as program exit.
    """

    def __init__(self, previous: Callable[[Any], None]) -> None:
        self.previous = previous

    def __call__(self, unraisable: Any) -> None:
        if "Event loop is closed" not in str(unraisable.exc_value):
            self.previous(unraisable)


def _digest(arrays: dict[str, Any]) -> str:
    """Return the SHA-256 of named arrays."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        array = np.ascontiguousarray(array)
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.view(np.uint8).data)
    return digest.hexdigest()


def _sizes(arrays: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return the shape and type of each array."""
    return {name: (tuple(array.shape), np.dtype(array.dtype)) for name, array in arrays.items()}


@contextmanager
def _system_errors(folder: Path) -> Iterator[None]:
    """Convert a `ValueError` that Orbax raises with the text of a disk error to an `OSError`."""
    try:
        yield
    except ValueError as error:
        for number in DISK_ERRORS:
            if os.strerror(number) in str(error):
                raise OSError(number, os.strerror(number), str(folder)) from error
        raise
