"""Rows in chronological order: sorted, without duplicates, split at gaps, and resampled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from log_files import refuse, write_csv, write_table

from aspc import data
from aspc.data.dataset import Dataset
from aspc.data.diagnostics import summarize
from aspc.data.time_cells import format_duration, parse_joined_times, parse_time, parse_times

START = np.datetime64("2024-03-01T08:00:00")
Table = dict[str, np.ndarray]


def stamps(seconds: np.ndarray) -> np.ndarray:
    return np.char.replace((START + np.asarray(seconds).astype("timedelta64[s]")).astype(str), "T", " ")


def plant(rows: int = 60, step: int = 60) -> Table:
    """A log whose observation counts its rows."""
    return {
        "timestamp": stamps(np.arange(rows) * step),
        "obs_level": np.arange(rows, dtype=float),
        "action_valve": np.random.default_rng(0).uniform(0, 100, rows).round(2),
        "reward": np.arange(rows) / 10,
    }


def take(table: Table, rows: np.ndarray | slice) -> Table:
    return {name: column[rows] for name, column in table.items()}


def load(folder: Path, table: Table, **options: object) -> Dataset:
    return data.load(write_csv(folder / "plant.csv", table), **options)


def has_note(dataset: Dataset, text: str) -> bool:
    return any(text in note for note in dataset.notes)


def test_a_time_column_alone_defines_episodes(tmp_path: Path) -> None:
    table = plant()
    table["timestamp"] = stamps(np.arange(60) * 60 + np.repeat([0, 7200, 90_000], 20))
    dataset = load(tmp_path, table)
    assert dataset.episode_lengths.tolist() == [20, 20, 20]
    assert has_note(dataset, "2 gaps of more than 1.5 intervals (90 s; the longest is 23.02 h) each end an episode")
    span = "2024-03-01 08:00:00 to 2024-03-02 09:59:00"
    assert dataset.time == f"timestamp: {span}, one row per 1 min (100 % of the intervals)"
    assert "time             timestamp: 2024-03-01" in summarize(dataset).text()


def test_newest_first_exports_are_sorted(tmp_path: Path) -> None:
    dataset = load(tmp_path, take(plant(), slice(None, None, -1)))
    np.testing.assert_array_equal(dataset.observations[:, 0], np.arange(60))
    assert has_note(dataset, "rows are not in chronological order (the time decreases 59 times), so they were sorted")
    np.testing.assert_array_equal(dataset.transitions().next_observations[:, 0], np.arange(1, 60))


def test_flags_move_with_their_rows(tmp_path: Path) -> None:
    table = {**plant(), "done": (np.arange(60) % 20 == 19).astype(int)}
    dataset = load(tmp_path, take(table, slice(None, None, -1)))
    assert np.flatnonzero(dataset.terminals).tolist() == [19, 39, 59]


def test_rows_are_sorted_within_their_episodes(tmp_path: Path) -> None:
    """Two machines whose rows alternate, each with its own clock readings."""
    table = {**plant(), "episode": np.arange(60) % 2}
    table["timestamp"] = stamps(np.arange(60) // 2 * 60)
    dataset = load(tmp_path, table)
    assert dataset.episode_lengths.tolist() == [30, 30]
    np.testing.assert_array_equal(dataset.observations[:30, 0], np.arange(0, 60, 2))
    assert not has_note(dataset, "reappear")


def test_rows_that_were_never_adjacent_are_not_paired(tmp_path: Path) -> None:
    kept = np.sort(np.random.default_rng(1).choice(600, 420, replace=False))
    dataset = load(tmp_path, take(plant(600), kept))
    pairs = dataset.transitions()
    np.testing.assert_array_equal(pairs.next_observations[:, 0], pairs.observations[:, 0] + 1)
    assert has_note(dataset, "gaps of more than 1.5 intervals")
    joined = load(tmp_path, take(plant(600), kept), max_gap=100)
    assert joined.episode_lengths.tolist() == [420]


@pytest.mark.parametrize("write", [write_csv, write_table])
@pytest.mark.parametrize(
    "times",
    [
        lambda t: t,
        lambda t: np.char.add(np.char.replace(t, " ", "T"), "Z"),
        lambda t: np.char.add(t, "+02:00"),
        lambda t: np.char.add(t, ".250"),
        lambda t: np.char.replace(t, "-", "/"),
        lambda t: np.array([f"{x[8:10]}.{x[5:7]}.{x[:4]} {x[11:]}" for x in t]),
    ],
    ids=["iso", "utc", "zone", "fraction", "slashes", "day first"],
)
def test_common_notations_are_times(tmp_path: Path, write: Callable[..., Path], times: Callable) -> None:
    table = take(plant(), slice(None, None, -1))
    table["timestamp"] = times(table["timestamp"])
    path = write(tmp_path / ("x.csv" if write is write_csv else "x.parquet"), table)
    np.testing.assert_array_equal(data.load(path).observations[:, 0], np.arange(60))


@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9])
def test_numbers_since_1970_are_times(tmp_path: Path, unit: int) -> None:
    table = plant()
    table["timestamp"] = (1_700_000_000 + np.arange(60) * 60) * unit
    dataset = load(tmp_path, table)
    assert dataset.time.startswith("timestamp: 2023-11-14 22:13:20 to 2023-11-14 23:12:20, one row per 1 min")


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_numbers_and_texts_in_arrow_files_are_times(tmp_path: Path, suffix: str) -> None:
    table = take({**plant(), "episode": np.zeros(60, int)}, slice(None, None, -1))
    seconds = 1_700_000_000 + np.arange(60)[::-1] * 60
    for i, times in enumerate((seconds, seconds * 1000, seconds * 1.0, table["timestamp"])):
        dataset = data.load(write_table(tmp_path / f"{i}{suffix}", {**table, "timestamp": times}))
        np.testing.assert_array_equal(dataset.observations[:, 0], np.arange(60))
        assert has_note(dataset, "so they were sorted")


@pytest.mark.parametrize(
    "times",
    [
        [f"01/{1 + i // 24:02}/2026 {1 + i % 12}:00 {'AP'[i % 24 // 12]}M" for i in range(60)],
        [f"{1 + i // 24:02}-Jan-2026 {i % 24:02}:00" for i in range(60)],
        [str(i / 10) for i in range(60)],
    ],
    ids=["month first", "month names", "elapsed"],
)
def test_unchecked_orders_are_warned_about(tmp_path: Path, times: list[str]) -> None:
    table = take({**plant(), "timestamp": np.array(times), "episode": np.zeros(60, int)}, slice(None, None, -1))
    dataset = load(tmp_path, table)
    assert has_note(dataset, "the order of the rows is not checked: a time column seems to be unused ('timestamp')")
    assert not has_note(dataset, "unused columns")
    assert not has_note(load(tmp_path, table, key_map={"time": "none"}), "order of the rows")
    arrays = {"observations": np.zeros((9, 1)), "actions": np.ones((9, 1)), "rewards": np.ones(9)}
    np.savez(tmp_path / "x.npz", **arrays, terminals=np.zeros(9), time=np.arange(9)[::-1], other=np.arange(9))
    notes = data.load(tmp_path / "x.npz").notes
    assert any("unused ('time'). Pass --map time=time if" in note for note in notes)
    assert any(note.startswith("unused arrays: 'other';") for note in notes)


def test_several_columns_of_dates_are_named(tmp_path: Path) -> None:
    table = plant()
    table |= {"started": table["timestamp"], "ended": table.pop("timestamp"), "episode": np.zeros(60, int)}
    assert has_note(load(tmp_path, table), "unused ('started', 'ended'). Pass --map time=started if")


def test_arrow_times_and_mapped_arrays(tmp_path: Path) -> None:
    table = take(plant(), slice(None, None, -1))
    table["timestamp"] = table["timestamp"].astype("datetime64[ms]")
    for suffix in (".parquet", ".arrow"):
        dataset = data.load(write_table(tmp_path / f"x{suffix}", table))
        np.testing.assert_array_equal(dataset.observations[:, 0], np.arange(60))
    arrays = {"observations": np.arange(60.0)[::-1, None], "actions": np.ones((60, 1)), "rewards": np.ones(60)}
    np.savez(tmp_path / "x.npz", clock=np.arange(60)[::-1], **arrays)
    dataset = data.load(tmp_path / "x.npz", key_map={"time": "clock"})
    np.testing.assert_array_equal(dataset.observations[:, 0], np.arange(60))


def test_small_numbers_are_times_only_if_mapped(tmp_path: Path) -> None:
    table = {**plant(), "timestamp": np.tile(np.arange(20), 3)}
    path = write_csv(tmp_path / "plant.csv", table)
    refuse(path, "nothing marks the ends of episodes.*--map time=timestamp.*--max-episode-steps")
    dataset = data.load(path, key_map={"time": "timestamp"})
    assert dataset.episode_lengths.tolist() == [20, 20, 20]
    assert has_note(dataset, "the time restarts 2 times: each restart begins an episode")


def test_times_can_be_ignored(tmp_path: Path) -> None:
    table = {**take(plant(), slice(None, None, -1)), "episode": np.zeros(60, int)}
    dataset = load(tmp_path, table, key_map={"time": "none"})
    assert dataset.observations[0, 0] == 59
    assert has_note(dataset, "unused columns: 'timestamp'")


def test_duplicate_rows_are_dropped_and_contradictions_refused(tmp_path: Path) -> None:
    """A database join that repeats rows, and two machines in one table."""
    dataset = load(tmp_path, take(plant(), np.repeat(np.arange(60), 2)))
    np.testing.assert_array_equal(dataset.observations[:, 0], np.arange(60))
    assert has_note(dataset, "60 rows are exact duplicates of the row before them and were dropped")
    table = plant()
    table["timestamp"] = stamps(np.arange(60) // 2 * 60)
    refuse(
        write_csv(tmp_path / "two.csv", table),
        "30 rows share a timestamp with another row, but differ from it .first at 2024-03-01 08:00:00.. If they come "
        "from several machines, pass --map episode=NAME with the column that names the machine; otherwise .* "
        "--map time=none",
    )


def test_invalid_times_are_located(tmp_path: Path) -> None:
    table = plant()
    table["timestamp"] = table["timestamp"].astype(object)
    table["timestamp"][30] = "yesterday"
    refuse(
        write_csv(tmp_path / "x.csv", table),
        "line 32: the cell of column 'timestamp' holds 'yesterday', not a time such as 2024-12-31 23:59:59",
    )
    table["timestamp"][30] = ""
    refuse(write_csv(tmp_path / "x.csv", table), "line 32: the cell of column 'timestamp' is empty")


def test_many_dates_and_changing_ids_span_batches(tmp_path: Path) -> None:
    """More rows than are parsed at a time, and more ids than are cached, with notations of different lengths."""
    rows = 60_000
    table = {**plant(rows), "episode": np.arange(rows) // 4}
    table["timestamp"] = stamps(np.arange(rows) * 60).astype(object)
    table["timestamp"][55_000:] = [f"{text}.5" for text in table["timestamp"][55_000:]]
    dataset = load(tmp_path, table)
    assert len(dataset) == rows
    lengths = np.full(15_000, 4)
    np.testing.assert_array_equal(dataset.episode_lengths, lengths)
    assert dataset.time.startswith("timestamp: 2024-03-01 08:00:00 to 2024-04-11 23:59:00, ")


def test_irregular_sampling_is_noted_and_resampled(tmp_path: Path) -> None:
    times = np.cumsum(np.random.default_rng(0).integers(1, 6, 200))
    table = {**plant(200), "timestamp": stamps(times), "obs_level": times.astype(float)}
    dataset = load(tmp_path, table)
    assert has_note(dataset, "the sampling is irregular: 90 % of the intervals range from 1 s to 5 s")
    held = load(tmp_path, table, resample="hold", interval=2)
    assert has_note(held, "rows were resampled to one per 2 s (hold): 200 became")
    assert set(np.diff(held.observations[:, 0])) > {0, 2}
    grid = times[0] + 2 * np.arange(len(held))
    np.testing.assert_array_equal(held.observations[:, 0], times[np.searchsorted(times, grid, side="right") - 1])
    smooth = load(tmp_path, table, resample="interpolate", interval=2)
    np.testing.assert_allclose(smooth.observations[:, 0], grid)
    np.testing.assert_array_equal(smooth.actions, held.actions)
    assert held.rewards.sum() > 0


def test_resampled_rewards_are_means_of_their_intervals(tmp_path: Path) -> None:
    table = {**plant(60, step=10), "reward": np.tile([0.0, 6.0, 3.0], 20)}
    dataset = load(tmp_path, table, resample="hold", interval=30)
    np.testing.assert_allclose(dataset.rewards, np.full(20, 3.0))
    np.testing.assert_array_equal(dataset.observations[:, 0], np.arange(0, 60, 3))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"resample": "spline"}, "--resample must be hold or interpolate, not 'spline'"),
        ({"interval": 5}, "--interval needs --resample"),
        ({"resample": "hold", "interval": 1e-6}, r"would turn [\d,]+ rows into [\d,]+. Pass a longer --interval"),
        ({"max_gap": 0}, "--max-gap must be a number above 0, not 0"),
        ({"resample": "hold", "key_map": {"time": "none"}, "max_episode_steps": 10}, "need a time column"),
    ],
)
def test_invalid_options_are_rejected(tmp_path: Path, options: dict[str, object], says: str) -> None:
    refuse(write_csv(tmp_path / "plant.csv", plant()), says, **options)


def test_times_parse_exactly() -> None:
    cells = ["2024-02-29 23:59:59.5", "2024-03-01T00:00:00"]
    np.testing.assert_array_equal(parse_times(cells), [parse_time(cell) for cell in cells])
    assert np.diff(parse_times(cells)) == 0.5
    for text in ("now", "13/01/2024", "2024-13-01", ""):
        with pytest.raises(ValueError, match=r"\S"):
            parse_times([cells[0], text])
    for joined in (cells, ["2024-03-01 08:00:00"] * 3, ["1.3.2024", "11.12.2024 8:00"], ["2024-03-01", "2024-03-0é"]):
        lengths = np.array([len(cell) for cell in joined])
        if joined[-1].isascii():
            np.testing.assert_array_equal(parse_joined_times("".join(joined), lengths), parse_times(joined))
        else:
            with pytest.raises(ValueError, match=r"\S"):
                parse_joined_times("".join(joined), lengths)
    assert [format_duration(s) for s in (0.5, 60, 90, 7200, 86_400)] == ["0.5 s", "1 min", "90 s", "2 h", "1 d"]
