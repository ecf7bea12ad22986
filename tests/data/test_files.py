"""Files of each layout, made here and read back; and what is said of those that cannot be read."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import warnings
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from small_logs import make_log, shared_folder

from aspc import data
from aspc.data import files, packing, writers
from aspc.data.dataset import Dataset
from aspc.data.diagnostics import summarise
from aspc.data.readers import formats
from aspc.data.readers.episodes import read_path
from aspc.data.readers.limited_reader import LimitedReader
from aspc.errors import AspcError


def write_hdf5(path: Path, arrays: dict[str, np.ndarray], **options: object) -> Path:
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array, **options)
    return path


def columns(log: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        **{f"obs_{i}": log["observations"][:, i] for i in range(log["observations"].shape[1])},
        **{f"action_{i}": log["actions"][:, i] for i in range(log["actions"].shape[1])},
        "reward": log["rewards"],
        "terminal": log["terminals"],
        "timeout": log["timeouts"],
    }


def write_csv(path: Path, table: dict[str, np.ndarray], separator: str = ",") -> Path:
    opener = gzip.open if path.name.endswith(".gz") else open
    with opener(path, "wt") as file:
        file.write(separator.join(table) + "\n")
        for row in zip(*table.values(), strict=True):
            file.write(separator.join(str(value) for value in row) + "\n")
    return path


def write_table(path: Path, table: dict[str, np.ndarray]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow = pa.table(table)
    if path.suffix == ".parquet":
        pq.write_table(arrow, path)
    else:
        with pa.ipc.new_file(path, arrow.schema) as writer:
            writer.write_table(arrow)
    return path


def write_as(path: Path, log: dict[str, np.ndarray]) -> Path:
    if path.suffix in (".hdf5", ".h5"):
        return write_hdf5(path, log)
    if path.suffix == ".npz":
        np.savez(path, **log)
        return path
    return (
        write_csv(path, columns(log)) if path.name.endswith(formats.CSV_SUFFIXES) else write_table(path, columns(log))
    )


def write_without_ends(path: Path, log: dict[str, np.ndarray], **more: np.ndarray) -> Path:
    if path.suffix in (".npz", ".hdf5"):
        return write_as(path, {**{key: log[key] for key in ("observations", "actions", "rewards")}, **more})
    table = columns(log)
    del table["terminal"], table["timeout"]
    return (write_csv if path.suffix == ".csv" else write_table)(path, {**table, **more})


def same(dataset: Dataset, log: dict[str, np.ndarray], atol: float = 0.0) -> None:
    for key, array in log.items():
        np.testing.assert_allclose(getattr(dataset, key), array, rtol=0, atol=atol, err_msg=key)


@pytest.mark.parametrize("suffix", formats.SUFFIXES)
def test_every_format_gives_the_same_log(tmp_path: Path, log: dict[str, np.ndarray], suffix: str) -> None:
    dataset = data.load(write_as(tmp_path / f"mine{suffix}", log))
    same(dataset, log, atol=1e-6 if "csv" in suffix else 0.0)
    assert dataset.name == "mine"
    assert dataset.env is None
    assert len(dataset.transitions().rewards) == 57  # less the three rows that timeouts cut


def test_a_key_map_and_other_libraries_names(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    mine = {
        "robot/state": log["observations"],
        "robot/cmd": log["actions"],
        "rew": log["rewards"],
        "ended": log["terminals"],
    }
    path = write_hdf5(tmp_path / "robot.h5", mine)
    key_map = {"observations": "robot/state", "actions": "robot/cmd", "terminals": "ended"}
    dataset = data.load(path, key_map=key_map)
    same(dataset, {key: log[key] for key in ("observations", "actions", "rewards", "terminals")})
    assert any("no timeouts" in note for note in dataset.notes)
    with pytest.raises(AspcError, match=r"'observations' not found among .*'robot/state'"):
        data.load(path)
    with pytest.raises(AspcError, match=r"'robot/stat' in the key map not found among .*'robot/state'"):
        data.load(path, key_map={**key_map, "observations": "robot/stat"})
    with pytest.raises(AspcError, match="Unknown key 'seen' in the key map; choose from observations"):
        data.load(path, key_map={"seen": "robot/state"})

    numbers = np.repeat(np.arange(6), 10)
    np.savez(tmp_path / "other.npz", obs=log["observations"], act=log["actions"], rew=log["rewards"],
             done=log["terminals"], eps_id=numbers)  # fmt: skip
    other = data.load(tmp_path / "other.npz")
    same(other, log)
    assert any("'done' was read as terminals" in note for note in other.notes)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow"])
def test_a_column_done_is_a_terminal_with_a_warning(tmp_path: Path, log: dict[str, np.ndarray], suffix: str) -> None:
    table = columns(log)
    table["done"] = table.pop("terminal")
    path = tmp_path / f"mine{suffix}"
    (write_csv if suffix == ".csv" else write_table)(path, table)
    found = files.read_arrays(path, {})
    assert found.notes == ["'done' was read as terminals: if it also marks time limits, map those to timeouts."]
    np.testing.assert_array_equal(found.arrays["terminals"], log["terminals"])
    assert files.read_arrays(path, {"terminals": "done"}).notes == []  # asked for


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz", ".hdf5"])
def test_what_is_mapped_to_one_key_is_not_taken_for_another(tmp_path: Path, log, suffix: str) -> None:
    path = write_without_ends(tmp_path / f"mine{suffix}", log, done=log["terminals"] | log["timeouts"])
    for key in ("timeout", "timeouts"):
        dataset = data.load(path, key_map={key: "done"}, action_low=-1, action_high=1)
        assert (dataset.terminals.sum(), dataset.timeouts.sum(), dataset.notes) == (0, 6, ())


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_exact_names_come_before_patterns_and_lists_of_names_work(tmp_path: Path, log, suffix: str) -> None:
    table = columns(log)
    for old, new in (("obs_0", "TI-101.PV [°C]"), ("obs_1", "Temp, degC")):
        table[f'"{new}"' if suffix == ".csv" else new] = table.pop(old)
    path = (write_csv if suffix == ".csv" else write_table)(tmp_path / f"mine{suffix}", table)
    order = ("TI-101.PV [°C]", "Temp, degC", "obs_2")
    for wanted, names in (
        ("TI-101.PV [°C]", order[:1]),
        ("Temp, degC", order[1:2]),
        ("Temp, degC,obs_2, TI-101.PV [°C]", (*order[1:], order[0])),
        ("obs_2,obs_*", order[2:]),
        (list(order), order),
        (order, order),
        (["T*", "obs_*"], order),
    ):
        assert data.load(path, key_map={"observations": wanted}).observation_names == names
    with pytest.raises(AspcError, match="'obs_3' in the key map not found among"):
        data.load(path, key_map={"observations": ["obs_2", "obs_3"]})
    for wrong in ([], [1], 7):
        with pytest.raises(AspcError, match="for 'observations' in the key map; give a name or a list of names"):
            data.load(path, key_map={"observations": wrong})


def test_arrays_are_mapped_by_one_name(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    path = write_as(tmp_path / "mine.npz", {"a": log["observations"], **log})
    assert len(data.load(path, key_map={"observations": ["a"]})) == 60
    with pytest.raises(AspcError, match="'observations' is one array, but the key map names 'a', 'observations'"):
        data.load(path, key_map={"observations": ["a", "observations"]})


def test_columns_can_be_mapped_and_are_ordered_by_number(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    wide = {f"obs_{i}": np.full(60, float(i)) for i in (10, 2, 1, 0)} | {
        "u": log["actions"][:, 0], "gain": log["rewards"], "terminal": np.where(log["terminals"], "True", "false")
    }  # fmt: skip
    path = write_csv(tmp_path / "plant.csv", wide)
    dataset = data.load(path, key_map={"actions": "u", "rewards": "gain"})
    np.testing.assert_array_equal(dataset.observations[0], [0, 1, 2, 10])
    np.testing.assert_array_equal(dataset.terminals, log["terminals"])
    with pytest.raises(AspcError, match="'actions' not found among 'obs_10'"):
        data.load(path)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_the_header_says_how_cells_are_separated(tmp_path: Path, log: dict[str, np.ndarray], separator: str) -> None:
    table = {'"obs_a, in °C; or K"' if name == "obs_0" else name: values for name, values in columns(log).items()}
    dataset = data.load(write_csv(tmp_path / "mine.csv", table, separator))
    same(dataset, log, atol=1e-6)
    assert dataset.observation_names == ("obs_a, in °C; or K", "obs_1", "obs_2")


@pytest.mark.parametrize("suffix", [".tsv", ".tsv.gz"])
def test_a_file_of_tabs_is_a_table(tmp_path: Path, log: dict[str, np.ndarray], suffix: str) -> None:
    dataset = data.load(write_csv(tmp_path / f"plant.7{suffix}", columns(log), "\t"))
    same(dataset, log, atol=1e-6)
    assert dataset.name == "plant.7"


def test_capitals_in_names_do_not_matter_where_nothing_else_fits(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    table = {name.capitalize(): values for name, values in columns(log).items() if name != "timeout"}
    table |= {f"Next_{name}": values + 1 for name, values in list(table.items())[2::-1]}
    table["Done"] = table.pop("Terminal")
    dataset = data.load(write_csv(tmp_path / "plant.csv", table))
    assert dataset.observation_names == ("Obs_0", "Obs_1", "Obs_2")
    np.testing.assert_allclose(dataset.next_observations, dataset.observations + 1, atol=1e-5)
    np.testing.assert_array_equal(dataset.terminals, log["terminals"])
    assert "'Done' was read as terminals" in "".join(dataset.notes)
    plain = {**table, "reward": np.zeros(60)}  # comes before the one with a capital
    assert not data.load(write_csv(tmp_path / "plain.csv", plain)).rewards.any()
    twice = {**table, "REWARD": np.zeros(60)}
    with pytest.raises(AspcError, match="'rewards' not found among"):
        data.load(write_csv(tmp_path / "twice.csv", twice))


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz", ".hdf5"])
def test_rows_out_of_order_are_warned_of(tmp_path: Path, log: dict[str, np.ndarray], suffix: str) -> None:
    def load(name: str, rows: np.ndarray, numbers: np.ndarray) -> Dataset:
        path, picked = tmp_path / f"{name}{suffix}", {key: array[rows] for key, array in log.items()}
        if suffix in (".csv", ".parquet"):
            table = {**columns(picked), "episode": numbers[rows]}
            return data.load((write_csv if suffix == ".csv" else write_table)(path, table))
        return data.load(write_as(path, {**picked, "episode": numbers[rows]}))

    numbers = np.repeat([4, 2, 7, 1, 0, 9], 10)  # any numbers, so long as they change
    assert not any("reappear" in note for note in load("sound", np.arange(60), numbers).notes)
    shuffled = load("shuffled", np.random.default_rng(0).permutation(60), numbers)
    says = "episode numbers reappear after a change.*: sort the rows by episode and time"
    assert any(re.match(says, note) for note in shuffled.notes)
    assert "warning: episode numbers reappear" in summarise(shuffled).text()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_columns_that_are_not_used_are_named(tmp_path: Path, log: dict[str, np.ndarray], suffix: str) -> None:
    table = {"": np.arange(60), "time": np.arange(60), **columns(log)}  # pandas writes its index without a name
    table["ob_1"] = table.pop("obs_1")
    dataset = data.load((write_csv if suffix == ".csv" else write_table)(tmp_path / f"mine{suffix}", table))
    assert dataset.observation_size == 2
    assert any(note.startswith("unused columns: 'time', 'ob_1'; to use one") for note in dataset.notes)
    assert "warning: unused columns: 'time', 'ob_1'" in summarise(dataset).text()
    mapped = data.load(tmp_path / f"mine{suffix}", key_map={"observations": "obs_0,ob_1,obs_2,time"})
    assert not any("unused" in note for note in mapped.notes)


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_a_key_map_may_say_its_keys_in_the_singular(tmp_path: Path, log: dict[str, np.ndarray], suffix: str) -> None:
    path = write_without_ends(tmp_path / f"mine{suffix}", log, shift=np.repeat(np.arange(6), 10))
    for key in ("episode", "episodes"):
        assert data.load(path, key_map={key: "shift"}).timeouts.sum() == 6
    with pytest.raises(AspcError, match="Duplicate key 'episodes' in the key map"):
        data.load(path, key_map={"episode": "shift", "episodes": "shift"})


def test_whole_numbers_as_actions_are_refused_where_the_file_says_integers(tmp_path: Path, log) -> None:
    table = {**columns(log), "action_0": np.arange(60) % 2, "action_1": np.arange(60) % 3}
    whole = data.load(write_csv(tmp_path / "mine.csv", table))  # a CSV does not say what its numbers are
    assert any("all actions are integers" in note for note in whole.notes)
    integers = {**log, "actions": np.ones((60, 2), dtype=int)}
    for path in (
        write_table(tmp_path / "mine.parquet", table),
        write_table(tmp_path / "mine.arrow", table),
        write_as(tmp_path / "mine.npz", integers),
        write_as(tmp_path / "mine.hdf5", integers),
    ):
        refuse(path, "which means discrete actions")
    floats = log["actions"][:, 1]
    for truths in ({}, {"action_1": floats}):  # truth values are refused beside floats too, whatever the format
        table_of_truths = {**table, "action_0": np.arange(60) % 2 == 0, **truths}
        for path in (
            write_csv(tmp_path / "truths.csv", table_of_truths),
            write_table(tmp_path / "truths.parquet", table_of_truths),
        ):
            refuse(path, "column 'action_0' holds truth values, which means discrete")
    half = {**table, "action_1": floats}  # integers beside floats are numbers like others
    assert data.load(write_table(tmp_path / "half.parquet", half)).action_size == 2


def test_a_single_number_needs_no_underscore(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    columns = {"obs": log["observations"][:, 0], "action": log["actions"][:, 0], "reward": log["rewards"]}
    columns |= {"next_obs": log["observations"][:, 1], "done": log["terminals"].astype(int)}
    dataset = data.load(write_csv(tmp_path / "one.csv", columns))
    assert (dataset.observation_names, dataset.action_names) == (("obs",), ("action",))
    np.testing.assert_allclose(dataset.next_observations[:, 0], log["observations"][:, 1], rtol=1e-6)


@pytest.mark.parametrize(
    ("names", "observations", "actions"),
    [
        (("obs_0", "obs_1", "action", "action_logprob"), ("obs_0", "obs_1"), ("action",)),
        (("obs_0", "obs_1", "action", "action_mean", "action_std"), ("obs_0", "obs_1"), ("action",)),
        (("state", "obs_id", "action"), ("state",), ("action",)),
        (("obs_id", "obs_0", "action_logprob", "action_0"), ("obs_0",), ("action_0",)),
        (("obs_0", "action_10", "action_2", "action_logprob"), ("obs_0",), ("action_2", "action_10")),
        (("obs", "obs_mean", "action_0", "action"), ("obs",), ("action",)),
        (("state", "obs_1", "obs_0", "action", "action_1", "action_0", "action_mean"), ("obs_0", "obs_1"),
         ("action_0", "action_1")),
        (("obs_temp", "observation", "action_valve", "action_1"), ("observation",), ("action_valve", "action_1")),
    ],
)  # fmt: skip
def test_a_known_name_comes_before_a_pattern_unless_its_parts_are_counted(
    tmp_path: Path, log, names, observations, actions
) -> None:
    table = {name: log["rewards"] + i for i, name in enumerate(names)}
    table |= {"reward": log["rewards"], "done": log["terminals"].astype(int)}
    dataset = data.load(write_csv(tmp_path / "mine.csv", table))
    assert (dataset.observation_names, dataset.action_names) == (observations, actions)
    unused = [name for name in names if name not in (*observations, *actions)]
    assert any(", ".join(map(repr, unused)) in note for note in dataset.notes if "unused" in note) == bool(unused)


def test_names_that_may_be_either_are_asked_about(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    table = dict.fromkeys(("state", "obs_temp", "obs_flow", "action", "reward"), log["rewards"])
    path = write_csv(tmp_path / "plant.csv", {**table, "done": log["terminals"].astype(int)})
    refuse(
        path, "'observations' is ambiguous: 'state', or 'obs_temp', 'obs_flow'. Choose with --map observations=NAMES"
    )
    assert data.load(path, key_map={"observations": "obs_*"}).observation_names == ("obs_temp", "obs_flow")


def test_named_columns_stay_in_the_order_of_the_file(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    columns = {
        "next_obs_hot": np.full(60, 3.0), "obs_warm": np.full(60, 1.0), "obs_hot": np.full(60, 2.0),
        "next_obs_warm": np.full(60, 4.0), "action_valve": log["actions"][:, 0], "reward": log["rewards"],
        "terminal": log["terminals"].astype(int),
    }  # fmt: skip
    path = write_csv(tmp_path / "plant.csv", columns)
    dataset = data.load(path)
    assert dataset.observation_names == ("obs_warm", "obs_hot")
    assert dataset.action_names == ("action_valve",)
    np.testing.assert_array_equal(dataset.observations[0], [1, 2])
    np.testing.assert_array_equal(dataset.next_observations[0], [4, 3])  # as the observation's, whatever the file's
    assert "2 numbers: obs_warm, obs_hot" in summarise(dataset).text()
    saturated = data.load(path, action_low=dataset.actions.max() - 0.01, action_high=dataset.actions.max())
    assert "at a bound: dimension 0 (action_valve) in" in summarise(saturated).text()
    writers.write_hdf5(tmp_path / "plant.hdf5", writers.dataset_arrays(dataset), writers.dataset_metadata(dataset))
    assert data.load(tmp_path / "plant.hdf5").observation_names == dataset.observation_names

    folder = tmp_path / "shifts"
    folder.mkdir()
    write_csv(folder / "1.csv", columns)
    assert data.load(write_csv(folder / "2.csv", columns).parent).action_names == ("action_valve",)
    write_csv(folder / "3.csv", dict(sorted(columns.items())))
    with pytest.raises(AspcError, match=r"3.csv has other columns than 1.csv, or another order"):
        data.load(folder)


@pytest.mark.parametrize(
    ("now", "then"),
    [
        (("temp", "flow"), ("next_obs_flow", "next_obs_temp")),
        (("temp", "flow"), ("next_flow", "next_temp")),
        (("obs_temp", "obs_flow"), ("next_observation_flow", "next_observation_temp")),
    ],
)
def test_next_observations_are_in_step_with_observations(now, then, tmp_path: Path, log) -> None:
    values = dict(zip((*now, *then), (1.0, 2.0, 20.0, 10.0), strict=True))
    table = {name: np.full(60, value) for name, value in values.items()}
    table |= {"action_0": log["actions"][:, 0], "reward": log["rewards"], "terminal": log["terminals"].astype(int)}
    path = write_csv(tmp_path / "plant.csv", table)
    key_map = {"observations": ",".join(now)}
    if then[0] == "next_flow":
        key_map["next_observations"] = "next_*"
    np.testing.assert_array_equal(data.load(path, key_map=key_map).next_observations[0], [10, 20])


def test_next_observations_under_other_names_must_be_given_in_order(tmp_path: Path, log) -> None:
    table = {f"obs_{name}": np.full(60, 1.0) for name in ("temp", "flow")}
    table |= {"next_obs_t": np.full(60, 10.0), "next_obs_f": np.full(60, 20.0)}
    table |= {"action_0": log["actions"][:, 0], "reward": log["rewards"], "terminal": log["terminals"].astype(int)}
    path = write_csv(tmp_path / "plant.csv", table)
    with pytest.raises(AspcError, match="cannot match 'next_obs_t', 'next_obs_f' to 'obs_temp', 'obs_flow'"):
        data.load(path)
    given = data.load(path, key_map={"next_observations": "next_obs_f,next_obs_t"})
    np.testing.assert_array_equal(given.next_observations[0], [20, 10])


def test_columns_of_one_plain_name_are_not_taken_for_each_other(tmp_path: Path, log) -> None:
    table = {name: np.full(60, 1.0) for name in ("temp", "obs_temp", "next_temp")}
    table |= {"action_0": log["actions"][:, 0], "reward": log["rewards"], "terminal": log["terminals"].astype(int)}
    key_map = {"observations": "temp,obs_temp", "next_observations": "next_temp"}
    with pytest.raises(AspcError, match="'next_observations' has 1 columns"):
        data.load(write_csv(tmp_path / "plant.csv", table), key_map=key_map)


def test_a_file_of_a_folder_without_what_the_others_have_is_refused(tmp_path: Path, log) -> None:
    for i in range(3):
        part = {key: array[20 * i : 20 * i + 20] for key, array in log.items()}
        more = {"next_observations": part["observations"]} if i != 1 else {}
        np.savez(tmp_path / f"{i}.npz", **part, **more)
    with pytest.raises(AspcError, match=r"1\.npz has no next_observations, but other files have"):
        data.load(tmp_path)


def test_a_folder_is_a_dataset_of_episodes(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    folder = tmp_path / "episodes"
    folder.mkdir()
    for i in range(6):
        part = {key: array[10 * i : 10 * i + 10] for key, array in log.items() if key != "timeouts"}
        np.savez(folder / f"run{i + 8}.npz", **part)  # run10 must come after run9
    same(data.load(folder), log)
    (folder / "run9.npz").write_bytes(b"")
    with pytest.raises(AspcError, match=r"run9\.npz: the file is empty"):
        data.load(folder)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(AspcError, match="contains no episodes"):
        data.load(empty)


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".hdf5", ".parquet"])
def test_the_end_of_a_file_in_a_folder_is_the_end_of_its_episode(tmp_path: Path, log, suffix: str) -> None:
    folder = tmp_path / "episodes"
    folder.mkdir()
    for i in range(3):
        part = {key: array[20 * i : 20 * i + 20] for key, array in log.items()}
        write_without_ends(folder / f"{i}{suffix}", part)
    dataset = data.load(folder)
    np.testing.assert_array_equal(np.flatnonzero(dataset.timeouts), [19, 39, 59])
    assert not dataset.terminals.any()


def test_flags_in_a_folder_are_0_or_1(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    np.savez(tmp_path / "1.npz", **{**log, "timeouts": np.full(60, 7)})
    refuse(tmp_path, r"1\.npz: 'timeouts' must be 0 or 1, but row 1 of 60 has 7")


def test_a_d4rl_name_brings_environment_and_scores_if_sizes_match(tmp_path: Path) -> None:
    log = make_log(observation=11, action=3)
    for stem in ("hopper_medium_replay", "hopper-medium-v2", "hopper_expert-v2"):
        dataset = data.load(write_hdf5(tmp_path / f"{stem}.hdf5", log))
        assert dataset.env in ("hopper-medium-replay-v2", "hopper-medium-v2", "hopper-expert-v2")
        assert (dataset.ref_min, dataset.ref_max) == (-20.272305, 3234.3)
        np.testing.assert_array_equal(dataset.action_high, 1.0)
    for stem, env in (
        ("my_hopper_medium_replay_400k", "hopper-medium-replay-v2"),
        ("Hopper run 3", "hopper-medium-v2"),
        ("grasshopper", None),
    ):
        assert data.load(write_hdf5(tmp_path / f"{stem}.hdf5", log)).env == env
    path = tmp_path / "hopper_medium_replay.hdf5"
    assert data.load(path, env="none").env is None
    assert data.load(path, env="hopper-expert-v2").env == "hopper-expert-v2"
    assert data.load(write_hdf5(tmp_path / "walker2d_medium.hdf5", log)).env is None  # Walker2d has other sizes


def test_next_observations_in_a_file_keep_the_timeout_rows(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    path = write_hdf5(tmp_path / "x.hdf5", {**log, "next_observations": log["observations"] + 1})
    assert len(data.load(path).transitions().rewards) == 60


# ── bad files ───────────────────────────────────────────────────────────────────────────────────────────────────────


def refuse(path: Path, says: str, **options: object) -> None:
    with pytest.raises(AspcError, match=says) as error:
        data.load(path, **options)
    assert "\n" not in str(error.value)


def test_files_that_are_not_what_their_name_says(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    for suffix in formats.SUFFIXES:
        path = tmp_path / f"junk{suffix}"
        path.write_bytes(b"this is not a dataset\n" * 10)
        refuse(path, "damaged, cut short or not|not found among")
        whole = write_as(tmp_path / f"whole{suffix}", log)
        if suffix not in formats.CSV_SUFFIXES:  # half a CSV is a CSV
            whole.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
            refuse(whole, "damaged, cut short or not")
        whole.write_bytes(b"")
        refuse(whole, "empty")
    refuse(tmp_path / "absent.hdf5", "There is no file")
    (tmp_path / "x.pkl").write_bytes(b"")
    refuse(tmp_path / "x.pkl", "unknown file format")


def test_pickled_objects_are_refused(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    touched = tmp_path / "touched"

    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return os.system, (f"touch {touched}",)

    np.savez(tmp_path / "bomb.npz", **{**log, "rewards": np.array([Bomb()] * 60, dtype=object)})
    refuse(tmp_path / "bomb.npz", "pickled Python objects, which are never loaded")
    assert not touched.exists()


def test_facts_of_an_npz_are_plain_arrays_of_honest_size(
    tmp_path: Path, log: dict[str, np.ndarray], monkeypatch
) -> None:
    path = tmp_path / "x.npz"
    writers.write_npz(
        path, log, {"env": "os:Evil-v0", "action_low": [-5.0, -4.0], "action_high": [5.0, 4.0], "ref_min": None}
    )
    with np.load(path, allow_pickle=False) as stored:
        assert {key for key in stored if key not in log} == {"aspc_env", "aspc_action_low", "aspc_action_high"}
        assert (stored["aspc_env"].dtype.kind, stored["aspc_action_low"].dtype.kind) == ("U", "f")
    dataset = data.load(path)
    np.testing.assert_array_equal(dataset.action_low, [-5, -4])
    assert dataset.env is None  # a file cannot name a module to import
    for fact, says in (
        (np.array(["x", 1], dtype=object), "'aspc_env' holds pickled Python objects"),
        (np.array("x" * 300_000), "'aspc_env' has 1,200,000 bytes, too large for metadata"),
        (np.array(b"bytes"), "'aspc_env' must hold numbers, not"),
    ):
        np.savez(path, **log, aspc_env=fact)
        refuse(path, says)
    np.savez(path, **log, aspc_action_low=np.array("junk"))
    assert len(data.load(path)) == 60
    monkeypatch.setenv("ASPC_READ_MEMORY", str(sum(a.nbytes for a in log.values()) + 10))
    refuse(path, "may be used for reading")


def test_claims_of_too_many_rows_are_refused_at_once(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    path = tmp_path / "claims.hdf5"
    with h5py.File(path, "w") as file:
        for key, array in log.items():
            file.create_dataset(
                key, shape=(10**12, *array.shape[1:]), dtype=array.dtype, chunks=(1000, *array.shape[1:])
            )
    refuse(path, "claims 1,000,000,000,000 rows, but the file holds 0 bytes")

    path = tmp_path / "claims.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for key, array in log.items():
            buffer = io.BytesIO()
            header = {"descr": array.dtype.str, "fortran_order": False, "shape": (10**12, *array.shape[1:])}
            np.lib.format.write_array_header_1_0(buffer, header)
            archive.writestr(f"{key}.npy", buffer.getvalue())
    refuse(path, r"claims shape \(1000000000000, 3\), but the file holds")


def test_sizes_beyond_the_memory_are_refused(tmp_path: Path, log: dict[str, np.ndarray], monkeypatch) -> None:
    monkeypatch.setenv("ASPC_READ_MEMORY", "100")
    np.savez(tmp_path / "x.npz", **log)
    refuse(tmp_path / "x.npz", "x.npz needs 8.0 MB of memory, but only 0.0 MB may be used.*convert FILE.hdf5 FOLDER")
    write_hdf5(tmp_path / "x.hdf5", log)
    refuse(tmp_path / "x.hdf5", r"x.hdf5 needs .* to stream it, pack it with `aspc data convert x.hdf5 FOLDER`")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"observations": np.zeros((60, 2, 2))}, "must have one or two axes"),
        ({"rewards": np.array([b"a"] * 60)}, "must hold numbers"),
        ({"actions": np.zeros((60, 1), dtype=np.int32)}, "discrete"),
        ({"rewards": np.full(60, np.nan, dtype=np.float32)}, "'rewards' has a NaN.*row 1 of 60"),
        ({"rewards": np.zeros(59)}, "has 59"),
    ],
)
def test_bad_arrays_in_an_hdf5_file(tmp_path: Path, log, change: dict[str, np.ndarray], says: str) -> None:
    refuse(write_hdf5(tmp_path / "bad.hdf5", {**log, **change}), says)


def test_hdf5_data_in_another_file_is_refused(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    path = tmp_path / "external.hdf5"
    (tmp_path / "raw").write_bytes(log["rewards"].tobytes())
    with h5py.File(path, "w") as file:
        for key in ("observations", "actions", "terminals"):
            file[key] = log[key]
        file.create_dataset("rewards", shape=(60,), dtype="f4", external=[(str(tmp_path / "raw"), 0, 240)])
    refuse(path, "is stored in another file")


def test_bad_tables(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    path = write_csv(tmp_path / "words.csv", {**columns(log), "reward": np.array(["1.0", "high"] * 30)})
    remedy = "or drop that line and start a new episode after it"
    refuse(path, rf"words.csv, line 3: the cell of column 'reward' holds 'high', not a number; fix it, {remedy}")
    path = write_csv(tmp_path / "holes.csv.gz", {**columns(log), "terminal": np.array(["0", "1", " "] * 20)})
    refuse(path, rf"holes.csv.gz, line 4: the cell of column 'terminal' is empty; fill it, {remedy}")
    cut = write_csv(tmp_path / "cut.csv", columns(log))
    cut.write_text(cut.read_text().rstrip().rpartition(",")[0])
    refuse(cut, rf"cut.csv, line 61: 7 cells, but the header has 8; fix it, {remedy}")
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
    refuse(tmp_path / "text.parquet", "column 'reward' holds text, not numbers. Encode it as numbers, or name")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_columns_of_truth_values_are_numbers_and_columns_of_text_are_none(tmp_path: Path, log, suffix: str) -> None:
    def write(**changes: np.ndarray) -> Path:
        return (write_csv if suffix == ".csv" else write_table)(tmp_path / f"x{suffix}", {**columns(log), **changes})

    for truths in (["obs_1"], ["obs_0", "obs_1", "obs_2", "reward"]):
        on = np.arange(60) % 3 == 0
        dataset = data.load(write(**dict.fromkeys(truths, on)))
        np.testing.assert_array_equal(dataset.observations[:, 1], on)
    for words in (["B000", "B001"], ["AUTO", "MAN"]):
        refuse(
            write(obs_1=np.array(words * 30)),
            rf"^x\{suffix}: column 'obs_1' holds text, not numbers. Encode it .*, or name other columns with --map\.$",
        )


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_flags_and_episodes_may_be_words(tmp_path: Path, log: dict[str, np.ndarray], suffix: str) -> None:
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


@pytest.mark.parametrize("suffix", [".npz", ".hdf5"])
def test_arrays_that_are_not_used_are_named(tmp_path: Path, log: dict[str, np.ndarray], suffix: str) -> None:
    more = {
        "observatons_2": np.zeros((60, 2)),
        "qpos": np.zeros((60, 9)),
        "settings": np.zeros(7),
        "infos/goal": log["rewards"],
    }
    path = write_as(tmp_path / f"mine{suffix}", {**log, **more})
    (said,) = [note for note in data.load(path).notes if "unused" in note]
    assert said == "unused arrays: 'observatons_2'; to use one, name it with --map."
    mapped = data.load(path, key_map={"observations": "observatons_2"})
    assert any("unused arrays: 'observations';" in note for note in mapped.notes)
    if suffix == ".hdf5":
        assert said in packing.pack(path, tmp_path / "packed").notes
    kept = tmp_path / f"kept{suffix}"
    (writers.write_npz if suffix == ".npz" else writers.write_hdf5)(kept, log, {"action_low": [-1.0] * 60})
    assert not any("unused" in note for note in files.read_arrays(kept, {}).notes)


def test_an_array_that_is_not_used_may_be_damaged_or_pickled(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    np.savez(tmp_path / "x.npz", **log, words=np.array(["a", 1] * 30, dtype=object))
    with zipfile.ZipFile(tmp_path / "x.npz", "a") as archive:
        archive.writestr("junk.npy", b"no header")
    assert any("unused arrays: 'words';" in note for note in data.load(tmp_path / "x.npz").notes)


def test_a_hole_among_truth_values_is_placed(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    path = write_csv(tmp_path / "x.csv", {**columns(log), "obs_1": np.array(["True", "False", ""] * 20)})
    refuse(path, "x.csv, line 4: the cell of column 'obs_1' is empty")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-le"])
def test_text_that_is_not_utf8_says_the_cure(tmp_path: Path, log: dict[str, np.ndarray], encoding: str) -> None:
    path = write_csv(tmp_path / "x.csv", {"obs_°C": log["rewards"], **columns(log)})
    path.write_bytes(path.read_text("utf-8").encode(encoding))
    refuse(path, r"^x\.csv: the text is not UTF-8. Save it as UTF-8")


@pytest.mark.parametrize("cell", ["nan", "-inf", "1e300"])
def test_numbers_that_are_none_are_placed_by_line_and_column(tmp_path: Path, log, cell: str) -> None:
    cells = log["observations"][:, 1].astype(str).astype(object)
    cells[40] = cell
    path = write_csv(tmp_path / "mine.csv", {**columns(log), "obs_1": cells})
    lines = path.read_text().split("\n")
    path.write_text("\n".join([*lines[:3], "", *lines[3:]]))  # lines are those of an editor, so empty ones count
    refuse(
        path, rf"^mine\.csv, line 43: the cell of column 'obs_1' holds '{cell}', which is NaN, infinite or too large"
    )


def test_a_table_without_rows_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "none.csv"
    for end in ("", "\n", "\n\n \n"):
        path.write_text("obs_0,action_0,reward,episode" + end)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            refuse(path, r"^none\.csv: the dataset is empty; no row follows the header\.$")


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_a_log_without_episode_ends_says_the_cure(tmp_path: Path, log: dict[str, np.ndarray], suffix: str) -> None:
    path = write_without_ends(tmp_path / f"mine{suffix}", log)
    refuse(
        path, r"nothing marks the ends of episodes. Add a column 'episode'.*'terminal' or 'timeout'.*--map episode=NAME"
    )
    np.savez(tmp_path / "other.npz", observations=log["observations"], u=log["actions"])
    refuse(
        tmp_path / "other.npz",
        r"'actions' not found among .*'u'\. Name it with --map actions=NAME, in Python key_map={'actions': 'NAME'}",
    )


def test_a_crash_of_the_reader_becomes_a_sentence(tmp_path: Path, log: dict[str, np.ndarray], monkeypatch) -> None:
    """A reader that kills its own process, as a C library does on a bad day."""
    path = write_hdf5(tmp_path / "x.hdf5", log)
    site = tmp_path / "site"
    site.mkdir()
    (site / "h5py.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    refuse(path, "the file is damaged .its reader stopped with status -11.")
    (site / "h5py.py").write_text("import time\ndef File(*_):\n    time.sleep(600)\n")
    with pytest.raises(AspcError, match="no progress for 1 seconds"), LimitedReader(timeout_seconds=1.0) as reader:
        read_path(reader, path, {})


def test_a_module_beside_a_log_is_not_run(tmp_path: Path, log: dict[str, np.ndarray], monkeypatch) -> None:
    write_hdf5(tmp_path / "x.hdf5", log)
    for module in ("h5py", "json"):
        (tmp_path / f"{module}.py").write_text("open('mark', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    same(data.load("x.hdf5"), log)
    assert not (tmp_path / "mark").exists()


def test_a_folder_is_read_by_one_child_and_the_file_that_ends_it_is_named(tmp_path: Path, log, monkeypatch) -> None:
    started = []
    popen = subprocess.Popen

    def counted(*args, **options):
        started.append(args)
        return popen(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", counted)
    for i in range(4):
        write_without_ends(tmp_path / f"{i}{('.parquet', '.hdf5', '.csv', '.arrow')[i]}", log)
    with pytest.raises(AspcError, match=r"0\.parquet, or another order"):  # an HDF5 file has no names of columns
        data.load(tmp_path)
    (tmp_path / "1.hdf5").unlink()
    assert len(data.load(tmp_path)) == 180
    assert len(started) == 2
    site = tmp_path / "site"
    site.mkdir()
    (site / "h5py.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    write_without_ends(tmp_path / "4.hdf5", log)
    refuse(tmp_path, r"4\.hdf5: the file is damaged .its reader stopped with status -11.")


@pytest.mark.parametrize("name", ["LOG.PARQUET", "Log.Arrow", "LOG.CSV", "log.CSV.GZ", "LOG.NPZ", "LOG.H5"])
def test_the_end_of_a_name_may_be_in_capitals(tmp_path: Path, log: dict[str, np.ndarray], name: str) -> None:
    path = write_as(tmp_path / name.lower(), log).rename(tmp_path / name)
    dataset = data.load(path)
    assert (len(dataset), dataset.name.lower()) == (60, "log")


def test_a_missing_extra_is_named(tmp_path: Path, log: dict[str, np.ndarray], monkeypatch) -> None:
    path = write_table(tmp_path / "x.parquet", columns(log))
    site = tmp_path / "site"
    site.mkdir()
    (site / "pyarrow.py").write_text("raise ImportError\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    refuse(path, r"pip install 'aspc\[tables\]'")


def test_writing_is_whole_or_not_at_all(tmp_path: Path, log: dict[str, np.ndarray], monkeypatch) -> None:
    path = tmp_path / "out.hdf5"
    writers.write_hdf5(path, log)
    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(AspcError, match="could not be written: No space left"):
        writers.write_hdf5(path, {**log, "rewards": log["rewards"] * 2})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["out.hdf5"]


def test_unknown_names_and_options_say_what_there_is() -> None:
    with pytest.raises(AspcError, match="did you mean hopper-medium-v2"):
        data.load("hopper-meduim-v2")
    with pytest.raises(AspcError, match="unexpected keyword argument 'stepps'"):
        data.load("maze2d-umaze", stepps=5)
    with pytest.raises(AspcError, match="name=number"):
        data.load("maze2d-umaze?steps=many")
    with pytest.raises(AspcError, match="seed of 0 or more"):
        data.load("maze2d-umaze?seed=-1")
    with pytest.raises(AspcError, match="neither a file nor a dataset's name"):
        data.load("qqqq")
    for wrong in (np.zeros((3, 2)), None, {"observations": []}):
        with pytest.raises(
            AspcError, match=rf"not from {type(wrong).__name__}: write a table to a Parquet .*from_array"
        ):
            data.load(wrong)


def test_a_question_mark_in_a_file_name_is_just_that(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    np.savez(tmp_path / "what?.npz", **log)
    assert len(data.load(tmp_path / "what?.npz")) == 60


# ── generated mazes and real files ──────────────────────────────────────────────────────────────────────────────────


def test_generated_mazes_are_cached(tmp_path: Path, monkeypatch) -> None:
    from aspc.data.sources import maze2d

    first = data.load("maze2d-medium-clean?steps=2000&seed=4")
    monkeypatch.setattr(maze2d, "generate", None)  # not called again
    again = data.load("maze2d-medium-clean", steps=2000, seed=4)
    np.testing.assert_array_equal(first.observations, again.observations)
    assert (first.env, len(first), first.timeouts.any()) == ("maze2d-medium-clean", 2000, True)
    assert (first.ref_min, first.ref_max) == (13.13, 277.39)
    (cached,) = (tmp_path / "cache" / "generated").glob("*.hdf5")
    cached.write_bytes(b"broken")
    with pytest.raises(AspcError, match="damaged; delete it"):
        data.load("maze2d-medium-clean?steps=2000&seed=4")


def test_real_files() -> None:
    shared = shared_folder()
    if shared is None:
        pytest.skip("the real files are not here (set ASPC_SHARED to their folder)")
    kitchen = data.load(shared / "real" / "kitchen-complete-v0.hdf5")
    assert (len(kitchen), kitchen.observation_size, kitchen.action_size) == (3680, 60, 9)
    assert kitchen.terminals.sum() == len(kitchen.episode_lengths) == 19

    door = data.load(shared / "real" / "door_human_demos.hdf5")
    assert door.env == "door-human-v1"
    assert (len(door), len(door.episode_lengths)) == (6729, 25)
    assert any("actions are outside the bounds" in note for note in door.notes)
    assert np.abs(door.actions).max() == 1.0
    with pytest.raises(AspcError, match="actions are outside"):
        data.load(shared / "real" / "door_human_demos.hdf5", strict=True)

    pendulum = data.load(shared / "real" / "pendulum_expert.npz", action_low=-1, action_high=1)
    np.testing.assert_array_equal(pendulum.episode_lengths, 200)
    assert len(pendulum.transitions().rewards) == 10_000
    assert json.dumps(pendulum.notes)


@pytest.mark.parametrize(
    ("line", "fault"),
    [("2,0,5,1,0", "line 3: 5 cells, but the header has 4"), ("2,0.5,1,0,", ""), ('2,0.5,1,0," "', ""), ("", "")],
)
def test_a_line_with_more_cells_than_the_header_is_refused(tmp_path, line: str, fault: str):
    """A decimal comma in a file with commas would move all cells behind it; empty cells at the end move none."""
    path = tmp_path / "logs.csv"
    path.write_text(f"obs_a,act_b,reward,episode\n1,0.5,1,0\n{line}\n3,0.1,1,0\n")
    if not fault:
        assert len(data.load(path)) == 3 - (not line)
        return
    with pytest.raises(AspcError, match=fault):
        data.load(path)
