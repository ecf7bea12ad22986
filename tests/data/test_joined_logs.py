"""Files of one log, such as daily exports, joined in chronological order; and files of several logs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from log_files import refuse, write_csv, write_table

from aspc import data
from aspc.data.dataset import Dataset

MINUTE = np.timedelta64(60, "s")
Table = dict[str, np.ndarray]


def plant(rows: int = 60, start: str = "2026-01-01T00:00:00", first: int = 0) -> Table:
    """A log with a row per minute whose observation counts its rows."""
    times = np.datetime64(start) + (first + np.arange(rows)) * MINUTE
    level = np.arange(first, first + rows, dtype=float)
    return {
        "timestamp": np.char.replace(times.astype(str), "T", " "),
        "obs_level": level,
        "action_valve": np.sin(level),
        "reward": level / 10,
    }


def take(table: Table, rows: slice) -> Table:
    return {name: column[rows] for name, column in table.items()}


def load(folder: Path, tables: dict[str, Table], **options: object) -> Dataset:
    for name, table in tables.items():
        write_csv(folder / name, table)
    return data.load(str(folder / "*.csv"), **options)


def has_note(dataset: Dataset, text: str) -> bool:
    return any(text in note for note in dataset.notes)


def test_daily_exports_are_one_log(tmp_path: Path) -> None:
    whole = plant(90)
    days = {f"2026-01-0{i + 1}.csv": take(whole, slice(30 * i, 30 * i + 30)) for i in range(3)}
    dataset = load(tmp_path, days)
    assert dataset.episode_lengths.tolist() == [90]
    np.testing.assert_array_equal(dataset.observations[:, 0], np.arange(90))
    assert has_note(dataset, "3 files were read as one log: an episode ends at a gap in time, not at the end of a file")
    assert dataset.time.startswith("timestamp: 2026-01-01 to 2026-01-01 01:29:00, one row per 1 min")
    whole_log = data.load(write_csv(tmp_path / "whole.csv.gz", whole))
    np.testing.assert_array_equal(dataset.rewards, whole_log.rewards)
    apart = load(tmp_path, days, key_map={"time": "none"})
    assert apart.episode_lengths.tolist() == [30, 30, 30]


def test_files_are_put_in_order_of_time(tmp_path: Path) -> None:
    """Names do not tell the order, one file is newest first, and the last file follows after a gap."""
    tables = {
        "april.csv": take(plant(60), slice(20, 40)),
        "august.csv": take(plant(60), slice(19, None, -1)),
        "july.csv": plant(20, first=500),
    }
    dataset = load(tmp_path, tables)
    expected = [*range(40), *range(500, 520)]
    np.testing.assert_array_equal(dataset.observations[:, 0], expected)
    assert dataset.episode_lengths.tolist() == [40, 20]
    assert has_note(dataset, "files were put in chronological order: august.csv, april.csv, july.csv")
    assert has_note(dataset, "1 gap of more than 1.5 intervals")
    paths = [tmp_path / name for name in ("july.csv", "april.csv", "august.csv")]
    np.testing.assert_array_equal(data.load(paths).observations, dataset.observations)
    np.testing.assert_array_equal(data.load(tmp_path).observations, dataset.observations)


def test_rows_in_two_files_are_kept_once(tmp_path: Path) -> None:
    """Also the terminal row, whose copy would otherwise be an episode of its own."""
    whole = {**plant(60), "terminal": np.arange(60) == 34}
    dataset = load(tmp_path, {"a.csv": take(whole, slice(0, 36)), "b.csv": take(whole, slice(30, 60))})
    np.testing.assert_array_equal(dataset.observations[:, 0], np.arange(60))
    assert dataset.episode_lengths.tolist() == [35, 25]
    assert has_note(dataset, "6 rows appear in more than one file; only one copy of each was kept")


def test_logs_of_several_machines_stay_apart(tmp_path: Path) -> None:
    other = plant(60)
    other["obs_level"] = other["obs_level"] + 1000
    dataset = load(tmp_path, {"pump_a.csv": plant(60), "pump_b.csv": other})
    assert dataset.episode_lengths.tolist() == [60, 60]
    assert has_note(
        dataset, "the times of pump_a.csv and pump_b.csv overlap, but their rows differ: each file was read as"
    )
    shifted = {**plant(60), "timestamp": plant(60, start="2026-01-01T00:00:30")["timestamp"]}
    dataset = load(tmp_path, {"pump_b.csv": shifted})
    assert dataset.episode_lengths.tolist() == [60, 60]
    assert has_note(dataset, "overlap, but their rows differ")


def test_conflicting_copies_are_refused(tmp_path: Path) -> None:
    corrected = take(plant(60), slice(30, 60))
    corrected["reward"] = corrected["reward"].copy()
    corrected["reward"][4] = -7
    write_csv(tmp_path / "a.csv", plant(50))
    write_csv(tmp_path / "b.csv", corrected)
    refuse(
        tmp_path / "*.csv",
        r"the times of a.csv and b.csv overlap, and most rows with the same time are identical, but 1 differ .first "
        r"at 2026-01-01 00:34:00.. If the files are parts of one log, keep one row per time; if they are separate "
        r"logs, pass --map time=none",
    )


def test_an_episode_column_decides(tmp_path: Path) -> None:
    """Two machines in every daily file: each is one log across the days."""

    def day(first: int) -> Table:
        parts = [plant(20, first=first), plant(20, first=first)]
        parts[1]["obs_level"] = parts[1]["obs_level"] + 1000
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return {**joined, "machine": np.repeat(["a", "b"], 20)}

    dataset = load(tmp_path, {"1.csv": day(0), "2.csv": day(20)}, key_map={"episode": "machine"})
    assert dataset.episode_lengths.tolist() == [40, 40]
    np.testing.assert_array_equal(dataset.observations[:, 0], [*range(40), *range(1000, 1040)])
    shifts = {f"{i}.csv": {**plant(20, first=20 * (i - 1)), "episode": np.full(20, i)} for i in (1, 2)}
    for path in tmp_path.iterdir():
        path.unlink()
    assert load(tmp_path, shifts).episode_lengths.tolist() == [20, 20]


def test_a_terminal_ends_the_episode_of_a_file(tmp_path: Path) -> None:
    ended = {**plant(20), "done": np.arange(20) == 19}
    dataset = load(tmp_path, {"a.csv": ended, "b.csv": {**plant(20, first=20), "done": np.zeros(20, bool)}})
    assert dataset.episode_lengths.tolist() == [20, 20]
    assert np.flatnonzero(dataset.terminals).tolist() == [19]


def test_clocks_that_start_at_zero_do_not_order_files(tmp_path: Path) -> None:
    tables = {f"{i}.csv": {**plant(20, first=20 * i), "timestamp": np.arange(20.0) + 5 * (i == 0)} for i in (0, 1)}
    dataset = load(tmp_path, tables, key_map={"time": "timestamp"})
    assert dataset.episode_lengths.tolist() == [20, 20]
    np.testing.assert_array_equal(dataset.observations[:, 0], np.arange(40))
    assert not has_note(dataset, "one log")


def test_categories_of_all_files_are_numbered_alike(tmp_path: Path) -> None:
    def day(first: int, modes: list[str]) -> Table:
        return {**plant(20, first=first), "obs_mode": np.resize(np.array(modes), 20)}

    tables = {"1.csv": day(0, ["heat", "off"]), "2.csv": day(20, ["cool", "off", "heat"])}
    dataset = load(tmp_path, tables, one_hot="obs_mode")
    assert dataset.observation_names == ("obs_level", "obs_mode=heat", "obs_mode=off", "obs_mode=cool")
    expected = np.concatenate([np.resize(["heat", "off"], 20), np.resize(["cool", "off", "heat"], 20)])
    np.testing.assert_array_equal(dataset.observations[:, 1:], expected[:, None] == np.array(["heat", "off", "cool"]))


def test_formats_can_be_mixed_and_resampled(tmp_path: Path) -> None:
    paths = [write_csv(tmp_path / "1.csv", plant(30)), write_table(tmp_path / "2.parquet", plant(30, first=30))]
    assert data.load(paths).episode_lengths.tolist() == [60]
    held = data.load(paths, resample="hold", interval=120)
    np.testing.assert_array_equal(held.observations[:, 0], np.arange(0, 60, 2))


@pytest.mark.parametrize("cell", ["", "nan"])
def test_invalid_times_name_the_file(tmp_path: Path, cell: str) -> None:
    wrong = plant(20, first=20)
    wrong["timestamp"] = wrong["timestamp"].astype(object)
    wrong["timestamp"][3] = cell
    write_csv(tmp_path / "a.csv", plant(20))
    write_csv(tmp_path / "b.csv", wrong)
    refuse(tmp_path / "*.csv", "b.csv, line 5: the cell of column 'timestamp'")
