"""Every code block of the documents runs in an empty folder with an empty home."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from doc_pages import REPOSITORY, Block, PageError, blocks_of, name_of, pages

CHILD = Path(__file__).with_name("doc_child.py")
PAGES = {name_of(page): page.read_text() for page in pages()}
TIMEOUT_SECONDS = {False: 400, True: 3600}  # per page, without and with its slow blocks; the machine can be busy


class BlockFailure(Exception):
    """A block that failed, or whose output differs from its page."""


def blocks_to_run(blocks: list[Block], slow: bool) -> list[Block]:
    return [block for block in blocks if block.is_run and (slow or "slow" not in block.notes)]


def run_page(page: list[Block], slow: bool, scratch: Path, caches: Path) -> list[tuple[str, float]]:
    """Run the blocks of a page in order and return the seconds of each."""
    blocks = blocks_to_run(page, slow)
    work, home = scratch / "work", scratch / "home"
    work.mkdir()
    home.mkdir()
    plan = scratch / "blocks.json"
    plan.write_text(json.dumps([_plain(block) for block in blocks]))
    results = scratch / "results.jsonl"
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "COLUMNS": "110",
        "REPO": str(REPOSITORY),
        "JAX_PLATFORMS": "cpu",
        # Faster compilation, as in every test
        "XLA_FLAGS": os.environ["XLA_FLAGS"],
        "OPENBLAS_NUM_THREADS": "1",
        # Shared between pages: compiled programs, generated mazes, a list of fonts.
        "ASPC_COMPILATION_CACHE": os.environ["ASPC_COMPILATION_CACHE"],
        "ASPC_DATA": str(caches / "data"),
        "MPLCONFIGDIR": str(caches / "matplotlib"),
    }
    child = subprocess.Popen(
        [sys.executable, str(CHILD), str(plan), str(results)],
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = child.communicate(timeout=TIMEOUT_SECONDS[slow])
    except subprocess.TimeoutExpired as error:
        raise BlockFailure(f"{blocks[0].page} took more than {TIMEOUT_SECONDS[slow]} s.") from error
    finally:
        if child.poll() is None:  # including its children
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    done = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    for line in done:
        if line["error"]:
            raise BlockFailure(f"{line['location']}: {line['error']}\n{output}")
    if len(done) != len(blocks):
        raise BlockFailure(f"{blocks[len(done)].location} ended the interpreter.\n{output}")
    _check_outputs(page, {line["location"]: line["printed"] for line in done})
    return [(line["location"], line["seconds"]) for line in done]


def _plain(block: Block) -> dict[str, str]:
    return {
        "location": block.location,
        "language": block.language,
        "code": block.commands(),
        "setup": block.notes.get("setup", ""),
        "file": block.notes.get("file", ""),
    }


def _check_outputs(page: list[Block], printed: dict[str, str]) -> None:
    """Compare output blocks with the output of the block before them."""
    for before, shown in pairwise(page):
        if "output" in shown.notes and before.location in printed:
            actual = printed[before.location]
            if not same_text(shown.code, actual):
                raise BlockFailure(f"{shown.location} differs from the output:\n{actual}")


def same_text(shown: str, printed: str) -> bool:
    """Compare texts line by line without surrounding blanks; a line … matches any lines."""
    pattern = "".join(r"(.*\n)*" if line.strip() == "…" else re.escape(line.strip()) + r"\n" for line in _lines(shown))
    return re.fullmatch(pattern, "".join(f"{line.strip()}\n" for line in _lines(printed))) is not None


def _lines(text: str) -> list[str]:
    return text.strip().splitlines()


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "documents"
    folder.mkdir(exist_ok=True)
    return folder


def valid_blocks(page: str) -> list[Block]:
    """Return the blocks of a page, or none if one is invalid, which another test reports."""
    try:
        return blocks_of(page, PAGES[page])
    except PageError:
        return []


QUICK = [page for page in PAGES if blocks_to_run(valid_blocks(page), slow=False)]
SLOW = [page for page in PAGES if any("slow" in block.notes for block in blocks_to_run(valid_blocks(page), slow=True))]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_valid(page: str) -> None:
    blocks_of(page, PAGES[page])


@pytest.mark.parametrize("page", QUICK)
def test_blocks_run(page: str, tmp_path: Path, caches: Path, record_property: Callable[[str, object], None]) -> None:
    record_property("seconds", run_page(blocks_of(page, PAGES[page]), False, tmp_path, caches))


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW)
def test_all_blocks_run(
    page: str, tmp_path: Path, caches: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("seconds", run_page(blocks_of(page, PAGES[page]), True, tmp_path, caches))


def test_few_blocks_are_not_run() -> None:
    blocks = [block for page in PAGES for block in valid_blocks(page) if block.language != "text"]
    not_run = [f"{block.location}: {block.notes['not run']}" for block in blocks if not block.is_run]
    print("\n".join(not_run))
    assert len(not_run) <= len(blocks) / 4, not_run


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```\naspc train\n```", "invalid language ''"),
        ("    aspc train\n", "indented"),
        ("<!-- not run: I do not like it -->\n```sh\naspc train\n```", "invalid reason"),
        ("<!-- not run: needs a GPU -->\n\nSome words.", "no block follows"),
        ("<!-- shortened: 20 → 2 -->\n```sh\naspc train\n```", "not in the block"),
        ("<!-- output -->\n```text\n1\n```", "is not an output"),
        ("<!-- slow -->\n```text\n1\n```", "for a block that runs"),
    ],
)
def test_invalid_blocks_are_errors(text: str, message: str) -> None:
    with pytest.raises(PageError, match=re.escape(message)):
        blocks_of("page.md", text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```sh\nfalse\ntrue\n```", "page.md:1: exit code 1"),
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```", "page.md:5: "),
        ("```python\nimport os; os._exit(0)\n```", "ended the interpreter"),
        ("<!-- setup: cat nothing -->\n```sh\ntrue\n```", "setup failed"),
        ("```sh\necho 1\n```\n\n<!-- output -->\n```text\n2\n```", "differs from the output"),
    ],
)
def test_failing_blocks_are_reported(text: str, message: str, tmp_path: Path, caches: Path) -> None:
    with pytest.raises(BlockFailure, match=re.escape(message)):
        run_page(blocks_of("page.md", text), False, tmp_path, caches)


def test_blocks_share_a_folder_and_an_interpreter(tmp_path: Path, caches: Path) -> None:
    text = """
<!-- file: own.py -->
```python
x = 20
```

<!-- setup: echo 1 > one.txt -->
<!-- shortened: 1000 → 3 -->
```sh
cat one.txt own.py; seq 1000
```

<!-- output -->
```text
1
…
3
```

```python
from own import x
import os
```

```console
$ test -z "$(ls "$HOME")"
its output is not run
```

```python
assert x == 20
```
"""
    ran = run_page(blocks_of("page.md", text), False, tmp_path, caches)
    assert [location for location, _ in ran] == [f"page.md:{line}" for line in (3, 9, 20, 25, 30)]
