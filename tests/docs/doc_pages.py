"""Pages of this project's documents, and the code blocks in them.

The tests run every block. Comments before the fence change that:

    <!-- not run: needs a GPU -->            skip it; the reason starts with one of `REASONS`
    <!-- slow -->                            run it only in `make test-slow`
    <!-- setup: ln -s "$REPO/examples" . --> run this shell command first
    <!-- shortened: 20000 → 20; a → b -->    replace the text left of an arrow by the text right of it
    <!-- file: my_suite.py -->               write it to this file instead of running it
    <!-- output -->                          a text block: the output of the block before it; … matches any lines

`python tests/docs/doc_pages.py` lists all blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

REPOSITORY = Path(__file__).resolve().parents[2]
SHELL, PYTHON, TEXT = frozenset({"sh", "bash", "console"}), frozenset({"python"}), frozenset({"text"})
NOTES = frozenset({"not run", "slow", "setup", "shortened", "file", "output"})
REASONS = (
    "needs a package index",
    "needs downloads",
    "needs Docker",
    "needs a GPU",
    "needs several machines",
    "needs policies that are not part of this repository",
    "takes hours",
)


class PageError(Exception):
    """An invalid block, or an invalid comment for one."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its location, its content, and the comments before it."""

    page: str
    line: int
    language: str
    code: str
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def location(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.language in SHELL | PYTHON and "not run" not in self.notes

    def commands(self) -> str:
        """Return the commands to run: in a console block the lines after a prompt, with replacements applied."""
        code = self.code
        if self.language == "console":
            code = "\n".join(line[2:] for line in code.splitlines() if line.startswith("$ "))
        for old, new in self.replacements():
            code = code.replace(old, new)
        return code

    def replacements(self) -> list[tuple[str, str]]:
        pairs = [pair.split("→") for pair in self.notes.get("shortened", "").split(";") if pair]
        return [(old.strip(), new.strip()) for old, new in pairs]


def pages() -> list[Path]:
    """Return every page, README.md first."""
    return [
        *sorted(REPOSITORY.glob("*.md"), key=lambda path: path.name != "README.md"),
        REPOSITORY / "benchmarks" / "README.md",
        *sorted((REPOSITORY / "docs").rglob("*.md")),
    ]


def name_of(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def tokens_of(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def blocks_of(page: str, text: str) -> list[Block]:
    """Return the blocks of a page in order.

    Raises:
        PageError: If a block or a comment is invalid.
    """
    found: list[Block] = []
    notes: dict[str, str] = {}
    for token in tokens_of(text):
        if token.type == "html_block":
            notes |= dict(_notes(token.content))
            continue
        line = token.map[0] + 1 if token.map else 0
        if token.type == "code_block":
            raise PageError(f"{page}:{line} is an indented block. Use a fence with a language.")
        if token.type == "fence":
            block = Block(page, line, token.info.strip(), token.content, notes)
            _check(block, found[-1] if found else None)
            found.append(block)
        elif notes:
            raise PageError(f"{page}:{line}: no block follows the comment {notes}.")
        notes = {}
    if notes:
        raise PageError(f"{page}: no block follows the comment {notes}.")
    return found


def _notes(html: str) -> Iterator[tuple[str, str]]:
    """Yield the comments for a block; other comments belong to the page."""
    for comment in re.findall(r"<!--(.*?)-->", html, re.DOTALL):
        name, _, value = comment.strip().partition(":")
        if name in NOTES:
            yield name, value.strip()


def _check(block: Block, before: Block | None) -> None:
    if block.language not in SHELL | PYTHON | TEXT:
        raise PageError(f"{block.location}: invalid language {block.language!r}; use python, sh, bash, console or text")
    reason = block.notes.get("not run")
    if reason is not None and not reason.startswith(REASONS):
        raise PageError(f"{block.location}: invalid reason {reason!r}. Start with one of {', '.join(REASONS)}.")
    for old, _ in block.replacements():
        if old not in block.code:
            raise PageError(f"{block.location}: {old!r} is shortened but not in the block.")
    if "output" in block.notes and (block.language not in TEXT or before is None or not before.is_run):
        raise PageError(f"{block.location} is not an output: it must be a text block after a block that runs.")
    if block.language in TEXT and block.notes.keys() - {"output", "not run"}:
        raise PageError(f"{block.location} is text, but its comments are for a block that runs.")


def links_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and target of every link and picture."""
    for token in tokens_of(text):
        for child in token.children or []:
            target = child.attrGet("href") or child.attrGet("src")
            if target:
                yield (token.map[0] + 1 if token.map else 0), str(target)


def anchors_of(text: str) -> set[str]:
    """Return the anchors of the headings, which are the same on GitHub and on the site."""
    anchors: set[str] = set()
    tokens = tokens_of(text)
    for token, inline in pairwise(tokens):
        if token.type == "heading_open":
            plain = "".join(child.content for child in inline.children or [] if child.type in ("text", "code_inline"))
            anchors.add(re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-"))
    return anchors


def main() -> None:
    for page in pages():
        for block in blocks_of(name_of(page), page.read_text()):
            if block.language in TEXT:
                continue
            mode = f"not run: {block.notes['not run']}" if not block.is_run else "slow" if "slow" in block.notes else ""
            print(f"{block.location:45s} {block.language:8s} {mode}")


if __name__ == "__main__":
    main()
