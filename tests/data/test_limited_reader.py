"""The process that reads foreign files: limits, timeouts, interrupts and cleanup."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from small_logs import make_log
from test_files import refuse, write_as, write_hdf5

from aspc import data, io
from aspc.__main__ import main
from aspc.data import packing, streaming
from aspc.data.readers import limits
from aspc.errors import AspcError
from aspc.io import atomic_output, temporary_path

WAIT_SECONDS = 120  # for what takes a moment; a busy machine may need longer


def wait_for(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def write_site(folder: Path, monkeypatch: pytest.MonkeyPatch, **modules: str) -> None:
    """Put modules on the path of the processes that are started from now on."""
    folder.mkdir()
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))


@pytest.fixture
def endless_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """HDF5 files are read without end; the reader leaves the number of its process in the file that is returned."""
    mark = tmp_path / "reader"
    text = f"""
import os, pathlib
def File(*arguments):
    pathlib.Path({str(mark)!r}).write_text(str(os.getpid()) + "!")
    while True: pass
"""
    write_site(tmp_path / "site", monkeypatch, h5py=text)
    return mark


def start(*arguments: str, **options: object) -> subprocess.Popen[str]:
    """Start the command line with SIGINT as a terminal gives it, also where the tests run without one."""
    restore = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.executable, sys.argv[1:])"
    )
    command = [sys.executable, "-c", restore, sys.executable, "-m", "aspc", *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)


def has_ended(process: int) -> bool:
    try:
        return "Z" in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True


COMMANDS = {
    "info": ["data", "info", "x.hdf5"],
    "pack": ["data", "convert", "x.hdf5", "packed"],
    "convert": ["data", "convert", "x.hdf5", "y.npz"],
    "train": ["train", "x.hdf5", "--out", "run", "--steps", "10"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_times_out_on_a_stalled_file(
    tmp_path: Path, endless_h5py: Path, monkeypatch: pytest.MonkeyPatch, capsys, command: str
) -> None:
    write_hdf5(tmp_path / "x.hdf5", make_log())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASPC_READ_TIMEOUT", "1")
    assert main(COMMANDS[command]) == 2
    assert "x.hdf5: reading made no progress for 1 seconds" in capsys.readouterr().err


def test_interrupt_stops_a_stalled_conversion(tmp_path: Path, endless_h5py: Path) -> None:
    write_hdf5(tmp_path / "x.hdf5", make_log())
    process = start(
        "data", "convert", "x.hdf5", "packed", cwd=tmp_path, env={**os.environ, "ASPC_READ_TIMEOUT": "100000"}
    )
    wait_for(lambda: endless_h5py.exists() and endless_h5py.read_text().endswith("!"))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert has_ended(int(endless_h5py.read_text().strip("!")))


def test_reader_exits_and_cleans_up_if_its_parent_is_killed(
    tmp_path: Path, endless_h5py: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hdf5(tmp_path / "x.hdf5", make_log())
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary"), "ASPC_READ_TIMEOUT": "1"}
    process = start("data", "info", "x.hdf5", cwd=tmp_path, env=environment)
    wait_for(lambda: endless_h5py.exists() and endless_h5py.read_text().endswith("!"))
    process.kill()
    process.communicate()
    wait_for(lambda: has_ended(int(endless_h5py.read_text().strip("!"))))
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_killed_conversion_is_cleaned_up_by_the_next_one(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "x.hdf5", make_log(rows=1_000_000, observation=20))
    process = start("data", "convert", "x.hdf5", "packed", cwd=tmp_path)
    wait_for(lambda: any(tmp_path.glob(".packed.*.tmp/rows.f32")))
    process.kill()
    process.communicate()
    (left,) = tmp_path.glob(".packed.*")
    other, own = (left.with_name(left.name.replace(str(process.pid), str(pid))) for pid in (os.getppid(), os.getpid()))
    other.mkdir()  # of a process that is running
    own.mkdir()  # of an older process that had our number
    packing.pack(data.load(write_as(tmp_path / "y.npz", make_log())), tmp_path / "packed")
    assert list(tmp_path.glob(".packed.*")) == [other]


def test_a_killed_write_is_cleaned_up_by_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    own = temporary_path(path)
    left = own.with_name(own.name.replace(str(os.getpid()), str(ended.pid)))
    elsewhere = tmp_path / f".x.npz.another-{ended.pid}.tmp"
    left.write_bytes(b"half")
    elsewhere.write_bytes(b"half")  # of another machine, where that process may be running
    with atomic_output(path) as temporary:
        temporary.write_bytes(b"whole")
    assert sorted(tmp_path.iterdir()) == [elsewhere, path]


def test_full_temporary_folder_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without in-memory files, arrays are passed through the temporary folder."""
    path = write_hdf5(tmp_path / "x.hdf5", make_log(rows=5000))
    full = "import os, resource\ndel os.memfd_create\nresource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    write_site(tmp_path / "site", monkeypatch, sitecustomize=full)
    refuse(
        path, r"The temporary folder .*/temporary cannot be written to: File too large\. Free some space .* set TMPDIR"
    )
    (tmp_path / "site" / "sitecustomize.py").write_text("import os\ndel os.memfd_create\n")
    assert len(data.load(path)) == 5000
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_folder_larger_than_its_disk_is_refused_before_it_is_written(tmp_path: Path, monkeypatch) -> None:
    path = write_hdf5(tmp_path / "x.hdf5", make_log(rows=5000))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=250_000))
    with pytest.raises(AspcError, match=r"packed needs 0\.3 MB, but its disk has 0\.2 MB left"):
        packing.pack(path, tmp_path / "packed")
    assert sorted(tmp_path.iterdir()) == [path]


