"""Run the blocks of one page in order, as a reader would: python doc_child.py BLOCKS.json RESULTS.jsonl

Each shell block has its own shell; Python blocks share one interpreter. Stops at the first block that fails.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any


def run_shell(code: str) -> tuple[str, str | None]:
    """Return the output of a script, and its error if it failed."""
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], capture_output=True, text=True, check=False)
    return done.stdout, None if done.returncode == 0 else f"exit code {done.returncode}\n{done.stdout}{done.stderr}"


def run_python(code: str, namespace: dict[str, Any]) -> tuple[str, str | None]:
    """Return the output of a block, and its error if it failed."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "<block>", "exec"), namespace)
    except BaseException:
        return printed.getvalue(), printed.getvalue() + traceback.format_exc()
    return printed.getvalue(), None


def run_block(block: dict[str, Any], namespace: dict[str, Any]) -> tuple[str, str | None]:
    if block["setup"]:
        printed, error = run_shell(block["setup"])
        if error:
            return printed, f"setup failed: {error}"
    if block["file"]:
        Path(block["file"]).write_text(block["code"])
        return "", None
    return run_python(block["code"], namespace) if block["language"] == "python" else run_shell(block["code"])


def main(blocks_file: str, results_file: str) -> None:
    sys.path[0] = ""  # import modules from the page's folder, as at a prompt
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with open(results_file, "w") as results:
        for block in json.loads(Path(blocks_file).read_text()):
            began = time.monotonic()
            printed, error = run_block(block, namespace)
            seconds = round(time.monotonic() - began, 1)
            line = {"location": block["location"], "seconds": seconds, "printed": printed, "error": error}
            results.write(json.dumps(line) + "\n")
            results.flush()
            if error:
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
