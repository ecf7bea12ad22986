"""Every code block of the documents is run, in a scratch folder with an empty home, as a newcomer would."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from doc_pages import REPOSITORY, Block, PageError, blocks_of, name_of, pages

CHILD = Path(__file__).with_name("doc_child.py")
PAGES = {name_of(page): page.read_text() for page in pages()}
PATIENCE = {False: 400, True: 3600}  # seconds a page, without and with its slow blocks; the machine may be busy


class Failed(Exception):
    """A block that did not do what its page says."""


def to_run(blocks: list[Block], slow: bool) -> list[Block]:
    return [block for block in blocks if block.is_run and (slow or "slow" not in block.notes)]


def run_page(page: list[Block], slow: bool, scratch: Path, caches: Path) -> list[tuple[str, float]]:
    """Run the blocks of a page in order; gives the seconds that each took."""
    blocks = to_run(page, slow)
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
        # What pages make for themselves but share, so that it is made once: programs, mazes, a list of fonts.
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
        said, _ = child.communicate(timeout=PATIENCE[slow])
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{blocks[0].page} took more than {PATIENCE[slow]} s.") from error
    finally:
        if child.poll() is None:  # with all that it has started
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    done = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    for line in done:
        if line["error"]:
            raise Failed(f"{line['place']}: {line['error']}\n{said}")
    if len(done) != len(blocks):
        raise Failed(f"{blocks[len(done)].place} ended the interpreter.\n{said}")
    _check_outputs(page, {line["place"]: line["printed"] for line in done})
    return [(line["place"], line["seconds"]) for line in done]


def _plain(block: Block) -> dict[str, str]:
    return {
        "place": block.place,
        "language": block.language,
        "code": block.commands(),
        "setup": block.notes.get("setup", ""),
        "file": block.notes.get("file", ""),
    }


def _check_outputs(page: list[Block], printed: dict[str, str]) -> None:
    """A text that says it is the output of the block before it is that."""
    for before, shown in pairwise(page):
        if "output" in shown.notes and before.place in printed and not same_text(shown.code, printed[before.place]):
            raise Failed(f"{shown.place} is not what was printed, which is:\n{printed[before.place]}")


def same_text(shown: str, printed: str) -> bool:
    """Equal line by line, blanks at the ends left out; a line … stands for any lines."""
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


def readable(page: str) -> list[Block]:
    """The blocks of a page; none where it cannot be understood, which is a test of its own."""
    try:
        return blocks_of(page, PAGES[page])
    except PageError:
        return []


QUICK = [page for page in PAGES if to_run(readable(page), slow=False)]
SLOW = [page for page in PAGES if any("slow" in block.notes for block in to_run(readable(page), slow=True))]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_understood(page: str) -> None:
    blocks_of(page, PAGES[page])


@pytest.mark.parametrize("page", QUICK)
def test_blocks_run(page: str, tmp_path: Path, caches: Path, record_property) -> None:
    record_property("seconds", run_page(blocks_of(page, PAGES[page]), False, tmp_path, caches))


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW)
def test_all_blocks_run(page: str, tmp_path: Path, caches: Path, record_property) -> None:
    record_property("seconds", run_page(blocks_of(page, PAGES[page]), True, tmp_path, caches))


def test_what_is_not_run_is_said_and_rare() -> None:
    blocks = [block for page in PAGES for block in readable(page) if block.language != "text"]
    not_run = [f"{block.place}: {block.notes['not run']}" for block in blocks if not block.is_run]
    print("\n".join(not_run))
    assert len(not_run) <= len(blocks) / 4, not_run


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("```\naspc train\n```", "the language ''"),
        ("    aspc train\n", "indented"),
        ("<!-- not run: I do not like it -->\n```sh\naspc train\n```", "none of"),
        ("<!-- not run: needs a GPU -->\n\nSome words.", "stands before no block"),
        ("<!-- shortened: 20 → 2 -->\n```sh\naspc train\n```", "does not have it"),
        ("<!-- output -->\n```text\n1\n```", "is no output"),
        ("<!-- slow -->\n```text\n1\n```", "for something that is run"),
    ],
)
def test_a_block_that_cannot_be_understood_is_an_error(text: str, wrong: str) -> None:
    with pytest.raises(PageError, match=re.escape(wrong)):
        blocks_of("page.md", text)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("```sh\nfalse\ntrue\n```", "page.md:1: exit code 1"),
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```", "page.md:5: "),
        ("```python\nimport os; os._exit(0)\n```", "ended the interpreter"),
        ("<!-- setup: cat nothing -->\n```sh\ntrue\n```", "its setup"),
        ("```sh\necho 1\n```\n\n<!-- output -->\n```text\n2\n```", "is not what was printed"),
    ],
)
def test_a_block_that_fails_is_found(text: str, wrong: str, tmp_path: Path, caches: Path) -> None:
    with pytest.raises(Failed, match=re.escape(wrong)):
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
what it prints is not run
```

```python
assert x == 20
```
"""
    ran = run_page(blocks_of("page.md", text), False, tmp_path, caches)
    assert [place for place, _ in ran] == [f"page.md:{line}" for line in (3, 9, 20, 25, 30)]
