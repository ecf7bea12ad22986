"""Convert episodes that are mappings of arrays or data frames to checked arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from aspc.data.columns import REQUIRED, canonical_keys
from aspc.data.frames import frame_names, is_frame, read_frame
from aspc.data.metadata import ALL_NAME_KEYS
from aspc.data.read_options import ReadOptions
from aspc.data.readers.contents import FileContents, concatenate
from aspc.data.readers.episodes import share_action_categories
from aspc.data.row_preparation import prepare_rows
from aspc.data.validation import check_flags, check_matrix, check_numeric, check_vector
from aspc.errors import AspcError


def episode_arrays(episodes: Iterable[Any], name: str) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return the arrays of all episodes, options of `Dataset.from_arrays` that they share, and notes.

    Args:
        episodes: Mappings of arrays, or data frames, which are read like tables.
        name: The name of the dataset, for messages.

    Raises:
        AspcError: An episode is invalid, or the episodes differ in their columns.
    """
    found, names = list[FileContents](), list[dict[str, Any]]()
    for i, episode in enumerate(episodes):
        found.append(_read_episode(episode, f"{name}, episode {i + 1}"))
        names.append({key: found[i].metadata[key] for key in ALL_NAME_KEYS if key in found[i].metadata})
        if names[i] != names[0]:
            raise AspcError(
                f"{name}, episode {i + 1}: the columns differ in name or order from those of the first episode. Use "
                "the same columns in every episode."
            )
    if not found:
        raise AspcError(f"{name}: there are no episodes; at least one is required.")
    share_action_categories(found)
    parts = [check_episode(contents.arrays, f"{name}, episode {i + 1}") for i, contents in enumerate(found)]
    for i, part in enumerate(parts):
        for key in sorted(part.keys() ^ parts[0].keys()):
            without = i if key in parts[0] else 0
            raise AspcError(f"{name}: episode {without + 1} has no {key.replace('_', ' ')}, but others do.")
    arrays = {key: concatenate([part[key] for part in parts], f"{name}: episodes") for key in parts[0]}
    settings = names[0] | {"action_categories": found[0].metadata.get("action_categories")}
    return arrays, settings, list(dict.fromkeys(note for contents in found for note in contents.notes))


def _read_episode(episode: Any, label: str) -> FileContents:
    if is_frame(episode):
        options = ReadOptions(single_episode=True)
        return prepare_rows(read_frame(episode, options, label), options, label)
    arrays = canonical_keys(episode, label)
    keys = {"observation_names": "observations", "action_names": "actions"}
    names = {name: list(frame_names(arrays[key])) for name, key in keys.items() if frame_names(arrays.get(key))}
    return FileContents(arrays, [], names)


def check_episode(episode: Mapping[str, Any], name: str) -> dict[str, np.ndarray]:
    """Return the arrays of one episode, with one flag per row and, if known, next observations."""
    missing = [key for key in REQUIRED if key not in episode]
    if missing:
        raise AspcError(f"{name}: {missing[0]!r} is missing; found {', '.join(map(repr, episode)) or 'no keys'}.")
    actions = check_numeric("actions", episode["actions"], name)
    observations = check_matrix("observations", episode["observations"], name)
    rewards = check_vector("rewards", episode["rewards"], name)
    steps = len(rewards)
    if steps == 0:
        raise AspcError(f"{name}: the episode is empty.")
    if len(actions) != steps or len(observations) not in (steps, steps + 1):
        raise AspcError(
            f"{name}: {steps} rewards need {steps} actions and {steps} or {steps + 1} observations, "
            f"but there are {len(actions)} and {len(observations)}."
        )
    terminals, timeouts = (_flags(episode, key, steps, name) for key in ("terminals", "timeouts"))
    timeouts = (timeouts | (np.arange(steps) == steps - 1)) & ~terminals
    result = {
        "observations": observations[:steps],
        "actions": actions,
        "rewards": rewards,
        "terminals": terminals,
        "timeouts": timeouts,
    }
    if len(observations) == steps + 1:
        result["next_observations"] = observations[1:]
    elif "next_observations" in episode:
        result["next_observations"] = check_matrix("next_observations", episode["next_observations"], name)
    return result | {key: check_matrix(key, episode[key], name) for key in ("kpis", "masks") if key in episode}


def _flags(episode: Mapping[str, Any], key: str, steps: int, name: str) -> np.ndarray:
    """Return one flag per row; a single flag applies to the last row."""
    flags = np.asarray(episode.get(key, False))
    if flags.ndim == 0:
        flags = np.arange(steps) == (steps - 1 if flags else steps)
    if len(flags) != steps:
        raise AspcError(f"{name}: there are {steps} rewards but {len(flags)} {key}.")
    return check_flags(key, flags, name)
