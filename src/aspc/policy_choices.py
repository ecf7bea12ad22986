"""Select and name options of discrete actions: helpers for `policy_kinds`, which need only NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aspc.action_space import ActionSpace, factor_slices

FORBIDDEN = 1e9  # subtracted from the score of a masked option


def array_namespace(x: Any) -> Any:
    """Return the namespace of an array's functions: NumPy, or the array's own library."""
    # The first comparison is the common case, kept fast.
    return np if type(x) is np.ndarray or isinstance(x, np.ndarray) else x.__array_namespace__()


def forbidden_options(settings: Mapping[str, Any], observations: Any, options: np.ndarray) -> Any:
    """Return 1 for each masked option, else 0, for `options` [options, act] and a batch; None without masks."""
    masked = settings["masked"]
    if not masked:
        return None
    masks = observations[:, observations.shape[-1] - len(masked) :]
    xp = array_namespace(masks)
    return xp.minimum(xp.less(masks, 0.5).astype(np.float32) @ options[:, masked].T, 1.0)


def largest(scores: Any, forbidden: Any) -> Any:
    """Return the one-hot index of the largest score of each row, or 0 everywhere if that option is forbidden."""
    xp = array_namespace(scores)
    chosen = xp.argmax(scores, axis=1).astype(np.float32)[:, None]
    found = xp.equal(chosen, np.arange(scores.shape[-1], dtype=np.float32)).astype(np.float32)
    return found if forbidden is None else found * (1 - forbidden)


def choice_names(info: Mapping[str, Any], actions: np.ndarray, error: type[Exception] = ValueError) -> Any:
    """Return the names of the options chosen by one action or by a batch (see `ActionSpace.name_choices`).

    Raises:
        error: All actions are continuous: the policy's `info` has no action space.
    """
    if "action_space" not in info:
        raise error("All actions of this policy are continuous. Call act instead.")
    named = ActionSpace.from_json(info["action_space"]).name_choices(np.atleast_2d(actions))
    return named if actions.ndim == 2 else named[0]


def choice_indices(policy: Any, actions: Any) -> Any:
    """Return the index of the chosen option of each discrete factor [batch, discrete factors] as float32.

    The index is −1 if no option is chosen, as in a NaN action.
    """
    xp = array_namespace(actions)
    sizes = policy.settings["factors"]
    blocks = [actions[:, block] for size, block in zip(sizes, factor_slices(sizes), strict=True) if size]
    chosen = [xp.argmax(block, axis=1).astype(np.float32)[:, None] for block in blocks]
    found = [xp.equal(block.max(1, keepdims=True), 1.0).astype(np.float32) for block in blocks]
    indices = [(index + 1) * is_found - 1 for index, is_found in zip(chosen, found, strict=True)]
    return indices[0] if len(indices) == 1 else xp.concatenate(tuple(indices), axis=1)
