"""MkDocs hooks: pages from outside docs/, links to source files, and the help of the commands.

The same Markdown is read in the repository and on the site. In the repository a link goes to a file; on the site that
file is a page: README.md is the first one, a source file is shown as code.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = {
    "README.md": "index.md",
    "benchmarks/README.md": "benchmarks.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".sh": "bash"}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)#\s]+)(#[^)\s]*)?(?=\))")
FENCE = re.compile(r"^(```.*?^```$)", re.DOTALL | re.MULTILINE)
HELP = re.compile(r"<!-- help: ([a-z -]+) -->")
EXTERNAL_RESOURCE = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//""")

log = logging.getLogger("mkdocs.hooks.aspc")


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside docs/ that pages link to."""
    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, content=(REPOSITORY / path).read_text()))
    linked: set[str] = set()
    for file in files.documentation_pages():
        parts = FENCE.split(file.content_string)[::2]
        linked.update(_target(file.src_uri, match[1]) for part in parts for match in LINK.finditer(part))
    for path in sorted(linked - PAGES.keys()):
        if not path.startswith("docs/") and (REPOSITORY / path).is_file():
            files.append(File.generated(config, f"source/{path}.md", content=_code_page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Rewrite links for the site, and insert help where a comment requests it."""
    here = page.file.src_uri

    def rewrite_link(match: re.Match[str]) -> str:
        return posixpath.relpath(_uri(_target(here, match[1])), posixpath.dirname(here)) + (match[2] or "")

    parts = FENCE.split(markdown)
    parts[::2] = [HELP.sub(lambda match: _help(match[1]), LINK.sub(rewrite_link, part)) for part in parts[::2]]
    return "".join(parts)


def on_post_page(output: str, page: Page, config: Any) -> str:
    """Warn about pages that load something from another host; `make docs` treats warnings as errors."""
    if found := EXTERNAL_RESOURCE.search(output):
        log.warning("%s loads a resource from another host: %s", page.file.src_uri, found[0])
    return output


def _target(uri: str, link: str) -> str:
    """Return the repository file that a page of the site links to."""
    origin = next((path for path, name in PAGES.items() if name == uri), f"docs/{uri}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))


def _uri(path: str) -> str:
    """Return the address of a repository file on the site."""
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md"


def _code_page(path: str) -> str:
    language = LANGUAGES.get(Path(path).suffix, "text")
    code = (REPOSITORY / path).read_text()
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n````{language}\n{code}````\n"


def _help(command: str) -> str:
    """Return the output of `aspc COMMAND --help` as a block."""
    from aspc.__main__ import main

    os.environ["COLUMNS"] = "100"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
    return f"````text\n{printed.getvalue()}````"
