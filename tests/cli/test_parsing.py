"""Mistakes on the command line that tyro finds are one sentence, in every command; this fails if tyro changes."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from aspc.__main__ import COMMANDS, main
from aspc.cli import parsing
from aspc.errors import AspcError

MISTAKES = {
    # names
    "train --stepz 5": "Unknown option '--stepz'; did you mean --steps, ",
    "train --stepz=5": "Unknown option '--stepz'; did you mean --steps, ",
    "train -steps 5": "Unknown option '-steps'; did you mean --steps, ",
    "train --algo iql+aspc --expectil 1": "Unknown option '--expectil'; did you mean --expectile, ",
    "data info --mapp x": "Unknown option '--mapp'; did you mean --map, ",
    "data collect --envv x": "Unknown option '--envv'; did you mean --env, ",
    "data inof x": "Unknown data command 'inof'; did you mean info?",
    # kinds of values
    "train --steps 1e3": "--steps takes a whole number, not '1e3'; write 1000.",
    "train --steps=1e3": "--steps takes a whole number, not '1e3'; write 1000.",
    "train --eval_every 1.5": "--eval-every takes a whole number, not '1.5'.",
    "train --steps inf": "--steps takes a whole number, not 'inf'.",
    "train --seeds 0 a": "--seeds takes whole numbers, not 'a'.",
    "train --seeds 0,1,2": "--seeds takes whole numbers, not '0,1,2'; write 0 1 2.",
    "train --action-low -1 a": "--action-low takes numbers, not 'a'.",
    "eval --episodes 3 run --episodes ten": "--episodes takes a whole number, not 'ten'.",
    "bench --seeds a": "--seeds takes a whole number, not 'a'.",
    "bench --budget 1h": "--budget takes a number, not '1h'.",
    "data make maze2d-umaze --steps 1e5": "--steps takes a whole number, not '1e5'; write 100000.",
    "inspect run --states 1e3": "--states takes a whole number, not '1e3'; write 1000.",
    # choices
    "train --outer-loss L9": "--outer-loss takes one of L1, L1+L2, L1+L3 or L1+L2+L3, not 'L9'.",
    "fqe --states some": "--states takes one of auto, start or all, not 'some'.",
    # what is missing
    "train --steps": "--steps needs a whole number behind it.",
    "train --env --quiet": "--env needs a value behind it.",
    "bench --out": "--out needs a path behind it.",
    "train data.npz --action-low --steps 5": "--action-low needs at least one value behind it; leave it out",
    "train --steps 5 --action_high": "--action-high needs at least one value behind it; leave it out",
    "bench study --only --dry-run": "--only needs at least one value behind it; leave it out",
    "data info x --map": "--map needs at least one value behind it; leave it out",
    "export": "aspc export needs RUN and --format; aspc export --help says more.",
    "data info": "aspc data info needs DATASET; aspc data info --help says more.",
    "data": "aspc data needs one of list, info, download, make, convert or collect.",
    # what is too much
    "train a b": "aspc train has no place for 'b'; leave it out, or quote a name that has spaces in it.",
    "speed word": "aspc speed has no place for 'word'; leave it out, or quote a name that has spaces in it.",
    "eval run --json true": "--json takes no value; leave 'true' out.",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_sentence(words, capsys):
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"aspc: {MISTAKES[words]}")
    assert err.count("\n") == 1
    assert err.endswith((".\n", "?\n"))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_it_so(command, capsys):
    where = [command, "list"] if command == "data" else [command]
    assert main([*where, "--no-such-option"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("aspc: Unknown option '--no-such-option'; ")
    assert err.count("\n") == 1


@dataclasses.dataclass(frozen=True)
class Checked:
    """Options that are checked together."""

    low: int = 0
    """The lower one."""
    high: int = 1
    """The higher one."""

    def __post_init__(self):
        if self.low > self.high:
            raise ValueError("--low must not be above --high.")


def test_what_a_class_of_options_refuses_is_a_sentence():
    with pytest.raises(AspcError, match=r"^--low must not be above --high\.$"):
        parsing.read_options(Checked, ["--low", "2"], "aspc check")
    assert parsing.read_options(Checked, ["--low", "2"], "aspc check", default=Checked(high=3)) == Checked(2, 3)


@pytest.mark.parametrize("change", ["no events", "another event", "an event without its fields"])
def test_where_tyro_tells_otherwise_its_own_message_is_there(change, monkeypatch, capsys):
    if change == "no events":
        monkeypatch.setitem(sys.modules, "tyro._errors", None)
    elif change == "another event":
        monkeypatch.setattr(parsing, "_mistake", lambda *_: None)
    else:
        monkeypatch.setattr(parsing, "_name", lambda argument: argument.no_such_field)
    with pytest.raises(SystemExit) as end:
        main(["eval", "run", "--episodes", "ten"])
    assert end.value.code == 2
    assert "invalid literal" in capsys.readouterr().err
