"""The options of a command, as tyro reads them from the command line; a mistake in them is one sentence, as any other.

tyro tells what is wrong in events, which it calls internal (`tyro._errors`). Where a release has none, or others, its
own message is what the user gets; `tests/cli/test_parsing.py` fails then.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import tyro

from aspc.errors import AspcError, first_line, unknown_name


def read_options(kind: Any, argv: list[str], prog: str, **how: Any) -> Any:
    """What `tyro.cli` makes of the words behind `prog`; `how` are its further settings."""

    def tell(event: Any) -> None:
        with contextlib.suppress(AttributeError, LookupError, TypeError):  # the event is not what it was
            if (mistake := _mistake(event, argv, lambda: _parser(kind, prog, how))) is not None:
                raise mistake

    with _telling(tell):
        asked = tyro.cli(kind, args=argv, prog=prog, **how)
    _refuse_empty_lists(argv, lambda: _parser(kind, prog, how))
    return asked


def _refuse_empty_lists(argv: list[str], parser: Callable[[], Any]) -> None:
    """tyro takes an option of several values without any: whoever wrote it has forgotten them."""
    bare = [word for word, after in itertools.pairwise([*argv, "--"]) if _is_option(word) and not _is_value(after)]
    if bare:
        options = _command(parser(), argv)[0]._option_string_actions
        for name in (word.replace("_", "-") for word in bare):
            if name in options and options[name].nargs == "*":
                raise AspcError(f"{name} needs at least one value behind it; leave it out for the default.")


def _telling(tell: Callable[[Any], None]) -> contextlib.AbstractContextManager[None]:
    try:
        from tyro._errors import on_parse_error
    except ImportError:
        return contextlib.nullcontext()
    return on_parse_error(tell)


def _parser(kind: Any, prog: str, how: dict[str, Any]) -> Any:
    """An `argparse` parser of the same options, for a list of all of them, which no event has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, with nothing in its place
        return tyro.extras.get_parser(kind, prog=prog, **how)


def _mistake(event: Any, argv: list[str], parser: Callable[[], Any]) -> AspcError | None:
    """An event as a sentence, or None if it is none of those that the commands here can meet."""
    match type(event).__name__:
        case "UnrecognizedArgs":
            return _unknown_word(event.tokens, argv, parser())
        case "MissingArgs":
            if event.unrecognized_tokens:  # a name that is misspelt is missing too
                return _unknown_word(event.unrecognized_tokens, argv, parser())
            prog = f"{event.prog} {event.missing_arguments[0].source_parser.prog_suffix}".rstrip()
            needed = [_name(missing.arg) for missing in event.missing_arguments]
            return AspcError(f"{prog} needs {_list(needed, 'and')}; {prog} --help says more.")
        case "MissingSubcommand":
            return AspcError(f"{event.prog} needs one of {_list([*event.subcommand_spec.parser_from_name], 'or')}.")
        case "BadValue" if event.reason == "too_few_values":
            if event.argument.is_positional():  # in its place is an option that does not exist
                return _unknown_word([], argv, parser())
            return AspcError(f"{_name(event.argument)} needs {_takes(event.argument)} behind it.")
        case "InvalidChoice":
            return AspcError(f"{_name(event.argument)} takes {_takes(event.argument)}, not {event.value!r}.")
        case "InstantiationFailure" if event.argument is None:  # what a class of options says itself
            return AspcError(f"{first_line(ValueError(event.message))}.")
        case "InstantiationFailure":
            return _wrong_number(event.argument, argv)
    return None


def _command(parser: Any, argv: list[str]) -> tuple[Any, str, dict[str, Any]]:
    """The parser of the command that is asked for and its name, and all commands if none of them is."""
    commands: dict[str, Any] = next((a.choices for a in parser._actions if isinstance(a.choices, dict)), {})
    command = next((word for word in argv if word in commands), None)
    return (parser, parser.prog, commands) if command is None else (commands[command], f"{parser.prog} {command}", {})


def _unknown_word(unknown: list[str], argv: list[str], parser: Any) -> AspcError:
    parser, prog, commands = _command(parser, argv)
    if commands:
        return unknown_name(f"{prog.removeprefix('aspc ')} command", unknown[0], commands)
    options = parser._option_string_actions
    for word in argv:  # a misspelt option first: a word that has no place may be its value
        name = word.partition("=")[0]
        if _is_option(name) and name.replace("_", "-") not in options:
            return unknown_name("option", name, (option for option in options if option.startswith("--")))
    place = argv.index(unknown[0])
    flag = argv[place - 1] if place else ""
    if flag in options and options[flag].nargs == 0:
        return AspcError(f"{flag} takes no value; leave {unknown[0]!r} out.")
    return AspcError(f"{prog} has no place for {unknown[0]!r}; leave it out, or quote a name that has spaces in it.")


def _is_option(word: str) -> bool:
    return word.startswith("-") and word.strip("-") != "" and not _is(float, word)


def _is_value(word: str) -> bool:
    return not _is_option(word) and word != "--"


def _wrong_number(argument: Any, argv: list[str]) -> AspcError | None:
    """Which of an option's values is none, and how to write the number that it may have been meant to be."""
    kind = int if "INT" in argument.lowered.metavar else float if "FLOAT" in argument.lowered.metavar else None
    wrong = next((word for word in _values(argument, argv) if kind and not _is(kind, word)), None)
    if wrong is None:
        return None
    meant = ""
    if kind is int and _is(float, wrong) and float(wrong).is_integer():
        meant = f"; write {int(float(wrong))}"
    elif argument.lowered.nargs == "*" and all(_is(kind, part) for part in wrong.split(",")):
        meant = f"; write {' '.join(wrong.split(','))}"
    return AspcError(f"{_name(argument)} takes {_takes(argument)}, not {wrong!r}{meant}.")


def _values(argument: Any, argv: list[str]) -> list[str]:
    """The words that an option was given, wherever it was."""
    found, count = [], argument.lowered.nargs if isinstance(argument.lowered.nargs, int) else len(argv)
    for i, word in enumerate(argv):
        option, equals, value = word.partition("=")
        if option.replace("_", "-") in argument.lowered.name_or_flags:
            end = next((j for j in range(i + 1, len(argv)) if _is_option(argv[j])), len(argv))
            found += [value] if equals else argv[i + 1 : end][:count]
    return found


def _is(kind: Any, word: str) -> bool:
    try:
        kind(word)
    except ValueError:
        return False
    return True


def _name(argument: Any) -> str:
    return argument.lowered.metavar if argument.is_positional() else argument.lowered.name_or_flags[0]


def _takes(argument: Any) -> str:
    """What an option takes, in words."""
    shown, several = argument.lowered.metavar, argument.lowered.nargs == "*"
    if argument.lowered.choices:
        return f"one of {_list([*argument.lowered.choices], 'or')}"
    for mark, one, many in (("INT", "a whole number", "whole numbers"), ("FLOAT", "a number", "numbers")):
        if mark in shown:
            return many if several else one
    return "a path" if "PATH" in shown else "a value"


def _list(names: list[str], word: str) -> str:
    *others, last = names
    return f"{', '.join(others)} {word} {last}" if others else last
