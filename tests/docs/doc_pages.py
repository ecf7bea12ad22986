"""The pages of this project's documents, and the code blocks in them.

A block is run unless it says why not. What a reader does not need to see is in comments just before the fence:

    <!-- not run: needs a GPU -->            it is not run here; the reason begins with one of `REASONS`
    <!-- slow -->                            it is run by `make test-slow` only
    <!-- setup: ln -s "$REPO/examples" . --> a shell command that comes first
    <!-- shortened: 20000 → 20; a → b -->    it is run with what follows an arrow in the place of what precedes it
    <!-- file: my_suite.py -->               it is written to that file instead of being run
    <!-- output -->                          a text block: what the block before it prints, … for any lines

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
    "needs policies that are no part of this repository",
    "takes hours",
)


class PageError(Exception):
    """A block, or a comment that is meant for one, which cannot be understood."""


@dataclass(frozen=True)
class Block:
    """A fenced block: where it is, what it holds, and the comments that stand before it."""

    page: str
    line: int
    language: str
    code: str
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.language in SHELL | PYTHON and "not run" not in self.notes

    def commands(self) -> str:
        """What is run: of a console block the lines after a prompt, with shorter numbers where that is said."""
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
    """Every page that a reader meets, the first one first."""
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
    """The blocks of a page in order, each checked by itself."""
    found: list[Block] = []
    notes: dict[str, str] = {}
    for token in tokens_of(text):
        if token.type == "html_block":
            notes |= dict(_notes(token.content))
            continue
        line = token.map[0] + 1 if token.map else 0
        if token.type == "code_block":
            raise PageError(f"{page}:{line} is an indented block; write a fence that says its language.")
        if token.type == "fence":
            block = Block(page, line, token.info.strip(), token.content, notes)
            _check(block, found[-1] if found else None)
            found.append(block)
        elif notes:
            raise PageError(f"{page}:{line}: the comment {notes} stands before no block.")
        notes = {}
    if notes:
        raise PageError(f"{page}: the comment {notes} stands before no block.")
    return found


def _notes(html: str) -> Iterator[tuple[str, str]]:
    """Comments that are meant for a block; others are the page's own."""
    for comment in re.findall(r"<!--(.*?)-->", html, re.DOTALL):
        name, _, value = comment.strip().partition(":")
        if name in NOTES:
            yield name, value.strip()


def _check(block: Block, before: Block | None) -> None:
    if block.language not in SHELL | PYTHON | TEXT:
        raise PageError(f"{block.place}: the language {block.language!r} is none of python, sh, bash, console, text.")
    reason = block.notes.get("not run")
    if reason is not None and not reason.startswith(REASONS):
        raise PageError(f"{block.place} is not run because it {reason!r}, which is none of {', '.join(REASONS)}.")
    for old, _ in block.replacements():
        if old not in block.code:
            raise PageError(f"{block.place} says that {old} is shortened, but does not have it.")
    if "output" in block.notes and (block.language not in TEXT or before is None or not before.is_run):
        raise PageError(f"{block.place} is no output: it is no text after a block that is run.")
    if block.language in TEXT and block.notes.keys() - {"output", "not run"}:
        raise PageError(f"{block.place} is text, but its comments are for something that is run.")


def links_of(text: str) -> Iterator[tuple[int, str]]:
    """Line and target of every link and picture."""
    for token in tokens_of(text):
        for child in token.children or []:
            target = child.attrGet("href") or child.attrGet("src")
            if target:
                yield (token.map[0] + 1 if token.map else 0), str(target)


def anchors_of(text: str) -> set[str]:
    """The anchors that headings have, on GitHub and on the site alike."""
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
            how = f"not run: {block.notes['not run']}" if not block.is_run else "slow" if "slow" in block.notes else ""
            print(f"{block.place:45s} {block.language:8s} {how}")


if __name__ == "__main__":
    main()
