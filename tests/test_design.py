"""docs/design.md names every module, and the rooms keep apart as it says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "aspc"
MATHEMATICS = ("adaptive_scale", "algorithms", "errors", "kernels", "networks", "optim", "theory")


PACKAGES = ["", *(str(p.parent.relative_to(PACKAGE)) for p in PACKAGE.rglob("__init__.py") if p.parent != PACKAGE)]


def modules_on_the_page() -> dict[str, set[str]]:
    """Return the modules per folder in the page's picture of the package ("" is the package itself)."""
    picture = (ROOT / "docs" / "design.md").read_text("utf-8").split("```")[1]
    found: dict[str, set[str]] = {}
    folder = ""
    for line in picture.splitlines()[2:]:
        if not line.startswith("   "):  # otherwise the line continues an entry
            entry = line.split()[0]
            folder = entry.removesuffix("/") if entry.endswith("/") else ""
        found.setdefault(folder, set()).update(re.findall(r"(?<![/\w])(\w+)\.py", line))
    return found


@pytest.mark.parametrize("folder", PACKAGES)
def test_the_page_names_every_module(folder: str) -> None:
    modules = {path.stem for path in (PACKAGE / folder).glob("*.py")} - {"__init__"}
    assert modules_on_the_page().get(folder, set()) == modules


def test_the_page_names_no_other_folder() -> None:
    assert set(modules_on_the_page()) <= set(PACKAGES)


def imports(path: Path) -> set[str]:
    """The modules of this package that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "aspc":
            inside = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {node.module or "", *(name for name in inside if is_module(name))}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "aspc"}
    return found - {"aspc"}


def is_module(name: str) -> bool:
    path = PACKAGE.joinpath(*name.split(".")[1:])
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


@pytest.mark.parametrize("room", [room for room in MATHEMATICS if room != "errors"])
def test_mathematics_imports_mathematics_alone(room: str) -> None:
    files = list((PACKAGE / room).glob("*.py")) or [PACKAGE / f"{room}.py"]
    for file in files:
        assert {name.split(".")[1] for name in imports(file)} <= set(MATHEMATICS), file.name


def test_nothing_outside_the_lab_imports_it() -> None:
    for file in PACKAGE.rglob("*.py"):
        if PACKAGE / "lab" not in file.parents:
            assert not [name for name in imports(file) if name.startswith("aspc.lab")], file


def test_training_knows_no_algorithm_by_name() -> None:
    for file in (PACKAGE / "training").glob("*.py"):
        named = {name for name in imports(file) if name.startswith("aspc.algorithms.")}
        assert named <= {"aspc.algorithms.interface"}, file.name


@pytest.mark.parametrize("module", ["aspc.policy", "aspc.training.rollout_worker", "aspc.cli.data", "aspc.envs"])
def test_some_modules_never_load_jax(module: str) -> None:
    script = f"import sys, {module}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