def test_endless_hdf5_groups_are_rejected(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "deep.hdf5", make_log())
    with h5py.File(path, "a") as file:
        group = file
        for _ in range(1000):
            group = group.create_group("g")
    refuse(path, "nested more than 32 deep")
    path = write_hdf5(tmp_path / "wide.hdf5", make_log())
    with h5py.File(path, "a", libver="latest") as file:
        for i in range(20_001):
            file.create_group(f"g{i}")
    refuse(path, "more than 20,000 objects")
    with pytest.raises(AspcError, match="more than 20,000 objects"):
        packing.pack(path, tmp_path / "packed")


def test_an_archive_of_too_many_arrays_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "many.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(10_001):
            archive.writestr(f"a{i}.npy", b"")
    refuse(path, "holds 10,001 arrays, more than 10,000")


def test_invalid_unicode_is_rejected(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **make_log(), aspc_env=np.array([0x11_0000], np.uint32).view("<U1"))
    refuse(tmp_path / "x.npz", "its text is not Unicode")


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.csv")
    refuse(tmp_path / "x.csv", "is a pipe or a device")


def test_metadata_of_a_packed_folder_is_bounded(tmp_path: Path) -> None:
    packed = packing.pack(data.load(write_as(tmp_path / "x.npz", make_log())), tmp_path / "packed")
    meta = packed.folder / streaming.META
    for body in (b" " * (io.MAX_JSON_BYTES + 1), b"[" * 100_000, b"\xff"):
        meta.write_bytes(body)
        with pytest.raises(AspcError, match="not a complete packed folder"):
            streaming.StreamingDataset.open(packed.folder)


def test_fortran_arrays_and_foreign_byte_orders_are_read(tmp_path: Path) -> None:
    log = make_log()
    log["observations"] = np.asfortranarray(log["observations"].astype(">f8"))
    np.savez(tmp_path / "x.npz", **log)
    dataset = data.load(tmp_path / "x.npz")
    np.testing.assert_array_equal(dataset.observations, log["observations"].astype(np.float32))
    dataset.observations[0] = 1.0  # memory of this process, which may be written to


