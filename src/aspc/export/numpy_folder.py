"""Export a policy as a folder with weights and one Python module: `numpy_policy.py` with `policy_kinds.py` inlined."""

from __future__ import annotations

import ast
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

import aspc.policy_kinds
from aspc.policy import VECTORS, Policy

TEMPLATE = Path(__file__).with_name("numpy_policy.py")


def numpy_files(policy: Policy, metadata: dict[str, Any]) -> dict[str, bytes]:
    """Return the contents of `policy.py` and `weights.npz`."""
    header = {"kind": policy.kind, "settings": policy.settings, "metadata": metadata}
    buffer = io.BytesIO()
    np.savez(
        buffer,
        allow_pickle=False,
        header=np.frombuffer(json.dumps(header).encode(), np.uint8),
        **{name: getattr(policy, name) for name in VECTORS},
        **{f"arrays.{name}": array for name, array in policy.arrays.items()},
    )
    return {"policy.py": render_module().encode(), "weights.npz": buffer.getvalue()}


def render_module() -> str:
    """Return the source of the template with its import of `policy_kinds` replaced by that module's source."""
    assert aspc.policy_kinds.__file__ is not None
    kinds = Path(aspc.policy_kinds.__file__).read_text()
    template = TEMPLATE.read_text()
    (statement,) = [line for line in template.splitlines() if line.startswith("from aspc.policy_kinds import")]
    return template.replace(statement, strip_preamble(kinds))


def strip_preamble(source: str) -> str:
    """Return a module's source from its first import on, without `from __future__`, which must be at the top."""
    tree = ast.parse(source)
    first = next(
        node
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", "") != "__future__"
    )
    return "\n".join(source.splitlines()[first.lineno - 1 :])
