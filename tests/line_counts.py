"""Count the lines of the library outside `lab/`: python tests/line_counts.py

Lines of code are all lines except blank lines, comments and docstrings.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "aspc"
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def library_files() -> list[Path]:
    """Return the library's Python files, without those of the laboratory."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).parts[0] != "lab"]


def count_code_lines(source: str) -> int:
    """Return the number of lines with code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {line for t in tokens if t.type not in LAYOUT for line in range(t.start[0], t.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def main() -> None:
    sources = [path.read_text("utf-8") for path in library_files()]
    code, total = sum(map(count_code_lines, sources)), sum(len(source.splitlines()) for source in sources)
    print(f"{code:,} lines of code, {total:,} lines in total")


if __name__ == "__main__":
    main()
