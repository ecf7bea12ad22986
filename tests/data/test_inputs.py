"""Inputs that people have: data frames, many files, workbooks, and CSV files of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from log_files import refuse, write_csv

import aspc
from aspc import data
from aspc.data.dataset import Dataset
from aspc.errors import AspcError

polars = pytest.importorskip("polars")
Table = dict[str, np.ndarray]


def plant(rows: int = 60) -> Table:
    rng = np.random.default_rng(0)
    return {
        "obs_temp [°C]": rng.normal(size=rows).round(3),
        "obs_flow": rng.normal(size=rows).round(3),
        "action_valve": rng.uniform(0, 100, rows).round(2),
        "reward": rng.uniform(0, 1, rows).round(3),
        "episode": np.arange(rows) // 10,
    }


def same_data(dataset: Dataset, table: Table) -> None:
    np.testing.assert_allclose(dataset.observations[:, 1], table["obs_flow"], rtol=1e-6)
    np.testing.assert_allclose(dataset.actions[:, 0], table["action_valve"], rtol=1e-6)
    np.testing.assert_allclose(dataset.rewards, table["reward"], rtol=1e-6)
    assert dataset.observation_names == ("obs_temp [°C]", "obs_flow")


def has_note(dataset: Dataset, text: str) -> bool:
    return any(text in note for note in dataset.notes)


# ── data frames ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("make", [pd.DataFrame, polars.DataFrame], ids=["pandas", "polars"])
def test_data_frames_are_loaded(make: Any) -> None:
    dataset = data.load(make(plant()), action_low=0, action_high=100)
    same_data(dataset, plant())
    assert dataset.episode_lengths.tolist() == [10] * 6
    hours = np.datetime64("2024-01-01T00", "ms") + np.arange(60).astype("timedelta64[h]")
    table = {**plant(), "when": hours[::-1]}
    del table["episode"]
    backwards = data.load(make(table))
    np.testing.assert_allclose(backwards.rewards, plant()["reward"][::-1], rtol=1e-6)
    assert backwards.time.startswith("when: 2024-01-01 to")
    with pytest.raises(AspcError, match="frame: 'actions', 'rewards' not found among"):
        data.load(make({"obs": np.zeros(3)}))


@pytest.mark.parametrize("name", ["when", None])
def test_an_index_of_times_orders_the_rows(name: str | None) -> None:
    frame = pd.DataFrame(plant(), index=pd.date_range("2024-01-01", periods=60, freq="h", name=name))
    dataset = data.load(frame.drop(columns="episode")[::-1])
    same_data(dataset, plant())
    assert dataset.time.startswith(f"{name or 'timestamp'}: 2024-01-01 to")
    assert has_note(dataset, "so they were sorted")
    levels = data.load(frame.rename_axis("time").set_index("episode", append=True)[::-1])
    np.testing.assert_allclose(levels.rewards[:10], plant()["reward"][-10:], rtol=1e-6)
    assert levels.episode_lengths.tolist() == [10] * 6


def test_lazy_frames_are_refused_without_a_warning() -> None:
    with pytest.raises(AspcError, match="not LazyFrame"):
        data.load(polars.DataFrame(plant()).lazy())


def test_missing_values_of_frames_are_treated_as_in_files() -> None:
    frame = pd.DataFrame(plant()).convert_dtypes()
    frame.loc[4, "obs_flow"] = pd.NA
    with pytest.raises(AspcError, match="'observations' has a NaN"):
        data.load(frame)
    assert data.load(frame, missing="split").episode_lengths.tolist() == [4, 5, *[10] * 5]
    frame["obs_flow"] = "high"
    with pytest.raises(AspcError, match="column 'obs_flow' holds text, not numbers"):
        data.load(frame)


def test_training_takes_frames_and_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {
        "steps": 20,
        "log_every": 20,
        "batch_size": 16,
        "actor_hidden_dim": 16,
        "tensorboard": False,
        "quiet": True,
    }
    run = aspc.train(pd.DataFrame(plant()), "bc", out=tmp_path / "run", **options)
    assert run.policy.info["observation_names"] == ["obs_temp [°C]", "obs_flow"]
    write_csv(tmp_path / "a.csv", plant())
    monkeypatch.chdir(tmp_path)
    run = aspc.train("*.csv", "bc", out=tmp_path / "other", **options)
    assert run.config.dataset.source == str(tmp_path / "*.csv")  # can be found from another folder


def test_arrays_keep_the_names_of_frames() -> None:
    frame = pd.DataFrame(plant())
    dataset = Dataset.from_arrays(
        frame[["obs_temp [°C]", "obs_flow"]], frame[["action_valve"]], frame["reward"], np.arange(60) % 10 == 9
    )
    same_data(dataset, plant())
    assert dataset.action_names == ("action_valve",)


def test_episodes_can_have_other_names_or_be_frames() -> None:
    table = plant()
    frames = [pd.DataFrame(table).iloc[start : start + 10] for start in range(0, 60, 10)]
    same_data(Dataset.from_episodes(frames), table)
    assert Dataset.from_episodes(frames).episode_lengths.tolist() == [10] * 6
    observations = np.stack([table["obs_temp [°C]"], table["obs_flow"]], axis=1)
    named = [
        {"obs": observations[rows], "action": table["action_valve"][rows, None], "reward": table["reward"][rows]}
        for rows in (slice(0, 10), slice(10, 60))
    ]
    dataset = Dataset.from_episodes(named)
    np.testing.assert_allclose(dataset.observations, observations, rtol=1e-6)
    assert dataset.episode_lengths.tolist() == [10, 50]
    with pytest.raises(AspcError, match="'state' is another name for 'observations'"):
        Dataset.from_episodes([{**named[0], "state": observations}])
    with pytest.raises(AspcError, match="episode 2: the columns differ in name or order from"):
        Dataset.from_episodes([frames[0], frames[1].rename(columns={"obs_flow": "obs_speed"})])


def test_episodes_that_are_frames_are_read_like_tables() -> None:
    table = {**plant(), "timestamp": np.datetime64("2024-01-01", "s") + np.arange(60).astype("timedelta64[m]")}
    table["action_mode"] = np.repeat(["on", "off"], 30)
    frame = pd.DataFrame(table).drop(columns="episode")
    dataset = Dataset.from_episodes([frame[:30][::-1], frame[30:].drop(index=range(40, 45))])
    assert dataset.episode_lengths.tolist() == [30, 10, 15]  # a gap of five rows ends an episode
    assert has_note(dataset, "so they were sorted")
    assert has_note(dataset, "1 gap of more than 1.5 intervals")
    rows = np.delete(np.arange(60), range(40, 45))
    np.testing.assert_allclose(dataset.rewards, table["reward"][rows], rtol=1e-6)
    assert dataset.action_names == ("action_valve", "action_mode=off", "action_mode=on")
    np.testing.assert_array_equal(dataset.actions[:, 2], table["action_mode"][rows] == "on")


def test_episodes_of_arrays_keep_their_timeouts() -> None:
    episode = {"obs": np.zeros((5, 1)), "action": np.arange(5.0)[:, None], "reward": np.ones(5)}
    assert Dataset.from_episodes([{**episode, "truncated": [0, 1, 0, 0, 0]}]).episode_lengths.tolist() == [2, 3]
    assert Dataset.from_episodes([{**episode, "truncated": True}]).episode_lengths.tolist() == [5]
    with pytest.raises(AspcError, match="episode 1: there are 5 rewards but 4 timeouts"):
        Dataset.from_episodes([{**episode, "truncated": [0] * 4}])
    with pytest.raises(AspcError, match="episode 2 has no next observations, but others do"):
        Dataset.from_episodes([{**episode, "next_obs": np.zeros((5, 1))}, episode])


# ── many files ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_lists_and_patterns_of_files_are_one_dataset(tmp_path: Path) -> None:
    for i in (2, 10, 1):
        write_csv(tmp_path / f"day{i}.csv", {**plant(20), "reward": np.full(20, i)})
    dataset = data.load(str(tmp_path / "day*.csv"))
    assert dataset.rewards[::20].tolist() == [1, 2, 10]  # in the order of their numbers
    assert dataset.episode_lengths.tolist() == [10] * 6
    assert dataset.name == "day"
    assert data.load([tmp_path / "day10.csv", str(tmp_path / "day2.csv")]).rewards[::20].tolist() == [10, 2]
    with pytest.raises(AspcError, match=r"No file matches '.*night\*\.csv'"):
        data.load(str(tmp_path / "night*.csv"))
    with pytest.raises(AspcError, match="The list of files is empty"):
        data.load([])


# ── formats ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def csv_text(separator: str = ",", table: Table | None = None) -> str:
    table = plant() if table is None else table
    rows = zip(*table.values(), strict=True)
    return "\n".join([separator.join(table), *(separator.join(map(str, row)) for row in rows)]) + "\n"


def spaced(**columns: np.ndarray) -> Table:
    return {name.replace(" ", "_"): column for name, column in {**plant(), **columns}.items()}


def test_comments_and_headers_behind_a_hash(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("#" + csv_text())
    assert has_note(data.load(path), "the header begins with '#'")
    same_data(data.load(path), plant())
    path.write_text("# plant 7\n# exported by hand\n" + csv_text())
    assert has_note(data.load(path), "2 comment lines were skipped")
    same_data(data.load(path), plant())
    path.write_text(path.read_text().replace("0.041", "high", 1))
    number = path.read_text().split("\n").index(next(line for line in path.read_text().split("\n") if "high" in line))
    refuse(path, rf"line {number + 1}: the cell of column .* holds 'high'")


def test_files_without_a_header_are_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(csv_text().split("\n", 1)[1])
    refuse(
        path, r"^x\.csv has no header: its first line holds values \(0\.126, .*\), not column names. Add a first line"
    )


@pytest.mark.parametrize("separator", [";", "\t"])
def test_decimal_commas_between_other_separators(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(csv_text(separator).replace(".", ","))
    same_data(data.load(path), plant())
    assert has_note(data.load(path), "decimals are written with a comma: 1,5 was read as 1.5")
    path.write_text(path.read_text().replace("0,", "0.", 1))
    refuse(path, "not a number; write decimals with a point, not with a comma")


@pytest.mark.parametrize("suffix", [".dat", ".csv"])
def test_whitespace_separates_columns(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_text(csv_text("   ", spaced()))
    dataset = data.load(path)
    np.testing.assert_allclose(dataset.rewards, plant()["reward"], rtol=1e-6)
    path.write_text(path.read_text() + "1 2 3\n")
    refuse(path, "line 62 has 3 cells, but the header has 5")
    path.write_text(csv_text(" ", spaced()) + "1 2 3 4 5 6\n")
    refuse(path, "line 62 has 6 cells, but the header has 5")


def test_workbooks_are_tables(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    table = {**plant(), "when": pd.date_range("2024-01-01", periods=60, freq="h")}
    path = tmp_path / "plant.xlsx"
    pd.DataFrame(table).to_excel(path, index=False)
    dataset = data.load(path)
    same_data(dataset, plant())
    assert dataset.time.startswith("when: 2024-01-01 to 2024-01-03 11:00:00, one row per 1 h")
    book = openpyxl.load_workbook(path)
    book.create_sheet("notes")
    book.worksheets[0]["B5"] = None
    book.save(path)
    refuse(path, "'observations' has a NaN")
    assert has_note(data.load(path, missing="ffill"), "only the first of 2 sheets was read")
    path.write_bytes(path.read_bytes()[:2_000])
    refuse(path, "the file is damaged")


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("fixed", [True, False])
def test_columns_of_lists_are_vectors(tmp_path: Path, suffix: str, fixed: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = plant()
    vectors = np.stack([table["obs_temp [°C]"], table["obs_flow"]], axis=1)
    kind = pa.list_(pa.float64(), 2) if fixed else pa.list_(pa.float64())
    columns = {
        "observation": pa.array(vectors.tolist(), kind),
        "action": pa.array([[value] for value in table["action_valve"]]),
        "reward": table["reward"],
        "episode": table["episode"],
    }
    path = tmp_path / f"x{suffix}"

    def write(arrow: Any) -> None:
        if suffix == ".parquet":
            pq.write_table(arrow, path)
        else:
            with pa.ipc.new_file(path, arrow.schema) as writer:
                writer.write_table(arrow)

    write(pa.table(columns))
    dataset = data.load(path)
    np.testing.assert_allclose(dataset.observations, vectors, rtol=1e-6)
    assert dataset.observation_names == ("observation_0", "observation_1")
    if not fixed:
        ragged = [*vectors.tolist()[:-1], [1.0]]
        write(pa.table({**columns, "observation": pa.array(ragged, kind)}))
        refuse(path, "the lists in column 'observation' differ in length")
