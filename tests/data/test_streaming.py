"""Data larger than memory: packed rows equal transitions in memory; windows are reproducible and nearly uniform."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from small_logs import make_log

from aspc import data
from aspc.data import file_loader, packing, streaming, writers
from aspc.data.dataset import Dataset
from aspc.data.packing import pack
from aspc.data.streaming import StreamingDataset
from aspc.errors import AspcError


def numbered(rows: int) -> Dataset:
    """A log whose first observation is the row's number."""
    log = make_log(rows=rows)
    log["observations"][:, 0] = np.arange(rows)
    return Dataset.from_arrays(**log, action_low=-1, action_high=1, name="numbered")


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("from_file", [False, True])
@pytest.mark.parametrize("with_next", [False, True])
def test_packed_rows_are_the_transitions(
    tmp_path: Path, monkeypatch, n_step: int, from_file: bool, with_next: bool
) -> None:
    monkeypatch.setattr(packing, "SLAB_ROWS", 17)  # slabs that cut episodes anywhere
    log = make_log(rows=200)
    log["actions"][3] = 5.0
    if with_next:
        log["next_observations"] = log["observations"] + 1
    dataset = Dataset.from_arrays(**log, action_low=-1, action_high=1, name="x")
    if from_file:
        writers.write_hdf5(tmp_path / "x.hdf5", log)
        packed = pack(tmp_path / "x.hdf5", tmp_path / "p", n_step=n_step, discount=0.9, action_low=-1, action_high=1)
    else:
        packed = pack(dataset, tmp_path / "p", n_step=n_step, discount=0.9)
    expected = dataset.transitions(n_step=n_step, discount=0.9)
    stored = packed.split(np.fromfile(tmp_path / "p" / "rows.f32", dtype="<f4").reshape(-1, packed.layout.width))
    assert len(packed) == len(expected.rewards)
    for key, array in expected._asdict().items():
        np.testing.assert_array_equal(getattr(stored, key), array, err_msg=key)
    np.testing.assert_allclose(packed.observation_mean, expected.observations.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(packed.observation_std, expected.observations.std(axis=0), rtol=1e-5)
    assert packed.mean_reward == pytest.approx(float(log["rewards"].mean()), rel=1e-5)
    assert any("1 of 200 actions" in note for note in packed.notes)
    again = StreamingDataset.open(tmp_path / "p")
    assert (again.name, len(again), again.n_step) == ("x", len(packed), n_step)
    assert streaming.is_packed(tmp_path / "p")
    with pytest.raises(AspcError, match="is a packed folder"):
        data.load(tmp_path / "p")
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "x.hdf5") == ["p"]


def test_a_file_without_timeouts_and_bounds_from_its_data(tmp_path: Path) -> None:
    log = make_log(rows=200, observation=11, action=3)
    del log["timeouts"]
    writers.write_hdf5(tmp_path / "hopper_medium.hdf5", log)
    packed = pack(tmp_path / "hopper_medium.hdf5", tmp_path / "p")
    assert packed.env == "hopper-medium-v2"
    np.testing.assert_array_equal(packed.action_high, 1.0)
    writers.write_hdf5(tmp_path / "own.hdf5", log)
    own = pack(tmp_path / "own.hdf5", tmp_path / "q", max_episode_steps=7)
    reference = file_loader.load(tmp_path / "own.hdf5", max_episode_steps=7)
    assert len(own) == len(reference.transitions().rewards)
    np.testing.assert_array_equal(own.action_low, reference.action_low)
    for notes, guessed in ((packed.notes, False), (own.notes, True), (reference.notes, True)):
        assert any("bounds are guessed" in note for note in notes) == guessed


