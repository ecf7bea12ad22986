"""CSV, Parquet and Arrow tables: separators, cells, flags, and the errors about invalid ones."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from log_files import columns, refuse, same, write_as, write_csv, write_table

from aspc import data
from aspc.errors import AspcError


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separator_is_detected_from_the_header(tmp_path: Path, log: dict[str, np.ndarray], separator: str) -> None:
    table = {'"obs_a, in °C; or K"' if name == "obs_0" else name: values for name, values in columns(log).items()}
    dataset = data.load(write_csv(tmp_path / "mine.csv", table, separator))
    same(dataset, log, atol=1e-6)
    assert dataset.observation_names == ("obs_a, in °C; or K", "obs_1", "obs_2")


@pytest.mark.parametrize("suffix", [".tsv", ".tsv.gz"])
def test_tab_separated_files_are_tables(tmp_path: Path, log: dict[str, np.ndarray], suffix: str) -> None:
    dataset = data.load(write_csv(tmp_path / f"plant.7{suffix}", columns(log), "\t"))
    same(dataset, log, atol=1e-6)
    assert dataset.name == "plant.7"


def test_whole_numbers_and_truth_values_are_choices_in_every_format(tmp_path: Path, log) -> None:
    table = {**columns(log), "action_0": np.arange(60) % 2, "action_1": np.arange(60) % 3}
    whole = data.load(write_csv(tmp_path / "numbers.csv", table), continuous="*")
    assert any("all actions are integers" in note for note in whole.notes)
    speeds = data.load(
        write_csv(tmp_path / "speeds.csv", {**table, "action_0": 20 * np.arange(60), "action_1": np.full(60, 5)})
    )
    assert not any("all actions are integers" in note for note in speeds.notes)  # too many different ones
    assert whole.action_space is None
    for path in (
        write_csv(tmp_path / "mine.csv", table),
        write_table(tmp_path / "mine.parquet", table),
        write_table(tmp_path / "mine.arrow", table),
        write_as(tmp_path / "mine.npz", {**log, "actions": np.stack([np.arange(60) % 2, np.arange(60) % 3], 1)}),
    ):
        found = data.load(path)
        assert found.action_space is not None
        assert [factor.choices for factor in found.action_space.factors] == [("0", "1"), ("0", "1", "2")]
        np.testing.assert_array_equal(found.actions[:4], np.eye(5)[[0, 1, 0, 1]] + np.eye(5)[[2, 3, 4, 2]])
    integers = {**log, "actions": np.ones((60, 2), dtype=int)}
    for path in (write_as(tmp_path / "same.npz", integers), write_as(tmp_path / "same.hdf5", integers)):
        refuse(path, "is discrete, but all its values are")
    floats = log["actions"][:, 1]
    for others in ({}, {"action_1": floats}):  # truth values are choices next to numbers too, in every format
        booleans = {**table, "action_0": np.arange(60) % 2 == 0, **others}
        for path in (
            write_csv(tmp_path / "booleans.csv", booleans),
            write_table(tmp_path / "booleans.parquet", booleans),
        ):
            found = data.load(path)
            assert found.action_space is not None
            assert found.action_space.factors[0] == ("action_0", ("false", "true"))
            np.testing.assert_array_equal(found.actions[:, 1], booleans["action_0"])
            assert bool(found.action_space.factors[1].choices) == (not others)
    half = {**table, "action_1": floats}
    assert data.load(write_table(tmp_path / "half.parquet", half), continuous="action_0").action_size == 2


def test_invalid_tables_are_rejected(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    path = write_csv(tmp_path / "words.csv", {**columns(log), "reward": np.array(["1.0", "high"] * 30)})
    remedy = "or drop that line and start a new episode after it"
    refuse(path, rf"words.csv, line 3: the cell of column 'reward' holds 'high', not a number; fix it, {remedy}")
    path = write_csv(tmp_path / "holes.csv.gz", {**columns(log), "terminal": np.array(["0", "1", " "] * 20)})
    refuse(path, rf"holes.csv.gz, line 4: the cell of column 'terminal' is empty; fill it, {remedy}")
    cut = write_csv(tmp_path / "cut.csv", columns(log))
    cut.write_text(cut.read_text().rstrip().rpartition(",")[0])
    refuse(cut, rf"cut.csv, line 61 has 7 cells, but the header has 8; fix it, {remedy}")
    (tmp_path / "twice.csv").write_text("obs_0,obs_0,action_0,reward,terminal\n0,1,0.5,0,0\n")
    refuse(tmp_path / "twice.csv", "duplicate column 'obs_0'")
    path = write_csv(tmp_path / "truth.csv", {**columns(log), "obs_1": np.array(["1.0", "True"] * 30)})
    refuse(path, r"truth.csv, line 3: the cell of column 'obs_1' holds 'True', not a number")
    path = write_csv(tmp_path / "flags.csv", {**columns(log), "timeout": np.array(["0", "2"] * 30)})
    refuse(path, r"flags.csv, line 3: the cell of column 'timeout' holds '2', but must be 0 or 1")
    path = write_csv(tmp_path / "decimals.csv", {**columns(log), "obs_1": np.array(["1", "-1,5"] * 30)}, ";")
    refuse(path, r"line 3: the cell of column 'obs_1' holds '-1,5', not a number; write decimals with a point")
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({**columns(log), "reward": pa.array([None] + [1.0] * 59)}), tmp_path / "holes.parquet")
    refuse(
        tmp_path / "holes.parquet", "column 'reward' has 1 empty cell. Fill it, or drop its row and start a new episode"
    )
    pq.write_table(pa.table({**columns(log), "reward": pa.array(["x"] * 60)}), tmp_path / "text.parquet")
    refuse(tmp_path / "text.parquet", "column 'reward' holds text, not numbers. Encode it as numbers, list it in")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_boolean_columns_are_numbers_and_text_is_rejected(tmp_path: Path, log, suffix: str) -> None:
    def write(**changes: np.ndarray) -> Path:
        return (write_csv if suffix == ".csv" else write_table)(tmp_path / f"x{suffix}", {**columns(log), **changes})

    for truths in (["obs_1"], ["obs_0", "obs_1", "obs_2", "reward"]):
        on = np.arange(60) % 3 == 0
        dataset = data.load(write(**dict.fromkeys(truths, on)))
        np.testing.assert_array_equal(dataset.observations[:, 1], on)
    for words in (["B000", "B001"], ["AUTO", "MAN"]):
        refuse(
            write(obs_1=np.array(words * 30)),
            rf"^x\{suffix}: column 'obs_1' holds text, not numbers. Encode it .* select other columns with --map\.$",
        )


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_flags_and_episode_ids_can_be_text(tmp_path: Path, log: dict[str, np.ndarray], suffix: str) -> None:
    def write(**changes: np.ndarray) -> Path:
        return (write_csv if suffix == ".csv" else write_table)(tmp_path / f"x{suffix}", {**columns(log), **changes})

    for yes, no in (("yes", "No"), ("TRUE", "false"), ("T", "f"), ("Y", "n"), ("1", "0")):
        same(data.load(write(terminal=np.where(log["terminals"], yes, no))), log, atol=1e-6)
    refuse(write(terminal=np.array(["yes", "maybe"] * 30)), "'terminal'.* holds 'maybe', not a flag; fix it, or drop")
    refuse(write(timeout=np.array(["yes", "2"] * 30)), "'timeout'.* holds '2', but must be 0 or 1")

    names = np.repeat([f"6f1c-{i}e4" for i in range(6)], 10)
    dataset = data.load(write(episode=names, timeout=np.zeros(60, dtype=bool)))
    np.testing.assert_array_equal(dataset.timeouts, log["timeouts"])
    assert not any("reappear" in note for note in dataset.notes)
    back = data.load(write(episode=np.roll(names, 5)))
    assert any("reappear" in note for note in back.notes)
    refuse(write(episode=np.array(["a", " "] * 30)), "'episode'.* is empty; fill it, or drop")


def test_empty_boolean_cell_is_located(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    path = write_csv(tmp_path / "x.csv", {**columns(log), "obs_1": np.array(["True", "False", ""] * 20)})
    refuse(path, "x.csv, line 4: the cell of column 'obs_1' is empty")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-le"])
def test_text_that_is_not_utf8_is_rejected(tmp_path: Path, log: dict[str, np.ndarray], encoding: str) -> None:
    path = write_csv(tmp_path / "x.csv", {"obs_°C": log["rewards"], **columns(log)})
    path.write_bytes(path.read_text("utf-8").encode(encoding))
    refuse(path, r"^x\.csv: the text is not UTF-8. Save it as UTF-8")


@pytest.mark.parametrize("cell", ["nan", "-inf", "1e300"])
def test_invalid_numbers_are_located_by_line_and_column(tmp_path: Path, log, cell: str) -> None:
    cells = log["observations"][:, 1].astype(str).astype(object)
    cells[40] = cell
    path = write_csv(tmp_path / "mine.csv", {**columns(log), "obs_1": cells})
    lines = path.read_text().split("\n")
    path.write_text("\n".join([*lines[:3], "", *lines[3:]]))  # lines are those of an editor, so empty ones count
    refuse(
        path, rf"^mine\.csv, line 43: the cell of column 'obs_1' holds '{cell}', which is NaN, infinite or too large"
    )


def test_empty_tables_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "none.csv"
    for end in ("", "\n", "\n\n \n"):
        path.write_text("obs_0,action_0,reward,episode" + end)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            refuse(path, r"^none\.csv: the dataset is empty; no row follows the header\.$")


def test_a_missing_extra_is_named(tmp_path: Path, log: dict[str, np.ndarray], monkeypatch) -> None:
    path = write_table(tmp_path / "x.parquet", columns(log))
    site = tmp_path / "site"
    site.mkdir()
    (site / "pyarrow.py").write_text("raise ImportError\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    refuse(path, r"pip install 'aspc\[tables\]'")


@pytest.mark.parametrize(
    ("line", "fault"),
    [("2,0,5,1,0", "line 3 has 5 cells, but the header has 4"), ("2,0.5,1,0,", ""), ('2,0.5,1,0," "', ""), ("", "")],
)
def test_lines_with_extra_cells_are_rejected(tmp_path, line: str, fault: str):
    """A decimal comma in a file with commas would move all cells behind it; empty cells at the end move none."""
    path = tmp_path / "logs.csv"
    path.write_text(f"obs_a,act_b,reward,episode\n1,0.5,1,0\n{line}\n3,0.1,1,0\n")
    if not fault:
        assert len(data.load(path)) == 3 - (not line)
        return
    with pytest.raises(AspcError, match=fault):
        data.load(path)
