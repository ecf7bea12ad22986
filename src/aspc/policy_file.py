"""Read the file of a policy. No code in it is executed, and sizes are checked before arrays are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from aspc.errors import AspcError
from aspc.policy_kinds import KINDS

FORMAT_VERSION = 2
UNGUARDED_FORMAT = 1  # format of policies without guards and history, so that older versions can read them


def read_policy_file(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read the header and arrays of a weights file, after checking its format version.

    Raises:
        AspcError: The file is damaged or has an unknown format.
    """
    from safetensors import SafetensorError, safe_open

    damaged = AspcError(f"{path} is not a valid policy file. It may be damaged.")
    try:
        # Opening checks all declared sizes against the file's length.
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {})["aspc"])
            if not isinstance(header, dict):
                raise damaged
            _check_format(path, header)
            names = list(file.keys())
            if any(file.get_slice(name).get_dtype() != "F32" for name in names):
                raise damaged
            return header, {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, KeyError, ValueError, RecursionError) as error:
        raise damaged from error


def _check_format(path: Path, header: dict[str, Any]) -> None:
    """Check the format version. Format 2 added guards, which versions of aspc that know only format 1 would ignore."""
    found, kind = header.get("format"), header.get("kind")
    if isinstance(found, int) and found > FORMAT_VERSION:
        raise AspcError(
            f"{path} was written by a newer version of aspc (format {found}; this version reads {FORMAT_VERSION}). "
            "Update aspc."
        )
    if found not in (UNGUARDED_FORMAT, FORMAT_VERSION) or not isinstance(kind, str) or kind not in KINDS:
        raise AspcError(
            f"{path} has format {found!r} and kind {kind!r}, which this version does not support. "
            "Save the policy again with aspc train."
        )