def test_a_folder_of_many_files_leaves_no_file_open(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for i in range(30):
        write_as(tmp_path / "logs" / f"{i}.npz", make_log())
    before = len(os.listdir("/proc/self/fd"))
    dataset = data.load(tmp_path / "logs")
    assert len(dataset) == 1800
    assert len(os.listdir("/proc/self/fd")) == before


def test_memory_of_a_folder_is_counted_in_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "logs").mkdir()
    for i in range(4):
        write_as(tmp_path / "logs" / f"{i}.npz", make_log(rows=100_000))
    monkeypatch.setenv("ASPC_READ_MEMORY", "14MB")
    assert len(data.load(tmp_path / "logs" / "0.npz")) == 100_000
    refuse(tmp_path / "logs", r"[23]\.npz needs .* but the limit for reading is")


# ── the budget ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("stated", "count"), [("8GB", 8 * 10**9), ("1.5 g", 15 * 10**8), ("700", 700), ("2mb", 2 * 10**6)]
)
def test_memory_budget_is_configurable(monkeypatch: pytest.MonkeyPatch, stated: str, count: int) -> None:
    monkeypatch.setenv("ASPC_READ_MEMORY", stated)
    assert limits.memory_budget() == count


@pytest.mark.parametrize("stated", ["much", "-1GB", "0", "1XB"])
def test_an_invalid_memory_size_is_refused(monkeypatch: pytest.MonkeyPatch, stated: str) -> None:
    monkeypatch.setenv("ASPC_READ_MEMORY", stated)
    with pytest.raises(AspcError, match=r"ASPC_READ_MEMORY is .*, which is not a size; write 8GB"):
        limits.memory_budget()


@pytest.mark.parametrize("stated", ["soon", "0", "-1", "nan", "inf"])
def test_an_invalid_timeout_is_refused(monkeypatch: pytest.MonkeyPatch, stated: str) -> None:
    monkeypatch.setenv("ASPC_READ_TIMEOUT", stated)
    with pytest.raises(AspcError, match=r"ASPC_READ_TIMEOUT is .* number of seconds"):
        limits.timeout_seconds()


def test_control_group_limits_are_respected(tmp_path: Path) -> None:
    mount, membership = tmp_path / "mount", tmp_path / "cgroup"

    def write_group(folder: Path, names: tuple[str, str], limit: str, used: int, statistics: str) -> None:
        folder.mkdir(parents=True)
        (folder / names[0]).write_text(f"{limit}\n")
        (folder / names[1]).write_text(f"{used}\n")
        (folder / "memory.stat").write_text(statistics)

    two, one = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
    write_group(mount / "job" / "step", two, "max", 500, "anon 500\n")
    write_group(mount / "job" / "other", two, "7", 5, "anon 5\n")
    (mount / "job" / "memory.max").write_text("1000\n")
    (mount / "job" / "memory.current").write_text("800\n")
    (mount / "job" / "memory.stat").write_text("anon 500\ninactive_file 200\nactive_file 100\n")
    membership.write_text("0::/job/step\n")
    assert min(limits.cgroup_headrooms(str(membership), str(mount))) == 500
    write_group(mount / "memory" / "docker" / "abc", one, "400", 300, "total_inactive_file 50\ninactive_file 7\n")
    membership.write_text("5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n")
    assert min(limits.cgroup_headrooms(str(membership), str(mount))) == 150
    membership.write_text("junk\n0::/../../etc\n")
    assert min(limits.cgroup_headrooms(str(membership), str(mount))) == 2**63 - 1
    assert min(limits.cgroup_headrooms(str(tmp_path / "absent"))) == 2**63 - 1


def test_arrow_headers_with_false_sizes_are_rejected(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = write_as(tmp_path / "x.arrow", make_log())
    whole = path.read_bytes()
    for size in (0, -1, 2**31 - 1, len(whole)):
        path.write_bytes(whole[:-10] + struct.pack("<i", size) + whole[-6:])
        refuse(path, "damaged, truncated or not")
