"""Parse a command's options: check them against the fields of a dataclass, then let tyro parse them.

tyro renders the help page and creates the values, but it reports mistakes in a multi-line box. The words are therefore
checked before they are passed to tyro, so that every mistake raises a one-sentence error with its remedy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import re
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from aspc.errors import AspcError, unknown_name

T = TypeVar("T")
ANY = -1  # arity of an option that takes any number of values
HELP_FLAGS = ("-h", "--help", "--help-all")
MAX_SHOWN = 11  # a command with more options shows only the common ones for --help

# Types of options whose default is not shown on the help page.
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]
Unset = Annotated[T | None, tyro.conf.arg(help_behavior_hint="")]
Several = Annotated[tuple[T, ...], tyro.conf.arg(help_behavior_hint="")]

ARGUMENT_CONFIG: Any = type(tyro.conf.arg())
DESCRIPTIONS: dict[type, tuple[str, str]] = {
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    Path: ("a path", "paths"),
}


class Option(NamedTuple):
    """An option, or a positional argument, of a command."""

    name: str
    """The flag with its dashes, or the name of a positional argument in the usage line."""
    kind: type
    """The type of one value; str if any word is valid."""
    arity: int
    """The number of values, or ANY."""
    choices: tuple[str, ...]
    is_positional: bool
    is_required: bool
    accepts_none: bool
    is_negation: bool = False

    def accepts(self, word: str) -> bool:
        """Return whether a word is a valid value."""
        if self.accepts_none and word == "None":
            return True
        if self.choices:
            return word in self.choices
        return self.kind not in (int, float) or _converts(self.kind, word)

    def describe(self) -> str:
        """Return a description of the values that the option takes."""
        if self.choices:
            return f"one of {join(self.choices, 'or')}"
        one, several = DESCRIPTIONS.get(self.kind, ("a value", "values"))
        return one if self.arity == 1 else several

    def error(self, word: str) -> AspcError:
        """Return the error for an invalid value, with a suggested correction if there is one."""
        suggestion = ""
        if self.kind is int and _converts(float, word) and float(word).is_integer():
            suggestion = f" Write {int(float(word))}."
        elif self.arity == ANY and all(self.accepts(part) for part in word.split(",")):
            suggestion = f" Write {' '.join(word.split(','))}."
        return AspcError(f"{self.name} takes {self.describe()}, not {word!r}.{suggestion}")


def parse_options(
    kind: type[T],
    argv: list[str],
    prog: str,
    *,
    description: str | None = None,
    default: T | None = None,
    renamed: Mapping[str, str] | None = None,
    common: str = "",
) -> T:
    """Parse the words of a command line into a dataclass.

    If a command has many options, `--help` shows only the common ones; `--help-all` shows all of them.

    Args:
        kind: The dataclass; its fields are the options and their docstrings the help.
        argv: The words after the command's name.
        prog: The command's name, as in "aspc train".
        description: The first paragraph of the help page; by default the docstring of `kind`.
        default: Defaults to use instead of those of the class.
        renamed: New names of renamed options, by old name.
        common: Names of the options that `--help` shows, separated by spaces.

    Raises:
        AspcError: If an option or a value is invalid.
        SystemExit: After printing the help page, if `argv` asks for it.
    """
    for word in argv:
        name = word.partition("=")[0].replace("_", "-")
        if renamed and name in renamed:
            raise AspcError(f"{name} was renamed. Use {renamed[name]}.")
    options = list(options_of(kind, default))
    hidden = set() if "--help-all" in argv else _hidden_flags(options, common)
    settings: dict[str, Any] = {"args": argv} if default is None else {"args": argv, "default": default}
    if set(HELP_FLAGS).isdisjoint(argv):
        check_words(options, argv, prog)
    else:  # tyro omits the arguments that it reads from the page; DisallowNone shows STR, not {None}|STR
        settings |= {"args": ["--help"], "config": (tyro.conf.DisallowNone,), "registry": _help_registry(hidden)}
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), warnings.catch_warnings():
            # Algorithms are generic in their state, which is not an option.
            warnings.filterwarnings("ignore", message="Could not resolve type parameter")
            parsed: T = tyro.cli(kind, prog=prog, description=description, **settings)
            return parsed
    except SystemExit as end:
        if not end.code:
            if hidden:
                words = ["--help-all" if word in HELP_FLAGS else word for word in argv]
                print(f"{len(hidden)} more options: {prog} {shlex.join(words)}")
            raise
        raise AspcError(_plain_message(errors.getvalue())) from end


def _hidden_flags(options: list[Option], common: str) -> set[str]:
    """Return the flags that `--help` does not show; the negation of a flag is shown or hidden with the flag."""
    flags = {o.name for o in options if not (o.is_positional or o.is_negation or o.is_required)}
    return flags - {f"--{name}" for name in common.split()} if len(flags) > MAX_SHOWN else set()


def _help_registry(hidden: set[str]) -> ConstructorRegistry:
    """Return a registry that joins the lines of help texts and hides these flags and defaults that mean "not set"."""
    registry = ConstructorRegistry()
    active: list[Any] = []  # types whose rules are being applied, to keep this rule from calling itself

    @registry.struct_rule
    def _(info: StructTypeInfo) -> StructConstructorSpec | None:
        if info.type in active or not dataclasses.is_dataclass(info.type):
            return None
        active.append(info.type)
        try:
            spec = ConstructorRegistry.get_struct_spec(info)
        finally:
            active.pop()
        if not isinstance(spec, StructConstructorSpec):
            return None
        return dataclasses.replace(spec, fields=tuple(_plain_help(field, hidden) for field in spec.fields))

    return registry


def _plain_help(field: StructFieldSpec, hidden: set[str]) -> StructFieldSpec:
    text = field.helptext() if callable(field.helptext) else field.helptext
    if text is not None:
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))
    is_unset = field.default is None or field.default == "" or field.default != field.default  # the last is a NaN check
    kind: Any = Annotated[field.type, tyro.conf.arg(help_behavior_hint="")] if is_unset else field.type
    if any(option.name in hidden for option in _field_options(field.name, field.type, is_required=False)):
        kind = Annotated[kind, tyro.conf.Suppress]
    return dataclasses.replace(field, type=kind, helptext=text)


def options_of(kind: Any, default: Any = None) -> Iterator[Option]:
    """Yield the options that tyro derives from a dataclass, including those of nested dataclasses."""
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        value: Any = dataclasses.MISSING
        if default is not None:
            value = getattr(default, field.name)
        elif field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if dataclasses.is_dataclass(value):
            yield from options_of(type(value), value)
        else:
            yield from _field_options(field.name, hints[field.name], is_required=value is dataclasses.MISSING)


def _field_options(name: str, hint: Any, is_required: bool) -> Iterator[Option]:
    """Yield the option of one field, or two options for a flag that can be negated."""
    hint, metadata = _split_annotated(hint)
    is_positional, metavar = tyro.conf.Positional in metadata, ""
    for config in metadata:
        if isinstance(config, ARGUMENT_CONFIG):
            name, metavar = config.name or name, config.metavar or ""
    alternatives = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    accepts_none = NoneType in alternatives
    kinds = [_split_annotated(kind)[0] for kind in alternatives if kind is not NoneType]
    kind, arity = _value_kind(kinds[0]) if len(kinds) == 1 else (str, 1)
    choices: tuple[str, ...] = ()
    if get_origin(kind) is Literal:
        kind, choices = str, tuple(map(str, get_args(kind)))
    elif kind is bool:
        if accepts_none:
            choices = ("True", "False")
        else:
            arity = 0
    flag = name.replace("_", "-")
    shown = metavar.strip("[]").split()[0] if metavar else f"--{flag}"
    yield Option(shown, kind, arity, choices, is_positional, is_required, accepts_none)
    if arity == 0 and tyro.conf.FlagCreatePairsOff not in metadata:
        yield Option(f"--no-{flag}", kind, arity, choices, False, False, False, is_negation=True)


def _value_kind(hint: Any) -> tuple[Any, int]:
    """Return the type of one value and the number of values that a type hint asks for."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (list, tuple) and (len(arguments) == 1 or arguments[1:] == (...,)):
        return _split_annotated(arguments[0])[0], ANY
    if hint in (bool, int, float, str, Path) or origin is Literal:
        return hint, 1
    if origin is tuple:
        return str, len(arguments)
    return str, 1 if origin is None else ANY