@pytest.mark.parametrize("offset", [1e6, -3e6])
def test_std_of_large_numbers_is_accurate(tmp_path: Path, monkeypatch, offset: float) -> None:
    monkeypatch.setattr(packing, "SLAB_ROWS", 700)
    log = make_log(rows=5_000)
    log["observations"][:, 0] = offset + np.random.default_rng(0).normal(size=5_000)
    log["observations"][:2_500, 1] += offset  # slabs whose means are far apart
    dataset = Dataset.from_arrays(**log, action_low=-1, action_high=1, name="x")
    packed, seen = pack(dataset, tmp_path / "p"), dataset.transitions().observations.astype(np.float64)
    np.testing.assert_allclose(packed.observation_mean, seen.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(packed.observation_std, seen.std(axis=0), rtol=1e-9)


@pytest.mark.parametrize("key", ["terminals", "timeouts"])
@pytest.mark.parametrize("wrong", [0.5, 7.0, np.nan])
@pytest.mark.parametrize("numbers", [{}, {"episodes": np.repeat(np.arange(6), 10)}])
def test_flags_are_0_or_1_in_memory_and_packed(tmp_path: Path, key: str, wrong: float, numbers) -> None:
    log = {**make_log(rows=60), **numbers}
    log[key] = log[key].astype(np.float32)
    log[key][19] = wrong
    writers.write_hdf5(tmp_path / "x.hdf5", log)
    for read in (lambda path: pack(path, tmp_path / "p"), file_loader.load):
        with pytest.raises(AspcError, match=rf"'{key}' must be 0 or 1, but row 20 of 60 has {wrong}"):
            read(tmp_path / "x.hdf5")


def test_packed_folders_record_a_hash_of_their_rows(tmp_path: Path) -> None:
    log = make_log(rows=200)
    one, other = ({**log, "actions": sign * log["actions"]} for sign in (1, -1))
    hashes = []
    for i, arrays in enumerate((one, one, other)):
        dataset = Dataset.from_arrays(**arrays, action_low=-1, action_high=1)
        hashes.append(pack(dataset, tmp_path / f"{i}").sha256)
    assert hashes[0] == hashes[1] != hashes[2]
    assert hashes[0] == hashlib.sha256((tmp_path / "0" / "rows.f32").read_bytes()).hexdigest()
    meta = json.loads((tmp_path / "0" / "packed.json").read_text())
    for wrong in ("../../x", 7, "f" * 63):
        (tmp_path / "0" / "packed.json").write_text(json.dumps({**meta, "sha256": wrong}))
        with pytest.raises(AspcError, match="not a complete packed folder"):
            StreamingDataset.open(tmp_path / "0")


def test_windows_depend_on_index_and_seed_only(tmp_path: Path) -> None:
    packed = pack(numbered(5_000), tmp_path / "p")
    with packed.windows(1_000, seed=1, block_rows=16) as windows:
        first = [next(windows) for _ in range(4)]
    with packed.windows(1_000, seed=1, start=2, block_rows=16) as windows:
        np.testing.assert_array_equal(next(windows), first[2])
        np.testing.assert_array_equal(next(windows), first[3])
    with packed.windows(1_000, seed=2, block_rows=16) as windows:
        assert not np.array_equal(next(windows), first[0])
    assert first[0].shape == (1_000 // 16 * 16, packed.layout.width)
    assert not np.array_equal(first[0], first[1])


def test_rows_are_equally_frequent_in_windows(tmp_path: Path) -> None:
    """Each row comes once per shuffle, except for a few that the last block repeats."""
    packed = pack(numbered(3_000), tmp_path / "p")
    blocks = -(-len(packed) // 16)
    shuffles, per_window = 60, blocks // 6
    with packed.windows(per_window * 16, block_rows=16) as windows:
        seen = np.concatenate([next(windows)[:, 0] for _ in range(shuffles * blocks // per_window)]).astype(int)
    counts = np.bincount(seen, minlength=3_000)
    kept = np.bincount(numbered(3_000).transitions().observations[:, 0].astype(int), minlength=3_000) > 0
    assert (counts[~kept] == 0).all()
    assert counts[kept].min() >= shuffles - 1
    assert counts[kept].max() <= shuffles + 6  # an overhang of at most 15 of 2,850 rows a shuffle, anywhere


def test_minibatches_of_windows_are_close_to_uniform_draws(tmp_path: Path) -> None:
    """The mean of a minibatch's row numbers varies as that of uniform draws does, and so do its extremes."""
    packed = pack(numbered(40_000), tmp_path / "p")
    rng = np.random.default_rng(0)
    means, thirds = [], np.zeros(3)
    with packed.windows(8_192, block_rows=32) as windows:
        for _ in range(60):
            table = next(windows)
            for _ in range(20):
                numbers = table[rng.integers(len(table), size=256), 0]
                means.append(numbers.mean())
                thirds += np.histogram(numbers, bins=3, range=(0, 40_000))[0]
    uniform_std = 40_000 / np.sqrt(12) / np.sqrt(256)
    assert np.mean(means) == pytest.approx(20_000, abs=200)
    # blocks of 32 in a window of 256 blocks add 1/256 of the variance to each minibatch of 256
    assert np.std(means) == pytest.approx(uniform_std, rel=0.5)
    np.testing.assert_allclose(thirds / thirds.sum(), 1 / 3, atol=0.01)


def test_windows_are_prefetched_and_thread_errors_are_raised(tmp_path: Path) -> None:
    packed = pack(numbered(2_000), tmp_path / "p")
    with packed.windows(512, prepare=lambda t: np.stack([t.rewards, t.discounts], axis=1)) as windows:
        table = next(windows)
    assert table.shape == (512, 2)
    np.testing.assert_array_equal(table[:, 1], np.float32(0.99))

    def broken(_):
        raise TypeError("no such column")

    with packed.windows(512, prepare=broken) as windows, pytest.raises(TypeError, match="no such column"):
        next(windows)


def test_memory_budget_determines_window_size(tmp_path: Path) -> None:
    packed = pack(numbered(5_000), tmp_path / "p")
    rows = packed.window_rows(500_000)
    assert rows * packed.row_bytes * 4 <= 500_000 < (rows + 1) * packed.row_bytes * 4
    assert packed.window_rows(10**12) == len(packed)
    with pytest.raises(AspcError, match="too small"):
        packed.window_rows(1_000)


def test_invalid_packed_folders_and_sources_are_rejected(tmp_path: Path) -> None:
    packed = pack(numbered(100), tmp_path / "p")
    with pytest.raises(AspcError, match="already exists"):
        pack(numbered(100), tmp_path / "p")
    with pytest.raises(AspcError, match="not a complete packed folder"):
        StreamingDataset.open(tmp_path)
    with open(tmp_path / "p" / "rows.f32", "ab") as file:
        file.write(b"\0")
    with pytest.raises(AspcError, match="bytes instead of"):
        StreamingDataset.open(packed.folder)
    meta = json.loads((packed.folder / "packed.json").read_text())
    (packed.folder / "packed.json").write_text(json.dumps({**meta, "format": 99}))
    with pytest.raises(AspcError, match="format 99"):
        StreamingDataset.open(packed.folder)
    (packed.folder / "packed.json").write_text(json.dumps({**meta, "action_names": ["one too few"]}))
    with pytest.raises(AspcError, match="not a complete packed folder"):
        StreamingDataset.open(packed.folder)
    (tmp_path / "junk.hdf5").write_bytes(b"junk")
    with pytest.raises(AspcError, match="absent, damaged or not HDF5"):
        pack(tmp_path / "junk.hdf5", tmp_path / "q")
    log = make_log()
    log["rewards"][33] = np.nan
    writers.write_hdf5(tmp_path / "nan.hdf5", log)
    with pytest.raises(AspcError, match="'rewards' has a NaN"):
        pack(tmp_path / "nan.hdf5", tmp_path / "q")
    with h5py.File(tmp_path / "short.hdf5", "w") as file:
        for key, array in make_log().items():
            file[key] = array[:-1] if key == "rewards" else array
    with pytest.raises(AspcError, match="differ in length"):
        pack(tmp_path / "short.hdf5", tmp_path / "q")
    with h5py.File(tmp_path / "scalar.hdf5", "w") as file:
        for key, array in make_log().items():
            file[key] = 1.0 if key == "rewards" else array
    with pytest.raises(AspcError, match="'rewards' must have one or two axes"):
        pack(tmp_path / "scalar.hdf5", tmp_path / "q")
    with h5py.File(tmp_path / "chunk.hdf5", "w") as file:
        for key, array in make_log().items():
            file.create_dataset(key, data=array, chunks=array.shape, compression="gzip", fletcher32=True)
        place = file["actions"].id.get_chunk_info(0)
    with open(tmp_path / "chunk.hdf5", "r+b") as file:
        file.seek(place.byte_offset)
        file.write(bytes(place.size))
    with pytest.raises(AspcError, match="'actions' is damaged"):
        pack(tmp_path / "chunk.hdf5", tmp_path / "q")
    log = make_log()
    del log["timeouts"]
    writers.write_hdf5(tmp_path / "open.hdf5", log)
    for limit in (0, -5):
        with pytest.raises(AspcError, match="max_episode_steps must be at least 1"):
            pack(tmp_path / "open.hdf5", tmp_path / "q", max_episode_steps=limit)
    assert not (tmp_path / "q").exists()
    assert any(
        "step limit of 7 is assumed" in note
        for note in pack(tmp_path / "open.hdf5", tmp_path / "q", max_episode_steps=7).notes
    )


@pytest.mark.slow
def test_training_from_windows_stays_within_the_memory_budget(tmp_path: Path) -> None:
    """Twenty-five windows of a file of 100 MB through a budget of 50 MB, during a real training."""
    benchmark = Path(__file__).parents[2] / "benchmarks" / "streaming.py"

    def part(name: str) -> dict[str, float]:
        options = ["--rows", "500000", "--budget-mb", "50", "--chunk", "20", "--chunks", "25", "--algo", "td3_bc"]
        command = [sys.executable, str(benchmark), "--folder", str(tmp_path), *options, "--part", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        return json.loads(done.stdout.splitlines()[-1])

    assert part("make")["gb"] > 0.09
    assert part("memory")["peak_mb"] < 1.25 * 50
