"""User-supplied Python files: plugins (`--plugin`) that register algorithms or suites, and callbacks (`--callback`)."""

from __future__ import annotations

import ast
import hashlib
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from aspc import algorithms
from aspc.algorithms.component_names import registered_components
from aspc.errors import AspcError, first_line, missing_module
from aspc.training.callbacks import Callback

MODULE, CALLBACK_MODULE = "aspc_plugin", "aspc_callback"


class Plugin(NamedTuple):
    """A loaded plugin."""

    path: str
    fingerprint: str
    """A hash of the plugin's code and of the modules that it imports from its folder, ignoring comments."""
    algorithms: frozenset[str]
    """Names of the algorithms that it registered."""
    components: frozenset[str] = frozenset()
    """Names of the networks and optimizers that it registered."""


_loaded: Plugin | None = None


def loaded() -> Plugin | None:
    """Return the plugin loaded in this process, or None."""
    return _loaded


def load_plugin(path: str | Path) -> None:
    """Run a plugin. It can import the modules in its folder.

    Raises:
        AspcError: If the file does not exist or fails.
    """
    global _loaded
    file = Path(path).absolute()
    known, imported = (set(algorithms.names()), registered_components()), set(sys.modules)
    _run_file(path, MODULE, "plugin")
    new = [Path(getattr(sys.modules[name], "__file__", None) or "") for name in set(sys.modules) - imported]
    sources = sorted({file, *(source for source in new if source.parent == file.parent and source.suffix == ".py")})
    new_names = frozenset(algorithms.names()) - known[0], registered_components() - known[1]
    _loaded = Plugin(str(file), _fingerprint(sources), *new_names)


def load_callbacks(paths: Sequence[str | Path]) -> list[Callback]:
    """Run files (`--callback`), and create one instance of each subclass of `Callback` that they define.

    Imported classes and classes whose names start with an underscore are ignored.

    Raises:
        AspcError: If a file does not exist, fails or defines no such class, or if a class needs arguments.
    """
    found: list[Callback] = []
    for number, path in enumerate(paths):
        module = _run_file(path, f"{CALLBACK_MODULE}_{number}", "callback")
        classes = [
            kind
            for name, kind in vars(module).items()
            if isinstance(kind, type) and issubclass(kind, Callback) and not name.startswith("_")
            if kind.__module__ == module.__name__
        ]
        if not classes:
            raise AspcError(f"{path} defines no callback. Add a subclass of aspc.Callback.")
        for kind in classes:
            try:
                found.append(kind())
            except Exception as error:  # user code can raise any exception
                raise AspcError(
                    f"{path}: {kind.__name__}() failed: {type(error).__name__}: {first_line(error)}. It is called "
                    f"without arguments, so give its parameters default values."
                ) from error
    return found


def _run_file(path: str | Path, name: str, purpose: str) -> ModuleType:
    """Run a Python file as the module `name`. It can import the modules in its folder."""
    file = Path(path).absolute()
    spec = util.spec_from_file_location(name, file) if file.is_file() else None
    if spec is None or spec.loader is None:
        raise AspcError(f"There is no {purpose} at {path}; pass the path of a Python file.")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # last, so that it shadows no other module
    # Add the module to sys.modules, since the help page looks up the sources of its classes.
    module = sys.modules[name] = util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except AspcError:
        raise
    except Exception as error:  # user code can raise any exception
        raise AspcError(_describe_error(file, error, purpose)) from error
    return module


def has_changed(algo: str, versions: Mapping[str, str | None]) -> bool:
    """Return whether a run uses the plugin but recorded another fingerprint of it in `versions`."""
    recorded = versions.get("plugin")
    if _loaded is None or recorded in (None, _loaded.fingerprint):
        return False
    return algo in _loaded.algorithms or bool(_loaded.components)


def load_plugins(values: list[str]) -> None:
    """Load the file passed with `--plugin`, if any."""
    if len(values) > 1:
        raise AspcError("--plugin takes one file, which can import other files from its folder.")
    for value in values:
        load_plugin(value)


def _describe_error(file: Path, error: Exception, purpose: str) -> str:
    """Return a message about an error in a file or in a module of its folder, with the line number."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).parent == file.parent]
    source, line = (frames[-1].filename, frames[-1].lineno) if frames else (str(file), None)
    message = first_line(error)
    if isinstance(error, SyntaxError) and error.filename:  # its line is not in the traceback
        source, line, message = error.filename, error.lineno, error.msg
    location = source if line is None else f"{source}, line {line}"
    if module := missing_module(error):
        return f"{location}: there is no module {module}. Install it, or put its file next to the {purpose}."
    return f"{location}: {type(error).__name__}: {message}. Fix the {purpose}."


def _fingerprint(sources: list[Path]) -> str:
    code = "\n".join(ast.dump(ast.parse(source.read_bytes())) for source in sources)
    return hashlib.sha256(code.encode()).hexdigest()[:16]
