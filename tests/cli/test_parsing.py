"""Mistakes in a command's options give one sentence with the remedy."""

from __future__ import annotations

import dataclasses
import re
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import pytest
import tyro

from aspc import algorithms
from aspc.__main__ import COMMANDS, main
from aspc.cli import parsing
from aspc.errors import AspcError

MISTAKES = {
    # option names
    "train --stepz 5": "Unknown option '--stepz'; did you mean --steps, ",
    "train --stepz=5": "Unknown option '--stepz'; did you mean --steps, ",
    "train -steps 5": "Unknown option '-steps'; did you mean --steps, ",
    "train --algo iql+aspc --expectil 1": "Unknown option '--expectil'; did you mean --expectile, ",
    "train a b --stepz 5": "Unknown option '--stepz'; did you mean --steps, ",
    "data info --mapp x": "Unknown option '--mapp'; did you mean --map, ",
    "data collect --envv x": "Unknown option '--envv'; did you mean --env, ",
    "data inof x": "Unknown data command 'inof'; did you mean info?",
    # renamed options
    "bench --at-once 2": "--at-once was renamed. Use --parallel-groups.",
    "bench study --known=results": "--known was renamed. Use --reuse.",
    "bench --fill": "--fill was renamed. Use --use-full-budget.",
    # types of values
    "train --steps 1e3": "--steps takes an integer, not '1e3'. Write 1000.",
    "train --steps=1e3": "--steps takes an integer, not '1e3'. Write 1000.",
    "train --eval_every 1.5": "--eval-every takes an integer, not '1.5'.",
    "train --steps inf": "--steps takes an integer, not 'inf'.",
    "train --steps None": "--steps takes an integer, not 'None'.",
    "train --seeds 0 a": "--seeds takes integers, not 'a'.",
    "train --seeds 0,1,2": "--seeds takes integers, not '0,1,2'. Write 0 1 2.",
    "train --action-low -1 a": "--action-low takes numbers, not 'a'.",
    "eval --episodes 3 run --episodes ten": "--episodes takes an integer, not 'ten'.",
    "bench --seeds a": "--seeds takes an integer, not 'a'.",
    "bench --budget 1h": "--budget takes a number, not '1h'.",
    "data make maze2d-umaze --steps 1e5": "--steps takes an integer, not '1e5'. Write 100000.",
    "inspect run --states 1e3": "--states takes an integer, not '1e3'. Write 1000.",
    # choices
    "train --outer-loss L9": "--outer-loss takes one of L1, L1+L2, L1+L3 or L1+L2+L3, not 'L9'.",
    "fqe --states some": "--states takes one of auto, start or all, not 'some'.",
    # missing values and arguments
    "train --steps": "--steps must be followed by an integer.",
    "train --env --quiet": "--env must be followed by a value.",
    "bench --out": "--out must be followed by a path.",
    "train data.npz --action-low --steps 5": "--action-low needs at least one value. Omit it to use the default.",
    "train --steps 5 --action_high": "--action-high needs at least one value. Omit it to use the default.",
    "bench study --only --dry-run": "--only needs at least one value. Omit it to use the default.",
    "data info x --map": "--map needs at least one value. Omit it to use the default.",
    "export": "aspc export needs RUN and --format. See aspc export --help.",
    "data info": "aspc data info needs DATASET. See aspc data info --help.",
    "data": "aspc data needs a subcommand: list, info, download, make, convert or collect.",
    # unexpected arguments
    "train a b": "Unexpected argument 'b'. Remove it, or quote a name that contains spaces.",
    "speed word": "Unexpected argument 'word'. Remove it, or quote a name that contains spaces.",
    "eval run --json true": "--json takes no value. Remove 'true'.",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistake_gives_one_sentence(words, capsys):
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"aspc: {MISTAKES[words]}")
    assert err.count("\n") == 1
    assert err.endswith((".\n", "?\n"))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_rejects_unknown_options(command, capsys):
    words = [command, "list"] if command == "data" else [command]
    assert main([*words, "--no-such-option"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("aspc: Unknown option '--no-such-option'; ")
    assert err.count("\n") == 1


HELP_PAGES = [
    *([command] for command in COMMANDS if command != "data"),
    *(["train", "--algo", name] for name in algorithms.names()),
    *(["data", command] for command in ("list", "info", "download", "make", "convert", "collect")),
]


def read_help(words, capsys):
    """Return a help page, and the flags in each of its rows; `-h, --help` is no row."""
    with pytest.raises(SystemExit) as exit_:
        main(words)
    assert exit_.value.code == 0
    page, errors = capsys.readouterr()
    assert errors == ""
    lines = re.findall(r"^[│ ]{1,3}(--\w.*?)(?:  | *│?$)", page, re.MULTILINE)
    return page, [re.findall(r"--\w[\w-]*", line) for line in lines]


@pytest.mark.parametrize("words", HELP_PAGES, ids=" ".join)
def test_checked_options_are_those_of_the_full_help_page(words, capsys, monkeypatch):
    checked = []
    monkeypatch.setattr(parsing, "check_words", lambda options, *_: checked.extend(options))
    monkeypatch.setattr(parsing.tyro, "cli", lambda *_, **__: pytest.skip("unreachable"))
    with pytest.raises(pytest.skip.Exception):
        main(words)
    monkeypatch.undo()
    page, rows = read_help([*words, "--help-all"], capsys)
    assert {option.name for option in checked if not option.is_positional} == {flag for row in rows for flag in row}
    assert not re.search(r"default:\s+(None|nan|'')\)", page)
    assert "more options" not in page


@pytest.mark.parametrize("words", HELP_PAGES, ids=" ".join)
def test_help_shows_at_most_twelve_options_and_counts_the_others(words, capsys):
    page, rows = read_help([*words, "--help"], capsys)
    full_page, full_rows = read_help([*words, "--help-all"], capsys)
    assert len(rows) + 1 <= 12  # with `-h, --help`
    assert [row for row in full_rows if row in rows] == rows
    if len(full_rows) + 1 <= 12:
        assert page == full_page
    else:
        last = page.splitlines()[-1]
        assert last == f"{len(full_rows) - len(rows)} more options: aspc {' '.join(words)} --help-all"
    assert "-h, --help" in page
    assert page.split("\n\n")[:2] == full_page.split("\n\n")[:2]  # the usage line and the description
    assert page.count("positional arguments") == full_page.count("positional arguments")


def test_common_options_exist(capsys):
    flags = {}
    for words in HELP_PAGES:
        _, rows = read_help([*words, "--help-all"], capsys)
        flags.setdefault(words[0], set()).update(flag for row in rows for flag in row)
    modules = {command: import_module(module) for command, (module, _) in COMMANDS.items()}
    common = {c: module.COMMON_OPTIONS.split() for c, module in modules.items() if hasattr(module, "COMMON_OPTIONS")}
    assert {"train", "data", "assess", "bench"} <= set(common)
    for command, names in common.items():
        assert {f"--{name}" for name in names} <= flags[command]


@pytest.mark.parametrize("flag", ["--help", "--help-all"])
def test_lists_of_commands_have_both_kinds_of_help(flag, capsys):
    assert main([flag]) == main(["data", flag]) == 0
    out, errors = capsys.readouterr()
    assert out.count("usage: aspc") == 2
    assert errors == ""


def test_help_of_a_resumed_run_shows_its_few_options(capsys):
    for flag in ("--help", "--help-all"):
        page, rows = read_help(["train", "--resume", "run", flag], capsys)
        assert ["--steps"] in rows
        assert "more options" not in page


@dataclasses.dataclass(frozen=True)
class Checked:
    """Options of many types, two of them checked together."""

    low: int = 0
    """The lower one.
    The default is 0.
    """
    high: int = 1
    """The higher one."""
    pair: tuple[int, float] = (1, 2.0)
    """Two values."""
    switch: bool | None = None
    """True, False or None."""
    mode: Annotated[Literal["a", "b"] | None, "metadata"] = None
    """A choice that can be None."""
    path: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """A renamed option."""

    def __post_init__(self):
        if self.low > self.high:
            raise ValueError("--low must not be above --high, whatever the other options of this command may be.")


def parse(*words, default=None):
    return parsing.parse_options(Checked, list(words), "aspc check", default=default)


def test_help_texts_are_joined_and_unset_defaults_hidden(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        parse("--help")
    page = capsys.readouterr().out
    assert "The lower one. The default is 0. (default: 0)" in page
    assert re.search(r"A choice that can be None\. *│?$", page, re.MULTILINE)


def test_valid_options_are_parsed():
    assert parse("--low", "2", default=Checked(high=3)) == Checked(2, 3)
    assert parse("--pair", "3", "4") == Checked(pair=(3, 4.0))
    assert parse("--switch", "True", "--mode=None") == Checked(switch=True)
    assert parse("--from", "x") == Checked(path=Path("x"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--low", "2"], "--low must not be above --high, whatever the other options of this command may be."),
        (["--pair", "3"], "--pair must be followed by values."),
        (["--pair", "3", "a"], "Error parsing --pair: Could not parse arguments ['3', 'a']"),
        (["--switch", "maybe"], "--switch takes one of True or False, not 'maybe'."),
        (["--mode", "c"], "--mode takes one of a or b, not 'c'."),
        (["--path", "x"], "Unknown option '--path'; did you mean --pair, "),
    ],
)
def test_invalid_options_are_rejected(words, message):
    with pytest.raises(AspcError, match=f"^{re.escape(message)}"):
        parse(*words)


def test_help_is_complete_after_arguments_and_hidden_options(capsys):
    for words in (["data.csv"], ["--callback", "logs.py"], ["--steps"], ["--algo", "iql", "--expectile", "0.9"]):
        page, rows = read_help(["train", *words, "--help"], capsys)
        assert page.startswith("usage: aspc train [-h] [OPTIONS] [DATASET]\n")
        assert ["--steps"] in rows
        assert page.splitlines()[-1].endswith(f"more options: aspc train {' '.join(words)} --help-all")
