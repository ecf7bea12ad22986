"""Optional metadata in a dataset's file: environment, bounds, scores and column names."""

from __future__ import annotations

import json
from typing import Any

from aspc.action_space import ActionSpace
from aspc.envs.allowed import problem_with_name

HDF5_ATTRIBUTE = "aspc"  # holds the metadata as JSON
NPZ_PREFIX = "aspc_"  # prefix of the metadata arrays, which hold numbers or NumPy's unicode text
NUMBER_KEYS = ("action_low", "action_high", "ref_min", "ref_max")
NAME_KEYS = ("observation_names", "action_names")
ALL_NAME_KEYS = (*NAME_KEYS, "kpi_names", "mask_names")
TEXT_KEYS = ("env", "action_space")
NPZ_KEYS = {f"{NPZ_PREFIX}{key}": key for key in (*TEXT_KEYS, *NUMBER_KEYS, *ALL_NAME_KEYS)}


def parse_metadata(text: Any) -> dict[str, Any]:
    """Parse the metadata in an HDF5 attribute; return an empty dictionary if it is invalid."""
    try:
        return select_valid(json.loads(text))
    except (TypeError, ValueError):
        return {}


def select_valid(stated: Any) -> dict[str, Any]:
    """Return the known keys of a file's metadata, or an empty dictionary if a value has the wrong type."""
    try:
        numbers = {
            key: [float(x) for x in stated[key]] if key.startswith("action") else float(stated[key])
            for key in NUMBER_KEYS
            if stated.get(key) is not None
        }
        names = {key: [str(name) for name in stated[key]] for key in ALL_NAME_KEYS if stated.get(key)}
        texts = {key: stated[key] for key in TEXT_KEYS if isinstance(stated.get(key), str)}
        if "action_space" in texts:
            ActionSpace.from_text(texts["action_space"])
    except (TypeError, ValueError, AttributeError):
        return {}
    return {**numbers, **names, **texts}


def drop_forbidden_env(metadata: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Remove the environment if a file is not allowed to choose it; return the metadata and a note."""
    env = metadata.get("env")
    problem = None if env is None else problem_with_name(env)
    if problem is None:
        return metadata, []
    kept = {key: value for key, value in metadata.items() if key != "env"}
    shown = str(env)[:80]
    return kept, [f"the environment {shown!r} named in the file is not used: {problem}; if you trust it, pass --env."]
