"""Export a policy as a folder with weights and one Python module.

The module is `numpy_policy.py` with the sources of `policy_kinds.py` and `policy_programs.py` inlined.
"""

from __future__ import annotations

import ast
import io
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

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
    """Return the source of the template, with the modules that it imports from this library inlined."""
    return _inline(TEMPLATE.read_text(), set())


def _inline(source: str, inlined: set[str]) -> str:
    """Replace each import from this library, which must be a single line, with the module's source, once per module."""
    lines = source.splitlines()
    for i, line in enumerate(lines):
        if line.startswith("from aspc."):
            name = line.split()[1].removeprefix("aspc.")
            is_new = name not in inlined
            inlined.add(name)
            lines[i] = (
                strip_preamble(_inline(files("aspc").joinpath(f"{name}.py").read_text(), inlined)) if is_new else ""
            )
    return "\n".join(lines) + "\n"


def strip_preamble(source: str) -> str:
    """Return a module's source without its docstring and its `from __future__` import, which must be at the top."""
    tree = ast.parse(source)
    first = next(
        node
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", "") != "__future__"
    )
    return "\n".join(source.splitlines()[first.lineno - 1 :])
