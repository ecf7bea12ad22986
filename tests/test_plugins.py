"""Plugins: imports, fingerprints and error messages; mistakes in user-defined suites."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import registries
from aspc import algorithms, plugins
from aspc.__main__ import main
from aspc.errors import AspcError
from aspc.lab import suites
from aspc.lab.bench_folder import bench_lock
from aspc.lab.group_training import capture_failure
from aspc.lab.plan import make_plan
from aspc.lab.recorded_runs import RecordedRun, code_change_warning
from aspc.lab.suites import Block, Suite, Variant
from aspc.training.run_config import software_facts

MAZE = "maze2d-umaze?steps=2000"
MODULE = """
from aspc.algorithms import register
from aspc.algorithms.bc import BC


def broken():
    return [][1]


register("mine")(BC)
"""
PLUGIN = """
import {module}  # noqa
from aspc.lab.suites import Block, Suite, Variant, register

register(Suite("own", "mine", "tests", (Block((Variant("mine", "mine"), Variant("BC", "bc")), ("{maze}",), 500, 1),)))
"""


@pytest.fixture
def plugin(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A plugin with a suite that imports a module with an algorithm, whose name is unique to the test."""
    module = f"plugin_module_{abs(hash(request.node.name))}"
    (tmp_path / f"{module}.py").write_text(MODULE)
    path = tmp_path / "suite.py"
    path.write_text(PLUGIN.format(module=module, maze=MAZE))
    with registries.restored():
        yield path
    sys.modules.pop(module, None)


def fingerprint(path: Path) -> str:
    """Return the fingerprint in a new process."""
    with registries.restored():
        imported = set(sys.modules)
        plugins.load_plugin(path)
        found = plugins.loaded()
        for name in set(sys.modules) - imported:
            if name.startswith("plugin_module_"):
                del sys.modules[name]
    assert found is not None
    return found.fingerprint


def test_plugin_imports_modules_of_its_folder(plugin: Path) -> None:
    plugins.load_plugin(plugin)
    assert "mine" in algorithms.names()
    assert "own" in suites.names()
    found = plugins.loaded()
    assert found is not None
    assert found.algorithms == {"mine"}
    assert software_facts().versions["plugin"] == found.fingerprint


def test_fingerprint_ignores_comments(plugin: Path) -> None:
    (module,) = plugin.parent.glob("plugin_module_*.py")
    first = fingerprint(plugin)
    plugin.write_text(plugin.read_text() + "\n# a remark\n")
    assert fingerprint(plugin) == first
    module.write_text(module.read_text().replace("[1]", "[2]"))
    assert fingerprint(plugin) != first  # imported modules count


def test_fingerprint_ignores_other_files(plugin: Path) -> None:
    first = fingerprint(plugin)
    (plugin.parent / "module_it.so").write_bytes(b"\x7fELF\0")
    text = "import sys, types\nm = sys.modules['module_it'] = types.ModuleType('module_it')\n"
    plugin.write_text(plugin.read_text() + text + f"m.__file__ = {str(plugin.parent / 'module_it.so')!r}\n")
    assert fingerprint(plugin) not in ("", first)


def test_finished_runs_of_changed_code_are_reported(plugin: Path) -> None:
    plugins.load_plugin(plugin)
    plan = make_plan([suites.get("own")])
    now = software_facts().versions["plugin"]
    for trained_with, message in (
        ({"plugin": now}, ""),
        ({}, ""),
        ({"plugin": "other"}, "warning: 1 finished run of mine"),
    ):
        settled = {run_id: RecordedRun("done", None, None, versions=json.dumps(trained_with)) for run_id in plan.runs}
        assert code_change_warning(plan, settled).startswith(message)
        assert bool(code_change_warning(plan, settled)) == bool(message)
    assert plugins.has_changed("mine", {"plugin": "other"})
    assert not plugins.has_changed("bc", {"plugin": "other"})  # not the plugin's


def test_error_in_a_plugin_names_its_line(plugin: Path) -> None:
    plugins.load_plugin(plugin)
    (module,) = (module for name, module in sys.modules.items() if name.startswith("plugin_module_"))
    message = capture_failure(module.broken)
    assert message == f"IndexError: list index out of range ({Path(module.__file__).name}, line 7, in broken)"


