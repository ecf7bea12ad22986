"""A Python file of the user's own (`--plugin`), which registers algorithms or suites."""

from __future__ import annotations

import ast
import hashlib
import sys
import traceback
from collections.abc import Mapping
from importlib import util
from pathlib import Path
from typing import NamedTuple

from aspc.errors import AspcError, first_line, missing_module

MODULE = "aspc_plugin"


class Plugin(NamedTuple):
    """A file that was loaded."""

    path: str
    fingerprint: str
    """A hash of what its code says, that of the modules beside it which it imports included; comments do not count."""
    algorithms: frozenset[str]
    """What it has registered."""


_loaded: Plugin | None = None


def loaded() -> Plugin | None:
    return _loaded


def load_plugin(path: str | Path) -> None:
    """Run the file. What lies beside it can be imported in it."""
    from aspc import algorithms  # here, since what trains says which plugin it trained with and imports none of them

    global _loaded
    file = Path(path).absolute()
    spec = util.spec_from_file_location(MODULE, file) if file.is_file() else None
    if spec is None or spec.loader is None:
        raise AspcError(f"There is no plugin at {path}; give the path of a Python file.")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # last: it hides no module of the same name
    known, imported = set(algorithms.names()), set(sys.modules)
    # A module that can be found: the help page looks up its classes' sources.
    module = sys.modules[MODULE] = util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except AspcError:
        raise
    except Exception as error:  # a boundary: it is the user's code
        raise AspcError(_what_is_wrong(file, error)) from error
    new = [Path(getattr(sys.modules[name], "__file__", None) or "") for name in set(sys.modules) - imported]
    sources = sorted({file, *(source for source in new if source.parent == file.parent and source.suffix == ".py")})
    _loaded = Plugin(str(file), _fingerprint(sources), frozenset(algorithms.names()) - known)


def differs(algo: str, versions: Mapping[str, str | None]) -> bool:
    """Whether an algorithm is the plugin's, and something with these versions was trained with another code of it."""
    was = versions.get("plugin")
    return _loaded is not None and algo in _loaded.algorithms and was not in (None, _loaded.fingerprint)


def load_plugins(values: list[str]) -> None:
    """Load what `--plugin` was given, if anything."""
    if len(values) > 1:
        raise AspcError("--plugin takes one file; import the others in it (they may lie beside it).")
    for value in values:
        load_plugin(value)


def _what_is_wrong(file: Path, error: Exception) -> str:
    """A sentence on an error in a plugin, or in a module beside it, with the place."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).parent == file.parent]
    place, line = (frames[-1].filename, frames[-1].lineno) if frames else (str(file), None)
    said = first_line(error)
    if isinstance(error, SyntaxError) and error.filename:  # its line was never run, so the traceback does not have it
        place, line, said = error.filename, error.lineno, error.msg
    where = place if line is None else f"{place}, line {line}"
    if module := missing_module(error):
        return f"{where}: there is no module {module}; install it, or put its file beside the plugin."
    return f"{where}: {type(error).__name__}: {said}; mend the plugin."


def _fingerprint(sources: list[Path]) -> str:
    code = "\n".join(ast.dump(ast.parse(source.read_bytes())) for source in sources)
    return hashlib.sha256(code.encode()).hexdigest()[:16]
