"""Plugins: Python files of the user (`--plugin`) that register algorithms or suites."""

from __future__ import annotations

import ast
import hashlib
import sys
import traceback
from collections.abc import Mapping
from importlib import util
from pathlib import Path
from typing import NamedTuple

from aspc import algorithms
from aspc.errors import AspcError, first_line, missing_module

MODULE = "aspc_plugin"


class Plugin(NamedTuple):
    """A loaded plugin."""

    path: str
    fingerprint: str
    """A hash of its code and of the modules in its folder that it imports, without comments."""
    algorithms: frozenset[str]
    """Names of the algorithms that it registered."""


_loaded: Plugin | None = None


def loaded() -> Plugin | None:
    """Return the plugin of this process."""
    return _loaded


def load_plugin(path: str | Path) -> None:
    """Run a plugin. It can import the modules in its folder.

    Raises:
        AspcError: If the file does not exist or fails.
    """
    global _loaded
    file = Path(path).absolute()
    spec = util.spec_from_file_location(MODULE, file) if file.is_file() else None
    if spec is None or spec.loader is None:
        raise AspcError(f"There is no plugin at {path}; pass the path of a Python file.")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # last, so that it shadows no other module
    known, imported = set(algorithms.names()), set(sys.modules)
    # In sys.modules, since the help page looks up the sources of its classes.
    module = sys.modules[MODULE] = util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except AspcError:
        raise
    except Exception as error:  # a boundary: user code can raise anything
        raise AspcError(_describe_error(file, error)) from error
    new = [Path(getattr(sys.modules[name], "__file__", None) or "") for name in set(sys.modules) - imported]
    sources = sorted({file, *(source for source in new if source.parent == file.parent and source.suffix == ".py")})
    _loaded = Plugin(str(file), _fingerprint(sources), frozenset(algorithms.names()) - known)


def has_changed(algo: str, versions: Mapping[str, str | None]) -> bool:
    """Return whether an algorithm comes from the plugin, and the recorded `versions` have another fingerprint of it."""
    recorded = versions.get("plugin")
    return _loaded is not None and algo in _loaded.algorithms and recorded not in (None, _loaded.fingerprint)


def load_plugins(values: list[str]) -> None:
    """Load the file passed with `--plugin`, if any."""
    if len(values) > 1:
        raise AspcError("--plugin takes one file. Import the others in it; they can be in the same folder.")
    for value in values:
        load_plugin(value)


def _describe_error(file: Path, error: Exception) -> str:
    """Return a message about an error in a plugin or in a module of its folder, with the line."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).parent == file.parent]
    source, line = (frames[-1].filename, frames[-1].lineno) if frames else (str(file), None)
    message = first_line(error)
    if isinstance(error, SyntaxError) and error.filename:  # its line is not in the traceback
        source, line, message = error.filename, error.lineno, error.msg
    location = source if line is None else f"{source}, line {line}"
    if module := missing_module(error):
        return f"{location}: there is no module {module}. Install it, or put its file next to the plugin."
    return f"{location}: {type(error).__name__}: {message}. Fix the plugin."


def _fingerprint(sources: list[Path]) -> str:
    code = "\n".join(ast.dump(ast.parse(source.read_bytes())) for source in sources)
    return hashlib.sha256(code.encode()).hexdigest()[:16]
