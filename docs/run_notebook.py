"""Run the cells of a notebook and store what they print and draw.

    python docs/run_notebook.py examples/first_policy.ipynb

Needs neither Jupyter nor IPython. Cells run in order, in one interpreter and in an empty folder.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

PICTURE_DPI = 60


def run_cells(cells: list[dict[str, Any]], edit: Callable[[str], str] = str) -> list[list[dict[str, Any]]]:
    """Run the code cells in the current folder and return the outputs of each, in Jupyter's format.

    Args:
        cells: The cells of a notebook.
        edit: Changes the source of a cell before it runs, for example to train fewer steps.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    outputs = []
    for cell in cells:
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(edit("".join(cell["source"])), "<cell>", "exec"), namespace)
            outputs.append([*_text(printed.getvalue()), *_pictures()])
    return outputs


def _text(printed: str) -> list[dict[str, Any]]:
    return [{"output_type": "stream", "name": "stdout", "text": printed.splitlines(keepends=True)}] if printed else []


def _pictures() -> list[dict[str, Any]]:
    """Return the open figures as PNG and close them, as Jupyter does after a cell."""
    import matplotlib.pyplot as plt

    found = []
    for number in plt.get_fignums():
        file = io.BytesIO()
        plt.figure(number).savefig(file, format="png", dpi=PICTURE_DPI)
        data = {"image/png": base64.b64encode(file.getvalue()).decode(), "text/plain": ["<Figure>"]}
        found.append({"output_type": "display_data", "data": data, "metadata": {}})
    plt.close("all")
    return found


def main(argv: list[str] | None = None) -> int:
    import matplotlib

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebook", type=Path, help="notebook to run and update")
    path = parser.parse_args(argv).notebook.resolve()
    matplotlib.use("Agg")
    notebook = json.loads(path.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        outputs = iter(run_cells(notebook["cells"]))
        os.chdir(path.parent)
    for count, cell in enumerate((cell for cell in notebook["cells"] if cell["cell_type"] == "code"), 1):
        cell |= {"execution_count": count, "outputs": next(outputs)}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