def _split_annotated(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    if get_origin(hint) is Annotated:
        inner, *metadata = get_args(hint)
        return inner, tuple(metadata)
    return hint, ()


def check_words(options: list[Option], argv: list[str], prog: str) -> None:
    """Check the words of a command line.

    Raises:
        AspcError: For the first unknown option, missing or invalid value, or missing or unexpected argument.
    """
    flags = {option.name: option for option in options if not option.is_positional}
    positionals = [option for option in options if option.is_positional]
    given: set[str] = set()
    arguments: list[tuple[str, str]] = []  # each positional word with the word before it
    i = 0
    while i < len(argv):
        word, i = argv[i], i + 1
        if not _is_flag(word):
            arguments.append((word, argv[i - 2] if i > 1 else ""))
            continue
        name, has_value, value = word.partition("=")
        option = flags.get(name.replace("_", "-"))
        if option is None:
            raise unknown_name("option", name, flags)
        following = list(itertools.takewhile(lambda word: not _is_flag(word), argv[i:]))
        values = [value] if has_value else following[: len(following) if option.arity == ANY else option.arity]
        i += 0 if has_value else len(values)
        if option.arity == ANY and not values:
            raise AspcError(f"{option.name} needs at least one value. Omit it to use the default.")
        if len(values) < option.arity:
            raise AspcError(f"{option.name} must be followed by {option.describe()}.")
        for invalid in (value for value in values if option.arity and not option.accepts(value)):
            raise option.error(invalid)
        given.add(option.name)
    _check_positionals(positionals, flags, arguments)
    missing = [option.name for option in positionals[len(arguments) :] if option.is_required and option.arity != ANY]
    missing += [option.name for option in flags.values() if option.is_required and option.name not in given]
    if missing:
        raise AspcError(f"{prog} needs {join(missing, 'and')}. See {prog} --help.")


def _check_positionals(positionals: list[Option], flags: dict[str, Option], arguments: list[tuple[str, str]]) -> None:
    if any(option.arity == ANY for option in positionals):
        return
    for word, before in arguments[len(positionals) :]:
        if before in flags and flags[before].arity == 0:
            raise AspcError(f"{before} takes no value. Remove {word!r}.")
        raise AspcError(f"Unexpected argument {word!r}. Remove it, or quote a name that contains spaces.")


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word.strip("-") != "" and not _converts(float, word)


def _converts(kind: Callable[[str], object], word: str) -> bool:
    try:
        kind(word)
    except ValueError:
        return False
    return True


def _plain_message(text: str) -> str:
    """Return the first paragraph of tyro's error box, below its title, as one line."""
    body = text.partition("\n")[2].replace("│", " ")
    paragraphs = [" ".join(part.split()) for part in re.split(r"^\W*[─-]{3,}\W*$", body, flags=re.MULTILINE)]
    message = next((paragraph for paragraph in paragraphs if paragraph), "The options are invalid.")
    return re.sub(r"^Error parsing \w+: ", "", message)


def join(names: list[str] | tuple[str, ...], conjunction: str) -> str:
    """Join names into text such as "a, b or c"."""
    *others, last = names
    return f"{', '.join(others)} {conjunction} {last}" if others else last
