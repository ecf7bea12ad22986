"""Checkpoints of a training state (Orbax): written beside the last one, then renamed, so that a kill loses nothing.

The state goes in as a flat dictionary of arrays named by their place in the state, e.g. `.base.actor.net.layers[0]…`:
what is in a checkpoint can be read without this library.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

from aspc.errors import AspcError


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
    """The checkpoints of one run; the newest two are kept."""

    def __init__(self, folder: Path, read_only: bool = False) -> None:
        """`read_only` changes nothing in the folder, so that a run can be looked at while it trains."""
        # Orbax logs at INFO level and warns about sharding it is not told of; neither is the user's concern here.
        logging.getLogger("absl").setLevel(logging.ERROR)
        import orbax.checkpoint as ocp

        self._ocp = ocp
        how: dict[str, Any] = {"read_only": True} if read_only else {"max_to_keep": 2, "create": True}
        self._manager = ocp.CheckpointManager(folder.absolute(), options=ocp.CheckpointManagerOptions(**how))

    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def save(self, step: int, state: Any) -> None:
        """Copies the state to the host at once; the writing goes on in the background."""
        arrays = jax.tree.map(np.asarray, jax.device_get(flatten(state)))
        self._manager.save(step, args=self._ocp.args.StandardSave(arrays), force=True)

    def restore(self, step: int, like: Any) -> Any:
        shapes = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), flatten(like))
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*[Ss]harding.*")
                arrays = self._manager.restore(step, args=self._ocp.args.StandardRestore(shapes))
        except (ValueError, KeyError, OSError) as error:
            raise AspcError(f"The checkpoint of step {step} cannot be read: {str(error).splitlines()[0]}") from error
        return unflatten(arrays, like)

    def close(self) -> None:
        """Waits until what was saved is on disk."""
        self._manager.close()
