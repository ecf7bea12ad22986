"""Empty cells: listed, split off, filled, interpolated or dropped, and counted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from log_files import refuse, write_csv, write_table

from aspc import data
from aspc.data.dataset import Dataset
from aspc.data.read_options import ReadOptions
from aspc.errors import AspcError

Table = dict[str, np.ndarray]


def plant(rows: int = 60) -> Table:
    """Six episodes of a ramp; column names are those of the arrays."""
    return {
        "obs_level": np.arange(rows, dtype=float),
        "obs_flow": np.sin(np.arange(rows)).round(4),
        "action_valve": np.random.default_rng(0).uniform(0, 100, rows).round(2),
        "reward": np.arange(rows) / 10,
        "episode": np.arange(rows) // 10,
    }


def with_empty(column: str, rows: list[int], word: str = "") -> Table:
    table = plant()
    table[column] = table[column].astype(str).astype(object)
    table[column][rows] = word
    return table


def as_parquet(path: Path, table: Table) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def array(column: np.ndarray) -> pa.Array:
        return pa.array([None if str(cell) == "" else float(cell) for cell in column])

    pq.write_table(pa.table({name: array(column) for name, column in table.items()}), path)
    return path


def as_csv(path: Path, table: Table) -> Path:
    return write_csv(path, table)


def load(folder: Path, table: Table, write: Callable[[Path, Table], Path] = as_csv, **options: object) -> Dataset:
    return data.load(write(folder / ("x.csv" if write is as_csv else "x.parquet"), table), **options)


def note(dataset: Dataset) -> str:
    (found,) = [note for note in dataset.notes if re.search("cells? (is|are) empty", note)]
    return found


def test_the_first_ten_bad_cells_are_listed(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "x.csv", with_empty("obs_flow", list(range(3, 18))))
    refuse(
        path,
        r"^x\.csv, line 5: the cell of column 'obs_flow' is empty; fill it, .* 15 cells are invalid: "
        r"line 5 'obs_flow', line 6 'obs_flow', .*line 14 'obs_flow' and 5 more\. "
        r".*--missing split, ffill, interpolate or drop\.$",
    )


@pytest.mark.parametrize("write", [as_csv, as_parquet])
def test_split_ends_the_episode_before_a_gap(tmp_path: Path, write: Callable[[Path, Table], Path]) -> None:
    dataset = load(tmp_path, with_empty("obs_flow", [4, 5]), write, missing="split")
    assert dataset.episode_lengths.tolist() == [4, 4, 10, 10, 10, 10, 10]
    pairs = dataset.transitions()
    np.testing.assert_array_equal(pairs.next_observations[:, 0], pairs.observations[:, 0] + 1)
    assert note(dataset) == (
        "2 cells are empty, in 2 of 60 rows (2 in 'obs_flow'; at most 2 consecutive rows): 2 rows were removed, and an "
        "episode ends before each gap."
    )


@pytest.mark.parametrize("write", [as_csv, as_parquet])
def test_ffill_repeats_values_within_an_episode(tmp_path: Path, write: Callable[[Path, Table], Path]) -> None:
    dataset = load(tmp_path, with_empty("obs_level", [4, 5, 10]), write, missing="ffill")
    np.testing.assert_array_equal(dataset.observations[:6, 0], [0, 1, 2, 3, 3, 3])
    assert dataset.episode_lengths.tolist() == [10, 9, 10, 10, 10, 10]  # nothing comes before the first row
    assert "2 rows were filled with the last value of the episode; 1 row was removed" in note(dataset)


def test_interpolation_draws_lines_between_known_values(tmp_path: Path) -> None:
    table = with_empty("obs_level", [4, 5, 9, 10])
    dataset = load(tmp_path, table, missing="interpolate")
    np.testing.assert_allclose(dataset.observations[:9, 0], np.arange(9), rtol=1e-6)
    assert dataset.episode_lengths.tolist() == [9, 9, 10, 10, 10, 10]  # no line crosses the end of an episode
    actions = load(tmp_path, with_empty("action_valve", [4]), missing="interpolate").actions[:, 0]
    assert actions[4] == actions[3]  # an actuator holds its last command


def test_interpolation_uses_the_times(tmp_path: Path) -> None:
    table = with_empty("obs_level", [5])
    times = np.array([0, 1, 2, 3, 4, 7, 8, 9, 10, 11]) * 60 + 1_700_000_000
    table = {name: column[:10] for name, column in table.items()} | {"time": times}
    dataset = load(tmp_path, table, missing="interpolate", max_gap=5)
    np.testing.assert_allclose(dataset.observations[5, 0], 4 + 2 * 3 / 4, rtol=1e-6)


def test_drop_joins_the_neighbors_but_not_two_episodes(tmp_path: Path) -> None:
    dataset = load(tmp_path, with_empty("obs_flow", [4, 9, 10]), missing="drop")
    assert dataset.episode_lengths.tolist() == [8, 9, 10, 10, 10, 10]
    assert "3 rows were removed, and their neighbors count as consecutive" in note(dataset)
    flags = with_empty("obs_flow", [9]) | {"terminal": (np.arange(60) % 10 == 9).astype(int)}
    del flags["episode"]
    assert load(tmp_path, flags, missing="drop").episode_lengths.tolist() == [9, 10, 10, 10, 10, 10]


@pytest.mark.parametrize("word", ["nan", "NA", "null", "-", "None", "#N/A"])
def test_usual_words_are_missing_values(tmp_path: Path, word: str) -> None:
    table = with_empty("obs_level", [4], word)
    refuse(write_csv(tmp_path / "x.csv", table), f"line 6: the cell of column 'obs_level' holds '{word}'")
    assert load(tmp_path, table, missing="split").episode_lengths[0] == 4


def test_missing_flags_and_other_words_stay_errors(tmp_path: Path) -> None:
    refuse(write_csv(tmp_path / "x.csv", with_empty("episode", [4])), "'episode' is empty", missing="split")
    refuse(
        write_csv(tmp_path / "x.csv", with_empty("reward", [4], "high")), "holds 'high', not a number", missing="split"
    )
    refuse(write_csv(tmp_path / "x.csv", plant()), "--missing must be error, split, ffill", missing="zero")


@pytest.mark.parametrize("write", [as_csv, as_parquet])
def test_last_rows_need_no_action_and_no_reward(tmp_path: Path, write: Callable[[Path, Table], Path]) -> None:
    """A log of observations, and of the actions between them, has one action fewer per episode."""
    table = with_empty("action_valve", [9, 19, 29, 39, 49, 59])
    table["reward"] = with_empty("reward", [59])["reward"]
    dataset = load(tmp_path, table, write, action_low=0, action_high=100)
    complete = load(tmp_path, plant(), write, action_low=0, action_high=100)
    got, expected = dataset.transitions()._asdict(), complete.transitions()._asdict()
    next_actions = got.pop("next_actions")
    np.testing.assert_array_equal(next_actions[8::9], got["actions"][8::9])  # as where no action was logged next
    for key, array in got.items():
        np.testing.assert_array_equal(array, expected[key], err_msg=key)
    assert (
        "6 episodes have no action or no reward in the last row: only the observation there is used." in dataset.notes
    )
    # Without the dropped rows' values every action counts: in the middle, and in a terminal row.
    middle = with_empty("action_valve", [9, 14])
    says = "line 11: the cell of column 'action_valve' is empty.*2 cells" if write is as_csv else "2 empty cells"
    refuse(write(tmp_path / ("y.csv" if write is as_csv else "y.parquet"), middle), says)
    terminal = {**with_empty("action_valve", [9]), "terminal": (np.arange(60) == 9).astype(int)}
    refuse(write(tmp_path / ("y.csv" if write is as_csv else "y.parquet"), terminal), "action_valve")


def test_last_actions_can_be_nan_in_arrays(tmp_path: Path) -> None:
    table = plant()
    actions = table["action_valve"][:, None].astype(np.float32)
    actions[9::10] = np.nan
    np.savez(
        tmp_path / "x.npz",
        observations=np.stack([table["obs_level"], table["obs_flow"]], axis=1),
        actions=actions,
        rewards=table["reward"],
        episodes=table["episode"],
    )
    assert len(data.load(tmp_path / "x.npz").transitions().rewards) == 54


def test_truth_values_can_be_missing(tmp_path: Path) -> None:
    table = {**plant(), "obs_on": np.array(["True", "False"], dtype=object)[np.arange(60) % 2]}
    table["obs_on"][5] = ""
    filled = load(tmp_path, table, missing="ffill")
    np.testing.assert_array_equal(filled.observations[3:7, 2], [0, 1, 1, 1])


@pytest.mark.parametrize("write", [as_csv, as_parquet])
def test_kpis_can_be_empty(tmp_path: Path, write: Callable[[Path, Table], Path]) -> None:
    """A laboratory value that is measured once per shift costs no row."""
    table = {**plant(), "lab": plant()["obs_level"].astype(str).astype(object)}
    table["lab"][np.arange(60) % 10 != 0] = ""
    dataset = load(tmp_path, table, write, kpis="lab")
    assert len(dataset) == 60
    np.testing.assert_array_equal(dataset.kpis[::10, 0], np.arange(0, 60, 10))
    assert np.isnan(dataset.kpis).sum() == 54
    table = with_empty("obs_flow", [4]) | {"lab": table["lab"]}
    assert len(load(tmp_path, table, write, kpis="lab", missing="split")) == 59


def test_missing_categories_are_errors_or_repeated(tmp_path: Path) -> None:
    table = {**plant(), "obs_mode": np.array(["a", "b"], dtype=object)[np.arange(60) % 2]}
    table["obs_mode"][5] = ""
    path = write_csv(tmp_path / "x.csv", table)
    refuse(path, "line 7: the cell of column 'obs_mode' is empty", one_hot="obs_mode")
    filled = data.load(path, one_hot="obs_mode", missing="interpolate")
    np.testing.assert_array_equal(filled.observations[4:7, 2:], [[1, 0], [1, 0], [1, 0]])
    table["obs_mode"][5] = None
    frame = pd.DataFrame(table)
    with pytest.raises(AspcError, match=r"column 'obs_mode' is empty in row 6\. Fill it, or pass --missing split"):
        data.load(frame, one_hot="obs_mode")


def test_options_of_hostile_configs_are_rejected() -> None:
    """A run's config holds these options, and may have been edited."""
    for options in (
        {"reward": 5},
        {"kpis": 5},
        {"one_hot": [1]},
        {"max_gap": "x"},
        {"interval": True},
        {"missing": []},
    ):
        with pytest.raises(AspcError, match=" must be "):
            ReadOptions.of(**options)


def test_parquet_with_nan_is_read_as_missing(tmp_path: Path) -> None:
    table = plant()
    table["obs_flow"][4] = np.nan
    path = write_table(tmp_path / "x.parquet", table)
    refuse(path, "'observations' has a NaN, infinite or too large value in row 5 of 60")
    assert data.load(path, missing="interpolate").episode_lengths.tolist() == [10] * 6


@pytest.mark.parametrize("policy", ["split", "ffill", "interpolate", "drop"])
def test_columns_without_values_are_named(tmp_path: Path, policy: str) -> None:
    table = {"obs_a": np.arange(30.0), "obs_b": np.full(30, ""), "action": np.arange(30.0), "reward": np.ones(30)}
    path = write_csv(tmp_path / "x.csv", {**table, "episode": np.zeros(30, int)})
    refuse(path, r"Every row has an empty cell that cannot be filled \(30 in 'obs_b'\)\. Exclude these", missing=policy)
