"""The notebook in examples/ runs, and its stored outputs belong to its cells."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from doc_pages import REPOSITORY

NOTEBOOK = REPOSITORY / "examples" / "first_policy.ipynb"
CELLS: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]
# The cells in a fresh interpreter, with few steps; prints the outputs as JSON.
CHILD = """
import json, matplotlib, sys
matplotlib.use("Agg")
sys.path.insert(0, sys.argv[1])
import run_notebook
cells = json.loads(open(sys.argv[2]).read())["cells"]
print(json.dumps(run_notebook.run_cells(cells, lambda source: source.replace("STEPS = 4_000", "STEPS = 40"))))
"""


def printed(outputs: list[dict[str, Any]]) -> list[str]:
    return [line for output in outputs for line in output.get("text", ())]


def test_the_notebook_runs(tmp_path: Path) -> None:
    assert sum("STEPS = 4_000" in "".join(cell["source"]) for cell in CODE) == 1
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "HOME": str(tmp_path), "MPLCONFIGDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(REPOSITORY / "docs"), str(NOTEBOOK)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outputs = json.loads(done.stdout.splitlines()[-1])
    assert [[output["output_type"] for output in cell] for cell in outputs] == [
        [output["output_type"] for output in cell["outputs"]] for cell in CODE
    ]
    # These do not depend on the number of steps.
    for i in (0, 1):
        assert printed(outputs[i]) == printed(CODE[i]["outputs"])
    names = [line.split(":")[0] for line in printed(outputs[3])]
    assert (
        sorted(names)
        == ["aspc/seed0", "bc/seed0"]
        == sorted(line.split(":")[0] for line in printed(CODE[3]["outputs"]))
    )


def test_the_notebook_is_stored_with_outputs() -> None:
    """A viewer shows the outputs without running the cells."""
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1))
    assert all(cell["outputs"] for cell in CODE)
    pictures = [o["data"]["image/png"] for cell in CODE for o in cell["outputs"] if "data" in o]
    assert len(pictures) == 1
    assert base64.b64decode(pictures[0]).startswith(b"\x89PNG")
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)
    assert NOTEBOOK.stat().st_size < 100_000


def test_the_page_of_the_notebook_shows_code_and_outputs() -> None:
    pytest.importorskip("mkdocs", reason="the documents' tools are not installed")
    spec = importlib.util.spec_from_file_location("docs_hooks", REPOSITORY / "docs" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    page = hooks.notebook_page("examples/first_policy.ipynb", NOTEBOOK.read_text("utf-8"))
    assert page.count("```python\n") == len(CODE)
    for cell in CODE:
        assert "".join(printed(cell["outputs"])).rstrip() in page
    assert "](data:image/png;base64," in page
