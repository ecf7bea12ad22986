"""Formulas over columns, such as `0.3*energy + 0.7*comfort`: a tokenizer, a parser and an array evaluator.

Formulas are never passed to Python's `eval`, because they can come from a run's config.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np

from aspc.errors import AspcError

MAX_TOKENS = 400  # evaluation recurses once per operator
MAX_DEPTH = 50
TOKEN = re.compile(
    r"""\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<name>[^\W\d][\w.]*)
    |`(?P<ticked>[^`]+)`|"(?P<double>[^"]+)"|'(?P<single>[^']+)'
    |(?P<symbol>[-+*/(),]))""",
    re.VERBOSE,
)

Columns = Mapping[str, np.ndarray]
Value = np.ndarray | float
Node = Callable[[Columns], Value]


def _clip(value: Value, low: Value, high: Value) -> Value:
    return np.minimum(np.maximum(value, low), high)


FUNCTIONS: dict[str, tuple[int, int, Callable[..., Value]]] = {  # minimum and maximum number of arguments, function
    "abs": (1, 1, np.abs),
    "min": (2, 20, lambda *values: reduce(np.minimum, values)),
    "max": (2, 20, lambda *values: reduce(np.maximum, values)),
    "clip": (3, 3, _clip),
}


@dataclass(frozen=True)
class Formula:
    """A parsed formula: its text, its columns in order of appearance, and its root."""

    text: str
    columns: tuple[str, ...]
    root: Node

    @classmethod
    def parse(cls, text: str) -> Formula:
        """Parse a formula of + - * / ( ), numbers, column names, abs, min, max and clip.

        Unusual column names, such as names with spaces, must be in backticks or quotes.

        Raises:
            AspcError: The text is not a valid formula.
        """
        parser = _Parser(text)
        root = parser.parse()
        return cls(text, tuple(parser.columns), root)

    def increases_with(self, column: str) -> bool:
        """Return whether raising a column from 1 to 2 increases the result, with all other columns at 1."""
        ones = dict.fromkeys(self.columns, np.ones(1))
        return bool(self.evaluate({**ones, column: np.full(1, 2.0)}) > self.evaluate(ones))

    def evaluate(self, columns: Columns) -> np.ndarray:
        """Return the value for each row, in float64. Division by zero gives NaN or infinity."""
        with np.errstate(all="ignore"):
            value = np.asarray(self.root(columns), np.float64)
        rows = len(next(iter(columns.values())))
        return np.broadcast_to(value, (rows,)).astype(np.float64)


class _Parser:
    """A recursive-descent parser. Each parsing method consumes the tokens of the node it returns."""

    def __init__(self, text: str) -> None:
        self._text, self._position, self._depth = text, 0, 0
        self.columns: dict[str, None] = {}
        self._tokens = self._tokenize()

    def _error(self, problem: str) -> AspcError:
        return AspcError(
            f"Invalid formula {self._text[:80]!r}: {problem}. Use + - * / ( ), numbers, column names (in "
            "backticks if they contain spaces or symbols), abs, min, max and clip(x, low, high)."
        )

    def _tokenize(self) -> list[tuple[str, str]]:
        tokens, position = [], 0
        while self._text[position:].strip():
            match = TOKEN.match(self._text, position)
            if match is None:
                raise self._error(f"unexpected {self._text[position:].strip()[0]!r}")
            kind = str(match.lastgroup)
            tokens.append(("column" if kind in ("ticked", "double", "single") else kind, match[kind]))
            position = match.end()
            if len(tokens) > MAX_TOKENS:
                raise self._error(f"it has more than {MAX_TOKENS} numbers, names and symbols")
        return tokens

    def _peek(self) -> str:
        kind, text = self._tokens[self._position] if self._position < len(self._tokens) else ("end", "")
        return text if kind == "symbol" else ""

    def _take(self) -> tuple[str, str]:
        if self._position >= len(self._tokens):
            raise self._error("unexpected end")
        self._position += 1
        return self._tokens[self._position - 1]

    def _expect(self, symbol: str) -> None:
        if self._peek() != symbol:
            raise self._error(f"{symbol!r} is missing")
        self._position += 1

    def parse(self) -> Node:
        root = self._sum()
        if self._position < len(self._tokens):
            raise self._error(f"unexpected {self._tokens[self._position][1]!r}")
        if not self.columns:
            raise self._error("it contains no column name")
        return root

    def _sum(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"parentheses are nested more than {MAX_DEPTH} deep")
        left = self._product()
        while (symbol := self._peek()) in ("+", "-"):
            self._position += 1
            left = _combine(np.add if symbol == "+" else np.subtract, left, self._product())
        self._depth -= 1
        return left

    def _product(self) -> Node:
        left = self._factor()
        while (symbol := self._peek()) in ("*", "/"):
            self._position += 1
            left = _combine(np.multiply if symbol == "*" else np.divide, left, self._factor())
        return left

    def _factor(self) -> Node:
        is_negative = False
        while (symbol := self._peek()) in ("+", "-"):
            self._position += 1
            is_negative ^= symbol == "-"
        value = self._atom()
        return _combine(np.negative, value) if is_negative else value

    def _atom(self) -> Node:
        kind, text = self._take()
        if kind == "number":
            number = np.float64(text)
            return lambda columns: number
        if kind == "symbol" and text == "(":
            inner = self._sum()
            self._expect(")")
            return inner
        if kind == "name" and self._peek() == "(":
            return self._call(text)
        if kind in ("name", "column"):
            self.columns[text] = None
            return lambda columns: columns[text]
        raise self._error(f"unexpected {text!r}")

    def _call(self, name: str) -> Node:
        if name not in FUNCTIONS:
            raise self._error(f"unknown function {name!r}")
        fewest, most, function = FUNCTIONS[name]
        self._expect("(")
        arguments = [self._sum()]
        while self._peek() == ",":
            self._position += 1
            arguments.append(self._sum())
        self._expect(")")
        if not fewest <= len(arguments) <= most:
            raise self._error(f"{name} takes {fewest if fewest == most else f'{fewest} or more'} values")
        return _combine(function, *arguments)


def _combine(function: Callable[..., Value], *nodes: Node) -> Node:
    return lambda columns: function(*(node(columns) for node in nodes))
