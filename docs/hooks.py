"""MkDocs hooks: pages from outside docs/, links to source files, the help of the commands, and tables of settings.

The same Markdown is read in the repository and on the site. In the repository a link goes to a file; on the site that
file is a page: README.md is the first one, a source file is shown as code.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import json
import logging
import os
import posixpath
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
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
    "examples/first_policy.ipynb": "notebook.md",
}
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".sh": "bash"}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)#\s]+)(#[^)\s]*)?(?=\))")
FENCE = re.compile(r"^(```.*?^```$)", re.DOTALL | re.MULTILINE)
HELP = re.compile(r"<!-- help: ([a-z -]+) -->")
SETTINGS = re.compile(r"<!-- settings: (run|algorithms) -->")
EXTERNAL_RESOURCE = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//""")

log = logging.getLogger("mkdocs.hooks.aspc")


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside docs/ that pages link to."""
    for path, uri in PAGES.items():
        text = (REPOSITORY / path).read_text()
        content = notebook_page(path, text) if path.endswith(".ipynb") else text
        files.append(File.generated(config, uri, content=content))
    linked: set[str] = set()
    for file in files.documentation_pages():
        parts = FENCE.split(file.content_string)[::2]
        linked.update(_target(file.src_uri, match[1]) for part in parts for match in LINK.finditer(part))
    for path in sorted(linked - PAGES.keys()):
        if not path.startswith("docs/") and (REPOSITORY / path).is_file():
            files.append(File.generated(config, f"source/{path}.md", content=_code_page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Rewrite links for the site, and insert help and tables of settings where a comment requests them."""
    here = page.file.src_uri

    def rewrite_link(match: re.Match[str]) -> str:
        return posixpath.relpath(_uri(_target(here, match[1])), posixpath.dirname(here)) + (match[2] or "")

    parts = FENCE.split(markdown)
    for i, part in enumerate(parts[::2]):
        linked = LINK.sub(rewrite_link, part)
        helped = HELP.sub(lambda match: _help(match[1]), linked)
        parts[2 * i] = SETTINGS.sub(lambda match: SETTINGS_TABLES[match[1]](), helped)
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
    """Return the output of `aspc COMMAND --help-all` as a block."""
    from aspc.__main__ import main

    os.environ["COLUMNS"] = "100"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*command.split(), "--help-all"])
    return f"````text\n{printed.getvalue()}````"


def notebook_page(path: str, text: str) -> str:
    """Return a notebook as Markdown: its cells in order, each with what it printed and drew."""
    parts: list[str] = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            if "text" in output:
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            else:
                parts.append(f"![Output of the cell above](data:image/png;base64,{output['data']['image/png']})")
    parts.append(f"*This page is generated from the notebook `{path}`, which you can run in Jupyter.*")
    return "\n\n".join(parts) + "\n"


# ── tables of settings ──────────────────────────────────────────────────────────────────────────────────────────────


def field_docstrings(kind: type) -> dict[str, str]:
    """Return the text below each field of a dataclass, by the field's name."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for field, text in pairwise(definition.body):
            is_documented = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_documented:
                found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def _settings_of(settings: Any) -> Iterator[tuple[str, str, str]]:
    """Yield name, meaning and value of each setting, those of a wrapped algorithm included."""
    texts = field_docstrings(type(settings))
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.name == "base":
            yield from _settings_of(value)
        elif field.name in texts:
            yield field.name, texts[field.name], _format_value(value)


def _format_value(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return "–" if value is None else str(value)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [head, ["---"] * len(list(head)), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def run_settings() -> str:
    """Return a table of the options that are independent of the algorithm."""
    from aspc.training.run_config import TrainOptions

    rows = [(f"`--{name.replace('_', '-')}`", text, value) for name, text, value in _settings_of(TrainOptions())]
    return _table(("option", "meaning", "default"), rows)


def algorithm_settings() -> str:
    """Return a table of the hyperparameters of all algorithms, one row per option and meaning."""
    from aspc import algorithms

    names = [name for name in algorithms.names() if not name.endswith("+aspc")]
    found: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for name in names:
        for option, text, value in _settings_of(algorithms.default(name)):
            found[option, text][name] = value
    rows = []
    for (option, text), values in found.items():
        (common, _), *others = Counter(values.values()).most_common()
        default = [common, *(f"{value}: {', '.join(n for n in values if values[n] == value)}" for value, _ in others)]
        missing = [name for name in names if name not in values]
        owners = ", ".join(values) if len(values) <= len(missing) else f"all except {', '.join(missing)}"
        rows.append((f"`--{option.replace('_', '-')}`", text, "; ".join(default), owners if missing else "all"))
    return _table(("option", "meaning", "default", "algorithms"), rows)


SETTINGS_TABLES = {"run": run_settings, "algorithms": algorithm_settings}
