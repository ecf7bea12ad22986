"""docs/paper.md has every number that the paper prints, and every file, function and command in it exists."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest
import tyro

from aspc.__main__ import main
from aspc.lab import suites

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "paper.md"

# What a LaTeX run of the paper's source prints.
EQUATIONS, TABLES, FIGURES = 57, 13, ["1a", "1b", "2", "3", "4", "5a", "5b", "6a", "6b", *map(str, range(7, 13))]
STATEMENTS = ["Assumption 4.1", "Proposition 4.2", "Proposition 4.3", "Theorem 4.4", "Theorem 4.5"]
LEMMAS = [f"Lemma A.{i}" for i in range(1, 6)]
SUBSECTIONS = {"A": 4, "B": 2, "C": 2, "D": 4, "E": 3, "F": 2, "G": 0}


class Row(NamedTuple):
    number: str
    code: str
    command: str


def rows() -> list[Row]:
    """The rows of the map: those that begin with a number of the paper."""
    kinds = "Equation|Table|Figure|Algorithm|Assumption|Proposition|Theorem|Lemma|Appendix"
    found = []
    for line in PAGE.read_text("utf-8").splitlines():
        if re.match(rf"\| (?:{kinds}) ", line):
            number, _, code, command = (cell.strip() for cell in line.split("|")[1:-1])
            found.append(Row(number, code, command))
    return found


ROWS = rows()
LINKS = re.findall(r"\[([^]]+)\]\(([^)#]+)[^)]*\)", PAGE.read_text("utf-8"))


def of_kind(kind: str) -> list[str]:
    return [row.number.removeprefix(f"{kind} ") for row in ROWS if row.number.startswith(f"{kind} ")]


def test_no_number_is_missing_or_out_of_order() -> None:
    assert of_kind("Equation") == [str(i + 1) for i in range(EQUATIONS)]
    assert of_kind("Table") == [str(i + 1) for i in range(TABLES)]
    assert of_kind("Figure") == FIGURES
    assert of_kind("Algorithm") == ["1"]
    assert [row.number for row in ROWS if row.number in {*STATEMENTS, *LEMMAS}] == STATEMENTS + LEMMAS
    with_parts = ((letter, *(f"{letter}.{i + 1}" for i in range(n))) for letter, n in SUBSECTIONS.items())
    assert of_kind("Appendix") == list(chain.from_iterable(with_parts))
    assert len({row.number for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number)
def test_rows_have_code_and_command_or_a_reason(row: Row) -> None:
    assert "`" in row.command or row.command.startswith(("none: ", "not the paper's: "))
    assert "](../" in row.code or row.command.startswith("none: ")


@pytest.mark.parametrize("target", sorted({target for _, target in LINKS}))
def test_linked_files_exist(target: str) -> None:
    assert (PAGE.parent / target).is_file()


@pytest.mark.parametrize(("text", "target"), sorted(link for link in set(LINKS) if link[1].endswith(".py")))
def test_a_named_function_is_in_the_linked_file(text: str, target: str) -> None:
    module_name, _, attribute = text.strip("`").partition(":")
    if module_name.startswith("report."):
        pytest.importorskip("pandas", reason="the extra `report` is not installed")
    module = importlib.import_module(f"aspc.{module_name}")
    found = reduce(getattr, filter(None, attribute.split(".")), module)
    assert Path(inspect.getfile(found)).resolve() == (PAGE.parent / target).resolve()


class OptionsParsed(Exception):
    """Raised once the options are parsed, so that the command does not run."""


def parse(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    """Parse the options of a command without running it. Unknown options end the program."""
    real = tyro.cli

    def only_parse(*args: object, **kwargs: object) -> None:
        raise OptionsParsed(real(*args, **kwargs))  # type: ignore[call-overload]

    monkeypatch.setattr(tyro, "cli", only_parse)
    with pytest.raises(OptionsParsed) as understood:
        main(argv)
    return understood.value.args[0]


COMMANDS = sorted({command for row in ROWS for command in re.findall(r"`([^`]+)`", row.command)})


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exist(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    program, *argv = shlex.split(command)
    if program == "pytest":
        file, _, test = argv[0].partition("::")
        assert not test or f"def {test}(" in (ROOT / file).read_text("utf-8")
        return
    assert program == "aspc"
    if "--help-all" in argv:
        with pytest.raises(SystemExit) as end:
            main(argv)
        assert end.value.code == 0
        return
    asked = parse(argv, monkeypatch)
    for name in getattr(asked, "suites", ()):
        suites.get(name)
    for trace in getattr(asked, "traces", ()):
        assert (ROOT / trace).is_file()


def suites_of(row: Row) -> list[str]:
    return [name for names in re.findall(r"`aspc bench ([a-z0-9_ ]+)`", row.command) for name in names.split()]


@pytest.mark.parametrize("row", [row for row in ROWS if suites_of(row)], ids=lambda row: row.number)
def test_suite_sources_match_the_map(row: Row) -> None:
    for name in suites_of(row):
        letter = row.number.removeprefix("Appendix ").split(".")[0]
        of = row.number if not row.number.startswith("Appendix") else rf"appendix {letter}"
        assert re.search(rf"\b{of}\b", suites.get(name).source, re.IGNORECASE), name


def test_every_suite_of_the_paper_is_in_the_map() -> None:
    assert {name for row in ROWS for name in suites_of(row)} == set(suites.get("paper").parts)
