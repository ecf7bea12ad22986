"""Names of arrays and columns: aliases, patterns, key maps, and the notes and errors about them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from log_files import columns, refuse, same, write_as, write_csv, write_hdf5, write_table, write_without_ends

from aspc import data
from aspc.data import file_loader, packing, writers
from aspc.data.diagnostics import summarize
from aspc.errors import AspcError


def test_key_maps_and_names_of_other_libraries(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
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
    with pytest.raises(AspcError, match=r"'observations', 'actions' not found among .*'robot/state'"):
        data.load(path)
    with pytest.raises(
        AspcError, match=r"'robot/stat', named in the key map, does not exist\. Available: .*'robot/state'"
    ):
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
def test_done_column_is_read_as_terminals_with_a_note(tmp_path: Path, log: dict[str, np.ndarray], suffix: str) -> None:
    table = columns(log)
    table["done"] = table.pop("terminal")
    path = tmp_path / f"mine{suffix}"
    (write_csv if suffix == ".csv" else write_table)(path, table)
    found = file_loader.read_arrays(path, {})
    assert found.notes == [
        "'done' was read as terminals: if it also marks time limits, log those separately as timeouts."
    ]
    np.testing.assert_array_equal(found.arrays["terminals"], log["terminals"])
    assert file_loader.read_arrays(path, {"terminals": "done"}).notes == []  # asked for


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz", ".hdf5"])
def test_mapped_names_are_not_reused(tmp_path: Path, log, suffix: str) -> None:
    path = write_without_ends(tmp_path / f"mine{suffix}", log, done=log["terminals"] | log["timeouts"])
    for key in ("timeout", "timeouts"):
        dataset = data.load(path, key_map={key: "done"}, action_low=-1, action_high=1)
        assert (dataset.terminals.sum(), dataset.timeouts.sum(), dataset.notes) == (0, 6, ())


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_exact_names_beat_patterns_in_key_maps(tmp_path: Path, log, suffix: str) -> None:
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
    with pytest.raises(AspcError, match="'obs_3', named in the key map, does not exist"):
        data.load(path, key_map={"observations": ["obs_2", "obs_3"]})
    for wrong in ([], [1], 7):
        with pytest.raises(AspcError, match="for 'observations' in the key map; give a name or a list of names"):
            data.load(path, key_map={"observations": wrong})


def test_array_maps_take_a_single_name(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    path = write_as(tmp_path / "mine.npz", {"a": log["observations"], **log})
    assert len(data.load(path, key_map={"observations": ["a"]})) == 60
    with pytest.raises(AspcError, match="'observations' is one array, but the key map names 'a', 'observations'"):
        data.load(path, key_map={"observations": ["a", "observations"]})


def test_mapped_columns_are_sorted_by_number(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    wide = {f"obs_{i}": np.full(60, float(i)) for i in (10, 2, 1, 0)} | {
        "u": log["actions"][:, 0], "gain": log["rewards"], "terminal": np.where(log["terminals"], "True", "false")
    }  # fmt: skip
    path = write_csv(tmp_path / "plant.csv", wide)
    dataset = data.load(path, key_map={"actions": "u", "rewards": "gain"})
    np.testing.assert_array_equal(dataset.observations[0], [0, 1, 2, 10])
    np.testing.assert_array_equal(dataset.terminals, log["terminals"])
    with pytest.raises(AspcError, match="'actions', 'rewards' not found among 'obs_10'"):
        data.load(path)


def test_names_match_ignoring_case_as_a_last_resort(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
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


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_unused_columns_are_noted(tmp_path: Path, log: dict[str, np.ndarray], suffix: str) -> None:
    table = {"": np.arange(60), "time": np.arange(60), **columns(log)}  # pandas writes its index without a name
    table["ob_1"] = table.pop("obs_1")
    dataset = data.load((write_csv if suffix == ".csv" else write_table)(tmp_path / f"mine{suffix}", table))
    assert dataset.observation_size == 2
    assert any(note.startswith("unused columns: 'ob_1'; to use one") for note in dataset.notes)
    assert "warning: unused columns: 'ob_1'" in summarize(dataset).text()
    assert (
        "warning: the order of the rows is not checked: a time column seems to be unused ('time')"
        in summarize(dataset).text()
    )
    mapped = data.load(tmp_path / f"mine{suffix}", key_map={"observations": "obs_0,ob_1,obs_2,time"})
    assert not any("unused" in note for note in mapped.notes)


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_key_maps_accept_singular_keys(tmp_path: Path, log: dict[str, np.ndarray], suffix: str) -> None:
    path = write_without_ends(tmp_path / f"mine{suffix}", log, shift=np.repeat(np.arange(6), 10))
    for key in ("episode", "episodes"):
        assert data.load(path, key_map={key: "shift"}).timeouts.sum() == 6
    with pytest.raises(AspcError, match="Duplicate key 'episodes' in the key map"):
        data.load(path, key_map={"episode": "shift", "episodes": "shift"})


def test_scalar_observation_needs_no_number(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
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
def test_aliases_beat_patterns_except_numbered_columns(tmp_path: Path, log, names, observations, actions) -> None:
    table = {name: log["rewards"] + i for i, name in enumerate(names)}
    table |= {"reward": log["rewards"], "done": log["terminals"].astype(int)}
    dataset = data.load(write_csv(tmp_path / "mine.csv", table))
    assert (dataset.observation_names, dataset.action_names) == (observations, actions)
    unused = [name for name in names if name not in (*observations, *actions)]
    assert any(", ".join(map(repr, unused)) in note for note in dataset.notes if "unused" in note) == bool(unused)


def test_ambiguous_names_are_rejected(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    table = dict.fromkeys(("state", "obs_temp", "obs_flow", "action", "reward"), log["rewards"])
    path = write_csv(tmp_path / "plant.csv", {**table, "done": log["terminals"].astype(int)})
    refuse(
        path, "'observations' is ambiguous: 'state', or 'obs_temp', 'obs_flow'. Choose with --map observations=NAMES"
    )
    assert data.load(path, key_map={"observations": "obs_*"}).observation_names == ("obs_temp", "obs_flow")


def test_named_columns_keep_the_order_of_the_file(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
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
    assert "2 numbers: obs_warm, obs_hot" in summarize(dataset).text()
    saturated = data.load(path, action_low=dataset.actions.max() - 0.01, action_high=dataset.actions.max())
    assert "at a bound: dimension 1 (action_valve) in" in summarize(saturated).text()
    writers.write_hdf5(tmp_path / "plant.hdf5", writers.dataset_arrays(dataset), writers.dataset_metadata(dataset))
    assert data.load(tmp_path / "plant.hdf5").observation_names == dataset.observation_names

    folder = tmp_path / "shifts"
    folder.mkdir()
    write_csv(folder / "1.csv", columns)
    assert data.load(write_csv(folder / "2.csv", columns).parent).action_names == ("action_valve",)
    write_csv(folder / "3.csv", dict(sorted(columns.items())))
    with pytest.raises(AspcError, match=r"3.csv: the columns differ from those of 1.csv in name or order"):
        data.load(folder)


@pytest.mark.parametrize(
    ("now", "then"),
    [
        (("temp", "flow"), ("next_obs_flow", "next_obs_temp")),
        (("temp", "flow"), ("next_flow", "next_temp")),
        (("obs_temp", "obs_flow"), ("next_observation_flow", "next_observation_temp")),
    ],
)
def test_next_observations_are_aligned_with_observations(now, then, tmp_path: Path, log) -> None:
    values = dict(zip((*now, *then), (1.0, 2.0, 20.0, 10.0), strict=True))
    table = {name: np.full(60, value) for name, value in values.items()}
    table |= {"action_0": log["actions"][:, 0], "reward": log["rewards"], "terminal": log["terminals"].astype(int)}
    path = write_csv(tmp_path / "plant.csv", table)
    key_map = {"observations": ",".join(now)}
    if then[0] == "next_flow":
        key_map["next_observations"] = "next_*"
    np.testing.assert_array_equal(data.load(path, key_map=key_map).next_observations[0], [10, 20])


def test_unmatched_next_observations_need_a_key_map(tmp_path: Path, log) -> None:
    table = {f"obs_{name}": np.full(60, 1.0) for name in ("temp", "flow")}
    table |= {"next_obs_t": np.full(60, 10.0), "next_obs_f": np.full(60, 20.0)}
    table |= {"action_0": log["actions"][:, 0], "reward": log["rewards"], "terminal": log["terminals"].astype(int)}
    path = write_csv(tmp_path / "plant.csv", table)
    with pytest.raises(
        AspcError,
        match=r"columns 'next_obs_t', 'next_obs_f' to the .*'obs_temp', 'obs_flow'",
    ):
        data.load(path)
    given = data.load(path, key_map={"next_observations": "next_obs_f,next_obs_t"})
    np.testing.assert_array_equal(given.next_observations[0], [20, 10])


def test_columns_with_the_same_quantity_are_kept_apart(tmp_path: Path, log) -> None:
    table = {name: np.full(60, 1.0) for name in ("temp", "obs_temp", "next_temp")}
    table |= {"action_0": log["actions"][:, 0], "reward": log["rewards"], "terminal": log["terminals"].astype(int)}
    key_map = {"observations": "temp,obs_temp", "next_observations": "next_temp"}
    with pytest.raises(AspcError, match="'next_observations' has 1 columns"):
        data.load(write_csv(tmp_path / "plant.csv", table), key_map=key_map)


@pytest.mark.parametrize("suffix", [".npz", ".hdf5"])
def test_unused_arrays_are_noted(tmp_path: Path, log: dict[str, np.ndarray], suffix: str) -> None:
    more = {
        "observatons_2": np.zeros((60, 2)),
        "qpos": np.zeros((60, 9)),
        "settings": np.zeros(7),
        "infos/goal": log["rewards"],
    }
    path = write_as(tmp_path / f"mine{suffix}", {**log, **more})
    (said,) = [note for note in data.load(path).notes if "unused" in note]
    assert said == "unused arrays: 'observatons_2'; to use one, select it with --map."
    mapped = data.load(path, key_map={"observations": "observatons_2"})
    assert any("unused arrays: 'observations';" in note for note in mapped.notes)
    if suffix == ".hdf5":
        assert said in packing.pack(path, tmp_path / "packed").notes
    kept = tmp_path / f"kept{suffix}"
    (writers.write_npz if suffix == ".npz" else writers.write_hdf5)(kept, log, {"action_low": [-1.0] * 60})
    assert not any("unused" in note for note in file_loader.read_arrays(kept, {}).notes)


def test_damaged_or_pickled_unused_arrays_are_ignored(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    np.savez(tmp_path / "x.npz", **log, words=np.array(["a", 1] * 30, dtype=object))
    with zipfile.ZipFile(tmp_path / "x.npz", "a") as archive:
        archive.writestr("junk.npy", b"no header")
    assert any("unused arrays: 'words';" in note for note in data.load(tmp_path / "x.npz").notes)


def test_all_missing_names_are_reported_together(tmp_path: Path) -> None:
    (tmp_path / "tank.csv").write_text("time,level,inflow,valve,cost\n0,1,2,3,4\n1,1,2,3,4\n")
    refuse(
        tmp_path / "tank.csv",
        r"'observations', 'actions', 'rewards' not found among 'time', .* 'cost'\. Pass --map observations=NAME "
        r"actions=NAME rewards=NAME \(in Python: key_map={'observations': 'NAME', 'actions': 'NAME', 'rewards': "
        r"'NAME'}\); separate multiple columns with commas\. If 'cost' is a cost, pass --map costs=cost, which "
        r"negates it\.",
    )


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_missing_episode_ends_are_rejected(tmp_path: Path, log: dict[str, np.ndarray], suffix: str) -> None:
    path = write_without_ends(tmp_path / f"mine{suffix}", log)
    refuse(
        path, r"nothing marks the ends of episodes. Add a column 'episode'.*'terminal' or 'timeout'.*--map episode=NAME"
    )
    np.savez(tmp_path / "other.npz", observations=log["observations"], u=log["actions"])
    refuse(
        tmp_path / "other.npz",
        r"'actions', 'rewards' not found among .*'u'\. Pass --map actions=NAME rewards=NAME \(in Python: key_map=",
    )