def test_plugin_must_be_one_existing_file(plugin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twice = ["bench", "own", "--plugin", str(plugin), f"--plugin={plugin}", "--dry-run"]
    assert main(twice) == 2
    assert "takes one file, which can import other files" in capsys.readouterr().err
    for command in ("inspect", "fqe", "finetune"):
        assert main([command, "run", "--plugin", str(plugin), "--plugin", str(plugin)]) == 2
        assert "takes one file, which can import other files" in capsys.readouterr().err
    assert main(["bench", "own", "--plugin", "nowhere.py"]) == 2
    assert "There is no plugin at nowhere.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys\n\ndef broken(:\n", "{file}, line 3: SyntaxError: invalid syntax. Fix the plugin."),
        (
            "\nimport no_such_module.inner\n",
            "{file}, line 2: there is no module no_such_module. Install it, or put its file next to the plugin.",
        ),
        ("from aspc.errors import Nothing\n", "{file}, line 1: ImportError: cannot import name 'Nothing'"),
        (
            "def f():\n    return [][1]\n\nf()\n",
            "{file}, line 2: IndexError: list index out of range. Fix the plugin.",
        ),
    ],
)
def test_failing_plugin_gives_one_sentence_with_the_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    with registries.restored():
        assert main(["train", MAZE, "--plugin", str(file)]) == 2
    out = capsys.readouterr().err
    assert out.startswith(f"aspc: {message.format(file=file)}")
    assert out.count("\n") == 1


def test_error_in_an_imported_module_names_that_file(plugin: Path) -> None:
    (module,) = plugin.parent.glob("plugin_module_*.py")
    module.write_text("import jax\nx = (\n")
    with pytest.raises(AspcError, match=rf"{module.name}, line 2: SyntaxError: '\(' was never closed"):
        plugins.load_plugin(plugin)


ALGORITHM = """
from dataclasses import dataclass

import jax.numpy as jnp

from aspc.algorithms import register
from aspc.algorithms.bc import BC


@register("mine")
@dataclass(frozen=True)
class Mine(BC):
    {change}
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("policy = None", "The algorithm mine has no method policy; add it to its class, Mine."),
        ("schedule = None", "The algorithm mine has no method schedule; add it to its class, Mine."),
        (
            "def policy(self, state): return state.no_such_part",
            "policy() of the algorithm mine fails for the initial state: AttributeError: 'BCState' object has no "
            "attribute 'no_such_part', mine.py, line 13.",
        ),
        (
            "def policy(self, state): return state",
            "policy() of the algorithm mine returns a BCState; it must return a PolicyExport.",
        ),
        (
            "def policy(self, state): return super().policy(state)._replace(kind='flwo')",
            "Unknown policy kind 'flwo' returned by the algorithm mine; did you mean flow?",
        ),
        (
            "def policy(self, state): return super().policy(state)._replace(arrays={})",
            "policy() of the algorithm mine returns arrays or settings that do not form a deterministic policy for "
            "observations of size 4 and actions of size 2. Compare them with those of "
            "aspc.algorithms.td_learning.deterministic_policy.",
        ),
        (
            "def update(self, *given): return super().update(*given)[0], {'off': jnp.ones(3)}",
            "Metric off of algorithm mine has shape (3,); make it a scalar, for example with .mean().",
        ),
        (
            "def update(self, *given): return super().update(*given)[0]",
            "update() of the algorithm mine must return the next state and a dictionary of metrics.",
        ),
    ],
)
def test_invalid_algorithm_is_refused_before_the_first_step(
    change: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "mine.py", tmp_path / "out"
    file.write_text(ALGORITHM.format(change=change))
    with registries.restored():
        wanted = ["train", MAZE, "--plugin", str(file), "--algo", "mine", "--steps", "50", "--out", str(out)]
        assert main(wanted) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"aspc: {message}"
    assert not (out / "config.json").exists()  # so that the command can be repeated


BC = Variant("a", "bc")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"variants": BC}, "must be a tuple"),
        ({"datasets": MAZE}, "must be a tuple"),
        ({"seeds": (0, 1)}, "seeds must be a whole number"),
        ({"steps": 1e4}, "steps must be a whole number"),
        ({"steps": 0}, "at least 1"),
        ({"options": {"eval_evry": 5}}, "did you mean eval_every"),
    ],
)
def test_invalid_blocks_of_a_suite(wrong: dict, message: str) -> None:
    with pytest.raises(AspcError, match=message):
        Block(**{"variants": (BC,), "datasets": (MAZE,), **wrong})


def test_variants_of_a_dataset_need_different_labels() -> None:
    other = Variant("a", "bc", {"actor_lr": 1e-2})
    with pytest.raises(AspcError, match="Duplicate label 'a'"):
        Suite("own", "", "", (Block((BC, other), (MAZE,)),))
    with pytest.raises(AspcError, match="Duplicate label 'a'"):
        Suite("own", "", "", (Block((BC,), (MAZE,)), Block((other,), (MAZE,))))
    Suite("own", "", "", (Block((BC,), (MAZE,)), Block((other,), ("maze2d-large",)), Block((BC,), (MAZE,), 500)))


def test_misspelt_dataset_of_a_suite_suggests_the_nearest() -> None:
    suite = Suite("own", "", "", (Block((BC,), ("maze2d-umzae",)),))
    with pytest.raises(AspcError, match="Similar known names: maze2d-umaze"):
        make_plan([suite])


def test_bench_folder_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(AspcError, match="contains a run of `aspc train`"), bench_lock(tmp_path):
        pass
