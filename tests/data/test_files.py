"""Datasets from files and folders of every format, and the errors about damaged ones."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from log_files import columns, refuse, same, write_as, write_csv, write_hdf5, write_table, write_without_ends
from small_logs import make_log, shared_folder

from aspc import data
from aspc.data import writers
from aspc.data.dataset import Dataset
from aspc.data.diagnostics import summarize
from aspc.data.readers import formats
from aspc.data.readers.episodes import read_path
from aspc.data.readers.limited_reader import LimitedReader
from aspc.errors import AspcError


@pytest.mark.parametrize("suffix", formats.SUFFIXES)
def test_every_format_gives_the_same_log(tmp_path: Path, log: dict[str, np.ndarray], suffix: str) -> None:
    dataset = data.load(write_as(tmp_path / f"mine{suffix}", log))
    same(dataset, log, atol=1e-6 if "csv" in suffix else 0.0)
    assert dataset.name == "mine"
    assert dataset.env is None
    assert len(dataset.transitions().rewards) == 57  # less the three rows that timeouts cut


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz", ".hdf5"])
def test_unsorted_episodes_are_noted(tmp_path: Path, log: dict[str, np.ndarray], suffix: str) -> None:
    def load(name: str, rows: np.ndarray, numbers: np.ndarray) -> Dataset:
        path, picked = tmp_path / f"{name}{suffix}", {key: array[rows] for key, array in log.items()}
        if suffix in (".csv", ".parquet"):
            table = {**columns(picked), "episode": numbers[rows]}
            return data.load((write_csv if suffix == ".csv" else write_table)(path, table))
        return data.load(write_as(path, {**picked, "episode": numbers[rows]}))

    numbers = np.repeat([4, 2, 7, 1, 0, 9], 10)  # any numbers, so long as they change
    assert not any("reappear" in note for note in load("sound", np.arange(60), numbers).notes)
    shuffled = load("shuffled", np.random.default_rng(0).permutation(60), numbers)
    message = "episode numbers reappear after a change.*: sort the rows by episode and time"
    assert any(re.match(message, note) for note in shuffled.notes)
    assert "warning: episode numbers reappear" in summarize(shuffled).text()


def test_episodes_with_different_arrays_are_rejected(tmp_path: Path, log) -> None:
    for i in range(3):
        part = {key: array[20 * i : 20 * i + 20] for key, array in log.items()}
        more = {"next_observations": part["observations"]} if i != 1 else {}
        np.savez(tmp_path / f"{i}.npz", **part, **more)
    with pytest.raises(AspcError, match=r"1\.npz has no next_observations, but other files do"):
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
def test_each_file_of_a_folder_ends_an_episode(tmp_path: Path, log, suffix: str) -> None:
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


def test_d4rl_file_names_set_environment_and_scores(tmp_path: Path) -> None:
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


def test_files_with_wrong_suffixes_are_rejected(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    for suffix in formats.SUFFIXES:
        path = tmp_path / f"junk{suffix}"
        path.write_bytes(b"this is not a dataset\n" * 10)
        refuse(path, "damaged, truncated or not|not found among")
        whole = write_as(tmp_path / f"whole{suffix}", log)
        if suffix not in formats.CSV_SUFFIXES:  # a truncated CSV is a valid CSV
            whole.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
            refuse(whole, "damaged, truncated or not")
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


def test_npz_metadata_is_checked(tmp_path: Path, log: dict[str, np.ndarray], monkeypatch) -> None:
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
    for fact, message in (
        (np.array(["x", 1], dtype=object), "'aspc_env' holds pickled Python objects"),
        (np.array("x" * 300_000), "'aspc_env' has 1,200,000 bytes, too large for metadata"),
        (np.array(b"bytes"), "'aspc_env' must hold numbers, not"),
    ):
        np.savez(path, **log, aspc_env=fact)
        refuse(path, message)
    np.savez(path, **log, aspc_action_low=np.array("junk"))
    assert len(data.load(path)) == 60
    monkeypatch.setenv("ASPC_READ_MEMORY", str(sum(a.nbytes for a in log.values()) + 10))
    refuse(path, "but the limit for reading is")


def test_overstated_row_counts_are_rejected(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    path = tmp_path / "claims.hdf5"
    with h5py.File(path, "w") as file:
        for key, array in log.items():
            file.create_dataset(
                key, shape=(10**12, *array.shape[1:]), dtype=array.dtype, chunks=(1000, *array.shape[1:])
            )
    refuse(path, "declares 1,000,000,000,000 rows, but the file has only 0 bytes")

    path = tmp_path / "claims.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for key, array in log.items():
            buffer = io.BytesIO()
            header = {"descr": array.dtype.str, "fortran_order": False, "shape": (10**12, *array.shape[1:])}
            np.lib.format.write_array_header_1_0(buffer, header)
            archive.writestr(f"{key}.npy", buffer.getvalue())
    refuse(path, r"declares shape \(1000000000000, 3\), but the file holds")


def test_files_larger_than_memory_are_rejected(tmp_path: Path, log: dict[str, np.ndarray], monkeypatch) -> None:
    monkeypatch.setenv("ASPC_READ_MEMORY", "100")
    np.savez(tmp_path / "x.npz", **log)
    refuse(
        tmp_path / "x.npz",
        "x.npz needs 8.0 MB of memory, but the limit for reading is 0.0 MB.*convert FILE.hdf5 FOLDER",
    )
    write_hdf5(tmp_path / "x.hdf5", log)
    refuse(tmp_path / "x.hdf5", r"x.hdf5 needs .* stream the file: pack it with `aspc data convert x.hdf5 FOLDER`")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observations": np.zeros((60, 2, 2))}, "must have one or two axes"),
        ({"rewards": np.array([b"a"] * 60)}, "must hold numbers"),
        ({"actions": np.zeros((60, 1), dtype=np.int32)}, "discrete"),
        ({"rewards": np.full(60, np.nan, dtype=np.float32)}, "'rewards' has a NaN.*row 1 of 60"),
        ({"rewards": np.zeros(59)}, "has 59"),
    ],
)
def test_invalid_hdf5_arrays_are_rejected(tmp_path: Path, log, change: dict[str, np.ndarray], message: str) -> None:
    refuse(write_hdf5(tmp_path / "bad.hdf5", {**log, **change}), message)


def test_external_hdf5_data_is_rejected(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    path = tmp_path / "external.hdf5"
    (tmp_path / "raw").write_bytes(log["rewards"].tobytes())
    with h5py.File(path, "w") as file:
        for key in ("observations", "actions", "terminals"):
            file[key] = log[key]
        file.create_dataset("rewards", shape=(60,), dtype="f4", external=[(str(tmp_path / "raw"), 0, 240)])
    refuse(path, "links to data in another HDF5 file")


def test_reader_crash_becomes_an_error(tmp_path: Path, log: dict[str, np.ndarray], monkeypatch) -> None:
    """A reader that kills its own process, as a crash in a C library does."""
    path = write_hdf5(tmp_path / "x.hdf5", log)
    site = tmp_path / "site"
    site.mkdir()
    (site / "h5py.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    refuse(path, "the file is damaged .its reader stopped with status -11.")
    (site / "h5py.py").write_text("import time\ndef File(*_):\n    time.sleep(600)\n")
    with pytest.raises(AspcError, match="no progress for 1 seconds"), LimitedReader(timeout_seconds=1.0) as reader:
        read_path(reader, path)


def test_modules_next_to_a_log_are_not_imported(tmp_path: Path, log: dict[str, np.ndarray], monkeypatch) -> None:
    write_hdf5(tmp_path / "x.hdf5", log)
    for module in ("h5py", "json"):
        (tmp_path / f"{module}.py").write_text("open('mark', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    same(data.load("x.hdf5"), log)
    assert not (tmp_path / "mark").exists()


def test_one_child_reads_a_folder_and_errors_name_the_file(tmp_path: Path, log, monkeypatch) -> None:
    started = []
    popen = subprocess.Popen

    def counted(*args, **options):
        started.append(args)
        return popen(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", counted)
    for i in range(4):
        write_without_ends(tmp_path / f"{i}{('.parquet', '.hdf5', '.csv', '.arrow')[i]}", log)
    # an HDF5 file has no names of columns
    with pytest.raises(AspcError, match=r"differ from those of 0\.parquet in name or order"):
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
def test_suffixes_ignore_case(tmp_path: Path, log: dict[str, np.ndarray], name: str) -> None:
    path = write_as(tmp_path / name.lower(), log).rename(tmp_path / name)
    dataset = data.load(path)
    assert (len(dataset), dataset.name.lower()) == (60, "log")


def test_writing_is_atomic(tmp_path: Path, log: dict[str, np.ndarray], monkeypatch) -> None:
    path = tmp_path / "out.hdf5"
    writers.write_hdf5(path, log)
    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(AspcError, match="could not be written: No space left"):
        writers.write_hdf5(path, {**log, "rewards": log["rewards"] * 2})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["out.hdf5"]


def test_unknown_names_and_options_are_rejected_with_suggestions() -> None:
    with pytest.raises(AspcError, match="did you mean hopper-medium-v2"):
        data.load("hopper-meduim-v2")
    with pytest.raises(AspcError, match="unexpected keyword argument 'stepps'"):
        data.load("maze2d-umaze", stepps=5)
    with pytest.raises(AspcError, match="name=number"):
        data.load("maze2d-umaze?steps=many")
    with pytest.raises(AspcError, match="seed of at least 0"):
        data.load("maze2d-umaze?seed=-1")
    with pytest.raises(AspcError, match="neither a file nor a dataset name"):
        data.load("qqqq")
    for wrong in (np.zeros((3, 2)), None, {"observations": []}):
        with pytest.raises(AspcError, match=rf"not {type(wrong).__name__}\. Write the data to a Parquet .*from_array"):
            data.load(wrong)


def test_question_marks_in_file_names_are_literal(tmp_path: Path, log: dict[str, np.ndarray]) -> None:
    np.savez(tmp_path / "what?.npz", **log)
    assert len(data.load(tmp_path / "what?.npz")) == 60


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
